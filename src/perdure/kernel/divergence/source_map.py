"""Which lines of a program's source mention which ops. Data only; `authoring/code/source_map.py` builds it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.kernel.divergence.model import OpView

# The `if` statements around a line: the line of each, and which of its arms the line is in.
Arms = tuple[tuple[int, int], ...]


class SourceMap(msgspec.Struct, frozen=True):
    """Places in a program's source, as `file:line`.

    `lines` are the places that mention each op name; `code` and `arms` the text and the arms of each line; `known`
    is False when the source could not be read.
    """

    lines: dict[str, tuple[str, ...]] = {}
    code: dict[str, str] = {}
    arms: dict[str, Arms] = {}
    known: bool = False

    def of(self, op: OpView) -> Sequence[str]:
        """The places that mention the op's name."""
        return self.lines.get(op.name, ())

    def conditional(self, op: OpView) -> bool:
        """Whether every place that mentions the op is under a condition."""
        places = self.of(op)
        return bool(places) and all(self.arms.get(place) for place in places)

    def condition(self, recorded: OpView, current: OpView | None) -> tuple[str, str] | None:
        """The innermost condition around either op: its place and its text."""
        current_places = () if current is None else (current.source,)
        for place in (*self.of(recorded), *current_places):
            for line, _ in reversed(self.arms.get(place, ())):
                where = f"{place.rpartition(':')[0]}:{line}"
                if where in self.code:
                    return where, self.code[where]
        return None

    def exclusive(self, recorded: OpView, current: OpView) -> bool:
        """Whether the two ops are in different arms of one `if`."""
        here = dict(self.arms.get(current.source, ()))
        return any(
            here.get(line, arm) != arm
            for place in self.of(recorded)
            if _file(place) == _file(current.source)
            for line, arm in self.arms.get(place, ())
        )

    def stands_before(self, recorded: OpView, current: OpView) -> bool:
        """Whether the recorded op is mentioned only above the current one."""
        places = [place for place in self.of(recorded) if _file(place) == _file(current.source)]
        return bool(places) and all(_line(place) < _line(current.source) for place in places)


NO_SOURCE = SourceMap()


def _file(source: str) -> str:
    return source.rpartition(":")[0]


def _line(source: str) -> int:
    number = source.rpartition(":")[2]
    return int(number) if number.isdigit() else 0
