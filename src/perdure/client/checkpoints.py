"""How a run of a graph stood after each of its events; all checkpoints share what they know."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from perdure.client.views import Interrupt
from perdure.kernel.events import AttemptFailed, ChildFinished, RunStatus, StepFailed, StepSkipped, WaitOpened

_OPEN = 1 << 62


@dataclass(frozen=True, slots=True)
class StepRecord:
    """An op of a graph as a checkpoint has it. `error` is what failed last: of it, or of its last attempt.

    `status` is `running`, or `waiting` for a question; it ended as `succeeded`, `failed`, `skipped` or `cancelled`.
    """

    op: str
    kind: str
    status: str
    attempts: int
    began_at: datetime
    ended_at: datetime | None = None
    error: str | None = None


class _Op:
    """What is known of an op, with the numbers of checkpoints: the last before it began, and the one of its end."""

    __slots__ = ("asked", "before", "began", "began_at", "end", "ended_as", "ended_at", "failures", "kind")

    def __init__(self, kind: str, before: int, began_at: datetime) -> None:
        self.kind, self.before, self.began_at = kind, before, began_at
        self.end, self.ended_at, self.ended_as = _OPEN, began_at, ""
        # The numbers of the checkpoints before its attempts, and before its failures, with what failed.
        self.began = list[int]()
        self.failures: list[tuple[int, str]] = []
        self.asked: Interrupt | None = None

    def record(self, op: str, number: int) -> StepRecord:
        """The op at a checkpoint, before which it began."""
        failures = [error for before, error in self.failures if before < number]
        ended = self.end <= number
        status = self.ended_as if ended else "running" if self.asked is None else "waiting"
        attempts = sum(before < number for before in self.began)
        end = self.ended_at if ended else None
        return StepRecord(op, self.kind, status, attempts, self.began_at, end, failures[-1] if failures else None)


class Timeline:
    """The values and the ops of a run, with the numbers of the checkpoints in which they were there."""

    def __init__(self) -> None:
        self._count = 0
        # By name: the numbers of the first checkpoints that have a value, and these values.
        self._values: dict[str, tuple[list[int], list[Any]]] = {}
        self._ops: dict[str, _Op] = {}

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

    def begin(self, op: str, kind: str, at: datetime) -> None:
        """An op has begun, or an attempt of it."""
        if op not in self._ops:
            self._ops[op] = _Op(kind, self._count - 1, at)
        self._ops[op].began.append(self._count - 1)

    def ask(self, op: str, event: WaitOpened, id: str) -> None:
        """An op that has begun is a question of this run."""
        deadline = None if event.deadline is None else datetime.fromtimestamp(event.deadline, UTC)
        payload, schema = msgspec.json.decode(event.request), msgspec.json.decode(event.schema)
        self._ops[op].asked = Interrupt(op, event.name, event.kind, id, payload, schema, deadline, event.approvers)

    def fail(self, op: str, event: AttemptFailed) -> None:
        """An attempt of an op has failed."""
        if op in self._ops:
            self._ops[op].failures.append((self._count - 1, event.error.message))

    def end(self, op: str, event: object, at: datetime) -> None:
        """An op has ended: the next checkpoint is that of its end."""
        found = self._ops.get(op)
        if found is None:
            return
        found.end, found.ended_at, found.ended_as = self._count, at, _ended_as(event)
        if isinstance(event, StepFailed | ChildFinished) and event.error is not None:
            found.failures.append((self._count - 1, event.error.message))

    def values(self, number: int) -> dict[str, Any]:
        """The values at a checkpoint."""
        at = {name: bisect_right(numbers, number) for name, (numbers, _) in self._values.items()}
        return {name: self._values[name][1][found - 1] for name, found in at.items() if found}

    def next(self, number: int) -> tuple[str, ...]:
        """The ops that were in progress at a checkpoint, and those that began before the one after it."""
        return tuple([op for op, one in self._ops.items() if one.before <= number < one.end])

    def questions(self, number: int) -> tuple[Interrupt, ...]:
        """The questions that were open at a checkpoint."""
        open_ones = (one for one in self._ops.values() if one.before < number < one.end)
        return tuple([one.asked for one in open_ones if one.asked is not None])

    def steps(self, number: int) -> tuple[StepRecord, ...]:
        """The ops that had begun at a checkpoint."""
        return tuple([one.record(op, number) for op, one in self._ops.items() if one.before < number])


def _ended_as(event: object) -> str:
    if isinstance(event, StepSkipped):
        return "skipped"
    if isinstance(event, StepFailed):
        return "cancelled" if event.cancelled else "failed"
    if isinstance(event, ChildFinished) and event.error is not None:
        return "failed"
    if isinstance(event, ChildFinished) and event.status is RunStatus.CANCELLED:
        return "cancelled"
    return "cancelled" if getattr(event, "by", "") == "cancelled" else "succeeded"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GraphCheckpoint:
    """The state of a graph's run after an event: its values, its ops, those in progress, and its open questions.

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
    def interrupts(self) -> tuple[Interrupt, ...]:
        """The open questions: what people were shown, and the JSON Schema of the answer."""
        return self._timeline.questions(self._number)

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        """The ops that had begun, in that order: how each stood then."""
        return self._timeline.steps(self._number)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GraphCheckpoint) and self._shown == other._shown

    __hash__ = None  # type: ignore[assignment]

    @property
    def _shown(self) -> dict[str, Any]:
        names = ("seq", "at", "op", "status", "values", "next", "interrupts", "steps", "run_id", "forked_from")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        return f"GraphCheckpoint({', '.join(f'{name}={value!r}' for name, value in self._shown.items())})"
