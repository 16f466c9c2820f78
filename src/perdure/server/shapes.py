"""The bodies of requests and responses, as structs from which routing and OpenAPI are made.

Times are RFC 3339 in UTC; in columns they are seconds since 1970. A value is plain JSON, exactly as it is stored, so
that long integers stay exact; one of more than 16 KiB is replaced by `{"$value": url, "bytes": n}`, with a url relative
to `api/v1/`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from perdure.kernel.events import RunStatus
from perdure.kernel.values.failures import Failure

Bucket = Literal["minute", "hour", "day"]

Limit = Annotated[int, Meta(ge=1, le=1000, description="The largest number of entries.")]
Cursor = Annotated[
    str | None, Meta(description="The `next` of the previous page, which must have had the same filters.")
]


Priority = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]


class Query(Struct, frozen=True, forbid_unknown_fields=True):
    """Query parameters. An unknown parameter is an error: it would be a filter that does nothing."""


class Body(Struct, frozen=True, forbid_unknown_fields=True):
    """A request body. An unknown field is an error."""


# --- me and the store ------------------------------------------------------------------------------------------------


class Me(Struct, frozen=True):
    """The caller, what they may do, and the features of this server."""

    name: str
    may: list[str]
    programs: list[str] | None
    """The programs whose runs they may see; null for all."""
    signed_in: Literal["host", "machine", "token", "cookie"]
    """How the caller was identified: by the host application, the machine, a token, or a cookie."""
    expires_at: datetime | None
    """When their token or their cookie expires."""
    redacted: list[str]
    """What is redacted in the values that they see."""
    version: str
    store: str
    """The kind of the store, such as `sqlite`."""
    executes: bool
    """Whether an engine in this process executes runs."""
    time: datetime
    features: list[str]
    """`source`: the code of programs is here; `bulk`: an orchestrator is alive that can act on many runs."""
    trace_url: str | None = None
    """The address of traces, with `{trace_id}` in it."""


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
    parked: Annotated[
        str | None, Meta(description="Only runs that are parked with this kind of reason; `true` for any.")
    ] = None
    parent: Annotated[str | None, Meta(description="Only runs that this run started, by its run_id.")] = None
    root: Annotated[str | None, Meta(description="Only the tree of this run; `true`: only root runs.")] = None
    q: Annotated[
        str | None,
        Meta(description="An id, the beginning of one, or a condition such as `input.path=value`; see the guide."),
    ] = None
    since: Annotated[datetime | None, Meta(description="Created at or after this.")] = None
    until: Annotated[datetime | None, Meta(description="Created before this.")] = None
    before: Annotated[str | None, Meta(description="Only runs that are older than this run_id.")] = None
    why: Annotated[bool, Meta(description="Also explain why runs make no progress.")] = False
    limit: Limit = 50
    cursor: Cursor = None


class ErrorItem(Struct, frozen=True):
    """An error, shortened for a list."""

    type: str
    message: str


class FailureItem(Struct, frozen=True):
    """An error with its traceback, its cause, and the exceptions of a group."""

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
    """Why a run makes no progress, or how it ended. `until`: when that changes by itself."""

    kind: str
    text: str
    until: datetime | None = None


class RunItem(Struct, frozen=True, kw_only=True):
    """A run in a list, without its values."""

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
    exact: RunItem | None = None
    """The run whose id or run_id is `q`, also if it is not on this page; not with a cursor."""


class RunQuery(Query, frozen=True):
    """Which run of a tree of runs."""

    child: Annotated[str, Meta(description="The op path of a child of the run.")] = ""


class WaitItem(Struct, frozen=True):
    """A wait of a run."""

    path: str
    kind: str
    deadline: datetime | None
    source: str
    name: str
    request: Any
    schema: Any
    approvers: list[str]


class RunDetail(RunItem, frozen=True, kw_only=True):
    """A run. The fields from `state` on come from its journal, and are null if that was not read."""

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
    """Which run of a tree, and whether its journal is read."""

    journal: Annotated[
        bool, Meta(description="`false`: leave out what has to be read from its journal: state, waits, why.")
    ] = True


class ByIdQuery(Query, frozen=True):
    """A run by the id that its caller gave."""

    id: Annotated[str, Meta(min_length=1, description="The id that the run was started with.")]
    journal: Annotated[bool, Meta(description="As for `runs/{run}`.")] = True


class CountsQuery(Query, frozen=True):
    """How runs are grouped."""

    by: Annotated[str, Meta(description="`status`, `program`, or both with a comma.")] = "status"


class CountItem(Struct, frozen=True):
    """A number of runs. `bounded`: there may be more; counting stops at 100,000 for each program and status."""

    status: str | None
    program: str | None
    count: int
    bounded: bool = False


class Counts(Struct, frozen=True):
    """Numbers of runs. `at` is when they were counted: a count is kept for 2 seconds."""

    counts: list[CountItem]
    at: datetime


# How many buckets a histogram may have.
MOST_BUCKETS = 1000


class HistogramQuery(Query, frozen=True):
    """Which runs are counted, and in which buckets."""

    bucket: Bucket = "hour"
    program: Annotated[str | None, Meta(description="Only runs of this program.")] = None
    since: Annotated[datetime | None, Meta(description="Default: 60 minutes, 48 hours or 30 days before.")] = None
    until: Annotated[datetime | None, Meta(description="Default: now.")] = None


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
    after: Annotated[
        int, Meta(ge=0, le=2**53, description="Ops from this number on, in the order in which they started.")
    ] = 0
    since: Annotated[int, Meta(ge=0, le=2**53, description="Only ops with an event from this number on.")] = 0
    limit: Annotated[int, Meta(ge=1, le=50_000)] = 20_000


class Ops(Struct, frozen=True, kw_only=True):
    """Ops in columns, in the order they began: the n-th entries of all columns belong together."""

    run_id: str
    next_seq: int
    """All events below this number are included: a stream continues from it."""
    total: int
    """How many ops there are below `next_seq`."""
    complete: bool
    """Whether every event so far was read. The first pages of a long run are sent before that."""
    next: int | None
    """The `after` of the next page."""
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
    """The name of the op; many ops may share it."""
    queue: list[str]
    seq: list[int]
    """The number of its last event."""
    due: list[float | None]
    """When a wait ends by itself: a timer, or a wait with a deadline."""
    tries: dict[str, list[float | None]]
    """For ops that were retried: start and end of each attempt, by number of the op. The gaps are backoff."""
    owned: list[list[Any]]
    """The owners of the run: `[from, to, owner, epoch]`; `to` is null for the present owner."""
    held: list[list[Any]]
    """When it was paused or parked: `[from, to, "paused"|"parked"]`."""
    began: float
    not_before: float | None
    """Before this it was not to begin: it was started with a delay."""
    ended: float | None


class OpQuery(RunQuery, frozen=True):
    """Which op."""

    inputs: Annotated[
        bool | None,
        Meta(description="Whether to find its arguments by replay. Default: unless the journal is long."),
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
    """Its arguments by name, if the step records them, or by replay if the server has the code; otherwise null."""
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
        bool, Meta(description="Include large values in place of links to them; pages may be shorter then.")
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
    """The event after which a stream begins."""

    child: str = ""
    after: (
        Annotated[int, Meta(ge=-1, le=2**53, description="The event before the first one wanted; -1: all.")] | None
    ) = None


class StreamQuery(FollowQuery, frozen=True):
    """Which chunks."""

    step: Annotated[str | None, Meta(description="An op path or a name. Default: all steps.")] = None


class ChunkItem(Struct, frozen=True):
    """A chunk that a step emitted. `restart`: earlier chunks of the step are void."""

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
    """An event without data."""


class ChangesQuery(Query, frozen=True):
    """No parameters: all runs."""


class ChangedItem(Struct, frozen=True):
    """Runs that have changed."""

    run_ids: list[str]
    """The run_ids of those among the newest runs."""
    more: bool
    """Whether older runs may have changed, too."""


class ItemsQuery(Query, frozen=True):
    """Which items of a map."""

    child: str = ""
    op: Annotated[str | None, Meta(description="The op path or the name of the map; not needed for a batch.")] = None
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
    """Items that have started, in order. `next` is the `start` of the next page."""

    items: list[MapItem]
    next: int | None


class ValueQuery(Query, frozen=True):
    """How a value is returned."""

    child: str = ""
    download: Annotated[bool, Meta(description="As a file to save.")] = False
    item: Annotated[int, Meta(ge=0, le=2**53, description="Which of several values the field has.")] = 0


# --- telling runs something ------------------------------------------------------------------------------------------


class Done(Struct, frozen=True):
    """The outcome. `duplicate`: the same message had come before, and counts once."""

    answer: Literal["accepted", "duplicate", "finished", "not_found"]
    duplicate: bool = False
    status: RunStatus | None = None
    """If the run had ended: its status."""
    again: list[str] = []
    """If the run continues from before an op: the ops that run again if the code asks for them."""


class Started(Struct, frozen=True, kw_only=True):
    """A run that was started, or existed already."""

    id: str
    run_id: str
    status: RunStatus | None = None
    forked_from: str | None = None
    duplicate: bool = False


class StartBody(Body, frozen=True):
    """The program to start, its arguments and options."""

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
    """An empty object."""


class ReasonBody(Body, frozen=True):
    """The reason, for the journal."""

    reason: str | None = None


class RetryBody(Body, frozen=True):
    """How many rounds the loops of a graph may have from now on."""

    reason: str | None = None
    max_rounds: Annotated[int, Meta(ge=1)] | None = None


class SignalBody(Body, frozen=True):
    """The payload of a signal. `signal_id` deduplicates it, as an Idempotency-Key does."""

    payload: Any = None
    signal_id: str | None = None


class AnswerBody(Body, frozen=True):
    """An answer. It is given by the caller of the request."""

    payload: Any = None
    approval_id: str | None = None


class RejectBody(Body, frozen=True):
    """A rejection."""

    reason: str | None = None
    approval_id: str | None = None


class ForkBody(Body, frozen=True):
    """Where a fork begins, and with which changes; see `Engine.fork`."""

    at: str | int | None = None
    values: dict[str, Any] | None = None
    inputs: dict[str, Any] | None = None
    state: dict[str, Any] | None = None
    new_id: Annotated[str, Meta(min_length=1, max_length=255)] | None = None


class TravelBody(Body, frozen=True):
    """The step to go back to, and its new arguments."""

    step: Annotated[str, Meta(min_length=1)]
    inputs: dict[str, Any] | None = None
    new_id: Annotated[str, Meta(min_length=1, max_length=255)] | None = None


class ResolveBody(Body, frozen=True):
    """How a parked run continues, or ends; without fields, it is tried again as it is."""

    version: str | None = None
    fail: str | None = None
    before: str | None = None


class ApprovalsQuery(Query, frozen=True):
    """Which approvals."""

    name: str | None = None
    program: str | None = None
    mine: Annotated[bool, Meta(description="Only those that the caller may answer.")] = False
    limit: Limit = 200
    cursor: Cursor = None


class ApprovalItem(Struct, frozen=True, kw_only=True):
    """An open approval."""

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
    """Whether the caller may answer it."""
    asked_at: datetime
    deadline: datetime | None
    escalates_at: datetime | None


class Approvals(Struct, frozen=True):
    """Open approvals, the oldest first."""

    approvals: list[ApprovalItem]
    next: str | None


# --- schedules -------------------------------------------------------------------------------------------------------


class ScheduleBody(Body, frozen=True):
    """A schedule to store. Durations are in seconds."""

    program: Annotated[str, Meta(min_length=1, max_length=200)]
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    every: Annotated[float, Meta(gt=0, le=10**10)] | None = None
    cron: Annotated[str, Meta(max_length=1000)] | None = None
    timezone: Annotated[str, Meta(max_length=100)] = "UTC"
    overlap: Literal["skip", "buffer_one", "cancel_previous", "terminate_previous", "allow"] = "skip"
    catch_up: Annotated[
        str, Meta(max_length=100, description="`skip`, `one`, `all`, or a limit such as `all(10)`.")
    ] = "one"
    jitter: Annotated[float, Meta(ge=0, le=10**10)] | None = None
    pause: bool = False
    queue: str | None = None
    key: str | None = None
    priority: Priority = 0
    tags: dict[str, str] = {}
    deadline: Annotated[float, Meta(gt=0, le=10**10)] | None = None
    max_concurrency: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class ScheduleItem(Struct, frozen=True, kw_only=True):
    """A schedule and its state. Durations are in seconds."""

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
    """How many ticks."""

    count: Annotated[int, Meta(ge=1, le=1000)] = 10


class NextTicks(Struct, frozen=True):
    """The next ticks of a schedule, with jitter."""

    next: list[datetime]


class Triggered(Struct, frozen=True):
    """The id of the run that was started. `duplicate`: the same request had come before, and counts once."""

    id: str
    duplicate: bool = False


class BackfillBody(Body, frozen=True):
    """The range of ticks: from `since`, up to but without `until`."""

    start: datetime
    end: datetime


class Backfilled(Struct, frozen=True):
    """The ids of the runs that were started, one for each tick. `duplicate`: as for a trigger."""

    ids: list[str]
    duplicate: bool = False


# --- what executes runs ----------------------------------------------------------------------------------------------


class QueueLimits(Struct, frozen=True):
    """The limits of a queue: runs at once, runs with the same key at once, and `rate` starts in `rate_seconds`."""

    concurrency: int | None
    per_key: int | None
    rate: int | None
    rate_seconds: float | None


class QueueItem(Struct, frozen=True):
    """The numbers of a queue. `oldest`: how many seconds its oldest queued run has waited."""

    name: str
    queued: int
    running: int
    oldest: float | None
    limits: QueueLimits | None
    """Null if this process does not know the limits."""


class Queues(Struct, frozen=True):
    """All queues, by name."""

    queues: list[QueueItem]


class QueueKey(Struct, frozen=True):
    """The runs of a queue that have the same key."""

    key: str | None
    queued: int
    running: int


class QueueDetail(Struct, frozen=True):
    """A queue with its runs by key. `bounded`: only its newest 1,000 open runs were read."""

    queue: QueueItem
    keys: list[QueueKey]
    bounded: bool
    next: list[RunItem]
    """Runs that have waited longest."""


class OrchestratorItem(Struct, frozen=True):
    """A live orchestrator, or a dead one that still owns runs, which another one has to take over."""

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
    """One check: what was checked, the result, and what to do about it."""

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
    """The live orchestrators that have it."""
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
    """A point in a run."""

    child: str = ""
    at: Annotated[
        str | None, Meta(description="An op path, or the number of an event. Default: where the run is now.")
    ] = None


class FrameItem(Struct, frozen=True):
    """A function under way: its line, and its variables as text."""

    function: str
    source: str
    variables: dict[str, str]


class TaskItem(Struct, frozen=True):
    """A task under way: what it waits for, and its functions, the innermost last."""

    program: str
    task: str
    waits_for: str
    frames: list[FrameItem]


class SourceView(Struct, frozen=True, kw_only=True):
    """The code of a run, and where it is in that."""

    parts: list[SourcePart]
    """The functions, as they were when the run last executed; empty for a graph."""
    executed: dict[str, dict[str, int]] | None
    """How often each line was executed up to there, by file and line; null if the server lacks the code."""
    tasks: list[TaskItem] | None
    """Null if the server lacks the code."""
    values: dict[str, Any] | None
    """For a graph: its values by name."""
    problem: str | None
    """The reason when there are no lines and no variables."""


class GraphQuery(Query, frozen=True):
    """How a graph is drawn."""

    child: str = ""
    depth: Annotated[int, Meta(ge=0, le=100, description="How many levels of nested graphs are open.")] | None = None


class GraphNode(Struct, frozen=True):
    """A node of a graph. `within` is the node of the nested graph that contains it, if that is open."""

    id: str
    label: str
    shape: Literal["input", "step", "gate", "question", "map", "child"]
    status: str
    """Empty for a node that has not started."""
    path: str
    """Its op paths without the numbers of turns and items; empty for an input."""
    within: str | None


class GraphEdge(Struct, frozen=True):
    """An edge between two nodes. `taken`: the run went this way."""

    source: str
    target: str
    label: str
    link: Literal["value", "order", "gate", "loop"]
    taken: bool


class GraphView(Struct, frozen=True):
    """A graph, without a layout."""

    nodes: list[GraphNode]
    edges: list[GraphEdge]


class DiffSide(Struct, frozen=True):
    """An op in one run. A large value is left out: `bytes` is its size."""

    status: str
    value: Any
    bytes: int
    error: ErrorItem | None
    attempts: int
    took: float | None
    source: str


class DiffItem(Struct, frozen=True):
    """An op in two runs. `changes` are the fields that differ: none if the op is the same in both."""

    path: str
    changes: list[str]
    a: DiffSide | None
    b: DiffSide | None


class Diff(Struct, frozen=True):
    """Two runs side by side. `first` is the first op that differs; `takes`: where each run takes its arguments from."""

    a: str
    b: str
    first: str | None
    added: list[str]
    removed: list[str]
    takes: list[str] | None
    ops: list[DiffItem]


class ExportQuery(Query, frozen=True):
    """What is removed from a capsule."""

    redact: Annotated[
        list[str], Meta(description="Remove what is at this path, such as `$.card.number`; may be repeated.")
    ] = []


class Viewed(Struct, frozen=True):
    """A capsule that can be viewed: use `run` in place of a run_id, until the server drops it."""

    run: str


class CheckedRun(Struct, frozen=True):
    """A run, and whether it fits the code of this server: one line of an upgrade check."""

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

    sample: Annotated[int, Meta(ge=1, description="Only this many runs, spread over all.")] | None = None


class DevState(Struct, frozen=True):
    """The code that `perdure dev` executes, and the state of the last edit.

    `live`: the edit is executed. `checking`: open runs are being replayed with it. `held`: it would park runs.
    `broken`: it cannot be loaded. While it is held or broken, the previous code is executed.
    """

    module: str
    status: Literal["live", "checking", "held", "broken"]
    since: datetime
    """When the executed code was loaded."""
    problem: str = ""
    """Why the edited code cannot be loaded."""
    checked: int = 0
    """How many open runs were replayed with it."""
    runs: list[CheckedRun] = []
    """The runs that do not fit it."""
    folder: str = ""
    """Where the files of sources are, for links that open a line in an editor."""


# --- many runs at once -----------------------------------------------------------------------------------------------


class BulkFilter(Body, frozen=True):
    """Which runs, as in the parameters of the list of runs."""

    status: list[str] = []
    program: str | None = None
    tags: dict[str, str] = {}
    queue: str | None = None
    owner: str | None = None
    parked: str | None = None
    parent: str | None = None
    root: str | None = None
    q: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class BulkOptions(Body, frozen=True):
    """Parameters of the action: a reason for `cancel` and `pause`; name, payload and signal_id for `signal`."""

    reason: str | None = None
    name: str | None = None
    payload: Any = None
    signal_id: str | None = None


class BulkBody(Body, frozen=True):
    """An action, and the runs it acts on: `ids`, or those that match a filter."""

    action: Literal["cancel", "pause", "resume", "retry", "signal"]
    ids: Annotated[list[str], Meta(max_length=10_000)] | None = None
    filter: BulkFilter | None = None
    options: BulkOptions = BulkOptions()
    dry_run: Annotated[bool, Meta(description="Only list the runs it would act on: the first 1,000.")] = False


class BulkFailure(Struct, frozen=True):
    """A run for which the action failed, and why."""

    id: str
    error: str


class BulkItem(Struct, frozen=True, kw_only=True):
    """The progress of a bulk action. `id` is that of the run which performs it; null for a dry run."""

    id: str | None
    run_id: str | None
    action: str
    status: RunStatus | None
    done: int = 0
    skipped: int = 0
    """Runs with nothing to do: they had ended, or had it done already."""
    failed: int = 0
    failures: list[BulkFailure] = []
    """The first 1,000."""
    ids: list[str] = []
    """For a dry run: the runs it would act on."""
    more: bool = False
    """For a dry run: whether there are more than these."""


# --- signing in ------------------------------------------------------------------------------------------------------


class SessionBody(Body, frozen=True):
    """A token, to be exchanged for a cookie."""

    token: Annotated[str, Meta(min_length=1, max_length=200)]


class Session(Struct, frozen=True):
    """Who is signed in, and until when."""

    name: str
    expires_at: datetime | None


class LinkBody(Body, frozen=True):
    """The person that an answering link is for, and for how many seconds it is valid."""

    person: Annotated[str, Meta(min_length=1, max_length=200)]
    ttl: Annotated[float, Meta(gt=0, le=31_536_000)] = 604_800


class Link(Struct, frozen=True):
    """An answering link. It is shown once: only its hash is stored."""

    path: str
    """Relative to the mount."""
    expires_at: datetime
