"""Everything a caller can do with a store, except execute: one method for each, of the part that does it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, cast, get_args, overload

from perdure.client.base import StoreClient, delegated
from perdure.client.batches import Batches
from perdure.client.bulk import UNFINISHED, Bulk, BulkReport
from perdure.client.capsules import Capsules
from perdure.client.compacting import CompactReport, compact
from perdure.client.definitions import Definitions
from perdure.client.forking import Forks
from perdure.client.gateway import RunGateway
from perdure.client.handle import Handles, RunHandle
from perdure.client.messages import Messages
from perdure.client.pruning import Pruner
from perdure.client.queries import RunFilters
from perdure.client.reader import Reader
from perdure.client.rebuilding import Rebuilder
from perdure.client.resolving import Resolver
from perdure.client.resting import Answers, Until, check_answers
from perdure.client.schedules import Schedule, ScheduleHandle, Schedules
from perdure.client.starts import Start, Starts
from perdure.client.views import (
    RunResult,
)
from perdure.errors import AlreadyExists, UsageError
from perdure.kernel.events import RunStatus
from perdure.kernel.ids import check_id
from perdure.kernel.inbound import Accepted, AlreadyFinished, Cancelled, Duplicate, Finished, NotFound
from perdure.kernel.invocation import Invocation
from perdure.kernel.policies.durability import Durability
from perdure.kernel.policies.durations import Duration
from perdure.kernel.policies.rules import RulesLike
from perdure.kernel.policies.start_options import Reuse
from perdure.kernel.program import Program, is_program
from perdure.kernel.schedules.schedule import CatchUp, Overlap

if TYPE_CHECKING:
    from perdure.client.bulk_runs import BulkRuns
    from perdure.client.credentials import Credentials
    from perdure.client.migrating import Migrations, TriedRun

R = TypeVar("R")


class Client(Reader):
    """A connection to a store: starts runs for engines elsewhere to execute, sends them messages, and reads them."""

    def _assemble(self, base: StoreClient, gateway: RunGateway) -> None:
        super()._assemble(base, gateway)
        queries = self._queries
        self._messages = messages = Messages(base, gateway)
        self._handles = Handles(base, gateway, queries, messages)
        self._definitions = Definitions(base)
        self._starts = Starts(base, gateway, messages, self._handles, self._definitions)
        self._batches = Batches(base, gateway, self._starts)
        self._forks = Forks(base, gateway, self._handles)
        self._resolver = Resolver(base, gateway, messages, self._forks)
        self._bulk = Bulk(base, queries)
        self._schedules = Schedules(base, gateway, messages, self._starts, self._definitions)
        self._capsules = Capsules(base, gateway, queries)
        self._pruner = Pruner(base, self._capsules)
        self._rebuilder = Rebuilder(base)

    @property
    def _bulk_runs(self) -> BulkRuns:
        """What does one thing to many runs; made when it is needed, which is rare."""
        from perdure.client.bulk_runs import BulkRuns

        return BulkRuns(self._base, self._queries, self._messages, self._forks, self._starts, self._bulk)

    @property
    def _credentials(self) -> Credentials:
        """The tokens of the HTTP API."""
        from perdure.client.credentials import Credentials

        return Credentials(self._base)

    # --- serving ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Open for as long as an application lives: `FastAPI(lifespan=engine.lifespan)`."""
        async with self:
            yield

    def asgi(
        self, *, access: Callable[..., Any] | None = None, trace_url: str | None = None, metrics: bool = False
    ) -> Any:
        """An ASGI application with the HTTP API and the dashboard: `app.mount("/flows", engine.asgi(access=who))`.

        `access` says who a request is from, as a `perdure.server.Access`, or None where it is not known (401); it may
        be async. Without it only requests from this machine are served. `trace_url` is where traces are shown, with
        `{trace_id}` in it. `metrics`: whether callers with the permission `metrics` get them at `api/v1/metrics`. Needs
        `perdure[server]`.
        """
        # By name: the server is outside of the client, and an application without it does not load it.
        try:
            application = import_module("perdure.server.application")
        except ModuleNotFoundError as error:
            raise UsageError(f"asgi() needs {error.name}: pip install 'perdure[server]'") from error
        return application.app(self, access=access, trace_url=trace_url, metrics=metrics)

    # --- starting -----------------------------------------------------------------------------------------------------

    async def start(
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
        rules: RulesLike = (),
        tags: dict[str, str] | None = None,
        memo: bool = False,
        trace: str | None = None,
    ) -> RunHandle[R]:
        """Start a run durably and return a handle to it. If the id is in use, do what `reuse` says.

        A run in a `queue` begins when the limits of the queue allow it: higher `priority` first, and keys take turns.
        With `debounce` it begins once no other start under its id, or its queue and key, has come for that long; the
        starts that came before share one run, which begins with the last input. With `memo`, a graph that has run under
        this id runs again, and its nodes keep their results of then where they have the same arguments. `trace` is the
        trace that the caller is in, as a `traceparent`.
        """
        return await self._starts.start(
            Start(
                invocation,
                id=id,
                reuse=reuse,
                queue=queue,
                key=key,
                priority=priority,
                debounce=debounce,
                delay=delay,
                deadline=deadline,
                max_concurrency=max_concurrency,
                durability=durability,
                rules=rules,
                tags=tags,
                memo=memo,
                trace=trace,
            )
        )

    @overload
    async def start_many(self, starts: Iterable[Invocation[R]]) -> BulkReport[RunHandle[R]]: ...
    @overload
    async def start_many(self, starts: Iterable[Start[R]]) -> BulkReport[RunHandle[R]]: ...
    @overload
    async def start_many(self, starts: Iterable[Invocation[Any] | Start[Any]]) -> BulkReport[RunHandle[Any]]: ...
    async def start_many(self, starts: Iterable[Invocation[Any] | Start[Any]]) -> BulkReport[RunHandle[Any]]:
        """Start many runs in few commits: invocations, or `Start(invocation, id=..., ...)` with their own options.

        The report has one item for each, in order: a handle, or why the run could not be started. A start that fails
        does not stop the others. Where several have the same id, `reuse` decides, as it does for a run that exists.
        """
        return await self._starts.start_many(starts)

    start_batch = delegated("_batches", Batches.start_batch)

    @overload
    def handle(self, id: str) -> RunHandle[Any]: ...
    @overload
    def handle(self, id: str, program: Callable[..., Invocation[R]]) -> RunHandle[R]: ...
    def handle(self, id: str, program: Callable[..., Invocation[Any]] | None = None) -> RunHandle[Any]:
        """A handle of the run under an id, without starting anything: `engine.handle("order-123", fulfil)`.

        It follows the latest run under the id, also when that continues as another run. With the workflow, the result
        is typed, and decoded as the workflow returns it. Nothing is read here: methods of a handle whose run does not
        exist raise NoSuchRun.
        """
        if program is not None and not is_program(program):
            raise UsageError(
                f"handle({id!r}, ...) takes the workflow that was started, such as fulfil, not {program!r}"
            )
        return self._handles.of(check_id(id), "", program)

    async def run(
        self,
        invocation: Invocation[R] | Callable[..., Invocation[R]],
        *,
        until: Until | None = None,
        answers: Answers | None = None,
        by: str | None = None,
        **options: Any,
    ) -> RunResult[R]:
        """Start a run and wait until it ends, however it ends. Takes the options of `start`.

        With `until="rest"`, the default for graphs, it returns as soon as the run cannot continue without a person, and
        `.interrupts` lists what the run asks for. Called again with the same id and `answers={name: answer}`, it
        answers, as `by`, and waits again: `run(graph, id=..., answers=...)`, the program without arguments, takes the
        run that exists.
        """
        if until is not None and until not in get_args(Until):
            raise UsageError(f"until={until!r} is neither 'end' nor 'rest'")
        handle: RunHandle[R]
        if is_program(invocation) and options.get("id") is not None:
            if len(options) > 1:
                raise UsageError(
                    f"run({invocation.name}) without arguments continues a run that exists, and takes its id and "
                    f"nothing else of a start; to start one, write run({invocation.name}(...))"
                )
            program: Program | None = invocation
            handle = self.handle(options["id"], cast("Callable[..., Invocation[R]]", invocation))
            found, _ = await self._base.require(options["id"])
            if found.program != invocation.name:
                raise AlreadyExists(found.id, found.status, "return_existing", found.program)
        else:
            check_answers(answers or {}, getattr(invocation, "program", None))
            handle = await self.start(cast("Invocation[R]", invocation), **options)
            program = handle.program
        rests = program is not None and program.rests
        return await handle.outcome(until=until or ("rest" if rests else "end"), answers=answers, by=by)

    # --- messages -----------------------------------------------------------------------------------------------------

    signal = delegated("_messages", Messages.signal)
    feed = delegated("_messages", Messages.feed)
    approve = delegated("_messages", Messages.approve)
    reject = delegated("_messages", Messages.reject)
    cancel = delegated("_messages", Messages.cancel)
    pause = delegated("_messages", Messages.pause)
    resume = delegated("_messages", Messages.resume)
    checkpoint = delegated("_messages", Messages.checkpoint)
    resolve = delegated("_resolver", Resolver.resolve)

    # --- forks and retries --------------------------------------------------------------------------------------------

    fork = delegated("_forks", Forks.fork)
    time_travel = delegated("_forks", Forks.time_travel)
    retry = delegated("_forks", Forks.retry)

    @overload
    async def update_state(
        self, id: str, values: Mapping[str, Any], at: str | int | None = None, *, dry_run: Literal[True]
    ) -> Sequence[str]: ...
    @overload
    async def update_state(
        self, id: str, values: Mapping[str, Any], at: str | int | None = None, *, dry_run: Literal[False] = False
    ) -> RunHandle[Any]: ...
    async def update_state(
        self, id: str, values: Mapping[str, Any], at: str | int | None = None, *, dry_run: bool = False
    ) -> RunHandle[Any] | Sequence[str]:
        """Replace values of a graph's run by name, or by op path, and run again what depends on them.

        The run goes on under its id as a new incarnation. All else keeps its outcome, and nothing of it is executed.
        `at`: as if the run had only come so far, to before an op or an event. With `dry_run` nothing is written, and
        the op paths that would run again are returned. A run that is under way is refused: wait until it rests.
        """
        return await self._forks.update_state(id, values, at, dry_run=dry_run)

    # --- many runs at once --------------------------------------------------------------------------------------------

    async def retry_many(
        self,
        *,
        by: str | None = None,
        limit: int = 1000,
        cursor: str | None = None,
        dry_run: bool = False,
        **filters: Unpack[RunFilters],
    ) -> BulkReport[RunHandle[Any]]:
        """Retry the runs that match, by default those that failed: at most `limit`, newest first.

        Of several runs under one id only the latest counts.
        """
        return await self._bulk.each(
            "retry_many",
            filters,
            (RunStatus.FAILED,),
            lambda id: self.retry(id, by=by),
            limit,
            cursor,
            dry_run,
            latest=True,
        )

    async def cancel_many(
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
        return await self._bulk.each(
            "cancel_many", filters, UNFINISHED, lambda id: self.cancel(id, reason, by=by), limit, cursor, dry_run
        )

    async def pause_many(
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
        going = (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING)
        return await self._bulk.each(
            "pause_many", filters, going, lambda id: self.pause(id, reason, by=by), limit, cursor, dry_run
        )

    async def resume_many(
        self,
        *,
        by: str | None = None,
        limit: int = 1000,
        cursor: str | None = None,
        dry_run: bool = False,
        **filters: Unpack[RunFilters],
    ) -> BulkReport[Accepted | Finished]:
        """Continue the paused runs that match."""
        return await self._bulk.each(
            "resume_many", filters, (RunStatus.PAUSED,), lambda id: self.resume(id, by=by), limit, cursor, dry_run
        )

    async def signal_many(
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
        return await self._bulk.each(
            "signal_many",
            filters,
            UNFINISHED,
            lambda id: self.signal(id, name, payload, signal_id),
            limit,
            cursor,
            dry_run,
        )

    # --- schedules ----------------------------------------------------------------------------------------------------

    async def schedule(
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
        rules: RulesLike = (),
    ) -> ScheduleHandle:
        """Start a run at every tick, durably. A schedule that exists under this id is changed to this definition.

        Its runs are started with these options of `start`; `tags` are added to those of the schedule, and each run has
        `deadline` seconds. Without an invocation: a handle of the schedule as it is.
        """
        self._base.check_open()
        if invocation is None:
            if every is not None or cron is not None:
                raise UsageError(f"schedule({id!r}, ...) needs an invocation such as report(day='today')")
            return await self._schedules.get(id)
        return await self._schedules.declare(
            Schedule(
                id,
                invocation,
                every=every,
                cron=cron,
                timezone=timezone,
                overlap=overlap,
                catch_up=catch_up,
                jitter=jitter,
                pause=pause,
                queue=queue,
                key=key,
                priority=priority,
                tags=tags,
                deadline=deadline,
                max_concurrency=max_concurrency,
                durability=durability,
                rules=rules,
            )
        )

    schedules = delegated("_schedules", Schedules.list)

    # --- flows --------------------------------------------------------------------------------------------------------

    flows = delegated("_definitions", Definitions.flows)
    store_flow = delegated("_definitions", Definitions.store)
    get_flow = delegated("_definitions", Definitions.get)
    deploy_flow = delegated("_schedules", Schedules.deploy)

    @overload
    async def migrate_flow(
        self, id: str, flow: Program, *, before: str | None = None, by: str | None = None, dry_run: Literal[True]
    ) -> Sequence[str]: ...
    @overload
    async def migrate_flow(
        self,
        id: str,
        flow: Program,
        *,
        before: str | None = None,
        by: str | None = None,
        dry_run: Literal[False] = False,
    ) -> RunHandle[Any]: ...
    async def migrate_flow(
        self, id: str, flow: Program, *, before: str | None = None, by: str | None = None, dry_run: bool = False
    ) -> RunHandle[Any] | Sequence[str]:
        """Continue a run with another version of its flow, under its id as a new incarnation.

        What it has done stays done: its journal is replayed with the other version first, and CannotMigrate says what
        does not fit. `before` an op: that op and all that came after it run again. A run that failed is retried. Steps
        that are under way begin again. With `dry_run` nothing is written, and the steps that would run again are
        returned.
        """
        return await self._migrations.migrate(id, flow, before=before, by=by, dry_run=dry_run)

    async def try_runs(self, flow: Program) -> Sequence[TriedRun]:
        """The open runs of other versions of a flow, each with why it could not be moved to this one. Moves none."""
        self._base.check_open()
        return await self._migrations.try_runs(flow)

    @property
    def _migrations(self) -> Migrations:
        """Moves runs to other versions of their flows; made when it is needed, which is rare."""
        from perdure.client.migrating import Migrations

        return Migrations(self._base, self._gateway, self._messages, self._forks, self._handles, self._definitions)

    # --- upkeep -------------------------------------------------------------------------------------------------------

    prune = delegated("_pruner", Pruner.prune)

    async def compact(self, id: str, *, dry_run: bool = False) -> CompactReport:
        """Remove from a finished run's journal what its steps emitted before they ended: chunks and progress.

        Results, attempts with their errors, owners, signals and answers stay, so replay and audit still work. Events
        are renumbered. An unfinished run does not need this: its owner takes snapshots.
        """
        return await compact(self._base, id, dry_run=dry_run)

    rebuild = delegated("_rebuilder", Rebuilder.rebuild)
    export = delegated("_capsules", Capsules.export)
    import_run = delegated("_capsules", Capsules.import_run)
