"""The runs of one process: entered, advanced, evicted. Advancing them is the drivers' work.

The parts share a `session`, with the table of runs (`residency`). None of them holds this object: each is given the
session, and the actions that it uses.

- `loader` brings runs into memory, by one `enter`; `admission` and `recovery` decide when.
- `inbox` delivers messages to runs in memory, `catch_up` what other processes have appended to their journals.
- `locks` takes and regains locks, `quarantine` tries suspects, `parking` parks, `warm` keeps idle runs for a moment.

This module decides what happens to a run after each commit: it is evicted when it waits or has ended, and stopped when
the engine itself raises. It also decides for all runs at once: they are suspended when the lease ends, and handed over
when the engine is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextvars import copy_context

from perdure.config import Limits, Recovery
from perdure.engine.definitions import DefinedPrograms
from perdure.engine.driver import Driver
from perdure.engine.large_values import Payloads
from perdure.engine.lease_deadline import LeaseDeadline
from perdure.engine.locks import Locker
from perdure.engine.probe import Probe
from perdure.engine.runtime import Services
from perdure.engine.steps import StepRunner
from perdure.engine.turns import Turns
from perdure.engine.writer import Source, Writer
from perdure.errors import Corrupt, NotDecodable, StoreUnavailable
from perdure.kernel.chunks import open_chunks
from perdure.kernel.events import RunClaimed, RunStarted, RunStatus
from perdure.kernel.policies.rules import NONE, Rules
from perdure.kernel.policies.versions import Programs
from perdure.kernel.projection import row
from perdure.kernel.state import RunState
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.raised import contained
from perdure.kernel.values.redaction import Redaction
from perdure.logs import log
from perdure.orchestrator.catch_up import CatchUp
from perdure.orchestrator.inbox import Inbox
from perdure.orchestrator.loader import Loader
from perdure.orchestrator.locks import RunLocks
from perdure.orchestrator.observer import Observer
from perdure.orchestrator.parking import Parking
from perdure.orchestrator.quarantine import Quarantine
from perdure.orchestrator.residency import (
    ABSENT,
    ACTIVE,
    PARKED_HERE,
    PARKING,
    STARTING,
    Entered,
    EntryRequest,
    RunSlot,
    RunStart,
)
from perdure.orchestrator.session import SUSPENDED, OrchestratorConfig, Session, log_fault
from perdure.orchestrator.snapshots import SnapshotReader, SnapshotTaker
from perdure.orchestrator.warm_cache import WarmCache
from perdure.ports.clock import Clock
from perdure.ports.journal import Append, Conflict, Full
from perdure.ports.leases import holder
from perdure.ports.store import Store

# How many steps the log names that closing waits for.
NAMED = 5


class Taken(Exception):
    """The id of a new run belongs to another one."""


class Orchestrator:
    """Owns runs and advances them."""

    def __init__(
        self,
        store: Store,
        programs: Programs,
        *,
        name: str,
        max_concurrency: int,
        limits: Limits,
        recovery: Recovery,
        codec: Codec,
        executor: Executor | None,
        clock: Clock,
        locker: Locker,
        observer: Observer,
        rules: Rules = NONE,
        serves: Sequence[str] | None = None,
        threads: int | None = None,
        definitions: DefinedPrograms | None = None,
        redaction: Redaction | None = None,
        config: OrchestratorConfig = OrchestratorConfig(),  # noqa: B008 - frozen
    ) -> None:
        self.session = session = Session(name, store, programs, clock, recovery, serves, observer, config)
        self.name, self.store, self.programs, self.clock, self.serves = name, store, programs, clock, serves
        self.recovery, self.wakeups, self.runs = recovery, session.wakeups, session.runs
        self.loop, self.spawn, self.in_callback = session.loop, session.spawn, session.in_callback
        self.definitions = definitions or DefinedPrograms(programs)
        self._config, self._observer = config, observer
        # The runs in memory, with their drivers.
        self.active, self._starting = self.runs.drivers, self.runs.of(STARTING)
        self.lease_deadline = LeaseDeadline(self.loop, self.suspend, lambda: self.idle)
        runner = StepRunner(codec, clock, max_concurrency, executor, self.lease_deadline, locker, threads)
        writer = Writer(
            store.journal, self._on_conflict, self._on_refused, self._on_broken, self.lease_deadline, observer.probes
        )
        runner.writer = writer
        self.payloads = Payloads(store.blobs, limits)
        self.services = Services(
            codec,
            clock,
            writer,
            runner,
            self.payloads,
            self._started,
            self._committed,
            self.broke,
            observer.abandoned,
            session.sources.store,
            self.definitions,
            probes=observer.probes,
            redaction=redaction or Redaction(),
        )
        self.turns = Turns(store.leases, clock, holder(name, session.id))
        self.snapshots = SnapshotReader(store, recovery.snapshot)
        self.snapshot_taker = SnapshotTaker(self.snapshots, session, self.broke)
        self.parking = Parking(session, self.turns)
        self.inbox = Inbox(session, self.broke)
        self.warm = WarmCache(session, self._evict_idle)
        self.locks = RunLocks(
            session,
            locker,
            self.parking,
            enter_soon=self.enter_soon,
            restart=self.restart,
            broke=self.broke,
            stop_broken=self.stop_broken,
        )
        self.quarantine = Quarantine(session, self.parking, self.locks, enter=self.enter, broke=self.broke)
        self.loader = Loader(
            session,
            self.services,
            rules=rules,
            deadline=self.lease_deadline,
            snapshots=self.snapshots,
            parking=self.parking,
            quarantine=self.quarantine,
            locks=self.locks,
            turns=self.turns,
            evict=self.evict,
            settle=self._caught_up,
            enter_soon=self.enter_soon,
            stop_broken=self.stop_broken,
        )
        self.catch_up = CatchUp(
            session,
            self.payloads,
            self.turns,
            self.locks,
            self.parking,
            inflate=self.loader.inflate,
            rejoin=self.loader.rejoin,
            settle=self._caught_up,
            evict=self.evict,
            broke=self.broke,
        )

    # --- runs come in ---------------------------------------------------------------------------------------------

    async def start(self, run_id: str, started: RunStarted, recorded: RunStarted) -> None:
        """Start a run here. Returns when it is accepted, durably; raises Taken when its id is not free."""
        if self.session.suspended:
            raise StoreUnavailable(self.store.url, SUSPENDED)
        await self.loader.enter(EntryRequest((run_id,), new=RunStart(started, recorded, copy_context())))

    async def enter(self, request: EntryRequest) -> Entered:
        """Bring runs into memory: started, due, taken over, admitted, messaged, or on trial."""
        return await self.loader.enter(request)

    def enter_soon(self, run_id: str) -> None:
        """Bring a run into memory in the background; if it is in memory, have it catch up."""
        if self.session.at_work:
            self.spawn(self._enter_soon(run_id))

    async def _enter_soon(self, run_id: str) -> None:
        try:
            if run_id in self.active:
                await self.catch_up.poll([self.active[run_id]])
            else:
                await self.enter(EntryRequest((run_id,)))
        except StoreUnavailable:
            await asyncio.sleep(self._config.store_retry)
            self.enter_soon(run_id)

    def restart(self, driver: Driver) -> None:
        """Evict a run, and load it again from its journal."""
        self.evict(driver)
        self.enter_soon(driver.run_id)

    # --- what the writer reports ----------------------------------------------------------------------------------

    def _started(self, driver: Driver) -> None:
        # Before its first steps are called: a caller that waits for the result is then notified from memory.
        if driver.run_id in self._starting:
            self.runs.move(self.runs.slot(driver.run_id), ACTIVE)

    def _committed(self, driver: Driver, append: Append) -> None:
        run_id, runs = driver.run_id, self.runs
        if self.turns.lost:
            self.loader.turn_over(run_id)
        if append.admit is not None:
            runs.admit(runs.slot(run_id))
        if self._observer.committed is not None:
            self._observer.committed(driver.id, append)
        claimed = self.session.claimed
        if claimed is not None and any(type(e) is RunClaimed for b in append.batches for e in b.events):
            claimed.add(run_id)
        for start in append.starts:
            if start.row is not None and start.row.queue:
                self.wakeups.queued()
            elif start.row is not None and start.row.program in self.programs:
                if self.session.sweep_began is not None:
                    self.session.sweep_began.set()
                else:
                    self.enter_soon(start.run_id)
        if self.quarantine.on_trial:
            self.quarantine.committed(run_id, append)
        state = driver.state
        if state.uses_locks and runs.has(driver):
            self.locks.committed(run_id, append)
        if state.finished is None and state.snapshot_due(self.recovery.snapshot):
            self.snapshot_taker.take_soon(driver)
        if state.finished is not None and driver.saved:
            ended = append.row or row(state)
            if self._observer.completed is not None:
                self._observer.completed(ended)
            self.evict(driver)
            self._observer.finished(ended)
        elif not state.running:
            self._settle(driver)

    def _settle(self, driver: Driver) -> None:
        """Evict a run that has ended, was released, or waits for longer than a moment."""
        state = driver.state
        if state.finished is not None:
            if driver.saved:
                self.evict(driver)
                self._observer.finished(row(state))
        elif driver.idle and _may_leave(state):
            due = state.wake_at
            if self.session.sweep_began is not None:
                self._evict_idle(driver)
                return
            if state.owner is not None and due is not None and due <= self.clock.now() + self._config.idle:
                return
            # A message often comes soon, and so does the report of a chunk: a map has many of them.
            soon = state.approvals or any(state.waits.values()) or open_chunks(state)
            if state.owner is not None and soon and self.runs.has(driver):
                self.warm.keep(driver)
            else:
                self._evict_idle(driver)
        elif state.locks:
            self.runs.settled.set()  # it stays, and may be at rest

    def _caught_up(self, driver: Driver) -> None:
        """See to a run that has caught up with what other processes appended."""
        self.session.acknowledge(driver)
        if driver.idle:
            self._settle(driver)

    def _evict_idle(self, driver: Driver) -> None:
        """Evict a run that waits, unless it has continued meanwhile."""
        state = driver.state
        try:
            if driver.closed or not driver.idle or not _may_leave(state):
                return
            due = state.wake_at
            self.evict(driver)
            if due is not None:
                self.wakeups.due(due)
        except BaseException as error:
            self.broke(driver, contained(error))

    def evict(self, driver: Driver) -> None:
        """Take a run out of memory."""
        if self.runs.has(driver):
            self._leave(self.runs.slot(driver.run_id), driver, parking=False)
        self._close_driver(driver)

    def _leave(self, slot: RunSlot, driver: Driver, *, parking: bool) -> None:
        self.runs.move(slot, PARKING if parking else ABSENT)
        if self._observer.probes:
            self._observer.probes.tell(Probe.left, driver.run_id)
        if driver.queue:
            self.wakeups.room()
        if self.quarantine.on_trial:
            self.quarantine.acquit(slot.run_id)
        if driver.state.uses_locks:
            over = driver.state.finished is not None and driver.saved
            (self.locks.release_all if over else self.locks.forget)(slot.run_id)

    def _close_driver(self, driver: Driver) -> None:
        if driver.state.finished is not None:
            self.warm.forget(driver.id)
        try:
            driver.close()
        except BaseException as error:
            contained(error)
            log.error(
                "run %r: an error occurred while it was evicted; the run is not affected", driver.id, exc_info=error
            )

    # --- what goes wrong ------------------------------------------------------------------------------------------

    def _on_broken(self, source: Source, error: Exception) -> None:
        assert isinstance(source, Driver)
        self.broke(source, error)

    def broke(self, driver: Driver, error: Exception) -> None:
        """Code of the engine raised while it advanced a run: stop that run, and park it with the reason.

        The driver's state may be inconsistent. Only what is in the store counts.
        """
        if not self.runs.has(driver):
            # It was evicted, or another driver has replaced it: nothing of the run depends on it any more.
            log_fault(
                error, "run %r: an error occurred in a driver that was evicted; the run is not affected", driver.id
            )
            return
        slot = self.runs.slot(driver.run_id)
        self._leave(slot, driver, parking=True)
        self._close_driver(driver)
        self._park_broken(slot, error, driver.id)

    def stop_broken(self, run_id: str, error: Exception, id: str = "") -> None:
        """Park a run that is not in memory: an error inside the engine keeps it from getting there."""
        if self.runs.may(run_id, PARKING):
            slot = self.runs.slot(run_id)
            self.runs.move(slot, PARKING)
            self._park_broken(slot, error, id)
        else:
            log_fault(error, "run %r: another error inside the engine; the run had been stopped before", id or run_id)

    def _park_broken(self, slot: RunSlot, error: Exception, id: str) -> None:
        if not isinstance(error, NotDecodable | Corrupt):
            log_fault(error, "run %r is stopped by an error inside the engine, and is parked", id or slot.run_id)
        self.spawn(self._stop_broken(slot, error))

    async def _stop_broken(self, slot: RunSlot, error: Exception) -> None:
        run_id = slot.run_id
        try:
            if isinstance(error, Corrupt):  # a value that it needs is damaged or missing in the store
                await self.parking.park_unread(run_id, str(error))
                self.runs.refuse(slot, error)
                return
            if isinstance(error, NotDecodable):
                error = await self.loader.explained(run_id, error)
            found = await self.parking.park_broken(run_id, error, self.name, lambda: self.session.at_work)
            if found is None:
                self.runs.refuse(slot, error)
        except Exception as another:
            # The parking could not be written either: callers get the error, and this process leaves the run alone.
            log.error(
                "run_id %s is stopped by an error inside the engine, and could not be parked; restart the engine to "
                "try it again",
                run_id,
                exc_info=another,
            )
            self.runs.refuse(slot, error)
            self.parking.mark_unreadable(
                run_id, Corrupt(f"the run_id {run_id}", f"{type(error).__name__}: {error}", run_id)
            )
        finally:
            if slot.state is PARKING:
                self.runs.move(slot, PARKED_HERE)

    def _on_refused(self, source: Source, error: Exception) -> bool:
        """Whether a source keeps its events and tries again. A run that was never accepted does not."""
        assert isinstance(source, Driver)
        unavailable = isinstance(error, StoreUnavailable)
        if self.runs.has(source) and self.runs.refuse(self.runs.slot(source.run_id), error):
            self.evict(source)
            if unavailable:
                self.enter_soon(source.run_id)  # it may be in the store: a lost reply looks the same
        elif unavailable:
            return not self.session.suspended
        else:
            self.broke(source, error)
        return False

    def _on_conflict(self, source: Source, conflict: Conflict | Full) -> None:
        """Another process appended: catch up with its events, and see whether the run is still ours."""
        assert isinstance(source, Driver)
        if not self.runs.has(source):
            return
        slot = self.runs.slot(source.run_id)
        if isinstance(conflict, Full):
            self.runs.admit(slot, conflict)
            self.evict(source)
        elif slot.state is STARTING:
            self.runs.refuse(slot, Taken())
            self.evict(source)
        else:
            self.turns.lose(source.run_id)
            self.catch_up.begin(source)

    # --- ending ---------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether nothing here would have to stop if the lease ended: no run is in memory, or holds or wants a lock."""
        return self.runs.empty and self.locks.idle

    def suspend(self) -> None:
        """Stop everything: the lease ends, and other orchestrators may take over. What is in the store stays."""
        if self.session.at_work:
            log.warning(
                "orchestrator %s: no heartbeat succeeded in time; stopped %d run%s (another orchestrator may take "
                "over). Resumes when a heartbeat succeeds",
                self.name,
                len(self.active),
                "" if len(self.active) == 1 else "s",
            )
            if self._observer.probes:
                self._observer.probes.tell(Probe.lease_lost)
            self._stop()

    def _stop(self) -> None:
        self.session.suspended = True
        self._evict_all()

    def _evict_all(self) -> None:
        for driver in list(self.active.values()):
            self.evict(driver)
        for slot in list(self._starting.values()):
            self.runs.move(slot, ABSENT)
        self.locks.close()

    def resume(self) -> bool:
        """Work again after having been suspended; False when it was not, or may not."""
        if not self.session.suspended or self.session.closing or self.session.retired.is_set():
            return False
        self.session.suspended = False
        log.warning("orchestrator %s: heartbeat succeeded again; resuming its runs", self.name)
        return True

    def retire(self) -> None:
        """Stop for good: another process has this name."""
        log.warning(
            "orchestrator %s: another process was started under this name; this one has stopped for good. Give "
            "each process a name of its own",
            self.name,
        )
        self._stop()
        self.session.retired.set()

    def abort(self) -> None:
        """Evict everything at once, and write nothing more."""
        self._begin_to_close()
        self.lease_deadline.cancel()
        self._evict_all()
        self.session.cancel_tasks()
        self.services.runner.close()

    def _begin_to_close(self) -> None:
        self.session.closing = self.services.closing = True

    async def close(self, grace: float, meanwhile: Callable[[], Awaitable[None]]) -> BaseException | None:
        """Release idle runs, give steps under way the grace to end, then release the rest.

        A run whose step still works is not released, and heartbeats continue, until its step has ended or is given up,
        so that no other process begins it meanwhile. `meanwhile` is called now and then. A cancellation or a Ctrl-C
        ends the grace at once, and is returned for the caller to raise.
        """
        self._begin_to_close()
        interrupted: BaseException | None = None
        began = self.loop.time()
        try:
            self.warm.evict_all()
            await self.locks.hand_over()
            await self.in_callback(self._hand_over)
            await self._finish_steps(began, grace, meanwhile)
        except (asyncio.CancelledError, KeyboardInterrupt) as error:
            interrupted = error
        try:
            await self._give_up_steps(self.loop.time() - began)
            await self.in_callback(self._release_all)
            async with asyncio.timeout(self._config.drain):
                await self.services.writer.drained()
                await self.session.sources.stored()
        except TimeoutError:
            log.warning(
                "orchestrator %s: closed before the store took the last events; another orchestrator continues its "
                "runs from what the store has, and calls steps without a recorded outcome again",
                self.name,
            )
        except (asyncio.CancelledError, KeyboardInterrupt) as error:
            interrupted = error
        self.abort()
        return interrupted

    async def _finish_steps(self, began: float, grace: float, meanwhile: Callable[[], Awaitable[None]]) -> None:
        """Wait for steps under way, and hand each run over as soon as none of its own is left."""
        logged, polled = False, began
        while working := [driver for driver in self.active.values() if driver.working]:
            now = self.loop.time()
            left = began + grace - now
            if left <= 0:
                return
            if not logged and now - began >= self._config.close_log:
                logged = True
                log.warning(
                    "orchestrator %s: closing; it starts nothing, and waits up to %.0f s for %s. A second signal or "
                    "cancelling close() ends the wait",
                    self.name,
                    left,
                    self._under_way(),
                )
            tasks = [task for driver in working for task in driver.attempts.tasks()]
            wait = min(left, self._config.close_poll)
            if tasks:
                await asyncio.wait(tasks, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            else:  # its result is being stored, or its start is on its way to the store
                await asyncio.sleep(min(wait, 0.01))
            await self.in_callback(self._hand_over)
            if self.loop.time() >= polled + self._config.close_poll:
                await meanwhile()
                polled = self.loop.time()

    async def _give_up_steps(self, after: float) -> None:
        """Stop the steps that have not ended. Their outcomes are dropped, even if they continue in a thread."""
        drivers = [driver for driver in self.active.values() if driver.attempts.running]
        if drivers and after >= self._config.close_log:
            log.warning(
                "orchestrator %s: closing; stopped waiting after %.0f s for %s. Their outcomes are dropped, and the "
                "next owner calls them again. Give them more time with Recovery(grace=...)",
                self.name,
                after,
                self._under_way(),
            )
        stopped = [task for driver in drivers for task in driver.attempts.tasks()]
        self.services.runner.withdraw(everything=True)
        for driver in drivers:
            driver.attempts.flush_channels()
            driver.attempts.cancel_running()
        if stopped:
            # Steps on the loop clean up before another process begins them.
            await asyncio.wait(stopped, timeout=self._config.close_log)

    def _under_way(self) -> str:
        """A description of the running steps, those that began first by name."""
        now = self.loop.time()
        running = [(a, driver.id) for driver in self.active.values() for a in driver.attempts.running.values()]
        running.sort(key=lambda one: one[0].began)
        words = [f"{a.call.command.op} of run {id!r} (since {now - a.began:.0f} s)" for a, id in running[:NAMED]]
        more = [f"{len(running) - NAMED} more"] if len(running) > NAMED else []
        return f"{len(running)} step{'s' * (len(running) != 1)}: " + ", ".join(words + more)

    def _hand_over(self) -> None:
        """Release runs that have no step under way here: the next owner continues them."""
        self.services.runner.withdraw()
        for driver in list(self.active.values()):
            if not driver.working and not driver.stale:
                self._release(driver)

    def _release_all(self) -> None:
        self.session.leaving = True
        for driver in list(self.active.values()):
            self._release(driver)

    def _release(self, driver: Driver) -> None:
        try:
            driver.release(self.name)
        except BaseException as error:
            contained(error)
            # The next owner finds it as after a crash.
            log.error("run %r could not be released; it is taken over as after a crash", driver.id, exc_info=error)
            self.evict(driver)


def _may_leave(state: RunState) -> bool:
    """Whether an idle run is not needed in memory: it has no owner, waits, or is paused and has no lock to renew."""
    if state.owner is None or state.status is RunStatus.WAITING:
        return True
    return state.status is RunStatus.PAUSED and not (state.locks or state.lock_waits)
