"""Bring runs into memory: started, or read, claimed and replayed. The only place that gives a run its driver.

A run that has lost its owner is claimed before it is replayed: replay may be what the owner died of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Generator, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import TypeVar

import msgspec

from perdure.engine.driver import Driver
from perdure.engine.lease_deadline import LeaseDeadline
from perdure.engine.probe import Probe
from perdure.engine.remote import Chunks
from perdure.engine.runtime import Services
from perdure.engine.turns import Turns
from perdure.errors import (
    BrokenProgram,
    Diverged,
    NotDecodable,
    PerdureError,
    StoreUnavailable,
    UnknownProgram,
    UnknownVersion,
    UsageError,
)
from perdure.kernel.claims import standing
from perdure.kernel.divergence.lost_steps import check_steps
from perdure.kernel.divergence.recorded_source import executing
from perdure.kernel.divergence.recorder import explain_parts, explained, follow, follow_parts
from perdure.kernel.divergence.repair import Repairs, proceed
from perdure.kernel.events import Batch, RunClaimed, RunReleased, RunStarted, events_in, journal_size
from perdure.kernel.history.retry_points import check_retry
from perdure.kernel.history.upgrade import fit_parts
from perdure.kernel.ids import BUILT_IN, REMOTE
from perdure.kernel.misfits import check_inbox
from perdure.kernel.plan import Plan, expire, is_late
from perdure.kernel.policies.durability import durability
from perdure.kernel.policies.queues import Queue
from perdure.kernel.policies.rules import NONE, Resolver, Rules, resolver
from perdure.kernel.policies.versions import Programs
from perdure.kernel.program import Program
from perdure.kernel.projection import child_rows, row
from perdure.kernel.replay import Replay, open_replay
from perdure.kernel.state import RunState, fold
from perdure.kernel.values.arguments import positional_names
from perdure.kernel.values.raised import contained
from perdure.orchestrator.admission import Turn, turn_of
from perdure.orchestrator.locks import RunLocks
from perdure.orchestrator.membership import follows
from perdure.orchestrator.parking import Parking
from perdure.orchestrator.quarantine import Quarantine
from perdure.orchestrator.residency import (
    ABSENT,
    ACTIVE,
    LOADING,
    MAY_ENTER,
    PARKED_HERE,
    PARKING,
    REGAINING_LOCKS,
    STARTING,
    SUSPECT,
    Entered,
    EntryRequest,
    RunSlot,
    RunStart,
)
from perdure.orchestrator.session import Session, log_fault
from perdure.orchestrator.snapshots import SnapshotReader
from perdure.ports.appends import extend
from perdure.ports.blobs import sources_of
from perdure.ports.journal import Append, Appended, Full, append_all

T = TypeVar("T")

# How often a claim is tried again at once that lost to another append.
CLAIM_TRIES = 3


async def _no_others(started: RunStarted, error: Exception) -> bool:
    return False


class Ready(msgspec.Struct):
    """A journal that was read, with its input in place."""

    run_id: str
    started: RunStarted
    batches: Sequence[Batch]
    # The claim in force at its end.
    claim: RunClaimed | None = None


class Loader:
    """Enters runs for one orchestrator.

    `evict` takes a driver out of memory, `settle` sees to a run that has caught up, `enter_soon` enters a run in the
    background, `stop_broken` parks a run that an error of the engine stopped.
    """

    def __init__(
        self,
        session: Session,
        services: Services,
        *,
        rules: Rules,
        deadline: LeaseDeadline,
        snapshots: SnapshotReader,
        parking: Parking,
        quarantine: Quarantine,
        locks: RunLocks,
        turns: Turns,
        evict: Callable[[Driver], None],
        settle: Callable[[Driver], None],
        enter_soon: Callable[[str], None],
        stop_broken: Callable[[str, Exception, str], None],
    ) -> None:
        self._session, self._runs, self._store, self._clock = session, session.runs, session.store, session.clock
        self._programs, self._observer, self._wakeups = session.programs, session.observer, session.wakeups
        self._services, self._payloads, self._snapshots = services, services.payloads, snapshots
        self._parking, self._quarantine, self._locks, self._turns = parking, quarantine, locks, turns
        self._rules, self._deadline = rules, deadline
        self._evict, self._settle, self._enter_soon, self._stop_broken = evict, settle, enter_soon, stop_broken
        self._repairs = Repairs(session.programs)
        # `on_missing` is called when a run lacks something that the process before this one had. `others_may_take`:
        # whether another live orchestrator may continue a run that lacks something here.
        self.on_missing: Callable[[], None] = lambda: None
        self.others_may_take: Callable[[RunStarted, Exception], Awaitable[bool]] = _no_others
        # Steps of a run that was started here see the context variables of its caller; all others see these.
        self._variables = copy_context()

    # --- the one entrance -----------------------------------------------------------------------------------------

    async def enter(self, request: EntryRequest) -> Entered:
        """Bring runs into memory and do what is due.

        A start returns when it is durable, and raises if it cannot be. A run that is known here already, or that
        another owner has claimed since, is left alone. A suspect is entered on trial only.
        """
        if request.new is not None:
            await self._start(request.run_ids[0], request.new)
            return Entered()
        slots = self._accept(request)
        if not slots:
            return Entered()
        if not self._runs.drivers:
            self._wakeups.busy()
        admitted: dict[str, asyncio.Future[Full | None]] = {}
        for slot in slots:
            self._runs.move(slot, LOADING)
            self._parking.entered_again.discard(slot.run_id)
            if request.admit is not None:
                slot.admitted = admitted[slot.run_id] = self._session.loop.create_future()
        read = ended = False
        try:
            count = await self._load_runs({slot.run_id: slot for slot in slots}, request)
            read = ended = True
            return Entered(count, admitted)
        except Exception:
            ended = True
            raise
        finally:
            for slot in slots:
                if slot.state is LOADING:
                    # A trial that could not be read is repeated.
                    self._runs.move(slot, ABSENT if read or slot.suspect is None else SUSPECT)
                if slot.state is not SUSPECT:
                    slot.suspect = None
                if slot.again and ended:  # else the loop is about to end
                    slot.again = False
                    self._enter_soon(slot.run_id)
            self._runs.settled.set()
            self._quarantine.begin()

    def _accept(self, request: EntryRequest) -> list[RunSlot]:
        """The slots of the runs that may be loaded now. A run that is being loaded is loaded again afterwards."""
        slots: list[RunSlot] = []
        if self._session.at_work:
            for run_id in dict.fromkeys(request.run_ids):
                slot = self._runs.slot(run_id)
                if slot.state in MAY_ENTER or (slot.state is SUSPECT and request.trial is not None):
                    slots.append(slot)
                elif slot.state is LOADING:
                    slot.again = True
        return slots

    # --- a driver for a run ---------------------------------------------------------------------------------------

    def _give_driver(
        self,
        slot: RunSlot,
        replay: Callable[[], Replay | None],
        act: Callable[[Driver], None],
        variables: Context,
        size: int = 0,
    ) -> Exception | None:
        """Give a run its driver and let it act, unless `replay` returns None. Call it in a callback, not in a task.

        An error evicts the driver and is returned: it stops this run and no other.
        """
        try:
            replayed = replay()
            if replayed is None:
                return None
            started = replayed.state.started
            assert started is not None
            driver = Driver(self._services, replayed, durability(started.durability), variables, size)
            if slot.state is STARTING:
                self._runs.begin(slot, driver)
            else:
                self._runs.move(slot, ACTIVE, driver)
            act(driver)
        except BaseException as raised:
            error = contained(raised)
            self._runs.refuse(slot, error)
            if slot.driver is not None:
                self._evict(slot.driver)
            elif slot.state is STARTING:
                self._runs.move(slot, ABSENT)
            return error
        return None

    async def _start(self, run_id: str, new: RunStart) -> None:
        sources = self._session.sources
        if (new.started.program, new.started.version) not in sources.ready:
            # Before the run has a slot: the engine may be suspended or closed meanwhile, or the caller cancelled.
            await sources.make_ready(new.started)
            if not self._session.at_work:
                raise self._session.not_accepted()
        if not self._runs.drivers:
            self._wakeups.busy()
        slot = RunSlot(run_id)
        self._runs.move(slot, STARTING)
        assert slot.accepted is not None
        # In a callback: a body must not be driven from inside the caller's task.
        self._session.loop.call_soon(self._begin, slot, new)
        await slot.accepted

    def _begin(self, slot: RunSlot, new: RunStart) -> None:
        if slot.state is not STARTING:
            return  # its caller was answered: this orchestrator was suspended meanwhile

        def opened() -> Replay:
            replay = self._open(new.started, slot.run_id)
            replay.state.started = new.recorded
            return replay

        def record(driver: Driver) -> None:
            driver.record(new.recorded, self._session.claim(driver.state))

        # A run that begins alone does not wait for the next turn of the loop to be written.
        writer, runner = self._services.writer, self._services.runner
        alone = len(self._runs.of(STARTING)) == 1 and runner.idle
        if alone:
            writer.hold()
        try:
            self._give_driver(slot, opened, record, new.variables)
        finally:
            if alone:
                writer.resume(now=True)

    def _install(self, slot: RunSlot, one: Ready, admit: Queue | None) -> None:
        """Replay a journal and continue from where it ends."""
        self._deadline.enforce()
        if not self._session.at_work or slot.state is not LOADING:
            return

        def replayed() -> Replay | None:
            began = self._session.loop.time()
            replay = self.replay(one.started, one.run_id, one.batches)
            if self._observer.probes:
                self._observer.probes.tell(Probe.replayed, replay.state.next_seq, self._session.loop.time() - began)
            turn = turn_of(replay.state, admit, self._clock.now())
            if not self._locks.has_all(replay.state):
                replay.close()
                self._runs.move(slot, REGAINING_LOCKS)
                self._locks.regain(slot, replay.state)
                return None
            if turn is not Turn.NOW:
                replay.close()
                if turn is Turn.AFTER_PARKING:
                    self._check_input(one.started)
                self._await_turn(slot, replay.state, turn)
                return None
            if replay.state.epoch == 0 and replay.state.kept is not None:
                # Retried by a client that does not have the code: nothing may be executed that does not fit it.
                self._check(one.run_id, one.started, one.batches)
            return replay

        def adopt(driver: Driver) -> None:
            state = driver.state
            if self._observer.probes:
                self._observer.probes.tell(Probe.entered, driver, one.batches)
            resumed = self._parking.unpark(state)
            claim = [] if self._session.owns(state) and not resumed else [self._claim(state)]
            admitted = admit if state.epoch == 0 else None
            driver.adopt(*resumed, *claim, *self._locks.renewed(state), admit=admitted)
            self._locks.join(state)
            driver.wake()
            self._session.acknowledge(driver)

        error = self._give_driver(slot, replayed, adopt, self._variables, journal_size(one.batches))
        if error is not None:
            self._locks.forget(one.run_id)
            if isinstance(error, NotDecodable) and error.divergence is None:
                error = explained(
                    error,
                    lambda kind: self._open(one.started, one.run_id, one.batches, kind),
                    one.batches,
                    self._programs,
                )
            state = fold(one.run_id, one.batches)
            if isinstance(error, BrokenProgram) and state.epoch == 0:
                self._runs.mark_left(one.run_id)  # it waits in its queue for an engine that can load its program
            elif isinstance(error, UnknownProgram | UnknownVersion) and not isinstance(error, BrokenProgram):
                self._runs.mark_left(one.run_id)
                self._session.spawn(self._leave_or_park(state, error, one))
            else:
                self._park(state, error, one)
        elif slot.driver is not None:
            self._settle(slot.driver)

    def rejoin(self, old: Driver, started: RunStarted, batches: Sequence[Batch]) -> None:
        """Continue the attempts of a driver on the present journal, or evict the run if it has another owner."""
        if not self._runs.has(old):
            return
        run_id = old.run_id
        slot, state = self._runs.slot(run_id), fold(run_id, batches)
        if state.finished is not None or state.parked is not None or old.adopting or not self._session.owns(state):
            if state.finished is not None:
                self._locks.release_all(run_id)
            if state.owner == self._session.name and state.session != self._session.id:
                self._wakeups.name_in_doubt()
            self._evict(old)
            unclaimed = state.epoch < old.state.epoch
            if state.finished is not None or (state.parked is not None and not unclaimed):
                self.turn_over(run_id)
                self._observer.finished(row(state))
            elif unclaimed or old.adopting:
                # The append that lost was the claim itself, or came right after it: claim again, unless another owner
                # has claimed. The same holds for a parked run that was about to continue.
                if state.parked is not None:
                    self._parking.entered_again.add(run_id)
                self._enter_soon(run_id)
            else:
                self.turn_over(run_id)
            return
        try:
            replay = self.replay(started, run_id, batches)
        except BaseException as raised:
            self._evict(old)
            self._park(state, contained(raised), Ready(run_id, started, batches))
            return

        def succeed(new: Driver) -> None:
            if self._observer.probes:
                self._observer.probes.tell(Probe.entered, new, batches)
            new.succeed(old)
            self._locks.join(state)
            self._settle(new)
            if self._session.leaving:
                new.release(self._session.name)

        error = self._give_driver(slot, lambda: replay, succeed, old.variables, journal_size(batches))
        if error is not None:
            self._stop_broken(run_id, error, old.id)

    def _park(self, state: RunState, error: Exception, one: Ready) -> None:
        """Park a run that the code of this process cannot continue. While a fix is being tried, nothing loads it."""
        if self._runs.may(state.run_id, PARKING):
            slot = self._runs.slot(state.run_id)
            self._runs.move(slot, PARKING)
            self._session.spawn(self._park_or_enter(slot, state, error, one))

    async def _leave_or_park(self, state: RunState, error: UnknownProgram | UnknownVersion, one: Ready) -> None:
        """Park a run with a child that cannot continue here; or release it, if another orchestrator has its program."""
        if not await self.others_may_take(one.started, error):
            self._park(state, error, one)
        elif self._session.owns(state):
            with suppress(StoreUnavailable):  # then it is found again, as one of ours
                released = extend(state, [RunReleased(self._session.name)], self._clock.now())
                await append_all(self._store.journal, [released])

    async def _park_or_enter(self, slot: RunSlot, state: RunState, error: Exception, one: Ready) -> None:
        try:
            written = await self.park_explained(state, error, one)
        finally:
            if slot.state is PARKING:
                self._runs.move(slot, PARKED_HERE)
        if written is False:
            # Another append came first: with it, the run may fit.
            self._enter_soon(state.run_id)

    async def park_explained(
        self, state: RunState, error: Exception, one: Ready, *, explained: bool = True
    ) -> bool | None:
        """Park a run, as `Parking.park_as`, with a change of the code that was tried, if there is one.

        `explained`: whether the error says what has changed already.
        """
        if isinstance(error, Diverged | NotDecodable):
            try:
                error = error if explained else await self._explained(error, one)
                error = await self._with_repair(error, one)
            except StoreUnavailable:
                raise
            except Exception as trouble:  # the run is parked in any case
                log_fault(trouble, "no fix could be tried for run %s; it is parked without one", one.run_id)
        return await self._parking.park(state, error)

    async def _explained(self, error: Diverged | NotDecodable, one: Ready) -> Exception:
        """The same error, explained, a part of the journal at a time."""
        _, name, version = executing(one.batches, error.op)
        if self._programs.serves(name, version):
            await self._session.in_thread(self._programs.find(name, version).source_map)
        opened = partial(self._open, one.started, one.run_id, one.batches)
        return await self._session.in_turns(explain_parts(error, opened, one.batches, self._programs))

    async def _with_repair(self, error: Exception, one: Ready) -> Exception:
        """The same divergence, with a change of the code that lets this run continue, if there is one."""
        sources, codec = await sources_of(self._store.blobs, one.batches), self._services.codec
        repairing = self._repairs.repair(error, one.batches, sources)
        fit: bool | None = None
        while isinstance(tried := await self._session.in_thread(partial(proceed, repairing, fit)), Programs):
            fit = await self._session.in_turns(fit_parts(tried, codec, one.run_id, one.started, one.batches, sources))
        return tried

    # --- replay ---------------------------------------------------------------------------------------------------

    def replay(self, started: RunStarted, run_id: str, batches: Sequence[Batch]) -> Replay:
        """Replay a journal with its program; raises Diverged if they do not fit. Call it in a callback, in no task."""
        return follow(lambda kind: self._open(started, run_id, batches, kind), batches, self._programs)

    def _open(
        self, started: RunStarted, run_id: str, batches: Sequence[Batch] = (), kind: type[Replay] = Replay
    ) -> Replay:
        def rules(program: Program) -> Resolver | None:
            # The rules of users are about their steps, including remote ones; perdure's own programs have their own.
            if isinstance(program, Chunks):
                program = program.graph(started)
            ours = program.name.startswith(BUILT_IN) and not program.name.startswith(REMOTE)
            return resolver(NONE if ours else self._rules, program.rules, started, program.name)

        sources = self._session.sources
        codec, recorded = self._services.codec, sources.recorded
        return open_replay(self._programs, run_id, started, codec, batches, rules, kind, recorded, sources.since)

    async def inflate(self, run_id: str, started: RunStarted, batches: Sequence[Batch]) -> Sequence[Batch]:
        """A journal with the offloaded values in place that its program needs; all, if it has none here."""
        opened = partial(self._open, started, run_id, batches)
        return await self._payloads.inflate_needed(batches, opened, self._session.in_callback)

    def check_in_parts(self, run_id: str, started: RunStarted, batches: Sequence[Batch]) -> Generator[None, None, bool]:
        """Raise the error that would keep a run from continuing here; the caller may pause between parts.

        Gives whether the run would go on at once, because its code has changed. Writes nothing, calls no step, and does
        not begin a body that has not begun. Call it in a callback, not in a task.
        """
        if not any(isinstance(event, RunClaimed) for event in events_in(batches)):
            self._check_input(started)
            return False
        opened = partial(self._open, started, run_id, batches)
        replay = yield from follow_parts(opened, batches, other_code=False)
        goes_on = bool(replay.pending)
        replay.close()
        return goes_on

    def _check_input(self, started: RunStarted) -> None:
        """Raise why a run that has not begun cannot begin with the input it has."""
        self._programs.find(started.program, started.version).check_input(started.input, self._services.codec)

    async def check_replay(self, run_id: str, batches: Sequence[Batch], origin: Sequence[Batch] = ()) -> None:
        """Raise the error that would keep a run with this journal from continuing. Writes nothing, calls no step.

        `origin`: the whole journal of the run that it retries, of which it has the outcomes.
        """
        started = await self._payloads.with_input(batches)
        await self._services.programs.load(started, batches)
        await self._session.sources.read([*batches, *origin])
        if origin:
            program = self._programs.find(started.program, started.version)
            check_steps(self._programs, program, origin, self._session.sources.recorded)
        whole = await self.inflate(run_id, started, batches)
        await self._session.in_callback(lambda: self._check(run_id, started, whole))

    async def explained(self, run_id: str, error: NotDecodable) -> Exception:
        """A value that a run in memory could not decode, as replay of its journal reports it."""
        try:
            await self.check_replay(run_id, await self._store.journal.read(run_id))
        except (Diverged, NotDecodable) as found:
            return found
        except StoreUnavailable:
            pass  # it is parked when the store can be reached, without the lines
        return error

    def _check(self, run_id: str, started: RunStarted, batches: Sequence[Batch]) -> None:
        replayed = self.replay(started, run_id, batches)
        try:
            if replayed.state.kept is None:
                check_inbox(replayed.state, replayed.pending, other_code=True)
                replayed.check_edits()
            if replayed.state.epoch == 0:
                replayed.fold(RunClaimed(self._session.name, 1), batches[-1].at)
                if replayed.state.kept is not None:
                    check_retry(replayed, started.id, "failed", batches[-1].at)
        finally:
            replayed.close()

    # --- read, claimed --------------------------------------------------------------------------------------------

    async def _load_runs(self, slots: dict[str, RunSlot], request: EntryRequest) -> int:
        """Read, claim and replay runs; returns how many were read.

        The events of a journal are read several times: for the beginning of the run, its offloaded values, its claim,
        its state, its patch marks. Most of these readers pass over the steps that began and succeeded, so that together
        they take a tenth of the time of the replay that follows; and most runs that are read are not replayed.
        """
        count, run_ids = 0, list(slots)
        for _ in range(CLAIM_TRIES):
            if self._turns.lost:
                for run_id in run_ids:
                    await self._turns.reserve(run_id)
            ready = await self._read(run_ids)
            count += len(ready)
            ready, late = await self._end_late(ready, self._stands_still)
            ours = [one for one in ready if self._isolated(one, lambda one: self._is_ours(one, request.dead))]
            if self._turns.lost:
                for run_id in {one.run_id for one in ready}.difference(one.run_id for one in ours):
                    self.turn_over(run_id)
            sources = self._session.sources
            for one in ours:
                if (one.started.program, one.started.version) not in sources.ready:
                    await sources.make_ready(one.started)
            ours, missed = await self._claim_orphans(ours, slots, request)
            ours = [one for one in ours if await self._load_needed(one)]

            def install(ours: Sequence[Ready] = ours) -> None:
                for one in ours:
                    self._isolated(one, lambda one: self._install(slots[one.run_id], one, request.admit))

            await self._session.in_callback(install)
            missed = [*missed, *late]
            if not missed:
                break
            # Another append came first. If that was no claim, the run has still lost its owner.
            for run_id in missed:
                self._turns.lose(run_id)
            count, run_ids = count - len(missed), missed
        return count

    def turn_over(self, run_id: str) -> None:
        """Release the turns of runs whose appends were written or dropped, so that other writers may continue."""
        if self._turns.reset(run_id):
            self._session.spawn(self._turns.give_back(run_id))

    def _isolated(self, one: Ready, work: Callable[[Ready], T]) -> T | None:
        """Do something with one run. An error parks that run, and the others are loaded."""
        try:
            return work(one)
        except BaseException as raised:
            error = contained(raised)
            if self._runs.may(one.run_id, PARKING):
                slot = self._runs.slot(one.run_id)
                self._runs.move(slot, PARKING)
                self._session.spawn(self._park_unread(slot, f"{type(error).__name__}: {error}"))
            return None

    async def _park_unread(self, slot: RunSlot, reason: str) -> None:
        try:
            await self._parking.park_unread(slot.run_id, reason)
        finally:
            if slot.state is PARKING:
                self._runs.move(slot, PARKED_HERE)

    async def _read(self, run_ids: Sequence[str]) -> list[Ready]:
        journals = await self._snapshots.read_many(run_ids)
        ready: list[Ready] = []
        for run_id in run_ids:
            batches = journals.get(run_id, [])
            try:
                if isinstance(batches, Exception):
                    raise batches
                if not batches and await self._store.runs.get(run_id) is None:
                    continue  # its start was refused, and there is no such run
                started = await self._payloads.with_input(batches)
                await self._services.programs.load(started, batches)
                await self._session.sources.read(batches)
                later = self._takes_references(started)
                ready.append(Ready(run_id, started, batches if later else await self._payloads.inflate(batches)))
            except StoreUnavailable:
                raise  # out of reach is not damaged
            except PerdureError as error:
                await self._parking.park_unread(run_id, str(error))
            except Exception as error:  # it stops this run and no other
                await self._parking.park_unread(run_id, f"{type(error).__name__}: {error}")
        return ready

    def _takes_references(self, started: RunStarted) -> bool:
        """Whether the program of a run passes values by reference: then only replay can tell which ones it needs."""
        try:
            known = started.program in self._programs and self._programs.is_loaded(started.program)
            return known and self._programs.find(started.program, started.version).dataflow is not None
        except UsageError:
            return False

    async def _load_needed(self, one: Ready) -> bool:
        """Load the values that a run needs to continue. False: that failed, and the run is parked."""
        while self._takes_references(one.started):
            try:
                one.batches = await self.inflate(one.run_id, one.started, one.batches)
                break
            except StoreUnavailable:
                if self._session.leaving:
                    raise
                await asyncio.sleep(self._session.config.store_retry)
            except Exception as error:
                self._runs.mark_parked(one.run_id)
                await self._parking.park_unread(one.run_id, str(error))
                return False
        return True

    def _is_ours(self, one: Ready, dead: Collection[str | None]) -> bool:
        """Whether a run is to continue here. Reads the end of its journal: only a likely owner should pay for more."""
        found = standing(one.batches)
        one.claim = found.claim
        owner = None if one.claim is None else one.claim.owner
        if found.finished:
            self._locks.release_all(one.run_id)
            self._observer.finished(row(fold(one.run_id, one.batches)))
            return False
        if found.stays_parked:
            self._runs.mark_parked(one.run_id)
            return False
        missing = self._programs.missing(one.started.program, one.started.version)
        if missing is not None:
            self._runs.mark_left(one.run_id)
            if self.follows_its_owner(one.batches, missing):
                self.on_missing()
            return False
        if owner not in (None, self._session.name) and owner not in dead:
            self._locks.forget(one.run_id)
            if dead:
                self._session.spawn(self._correct_row(one))
            return False
        serves = self._session.serves
        return serves is None or one.started.queue in serves

    def follows_its_owner(self, batches: Sequence[Batch], missing: UnknownProgram | UnknownVersion) -> bool:
        """Whether this process succeeds the last owner of a run, which had what is missing here."""
        for batch in reversed(batches):
            for event in reversed(batch.events):
                if isinstance(event, RunClaimed):
                    has_program = isinstance(missing, UnknownVersion)
                    return follows(self._session.name, event.owner, has_program=has_program)
        return False

    async def _correct_row(self, one: Ready) -> None:
        """If the row of a run names another owner than its journal, write the row again: the journal is right."""
        state = fold(one.run_id, one.batches)
        try:
            found = await self._store.runs.get(one.run_id)
            if found is not None and found.owner != state.owner:
                await self._store.upkeep.reproject(one.run_id, state.next_seq, [row(state), *child_rows(state)])
        except StoreUnavailable:
            pass  # the next search finds it again

    async def _claim_orphans(
        self, ready: Sequence[Ready], slots: dict[str, RunSlot], request: EntryRequest
    ) -> tuple[list[Ready], list[str]]:
        """Claim the runs that have lost their owner, in one commit, before any of them is replayed.

        A run may kill its orchestrator during replay, and quarantine counts only the claims in the journal. Returns the
        runs to install, and those that were not claimed because another append came first.
        """
        sure: list[Ready] = []
        claims: list[tuple[Ready, Append]] = []
        for one in ready:
            claim = self._isolated(one, lambda one: self._claim_of(one, slots[one.run_id], request))
            if isinstance(claim, Append):
                claims.append((one, claim))
            elif claim:
                sure.append(one)
        missed: list[str] = []
        self._deadline.enforce()
        if claims and self._session.at_work:
            outcomes = await append_all(self._store.journal, [append for _, append in claims])
            for (one, append), outcome in zip(claims, outcomes, strict=True):
                if isinstance(outcome, Appended):
                    one.batches = [*one.batches, *append.batches]
                    if self._observer.probes:
                        self._observer.probes.tell(Probe.appended, append)
                    if self._session.claimed is not None:
                        self._session.claimed.add(one.run_id)
                    self._runs.admit(slots[one.run_id])
                    if self._turns.lost:
                        self.turn_over(one.run_id)
                    sure.append(one)
                elif isinstance(outcome, Full):
                    self._runs.admit(slots[one.run_id], outcome)
                else:
                    missed.append(one.run_id)
        return sure, missed

    def _claim_of(self, one: Ready, slot: RunSlot, request: EntryRequest) -> Append | bool:
        """The claim to write before a run is replayed. True: none is needed; False: the run is left alone."""
        if slot.state is not LOADING:
            return False
        if not self._lost_its_owner(one):
            return True
        if self._quarantine.keeps(slot, one.batches, one.claim, on_trial=request.trial is not None):
            return False
        state = fold(one.run_id, one.batches)
        turn = turn_of(state, request.admit, self._clock.now())
        if turn is not Turn.NOW:
            self._await_turn(slot, state, turn)
            return False
        claim = self._claim(state, early=True, tried=request.trial or 0)
        append = extend(state, [claim], self._clock.now())
        admit = request.admit
        return msgspec.structs.replace(append, admit=admit) if claim.epoch == 1 and admit is not None else append

    def _lost_its_owner(self, one: Ready) -> bool:
        """Whether this run may have killed a process: it had an owner, or has been waiting to begin for too long."""
        if one.claim is not None:
            return (one.claim.owner, one.claim.session) != (self._session.name, self._session.id)
        first = one.batches[0].events
        begun = len(one.batches) > 1 or len(first) > 1
        due = one.started.not_before or one.batches[0].at
        return not begun and self._clock.now() - due > self._session.recovery.ttl

    def _claim(self, state: RunState, *, early: bool = False, tried: int = 0) -> RunClaimed:
        started, version = state.started, ""
        names: tuple[str, ...] = ()
        if started is not None and not started.version and state.epoch == 0 and not started.remote:
            # Started by name alone: it keeps the version that this engine has. Arguments that were given by position
            # keep the parameters that they are bound to now.
            program = self._programs.find(started.program, "")
            version = program.version
            if started.input_blob or bytes(started.input).startswith(b"["):
                names = positional_names(program.types)
        return self._session.claim(state, version, early=early, tried=tried, names=names)

    def _await_turn(self, slot: RunSlot, state: RunState, turn: Turn) -> None:
        """Leave a run for now, and have it entered again when it may begin, which may be at once."""
        self._runs.move(slot, ABSENT)
        if turn is Turn.AFTER_PARKING:
            # It fits the code again: it waits for its turn.
            self._session.spawn(self._resume(state))
        elif turn is Turn.IN_QUEUE:
            self._wakeups.queued()
        elif state.started is not None and state.started.not_before is not None:
            self._wakeups.due(state.started.not_before)

    async def _resume(self, state: RunState) -> None:
        await self._parking.resume(state)
        started = state.started
        if started is not None and started.queue:
            self._wakeups.queued()
        elif started is not None and started.not_before is not None:
            self._wakeups.due(started.not_before)

    # --- too late -------------------------------------------------------------------------------------------------

    async def end_late(self, run_ids: Sequence[str], alive: Collection[str]) -> int:
        """End runs whose deadline has passed, and return how many. This needs none of their code.

        Runs that an owner in `alive` advances, or that are in memory here, end by themselves.
        """

        def is_not_advanced(state: RunState) -> bool:
            return (state.owner not in alive and not self._session.owns(state)) or self._stands_still(state)

        late = [r for r in run_ids if r not in self._runs.unreadable and r not in self._runs.drivers]
        ended = 0
        for _ in range(CLAIM_TRIES):
            if not late:
                break
            ready = await self._read(late)
            left, late = await self._end_late(ready, is_not_advanced)
            ended += len(ready) - len(left) - len(late)
        return ended

    async def _end_late(
        self, ready: Sequence[Ready], is_not_advanced: Callable[[RunState], bool]
    ) -> tuple[list[Ready], list[str]]:
        """End runs whose deadline has passed before they could begin, or while they were stopped.

        Returns the other runs, and the run_ids of those that could not be ended because another append came first.
        """
        now = self._clock.now()
        left: list[Ready] = []
        ends: list[tuple[RunState, Append, Plan]] = []
        for one in ready:
            deadline = one.started.deadline
            state = fold(one.run_id, one.batches) if deadline is not None and deadline <= now else None
            if state is None or not is_late(state, now) or not is_not_advanced(state):
                left.append(one)
                continue
            planned = expire(state, now)
            # Without an owner, the open ops are cancelled with the end of the run.
            owned = state.parked is None and self._session.owns(state)
            events = planned.events if owned else planned.events[-1:]
            ends.append((state, extend(state, events, now), planned))
        self._deadline.enforce()
        if not ends or not self._session.at_work:
            return left, []
        missed: list[str] = []
        outcomes = await append_all(self._store.journal, [append for _, append, _ in ends])
        for (state, append, planned), outcome in zip(ends, outcomes, strict=True):
            if not isinstance(outcome, Appended):
                missed.append(state.run_id)
                continue
            if self._observer.probes:
                self._observer.probes.tell(Probe.appended, append)
            for id, reason in planned.abandoned.items():
                self._observer.abandoned(id, reason)
            self._locks.release_all(state.run_id)
            self._observer.finished(row(state))
            if self._observer.completed is not None:
                self._observer.completed(row(state))
        return left, missed

    def _stands_still(self, state: RunState) -> bool:
        """Whether no owner advances a run: it waits to begin, is parked, or waits here to regain its locks."""
        if state.epoch == 0 or state.parked is not None:
            return True
        return self._session.owns(state) and not self._locks.has_all(state)
