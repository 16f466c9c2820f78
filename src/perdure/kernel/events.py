"""The facts a journal holds, and the units they are appended and read in. Never decides what follows from them.

Every event is in the past tense, frozen, and encoded as a JSON object whose `type` is the class name, so that a journal
can be read with SQL. Values of users are raw JSON inside (`msgspec.Raw`): they are decoded by the program that asked
for them, with its annotations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from enum import Flag, StrEnum, auto
from typing import Any, get_args

import msgspec
from msgspec import Raw

from perdure.kernel.context import RunContext
from perdure.kernel.divergence.model import Divergence
from perdure.kernel.values.failures import Failure
from perdure.kernel.values.items import blobs_in

NULL = Raw(b"null")


class RunStatus(StrEnum):
    """The status of a run."""

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
        """Whether the run has ended."""
        return self in FINISHED


FINISHED = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.BAILED})


class StepStatus(StrEnum):
    """The status of a step. *unknown*: it started, and its owner died. Only an item of a map is *waiting*."""

    RUNNING = "running"
    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"
    BLOCKED = "blocked"
    UNKNOWN = "unknown"


class Event(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, gc=False):
    """A fact in a journal. Never in a cycle, so the collector skips it: a look at a long journal makes thousands."""

    def __repr__(self) -> str:
        """Shows values, which are raw JSON otherwise."""
        fields = msgspec.json.decode(msgspec.json.encode(self))
        kind = fields.pop("type")
        return f"{kind}({', '.join(f'{name}={value!r}' for name, value in fields.items())})"


class MapCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """The map, in another run, of which this run executes a chunk: its program, and the children that it is in.

    `within` are these children, from the outermost to the innermost: op path, program and version.
    """

    program: str
    version: str
    within: tuple[tuple[str, str, str], ...] = ()
    # The run_id of an earlier run whose chunk this one continues, and what runs again even if it has a result: an item,
    # such as `3`, or an op in one, such as `3/load:0`.
    past: str = ""
    again: str = ""


class RemoteCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """The call of a step in another run: which op of that run it is, and how its arguments are given."""

    op: str
    positional: int = 0
    keywords: tuple[str, ...] = ()
    # The parameters of the positional arguments, in the caller's code.
    names: tuple[str, ...] = ()
    # Whether the caller continues with None when the step fails.
    skip: bool = False
    # The context of the calling run; its tags are in RunStarted.
    run: RunContext | None = None
    # The answers of `patched()` in the calling body.
    patches: dict[str, bool] | None = None
    # For the run of a chunk: the map.
    map: MapCall | None = None
    # Where the arguments hold secrets, as in StepSpec.
    secrets: tuple[tuple[str, tuple[tuple[str | int, ...], ...]], ...] = ()


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
    # The run that started it detached, and the incarnation that it continues.
    parent: str = ""
    continued_from: str = ""
    # Ids of signals that earlier incarnations received, for deduplication.
    seen: tuple[str, ...] = ()
    # A queued run begins when the queue's limits allow it.
    queue: str = ""
    queue_key: str = ""
    priority: int = 0
    # The rules it was started with, as data: see kernel/policies/rules.py.
    rules: dict[str, Any] | None = None
    # For a fork: the run_id of its origin, and the values recorded in the shared past, by op. A body reads them there,
    # because computed values depend on the run_id.
    forked_from: str = ""
    recorded: dict[str, Raw] | None = None
    # The run_id in the idempotency keys of its steps, if not its own: a retry keeps the keys of the failed run.
    keys: str = ""
    # For the run of a remote step: the call that it executes for its parent.
    remote: RemoteCall | None = None
    # The id of the schedule that started it, and the time of the tick.
    schedule: str = ""
    scheduled_at: float | None = None
    # 1: results in its journal have the fields of their types and no others; 2: so has its input. Else unknown.
    exact: int = 0
    # For a graph: how many rounds its loops may have, if not the number in its definition.
    max_rounds: int | None = None
    # The run_id of the run whose outcomes it reuses, where ops have the same arguments.
    memo: str = ""
    # For a graph: the id of the blob with its structure when the run was started. Only explanations and views use it.
    structure: str = ""
    # The trace that the caller was in: a `traceparent`, with the `tracestate` after a space where there is one.
    trace: str = ""


class InputReplaced(Event, frozen=True, tag=True, omit_defaults=True):
    """The run was started again before it began: it begins once, with the input of the last start."""

    input: Raw
    input_blob: str = ""
    not_before: float | None = None
    priority: int = 0

    def of(self, started: RunStarted) -> RunStarted:
        """The RunStarted with the new input."""
        of_input = {"input": self.input, "input_blob": self.input_blob, "exact": min(started.exact, 1)}
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
    # How many suspects were claimed together with this run; 0 if it is not one.
    tried: int = 0
    # The parameters of its positional arguments, bound at the first claim, for a run whose caller had no signature.
    names: tuple[str, ...] = ()
    # The source that this owner executes the run with, by the id of its stored text; empty: as before.
    code: str = ""
    # Its owner records StepsHeld also while steps run: what was asked for and neither begun nor counted is new.
    counts: bool = False


class RunReleased(Event, frozen=True, tag=True, omit_defaults=True):
    """The owner released an unfinished run; any orchestrator may claim it."""

    owner: str


class StepStarted(Event, frozen=True, tag=True, omit_defaults=True):
    """An attempt of a step is about to be made. `source` is the file and line of the call.

    With a `queue`, a separate run was started there, which makes the attempts and reports the outcome. `inputs` tells
    the arguments by name, each by its value or by a digest (see kernel/values/arguments.py; in older journals it is a
    hash of all); `input` are the arguments themselves, with their `names`, if the step records them.
    """

    op: str
    attempt: int = 1
    inputs: str = ""
    source: str = ""
    queue: str = ""
    input: Raw = NULL
    input_blob: str = ""
    names: tuple[str, ...] = ()
    # The version of a node, where it has one: `@node(version="2")`.
    version: str = ""
    # The function that it calls, if that has another name than the step; of a lambda, the names in it.
    function: str = ""


class StepsHeld(Event, frozen=True, tag=True, omit_defaults=True):
    """`count` commands cannot begin yet; 0: none any more. Each step that begins is one less.

    Because of a concurrency limit, because their values are being offloaded, or because the engine is closing. After a
    crash no other event would tell the next owner that the run has work to do, or which steps were not there before.
    Recorded again only when this number is used up; steps that were held back since come on top of it.
    """

    count: int = 0


class StepSucceeded(Event, frozen=True, tag=True, omit_defaults=True):
    """The step has its final result. `fallback`: it comes from the fallback, after the last attempt failed.

    `memo`: it is that of an earlier run, whose run_id this is; the step was not executed.
    """

    op: str
    value: Raw
    attempt: int = 1
    blob: str = ""
    fallback: bool = False
    memo: str = ""
    # For an offloaded value: the digest that the record of a call shows of it; see kernel/values/arguments.py.
    digest: str = ""


class AttemptFailed(Event, frozen=True, tag=True, omit_defaults=True):
    """An attempt failed, and the next may start at `retry_at`.

    `fallback`: it was the last one, and the fallback is next. `of`: the limit of attempts.
    """

    op: str
    attempt: int
    error: Failure
    retry_at: float
    fallback: bool = False
    of: int = 0


class StepFailed(Event, frozen=True, tag=True, omit_defaults=True):
    """The step has failed, finally.

    `unknown`: whether it took effect is not known. `cancelled`: the program cancelled it; `retired`: because it is of a
    node that it no longer has. `bailed`: it ended the run with bail() and this `output`; the reason is the message of
    `error`.
    """

    op: str
    attempt: int
    error: Failure
    unknown: bool = False
    cancelled: bool = False
    bailed: bool = False
    output: Raw = NULL
    retired: bool = False


class StepSkipped(Event, frozen=True, tag=True, omit_defaults=True):
    """The step has failed, finally, and the program continues with None in place of its result."""

    op: str
    attempt: int
    error: Failure


class ValueRecorded(Event, frozen=True, tag=True, omit_defaults=True):
    """A value that a body must not compute twice: `now`, `uuid`, `random`, or a `checkpoint`.

    `patch`: the run takes the new path of a patch, whose id is in the op, as in `patch:tax-first`. `unlock`: the lock
    of `lock:0` is released, under the op `lock:0/unlock`. `lock`: the lock of `op` has a new token.
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
    # For approvals: what is shown to people, and the schema of the answer.
    request: Raw = NULL
    schema: Raw = NULL
    approvers: tuple[str, ...] = ()
    escalate_at: float | None = None
    escalate_to: tuple[str, ...] = ()
    # The ttl of a lock.
    ttl: float = 0.0


# Prefixes of `by` for waits resolved by a person, followed by the name.
_ANSWER, _REJECTED = "answer:", "rejected:"


class WaitResolved(Event, frozen=True, tag=True, omit_defaults=True):
    """A wait is over. `by` is `timer`, `timeout`, `cancelled`, `signal`, `lock`, or `answer:` or `rejected:` and who.

    By a signal: the oldest unconsumed one of that name; `kept`: one that the previous incarnation consumed. By a
    rejection: `value` is the reason, a text. `misfit`: the program could not decode the signal, and got NotDecodable.
    """

    op: str
    by: str
    value: Raw = NULL
    answer_id: str = ""
    misfit: bool = False
    # Cancelled, because it is of a node that the program no longer has.
    retired: bool = False

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
    def brings_value(self) -> bool:
        """Whether the program gets a signal or an answer."""
        return self.by in ("signal", "kept") or self.is_answer

    @property
    def is_rejection(self) -> bool:
        """Whether a person has refused."""
        return self.by.startswith(_REJECTED)

    @property
    def person(self) -> str:
        """The person who answered or refused; empty without a name."""
        return self.by.partition(":")[2]


class SignalReceived(Event, frozen=True, tag=True, omit_defaults=True):
    """A client or another run sent a signal. It is kept until a wait for its name consumes it, in order.

    `child` is the op path of the child that it was sent to; empty: the root. `trace` is as in RunStarted.
    """

    name: str
    payload: Raw = NULL
    signal_id: str = ""
    child: str = ""
    trace: str = ""


class ChildStarted(Event, frozen=True, tag=True, omit_defaults=True):
    """A run started a child: in this journal, under its op path; or detached, in its own journal.

    `detached` is the run_id of a detached child.
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
    # Why it could not begin: its end follows.
    refused: bool = False
    # As in RunStarted, for a child that is no part of the program that started it.
    structure: str = ""
    # Whether it runs when everything else has ended: a retry runs it again.
    last: bool = False
    # The function of its workflow, if that has another name.
    function: str = ""


class ChildFinished(Event, frozen=True, tag=True, omit_defaults=True):
    """A child in this journal ended. No event of it follows."""

    op: str
    status: RunStatus
    value: Raw = NULL
    blob: str = ""
    error: Failure | None = None
    reason: str = ""
    # Cancelled, because it is of a node that the program no longer has.
    retired: bool = False


class StateSet(Event, frozen=True, tag=True, omit_defaults=True):
    """The run published a value."""

    op: str
    key: str
    value: Raw
    source: str = ""


class RunPaused(Event, frozen=True, tag=True, omit_defaults=True):
    """Nothing new begins until the run is resumed. `by`: who paused it."""

    reason: str = ""
    by: str = ""


class ChunkAppended(Event, frozen=True, tag=True, omit_defaults=True):
    """An attempt emitted chunks. The first has the number `start` in the stream of its step.

    `restart`: earlier chunks are void; the restart itself has the number `start`, and the chunks follow it.
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
    """A heartbeat of an attempt, with its progress."""

    op: str
    attempt: int
    progress: Raw


class CancelRequested(Event, frozen=True, tag=True, omit_defaults=True):
    """A request to end the run, or its child at this op path. `given_up`: the parent requests it; `by`: who did."""

    reason: str = ""
    child: str = ""
    given_up: bool = False
    by: str = ""


class RunParked(Event, frozen=True, tag=True, omit_defaults=True):
    """The run is stopped, visibly, until a person or a deploy resolves it.

    `kind`: `diverged`, with its `divergence`; `no_program`; `no_version`; `undecodable`; `damaged`; `poisoned`;
    `internal`, for an error of the engine itself.
    """

    reason: str
    kind: str = "diverged"
    divergence: Divergence | None = None


class SnapshotTaken(Event, frozen=True, tag=True, omit_defaults=True):
    """The owner stored a snapshot of the events before number `seq`. The journal stays complete without it.

    `size` is the approximate size of the journal.
    """

    seq: int
    blob: str
    size: int = 0


class RunResumed(Event, frozen=True, tag=True, omit_defaults=True):
    """A paused or parked run continues; with another `version` of its program, if given.

    `reason`: why a parked run does. `by`: who resumed or resolved it.
    """

    version: str = ""
    reason: str = ""
    by: str = ""


class RunForked(Event, frozen=True, tag=True, omit_defaults=True):
    """The past of the origin ends here: the events before it are those of `run_id` before `seq`, `moved` seconds later.

    `inputs` replace arguments that the program gives to ops, by op and name; `values` the outcomes of ops in chunks of
    maps, by op path; `state` are values that are published from here on. `run` is the context of the origin, without
    tags. `by`: who asked for it. `code`: the source that the origin was executed with, if its claims are not here;
    `children`: the paths of its children, without numbers, each with its function as in ChildStarted.
    """

    run_id: str
    seq: int
    moved: float = 0.0
    inputs: dict[str, dict[str, Raw]] | None = None
    state: dict[str, Raw] | None = None
    run: RunContext | None = None
    by: str = ""
    values: dict[str, Raw] | None = None
    code: str = ""
    children: dict[str, str] | None = None


class OutcomeKept(Event, frozen=True, tag=True, omit_defaults=True):
    """The outcome of an op in the run that this one retries; the op gets it when the program asks for it again.

    `kind`: the step `succeeded`, was `skipped`, or `failed` and the program handled it; it failed and runs `again`; a
    wait was `waited` for, resolved by `by`; a lock was `locked`; a detached run was `started`, whose run_id is `by`; a
    path was `patched`.
    """

    op: str
    kind: str
    # The hash of the inputs of a step or a child; the kind and name of a wait.
    inputs: str = ""
    value: Raw = NULL
    blob: str = ""
    by: str = ""
    answer_id: str = ""
    error: Failure | None = None
    unknown: bool = False
    chunks: tuple[Raw, ...] = ()
    # The version of the node, where results of another version are not reused.
    version: str = ""
    # As in StepSucceeded.
    digest: str = ""
    # As in StepStarted, and in ChildStarted.
    function: str = ""


class RunFinished(Event, frozen=True, tag=True, omit_defaults=True):
    """The run ended. Nothing follows it in the journal."""

    status: RunStatus
    value: Raw = NULL
    blob: str = ""
    error: Failure | None = None
    reason: str = ""
    # The run_id of the next incarnation.
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

# The final outcomes of a step.
StepOutcome = StepSucceeded | StepFailed | StepSkipped


class Trait(Flag):
    """Properties of the classes of events, for modules that treat several classes alike."""

    # A client may append it. All others are appended by the owner, which has read the events before.
    OUTSIDE = auto()
    # A fork keeps it: it belongs to the past, not to the execution of the origin.
    FORKED = auto()
    # It records a command of the program, which replay must issue again. Of some classes only some events do:
    # see `patches.commanded`.
    COMMAND = auto()
    # A run that only gets events of this kind has made no progress.
    NO_PROGRESS = auto()
    # It is about an attempt of a step; once the step has its outcome, replay does not need it.
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
# What most events of most journals are: who looks for others may pass over them first.
OF_STEPS = frozenset({StepStarted, StepSucceeded})


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Events of one append that share a time, numbered from `seq`."""

    seq: int
    at: float
    events: Sequence[AnyEvent]


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One event at its place in a journal, as callers see it."""

    seq: int
    run_id: str
    at: datetime
    event: AnyEvent
    # The root run whose journal it is in.
    root_run_id: str = ""


def events_in(batches: Iterable[Batch]) -> Iterator[AnyEvent]:
    """The events of batches, in order."""
    for batch in batches:
        yield from batch.events


def numbered(batches: Iterable[Batch]) -> Iterator[tuple[int, float, AnyEvent]]:
    """The events of batches, each with its number and time."""
    for batch in batches:
        for seq, event in enumerate(batch.events, batch.seq):
            yield seq, batch.at, event


def beside_steps(batches: Iterable[Batch]) -> list[tuple[int, AnyEvent]]:
    """The events of batches with their numbers, without the steps that began and succeeded: few, in most journals."""
    return [
        (seq, event)
        for batch in batches
        for seq, event in enumerate(batch.events, batch.seq)
        if type(event) not in OF_STEPS
    ]


def started_in(batches: Iterable[Batch]) -> RunStarted | None:
    """The RunStarted of a journal, with the input that it began with and the version that it is pinned to."""
    started: RunStarted | None = None
    begun = False
    for batch in batches:
        for event in batch.events:
            if isinstance(event, RunStarted):
                started = event
            elif started is None:
                return None
            elif type(event) in OF_STEPS:
                continue
            elif isinstance(event, InputReplaced) and not begun:
                started = event.of(started)
            elif isinstance(event, RunClaimed | RunResumed):
                begun = begun or isinstance(event, RunClaimed)
                if event.version:
                    started = msgspec.structs.replace(started, version=event.version)
    return started


def entries(root: str, batches: Sequence[Batch], start: int = 0, run_id: str = "") -> list[Entry]:
    """The events of `batches`, of the journal of `root`, one by one and from number `start` on."""
    found = numbered(batches)
    return [Entry(seq, run_id or root, moment(at), event, root) for seq, at, event in found if seq >= start]


def moment(at: float) -> datetime:
    """A time of the journal as an aware datetime."""
    return datetime.fromtimestamp(at, UTC)


# Events as one JSON array, as a store keeps them.
encode_events: Callable[[Sequence[AnyEvent]], bytes] = msgspec.json.Encoder().encode
# What `decode_events` calls: raises RecursionError where values are nested too deeply.
DECODE = msgspec.json.Decoder(list[AnyEvent]).decode


def decode_events(data: bytes) -> list[AnyEvent]:
    """The inverse of `encode_events`; raises ValueError or a msgspec.DecodeError when the bytes are something else."""
    try:
        return DECODE(data)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


# The approximate overhead of an event besides its value.
EVENT_BYTES = 120


def weight(event: AnyEvent) -> int:
    """About how many bytes an event takes in a journal."""
    chunks = event.chunks if isinstance(event, ChunkAppended | OutcomeKept) else ()
    return EVENT_BYTES + len(getattr(event, "value", b"")) + sum(map(len, chunks))


def journal_size(batches: Sequence[Batch]) -> int:
    """About how many bytes a journal takes, including what a snapshot leaves out."""
    size = 0
    for batch in batches:
        for event in batch.events:
            kind = type(event)
            if kind is StepStarted:
                size += EVENT_BYTES
            elif kind is StepSucceeded:
                size += EVENT_BYTES + len(event.value)  # type: ignore[union-attr]
            else:
                size += weight(event)
                if isinstance(event, SnapshotTaken):
                    size = max(size, event.size)
    return size


# The start of a blob reference in encoded events, `input_blob` included: without it they refer to none. User values may
# hold the same bytes.
BLOB_MARK = b'blob":"'


def references(events: Iterable[AnyEvent]) -> list[str]:
    """The ids of the blobs that events refer to, each once, including those of snapshots and of items in values."""
    found: dict[str, None] = {}
    for event in events:
        for name in ("blob", "input_blob"):
            if blob := getattr(event, name, ""):
                found[blob] = None
        for name in ("value", "input"):
            found.update(dict.fromkeys(blobs_in(bytes(getattr(event, name, b"")))))
    return list(found)


def blob_of(event: AnyEvent) -> str:
    """The blob of a value that the program will see; empty if the event holds the value."""
    if isinstance(event, StepSucceeded | ChildFinished | OutcomeKept):
        return event.blob
    return event.input_blob if isinstance(event, ChildStarted) else ""


def offloaded_in(batches: Iterable[Batch]) -> set[str]:
    """The blobs of values that the program will see."""
    found: set[str] = set()
    for batch in batches:
        for event in batch.events:
            kind = type(event)
            if kind is not StepStarted and (blob := event.blob if kind is StepSucceeded else blob_of(event)):  # type: ignore[union-attr]
                found.add(blob)
    return found


def with_value(event: AnyEvent, value: Raw) -> AnyEvent:
    """An event that may have a blob, with the value in place."""
    field = "input" if isinstance(event, ChildStarted) else "value"
    return msgspec.structs.replace(event, **{field: value})
