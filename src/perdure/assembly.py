"""The engine: a client, an orchestrator and a store put together. Decides nothing itself."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import shlex
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Self, TypeVar

from perdure import loops
from perdure.authoring.code.lazy import lazy_programs
from perdure.authoring.code.step import Step
from perdure.builtin.schedules import ScheduledRuns, schedule_program
from perdure.client.base import StoreClient
from perdure.client.client import Client
from perdure.client.handle import run_result
from perdure.client.observing import Observers, OnCommit, OnComplete, check_on_commit, check_on_complete
from perdure.client.pruning import PruneReport
from perdure.client.schedules import Schedule
from perdure.client.starts import moment_of
from perdure.client.subscriptions import RunWaiters
from perdure.client.views import RunResult
from perdure.config import EMBEDDED_LEASE, Flows, Limits, Recovery, Retention, Telemetry
from perdure.engine.definitions import DefinedPrograms
from perdure.engine.duties import FunctionDuty
from perdure.engine.remote import Chunks, RemoteStep, Report
from perdure.engine.resources import resources_of
from perdure.engine.threads import DEFAULT_THREADS
from perdure.errors import PerdureError, UsageError
from perdure.gateway import LocalGateway
from perdure.inherited import check_main
from perdure.kernel.events import RunStatus
from perdure.kernel.ids import BATCH, BUILT_IN, BULK
from perdure.kernel.invocation import Invocation, check_invocation
from perdure.kernel.policies.durability import Durability
from perdure.kernel.policies.queues import Queue, check_queue
from perdure.kernel.policies.rules import RulesLike, check_program, rules_of, unknown_rule_names
from perdure.kernel.policies.start_options import Reuse
from perdure.kernel.policies.versions import Programs
from perdure.kernel.program import Program, is_program
from perdure.kernel.projection import RunRow
from perdure.kernel.streams import StreamMode, stream_mode
from perdure.kernel.values.codec import TypeCodec
from perdure.kernel.values.signatures import Signature
from perdure.logs import log
from perdure.orchestrator.membership import Membership
from perdure.orchestrator.observer import Observer as OrchestratorObserver
from perdure.orchestrator.orchestrator import Orchestrator
from perdure.orchestrator.retention import Pruner
from perdure.orchestrator.service import Service, ServiceConfig
from perdure.orchestrator.sweep import Counts, Sweep, SweepReport
from perdure.ports.clock import Clock
from perdure.ports.journal import Append
from perdure.ports.leases import Leases
from perdure.ports.store import Store
from perdure.settings.load import load_settings
from perdure.stored import StoredPrograms
from perdure.stores.machine import Name
from perdure.stores.open import open_store, with_leases
from perdure.telemetry.endpoint import MetricsApp
from perdure.telemetry.engine import EngineTelemetry, Gauges
from perdure.termination import Termination

R = TypeVar("R")
T = TypeVar("T")


DEFAULT_STORE = "sqlite:///perdure.db"
# Stores of one machine, which knows which of its processes are dead.
EMBEDDED = ("sqlite:", "file:", "memory:")
# How many names of runs are looked up at once among the stored definitions.
LOOKED_UP_AT_ONCE = 100


class Engine(Client):
    """Executes runs, and does all that a client does.

    An async context manager: entering it migrates an embedded store, recovers unfinished runs, and starts advancing
    runs; leaving it hands them over.
    """

    _service_config = ServiceConfig()
    _gateway_class = LocalGateway

    def __init__(
        self,
        store: str | os.PathLike[str] | Store = DEFAULT_STORE,
        programs: Iterable[Program | str] = (),
        *,
        name: str | None = None,
        durability: str | Durability = "sync",
        reuse: Reuse = "return_existing",
        stream: str | StreamMode = "immediate",
        max_concurrency: int = 1000,
        threads: int | None = None,
        queues: Iterable[Queue] = (),
        serves: Iterable[str] | None = None,
        steps: Iterable[Step[..., Any]] = (),
        schedules: Iterable[Schedule] = (),
        limits: Limits = Limits(),  # noqa: B008 - frozen
        recovery: Recovery = Recovery(),  # noqa: B008 - frozen
        leases: str | Leases | None = None,
        retention: Retention | None = None,
        telemetry: Telemetry = Telemetry(),  # noqa: B008 - frozen
        rules: RulesLike = (),
        codecs: Iterable[TypeCodec[Any]] = (),
        resources: Mapping[str, Any] | None = None,
        executor: Executor | None = None,
        flows: Flows | None = None,
        redact: Sequence[str] = (),
        clock: Clock | None = None,
        on_commit: OnCommit | None = None,
        on_complete: OnComplete | Sequence[OnComplete] | None = None,
    ) -> None:
        _check_kinds(store, programs, name, max_concurrency, limits, recovery, retention, telemetry)
        codecs = _each("codecs", codecs, TypeCodec, "TypeCodec(Money, encode=str, decode=Money.parse)")
        opened = with_leases(open_store(store), leases)
        if max_concurrency < 1:
            raise UsageError(f"max_concurrency={max_concurrency} must be at least 1")
        if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
            raise UsageError(
                f"threads={threads!r} must be a whole number of at least 1; leave it out for {DEFAULT_THREADS}"
            )
        if executor is not None and not hasattr(executor, "submit"):
            raise UsageError(f"Engine(executor={executor!r:.80}): give one with the interface of concurrent.futures")
        if clock is not None and not hasattr(clock, "now"):
            raise UsageError(
                f"Engine(clock={clock!r:.80}) takes a clock, with a method now(); leave it out for the system's"
            )
        if threads is not None and executor is not None:
            raise UsageError("threads=... has no effect with executor=..., which runs `def` steps; give one of them")
        # Without one it takes the name that it had the last time, when it is opened: what it owned is its own again.
        # Another process on the store is another orchestrator, and has another name.
        self.name = name or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(2)}"
        self._lasting: Name | None = None
        # The file whose workflows it executes, for the name, where that is not the script of the process.
        self.module = ""
        self._unnamed = name is None and not opened.url.startswith("memory:")
        self._rules = rules_of(rules, "Engine(rules=...)")
        self._serves = None if serves is None else _names(serves)
        given = list(programs)
        at_hand = _checked(program for program in given if not isinstance(program, str))
        lazy = lazy_programs([place for place in given if isinstance(place, str)], self._check_loaded)
        if twice := lazy.keys() & {program.name for program in at_hand}:
            raise UsageError(f"the program {min(twice)!r} is given twice, as a workflow and as the place of one")
        self._programs = Programs(at_hand, {**lazy, BULK: self._bulk_program})
        self._programs.on_renewed = self._renewed
        base = StoreClient(
            "Engine",
            opened,
            limits=limits,
            codecs=codecs,
            clock=clock,
            durability=durability,
            reuse=reuse,
            structures=StoredPrograms(flows),
            redact=redact,
        )
        base.queues = _queues_by_name(queues)
        base.items.reopen = _reopen(store)
        defined = self._defined_programs = DefinedPrograms(self._programs, self._resolve)
        self._local = self._gateway_class(base, defined, self._serves, self._ended_here)
        self._assemble(base, self._local)
        self._scheduled = ScheduledRuns(base, self._starts, self._messages)
        report, keep_chunk = self._messages.report, self._forks.keep_chunk
        chunks = [Chunks(name, self._programs, report, keep_chunk, base.items) for name in self._programs]
        for program in (*_remote_steps(steps, self._messages.report).values(), schedule_program(self._scheduled)):
            self._programs.add(program)
        for program in chunks:
            self._programs.add(program)
        self._stream_mode = stream_mode(stream)
        self.resources = resources_of(resources)
        """The resources of this engine's steps, by name."""
        self._check_rules()
        if recovery.lease is None and leases is None and opened.url.startswith(EMBEDDED):
            recovery = replace(recovery, lease=EMBEDDED_LEASE)
        self._max_concurrency, self._limits, self._recovery = max_concurrency, limits, recovery
        self._executor, self._threads, self._on_commit = executor, threads, check_on_commit(on_commit)
        self._commits: Observers[tuple[str, Append]] | None = None
        self._retention = retention
        self._telemetry = EngineTelemetry(telemetry, lambda: self.store, lambda: self._base.leases, self.clock)
        if (spans := self._telemetry.trace(base.redaction, lambda: self.name)) is not None:
            self._starts.tracing, self._messages.trace_of_caller = spans, spans.trace_of_caller
        self._declared = _declared(schedules)
        self._on_complete = check_on_complete(on_complete)
        self._completions: Observers[RunRow] | None = None
        self._orchestrator: Orchestrator | None = None
        self._membership: Membership | None = None
        self._service: Service | None = None
        # Names of unfinished runs whose definitions are not stored, and when they were looked up.
        self._not_stored: dict[str, float] = {}
        # Set when another process has been started under our name, and nothing is advanced here any more.
        self.superseded = asyncio.Event()

    @classmethod
    def from_config(
        cls, path: str | os.PathLike[str] | None = None, programs: Iterable[Program | str] = (), **options: Any
    ) -> Self:
        """An engine with the settings of perdure.yaml, or another file, and the environment; `options` override."""
        return cls(programs=programs, **(load_settings(path).options() | options))

    def _check_loaded(self, program: Program) -> None:
        """Check a program that came later, as those are that an engine is made with."""
        _ = _checked([program])
        check_program(program)
        _check_types(program, self)

    def _renewed(self, program: Program) -> None:
        self._check_loaded(program)
        log.warning(
            "the program %r was defined again after this engine was opened (%s): runs that start or are loaded from "
            "now on use the new definition. A run in progress that does not fit it is parked",
            program.name,
            program.defined.source if program.defined is not None else "",
        )

        if self._orchestrator is not None:
            self._orchestrator.session.sources.forget(program.name)
        if self._membership is not None and self._service is not None:
            self._describe()
            self._service.register()
            self._service.fit_check.code_changed()

    def _bulk_program(self) -> Program:
        """The program of bulk actions, which few engines ever execute."""
        from perdure.builtin.bulk import bulk_program

        return bulk_program(self._bulk_runs)

    async def _resolve(self, name: str, version: str) -> Program | None:
        """Make the program of a stored definition. It may use what an engine's own program of that name may use."""
        program = await self._definitions.defined(name, version, self._programs.get(name))
        if program is not None:
            self._check_loaded(program)
        return program

    async def serve_flow(self, flow: Program) -> str:
        """Store a flow as the latest of its name, and begin runs that are started by its name with it from now on.

        Runs in progress keep their version. Returns the version of the flow.
        """
        version = await self._definitions.store(flow)
        self._check_loaded(flow)
        self._programs.change(flow)
        if self._membership is not None and self._service is not None:
            self._describe()
            self._service.register()
        return version

    async def _keep_definitions(self) -> None:
        """Store the definitions of this engine's programs, and note which other definitions the store has."""
        for program in self._programs.every():
            if program.definition:
                await self._definitions.keep(program)
        await self._note_definitions()

    async def _note_definitions(self) -> bool:
        """Continue runs of programs whose definitions were stored since. Whether other runs still lack theirs."""
        programs, now, looked = self._programs, self.clock.now(), self._not_stored
        names = {name.removesuffix(BATCH) for name in await self.store.runs.programs()}
        unknown = {
            name
            for name in names
            if not name.startswith(BUILT_IN) and name not in programs and name not in programs.defined
        }
        self._not_stored = {name: at for name, at in looked.items() if name in unknown}
        longest_ago = sorted(unknown, key=lambda name: looked.get(name, -math.inf))[:LOOKED_UP_AT_ONCE]
        for name in longest_ago:
            if now - looked.get(name, -math.inf) < self._recovery.check_interval:
                break
            self._not_stored[name] = now
            if await self._definitions.has(name):
                del self._not_stored[name]
                programs.defined.add(name)
        if not unknown.isdisjoint(programs.defined) and self._service is not None:
            self._describe()
            self._service.register()
        return bool(self._not_stored)

    def _describe(self) -> None:
        """Tell the membership what to register: the programs that this engine has now."""
        assert self._membership is not None
        programs = self._programs
        versions = {name: ("1",) if name.startswith(BUILT_IN) else programs.versions(name) for name in programs}
        versions |= dict.fromkeys(programs.defined, ())  # any, as its definition says
        self._membership.describe(versions, self._serves, self._signatures_here)

    def _signatures_here(self) -> dict[str, Signature]:
        """The signatures of the loaded programs."""
        programs = [program for program in self._programs.newest() if not program.name.startswith(BUILT_IN)]
        found = ((program.name, program.call_signature(self.codec)) for program in programs)
        return {name: signature for name, signature in found if signature is not None}

    def _check_rules(self) -> None:
        programs = [program for program in self._programs.every() if not program.name.startswith(BUILT_IN)]
        for program in programs:
            check_program(program)
        if self._rules.rules and programs:
            for unknown in unknown_rule_names(self._rules, programs):
                log.warning("%s", unknown)

    async def open(self) -> Self:
        """Migrate, recover, and start advancing runs. `async with` does this too."""
        return await self._open(search=True)

    async def _open(self, *, search: bool) -> Self:
        check_main()
        if self._base.forked:
            self._base.check_process()
        if self._orchestrator is not None:
            raise UsageError("this Engine is already open; create another one to run two side by side")
        for program in self._programs.every():
            _check_types(program, self)
        await self._base.connect(migrate=True)
        try:
            self.store.check_durability(self._base.durability)
            await self._start(search)
        except (Exception, asyncio.CancelledError):
            if self._service is not None:
                await self._service.stop()
            if self._orchestrator is not None:
                self._orchestrator.abort()
            await self._close_observers()
            self._orchestrator = self._local.orchestrator = self._service = None
            self._base.set_watch(None)
            self._give_up_name()
            await self.store.close()
            raise
        return self

    async def _start(self, search: bool) -> None:
        if self._unnamed:
            self._lasting = Name(self.store.url, self._programs, self._serves, self.module)
            self.name = self._lasting.take()
        self._scheduled.open()
        orchestrator = self._orchestrator = self._local.orchestrator = Orchestrator(
            self.store,
            self._programs,
            name=self.name,
            max_concurrency=self._max_concurrency,
            limits=self._limits,
            recovery=self._recovery,
            codec=self.codec,
            executor=self._executor,
            threads=self._threads,
            clock=self.clock,
            locker=self._base.opened_locks.locker,
            observer=OrchestratorObserver(
                committed=self._committed,
                finished=self._base.resolve,
                completed=self._completed if self._on_complete else None,
                abandoned=lambda id, reason: orchestrator.spawn(self._abandon(id, reason)),
                probes=self._telemetry.probes,
            ),
            rules=self._rules,
            serves=self._serves,
            definitions=self._defined_programs,
            redaction=self._base.redaction,
            config=self._service_config.orchestrator,
        )
        self.superseded = orchestrator.session.retired
        orchestrator.services.stream = self._stream_mode
        orchestrator.services.resources = self.resources
        orchestrator.services.runner.items = self._base.items
        orchestrator.services.runner.tracing = self._telemetry.spans
        self._telemetry.opened(
            Gauges(
                lambda: orchestrator.services.runner.running,
                self._max_concurrency,
                orchestrator.active.__len__,
            )
        )
        if self._on_commit:
            self._commits = Observers("on_commit", self._on_commit, _commit)
        if self._on_complete:
            self._completions = Observers("on_complete", self._on_complete, self._completion, bounded=False)
        waiters = RunWaiters(
            self.store,
            orchestrator.active.__contains__,
            orchestrator.runs.unreadable,
            orchestrator.parking.is_tried,
        )
        orchestrator.parking.on_tried = waiters.refresh
        self._base.set_watch(waiters)
        self._base.followers.is_local = orchestrator.active.__contains__
        self._membership = Membership(
            self._base.leases,
            self.name,
            orchestrator.session.id,
            self._recovery.ttl,
            self.clock,
            orchestrator.lease_deadline,
            self._service_config.membership,
        )
        await self._membership.join()
        await self._keep_definitions()
        self._describe()
        self._service = Service(
            orchestrator,
            self._membership,
            self._base.queues,
            self._max_concurrency,
            self._service_config,
        )
        if self._retention is not None and search:
            pruner = Pruner(self._retention, self._base.leases, self.name, self._retain)
            self._service.repeat(pruner, first=pruner.first, interval=self._retention.every)
        self._service.find_programs = self._note_definitions
        self._service.repeat(FunctionDuty("keeping its name", self._keep_name), first=3600.0, interval=3600.0)
        self._service.start_heartbeat()
        if search:
            await self._service.takeover.at_start()
        else:
            await self._service.takeover.warn_of_unknown()
        self._service.start(search=search)
        for schedule in self._declared:
            try:
                _ = await self._schedules.declare(schedule)
            except UsageError as error:
                error.add_note(f"in Engine(schedules=[Schedule({schedule.id!r}, ...)])")
                raise
        await self._service.registered()

    def metrics(self) -> Any:
        """An ASGI application with the metrics for Prometheus: `app.mount("/metrics", engine.metrics())`.

        It lets everyone in: mount it where only your monitoring gets to. The engine counts from this call on, or from
        its start with `telemetry=Telemetry(metrics=True)`.
        """
        _ = self._telemetry.count()
        return MetricsApp(self._telemetry.exposition)

    async def sweep(
        self,
        *,
        max_timers: int = 100,
        max_schedules: int = 100,
        max_runs: int = 100,
        until: float | timedelta | datetime | None = None,
    ) -> SweepReport:
        """Execute what is due and return, for hosts without a long-lived process; the Engine need not be open.

        Processes at most so many due timers, ticks of schedules, and runs that are new or orphaned; advances each as
        far as it gets; and hands over what is not done at `until`, a moment or a number of seconds from now.
        """
        for name, limit in (("max_timers", max_timers), ("max_schedules", max_schedules), ("max_runs", max_runs)):
            if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
                raise UsageError(f"sweep({name}={limit!r}): a limit is a whole number, and not negative")
        now = self.clock.now()
        end = moment_of(until, now, "until")
        counts = Counts({"timers": max_timers, "schedules": max_schedules, "runs": max_runs})
        alone = self._orchestrator is None
        if alone:
            self._local.counts, self._scheduled.may_fire = counts, counts.tick
            _ = await self._open(search=False)
        try:
            assert self._orchestrator is not None
            assert self._membership is not None
            assert self._service is not None
            self._orchestrator.session.sweep_began = counts.begun if alone else None
            self._service.deadlines.stale = True
            _ = await self._service.deadlines.run_once(now)
            if alone:
                # Nothing else tries parked runs again: the newest of them.
                _ = await self._service.takeover.retry_parked(page=True)
            orchestrator = self._orchestrator
            one = Sweep(
                orchestrator.session,
                self._membership,
                self._service.admission,
                orchestrator.locks,
                orchestrator.enter,
                counts,
                alone=alone,
                is_held=self._scheduled.is_held,
            )
            return await one.run(None if end is None else asyncio.get_running_loop().time() + max(0.0, end - now))
        finally:
            if alone:
                # Its time is up: what it has under way is handed over at once.
                await self._close(0.0)
                self._local.counts, self._scheduled.may_fire = None, lambda run: True

    def _committed(self, id: str, append: Append) -> None:
        if self._base.followers.followed:
            self._base.followers.committed(append.run_id, append.next_seq, append.row is not None)
        if self._commits is not None:
            self._commits.notify(id, (id, append))

    async def _retain(self, retention: Retention) -> PruneReport:
        return await self.prune(retention.older_than, retention.statuses, archive=retention.archive)

    async def _abandon(self, id: str, reason: str) -> None:
        """Cancel the run of a remote step that its parent has given up. If that fails, its outcome is dropped."""
        try:
            await self.cancel(id, reason)
        except PerdureError as error:
            log.warning("%s", error)

    def _ended_here(self, row: RunRow) -> None:
        self._base.resolve(row)
        self._completed(row)

    def _completed(self, row: RunRow) -> None:
        # A child ends with its root, and a run that continues as another incarnation has not ended.
        own = row.program.startswith(BUILT_IN)
        if self._completions is not None and not (row.root or row.continued_as or own):
            self._completions.notify(row.id, row)

    async def _completion(self, row: RunRow) -> tuple[RunResult[Any]]:
        return (await run_result(self._base, row, self._local.find_program(row.program), row.id, row.run_id),)

    async def _close_observers(self) -> None:
        await self._telemetry.closed()
        commits, completions = self._commits, self._completions
        self._commits = self._completions = None
        if commits is not None:
            await commits.close()
        if completions is not None:
            await completions.close()

    async def close(self) -> None:
        """Hand over waiting runs, let running steps end within `Recovery(grace=...)`, and hand over the rest.

        Cancelling it ends the grace at once: attempts under way are cancelled, and their runs are handed over.
        """
        await self._close(self._recovery.grace)

    async def _close(self, grace: float) -> None:
        orchestrator, self._orchestrator = self._orchestrator, None
        self._local.orchestrator = None
        if orchestrator is None or self._service is None or self._membership is None or self._base.forked:
            return
        self._scheduled.close()
        self._local.leaving = True
        try:
            await self._service.stop_taking_runs()
            interrupted = await orchestrator.close(grace, self._service.release_due)
            self._local.leaving = False
            await self._service.stop()
            await self._membership.leave()
        finally:
            self._local.leaving = False
            await self._close_observers()
            self._give_up_name()
            await super().close()
        if interrupted is not None:
            raise interrupted

    def _give_up_name(self) -> None:
        if self._lasting is not None:
            self._lasting.release()
            self._lasting = None

    async def _tell_whose_it_is(self, id: str) -> RunRow | None:
        """The run under an id, if there is one. If another orchestrator owns it, log how long this may wait."""
        found = await self._base.find(id)
        if found is None:
            return None
        if self._membership is None or found[0].owner is None or found[0].status.finished:
            return found[0]
        owner, left = found[0].owner, self._membership.lease_left(found[0].owner)
        if left is not None:
            log.warning(
                "run %r belongs to orchestrator %s, and this process waits for its result. If the owner is gone, it "
                "waits for the lease of %s, at most %.0f s, and takes the run over",
                id,
                owner,
                owner,
                left,
            )
        return found[0]

    async def _keep_name(self) -> None:
        if self._lasting is not None:
            self._lasting.show()


def connect(
    store: str | os.PathLike[str] | Store = DEFAULT_STORE,
    *,
    leases: str | Leases | None = None,
    limits: Limits | None = None,
    codecs: Iterable[TypeCodec[Any]] = (),
    clock: Clock | None = None,
    redact: Sequence[str] = (),
) -> Client:
    """A client of a store: `async with connect(url) as client` or `client = await connect(url)`.

    If the engines keep their leases elsewhere, give their `leases`, so that locks are shared with them. `redact` is
    what its capsules and its HTTP API leave out, as in `["$.card", "*password*"]`.
    """
    opened = with_leases(open_store(store), leases)
    client = Client(opened, limits=limits, codecs=codecs, clock=clock, structures=StoredPrograms(), redact=redact)
    client._base.items.reopen = _reopen(store)
    return client


def _reopen(store: str | os.PathLike[str] | Store) -> Callable[[], Store] | None:
    """Opens the store once more, also in another process; None for a store that only this process has."""
    if not isinstance(store, str | os.PathLike) or str(store).startswith("memory:"):
        return None
    return partial(open_store, store)


def run(
    invocation: Invocation[R],
    *,
    id: str | None = None,
    store: str | os.PathLike[str] | Store = DEFAULT_STORE,
    programs: Iterable[Program | str] = (),
    progress: bool | None = None,
    resources: Mapping[str, Any] | None = None,
    **options: Any,
) -> R:
    """Run a workflow to its end and return its result, in the manner of `asyncio.run`.

    After a crash, the same command with the same `id` continues from the last step that finished.
    Takes the options of `Engine.start`. A progress line shows on a terminal unless `progress=False`.

    After Ctrl-C, and after SIGTERM if the process has no handler of its own for it, running steps get
    `Recovery.grace` to end; then the run is handed over, and the process ends as by the signal.
    """
    check_main()
    check_invocation(invocation, "run")
    if asyncio.events._get_running_loop() is not None:
        raise UsageError(
            "perdure.run() starts an event loop of its own, and one is already running here, as in a notebook or an "
            f"`async def`. Write: async with Engine(store, [{invocation.name}]) as engine: "
            f"result = await engine.run({invocation.name}(...)). Or use perdure.blocking, whose loop is in a thread"
        )
    if options.get("until", "end") != "end":
        raise UsageError(
            "perdure.run() returns the result, and waits for it; `await engine.run(..., until='rest')` comes back with "
            "what the run asks for"
        )
    termination = Termination()
    try:
        return loops.run(_run(termination, invocation, id, store, programs, progress, resources, options))
    finally:
        termination.end()


async def _run(
    termination: Termination,
    invocation: Invocation[R],
    id: str | None,
    store: str | os.PathLike[str] | Store,
    programs: Iterable[Program | str],
    progress: bool | None,
    resources: Mapping[str, Any] | None,
    options: dict[str, Any],
) -> R:
    from perdure.progress import progress_line

    known = [p for p in (invocation.program, *programs) if p is not None]
    with termination.heeded(Recovery().grace), progress_line(invocation.name, progress) as line:
        async with Engine(store, known, on_commit=line, resources=resources) as engine:
            if line is not None and id is not None:
                await line.recall(engine, id)
            before = await engine._tell_whose_it_is(id) if id is not None else None
            result = await engine.run(invocation, id=id, **{"until": "end", **options})
            if result.error is not None:
                if before is not None and before.status.finished and before.run_id == result.run_id:
                    result.error.add_note(ended_before(result.id, result.status))
                raise result.error
            return result.output


def ended_before(id: str, status: RunStatus) -> str:
    """The note for a caller who starts a run that failed or was cancelled before, and gets its error again."""
    return (
        f"Run {id!r} had already {'failed' if status is RunStatus.FAILED else 'been cancelled'}; this is its recorded "
        f"error, and nothing was executed. To retry it: perdure runs retry {shlex.quote(id)}, and then the same "
        "command again. To start over, use another id, or reuse='allow_if_failed'."
    )


async def _commit(commit: tuple[str, Append]) -> tuple[str, Append]:
    return commit


def _check_kinds(
    store: object,
    programs: object,
    name: object,
    max_concurrency: object,
    limits: object,
    recovery: object,
    retention: object,
    telemetry: object,
) -> None:
    """Refuse an argument in the wrong place, and say what to write."""
    if isinstance(store, Iterable | Invocation | Step) and not isinstance(store, str | os.PathLike):
        raise UsageError(
            f"Engine(store, programs): the store comes first, and {store!r:.80} is not one; "
            "write Engine('sqlite:///flows.db', [fulfil])"
        )
    if is_program(store):
        raise UsageError(f"Engine({store!r}): the store comes first; write Engine('sqlite:///flows.db', [...])")
    if isinstance(programs, str | Invocation) or not isinstance(programs, Iterable):
        raise UsageError(f"Engine(store, {programs!r:.80}): programs are a list; write Engine(store, [...])")
    if name is not None and not (isinstance(name, str) and name):
        raise UsageError(
            f"Engine(name={name!r:.80}): a name is a string, such as 'worker-1'; leave it out to have one generated"
        )
    if isinstance(max_concurrency, bool) or not isinstance(max_concurrency, int):
        raise UsageError(f"Engine(max_concurrency={max_concurrency!r:.80}): it is a whole number of steps")
    kinds = (("limits", limits, Limits), ("recovery", recovery, Recovery), ("telemetry", telemetry, Telemetry))
    for what, value, cls in kinds:
        if not isinstance(value, cls):
            raise UsageError(f"Engine({what}={value!r:.80}): write {what}={cls.__name__}(...)")
    if retention is not None and not isinstance(retention, Retention):
        raise UsageError(
            f"Engine(retention={retention!r:.80}): write retention=Retention(older_than=timedelta(days=30))"
        )


def _each(option: str, given: Iterable[T], cls: type[T], example: str) -> list[T]:
    """The items of an option that takes several of one class. Refuses anything else, and says what to write."""
    if isinstance(given, cls) or not isinstance(given, Iterable):
        raise UsageError(f"Engine({option}=...) takes a list; write {option}=[{example}], not {given!r:.80}")
    found = list(given)
    for one in found:
        if not isinstance(one, cls):
            raise UsageError(f"Engine({option}=[...]) takes {option}, and {one!r:.80} is not one; write {example}")
    return found


def _checked(programs: Iterable[Program]) -> list[Program]:
    found = list(programs)
    for program in found:
        if not is_program(program):
            raise UsageError(
                f"Engine(store, [...]) takes workflows, and {program!r} is not one; decorate it with "
                "@workflow, or derive its class from perdure.Program"
            )
        if program.name.startswith(BUILT_IN):
            raise UsageError(f"{program.name!r}: names that begin with {BUILT_IN!r} are perdure's own; choose another")
    return found


def _remote_steps(steps: Iterable[Step[..., Any]], report: Report) -> dict[str, Program]:
    found: dict[str, Program] = {}
    for step in _each("steps", steps, Step, "@step above the function"):
        program = RemoteStep(step.spec, report)
        if program.name in found:
            raise UsageError(f"two steps are named {step.name!r}; give one another name: @step(name=...)")
        found[program.name] = program
    return found


def _declared(schedules: Iterable[Schedule]) -> tuple[Schedule, ...]:
    found: dict[str, Schedule] = {}
    for schedule in _each("schedules", schedules, Schedule, 'Schedule("nightly", report(), cron="30 2 * * *")'):
        schedule.spec()
        if found.setdefault(schedule.id, schedule) is not schedule:
            raise UsageError(f"the schedule {schedule.id!r} is declared twice; give each an id of its own")
    return tuple(found.values())


def _queues_by_name(queues: Iterable[Queue]) -> dict[str, Queue]:
    found: dict[str, Queue] = {}
    for queue in _each("queues", queues, Queue, 'Queue("emails", concurrency=5)'):
        if found.setdefault(queue.name, queue) != queue:
            raise UsageError(f"the queue {queue.name!r} is given twice, with different limits; give it once")
    return found


def _names(serves: Iterable[str]) -> tuple[str, ...]:
    if isinstance(serves, str):
        raise UsageError(f"serves={serves!r} is one string; give the names of queues, such as serves=({serves!r},)")
    return tuple(check_queue(name) for name in serves)


def _check_types(program: Program, client: Client) -> None:
    """A result type that cannot be decoded is an error now, not when the first run ends."""
    client.codec.decoder(program.returns, f"the result of {program.name}")
