"""The outcomes that a retried run keeps from its previous incarnation. Decides, never writes.

The program starts from the beginning. When it asks for an op that had an outcome, with the same inputs, it gets that
outcome, and nothing is executed. Outcomes that are available at the same time arrive in their previous order, so that
code that depends on the order takes the same path. Ops that had failed are executed again.
"""

from __future__ import annotations

import heapq
from collections import deque
from itertools import takewhile

from msgspec import Raw

from perdure.kernel.commands import (
    FINISH,
    CancelKey,
    CancelOp,
    Command,
    Finish,
    OpenWait,
    Pending,
    RecordValue,
    RunStep,
    SetState,
    StartChild,
    StartTimer,
)
from perdure.kernel.events import (
    AnyEvent,
    ChildStarted,
    ChunkAppended,
    OutcomeKept,
    StepFailed,
    StepSkipped,
    StepStarted,
    StepSucceeded,
    WaitOpened,
    WaitResolved,
)
from perdure.kernel.ids import op_name
from perdure.kernel.values.arguments import former_hash, same_call, same_record
from perdure.kernel.values.failures import Failure

# Outcomes of ops with side effects: steps and detached children.
EFFECTS = ("succeeded", "skipped", "failed", "started")
# A failed op, which is executed again; a patch mark; a lock, which is acquired again.
AGAIN, PATCHED, LOCKED = "again", "patched", "locked"
# The `by` of a step that ended its run with bail().
BAILED = "bail"


class KeptOutcomes:
    """The kept outcomes that the program has not asked for yet."""

    __slots__ = ("_alike", "_numbers", "_ready", "_seen", "_structure", "entries", "versioned")

    def __init__(self) -> None:
        self.entries: dict[str, OutcomeKept] = {}
        self._numbers: dict[str, int] = {}
        # Steps by name and inputs: which of several tasks calls one may depend on what ends first.
        self._alike: dict[tuple[str, str], deque[str]] = {}
        # Commands that `next` has seen: those with a kept outcome, in their previous order, and those that have none
        # but must be recorded before the program continues.
        self._seen: set[str | CancelKey] = set()
        self._ready: list[tuple[int, str]] = []
        self._structure: deque[str | CancelKey] = deque()
        # Whether they are reused where they fit, and only by nodes of the same version; a retry must use them.
        self.versioned = False

    def add(self, kept: OutcomeKept) -> None:
        """Add an outcome; they come in their previous order."""
        self._numbers[kept.op] = len(self._numbers)
        self.entries[kept.op] = kept
        if kept.kind in ("succeeded", "skipped", "failed"):
            self._alike.setdefault((op_name(kept.op), kept.inputs), deque()).append(kept.op)

    @property
    def effects(self) -> list[str]:
        """The ops with side effects that the program has not asked for again."""
        return [op for op, kept in self.entries.items() if kept.kind in EFFECTS]

    def find(
        self, op: str, kind: type[AnyEvent], inputs: str, command: RunStep | StartChild | None = None
    ) -> OutcomeKept | None:
        """The kept outcome of an op, for a step also that of another call with the same name and inputs."""
        kept = self.entries.get(op)
        if kept is not None and _KINDS.get(kept.kind) is kind:
            if not kept.inputs or kept.inputs == inputs:
                return kept
            if kind is WaitOpened:
                return None
            if same_record(kept.inputs, inputs) if command is None else same_call(kept.inputs, command):
                return kept
        if kind is not StepStarted:
            return None
        for key in [inputs] if command is None else [inputs, former_hash(command)]:
            alike = self._alike.get((op_name(op), key))
            while alike and alike[0] not in self.entries:
                alike.popleft()
            if alike:
                return self.entries[alike[0]]
        return None

    def consume(self, event: StepStarted | WaitOpened | ChildStarted) -> None:
        """An op has begun: remove its outcome, so that no other op gets it."""
        kept = self.find(event.op, type(event), _inputs(event))
        if kept is not None:
            del self.entries[kept.op]

    def next(self, pending: Pending) -> Command | None:
        """The pending command to record next; None when none of them has a kept outcome."""
        if FINISH in pending:
            return None
        # New commands are at the end.
        for key in reversed([*takewhile(lambda key: key not in self._seen, reversed(pending))]):
            self._seen.add(key)
            command = pending[key]
            if isinstance(command, SetState | RecordValue | CancelOp | Finish) or _is_inner(command):
                self._structure.append(key)
            elif (kept := self.of(command)) is not None:
                heapq.heappush(self._ready, (self._numbers[kept.op], command.op))
        while self._structure and self._structure[0] not in pending:
            self._structure.popleft()
        if self._structure:
            return pending[self._structure[0]]
        while self._ready:
            _, op = heapq.heappop(self._ready)
            if op in pending and self.of(pending[op]) is not None:
                return pending[op]
        return None

    def of(self, command: Command) -> OutcomeKept | None:
        """The kept outcome of a command, if it has one that needs no execution."""
        if isinstance(command, RunStep):
            kept = self.find(command.op, StepStarted, command.inputs_hash, command)
            if kept is not None and self.versioned and kept.inputs and kept.version != command.spec.version:
                return None
        elif isinstance(command, StartTimer):
            kept = self.find(command.op, WaitOpened, "timer ")
        elif isinstance(command, OpenWait):
            kept = self.find(command.op, WaitOpened, f"{command.kind} {command.name}")
        elif isinstance(command, StartChild) and command.detached:
            kept = self.find(command.op, ChildStarted, command.inputs_hash, command)
        else:
            return None
        return kept if kept is not None and kept.kind not in (AGAIN, LOCKED) else None

    def number(self, kept: OutcomeKept) -> int:
        """The position of an outcome in the previous order."""
        return self._numbers[kept.op]

    def token(self, op: str) -> Raw | None:
        """The token under which the previous incarnation held a lock."""
        kept = self.entries.get(op)
        return kept.value if kept is not None and kept.kind == LOCKED else None


_KINDS: dict[str, type[AnyEvent]] = {
    "succeeded": StepStarted,
    "skipped": StepStarted,
    "failed": StepStarted,
    AGAIN: StepStarted,
    "waited": WaitOpened,
    "started": ChildStarted,
}


def _is_inner(command: Command) -> bool:
    return isinstance(command, StartChild) and not command.detached


def _inputs(event: StepStarted | WaitOpened | ChildStarted) -> str:
    return wait_of(event) if isinstance(event, WaitOpened) else event.inputs


def wait_of(event: WaitOpened) -> str:
    """The kind and name of a wait, which stand for its inputs."""
    return f"{event.kind} {event.name}"


def outcome(command: RunStep | OpenWait | StartTimer, kept: OutcomeKept, memo: str = "") -> list[AnyEvent]:
    """The events that give an op its kept outcome, to follow the event that begins it; `memo`: see StepSucceeded."""
    op, error = command.op, kept.error or Failure("", "")
    if not isinstance(command, RunStep):
        # The signal that the wait consumed is not in the inbox of this incarnation.
        by = "kept" if kept.by == "signal" else kept.by
        return [WaitResolved(op, by, kept.value, kept.answer_id)]
    emitted: list[AnyEvent] = [ChunkAppended(op, 1, 0, kept.chunks)] if kept.chunks and not command.spec.queue else []
    if kept.kind == "succeeded":
        # Without inputs it is an outcome that a caller has given.
        known = memo if kept.inputs else ""
        return [*emitted, StepSucceeded(op, kept.value, 1, kept.blob, memo=known, digest=kept.digest)]
    if kept.kind == "skipped":
        return [*emitted, StepSkipped(op, 1, error)]
    if kept.by == BAILED:
        return [*emitted, StepFailed(op, 1, error, bailed=True, output=kept.value)]
    return [*emitted, StepFailed(op, 1, error, unknown=kept.unknown)]
