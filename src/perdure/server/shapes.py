"""What goes over the wire: requests and answers as structs, of which routes and OpenAPI are made.

Times are RFC 3339 in UTC, but in columns, where they are seconds since 1970. A value is plain JSON, written as the
store has it, so that integers of any length stay exact; one of more than 16 KiB is `{"$value": url, "bytes": n}`, and
the url is relative to `api/v1/`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from perdure.kernel.events import RunStatus
from perdure.kernel.values.failures import Failure

Bucket = Literal["minute", "hour", "day"]

Limit = Annotated[int, Meta(ge=1, le=1000, description="How many at most.")]
Cursor = Annotated[str | None, Meta(description="The `next` of the page before; it belongs to the same filters.")]


Priority = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]


class Query(Struct, frozen=True, forbid_unknown_fields=True):
    """Query parameters. One that a route does not know is a mistake, and no filter that is ignored."""


class Body(Struct, frozen=True, forbid_unknown_fields=True):
    """A request body. A field that a route does not know is a mistake."""


# --- me and the store ------------------------------------------------------------------------------------------------


class Me(Struct, frozen=True):
    """Who is asking, what they may do, and what this server has."""

    name: str
    may: list[str]
    programs: list[str] | None
    """The programs that they may see; null for all."""
    signed_in: Literal["host", "machine", "token", "cookie"]
    """By what they are known: the host application, because the request comes from this machine, or a token."""
    expires_at: datetime | None
    """When their token or their cookie expires."""
    redacted: list[str]
    """What is taken out of the values that they see."""
    version: str
    store: str
    """The kind of the store, such as `sqlite`."""
    executes: bool
    """Whether an engine in this process executes runs."""
    time: datetime
    features: list[str]
    """`source`: the code of programs is here; `bulk`: an orchestrator is alive that can act on many runs."""
    trace_url: str | None = None
    """Where traces are shown, with `{trace_id}` in it."""


class Health(Struct, frozen=True):
    """Whether the server is alive, or ready."""

    status: str


# --- runs ------------------------------------------------------------------------------------------------------------


class RunsQuery(Query, frozen=True):
    """Which runs."""

    status: Annotated[list[str], Meta(description="Only runs in these statuses; may be repeated.")] = []
    program: Annotated[str | None, Meta(description="Only runs of this program.")] = None
    tag: Annotated[list[str], Meta(description="Only runs with this tag, as `key:value`; may be repeated.")] = []
    queue: Annotated[str | None, Meta(description="Only runs of this queue.")] = None
    owner: Annotated[str | None, Meta(description="Only runs that this orchestrator owns.")] = None
    parked: Annotated[str | None, Meta(description="Only parked runs; of this kind, or `true` for any.")] = None
    parent: Annotated[str | None, Meta(description="Only runs that this run started, by its run_id.")] = None
    root: Annotated[str | None, Meta(description="Only the tree of this run_id; `true`: only root runs.")] = None
    q: Annotated[
        str | None,
        Meta(description="An id, the beginning of one, or `input.path=value` and the like; see the guide."),
    ] = None
    since: Annotated[datetime | None, Meta(description="Created at or after this.")] = None
    until: Annotated[datetime | None, Meta(description="Created before this.")] = None
    before: Annotated[str | None, Meta(description="Only runs that are older than this run_id.")] = None
    why: Annotated[bool, Meta(description="Also say why runs stand still.")] = False
    limit: Limit = 50
    cursor: Cursor = None


class ErrorItem(Struct, frozen=True):
    """An error in a line."""

    type: str
    message: str


class FailureItem(Struct, frozen=True):
    """An error with its traceback, what caused it, and the exceptions of a group."""

    type: str
    message: str
    traceback: str
    cause: FailureItem | None
    errors: list[FailureItem]
    data: Any = None
    """Its attributes, as a JSON object."""


def failure_item(failure: Failure | None) -> FailureItem | None:
    """An error for an answer."""
    if failure is None:
        return None
    return FailureItem(
        failure.type,
        failure.message,
        failure.traceback,
        failure_item(failure.cause),
        [item for one in failure.errors if (item := failure_item(one)) is not None],
        failure.data if len(failure.data) else None,
    )


class WhyItem(Struct, frozen=True):
    """Why a run makes no progress, or how it ended. `until`: when the reason goes away by itself."""

    kind: str
    text: str
    until: datetime | None = None


class RunItem(Struct, frozen=True, kw_only=True):
    """A run as a list has it, without its values."""

    id: str
    run_id: str
    program: str
    version: str
    status: RunStatus
    reason: str
    error: ErrorItem | None
    owner: str | None
    epoch: int
    tags: dict[str, str]
    parent: str | None
    root: str
    forked_from: str | None
    continued_as: str | None
    incarnation: int
    created_at: datetime
    updated_at: datetime
    began_at: datetime | None
    finished_at: datetime | None
    due_at: datetime | None
    next_seq: int
    size: int
    queue: str | None
    key: str | None
    priority: int
    approvals: int


class Runs(Struct, frozen=True):
    """A page of runs, newest first. `next` is the cursor of the page after it."""

    runs: list[RunItem]
    next: str | None
    why: dict[str, WhyItem]
    searched: int | None = None
    """For a search in values: how many of the newest runs were searched."""


class RunQuery(Query, frozen=True):
    """Which run of a tree."""

    child: Annotated[str, Meta(description="The op path of a child, in the run of the path.")] = ""


class WaitItem(Struct, frozen=True):
    """Something that a run waits for."""

    path: str
    kind: str
    deadline: datetime | None
    source: str
    name: str
    request: Any
    schema: Any
    approvers: list[str]


class RunDetail(RunItem, frozen=True, kw_only=True):
    """A run as it stands. What follows `failure` comes from its journal, and is null where that was left out."""

    input: Any
    output: Any
    failure: FailureItem | None
    state: dict[str, Any] | None = None
    waits: list[WaitItem] | None = None
    locks: list[str] | None = None
    parked: str | None = None
    divergence: Any = None
    continued_from: str | None = None
    why: WhyItem | None = None
    trace: str | None = None
    """The trace that it was started in, as a traceparent."""
    graph: bool = False
    """Whether it can be drawn: `runs/{run}/graph`."""


class OneRunQuery(RunQuery, frozen=True):
    """Which run of a tree, and how much of it."""

    journal: Annotated[
        bool, Meta(description="`false`: at once, without what takes a look into its journal: state, waits, why.")
    ] = True


class ByIdQuery(Query, frozen=True):
    """A caller's id."""

    id: Annotated[str, Meta(min_length=1, description="The id that the run was started with.")]
    journal: Annotated[bool, Meta(description="As for `runs/{run}`.")] = True


class CountsQuery(Query, frozen=True):
    """What is counted."""

    by: Annotated[str, Meta(description="`status`, `program`, or both with a comma.")] = "status"


class CountItem(Struct, frozen=True):
    """How many runs. `bounded`: at least so many; counting stops at 100,000 of a program and status."""

    status: str | None
    program: str | None
    count: int
    bounded: bool = False


class Counts(Struct, frozen=True):
    """How many runs there are. `at` is when they were counted: an answer is kept for 2 seconds."""

    counts: list[CountItem]
    at: datetime


# How many buckets a histogram may have.
MOST_BUCKETS = 1000


class HistogramQuery(Query, frozen=True):
    """Which runs, in which buckets."""

    bucket: Bucket = "hour"
    program: Annotated[str | None, Meta(description="Only runs of this program.")] = None
    since: Annotated[datetime | None, Meta(description="Left out: 60 minutes, 48 hours or 30 days before.")] = None
    until: Annotated[datetime | None, Meta(description="Left out: now.")] = None


class BucketItem(Struct, frozen=True):
    """The runs that ended in one bucket, by status."""

    at: datetime
    counts: dict[str, int]


class Histogram(Struct, frozen=True):
    """Ended runs per bucket."""

    bucket: Bucket
    buckets: list[BucketItem]


# --- ops -------------------------------------------------------------------------------------------------------------


class OpsQuery(Query, frozen=True):
    """Which ops of a run."""

    child: str = ""
    after: Annotated[int, Meta(ge=0, le=2**53, description="Ops from this number on, in the order they began.")] = 0
    since: Annotated[int, Meta(ge=0, le=2**53, description="Only ops with an event from this number on.")] = 0
    limit: Annotated[int, Meta(ge=1, le=50_000)] = 20_000


class Ops(Struct, frozen=True, kw_only=True):
    """Ops in columns, in the order they began: the n-th entries of all columns belong together."""

    run_id: str
    next_seq: int
    """The events below this number are in the answer: a stream goes on from it."""
    total: int
    """How many ops there are below `next_seq`."""
    complete: bool
    """Whether that is all there is by now. Of a long run the first pages come before all of it is read."""
    next: int | None
    """What to give as `after` for the ops that follow."""
    number: list[int]
    path: list[str]
    kind: list[str]
    """`step`, `timer`, `signal`, `approval`, `lock`, `child`, `state`, or the kind of a recorded value."""
    status: list[str]
    start: list[float]
    end: list[float | None]
    attempts: list[int]
    source: list[str]
    group: list[str]
    """The name of the op, which many may share."""
    queue: list[str]
    seq: list[int]
    """The number of its last event."""
    due: list[float | None]
    """When a wait was to end by itself: a timer, or one with a deadline."""
    tries: dict[str, list[float | None]]
    """For ops that were attempted again: start and end of each attempt; by number of the op. Between them it backs
    off."""
    owned: list[list[Any]]
    """Who owned the run: `[from, to, owner, epoch]`; `to` is null for the owner of now."""
    held: list[list[Any]]
    """When it was paused or parked: `[from, to, "paused"|"parked"]`."""
    began: float
    ended: float | None


class OpQuery(RunQuery, frozen=True):
    """Which op."""

    inputs: Annotated[
        bool | None,
        Meta(description="Whether its arguments are found by replay; left out: if the journal is not long."),
    ] = None


class AttemptItem(Struct, frozen=True):
    """One try of a step."""

    number: int
    status: str
    error: FailureItem | None
    started_at: datetime
    finished_at: datetime | None
    retry_at: datetime | None
    fallback: bool


class OpDetail(Struct, frozen=True, kw_only=True):
    """One op with what is known of it."""

    path: str
    kind: str
    status: str
    source: str
    name: str
    attempts: list[AttemptItem]
    output: Any
    error: FailureItem | None
    progress: Any
    chunks: list[Any]
    input_hash: str
    inputs: dict[str, Any] | None
    """Its arguments by name: by replay where the code is here, or because the step records them; else null."""
    inputs_from: Literal["replay", "record"] | None
    request: Any = None
    schema: Any = None
    deadline: datetime | None = None
    by: str = ""
    reason: str = ""
    replayed: bool = False
    child_run_id: str | None = None
    first_seq: int = 0
    last_seq: int = 0


class JournalQuery(Query, frozen=True):
    """Which events."""

    child: str = ""
    start: Annotated[int, Meta(ge=0, le=2**53, description="Events from this number on.")] = 0
    limit: Limit = 200
    kind: Annotated[
        list[str], Meta(description="Only events of this kind, such as `StepFailed`; may be repeated.")
    ] = []
    op: Annotated[str | None, Meta(description="Only events of this op.")] = None
    whole: Annotated[
        bool, Meta(description="Large values too, in place of where they are to be had; a page may be shorter then.")
    ] = False


class EventItem(Struct, frozen=True):
    """One event of a journal."""

    seq: int
    run_id: str
    at: datetime
    kind: str
    event: Any


class Journal(Struct, frozen=True):
    """Events in order. `next` is the `start` of the page after it; `next_seq` the number of the next event."""

    events: list[EventItem]
    next: int | None
    next_seq: int


class FollowQuery(Query, frozen=True):
    """Where a stream of events begins."""

    child: str = ""
    after: (
        Annotated[int, Meta(ge=-1, le=2**53, description="After this event; -1 and nothing: from the first one on.")]
        | None
    ) = None


class StreamQuery(FollowQuery, frozen=True):
    """Which chunks."""

    step: Annotated[str | None, Meta(description="An op path or a name; left out: all steps.")] = None


class ChunkItem(Struct, frozen=True):
    """Something that a step emitted. `restart`: what it emitted before is void."""

    index: int
    path: str
    value: Any
    attempt: int
    restart: bool


class StreamEnd(Struct, frozen=True):
    """The end of a stream of chunks."""

    status: RunStatus


class RunEnd(StreamEnd, frozen=True):
    """The end of a stream of events. `continued_as`: the run_id of the next incarnation."""

    continued_as: str | None


class Nothing(Struct, frozen=True):
    """An event that says all by its name."""


class ChangesQuery(Query, frozen=True):
    """All runs."""


class ChangedItem(Struct, frozen=True):
    """Which runs have changed."""

    run_ids: list[str]
    """New runs that have changed."""
    more: bool
    """Whether others may have changed, too."""


class ItemsQuery(Query, frozen=True):
    """Which items of a map."""

    child: str = ""
    op: Annotated[str | None, Meta(description="The op path or the name of the map; left out for a batch.")] = None
    status: Annotated[str | None, Meta(description="Only items in this status, such as `failed`.")] = None
    start: Annotated[int, Meta(ge=0, le=2**53, description="Items from this number on.")] = 0
    limit: Limit = 100


class MapItem(Struct, frozen=True):
    """One item of a map."""

    index: int
    path: str
    status: str
    output: Any
    error: FailureItem | None
    reason: str


class Items(Struct, frozen=True):
    """Items that have begun, in order. `next` is the `start` of the page after it."""

    items: list[MapItem]
    next: int | None


class ValueQuery(Query, frozen=True):
    """How a value is sent."""

    child: str = ""
    download: Annotated[bool, Meta(description="As a file to be saved.")] = False
    item: Annotated[int, Meta(ge=0, le=2**53, description="Which of a field with several values.")] = 0


# --- telling runs something ------------------------------------------------------------------------------------------


class Done(Struct, frozen=True):
    """What came of it. `duplicate`: it had come before, and counts once."""

    answer: Literal["accepted", "duplicate", "finished", "not_found"]
    duplicate: bool = False
    status: RunStatus | None = None
    """Of a run that had ended: how."""
    again: list[str] = []
    """Of a run that continues from before an op: the ops that are done again if the code asks for them."""


class Started(Struct, frozen=True, kw_only=True):
    """A run that was started, or existed."""

    id: str
    run_id: str
    status: RunStatus | None = None
    forked_from: str | None = None
    duplicate: bool = False


class StartBody(Body, frozen=True):
    """What to start."""

    program: Annotated[str, Meta(min_length=1, max_length=200)]
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    id: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    reuse: Literal["return_existing", "reject_duplicate", "allow_if_failed", "terminate_running"] | None = None
    queue: str | None = None
    key: str | None = None
    priority: Priority = 0
    delay: Annotated[float, Meta(ge=0, le=10**10)] | None = None
    deadline: Annotated[float, Meta(gt=0, le=10**10)] | None = None
    tags: dict[str, str] = {}


class EmptyBody(Body, frozen=True):
    """Nothing."""


class ReasonBody(Body, frozen=True):
    """Why."""

    reason: str | None = None


class SignalBody(Body, frozen=True):
    """What to send. `signal_id` deduplicates it, as the Idempotency-Key does."""

    payload: Any = None
    signal_id: str | None = None


class AnswerBody(Body, frozen=True):
    """An answer. Who gives it is who is logged in."""

    payload: Any = None
    approval_id: str | None = None


class RejectBody(Body, frozen=True):
    """A refusal."""

    reason: str | None = None
    approval_id: str | None = None


class ForkBody(Body, frozen=True):
    """Where and with what a fork begins; see `Engine.fork`."""

    at: str | int | None = None
    values: dict[str, Any] | None = None
    inputs: dict[str, Any] | None = None
    state: dict[str, Any] | None = None
    new_id: Annotated[str, Meta(min_length=1, max_length=255)] | None = None


class TravelBody(Body, frozen=True):
    """To which step to go back, and with which arguments."""

    step: Annotated[str, Meta(min_length=1)]
    inputs: dict[str, Any] | None = None
    new_id: Annotated[str, Meta(min_length=1, max_length=255)] | None = None


class ResolveBody(Body, frozen=True):
    """How a parked run goes on, or ends; without anything it is tried again."""

    version: str | None = None
    fail: str | None = None
    before: str | None = None


class ApprovalsQuery(Query, frozen=True):
    """Which questions."""

    name: str | None = None
    program: str | None = None
    mine: Annotated[bool, Meta(description="Only those that who asks may answer.")] = False
    limit: Limit = 200
    cursor: Cursor = None


class ApprovalItem(Struct, frozen=True, kw_only=True):
    """A question that is open."""

    id: str
    run_id: str
    child: str
    program: str
    name: str
    path: str
    request: Any
    schema: Any
    approvers: list[str]
    answerable: bool
    """Whether who asks may answer it."""
    asked_at: datetime
    deadline: datetime | None
    escalates_at: datetime | None


class Approvals(Struct, frozen=True):
    """Open questions, the oldest first."""

    approvals: list[ApprovalItem]
    next: str | None


# --- schedules -------------------------------------------------------------------------------------------------------


class ScheduleBody(Body, frozen=True):
    """What to start, and when. Lengths of time are in seconds."""

    program: Annotated[str, Meta(min_length=1, max_length=200)]
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    every: Annotated[float, Meta(gt=0, le=10**10)] | None = None
    cron: Annotated[str, Meta(max_length=1000)] | None = None
    timezone: Annotated[str, Meta(max_length=100)] = "UTC"
    overlap: Literal["skip", "buffer_one", "cancel_previous", "terminate_previous", "allow"] = "skip"
    catch_up: Annotated[str, Meta(max_length=100, description="`skip`, `one`, `all`, or as `all(10)`.")] = "one"
    jitter: Annotated[float, Meta(ge=0, le=10**10)] | None = None
    pause: bool = False
    queue: str | None = None
    key: str | None = None
    priority: Priority = 0
    tags: dict[str, str] = {}
    deadline: Annotated[float, Meta(gt=0, le=10**10)] | None = None
    max_concurrency: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class ScheduleItem(Struct, frozen=True, kw_only=True):
    """A schedule as it is now. Lengths of time are in seconds."""

    id: str
    program: str
    input: Any
    every: float | None
    cron: str | None
    timezone: str
    overlap: str
    catch_up: str
    jitter: float | None
    paused: bool
    fired: int
    skipped: int
    failed: int
    waiting: int
    last_tick: datetime | None
    next_tick: datetime | None
    last_run: str | None
    """The id of the run that it started last."""
    trouble: str | None
    created_at: datetime
    queue: str | None
    key: str | None
    priority: int
    tags: dict[str, str]
    deadline: float | None
    max_concurrency: int | None


class Schedules(Struct, frozen=True):
    """All schedules, by id."""

    schedules: list[ScheduleItem]


class NextQuery(Query, frozen=True):
    """How far to look ahead."""

    count: Annotated[int, Meta(ge=1, le=1000)] = 10


class NextTicks(Struct, frozen=True):
    """The next times at which a schedule fires, with jitter."""

    next: list[datetime]


class Triggered(Struct, frozen=True):
    """The id of the run that starts."""

    id: str


class BackfillBody(Body, frozen=True):
    """From which time, until before which."""

    start: datetime
    end: datetime


class Backfilled(Struct, frozen=True):
    """The ids of the runs that start, for each tick."""

    ids: list[str]


# --- what executes runs ----------------------------------------------------------------------------------------------


class QueueLimits(Struct, frozen=True):
    """What a queue allows: so many at once, so many of a key, and `rate` starts in `rate_seconds`."""

    concurrency: int | None
    per_key: int | None
    rate: int | None
    rate_seconds: float | None


class QueueItem(Struct, frozen=True):
    """A queue in numbers. `oldest` is how many seconds its longest waiting run has waited."""

    name: str
    queued: int
    running: int
    oldest: float | None
    limits: QueueLimits | None
    """Null where this process does not know them."""


class Queues(Struct, frozen=True):
    """All queues, by name."""

    queues: list[QueueItem]


class QueueKey(Struct, frozen=True):
    """The runs of a queue that have the same key."""

    key: str | None
    queued: int
    running: int


class QueueDetail(Struct, frozen=True):
    """A queue with its runs by key. `bounded`: only its newest 1,000 open runs were looked at."""

    queue: QueueItem
    keys: list[QueueKey]
    bounded: bool
    next: list[RunItem]
    """Runs that have waited longest."""


class OrchestratorItem(Struct, frozen=True):
    """An orchestrator that is alive, or that still owns runs which another one has to take over."""

    name: str
    alive: bool
    running: int
    waiting: int
    session: str | None
    expires_at: datetime | None
    programs: list[str] | None


class Orchestrators(Struct, frozen=True):
    """Orchestrators, by name."""

    orchestrators: list[OrchestratorItem]


class LockItem(Struct, frozen=True):
    """A lock in force. `run_id` and `id` are those of the run that holds it."""

    key: str
    owner: str
    token: int
    expires_at: datetime
    run_id: str | None
    id: str | None


class Locks(Struct, frozen=True):
    """Locks, by key."""

    locks: list[LockItem]


class CheckItem(Struct, frozen=True):
    """What was looked at, how it stands, and what to do about it."""

    name: str
    verdict: Literal["ok", "warn", "fail"]
    found: str
    fix: str


class Doctor(Struct, frozen=True):
    """Every check of the store. `ok`: none has failed."""

    ok: bool
    checks: list[CheckItem]


# --- programs and their code -----------------------------------------------------------------------------------------


class ProgramItem(Struct, frozen=True):
    """A program."""

    name: str
    versions: list[str]
    orchestrators: list[str]
    """The living ones that have it."""
    here: bool
    """Whether this process has it."""


class Programs(Struct, frozen=True):
    """Programs, by name."""

    programs: list[ProgramItem]


class SourcePart(Struct, frozen=True):
    """A function: its file, its first line, its name, and its text."""

    file: str
    line: int
    name: str
    text: str


class ProgramDetail(ProgramItem, frozen=True, kw_only=True):
    """A program with the JSON Schema of its arguments, as an object; null where they are not known."""

    parameters: Any
    signature: str
    source: list[SourcePart]
    graph: bool
    """Whether its runs can be drawn."""


class SourceQuery(Query, frozen=True):
    """Where in a run."""

    child: str = ""
    at: Annotated[
        str | None, Meta(description="An op path, or the number of an event; left out: where the run is now.")
    ] = None


class FrameItem(Struct, frozen=True):
    """A function that has not returned: its line, and its variables as text."""

    function: str
    source: str
    variables: dict[str, str]


class TaskItem(Struct, frozen=True):
    """A task that is not done: what it waits for, and its functions, the innermost last."""

    program: str
    task: str
    waits_for: str
    frames: list[FrameItem]


class SourceView(Struct, frozen=True, kw_only=True):
    """The code of a run, and where it stands."""

    parts: list[SourcePart]
    """The functions as they were when the run was executed last; of a graph, none."""
    executed: dict[str, dict[str, int]] | None
    """How often each line was executed up to there, by file and line; null where the code is not here."""
    tasks: list[TaskItem] | None
    """Null where the code is not here."""
    values: dict[str, Any] | None
    """Of a graph: its values by name."""
    problem: str | None
    """Why there are no lines and no variables."""


class GraphQuery(Query, frozen=True):
    """How a graph is drawn."""

    child: str = ""
    depth: Annotated[int, Meta(ge=0, le=100, description="How many levels of nested graphs are open.")] | None = None


class GraphNode(Struct, frozen=True):
    """A node of a graph. `within` is the node of the nested graph that it is in, where that is open."""

    id: str
    label: str
    shape: Literal["input", "step", "gate", "question", "map", "child"]
    status: str
    """Empty for a node that has not begun."""
    path: str
    """Its op paths without the numbers of turns and items; empty for an input."""
    within: str | None


class GraphEdge(Struct, frozen=True):
    """What leads from one node to another. `taken`: the run went this way."""

    source: str
    target: str
    label: str
    link: Literal["value", "order", "gate", "loop"]
    taken: bool


class GraphView(Struct, frozen=True):
    """A graph, to be laid out."""

    nodes: list[GraphNode]
    edges: list[GraphEdge]


class DiffSide(Struct, frozen=True):
    """An op in one run. Large values are left out: `bytes` is how many there are."""

    status: str
    value: Any
    bytes: int
    error: ErrorItem | None
    attempts: int
    took: float | None
    source: str


class DiffItem(Struct, frozen=True):
    """An op in two runs. `changes` are the fields that differ: none, where it is the same in both."""

    path: str
    changes: list[str]
    a: DiffSide | None
    b: DiffSide | None


class Diff(Struct, frozen=True):
    """Two runs side by side. `first` is the first op that differs; `takes` is where it has its values from in each."""

    a: str
    b: str
    first: str | None
    added: list[str]
    removed: list[str]
    takes: list[str] | None
    ops: list[DiffItem]


class ExportQuery(Query, frozen=True):
    """What is left out of a capsule."""

    redact: Annotated[list[str], Meta(description="What is at this path, as in `$.card.number`; may be repeated.")] = []


class Viewed(Struct, frozen=True):
    """A capsule that can be looked at: at `run`, in place of a run_id, until the server forgets it."""

    run: str


class CheckedRun(Struct, frozen=True):
    """A run, and whether it fits the code of this server: a line of an upgrade check."""

    id: str
    run_id: str
    program: str
    version: str
    status: RunStatus
    fit: str
    reason: str
    kind: str
    title: str
    source: str


class UpgradeBody(Body, frozen=True):
    """Which runs are checked."""

    sample: Annotated[int, Meta(ge=1, description="Only so many, spread over all.")] | None = None


class DevState(Struct, frozen=True):
    """The code that `perdure dev` executes, and what became of the last edit.

    `live`: it is executed. `checking`: it is held against the open runs. `held`: runs would be parked; `broken`: it
    cannot be loaded. In both cases the code from before is executed.
    """

    module: str
    status: Literal["live", "checking", "held", "broken"]
    since: datetime
    """Since when the code that is executed is this one."""
    problem: str = ""
    """Why the edited code cannot be loaded."""
    checked: int = 0
    """How many open runs it was held against."""
    runs: list[CheckedRun] = []
    """Those that do not fit it."""


# --- many runs at once -----------------------------------------------------------------------------------------------


class BulkFilter(Body, frozen=True):
    """Which runs: as the parameters of the list of runs."""

    status: list[str] = []
    program: str | None = None
    tags: dict[str, str] = {}
    queue: str | None = None
    owner: str | None = None
    parent: str | None = None
    root: str | None = None
    q: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class BulkOptions(Body, frozen=True):
    """What the action takes: a reason for `cancel` and `pause`; name, payload and signal_id for `signal`."""

    reason: str | None = None
    name: str | None = None
    payload: Any = None
    signal_id: str | None = None


class BulkBody(Body, frozen=True):
    """What is done to which runs: `ids`, or those that match a filter."""

    action: Literal["cancel", "pause", "resume", "retry", "signal"]
    ids: Annotated[list[str], Meta(max_length=10_000)] | None = None
    filter: BulkFilter | None = None
    options: BulkOptions = BulkOptions()
    dry_run: Annotated[bool, Meta(description="Only say which runs it would be: the first 1,000.")] = False


class BulkFailure(Struct, frozen=True):
    """A run for which it failed, and why."""

    id: str
    error: str


class BulkItem(Struct, frozen=True, kw_only=True):
    """What has become of many runs. `id` is that of the run which does it; null for a dry run."""

    id: str | None
    run_id: str | None
    action: str
    status: RunStatus | None
    done: int = 0
    skipped: int = 0
    """There was nothing to do: they had ended, or it was a duplicate."""
    failed: int = 0
    failures: list[BulkFailure] = []
    """The first 1,000."""
    ids: list[str] = []
    """Of a dry run: which runs it would be."""
    more: bool = False
    """Of a dry run: whether there are more than these."""


# --- signing in ------------------------------------------------------------------------------------------------------


class SessionBody(Body, frozen=True):
    """A token, to be swapped for a cookie."""

    token: Annotated[str, Meta(min_length=1, max_length=200)]


class Session(Struct, frozen=True):
    """Who is signed in, and until when."""

    name: str
    expires_at: datetime | None


class LinkBody(Body, frozen=True):
    """For whom an answering link is, and for how many seconds."""

    person: Annotated[str, Meta(min_length=1, max_length=200)]
    ttl: Annotated[float, Meta(gt=0, le=31_536_000)] = 604_800


class Link(Struct, frozen=True):
    """An answering link. It is shown once: only its hash is stored."""

    path: str
    """Relative to the mount."""
    expires_at: datetime
