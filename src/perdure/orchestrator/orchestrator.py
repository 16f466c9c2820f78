"""The runs of one process: begun, loaded, woken, let go. Advancing them is the drivers' work."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from contextvars import Context, copy_context
from typing import Any

from perdure.config import Limits, Recovery
from perdure.engine.driver import Driver
from perdure.engine.locks import Locker
from perdure.engine.payloads import Payloads
from perdure.engine.services import Services
from perdure.engine.steps import StepRunner
from perdure.engine.writer import Source, Writer
from perdure.errors import Corrupt, Diverged, PerdureError, StoreUnavailable, UnknownProgram
from perdure.kernel.codec import Codec
from perdure.kernel.commands import Program
from perdure.kernel.durability import durability
from perdure.kernel.events import Batch, RunClaimed, RunResumed, RunStarted, RunStatus, journal_size
from perdure.kernel.glance import glance, stands_imported
from perdure.kernel.ids import BUILT_IN
from perdure.kernel.projection import RunRow, row
from perdure.kernel.queues import Queue
from perdure.kernel.replay import Replay, open_replay
from perdure.kernel.rules import NONE, Resolver, Rules, resolver
from perdure.kernel.state import RunState, fold
from perdure.kernel.tracing import Tracing, explained, follow
from perdure.kernel.versions import Programs
from perdure.orchestrator.admissions import Admissions, may_begin
from perdure.orchestrator.lingering import Lingering
from perdure.orchestrator.locks import RunLocks
from perdure.orchestrator.parking import Parking
from perdure.orchestrator.snapshots import Snapshots
from perdure.orchestrator.tails import Tails
from perdure.orchestrator.telling import Teller
from perdure.ports.clock import Clock
from perdure.ports.journal import Append, Conflict, Full
from perdure.ports.store import Store

log = logging.getLogger("perdure")

Ready = tuple[RunStarted, str, Sequence[Batch]]

# A run that waits for longer than this leaves memory.
MOMENT = 1.0


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
    ) -> None:
        # The queues whose runs it takes; None: all of them, and runs that are in none.
        self.serves = serves
        self.store, self.programs, self.name, self.recovery, self.clock = store, programs, name, recovery, clock
        self.session = secrets.token_hex(4)
        self.loop = asyncio.get_running_loop()
        self._codec = codec
        self._rules = rules
        self._on_finished = on_finished
        self.on_finished = on_finished
        self._observer = on_commit
        self.payloads = Payloads(store.blobs, limits)
        self.active: dict[str, Driver] = {}
        self.snapshots = Snapshots(store, recovery.snapshot)
        self.parking = Parking(store, clock, on_finished)
        self.unreadable = self.parking.unreadable
        self._accepting: dict[str, asyncio.Future[None]] = {}
        self.loading: set[str] = set()
        self.admissions = Admissions()
        # Asked for again while they were being loaded: what was read of them may be too old already.
        self._again: set[str] = set()
        # Told when a run has left memory.
        self.left = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        # Called with the moment at which a run that left memory wants to be looked at.
        self.on_due: Callable[[float], None] = lambda at: None
        # Called when a run of a queue may wait for its turn, and when one has left memory.
        self.on_queued: Callable[[], None] = lambda: None
        self.on_room: Callable[[], None] = lambda: None
        # Steps of a run that was started here see the context variables of its caller, those of others ours.
        self._variables = copy_context()
        runner = StepRunner(codec, clock, max_concurrency, executor, locker)
        self.locks = RunLocks(self, locker)
        writer = Writer(store.journal, self._on_conflict, self._on_refused)
        self.services = Services(codec, clock, writer, runner, self.payloads, self._committed)
        self.teller, self.tails = Teller(self), Tails(self)
        self._lingering = Lingering(self.loop, self._let_go)
        self.closing = False

    # --- new runs -------------------------------------------------------------------------------------------------

    async def begin(self, run_id: str, started: RunStarted, recorded: RunStarted) -> None:
        """Start a run here. Returns when it is accepted, durably; raises Taken when its id is not free."""
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
        except Exception as error:
            if run_id in self.active:
                self._drop(self.active[run_id])
            self._accepting.pop(run_id).set_exception(error)

    # --- runs that come back --------------------------------------------------------------------------------------

    async def load(
        self, run_ids: Sequence[str], dead: Collection[str | None] = (), *, admit: Queue | None = None
    ) -> int:
        """Bring runs into memory that are ours, nobody's or of an owner in `dead`, and do what is due.

        Says how many came. A run that another owner has taken meanwhile is left to it, and one that waits in a queue
        stays there, unless it is to begin within the limits of that queue: `admit`.
        """
        known = (self.active, self.loading, self.unreadable, self.locks.regaining)
        wanted = [run_id for run_id in run_ids if not any(run_id in one for one in known)]
        self._again.update(self.loading.intersection(run_ids))
        if not wanted or self.closing:
            return 0
        self.loading.update(wanted)
        try:
            journals = await self.snapshots.read_many(wanted)
            ready: list[Ready] = []
            for run_id in wanted:
                batches = journals.get(run_id, [])
                try:
                    if isinstance(batches, Exception):
                        raise batches
                    if not batches and await self.store.runs.get(run_id) is None:
                        continue  # its start was refused, and there is no such run
                    started = await self.payloads.with_input(batches)
                    ready.append((started, run_id, await self.payloads.inflate(batches)))
                except StoreUnavailable:
                    raise  # out of reach is not damaged
                except PerdureError as error:
                    await self.parking.park_unread(run_id, str(error))

            def install() -> None:
                for one in ready:
                    self._install(*one, dead, admit)

            await self.in_callback(install)
            again = self._again.intersection(wanted)
            self._again -= again
            for run_id in again:
                self.load_soon(run_id)
            return len(ready)
        finally:
            self.loading.difference_update(wanted)
            self.left.set()

    def load_soon(self, run_id: str) -> None:
        """Load a run in the background."""
        if not self.closing:
            self.spawn(self._load_soon(run_id))

    async def _load_soon(self, run_id: str) -> None:
        """Load a run as soon as the store can be read; nothing happens if there is no such run."""
        try:
            if run_id in self.active:
                await self.tails.look([run_id])
            else:
                await self.load([run_id])
        except StoreUnavailable:
            await asyncio.sleep(MOMENT)
            self.load_soon(run_id)

    async def in_callback(self, function: Callable[[], Any]) -> None:
        """Call a function that drives bodies, which must not happen inside a task."""
        done: asyncio.Future[None] = self.loop.create_future()

        def call() -> None:
            try:
                function()
            finally:
                if not done.done():
                    done.set_result(None)

        self.loop.call_soon(call)
        await done

    def _install(
        self,
        started: RunStarted,
        run_id: str,
        batches: Sequence[Batch],
        dead: Collection[str | None],
        admit: Queue | None,
    ) -> None:
        """Replay a journal and go on from where it ends."""
        if self.closing or run_id in self.active:
            return
        # A glance first: only a likely owner should pay for replay.
        finished, owner = glance(batches)
        if finished:
            self.locks.ended(run_id)
            self._on_finished(row(fold(run_id, batches)))
            return
        if stands_imported(batches):
            self.parking.tried.add(run_id)
            return
        if owner not in (None, self.name) and owner not in dead:
            self.locks.left(run_id)
            return
        if self.serves is not None and started.queue not in self.serves:
            return
        try:
            replay = self.replay(started, run_id, batches)
            state = replay.state
            if (state.locks and not self.locks.regained(state)) or (
                state.epoch == 0 and not may_begin(self, state, admit)
            ):
                replay.close()
                return
            driver = self._driver(replay, batches, self._variables)
            self.active[run_id] = driver
            resumed = [RunResumed()] if state.parked is not None else []
            ours = state.session == self.session and state.owner == self.name and not resumed
            claim = [] if ours else [self._claim(state)]
            admitted = admit if state.epoch == 0 else None
            driver.adopt(*resumed, *claim, *self.locks.renewed(state), admit=admitted)
            self.locks.join(state)
            driver.wake()
            self.acknowledge(driver)
        except Exception as error:  # whatever it is, it stops this run and no other
            if run_id in self.active:
                self._drop(self.active[run_id])
            self.locks.left(run_id)
            state = fold(run_id, batches)
            # What has not begun waits for an engine that has its program, as anything that is queued.
            if state.epoch > 0 or not isinstance(error, UnknownProgram):
                self.spawn(self.parking.park(state, error))
            return
        if driver.idle:
            self._settle(driver)

    def _claim(self, state: RunState) -> RunClaimed:
        started, version = state.started, ""
        if started is not None and not started.version and state.epoch == 0 and not started.remote:
            # Started by name alone: it begins with the version that we have, and keeps to it.
            version = self.programs[started.program].version
        return RunClaimed(self.name, state.epoch + 1, self.session, version)

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
            again = self._open(started, run_id, batches, Tracing)
            raise explained(error, again, batches, self.programs) from None
        except BaseException:
            replay.close()
            raise
        return replay

    def _open(
        self, started: RunStarted, run_id: str, batches: Sequence[Batch] = (), kind: type[Replay] = Replay
    ) -> Replay:
        def rules(program: Program) -> Resolver | None:
            # A user's rules are about the user's steps: perdure's own programs have theirs.
            ours = program.name.startswith(BUILT_IN)
            return resolver(NONE if ours else self._rules, getattr(program, "rules", NONE), started, program.name)

        return open_replay(self.programs, run_id, started, self._codec, batches, rules, kind)

    def _driver(self, replay: Replay, batches: Sequence[Batch], variables: Context) -> Driver:
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
        if append.admit is not None:
            self.admissions.settle(driver.run_id)
        if self._observer is not None:
            self._observer(driver.id, append)
        for start in append.starts:
            if start.row is not None and start.row.queue:
                self.on_queued()
            elif start.row is not None and start.row.program in self.programs:
                self.load_soon(start.run_id)
        state = driver.state
        if state.uses_locks and self.active.get(driver.run_id) is driver:
            self.locks.committed(driver.run_id, append)
        if self.snapshots.due(state):
            self.snapshots.take(self, driver)
        if state.finished is not None or not state.running:
            self._settle(driver)

    def _settle(self, driver: Driver) -> None:
        """Let a run go that has ended, was given up, or waits for longer than a moment."""
        state = driver.state
        if state.finished is not None:
            if driver.saved:
                self._drop(driver)
                self._on_finished(row(state))
        elif driver.idle and (state.owner is None or state.status is RunStatus.WAITING):
            due = state.wake_at
            if state.owner is not None and due is not None and due <= self.clock.now() + MOMENT:
                return
            if state.owner is not None and (state.approvals or any(state.waits.values())):
                self._lingering.keep(driver)
            else:
                self._let_go(driver)
        elif state.locks:
            self.left.set()  # it stays, and may be at rest

    def _let_go(self, driver: Driver) -> None:
        """Let a run that waits leave memory, unless it has gone on meanwhile."""
        state = driver.state
        if driver.closed or not driver.idle or not (state.owner is None or state.status is RunStatus.WAITING):
            return
        due = state.wake_at
        self._drop(driver)
        if due is not None:
            self.on_due(due)

    def settle(self, driver: Driver) -> None:
        """See to a run that has taken in what others wrote."""
        self.acknowledge(driver)
        if driver.idle:
            self._settle(driver)

    def _drop(self, driver: Driver) -> None:
        if self.active.get(driver.run_id) is driver:
            del self.active[driver.run_id]
            self.admissions.settle(driver.run_id)
            if driver.queue:
                self.on_room()
            self.left.set()
            if driver.state.uses_locks:
                over = driver.state.finished is not None and driver.saved
                (self.locks.ended if over else self.locks.left)(driver.run_id)
        self._lingering.forget(driver)
        driver.close()

    def restart(self, driver: Driver) -> None:
        """Take a run out of memory at once, and bring it back from its journal."""
        self._drop(driver)
        self.load_soon(driver.run_id)

    def _on_refused(self, source: Source, error: Exception) -> bool:
        """Whether a source keeps what it has and tries again. A run that was never accepted does not."""
        accepted = self._accepting.pop(source.run_id, None)
        if accepted is None and isinstance(error, StoreUnavailable):
            return True
        assert isinstance(source, Driver)
        self._drop(source)
        if accepted is None:
            log.error("run %r cannot be written, and stands still: %s", source.id, error)
            self._on_finished(Corrupt(f"what the store holds of run {source.id!r}", str(error), source.run_id))
        elif not accepted.done():
            accepted.set_exception(error)
            if isinstance(error, StoreUnavailable):
                self.load_soon(source.run_id)  # it may be in the store: a lost reply looks the same
        return False

    def _on_conflict(self, source: Source, conflict: Conflict | Full) -> None:
        """Somebody else appended: take their events in, and see whether the run is still ours."""
        assert isinstance(source, Driver)
        if isinstance(conflict, Full):
            self.admissions.settle(source.run_id, full=conflict)
            self._drop(source)
            return
        accepted = self._accepting.pop(source.run_id, None)
        if accepted is not None:
            self._drop(source)
            if not accepted.done():
                accepted.set_exception(Taken())
            return
        self.tails.read(source)

    async def give_up_unread(self, driver: Driver, reason: str) -> None:
        """Let go of a run whose journal turns out to be damaged."""
        self._drop(driver)
        await self.parking.park_unread(driver.run_id, reason)

    def rejoin(self, old: Driver, started: RunStarted, batches: Sequence[Batch]) -> None:
        """Go on with the same attempts on the journal as it is now, or let the run go if it has another owner."""
        if self.active.get(old.run_id) is not old:
            return
        state = fold(old.run_id, batches)
        mine = state.session == self.session and state.owner == self.name
        if state.finished is not None or state.parked is not None or not mine or self.closing:
            if state.finished is not None:
                self.locks.ended(old.run_id)
            self._drop(old)
            if state.finished is not None or state.parked is not None:
                self._on_finished(row(state))
            elif state.epoch < old.state.epoch:
                # It was the claim that met the conflict, and nobody else has claimed: claim again.
                self.load_soon(old.run_id)
            return
        try:
            replay = self.replay(started, old.run_id, batches)
        except Exception as error:
            self._drop(old)
            self.spawn(self.parking.park(state, error))
            return
        new = self._driver(replay, batches, old.variables)
        self.active[old.run_id] = new
        new.succeed(old)
        self.locks.join(state)
        self.acknowledge(new)

    # --- ending ---------------------------------------------------------------------------------------------------

    def abort(self) -> None:
        """Let go of everything at once, without another word to the store."""
        self.closing = self.services.closing = True
        for driver in list(self.active.values()):
            self._drop(driver)
        for task in list(self._tasks):
            task.cancel()
        self.tails.end()
        self.locks.close()
        self.services.runner.close()

    async def close(self) -> None:
        """Finish what is nearly done, hand over the rest, and leave nothing unwritten."""
        self.closing = self.services.closing = True
        deadline = self.loop.time() + self.recovery.grace
        while any(d.attempts.running for d in self.active.values()) and self.loop.time() < deadline:
            busy = [a.task for d in self.active.values() for a in d.attempts.running.values() if a.task is not None]
            if not busy:
                break
            await asyncio.wait(busy, timeout=deadline - self.loop.time(), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)
        self._lingering.end()
        await self.in_callback(self._release_all)
        try:
            async with asyncio.timeout(self.recovery.grace + 4):
                await self.services.writer.drained()
        except TimeoutError:
            log.warning("the store did not take the last events; runs go on from what it has")
        self.abort()

    def _release_all(self) -> None:
        for driver in list(self.active.values()):
            driver.release(self.name)

    def spawn(self, work: Any) -> None:
        """Do something in the background, until the end."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
