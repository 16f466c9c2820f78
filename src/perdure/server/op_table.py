"""The ops of a journal in columns, kept up to date event by event. Reads nothing itself.

A run may have 100,000 ops: a list for each column takes a tenth of what objects would, and a page of them is a slice.
"""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Iterable
from typing import Any

from perdure.kernel.events import (
    AnyEvent,
    AttemptFailed,
    Batch,
    CancelRequested,
    ChildFinished,
    ChildStarted,
    ChunkAppended,
    InputReplaced,
    RunClaimed,
    RunFinished,
    RunForked,
    RunParked,
    RunPaused,
    RunReleased,
    RunResumed,
    RunStarted,
    StateSet,
    StepFailed,
    StepProgressed,
    StepSkipped,
    StepStarted,
    StepSucceeded,
    ValueRecorded,
    WaitOpened,
    WaitResolved,
)
from perdure.kernel.ids import op_name
from perdure.server.shapes import Ops

RUNNING, WAITING = "running", "waiting"
# How many ops are added to a page in one turn of the event loop.
SLICE = 4000


class OpTable:
    """The ops of one journal: those of the root run and of all child runs."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.next_seq = 0
        self.rows: dict[str, int] = {}
        self.path: list[str] = []
        self.group: list[str] = []
        self.kind: list[str] = []
        self.status: list[str] = []
        self.source: list[str] = []
        self.queue: list[str] = []
        # A missing time is NaN. `due` is when a wait ends by itself.
        self.start, self.end, self.due = array("d"), array("d"), array("d")
        # The numbers of an op's first and last event, and of the event that ended it; -1 if there is none.
        self.attempts, self.first, self.seq, self.brought = array("q"), array("q"), array("q"), array("q")
        # For ops that were attempted more than once: start, end, start, end, ...
        self.tries: dict[int, list[float | None]] = {}
        self.owned: list[list[object]] = []
        self.held: list[list[object]] = []
        self.began = 0.0
        self.not_before: float | None = None
        self.ended: float | None = None
        self.children: dict[str, str] = {}
        # The child runs that are graphs or flows.
        self.graphs: set[str] = set()
        # Strings that many ops share, each kept once.
        self._shared: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self.path)

    def feed(self, batches: Iterable[Batch]) -> None:
        """Fold the next events."""
        for batch in batches:
            for seq, event in enumerate(batch.events, batch.seq):
                if seq >= self.next_seq:
                    self._fold(event, seq, batch.at)
                    self.next_seq = seq + 1

    def _fold(self, event: AnyEvent, seq: int, at: float) -> None:
        match event:
            case StepStarted():
                self._attempted(event, seq, at)
            case StepSucceeded():
                self._ended(event.op, "succeeded", seq, at)
            case AttemptFailed():
                self._attempt_ended(event, seq, at)
            case StepFailed():
                self._ended(event.op, "unknown" if event.unknown else "failed", seq, at)
            case StepSkipped():
                self._ended(event.op, "skipped", seq, at)
            case WaitOpened():
                row = self._begin(event.op, event.kind, WAITING, event.source, seq, at)
                self.due[row] = math.nan if event.deadline is None else event.deadline
            case WaitResolved():
                self._ended(event.op, _resolved(event.by), seq, at)
            case ChildStarted():
                self._begin(event.op, "child", RUNNING, event.source, seq, at)
                if event.structure:
                    self.graphs.add(event.op)
                if event.detached:
                    self.children[event.op] = event.detached
                    self._ended(event.op, "succeeded", seq, at)
            case ChildFinished():
                self._ended(event.op, "succeeded" if event.status == "completed" else event.status.value, seq, at)
            case ValueRecorded() if event.kind not in ("lock", "unlock"):
                self._begin(event.op, event.kind, RUNNING, event.source, seq, at)
                self._ended(event.op, "succeeded", seq, at)
            case StateSet():
                self._begin(event.op, "state", RUNNING, event.source, seq, at)
                self._ended(event.op, "succeeded", seq, at)
            case ChunkAppended() | StepProgressed():
                if event.op in self.rows:
                    self.seq[self.rows[event.op]] = seq
            case RunStarted():
                self.began, self.not_before = at, event.not_before
            case InputReplaced():
                self.not_before = event.not_before
            case RunClaimed():
                self._release(at)
                self.owned.append([at, None, event.owner, event.epoch])
            case RunReleased():
                self._release(at)
            case RunPaused():
                self._hold(at, "paused")
            case RunParked():
                self._hold(at, "parked")
            case RunResumed() | CancelRequested() | RunForked():
                self._continue(at)
            case RunFinished():
                self._finish(seq, at)
            case _:
                pass

    def _begin(self, op: str, kind: str, status: str, source: str, seq: int, at: float) -> int:
        row = self.rows.get(op)
        if row is None:
            row = self.rows[op] = len(self.path)
            shared, name = self._shared, op_name(op)
            self.path.append(op)
            self.group.append(shared.setdefault(name, name))
            self.kind.append(shared.setdefault(kind, kind))
            self.status.append(status)
            self.source.append(shared.setdefault(source, source))
            self.queue.append("")
            self.start.append(at)
            self.end.append(math.nan)
            self.due.append(math.nan)
            self.attempts.append(0)
            self.first.append(seq)
            self.seq.append(seq)
            self.brought.append(-1)
        else:
            self.status[row], self.seq[row], self.end[row] = status, seq, math.nan
        return row

    def _attempted(self, event: StepStarted, seq: int, at: float) -> None:
        again = event.op in self.rows
        row = self._begin(event.op, "step", RUNNING, event.source, seq, at)
        if again and self.attempts[row]:
            tries = self.tries.setdefault(row, [self.start[row], None])
            tries += [at, None]
        self.attempts[row] = max(self.attempts[row] + 1, event.attempt)
        self.queue[row] = event.queue

    def _attempt_ended(self, event: AttemptFailed, seq: int, at: float) -> None:
        row = self.rows.get(event.op)
        if row is None:
            return
        self.tries.setdefault(row, [self.start[row], None])[-1] = at
        self.status[row], self.seq[row] = "retrying", seq

    def _ended(self, op: str, status: str, seq: int, at: float) -> None:
        row = self.rows.get(op)
        if row is None:
            return
        self.status[row], self.end[row], self.seq[row] = status, at, seq
        self.brought[row] = seq
        if row in self.tries and self.tries[row][-1] is None:
            self.tries[row][-1] = at

    def _finish(self, seq: int, at: float) -> None:
        self.ended = at
        self._release(at)
        self._continue(at)
        for row, status in enumerate(self.status):
            if math.isnan(self.end[row]) and status in (RUNNING, WAITING, "retrying"):
                self.status[row] = "unknown" if status == RUNNING and self.kind[row] == "step" else "cancelled"
                self.end[row], self.seq[row] = at, seq

    def _release(self, at: float) -> None:
        if self.owned and self.owned[-1][1] is None:
            self.owned[-1][1] = at

    def _hold(self, at: float, what: str) -> None:
        self._continue(at)
        self.held.append([at, None, what])

    def _continue(self, at: float) -> None:
        if self.held and self.held[-1][1] is None:
            self.held[-1][1] = at

    def ending(self, row: int) -> int | None:
        """The number of the event that ended an op."""
        return None if self.brought[row] < 0 else self.brought[row]

    async def page(self, within: str, after: int, since: int, limit: int, *, complete: bool) -> Ops:
        """Ops from number `after` on with an event from `since` on; for a child run, only those below its op path.

        Built in slices, between which the event loop runs other tasks. A page shows what was known when it was begun,
        even if another request feeds the table meanwhile, so that a stream can continue from there. `complete`: every
        event of the run has been read.
        """
        next_seq, last, inside = self.next_seq, len(self.path), f"{within}/" if within else ""
        numbers: list[int] = []
        for start in range(after, last, SLICE):
            some = range(start, min(start + SLICE, last))
            whole = not inside and not since
            numbers += some if whole else (n for n in some if self.seq[n] >= since and self.path[n].startswith(inside))
            if len(numbers) > limit:
                break
            await asyncio.sleep(0)
        rest, numbers = numbers[limit:], numbers[:limit]
        columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        for start in range(0, len(numbers), SLICE):
            here = numbers[start : start + SLICE]
            for name, found in columns.items():
                some_of = map(getattr(self, name).__getitem__, here)
                found += [None if at != at else at for at in some_of] if name in _TIMES else some_of
            await asyncio.sleep(0)
        return Ops(
            run_id=self.run_id,
            next_seq=next_seq,
            total=last,
            complete=complete,
            next=rest[0] if rest else None if complete else last,
            number=numbers,
            tries={str(n): self.tries[n] for n in numbers if n in self.tries} if self.tries else {},
            owned=[*self.owned],
            held=[*self.held],
            began=self.began,
            not_before=self.not_before,
            ended=self.ended,
            **columns,
        )


# Columns in which NaN is null.
_TIMES = ("end", "due")
_COLUMNS = ("path", "kind", "status", "start", "end", "due", "attempts", "source", "group", "queue", "seq")


def _resolved(by: str) -> str:
    if by in ("timeout", "cancelled"):
        return "timed_out" if by == "timeout" else by
    return "rejected" if by.startswith("rejected:") else "succeeded"
