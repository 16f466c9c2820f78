"""What a run that is tried again had before: outcomes that its program gets when it asks for the same again.

The program begins anew. Where it asks for an op that had an outcome, with the same inputs, it has that outcome at once,
and nothing is called; outcomes that can be had at the same time come in the order in which they came before, so that
what depends on that order goes the same way. What had failed is called again. Decides, never writes.
"""

from __future__ import annotations

import heapq
from collections import deque
from itertools import takewhile

from msgspec import Raw

from perdure.kernel.commands import (
    FINISH,
    CancelOp,
    Command,
    Finish,
    OpenWait,
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
from perdure.kernel.values.failures import Failure
from perdure.kernel.values.value_versions import same_inputs

# Outcomes of what acts on the world: of steps, and of runs that were started and let go.
EFFECTS = ("succeeded", "skipped", "failed", "started")
# What had failed and is called again; what marks the path of a patch; a lock, which is taken again.
AGAIN, PATCHED, LOCKED = "again", "patched", "locked"
# By what a step had ended that asked for the end of its run.
BAILED = "bail"


class Keeping:
    """The outcomes that a program has not asked for yet."""

    __slots__ = ("_alike", "_numbers", "_ready", "_seen", "_structure", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, OutcomeKept] = {}
        self._numbers: dict[str, int] = {}
        # Steps by name and inputs: which of several tasks asks for one may depend on what ends first.
        self._alike: dict[tuple[str, str], deque[str]] = {}
        # Wishes that were looked at; of those, what can be had, by the order in which it came before, and what only
        # leads to more wishes.
        self._seen: set[str] = set()
        self._ready: list[tuple[int, str]] = []
        self._structure: deque[str] = deque()

    def add(self, kept: OutcomeKept) -> None:
        """Know of one more outcome."""
        self._numbers[kept.op] = len(self._numbers)
        self.entries[kept.op] = kept
        if kept.kind in ("succeeded", "skipped", "failed"):
            self._alike.setdefault((op_name(kept.op), kept.inputs), deque()).append(kept.op)

    @property
    def effects(self) -> list[str]:
        """The ops that acted on the world and were not asked for again."""
        return [op for op, kept in self.entries.items() if kept.kind in EFFECTS]

    def find(self, op: str, kind: type[AnyEvent], inputs: str) -> OutcomeKept | None:
        """The outcome of an op that is asked for; for a step also that of another with the same name and inputs."""
        kept = self.entries.get(op)
        if kept is not None and _KINDS.get(kept.kind) is kind:
            if not kept.inputs or same_inputs(kept.inputs, inputs):
                return kept
        if kind is not StepStarted:
            return None
        alike = self._alike.get((op_name(op), inputs))
        while alike and alike[0] not in self.entries:
            alike.popleft()
        return self.entries[alike[0]] if alike else None

    def asked(self, event: StepStarted | WaitOpened | ChildStarted) -> None:
        """An op has begun: what it has now, no other gets."""
        kept = self.find(event.op, type(event), _inputs(event))
        if kept is not None:
            del self.entries[kept.op]

    def next(self, wishes: dict[str, Command]) -> Command | None:
        """What to record next of what a program wishes for, before anything is begun; None: what is left is new."""
        if FINISH in wishes:
            return None
        # New wishes stand at the end.
        for op in reversed([*takewhile(lambda op: op not in self._seen, reversed(wishes))]):
            self._seen.add(op)
            command = wishes[op]
            if isinstance(command, SetState | RecordValue | CancelOp | Finish) or _is_inner(command):
                self._structure.append(op)
            elif (kept := self.of(command)) is not None:
                heapq.heappush(self._ready, (self._numbers[kept.op], op))
        while self._structure and self._structure[0] not in wishes:
            self._structure.popleft()
        if self._structure:
            return wishes[self._structure[0]]
        while self._ready:
            _, op = heapq.heappop(self._ready)
            if op in wishes and self.of(wishes[op]) is not None:
                return wishes[op]
        return None

    def of(self, command: Command) -> OutcomeKept | None:
        """The outcome that a command has at once, if there is one."""
        if isinstance(command, RunStep):
            kept = self.find(command.op, StepStarted, command.inputs_hash)
        elif isinstance(command, StartTimer):
            kept = self.find(command.op, WaitOpened, "timer ")
        elif isinstance(command, OpenWait):
            kept = self.find(command.op, WaitOpened, f"{command.kind} {command.name}")
        elif isinstance(command, StartChild) and command.detached:
            kept = self.find(command.op, ChildStarted, command.inputs_hash)
        else:
            return None
        return kept if kept is not None and kept.kind not in (AGAIN, LOCKED) else None

    def number(self, kept: OutcomeKept) -> int:
        """Where an outcome stands in the order in which they came."""
        return self._numbers[kept.op]

    def token(self, op: str) -> Raw | None:
        """Under which token a lock was held before."""
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
    """What a wait is for."""
    return f"{event.kind} {event.name}"


def outcome(command: RunStep | OpenWait | StartTimer, kept: OutcomeKept) -> list[AnyEvent]:
    """The events after the beginning of an op by which it has an outcome that it had before."""
    op, error = command.op, kept.error or Failure("", "")
    if not isinstance(command, RunStep):
        # What a wait took out of the inbox before is not in this one's.
        by = "kept" if kept.by == "signal" else kept.by
        return [WaitResolved(op, by, kept.value, kept.answer_id)]
    shown: list[AnyEvent] = [ChunkAppended(op, 1, 0, kept.chunks)] if kept.chunks and not command.spec.queue else []
    if kept.kind == "succeeded":
        return [*shown, StepSucceeded(op, kept.value, 1, kept.blob)]
    if kept.kind == "skipped":
        return [*shown, StepSkipped(op, 1, error)]
    if kept.by == BAILED:
        return [*shown, StepFailed(op, 1, error, bailed=True, output=kept.value)]
    return [*shown, StepFailed(op, 1, error, unknown=kept.unknown)]
