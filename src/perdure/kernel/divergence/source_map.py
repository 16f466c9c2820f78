"""Which lines of a program's source mention which ops. Data only; `authoring/code/source_map.py` builds it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.kernel.divergence.model import OpView

# The conditions around a place: the line of each, and which of its arms the place is in.
Arms = tuple[tuple[int, int], ...]


# A loop: its first and its last line.
Loop = tuple[int, int]


class Mention(msgspec.Struct, frozen=True):
    """A place that mentions an op, and the arms around it."""

    place: str
    arms: Arms = ()


class SourceMap(msgspec.Struct, frozen=True):
    """Places in a program's source, as `file:line`.

    `lines` are the places that mention each op name, `mentions` the same with the arms around each; `code` and `arms`
    the text and the arms of each line, `loops` the loops around it, the innermost first; `known` is False when the
    source could not be read.
    """

    lines: dict[str, tuple[str, ...]] = {}
    code: dict[str, str] = {}
    arms: dict[str, Arms] = {}
    known: bool = False
    mentions: dict[str, tuple[Mention, ...]] = {}
    loops: dict[str, tuple[Loop, ...]] = {}

    def of(self, op: OpView) -> Sequence[str]:
        """The places that mention the op's name."""
        return self.lines.get(op.name, ())

    def conditional(self, op: OpView) -> bool:
        """Whether every place that mentions the op is under a condition."""
        arms = self._arms_of(op)
        return bool(arms) and all(arms)

    def exclusive(self, recorded: OpView, current: OpView) -> bool:
        """Whether the two ops are in different arms of one condition."""
        here = [arms for place, arms in self._places(current) if place == current.source]
        here = here or [self.arms.get(current.source, ())]
        there = [arms for place, arms in self._places(recorded) if _file(place) == _file(current.source)]
        return bool(there) and all(_exclude(a, b) for a in here for b in there)

    def arms_at(self, op: OpView, place: str) -> Arms:
        """The conditions around a mention of the op."""
        return next((arms for found, arms in self._places(op) if found == place), ())

    def has_key(self, lock: OpView) -> bool:
        """Whether a line that takes a lock mentions a part of this one's key, or no text at all."""
        for place in self.of(lock):
            texts = [name for name, places in self.lines.items() if place in places and name != lock.name]
            if not texts or any(text in lock.inputs for text in texts):
                return True
        return False

    def loops_at(self, place: str) -> Sequence[Loop]:
        """The loops around a line, the innermost first."""
        return self.loops.get(place, ())

    def loops_of(self, op: OpView) -> Sequence[Loop]:
        """The loops around all lines that mention the op, the innermost first."""
        places = [set(self.loops_at(place)) for place in self.of(op)]
        return sorted(set.intersection(*places), reverse=True) if places else []

    def _places(self, op: OpView) -> list[tuple[str, Arms]]:
        found = self.mentions.get(op.name)
        if found is not None:
            return [(one.place, one.arms) for one in found]
        return [(place, self.arms.get(place, ())) for place in self.of(op)]

    def _arms_of(self, op: OpView) -> list[Arms]:
        return [arms for _, arms in self._places(op)]


NO_SOURCE = SourceMap()


def _exclude(a: Arms, b: Arms) -> bool:
    """Whether two places are in different arms of one condition."""
    for (line, arm), (other, other_arm) in zip(a, b, strict=False):
        if (line, arm) != (other, other_arm):
            return line == other
    return False


def _file(source: str) -> str:
    return source.rpartition(":")[0]
