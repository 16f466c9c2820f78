"""How a run of a graph stood after each of its events; all checkpoints share what they know."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from perdure.kernel.events import RunStatus

_OPEN = 1 << 62


class Timeline:
    """The values and the ops of a run, with the numbers of the checkpoints in which they were there."""

    def __init__(self) -> None:
        self._count = 0
        # By name: the numbers of the first checkpoints that have a value, and these values.
        self._values: dict[str, tuple[list[int], list[Any]]] = {}
        # By op: the last checkpoint before it began, and the one at which it ended; and which of them are questions.
        self._ops: dict[str, tuple[int, int]] = {}
        self._asked: set[str] = set()

    def add(
        self, seq: int, at: datetime, op: str, status: RunStatus, run_id: str, forked_from: str | None
    ) -> GraphCheckpoint:
        """The next checkpoint, with all that was told so far."""
        self._count += 1
        return GraphCheckpoint(seq, at, op, status, run_id, forked_from, self, self._count - 1)

    def put(self, name: str, value: Any) -> None:
        """A value has been made."""
        numbers, values = self._values.setdefault(name, ([], []))
        numbers.append(self._count)
        values.append(value)

    def begin(self, op: str, *, asks: bool) -> None:
        """An op has begun, which may be a question."""
        self._ops.setdefault(op, (self._count - 1, _OPEN))
        if asks:
            self._asked.add(op)

    def end(self, op: str) -> None:
        """An op has ended: the next checkpoint is that of its end."""
        if op in self._ops:
            self._ops[op] = self._ops[op][0], self._count

    def values(self, number: int) -> dict[str, Any]:
        """The values at a checkpoint."""
        at = {name: bisect_right(numbers, number) for name, (numbers, _) in self._values.items()}
        return {name: self._values[name][1][found - 1] for name, found in at.items() if found}

    def next(self, number: int) -> tuple[str, ...]:
        """The ops that were in progress at a checkpoint, and those that began before the one after it."""
        return tuple([op for op, (before, end) in self._ops.items() if before <= number < end])

    def questions(self, number: int) -> tuple[str, ...]:
        """The questions that were open at a checkpoint."""
        asked = ((op, *self._ops[op]) for op in self._ops if op in self._asked)
        return tuple([op for op, before, end in asked if before < number < end])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GraphCheckpoint:
    """The state of a graph's run after an event: its values, the ops in progress, and its open questions.

    `seq` is the number of the event, and `op` the op that it ended. Continue from there with `values(id, at=seq)` or
    `fork(id, at=seq + 1)`.
    """

    seq: int
    at: datetime
    op: str
    status: RunStatus
    run_id: str
    forked_from: str | None
    _timeline: Timeline
    _number: int

    @property
    def values(self) -> dict[str, Any]:
        """The values by name."""
        return self._timeline.values(self._number)

    @property
    def next(self) -> tuple[str, ...]:
        """The ops that had started and not ended, and those that started next."""
        return self._timeline.next(self._number)

    @property
    def interrupts(self) -> tuple[str, ...]:
        """The op paths of open questions."""
        return self._timeline.questions(self._number)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GraphCheckpoint) and self._shown == other._shown

    __hash__ = None  # type: ignore[assignment]

    @property
    def _shown(self) -> dict[str, Any]:
        names = ("seq", "at", "op", "status", "values", "next", "interrupts", "run_id", "forked_from")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        return f"GraphCheckpoint({', '.join(f'{name}={value!r}' for name, value in self._shown.items())})"
