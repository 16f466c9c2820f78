# Written by `make stubs` from the source; edit that.

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, Unpack, overload

from perdure.assembly import run as run
from perdure.authoring.code.step import Step
from perdure.client.bulk import BulkReport
from perdure.client.checkpoints import GraphCheckpoint
from perdure.client.client import Client as AsyncClient
from perdure.client.compacting import CompactReport
from perdure.client.definitions import FlowView
from perdure.client.locks import LockView
from perdure.client.migrating import TriedRun
from perdure.client.observing import OnCommit, OnComplete
from perdure.client.pruning import PruneReport, Statuses
from perdure.client.queries import RunFilters
from perdure.client.rebuilding import RebuildReport
from perdure.client.resting import Answers, Until
from perdure.client.schedules import Deployment, Schedule, ScheduleView
from perdure.client.starts import Start
from perdure.client.views import (
    ApprovalView,
    BatchView,
    Chunk,
    HistogramBucket,
    ItemView,
    OrchestratorView,
    QueueView,
    RunCount,
    RunPage,
    RunResult,
    RunSummary,
    RunView,
    StepView,
)
from perdure.client.why import Why
from perdure.config import Flows, Limits, Recovery, Retention, Telemetry
from perdure.kernel.events import Entry, RunStatus, StepStatus
from perdure.kernel.inbound import Accepted, AlreadyFinished, Cancelled, Duplicate, Finished, NotFound
from perdure.kernel.invocation import Invocation
from perdure.kernel.policies.durability import Durability
from perdure.kernel.policies.durations import Duration
from perdure.kernel.policies.queues import Queue
from perdure.kernel.policies.rules import RulesLike
from perdure.kernel.policies.start_options import Reuse
from perdure.kernel.program import Program
from perdure.kernel.schedules.schedule import CatchUp, Overlap
from perdure.kernel.streams import StreamMode
from perdure.kernel.values.codec import TypeCodec
from perdure.kernel.values.items import Items
from perdure.orchestrator.sweep import SweepReport
from perdure.ports.clock import Clock
from perdure.ports.leases import HeldBy, Leases
from perdure.ports.store import Store

__all__ = ["Blobs", "Client", "Engine", "Locks", "RunHandle", "ScheduleHandle", "connect", "run"]
R = TypeVar("R")

class Blobs:
    def put(self, data: bytes) -> str:
        """Store the bytes durably and return their id, the SHA-256 in hex."""
    def get(self, blob_id: str) -> bytes | None:
        """The bytes, or None when there is no such blob. Raises Corrupt when they are not what was put."""

class Locks:
    def hold(
        self, key: str, ttl: float | timedelta = 30, timeout: float | None = None
    ) -> AbstractContextManager[LockView]:
        """Hold a lock for the length of a block, renewed as long as it lasts: `with engine.locks.hold(key)`."""
    def acquire(self, key: str, owner: str, ttl: float | timedelta = 30) -> LockView | HeldBy:
        """Take a lock that is free, expired or already the owner's, without waiting. Only its owner renews it."""
    def renew(self, key: str, owner: str, ttl: float | timedelta = 30) -> LockView:
        """Renew a lock; raises NotOwner when it is not the owner's."""
    def release(self, key: str, owner: str) -> None:
        """Release a lock; raises NotOwner when it is not the owner's."""
    def force_release(self, key: str) -> LockView | None:
        """Release a lock of any holder, and return what it was; None when the lock is free."""
    def get(self, key: str) -> LockView | None:
        """A lock that is held, or None."""
    def list(self) -> list[LockView]:
        """Every lock that is held, by key."""

class RunHandle(Generic[R]):
    id: str
    @property
    def program(self) -> Program | None:
        """The program, if it is known here."""
    @property
    def run_id(self) -> str:
        """The run that was started. A handle of `engine.handle(id)` has none: it follows the latest under its id."""
    def result(self, timeout: float | None = None) -> R:
        """What the run returned; raises what it raised, RunCancelled or RunParked."""
    def outcome(
        self,
        timeout: float | None = None,
        *,
        until: Until = "end",
        answers: Answers | None = None,
        by: str | None = None,
    ) -> RunResult[R]:
        """How the run ended; raises nothing but TimeoutError."""
    def status(self) -> RunStatus:
        """The status of the run."""
    def cancel(self, reason: str | None = None, *, by: str | None = None) -> Cancelled | AlreadyFinished:
        """Cancel a run: its body gets a CancelledError and may clean up. Either the cancel or the completion wins."""
    def signal(
        self, name: str, payload: Any = None, signal_id: str | None = None, *, trace: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Send a run a signal, durably. It is kept until the run waits for it; a `signal_id` deduplicates it."""
    def feed(
        self, input: Any, input_id: str | None = None, name: str = ...
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Send a run its next input, durably: `async for input in inputs()` in its body receives inputs in order."""
    def approve(
        self, name: str, payload: Any, approval_id: str | None = None, by: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Answer an open approval of a run, by its name or its path."""
    def reject(
        self, name: str, reason: str | None = None, approval_id: str | None = None, by: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Reject an open approval of a run: its body gets an ApprovalRejected. The rules are those of `approve`."""
    def stream(self, step: str | None = None, start: int = 0) -> Iterator[Chunk]:
        """The chunks that a step of the run, or all of them, emit; see `Client.stream`."""

class ScheduleHandle:
    id: str
    def view(self) -> ScheduleView:
        """The schedule as it is now."""
    def pause(self, reason: str | None = None, *, by: str | None = None) -> None:
        """Fire no tick until it is resumed. Runs that have been started continue. `by` is who asks for it."""
    def resume(self, *, by: str | None = None) -> None:
        """Fire again, from the next tick; the ticks of the pause are not caught up."""
    def trigger(self, trigger_id: str | None = None, *, by: str | None = None) -> str:
        """Start a run now, if the overlap policy allows, also while the schedule is paused. Returns the run's id."""
    def trigger_once(self, trigger_id: str | None, by: str | None) -> tuple[str, bool]:
        """As `trigger`, and whether it was a duplicate."""
    def next(self, count: int = 10) -> Sequence[datetime]:
        """The next `count` times at which the schedule fires, with jitter, if it is not paused."""
    def backfill(
        self, start: datetime, end: datetime, backfill_id: str | None = None, *, by: str | None = None
    ) -> Sequence[str]:
        """Fire the ticks from `start` until before `end` as if they were due now; returns the ids of their runs."""
    def backfill_once(
        self, start: datetime, end: datetime, backfill_id: str | None, by: str | None
    ) -> tuple[Sequence[str], bool]:
        """As `backfill`, and whether it was a duplicate."""
    def delete(self, *, by: str | None = None) -> None:
        """End the schedule. Runs that it has started continue; ticks that wait in line are dropped."""

class Client:
    def __init__(self, client: AsyncClient) -> None: ...
    def open(self) -> Self:
        """Connect. `with` does this too."""
    def close(self) -> None:
        """Disconnect, and end the thread."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    @property
    def blobs(self) -> Blobs:
        """The blob store: `put(bytes) -> id`, `get(id) -> bytes | None`. What is put here is never collected."""
    @property
    def locks(self) -> Locks:
        """The locks of the store: `with engine.locks.hold(key)`."""
    def get(self, id: str) -> RunView | None:
        """The latest run under an id, or None."""
    def list(
        self,
        *,
        status: RunStatus | str | Sequence[RunStatus | str] | None = None,
        program: str | None = None,
        tags: dict[str, str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        owner: str | None = None,
        parent: str | None = None,
        root: str | None = None,
        queue: str | None = None,
        id_prefix: str | None = None,
        roots: bool = False,
        search: str | None = None,
        values: bool = True,
        limit: int = 100,
        cursor: str | None = None,
    ) -> RunPage:
        """Runs, newest first, a page at a time; runs of perdure's own programs only when `program` names one."""
    def counts(self) -> Sequence[RunCount]:
        """How many runs there are, by program and status: with children, and without runs of perdure's own programs."""
    def histogram(
        self, *, since: datetime, until: datetime, buckets: int = 60, program: str | None = None
    ) -> Sequence[HistogramBucket]:
        """How many runs ended in each of so many equal parts of a time, by status; of one program or of all."""
    def why(self, id: str) -> Why | None:
        """Why a run does not advance, or how it ended; None when it is running, or has completed."""
    def reasons(self, runs: Sequence[RunSummary]) -> dict[str, Why]:
        """As `why`, for a page of runs, by run_id. Runs that are running or have completed are left out."""
    def queues(self) -> Sequence[QueueView]:
        """Queues with runs that are queued or under way, by name; an Engine adds the limits it was given."""
    def orchestrators(self) -> Sequence[OrchestratorView]:
        """The orchestrators that are alive, and those that are gone and still own unfinished runs, by name."""
    def steps(self, id: str, *, inputs: bool | None = None) -> Sequence[StepView]:
        """The steps of a run and its children with their attempts, in the order they began."""
    def items(
        self,
        id: str,
        op: str | None = None,
        *,
        status: StepStatus | str | None = None,
        start: int = 0,
        limit: int = 100,
    ) -> Sequence[ItemView]:
        """The items of a map in a graph, or the rows of a batch, in order: `items(id, "fetch:0", status="failed")`."""
    def batch(self, id: str) -> BatchView:
        """A batch: how many of its rows have completed, failed, run, wait, are queued, or will not begin."""
    def values(self, id: str, at: str | int | None = None) -> dict[str, Any]:
        """The values of a graph's run by name, with its inputs: now, or as they were after an event or an op."""
    def history(self, id: str) -> Sequence[GraphCheckpoint]:
        """The state of a graph's run after each op that ended, in order: values, open ops and questions."""
    def diagram(
        self, id: str, *, format: Literal["mermaid", "dot", "json"] = "mermaid", depth: int | None = None
    ) -> str:
        """A run of a graph as mermaid, dot or JSON text: its nodes with their statuses, and which edges were taken."""
    def approvals(
        self, *, name: str | None = None, approver: str | None = None, program: str | None = None
    ) -> Sequence[ApprovalView]:
        """Open approvals of all runs, the oldest first; only of one `name`, or those that `approver` may answer now."""
    def get_checkpoint(self, id: str) -> int | None:
        """The number of the event up to which the newest snapshot replaces replay; None without a snapshot."""
    def journal(self, id: str, start: int = 0, limit: int | None = None) -> Sequence[Entry]:
        """The events of a run from number `start`, at most `limit` of them."""
    def follow(self, id: str, start: int = 0) -> Iterator[Entry]:
        """The events of a run from number `start`, as they are committed, until it ends."""
    def stream(self, id: str, step: str | None = None, start: int = 0) -> Iterator[Chunk]:
        """The chunks that a step emits, from number `start`, as they are committed; ends with the step."""
    def start(
        self,
        invocation: Invocation[R],
        *,
        id: str | None = None,
        reuse: Reuse | None = None,
        queue: str | None = None,
        key: str | None = None,
        priority: int = 0,
        debounce: Duration | None = None,
        delay: Duration | None = None,
        deadline: Duration | datetime | None = None,
        max_concurrency: int | None = None,
        durability: str | Durability | None = None,
        rules: RulesLike = ...,
        tags: dict[str, str] | None = None,
        memo: bool = False,
        trace: str | None = None,
    ) -> RunHandle[R]:
        """Start a run durably and return a handle to it. If the id is in use, do what `reuse` says."""
    @overload
    def start_many(self, starts: Iterable[Invocation[R]]) -> BulkReport[RunHandle[R]]: ...
    @overload
    def start_many(self, starts: Iterable[Start[R]]) -> BulkReport[RunHandle[R]]: ...
    @overload
    def start_many(self, starts: Iterable[Invocation[Any] | Start[Any]]) -> BulkReport[RunHandle[Any]]: ...
    def start_batch(
        self,
        program: Program | str,
        rows: Iterable[Any],
        *,
        limit: int | None = None,
        tolerate: float | str | None = None,
        id: str | None = None,
        reuse: Reuse | None = None,
        queue: str | None = None,
        key: str | None = None,
        priority: int = 0,
        delay: Duration | None = None,
        deadline: Duration | datetime | None = None,
        durability: str | Durability | None = None,
        rules: RulesLike = ...,
        tags: dict[str, str] | None = None,
    ) -> RunHandle[Items[Any]]:
        """Start one durable run that runs a program once for each row; `rows` need not fit in memory."""
    @overload
    def handle(self, id: str) -> RunHandle[Any]: ...
    @overload
    def handle(self, id: str, program: Callable[..., Invocation[R]]) -> RunHandle[R]: ...
    def run(
        self,
        invocation: Invocation[R] | Callable[..., Invocation[R]],
        *,
        until: Until | None = None,
        answers: Answers | None = None,
        by: str | None = None,
        **options: Any,
    ) -> RunResult[R]:
        """Start a run and wait until it ends, however it ends. Takes the options of `start`."""
    def signal(
        self, id: str, name: str, payload: Any = None, signal_id: str | None = None, *, trace: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Send a run a signal, durably. It is kept until the run waits for it; a `signal_id` deduplicates it."""
    def feed(
        self, id: str, input: Any, input_id: str | None = None, name: str = ...
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Send a run its next input, durably: `async for input in inputs()` in its body receives inputs in order."""
    def approve(
        self, id: str, name: str, payload: Any, approval_id: str | None = None, by: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Answer an open approval of a run, by its name or its path."""
    def reject(
        self, id: str, name: str, reason: str | None = None, approval_id: str | None = None, by: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Reject an open approval of a run: its body gets an ApprovalRejected. The rules are those of `approve`."""
    def cancel(self, id: str, reason: str | None = None, *, by: str | None = None) -> Cancelled | AlreadyFinished:
        """Cancel a run: its body gets a CancelledError and may clean up. Either the cancel or the completion wins."""
    def pause(self, id: str, reason: str | None = None, *, by: str | None = None) -> Accepted | Finished:
        """Pause a run: no new step starts; running ones finish, and their outcomes are kept. `by` is who pauses it."""
    def resume(self, id: str, *, by: str | None = None) -> Accepted | Finished:
        """Continue a paused run. `by` is who resumes it."""
    def checkpoint(self, id: str) -> int:
        """Make everything durable that a run has done so far, and return the number of the next event."""
    def resolve(
        self,
        id: str,
        *,
        version: str | None = None,
        fail: str | None = None,
        before: str | None = None,
        by: str | None = None,
    ) -> Accepted | Finished:
        """Continue a parked run: engines try it again at once."""
    def fork(
        self,
        id: str,
        at: str | int | None = None,
        values: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
        new_id: str | None = None,
        *,
        state: Mapping[str, Any] | None = None,
        set: Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> RunHandle[Any]:
        """Start a run that has the past of another up to a point, and continues independently from there."""
    def time_travel(
        self,
        id: str,
        step: str,
        inputs: Mapping[str, Any] | None = None,
        new_id: str | None = None,
        *,
        by: str | None = None,
    ) -> RunHandle[Any]:
        """Start a run that continues right before a step of another, with other arguments for that step."""
    def retry(self, id: str, *, max_rounds: int | None = None, by: str | None = None) -> RunHandle[Any]:
        """Continue a failed or cancelled run from where it failed, and keep all that succeeded."""
    @overload
    def update_state(
        self, id: str, values: Mapping[str, Any], at: str | int | None = None, *, dry_run: Literal[True]
    ) -> Sequence[str]: ...
    @overload
    def update_state(
        self, id: str, values: Mapping[str, Any], at: str | int | None = None, *, dry_run: Literal[False] = False
    ) -> RunHandle[Any]: ...
    def retry_many(
        self,
        *,
        by: str | None = None,
        limit: int = 1000,
        cursor: str | None = None,
        dry_run: bool = False,
        **filters: Unpack[RunFilters],
    ) -> BulkReport[RunHandle[Any]]:
        """Retry the runs that match, by default those that failed: at most `limit`, newest first."""
    def cancel_many(
        self,
        reason: str | None = None,
        *,
        by: str | None = None,
        limit: int = 1000,
        cursor: str | None = None,
        dry_run: bool = False,
        **filters: Unpack[RunFilters],
    ) -> BulkReport[Cancelled | AlreadyFinished]:
        """Cancel the unfinished runs that match."""
    def pause_many(
        self,
        reason: str | None = None,
        *,
        by: str | None = None,
        limit: int = 1000,
        cursor: str | None = None,
        dry_run: bool = False,
        **filters: Unpack[RunFilters],
    ) -> BulkReport[Accepted | Finished]:
        """Pause the runs that match, by default all that are queued, running or waiting: no new step starts."""
    def resume_many(
        self,
        *,
        by: str | None = None,
        limit: int = 1000,
        cursor: str | None = None,
        dry_run: bool = False,
        **filters: Unpack[RunFilters],
    ) -> BulkReport[Accepted | Finished]:
        """Continue the paused runs that match."""
    def signal_many(
        self,
        name: str,
        payload: Any = None,
        signal_id: str | None = None,
        *,
        limit: int = 1000,
        cursor: str | None = None,
        dry_run: bool = False,
        **filters: Unpack[RunFilters],
    ) -> BulkReport[Accepted | Duplicate | NotFound | Finished]:
        """Send a signal to the unfinished runs that match; a `signal_id` deduplicates it for each of them."""
    def schedule(
        self,
        id: str,
        invocation: Invocation[Any] | None = None,
        *,
        every: float | timedelta | None = None,
        cron: str | None = None,
        timezone: str = "UTC",
        overlap: Overlap = "skip",
        catch_up: str | CatchUp = "one",
        jitter: float | timedelta | None = None,
        pause: bool = False,
        queue: str | None = None,
        key: str | None = None,
        priority: int = 0,
        tags: dict[str, str] | None = None,
        deadline: float | timedelta | None = None,
        max_concurrency: int | None = None,
        durability: str | Durability | None = None,
        rules: RulesLike = ...,
    ) -> ScheduleHandle:
        """Start a run at every tick, durably. A schedule that exists under this id is changed to this definition."""
    def schedules(self) -> Sequence[ScheduleView]:
        """All schedules, by id."""
    def flows(self) -> Sequence[FlowView]:
        """The stored flows by name: the latest version of each, and since when it is the latest."""
    def store_flow(self, program: Program) -> str:
        """Store the definition of a flow, as the latest of its name, and return its version."""
    def get_flow(self, name: str) -> Any:
        """The flow that was stored last under a name, or as `name@version`, or the one with this version."""
    def deploy_flow(self, program: Program) -> Deployment:
        """Store a flow as the latest of its name, and make its schedules those that are in its file."""
    @overload
    def migrate_flow(
        self, id: str, flow: Program, *, before: str | None = None, by: str | None = None, dry_run: Literal[True]
    ) -> Sequence[str]: ...
    @overload
    def migrate_flow(
        self,
        id: str,
        flow: Program,
        *,
        before: str | None = None,
        by: str | None = None,
        dry_run: Literal[False] = False,
    ) -> RunHandle[Any]: ...
    def try_runs(self, flow: Program) -> Sequence[TriedRun]:
        """The open runs of other versions of a flow, each with why it could not be moved to this one. Moves none."""
    def prune(
        self,
        older_than: Duration,
        statuses: Statuses = ...,
        dry_run: bool = False,
        *,
        archive: str | os.PathLike[str] | None = None,
        grace: Duration = ...,
        items: bool = False,
    ) -> PruneReport:
        """Remove runs of these statuses that ended longer ago than that, with their children and large values."""
    def compact(self, id: str, *, dry_run: bool = False) -> CompactReport:
        """Remove from a finished run's journal what its steps emitted before they ended: chunks and progress."""
    def rebuild(self, *, dry_run: bool = False) -> RebuildReport:
        """Recompute the row of every run from its journal, report where the stored row differs, and replace it."""
    def export(self, id: str, *, redact: Sequence[str] = ..., always: Sequence[str] = ...) -> bytes:
        """A run as one file, a capsule: its journal with its children, its large values, and which program wrote it."""
    def import_run(self, data: bytes) -> RunView:
        """Import a run from a capsule into this store, for reading and replaying; no engine executes it."""

class Engine(Client):
    name: str
    resources: Mapping[str, Any]
    def __init__(
        self,
        store: str | os.PathLike[str] | Store = ...,
        programs: Iterable[Program | str] = ...,
        *,
        name: str | None = None,
        durability: str | Durability = "sync",
        reuse: Reuse = "return_existing",
        stream: str | StreamMode = "immediate",
        max_concurrency: int = 1000,
        threads: int | None = None,
        queues: Iterable[Queue] = ...,
        serves: Iterable[str] | None = None,
        steps: Iterable[Step[..., Any]] = ...,
        schedules: Iterable[Schedule] = ...,
        limits: Limits = ...,
        recovery: Recovery = ...,
        leases: str | Leases | None = None,
        retention: Retention | None = None,
        telemetry: Telemetry = ...,
        rules: RulesLike = ...,
        codecs: Iterable[TypeCodec[Any]] = ...,
        resources: Mapping[str, Any] | None = None,
        executor: Executor | None = None,
        flows: Flows | None = None,
        redact: Sequence[str] = ...,
        clock: Clock | None = None,
        on_commit: OnCommit | None = None,
        on_complete: OnComplete | Sequence[OnComplete] | None = None,
    ) -> None: ...
    @classmethod
    def from_config(
        cls, path: str | os.PathLike[str] | None = None, programs: Iterable[Program | str] = ..., **options: Any
    ) -> Self:
        """An engine with the settings of perdure.yaml, or another file, and the environment; `options` override."""
    def serve_flow(self, flow: Program) -> str:
        """Store a flow as the latest of its name, and begin runs that are started by its name with it from now on."""
    def sweep(
        self,
        *,
        max_timers: int = 100,
        max_schedules: int = 100,
        max_runs: int = 100,
        until: float | timedelta | datetime | None = None,
    ) -> SweepReport:
        """Execute what is due and return, for hosts without a long-lived process; the Engine need not be open."""

def connect(
    store: str | os.PathLike[str] | Store = ...,
    *,
    leases: str | Leases | None = None,
    limits: Limits | None = None,
    codecs: Iterable[TypeCodec[Any]] = ...,
    clock: Clock | None = None,
    redact: Sequence[str] = ...,
) -> Client:
    """A client of a store: `with connect(url) as client` or `client = await connect(url)`."""
