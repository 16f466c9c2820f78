"""The ops of a journal in columns, kept up to date event by event. Reads nothing itself.

A run may have 100,000 ops: a list for each column takes a tenth of what objects would, and a page of them is a slice.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from perdure.kernel.events import (
    AnyEvent,
    AttemptFailed,
    Batch,
    CancelRequested,
    ChildFinished,
    ChildStarted,
    ChunkAppended,
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


class OpTable:
    """The ops of one journal, of the root and all its children."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.next_seq = 0
        self.rows: dict[str, int] = {}
        self.path: list[str] = []
        self.kind: list[str] = []
        self.status: list[str] = []
        self.start: list[float] = []
        self.end: list[float | None] = []
        self.attempts: list[int] = []
        self.source: list[str] = []
        self.queue: list[str] = []
        self.first: list[int] = []
        self.seq: list[int] = []
        # When a wait was to end by itself; None where it was not.
        self.due: list[float | None] = []
        # Of ops that were attempted more than once: start, end, start, end, ...
        self.tries: dict[int, list[float | None]] = {}
        self.owned: list[list[object]] = []
        self.held: list[list[object]] = []
        self.began = 0.0
        self.ended: float | None = None
        self.children: dict[str, str] = {}
        # The child runs that are graphs or flows.
        self.graphs: set[str] = set()
        # The number of the event that ended each op.
        self.brought: dict[str, int] = {}

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
                self.due[self._begin(event.op, event.kind, WAITING, event.source, seq, at)] = event.deadline
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
                if (row := self.rows.get(event.op)) is not None:
                    self.seq[row] = seq
            case RunStarted():
                self.began = at
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
            self.path.append(op)
            self.kind.append(kind)
            self.status.append(status)
            self.start.append(at)
            self.end.append(None)
            self.attempts.append(0)
            self.source.append(source)
            self.queue.append("")
            self.first.append(seq)
            self.seq.append(seq)
            self.due.append(None)
        else:
            self.status[row], self.seq[row], self.end[row] = status, seq, None
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
        self.brought[op] = seq
        if row in self.tries and self.tries[row][-1] is None:
            self.tries[row][-1] = at

    def _finish(self, seq: int, at: float) -> None:
        self.ended = at
        self._release(at)
        self._continue(at)
        for row, status in enumerate(self.status):
            if self.end[row] is None and status in (RUNNING, WAITING, "retrying"):
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

    def page(self, within: str, after: int, since: int, limit: int) -> Ops:
        """Ops from number `after` on that have an event from `since` on; of a child, those within its op path."""
        inside = f"{within}/" if within else ""
        wanted = range(after, len(self.path))
        if inside or since:
            of = (n for n in wanted if self.seq[n] >= since and self.path[n].startswith(inside))
            numbers = list(islice(of, limit + 1))
        else:
            numbers = list(wanted[: limit + 1])
        rest = numbers[limit:]
        numbers = numbers[:limit]
        return Ops(
            run_id=self.run_id,
            next_seq=self.next_seq,
            total=len(self.path),
            next=rest[0] if rest else None,
            number=numbers,
            path=[self.path[n] for n in numbers],
            kind=[self.kind[n] for n in numbers],
            status=[self.status[n] for n in numbers],
            start=[self.start[n] for n in numbers],
            end=[self.end[n] for n in numbers],
            attempts=[self.attempts[n] for n in numbers],
            source=[self.source[n] for n in numbers],
            group=[op_name(self.path[n]) for n in numbers],
            queue=[self.queue[n] for n in numbers],
            seq=[self.seq[n] for n in numbers],
            due=[self.due[n] for n in numbers],
            tries={str(n): self.tries[n] for n in numbers if n in self.tries},
            owned=self.owned,
            held=self.held,
            began=self.began,
            ended=self.ended,
        )


def _resolved(by: str) -> str:
    if by in ("timeout", "cancelled"):
        return "timed_out" if by == "timeout" else by
    return "rejected" if by.startswith("rejected:") else "succeeded"
