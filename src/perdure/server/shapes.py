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

Bucket = Literal["minute", "hour", "day"]

Limit = Annotated[int, Meta(ge=1, le=1000, description="How many at most.")]
Cursor = Annotated[str | None, Meta(description="The `next` of the page before; it belongs to the same filters.")]


class Query(Struct, frozen=True, forbid_unknown_fields=True):
    """Query parameters. One that a route does not know is a mistake, and no filter that is ignored."""


class Body(Struct, frozen=True, forbid_unknown_fields=True):
    """A request body. A field that a route does not know is a mistake."""


# --- me and the store ------------------------------------------------------------------------------------------------


class Me(Struct, frozen=True):
    """Who asks, what they may do, and what there is."""

    name: str
    may: list[str]
    programs: list[str] | None
    version: str
    store: str
    """The kind of the store, such as `sqlite`."""
    executes: bool
    """Whether an engine in this process executes runs."""
    time: datetime
    features: list[str]
    trace_url: str | None = None
    """Where traces are shown, with `{trace_id}` in it."""


class Health(Struct, frozen=True):
    """Whether the server is alive, or ready."""

    status: str
    store: str = ""


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
    """A run as it stands."""

    input: Any
    output: Any
    failure: FailureItem | None
    state: dict[str, Any]
    waits: list[WaitItem]
    locks: list[str]
    parked: str | None
    divergence: Any
    continued_from: str | None
    why: WhyItem | None
    trace: str | None = None
    """The trace that it was started in, as a traceparent."""


class ByIdQuery(Query, frozen=True):
    """A caller's id."""

    id: Annotated[str, Meta(min_length=1, description="The id that the run was started with.")]


class CountsQuery(Query, frozen=True):
    """What is counted."""

    by: Annotated[str, Meta(description="`status`, `program`, or both with a comma.")] = "status"
    since: datetime | None = None
    until: datetime | None = None


class Count1(Struct, frozen=True):
    """How many runs."""

    status: str | None
    program: str | None
    count: int


class Counts(Struct, frozen=True):
    """How many runs there are. `at` is when they were counted: an answer is kept for 2 seconds."""

    counts: list[Count1]
    at: datetime


class HistogramQuery(Query, frozen=True):
    """Which runs, in which buckets."""

    bucket: Bucket = "hour"
    program: str | None = None
    since: datetime | None = None
    until: datetime | None = None


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
    limit: Annotated[int, Meta(ge=1, le=200_000)] = 20_000


class Ops(Struct, frozen=True, kw_only=True):
    """Ops in columns, in the order they began: the n-th entries of all columns belong together."""

    run_id: str
    next_seq: int
    """The events below this number are in the answer: a stream goes on from it."""
    total: int
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
    tries: dict[str, list[float | None]]
    """For ops that were attempted again: start and end of each attempt; by number of the op. Between them it backs
    off."""
    owned: list[list[Any]]
    """Who owned the run: `[from, to, owner, epoch]`; `to` is null for the owner of now."""
    held: list[list[Any]]
    """When it was paused or parked: `[from, to, "paused"|"parked"]`."""
    began: float
    ended: float | None


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
    """Of a run that goes on from before an op: the ops that are done again if the code asks for them."""


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
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 0
    delay: Annotated[float, Meta(ge=0, le=10**10)] | None = None
    deadline: Annotated[float, Meta(gt=0, le=10**10)] | None = None
    tags: dict[str, str] = {}


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
    set: dict[str, Any] | None = None
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
