"""The runs of one process: begun, loaded, woken, let go. Advancing them is the drivers' work."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextvars import Context, copy_context
from typing import Any

from perdure.config import Limits, Recovery
from perdure.engine.driver import Driver
from perdure.engine.large_values import Payloads
from perdure.engine.lease_deadline import LeaseDeadline
from perdure.engine.locks import Locker
from perdure.engine.runtime import Services
from perdure.engine.steps import StepRunner
from perdure.engine.turns import Turns
from perdure.engine.writer import Source, Writer
from perdure.errors import Corrupt, Diverged, StoreUnavailable
from perdure.kernel.divergence.recorder import Recorder, explained, follow
from perdure.kernel.events import Batch, RunClaimed, RunStarted, RunStatus, journal_size
from perdure.kernel.ids import BUILT_IN, REMOTE
from perdure.kernel.policies.durability import durability
from perdure.kernel.policies.rules import NONE, Resolver, Rules, resolver
from perdure.kernel.policies.versions import Programs
from perdure.kernel.program import Program
from perdure.kernel.projection import RunRow, row
from perdure.kernel.replay import Replay, open_replay
from perdure.kernel.state import RunState, fold
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.raised import contained
from perdure.orchestrator.admissions import Admissions
from perdure.orchestrator.catch_up import Tails
from perdure.orchestrator.inbox import Teller
from perdure.orchestrator.loader import Loading
from perdure.orchestrator.locks import RunLocks
from perdure.orchestrator.parking import Parking
from perdure.orchestrator.quarantine import Quarantine
from perdure.orchestrator.snapshots import Snapshots
from perdure.orchestrator.warm_cache import Lingering
from perdure.ports.clock import Clock
from perdure.ports.journal import Append, Conflict, Full
from perdure.ports.leases import holder
from perdure.ports.store import Store

log = logging.getLogger("perdure")

# A run that waits for longer than this leaves memory.
MOMENT = 1.0
# How long leaving may take before the log says what it waits for, and how many steps that names.
QUIET_SECONDS = 1.0
NAMED = 5
# How often it looks meanwhile at runs that it owns and has not in memory.
MEANWHILE_SECONDS = 0.5
# How long the store may take for the last events.
DRAIN_SECONDS = 5.0

_SUSPENDED = "no heartbeat of this engine succeeded in time, and it begins nothing until one does; try again"


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
        on_finished: Callable[[RunRow | Corrupt], None],
        rules: Rules = NONE,
        on_commit: Callable[[str, Append], None] | None = None,
        serves: Sequence[str] | None = None,
        threads: int | None = None,
    ) -> None:
        # The queues whose runs it takes; None: all of them, and runs that are in none.
        self.serves = serves
        self.store, self.programs, self.name, self.recovery, self.clock = store, programs, name, recovery, clock
        self.session = secrets.token_hex(4)
        self.loop = asyncio.get_running_loop()
        self._codec = codec
        self._rules = rules
        # Told of every run that has ended, is parked, or cannot be read any more.
        self.on_finished = on_finished
        # Told of every run that has ended by what was written here.
        self.on_completed: Callable[[RunRow], None] | None = None
        self._observer = on_commit
        self.payloads = Payloads(store.blobs, limits)
        self.active: dict[str, Driver] = {}
        self.snapshots = Snapshots(store, recovery.snapshot)
        self.parking = Parking(store, clock, on_finished)
        self.unreadable = self.parking.unreadable
        self._accepting: dict[str, asyncio.Future[None]] = {}
        self.admissions = Admissions()
        # Whether runs that wait leave memory at once, and those that runs begin are left to others: in a sweep.
        self.brisk = False
        # The runs that were claimed here, where a sweep counts them.
        self.claimed: set[str] | None = None
        # Told when a run has left memory.
        self.left = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        # Called with the moment at which a run that left memory wants to be looked at.
        self.on_due: Callable[[float], None] = lambda at: None
        # Called when somebody else has claimed a run under our name.
        self.on_namesake: Callable[[], None] = lambda: None
        # Called when a run comes into memory and none is there.
        self.on_busy: Callable[[], None] = lambda: None
        # Called when a run of a queue may wait for its turn, and when one has left memory.
        self.on_queued: Callable[[], None] = lambda: None
        self.on_room: Callable[[], None] = lambda: None
        # Called in a sweep when a run has begun another one.
        self.on_begun: Callable[[], None] = lambda: None
        # Steps of a run that was started here see the context variables of its caller, those of others ours.
        self.variables = copy_context()
        # Whether nothing is advanced here for the time being, and whether another process has our name by now.
        self.suspended = False
        self.retired = asyncio.Event()
        self.lease_deadline = LeaseDeadline(self.loop, self.suspend, lambda: self.idle)
        runner = StepRunner(codec, clock, max_concurrency, executor, self.lease_deadline, locker, threads)
        self.locks = RunLocks(self, locker)
        writer = Writer(store.journal, self._on_conflict, self._on_refused, self._on_broken, self.lease_deadline)
        self.services = Services(codec, clock, writer, runner, self.payloads, self._committed, self.broke)
        self.turns = Turns(store.leases, clock, holder(name, self.session))
        self.teller, self.tails = Teller(self), Tails(self)
        self.loading, self.quarantine = Loading(self), Quarantine(self)
        self.lingering = Lingering(self.loop, self._let_go)
        # Whether it is being left: it begins nothing then; and whether it has given up what was under way.
        self.closing = self.leaving = False

    # --- new runs -------------------------------------------------------------------------------------------------

    async def begin(self, run_id: str, started: RunStarted, recorded: RunStarted) -> None:
        """Start a run here. Returns when it is accepted, durably; raises Taken when its id is not free."""
        if self.suspended:
            raise StoreUnavailable(self.store.url, _SUSPENDED)
        if not self.active:
            self.on_busy()
        accepted: asyncio.Future[None] = self.loop.create_future()
        self._accepting[run_id] = accepted
        # In a callback: a body must not be driven from inside the caller's task.
        self.loop.call_soon(self._begin, run_id, started, recorded, copy_context())
        await accepted

    def _begin(self, run_id: str, started: RunStarted, recorded: RunStarted, variables: Context) -> None:
        try:
            replay = self._open(started, run_id)
            replay.state.started = recorded
            driver = Driver(self.services, replay, durability(started.durability), variables)
            self.active[run_id] = driver
            driver.record(recorded, RunClaimed(self.name, 1, self.session))
        except BaseException as error:
            if run_id in self.active:
                self.drop(self.active[run_id])
            self._accepting.pop(run_id).set_exception(contained(error))

    # --- runs that come back --------------------------------------------------------------------------------------

    async def in_callback(self, function: Callable[[], Any]) -> None:
        """Call a function that drives bodies, which must not happen inside a task."""
        done: asyncio.Future[None] = self.loop.create_future()

        def call() -> None:
            try:
                function()
            except BaseException as error:
                if not done.done():
                    done.set_exception(contained(error))
            finally:
                if not done.done():
                    done.set_result(None)

        self.loop.call_soon(call)
        await done

    def acknowledge(self, driver: Driver) -> None:
        """Say that we have seen what came from outside, if nothing else that we write says so."""
        state = driver.state
        if state.stirred and state.finished is None:
            driver.record(RunClaimed(self.name, state.epoch + 1, self.session))

    def replay(self, started: RunStarted, run_id: str, batches: Sequence[Batch]) -> Replay:
        """Replay a journal with its program. Raises Diverged where they do not fit. Call it from no task."""
        replay = self._open(started, run_id, batches)
        try:
            follow(replay, batches)
        except Diverged as error:
            replay.close()
            again = self._open(started, run_id, batches, Recorder)
            raise explained(error, again, batches, self.programs) from None
        except BaseException:
            replay.close()
            raise
        return replay

    def _open(
        self, started: RunStarted, run_id: str, batches: Sequence[Batch] = (), kind: type[Replay] = Replay
    ) -> Replay:
        def rules(program: Program) -> Resolver | None:
            # A user's rules are about the user's steps, remote ones among them; perdure's own programs have theirs.
            ours = program.name.startswith(BUILT_IN) and not program.name.startswith(REMOTE)
            return resolver(NONE if ours else self._rules, program.rules, started, program.name)

        return open_replay(self.programs, run_id, started, self._codec, batches, rules, kind)

    def driver(self, replay: Replay, batches: Sequence[Batch], variables: Context) -> Driver:
        started = replay.state.started
        assert started is not None
        size = journal_size(batches)
        return Driver(self.services, replay, durability(started.durability), variables, size)

    # --- what the writer reports ----------------------------------------------------------------------------------

    def _committed(self, driver: Driver, append: Append) -> None:
        if append.expected_next == 0:
            accepted = self._accepting.pop(driver.run_id, None)
            if accepted is not None and not accepted.done():
                accepted.set_result(None)
        if self.turns.lost:
            self.turn_over(driver.run_id)
        if append.admit is not None:
            self.admissions.settle(driver.run_id)
        if self._observer is not None:
            self._observer(driver.id, append)
        if self.claimed is not None and any(type(e) is RunClaimed for b in append.batches for e in b.events):
            self.claimed.add(driver.run_id)
        for start in append.starts:
            if start.row is not None and start.row.queue:
                self.on_queued()
            elif start.row is not None and start.row.program in self.programs:
                if self.brisk:
                    self.on_begun()
                else:
                    self.loading.load_soon(start.run_id)
        self.quarantine.committed(driver.run_id, append)
        state = driver.state
        if state.uses_locks and self.active.get(driver.run_id) is driver:
            self.locks.committed(driver.run_id, append)
        if self.snapshots.due(state):
            self.snapshots.take(self, driver)
        if state.finished is not None or not state.running:
            if state.finished is not None and self.on_completed is not None and driver.saved:
                self.on_completed(row(state))
            self._settle(driver)

    def _settle(self, driver: Driver) -> None:
        """Let a run go that has ended, was given up, or waits for longer than a moment."""
        state = driver.state
        if state.finished is not None:
            if driver.saved:
                self.drop(driver)
                self.on_finished(row(state))
        elif driver.idle and _may_leave(state):
            due = state.wake_at
            if self.brisk:
                self._let_go(driver)
                return
            if state.owner is not None and due is not None and due <= self.clock.now() + MOMENT:
                return
            if state.owner is not None and (state.approvals or any(state.waits.values())):
                self.lingering.keep(driver)
            else:
                self._let_go(driver)
        elif state.locks:
            self.left.set()  # it stays, and may be at rest

    def _let_go(self, driver: Driver) -> None:
        """Let a run that waits leave memory, unless it has gone on meanwhile."""
        state = driver.state
        try:
            if driver.closed or not driver.idle or not _may_leave(state):
                return
            due = state.wake_at
            self.drop(driver)
            if due is not None:
                self.on_due(due)
        except BaseException as error:
            self.broke(driver, contained(error))

    def settle(self, driver: Driver) -> None:
        """See to a run that has taken in what others wrote."""
        self.acknowledge(driver)
        if driver.idle:
            self._settle(driver)

    def drop(self, driver: Driver) -> None:
        """Take a run out of memory as it is."""
        if self.active.get(driver.run_id) is driver:
            del self.active[driver.run_id]
            self.admissions.settle(driver.run_id)
            if driver.queue:
                self.on_room()
            self.left.set()
            self.quarantine.left(driver.run_id)
            if driver.state.uses_locks:
                over = driver.state.finished is not None and driver.saved
                (self.locks.ended if over else self.locks.left)(driver.run_id)
        self.lingering.forget(driver)
        try:
            driver.close()
        except BaseException as error:
            contained(error)
            log.error("run %r did not leave memory in good order", driver.id, exc_info=error)

    def _on_broken(self, source: Source, error: Exception) -> None:
        assert isinstance(source, Driver)
        self.broke(source, error)

    def broke(self, driver: Driver, error: Exception) -> None:
        """Code of the engine raised while it advanced a run: stop that run, say so in its journal, and go on.

        What the driver has in memory may be half of something. Only what is in the store counts.
        """
        run_id = driver.run_id
        if self.active.get(run_id) is not driver:
            # It has left, or another driver has taken its place: nothing of the run depends on it any more.
            accepted = self._accepting.pop(run_id, None) if run_id not in self.active else None
            if accepted is not None and not accepted.done():
                accepted.set_exception(error)
            _log_fault(error, "run %r: an error in what is left of it in memory; it goes on", driver.id)
            return
        self.drop(driver)
        self.stop_broken(run_id, error, driver.id)

    def stop_broken(self, run_id: str, error: Exception, id: str = "") -> None:
        """Park a run that is not in memory: an error inside the engine keeps it from getting there."""
        _log_fault(error, "run %r is stopped by an error inside the engine, and is parked", id or run_id)
        accepted = self._accepting.pop(run_id, None)
        # Until it is parked nothing here loads it again.
        self.loading.under_way.add(run_id)
        self.spawn(self._stop_broken(run_id, error, accepted))

    async def _stop_broken(self, run_id: str, error: Exception, accepted: asyncio.Future[None] | None) -> None:
        found: RunRow | None = None
        try:
            found = await self.parking.park_broken(run_id, error, self.name, lambda: self.at_work)
        except Exception as another:
            # Not even that could be written: callers are told, and this process leaves the run alone.
            log.error("run_id %s stands still, and could not be parked", run_id, exc_info=another)
            self.unreadable[run_id] = Corrupt(f"the run_id {run_id}", f"{type(error).__name__}: {error}", run_id)
            self.on_finished(self.unreadable[run_id])
        finally:
            self.loading.under_way.discard(run_id)
            self.left.set()
            if accepted is not None and not accepted.done():
                if found is None:
                    accepted.set_exception(error)
                else:
                    accepted.set_result(None)  # it was accepted, durably, and is parked

    def restart(self, driver: Driver) -> None:
        """Take a run out of memory at once, and bring it back from its journal."""
        self.drop(driver)
        self.loading.load_soon(driver.run_id)

    def _on_refused(self, source: Source, error: Exception) -> bool:
        """Whether a source keeps what it has and tries again. A run that was never accepted does not."""
        accepted = self._accepting.pop(source.run_id, None)
        if accepted is None and isinstance(error, StoreUnavailable):
            return not self.suspended
        assert isinstance(source, Driver)
        self.drop(source)
        if accepted is None:
            log.error("run %r cannot be written, and stands still: %s", source.id, error)
            self.on_finished(Corrupt(f"what the store holds of run {source.id!r}", str(error), source.run_id))
        elif not accepted.done():
            accepted.set_exception(error)
            if isinstance(error, StoreUnavailable):
                self.loading.load_soon(source.run_id)  # it may be in the store: a lost reply looks the same
        return False

    def _on_conflict(self, source: Source, conflict: Conflict | Full) -> None:
        """Somebody else appended: take their events in, and see whether the run is still ours."""
        assert isinstance(source, Driver)
        if isinstance(conflict, Full):
            self.admissions.settle(source.run_id, full=conflict)
            self.drop(source)
            return
        accepted = self._accepting.pop(source.run_id, None)
        if accepted is not None:
            self.drop(source)
            if not accepted.done():
                accepted.set_exception(Taken())
            return
        self.turns.lose(source.run_id)
        self.tails.read(source)

    def turn_over(self, run_id: str) -> None:
        """What lost to appends of others is written, or given up: they need not wait any more."""
        if self.turns.settle(run_id):
            self.spawn(self.turns.give_back(run_id))

    async def give_up_unread(self, driver: Driver, reason: str) -> None:
        """Let go of a run whose journal turns out to be damaged."""
        self.drop(driver)
        await self.parking.park_unread(driver.run_id, reason)

    def rejoin(self, old: Driver, started: RunStarted, batches: Sequence[Batch]) -> None:
        """Go on with the same attempts on the journal as it is now, or let the run go if it has another owner."""
        if self.active.get(old.run_id) is not old:
            return
        state = fold(old.run_id, batches)
        mine = state.session == self.session and state.owner == self.name and not old.adopting
        if state.finished is not None or state.parked is not None or not mine:
            if state.finished is not None:
                self.locks.ended(old.run_id)
            if state.owner == self.name and state.session != self.session:
                self.on_namesake()
            self.drop(old)
            if state.finished is not None or state.parked is not None:
                self.turn_over(old.run_id)
                self.on_finished(row(state))
            elif state.epoch < old.state.epoch or old.adopting:
                # What met the conflict was the claim, or what follows from it: if nobody else has claimed, once more.
                self.loading.load_soon(old.run_id)
            else:
                self.turn_over(old.run_id)
            return
        try:
            replay = self.replay(started, old.run_id, batches)
        except BaseException as error:
            self.drop(old)
            self.spawn(self.parking.park(state, contained(error)))
            return
        new = self.driver(replay, batches, old.variables)
        self.active[old.run_id] = new
        try:
            new.succeed(old)
            self.locks.join(state)
            self.settle(new)
            if self.leaving:
                new.release(self.name)
        except BaseException as error:
            self.broke(new, contained(error))

    # --- ending ---------------------------------------------------------------------------------------------------

    @property
    def at_work(self) -> bool:
        """Whether runs are advanced here."""
        return not self.closing and not self.suspended

    @property
    def idle(self) -> bool:
        """Whether nothing here would have to stop if our lease ended: no run is in memory, or holds or wants a lock."""
        return not self.active and not self._accepting and self.locks.idle

    def suspend(self) -> None:
        """Stop everything: our lease ends, and others may go on with our runs. What is in the store stays."""
        if self.at_work:
            log.warning(
                "orchestrator %s: no heartbeat succeeded in time; stopped %d run%s (another orchestrator may take "
                "over). Resumes when a heartbeat succeeds",
                self.name,
                len(self.active),
                "" if len(self.active) == 1 else "s",
            )
            self._stop()

    def _stop(self) -> None:
        self.suspended = True
        for run_id in list(self._accepting):
            accepted = self._accepting.pop(run_id)
            if not accepted.done():
                accepted.set_exception(StoreUnavailable(self.store.url, _SUSPENDED))
        for driver in list(self.active.values()):
            self.drop(driver)
        self.tails.end()
        self.locks.close()

    def go_on(self) -> bool:
        """Work again after having been suspended; False when there is nothing to go on with."""
        if not self.suspended or self.closing or self.retired.is_set():
            return False
        self.suspended = False
        log.warning("orchestrator %s: heartbeat succeeded again; it resumes its runs", self.name)
        return True

    def retire(self) -> None:
        """Stop for good: another process has our name."""
        log.warning(
            "orchestrator %s: another process has been started under this name; this one has stopped for good. Give "
            "each process a name of its own",
            self.name,
        )
        self._stop()
        self.retired.set()

    def abort(self) -> None:
        """Let go of everything at once, without another word to the store."""
        self.closing = self.services.closing = True
        self.lease_deadline.cancel()
        for driver in list(self.active.values()):
            self.drop(driver)
        for task in list(self._tasks):
            task.cancel()
        self.tails.end()
        self.locks.close()
        self.services.runner.close()

    async def close(self, grace: float, meanwhile: Callable[[], Awaitable[None]]) -> BaseException | None:
        """Hand over what only waits, let steps under way go on for the grace, then hand over the rest.

        A run whose step still works is neither released nor left without signs of life until its step has ended or is
        given up, so that no other process begins it meanwhile. `meanwhile` is called now and then. A cancellation or
        a Ctrl-C ends the grace at once, and is returned for the caller to raise.
        """
        self.closing = self.services.closing = True
        interrupted: BaseException | None = None
        began = self.loop.time()
        try:
            self.lingering.end()
            await self.in_callback(self._hand_over)
            await self._finish_steps(began, grace, meanwhile)
        except (asyncio.CancelledError, KeyboardInterrupt) as error:
            interrupted = error
        try:
            await self._give_up_steps(self.loop.time() - began)
            await self.in_callback(self._release_all)
            async with asyncio.timeout(DRAIN_SECONDS):
                await self.services.writer.drained()
        except TimeoutError:
            log.warning(
                "orchestrator %s: the store did not take the last events in time; its runs go on elsewhere from what "
                "it has, and steps without a recorded outcome are called again",
                self.name,
            )
        except (asyncio.CancelledError, KeyboardInterrupt) as error:
            interrupted = error
        self.abort()
        return interrupted

    async def _finish_steps(self, began: float, grace: float, meanwhile: Callable[[], Awaitable[None]]) -> None:
        """Wait for steps under way, and hand each run over as soon as none of its own is left."""
        told, looked = False, began
        while working := [driver for driver in self.active.values() if driver.working]:
            now = self.loop.time()
            left = began + grace - now
            if left <= 0:
                return
            if not told and now - began >= QUIET_SECONDS:
                told = True
                log.warning(
                    "%r is being left: it begins nothing, and waits up to %.0f s for %s. A second signal ends the "
                    "wait, and so does cancelling close()",
                    self.name,
                    left,
                    self._under_way(),
                )
            tasks = [task for driver in working for task in driver.attempts.tasks()]
            wait = min(left, MEANWHILE_SECONDS)
            if tasks:
                await asyncio.wait(tasks, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            else:  # its result is being stored, or its start is on its way to the store
                await asyncio.sleep(min(wait, 0.01))
            await self.in_callback(self._hand_over)
            if self.loop.time() >= looked + MEANWHILE_SECONDS:
                await meanwhile()
                looked = self.loop.time()

    async def _give_up_steps(self, after: float) -> None:
        """Stop what has not ended. Nothing comes of it any more, even where it goes on in its thread."""
        drivers = [driver for driver in self.active.values() if driver.attempts.running]
        if drivers and after >= QUIET_SECONDS:
            log.warning(
                "%r gives up %s after %.0f s: what they return is dropped, and their runs go on elsewhere, where these "
                "steps begin again. Give them more time with Recovery(grace=...)",
                self.name,
                self._under_way(),
                after,
            )
        stopped = [task for driver in drivers for task in driver.attempts.tasks()]
        self.services.runner.withdraw(everything=True)
        for driver in drivers:
            driver.attempts.flush_channels()
            driver.attempts.cancel_running()
        if stopped:
            # Steps on the loop clean up before another process begins them.
            await asyncio.wait(stopped, timeout=QUIET_SECONDS)

    def _under_way(self) -> str:
        """What is under way, in words: the steps that began first."""
        now = self.loop.time()
        running = [(a, driver.id) for driver in self.active.values() for a in driver.attempts.running.values()]
        running.sort(key=lambda one: one[0].began)
        words = [f"{a.call.command.op} of run {id!r} (since {now - a.began:.0f} s)" for a, id in running[:NAMED]]
        more = [f"{len(running) - NAMED} more"] if len(running) > NAMED else []
        return f"{len(running)} step{'s' * (len(running) != 1)}: " + ", ".join(words + more)

    def _hand_over(self) -> None:
        """Let others go on with runs of which nothing is under way here."""
        self.services.runner.withdraw()
        for driver in list(self.active.values()):
            if not driver.working and not driver.stale:
                self._release(driver)

    def _release_all(self) -> None:
        self.leaving = True
        for driver in list(self.active.values()):
            self._release(driver)

    def _release(self, driver: Driver) -> None:
        try:
            driver.release(self.name)
        except BaseException as error:
            contained(error)
            # The next owner finds it as a crash would leave it.
            log.error("run %r could not be handed over in good order", driver.id, exc_info=error)
            self.drop(driver)

    def spawn(self, work: Any) -> None:
        """Do something in the background, until the end."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log_fault(error, "orchestrator %s: an unexpected error in the background; it goes on", self.name)


def _log_fault(error: BaseException, message: str, *args: object) -> None:
    """Log an error of the engine's own. A loop that has a handler for errors in callbacks is told as well."""
    log.error(message, *args, exc_info=error)
    loop = asyncio.get_running_loop()
    if loop.get_exception_handler() is not None:
        loop.call_exception_handler({"message": message % args, "exception": error, "fault": True})


def _may_leave(state: RunState) -> bool:
    """Whether a run at rest is not needed in memory: it is nobody's, waits, or is paused and has no lock to renew."""
    if state.owner is None or state.status is RunStatus.WAITING:
        return True
    return state.status is RunStatus.PAUSED and not (state.locks or state.lock_waits)
