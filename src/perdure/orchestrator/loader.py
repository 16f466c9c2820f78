"""Bring runs into memory: read, claimed, replayed. Claim before replay where an owner was lost: replay may be why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from perdure.engine.outbox import extend
from perdure.errors import PerdureError, StoreUnavailable, UnknownProgram
from perdure.kernel.claims import glance, kept_parked
from perdure.kernel.events import Batch, RunClaimed, RunStarted
from perdure.kernel.inbound import unpark
from perdure.kernel.plan import Plan, expire, is_late
from perdure.kernel.policies.queues import Queue
from perdure.kernel.projection import child_rows, row
from perdure.kernel.state import RunState, fold
from perdure.kernel.values.raised import contained
from perdure.orchestrator.admissions import may_begin
from perdure.orchestrator.membership import follows
from perdure.orchestrator.rehearsal import play
from perdure.ports.journal import Append, Appended, Full, append_all

if TYPE_CHECKING:
    from perdure.orchestrator.orchestrator import Orchestrator

T = TypeVar("T")

# How long a store that is out of reach is left alone before the next try.
AGAIN_SECONDS = 1.0
# How often a claim is tried again at once that others wrote before.
CLAIM_TRIES = 3


class Ready(msgspec.Struct):
    """A journal that was read, with its input in place."""

    run_id: str
    started: RunStarted
    batches: Sequence[Batch]


class Loading:
    """Loads runs for one orchestrator."""

    def __init__(self, orchestrator: Orchestrator) -> None:
        self._orchestrator = orchestrator
        self.under_way: set[str] = set()
        # Asked for again while they were being loaded: what was read of them may be too old already.
        self._again: set[str] = set()

    async def load(
        self,
        run_ids: Sequence[str],
        dead: Collection[str | None] = (),
        *,
        admit: Queue | None = None,
        tried: int | None = None,
    ) -> int:
        """Bring runs into memory that are ours, nobody's or of an owner in `dead`, and do what is due.

        Says how many came. A run that another owner has taken meanwhile is left to it, and one that waits in a queue
        stays there, unless it is to begin within the limits of that queue: `admit`. One that may take us down comes
        later, with few others: so many are `tried` at once, or 0 when it turns out to be harmless.
        """
        orchestrator = self._orchestrator
        known = [orchestrator.active, self.under_way, orchestrator.unreadable, orchestrator.locks.regaining]
        if tried is None:
            known.append(orchestrator.quarantine.waiting)
        wanted = [run_id for run_id in run_ids if not any(run_id in one for one in known)]
        self._again.update(self.under_way.intersection(run_ids))
        if not wanted or not orchestrator.at_work:
            return 0
        if not orchestrator.active:
            orchestrator.on_busy()
        self.under_way.update(wanted)
        try:
            came = await self._bring(wanted, dead, admit, tried)
            again = self._again.intersection(wanted)
            self._again -= again
            for run_id in again:
                self.load_soon(run_id)
            return came
        finally:
            self.under_way.difference_update(wanted)
            orchestrator.left.set()
            orchestrator.quarantine.begin()

    def load_soon(self, run_id: str) -> None:
        """Load a run in the background."""
        if self._orchestrator.at_work:
            self._orchestrator.spawn(self._load_soon(run_id))

    async def _load_soon(self, run_id: str) -> None:
        """Load a run as soon as the store can be read; nothing happens if there is no such run."""
        try:
            if run_id in self._orchestrator.active:
                await self._orchestrator.tails.look([run_id])
            else:
                await self.load([run_id])
        except StoreUnavailable:
            await asyncio.sleep(AGAIN_SECONDS)
            self.load_soon(run_id)

    async def _bring(
        self, run_ids: Sequence[str], dead: Collection[str | None], admit: Queue | None, tried: int | None
    ) -> int:
        came = 0
        turns = self._orchestrator.turns
        for _ in range(CLAIM_TRIES):
            if turns.lost:
                for run_id in run_ids:
                    await turns.take(run_id)
            ready = await self._read(run_ids)
            came += len(ready)
            ready, late = await self._end_late(ready, self._stands_still)
            ours = [one for one in ready if self._apart(one, lambda one: self._is_for_us(one, dead))]
            if turns.lost:
                for run_id in {one.run_id for one in ready}.difference(one.run_id for one in ours):
                    self._orchestrator.turn_over(run_id)
            ours, missed = await self._claim_lost(ours, admit, tried)

            def install(ours: Sequence[Ready] = ours) -> None:
                for one in ours:
                    self._apart(one, lambda one: self._install(one, admit))

            await self._orchestrator.in_callback(install)
            missed = [*missed, *late]
            if not missed:
                break
            # Somebody wrote first. If that was no claim, the run has still lost its owner.
            for run_id in missed:
                turns.lose(run_id)
            came, run_ids = came - len(missed), missed
        return came

    def _apart(self, one: Ready, work: Callable[[Ready], T]) -> T | None:
        """Do something with one run; what goes wrong parks that run and keeps no other from being loaded."""
        try:
            return work(one)
        except BaseException as raised:
            error = contained(raised)
            orchestrator = self._orchestrator
            orchestrator.parking.tried.add(one.run_id)
            orchestrator.spawn(orchestrator.parking.park_unread(one.run_id, f"{type(error).__name__}: {error}"))
            return None

    async def _read(self, run_ids: Sequence[str]) -> list[Ready]:
        orchestrator = self._orchestrator
        journals = await orchestrator.snapshots.read_many(run_ids)
        ready: list[Ready] = []
        for run_id in run_ids:
            batches = journals.get(run_id, [])
            try:
                if isinstance(batches, Exception):
                    raise batches
                if not batches and await orchestrator.store.runs.get(run_id) is None:
                    continue  # its start was refused, and there is no such run
                started = await orchestrator.payloads.with_input(batches)
                ready.append(Ready(run_id, started, await orchestrator.payloads.inflate(batches)))
            except StoreUnavailable:
                raise  # out of reach is not damaged
            except PerdureError as error:
                await orchestrator.parking.park_unread(run_id, str(error))
            except Exception as error:  # whatever it is, it stops this run and no other
                await orchestrator.parking.park_unread(run_id, f"{type(error).__name__}: {error}")
        return ready

    def _is_for_us(self, one: Ready, dead: Collection[str | None]) -> bool:
        """Whether a run is to go on here, by a glance: only a likely owner should pay for replay."""
        orchestrator = self._orchestrator
        finished, claim = glance(one.batches)
        owner = None if claim is None else claim.owner
        if finished:
            orchestrator.locks.ended(one.run_id)
            orchestrator.on_finished(row(fold(one.run_id, one.batches)))
            return False
        if kept_parked(one.batches):
            orchestrator.parking.tried.add(one.run_id)
            return False
        if owner not in (None, orchestrator.name) and owner not in dead:
            orchestrator.locks.left(one.run_id)
            if dead:
                orchestrator.spawn(self._heal(one))
            return False
        if one.started.program not in orchestrator.programs and not self._follows_its_owner(one):
            return False  # it waits for an engine that has its program
        return orchestrator.serves is None or one.started.queue in orchestrator.serves

    def _follows_its_owner(self, one: Ready) -> bool:
        """Whether this process comes after the one that had a run last: what it lacks now was taken away from it."""
        for batch in reversed(one.batches):
            for event in reversed(batch.events):
                if isinstance(event, RunClaimed):
                    return follows(self._orchestrator.name, event.owner)
        return False

    async def _heal(self, one: Ready) -> None:
        """Where the row of a run names another owner than its journal, which is right, let the row follow."""
        store = self._orchestrator.store
        state = fold(one.run_id, one.batches)
        try:
            found = await store.runs.get(one.run_id)
            if found is not None and found.owner != state.owner:
                await store.upkeep.reproject(one.run_id, state.next_seq, [row(state), *child_rows(state)])
        except StoreUnavailable:
            pass  # the next look finds it again

    # --- too late ---

    async def end_late(self, run_ids: Sequence[str], alive: Collection[str]) -> int:
        """End runs whose deadline has passed, whatever their program, and say how many: none of it needs their code.

        Those that an owner in `alive` advances, or that are in memory here, are left to it.
        """
        orchestrator = self._orchestrator

        def is_nobodys(state: RunState) -> bool:
            return (state.owner not in alive and not self._is_ours(state)) or self._stands_still(state)

        late = [r for r in run_ids if r not in orchestrator.unreadable and r not in orchestrator.active]
        ended = 0
        for _ in range(CLAIM_TRIES):
            if not late:
                break
            ready = await self._read(late)
            left, late = await self._end_late(ready, is_nobodys)
            ended += len(ready) - len(left) - len(late)
        return ended

    async def _end_late(
        self, ready: Sequence[Ready], advanced_by_nobody: Callable[[RunState], bool]
    ) -> tuple[list[Ready], list[str]]:
        """End those whose deadline has passed before they could begin, or while they stood still: no code is needed.

        Says which are left, and which could not be ended because others wrote first.
        """
        orchestrator = self._orchestrator
        now = orchestrator.clock.now()
        left: list[Ready] = []
        ends: list[tuple[RunState, Append, Plan]] = []
        for one in ready:
            deadline = one.started.deadline
            state = fold(one.run_id, one.batches) if deadline is not None and deadline <= now else None
            if state is None or not is_late(state, now) or not advanced_by_nobody(state):
                left.append(one)
                continue
            planned = expire(state, now)
            # What was under way is given up by its owner; where there is none, the end of the run says so.
            owned = state.parked is None and self._is_ours(state)
            events = planned.events if owned else planned.events[-1:]
            ends.append((state, extend(state, events, now), planned))
        orchestrator.lease_deadline.enforce()
        if not ends or not orchestrator.at_work:
            return left, []
        missed: list[str] = []
        outcomes = await append_all(orchestrator.store.journal, [append for _, append, _ in ends])
        for (state, _, planned), outcome in zip(ends, outcomes, strict=True):
            if not isinstance(outcome, Appended):
                missed.append(state.run_id)
                continue
            for id in planned.abandoned:
                orchestrator.services.on_abandoned(id)
            orchestrator.locks.ended(state.run_id)
            orchestrator.on_finished(row(state))
            if orchestrator.on_completed is not None:
                orchestrator.on_completed(row(state))
        return left, missed

    def _stands_still(self, state: RunState) -> bool:
        """Whether a run is advanced by nobody: it waits to begin, is parked, or waits here for locks it had."""
        if state.epoch == 0 or state.parked is not None:
            return True
        return self._is_ours(state) and not self._orchestrator.locks.has_all(state)

    def _is_ours(self, state: RunState) -> bool:
        orchestrator = self._orchestrator
        return (state.owner, state.session) == (orchestrator.name, orchestrator.session)

    # --- claimed first --------------------------------------------------------------------------------------------

    async def _claim_lost(
        self, ready: Sequence[Ready], admit: Queue | None, tried: int | None
    ) -> tuple[list[Ready], list[str]]:
        """Claim those that have lost their owner, in one commit, before anything of them is replayed.

        What takes its orchestrator down may do so in its replay; only a claim that is in the journal by then is
        counted. Says which are to be installed, and which were not claimed because others wrote first.
        """
        orchestrator = self._orchestrator
        sure: list[Ready] = []
        claims: dict[str, tuple[Ready, Append]] = {}
        for one in ready:
            claim = self._apart(one, lambda one: self._claim_of(one, admit, tried))
            if isinstance(claim, Append):
                claims[one.run_id] = one, claim
            elif claim:
                sure.append(one)
        missed: list[str] = []
        orchestrator.lease_deadline.enforce()
        if claims and orchestrator.at_work:
            outcomes = await append_all(orchestrator.store.journal, [append for _, append in claims.values()])
            for (one, append), outcome in zip(claims.values(), outcomes, strict=True):
                if isinstance(outcome, Appended):
                    one.batches = [*one.batches, *append.batches]
                    if orchestrator.claimed is not None:
                        orchestrator.claimed.add(one.run_id)
                    orchestrator.admissions.settle(one.run_id)
                    if orchestrator.turns.lost:
                        orchestrator.turn_over(one.run_id)
                    sure.append(one)
                elif isinstance(outcome, Full):
                    orchestrator.admissions.settle(one.run_id, full=outcome)
                else:
                    missed.append(one.run_id)
        return sure, missed

    def _claim_of(self, one: Ready, admit: Queue | None, tried: int | None) -> Append | bool:
        """The claim that has to be written before a run is replayed; True: none; False: it is left where it is."""
        orchestrator = self._orchestrator
        if not self._lost_its_owner(one):
            return True
        if orchestrator.quarantine.keeps(one.run_id, one.batches, on_trial=tried is not None):
            return False
        state = fold(one.run_id, one.batches)
        if state.epoch == 0 and not may_begin(orchestrator, state, admit):
            return False
        try:
            claim = self._claim(state, early=True, tried=tried or 0)
        except UnknownProgram:
            return True  # it waits for an engine that has its program
        append = extend(state, [claim], orchestrator.clock.now())
        return msgspec.structs.replace(append, admit=admit) if claim.epoch == 1 and admit is not None else append

    def _lost_its_owner(self, one: Ready) -> bool:
        """Whether a process may have died of this run: it had an owner, or has been waiting to begin for too long."""
        orchestrator = self._orchestrator
        _, claim = glance(one.batches)
        if claim is not None:
            return (claim.owner, claim.session) != (orchestrator.name, orchestrator.session)
        first = one.batches[0].events
        begun = len(one.batches) > 1 or len(first) > 1
        due = one.started.not_before or one.batches[0].at
        return not begun and orchestrator.clock.now() - due > orchestrator.recovery.ttl

    def _claim(self, state: RunState, *, early: bool = False, tried: int = 0) -> RunClaimed:
        orchestrator, started, version = self._orchestrator, state.started, ""
        if started is not None and not started.version and state.epoch == 0 and not started.remote:
            # Started by name alone: it begins with the version that we have, and keeps to it.
            version = orchestrator.programs.find(started.program, "").version
        return RunClaimed(orchestrator.name, state.epoch + 1, orchestrator.session, version, early, tried)

    # --- and replayed ---------------------------------------------------------------------------------------------

    def _install(self, one: Ready, admit: Queue | None) -> None:
        """Replay a journal and go on from where it ends."""
        orchestrator, run_id, batches = self._orchestrator, one.run_id, one.batches
        orchestrator.lease_deadline.enforce()
        if not orchestrator.at_work or run_id in orchestrator.active:
            return
        try:
            replay = orchestrator.replay(one.started, run_id, batches)
            state = replay.state
            if (state.locks and not orchestrator.locks.regained(state)) or (
                state.epoch == 0 and not may_begin(orchestrator, state, admit)
            ):
                replay.close()
                return
            if state.epoch == 0 and state.kept is not None:
                # Retried by a client that does not know the code: nothing may be run that does not fit it.
                play(orchestrator, run_id, one.started, batches)
            driver = orchestrator.driver(replay, batches, orchestrator.variables)
            orchestrator.active[run_id] = driver
            resumed = unpark(state) if state.parked is not None else []
            ours = (state.owner, state.session) == (orchestrator.name, orchestrator.session) and not resumed
            claim = [] if ours else [self._claim(state)]
            admitted = admit if state.epoch == 0 else None
            driver.adopt(*resumed, *claim, *orchestrator.locks.renewed(state), admit=admitted)
            orchestrator.locks.join(state)
            driver.wake()
            orchestrator.acknowledge(driver)
        except BaseException as raised:  # whatever it is, it stops this run and no other
            error = contained(raised)
            if run_id in orchestrator.active:
                orchestrator.drop(orchestrator.active[run_id])
            orchestrator.locks.left(run_id)
            state = fold(run_id, batches)
            # What has not begun waits for an engine that has its program, as anything that is queued.
            if state.epoch > 0 or not isinstance(error, UnknownProgram):
                orchestrator.spawn(orchestrator.parking.park(state, error))
            return
        orchestrator.settle(driver)
