"""What a program's code can be seen to ask for, and where. Data only: whoever can read the code makes it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.kernel.divergence.model import OpView

# The arms of `if` statements around a line: the line of each, and which of its arms.
Arms = tuple[tuple[int, int], ...]


class Mentions(msgspec.Struct, frozen=True):
    """The lines at which names of ops stand in a program's code."""

    lines: dict[str, tuple[str, ...]] = {}
    # The text and the arms of each line of its functions, by `file:line`.
    code: dict[str, str] = {}
    arms: dict[str, Arms] = {}
    # Whether anything is known at all.
    known: bool = False

    def of(self, op: OpView) -> Sequence[str]:
        """Where the code could ask for such an op."""
        return self.lines.get(op.name, ())

    def conditional(self, op: OpView) -> bool:
        """Whether the code asks for it under a condition, wherever it does."""
        places = self.of(op)
        return bool(places) and all(self.arms.get(place) for place in places)

    def condition(self, recorded: OpView, current: OpView | None) -> tuple[str, str] | None:
        """The innermost condition that decides for or against one of the two: its line, and what stands there."""
        current_places = () if current is None else (current.source,)
        for place in (*self.of(recorded), *current_places):
            for line, _ in reversed(self.arms.get(place, ())):
                where = f"{place.rpartition(':')[0]}:{line}"
                if where in self.code:
                    return where, self.code[where]
        return None

    def exclusive(self, recorded: OpView, current: OpView) -> bool:
        """Whether the code asks for the two in different arms of one `if`."""
        here = dict(self.arms.get(current.source, ()))
        return any(
            here.get(line, arm) != arm
            for place in self.of(recorded)
            if _file(place) == _file(current.source)
            for line, arm in self.arms.get(place, ())
        )

    def stands_before(self, recorded: OpView, current: OpView) -> bool:
        """Whether the code has the recorded op only above the current one."""
        places = [place for place in self.of(recorded) if _file(place) == _file(current.source)]
        return bool(places) and all(_line(place) < _line(current.source) for place in places)


NOTHING = Mentions()


def _file(source: str) -> str:
    return source.rpartition(":")[0]


def _line(source: str) -> int:
    number = source.rpartition(":")[2]
    return int(number) if number.isdigit() else 0
