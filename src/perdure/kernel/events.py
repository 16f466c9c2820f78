"""The facts a journal holds, and the units they are appended and read in. Never decides what follows from them.

Every event is in the past tense, frozen, and encoded as a JSON object whose `type` is the class name, so that a journal
can be read with SQL. Values of users are raw JSON inside (`msgspec.Raw`): they are decoded by the program that asked
for them, with its annotations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import Flag, StrEnum, auto
from typing import Any, get_args

import msgspec
from msgspec import Raw

from perdure.kernel.context import RunContext
from perdure.kernel.divergence.model import Divergence
from perdure.kernel.values.failures import Failure

NULL = Raw(b"null")


class RunStatus(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    PARKED = "parked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    BAILED = "bailed"

    @property
    def finished(self) -> bool:
        """Whether the run has ended for good."""
        return self in FINISHED


FINISHED = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.BAILED})


class StepStatus(StrEnum):
    """Where a step stands. *unknown*: started, and its owner died."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"
    BLOCKED = "blocked"
    UNKNOWN = "unknown"


class Event(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A fact in a journal."""

    def __repr__(self) -> str:
        """With the values in it, which are raw JSON otherwise."""
        fields = msgspec.json.decode(msgspec.json.encode(self))
        kind = fields.pop("type")
        return f"{kind}({', '.join(f'{name}={value!r}' for name, value in fields.items())})"


class RemoteCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """The call of a step in another run: which op of that run it is, and how its arguments are given."""

    op: str
    positional: int = 0
    keywords: tuple[str, ...] = ()
    # Whether the run goes on without a result when the step fails.
    skip: bool = False
    # The run that asks for it; its tags are those of the start.
    run: RunContext | None = None
    # What its body was told of patches, for the step to ask.
    patches: dict[str, bool] | None = None


class RunStarted(Event, frozen=True, tag=True, omit_defaults=True):
    """A run was accepted. Its journal begins with this."""

    id: str
    program: str
    version: str
    input: Raw
    input_blob: str = ""
    incarnation: int = 1
    tags: dict[str, str] | None = None
    durability: str = "sync"
    not_before: float | None = None
    deadline: float | None = None
    max_concurrency: int | None = None
    # The run that started it and lets it go its own way, and the incarnation it goes on for.
    parent: str = ""
    continued_from: str = ""
    # Ids of signals that the incarnations before it have had.
    seen: tuple[str, ...] = ()
    # A run in a queue begins when the queue's limits let it.
    queue: str = ""
    queue_key: str = ""
    priority: int = 0
    # The rules it was started with, as data: see kernel/policies/rules.py.
    rules: dict[str, Any] | None = None
    # The run_id of the run whose past it shares, and the values that were recorded in that past, by op: a body finds
    # them there, since what it would compute belongs to another run.
    forked_from: str = ""
    recorded: dict[str, Raw] | None = None
    # The run_id that the idempotency keys of its steps are made of, if not its own: one that is retried goes on under
    # the keys that its effects are known by.
    keys: str = ""
    # For the run of a remote step: what it does for its parent, which waits for the outcome.
    remote: RemoteCall | None = None
    # The id of the schedule that started it, and the moment of the tick that it was started for.
    schedule: str = ""
    scheduled_at: float | None = None


class InputReplaced(Event, frozen=True, tag=True, omit_defaults=True):
    """The run was started again before it began, and waits anew: it begins once, with the input of the last start."""

    input: Raw
    input_blob: str = ""
    not_before: float | None = None
    priority: int = 0

    def of(self, started: RunStarted) -> RunStarted:
        """The start of the run as it is now."""
        of_input = {"input": self.input, "input_blob": self.input_blob}
        return msgspec.structs.replace(started, **of_input, not_before=self.not_before, priority=self.priority)


class RunClaimed(Event, frozen=True, tag=True, omit_defaults=True):
    """An orchestrator became the owner. Owners of a lower epoch can no longer write."""

    owner: str
    epoch: int
    # The session of the orchestrator: two processes may have one name while one replaces the other.
    session: str = ""
    # Version chosen at the first claim, for a run started by name only.
    version: str = ""
    # Made before the journal was replayed: external events since the last owner are still to be processed.
    early: bool = False
    # How many suspects were claimed together with this run; 0: it was none.
    tried: int = 0


class RunReleased(Event, frozen=True, tag=True, omit_defaults=True):
    """The owner released an unfinished run; any orchestrator may claim it."""

    owner: str


class StepStarted(Event, frozen=True, tag=True, omit_defaults=True):
    """An attempt of a step is about to be made. `source` is the file and line that asked for it.

    With a `queue`, a run of its own was started there, which makes the attempts and reports what came of them. `inputs`
    is their fingerprint; `input` are the arguments themselves, called `names`, where the step asks for them to be
    recorded.
    """

    op: str
    attempt: int = 1
    inputs: str = ""
    source: str = ""
    queue: str = ""
    input: Raw = NULL
    input_blob: str = ""
    names: tuple[str, ...] = ()


class StepsHeld(Event, frozen=True, tag=True, omit_defaults=True):
    """The program wants `count` things that cannot begin yet, though the run only waits otherwise; 0: no longer.

    For want of room, because their values are being stored apart, or because the engine is being left. Written so that
    the next owner knows of them after a crash: no other event does.
    """

    count: int = 0


class StepSucceeded(Event, frozen=True, tag=True, omit_defaults=True):
    """The step has its result, for ever. `fallback`: it comes from the fallback, after the last attempt failed."""

    op: str
    value: Raw
    attempt: int = 1
    blob: str = ""
    fallback: bool = False


class AttemptFailed(Event, frozen=True, tag=True, omit_defaults=True):
    """An attempt failed, and the next may start at `retry_at`.

    `fallback`: it was the last one, and what comes next is an attempt of the fallback. `of`: how many there may be.
    """

    op: str
    attempt: int
    error: Failure
    retry_at: float
    fallback: bool = False
    of: int = 0


class StepFailed(Event, frozen=True, tag=True, omit_defaults=True):
    """The step has failed, for ever.

    `unknown`: whether it took effect is not known. `cancelled`: the program gave it up. `bailed`: it asked for the
    end of the run, with this `output`; the reason is the message of `error`.
    """

    op: str
    attempt: int
    error: Failure
    unknown: bool = False
    cancelled: bool = False
    bailed: bool = False
    output: Raw = NULL


class StepSkipped(Event, frozen=True, tag=True, omit_defaults=True):
    """The step has failed, for ever, and the program goes on with None in place of its result."""

    op: str
    attempt: int
    error: Failure


class ValueRecorded(Event, frozen=True, tag=True, omit_defaults=True):
    """A value that a body may not compute twice: `now`, `uuid`, `random`, or the mark of a `checkpoint`.

    `patch`: the mark that the run takes the new path of a patch; its id is in the op, as in `patch:tax-first`.
    `unlock`: the lock that `lock:0` asked for is given back, under the op `lock:0/unlock`. `lock`: the one that `op`
    asked for has a new token.
    """

    op: str
    kind: str
    value: Raw = NULL
    source: str = ""


class WaitOpened(Event, frozen=True, tag=True, omit_defaults=True):
    """The run waits: for a `timer`, which fires at `deadline`, or until then for a `signal`, `approval` or `lock`."""

    op: str
    kind: str
    deadline: float | None = None
    source: str = ""
    name: str = ""
    # What people are shown and what they may answer, for approvals.
    request: Raw = NULL
    schema: Raw = NULL
    approvers: tuple[str, ...] = ()
    escalate_at: float | None = None
    escalate_to: tuple[str, ...] = ()
    # How long a lock outlives its holder.
    ttl: float = 0.0


# How a person ends a wait, followed by who it was.
_ANSWER, _REJECTED = "answer:", "rejected:"


class WaitResolved(Event, frozen=True, tag=True, omit_defaults=True):
    """A wait is over. `by` is `timer`, `timeout`, `cancelled`, `signal`, `lock`, or `answer:` or `rejected:` and who.

    By a signal: the oldest one of that name that no wait has taken; `kept`: one that the run before this had. By a
    rejection: `value` is the reason, a text.
    """

    op: str
    by: str
    value: Raw = NULL
    answer_id: str = ""

    @classmethod
    def answered(cls, op: str, person: str, value: Raw, answer_id: str = "") -> WaitResolved:
        """The answer of a person."""
        return cls(op, _ANSWER + person, value, answer_id)

    @classmethod
    def rejected(cls, op: str, person: str, reason: str, answer_id: str = "") -> WaitResolved:
        """The refusal of a person."""
        return cls(op, _REJECTED + person, Raw(msgspec.json.encode(reason)), answer_id)

    @property
    def is_answer(self) -> bool:
        """Whether a person has answered."""
        return self.by.startswith(_ANSWER)

    @property
    def is_rejection(self) -> bool:
        """Whether a person has refused."""
        return self.by.startswith(_REJECTED)

    @property
    def person(self) -> str:
        """Who answered or refused; empty without a name."""
        return self.by.partition(":")[2]


class SignalReceived(Event, frozen=True, tag=True, omit_defaults=True):
    """A client or another run sent a signal. It is kept until a wait for its name takes it, in order.

    `child` is the op path of the child that it was sent to; none: the root.
    """

    name: str
    payload: Raw = NULL
    signal_id: str = ""
    child: str = ""


class ChildStarted(Event, frozen=True, tag=True, omit_defaults=True):
    """A run began another one: in this journal, under its op path; or detached, in a journal of its own.

    `detached` is the run_id of the latter.
    """

    op: str
    program: str
    version: str = ""
    input: Raw = NULL
    input_blob: str = ""
    inputs: str = ""
    id: str = ""
    detached: str = ""
    deadline: float | None = None
    source: str = ""
    # It could not begin: its end follows.
    refused: bool = False


class ChildFinished(Event, frozen=True, tag=True, omit_defaults=True):
    """A child in this journal ended. Nothing of it follows."""

    op: str
    status: RunStatus
    value: Raw = NULL
    blob: str = ""
    error: Failure | None = None
    reason: str = ""


class StateSet(Event, frozen=True, tag=True, omit_defaults=True):
    """The run published a value."""

    op: str
    key: str
    value: Raw
    source: str = ""


class RunPaused(Event, frozen=True, tag=True, omit_defaults=True):
    """Nothing new begins until the run is resumed."""

    reason: str = ""


class ChunkAppended(Event, frozen=True, tag=True, omit_defaults=True):
    """An attempt showed something of what it makes. The first chunk has the number `start` in the stream of its step.

    `restart`: what was shown before is void; that mark takes the number `start` itself, and the chunks follow it.
    """

    op: str
    attempt: int
    start: int
    chunks: tuple[Raw, ...] = ()
    restart: bool = False

    @property
    def end(self) -> int:
        """The number after the last chunk."""
        return self.start + self.restart + len(self.chunks)


class StepProgressed(Event, frozen=True, tag=True, omit_defaults=True):
    """An attempt said how far it is."""

    op: str
    attempt: int
    progress: Raw


class CancelRequested(Event, frozen=True, tag=True, omit_defaults=True):
    """A request to end the run, or its child at this op path. `given_up`: the parent requests it."""

    reason: str = ""
    child: str = ""
    given_up: bool = False


class RunParked(Event, frozen=True, tag=True, omit_defaults=True):
    """The run stands still, visibly, until a person or a deploy resolves it.

    `kind`: `diverged`, with its `divergence`; `no_program`; `no_version`; `undecodable`; `damaged`; `poisoned`;
    `internal`, where the engine itself went wrong.
    """

    reason: str
    kind: str = "diverged"
    divergence: Divergence | None = None


class SnapshotTaken(Event, frozen=True, tag=True, omit_defaults=True):
    """The owner stored what replay needs of the events before number `seq`. Without that the journal says the same.

    `size` is about how large the journal was.
    """

    seq: int
    blob: str
    size: int = 0


class RunResumed(Event, frozen=True, tag=True, omit_defaults=True):
    """A run that stood still goes on; with another `version` of its program, if one is named."""

    version: str = ""


class RunForked(Event, frozen=True, tag=True, omit_defaults=True):
    """The past of another run ends here: what stands before is its events before number `seq`, `moved` seconds later.

    `inputs` are arguments that take the place of what the program gives those ops, by op and name; `state` are values
    that are published from here on. `run` is what the code took the other run for; its tags are those of this one.
    """

    run_id: str
    seq: int
    moved: float = 0.0
    inputs: dict[str, dict[str, Raw]] | None = None
    state: dict[str, Raw] | None = None
    run: RunContext | None = None


class OutcomeKept(Event, frozen=True, tag=True, omit_defaults=True):
    """What an op came to in the run that this one goes on for; it has that again when the program asks for it again.

    `kind`: the step `succeeded`, was `skipped`, or `failed` and the program went on; it failed and is called `again`;
    a wait was `waited` for, and ended as `by` says; a lock was `locked`; a detached run was `started`, whose
    run_id is `by`; a path was `patched`.
    """

    op: str
    kind: str
    # The fingerprint of what a step or a run was given; what a wait was for.
    inputs: str = ""
    value: Raw = NULL
    blob: str = ""
    by: str = ""
    answer_id: str = ""
    error: Failure | None = None
    unknown: bool = False
    chunks: tuple[Raw, ...] = ()


class RunFinished(Event, frozen=True, tag=True, omit_defaults=True):
    """The run ended. Nothing follows it in the journal."""

    status: RunStatus
    value: Raw = NULL
    blob: str = ""
    error: Failure | None = None
    reason: str = ""
    # The run_id of the incarnation that goes on in its place.
    continued_as: str = ""


AnyEvent = (
    RunStarted
    | InputReplaced
    | RunClaimed
    | RunReleased
    | StepStarted
    | StepsHeld
    | StepSucceeded
    | AttemptFailed
    | StepFailed
    | StepSkipped
    | ValueRecorded
    | WaitOpened
    | WaitResolved
    | SignalReceived
    | ChildStarted
    | ChildFinished
    | StateSet
    | ChunkAppended
    | StepProgressed
    | CancelRequested
    | RunPaused
    | RunParked
    | SnapshotTaken
    | RunResumed
    | RunForked
    | OutcomeKept
    | RunFinished
)

# What ends a step for good.
StepOutcome = StepSucceeded | StepFailed | StepSkipped


class Trait(Flag):
    """What is true of every event of a class, for the modules that treat classes of events alike."""

    # A process that does not own the run may append it. All others are the owner's, who has read what stands before.
    OUTSIDE = auto()
    # A fork keeps it: it belongs to the past, and not to the execution that had that past.
    FORKED = auto()
    # It records a command of the program, which replay must issue again. `patches.commanded` knows those of which only
    # some do.
    COMMAND = auto()
    # A run that only gets events of this kind has made no progress.
    NO_PROGRESS = auto()
    # An attempt of a step left it behind; once the step has its outcome, replay does not need it.
    ATTEMPT = auto()
    # Which processes are notified of it: none, since only the owner uses it; those that follow the run; or all.
    FOR_OWNER = auto()
    FOR_FOLLOWERS = auto()
    FOR_ALL = auto()


_T = Trait
# Every class of AnyEvent has its line here, with exactly one of the last three.
TRAITS: dict[type[Event], Trait] = {
    RunStarted: _T.FOR_OWNER,
    InputReplaced: _T.FOR_ALL,
    RunClaimed: _T.FOR_OWNER | _T.NO_PROGRESS,
    RunReleased: _T.FOR_ALL,
    StepStarted: _T.FOR_OWNER | _T.FORKED | _T.ATTEMPT,
    StepsHeld: _T.FOR_OWNER,
    StepSucceeded: _T.FOR_OWNER | _T.FORKED,
    AttemptFailed: _T.FOR_OWNER | _T.FORKED | _T.ATTEMPT,
    StepFailed: _T.FOR_OWNER | _T.FORKED,
    StepSkipped: _T.FOR_OWNER | _T.FORKED,
    ValueRecorded: _T.FOR_OWNER | _T.FORKED,
    WaitOpened: _T.FOR_FOLLOWERS | _T.FORKED | _T.COMMAND,
    WaitResolved: _T.FOR_OWNER | _T.FORKED | _T.OUTSIDE,
    SignalReceived: _T.FOR_ALL | _T.FORKED | _T.OUTSIDE | _T.NO_PROGRESS,
    ChildStarted: _T.FOR_OWNER | _T.FORKED | _T.COMMAND,
    ChildFinished: _T.FOR_OWNER | _T.FORKED | _T.COMMAND,
    StateSet: _T.FOR_FOLLOWERS | _T.FORKED | _T.COMMAND,
    ChunkAppended: _T.FOR_FOLLOWERS | _T.FORKED | _T.ATTEMPT | _T.NO_PROGRESS,
    StepProgressed: _T.FOR_FOLLOWERS | _T.FORKED | _T.ATTEMPT,
    CancelRequested: _T.FOR_ALL | _T.FORKED | _T.OUTSIDE | _T.NO_PROGRESS,
    RunPaused: _T.FOR_ALL | _T.OUTSIDE | _T.NO_PROGRESS,
    RunParked: _T.FOR_ALL,
    SnapshotTaken: _T.FOR_OWNER | _T.NO_PROGRESS,
    RunResumed: _T.FOR_ALL | _T.OUTSIDE,
    RunForked: _T.FOR_ALL | _T.FORKED | _T.OUTSIDE,
    OutcomeKept: _T.FOR_ALL | _T.FORKED,
    RunFinished: _T.FOR_FOLLOWERS | _T.COMMAND,
}


def events_with(trait: Trait) -> frozenset[type[Event]]:
    """The classes of events that have all of a trait; a class without a line in the table is a KeyError at import."""
    return frozenset(kind for kind in get_args(AnyEvent) if trait in TRAITS[kind])


FROM_OUTSIDE = events_with(Trait.OUTSIDE)


class Batch(msgspec.Struct, frozen=True, gc=False):
    """What one append wrote: events that share a moment, numbered from `seq`."""

    seq: int
    at: float
    events: Sequence[AnyEvent]


class Entry(msgspec.Struct, frozen=True):
    """One event at its place in a journal, as callers see it."""

    seq: int
    run_id: str
    at: datetime
    event: AnyEvent
    # The run at the top, whose journal it is in: its own run, or the root of the child that was asked about.
    root_run_id: str = ""


def entries(root: str, batches: Sequence[Batch], start: int = 0, run_id: str = "") -> list[Entry]:
    """The events of `batches`, of the journal of `root`, one by one and from number `start` on."""
    return [
        Entry(batch.seq + i, run_id or root, moment(batch.at), event, root)
        for batch in batches
        for i, event in enumerate(batch.events)
        if batch.seq + i >= start
    ]


def moment(at: float) -> datetime:
    """A time of the journal as an aware datetime."""
    return datetime.fromtimestamp(at, UTC)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[AnyEvent]).decode


def encode_events(events: Sequence[AnyEvent]) -> bytes:
    """One JSON array, as a store keeps it."""
    return _encode(events)


def decode_events(data: bytes) -> list[AnyEvent]:
    """The inverse of `encode_events`; raises ValueError or a msgspec.DecodeError when the bytes are something else."""
    try:
        return _decode(data)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


# A rough count of what an event adds to a journal besides its value.
EVENT_BYTES = 120


def weight(event: AnyEvent) -> int:
    """About how many bytes an event takes in a journal."""
    chunks = event.chunks if isinstance(event, ChunkAppended | OutcomeKept) else ()
    return EVENT_BYTES + len(getattr(event, "value", b"")) + sum(map(len, chunks))


def journal_size(batches: Sequence[Batch]) -> int:
    """About how many bytes a journal takes; what a snapshot leaves out of it is counted as well."""
    size = 0
    for event in (event for batch in batches for event in batch.events):
        size += weight(event)
        if isinstance(event, SnapshotTaken):
            size = max(size, event.size)
    return size


# How a reference begins in encoded events, those in `input_blob` included. Values of users may hold the same bytes.
MARK = b'blob":"'


def mentions_blob(data: bytes) -> bool:
    """Whether encoded events may refer to a blob: quick, never wrong about a reference, sometimes about a value."""
    return MARK in data


def references(events: Iterable[AnyEvent]) -> list[str]:
    """The ids of the blobs that events refer to, each once; those of snapshots too."""
    found: dict[str, None] = {}
    for event in events:
        for name in ("blob", "input_blob"):
            if blob := getattr(event, name, ""):
                found[blob] = None
    return list(found)
