"""The ops of a journal, each from its beginning to its outcome. Reads events, decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Raw

from perdure.errors import NoSuchOp
from perdure.kernel.chunks import ChunkOutcome, chunk_range
from perdure.kernel.events import (
    NULL,
    AnyEvent,
    Batch,
    ChildFinished,
    ChildStarted,
    RunStatus,
    SignalReceived,
    StateSet,
    StepFailed,
    StepOutcome,
    StepSkipped,
    StepStarted,
    StepSucceeded,
    ValueRecorded,
    WaitOpened,
    WaitResolved,
    numbered,
)
from perdure.kernel.ids import op_name
from perdure.kernel.state import RunState
from perdure.kernel.values.failures import Failure


class Op(msgspec.Struct):
    """One op in a journal. `began` and `ended` are numbers of events."""

    path: str
    kind: str
    began: int
    began_at: float = 0.0
    ended: int | None = None
    ended_at: float | None = None
    status: str = "open"
    source: str = ""
    # For a step or a child: the record of its arguments.
    inputs: str = ""
    value: Raw = NULL
    blob: str = ""
    error: Failure | None = None
    # Its final failure, if it is one that the program did not cause.
    failed: Failure | None = None
    # Whether the program cancelled it.
    given_up: bool = False
    # Whether it is an at-most-once step with an unknown outcome.
    unknown: bool = False
    # For a step: the number of its last attempt, and how many there were.
    attempt: int = 0
    attempts: int = 0
    # For a wait: the name of its signal, the child it is sent to, and the number of the signal it consumed.
    name: str = ""
    child: str = ""
    taken: int | None = None

    @property
    def took(self) -> float | None:
        """Seconds from its beginning to its outcome."""
        return None if self.ended_at is None else self.ended_at - self.began_at


def ops(batches: Iterable[Batch]) -> dict[str, Op]:
    """The ops of a journal by path, in the order they began."""
    found: dict[str, Op] = {}
    state = RunState("")
    signals: dict[int, int] = {}
    for seq, at, event in numbered(batches):
        if isinstance(event, StepStarted):
            op = found.setdefault(event.op, Op(event.op, "step", seq, at, source=event.source, inputs=event.inputs))
            op.attempt, op.attempts = event.attempt, op.attempts + 1
        elif isinstance(event, WaitOpened):
            op = found[event.op] = Op(event.op, event.kind, seq, at, source=event.source)
            op.name, op.child = event.name, state.child_of(event.op)
        elif isinstance(event, ChildStarted):
            op = found[event.op] = Op(event.op, "child", seq, at, source=event.source, inputs=event.inputs)
            if event.detached:
                op.ended, op.status = seq, "detached"
        elif isinstance(event, StateSet):
            found[event.op] = Op(event.op, "state", seq, at, seq, at, "recorded", event.source, value=event.value)
        elif isinstance(event, ValueRecorded) and event.kind != "lock":
            found[event.op] = Op(event.op, event.kind, seq, at, seq, at, "recorded", event.source, value=event.value)
        elif isinstance(event, SignalReceived):
            signals[id(event)] = seq
        elif isinstance(event, StepOutcome | ChildFinished | WaitResolved) and event.op in found:
            op = found[event.op]
            _end(op, event)
            op.ended, op.ended_at, op.failed, op.given_up = seq, at, _failure(event), is_given_up(event)
            if op.status == "signal" and (signal := state.next_signal(event.op)) is not None:
                op.value, op.taken = signal.payload, signals[id(signal)]
        state.fold(event, at)
    return found


def _end(op: Op, event: StepSucceeded | StepFailed | StepSkipped | ChildFinished | WaitResolved) -> None:
    match event:
        case StepSucceeded():
            op.status, op.value, op.blob = "succeeded", event.value, event.blob
        case StepFailed():
            op.status, op.error, op.unknown = "cancelled" if event.cancelled else "failed", event.error, event.unknown
        case StepSkipped():
            op.status, op.error = "skipped", event.error
        case ChildFinished():
            op.status, op.value, op.blob, op.error = event.status.value, event.value, event.blob, event.error
        case WaitResolved():
            op.status, op.value = event.by.partition(":")[0], event.value


def _failure(event: AnyEvent) -> Failure | None:
    if isinstance(event, StepSucceeded) and chunk_range(event.op) is not None:
        # The error of the first item that failed: with other chunks, too many items may have failed.
        return msgspec.json.decode(event.value, type=ChunkOutcome).error
    if isinstance(event, StepFailed):
        return None if event.cancelled else event.error
    if isinstance(event, ChildFinished):
        return event.error if event.status is RunStatus.FAILED else None
    if isinstance(event, WaitResolved) and (event.by == "timeout" or event.is_rejection):
        return Failure("", event.by)
    return None


def is_given_up(event: AnyEvent) -> bool:
    """Whether an event is the end of an op that the program cancelled."""
    if isinstance(event, StepFailed):
        return event.cancelled
    if isinstance(event, WaitResolved):
        return event.by == "cancelled"
    return isinstance(event, ChildFinished) and event.status is RunStatus.CANCELLED


def find(found: Mapping[str, Op], at: str) -> Op:
    """The op at a path; a bare name means the first op of that name."""
    op = found.get(at)
    if op is None and ":" not in at:
        op = next((one for one in found.values() if op_name(one.path) == at), None)
    if op is None:
        raise NoSuchOp(at, tuple(found))
    return op


def find_last(found: Mapping[str, Op], at: str) -> Op:
    """As `find`; a bare name means the last op of that name."""
    return find(dict(reversed(list(found.items()))), at)
