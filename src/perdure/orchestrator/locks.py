"""Locks of runs: acquired when a body waits for one, released when its journal says so, regained after a takeover.

The journal says which locks a run holds. The owner of the lease behind a lock is named after the run and the op that
acquired it, so any orchestrator that owns the run can renew the lease, and no other process can release it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec
from msgspec import Raw

from perdure.engine.driver import Driver
from perdure.engine.locks import Hold, Locker
from perdure.errors import StoreUnavailable
from perdure.kernel.commands import CancelKey
from perdure.kernel.events import AnyEvent, ChildFinished, RunReleased, ValueRecorded, WaitOpened, WaitResolved
from perdure.kernel.ids import step_key
from perdure.kernel.policies.lock_keys import HeldLock, unlocked
from perdure.kernel.state import RunState
from perdure.kernel.values.raised import contained
from perdure.orchestrator.parking import Parking
from perdure.orchestrator.residency import ABSENT, REGAINING_LOCKS, RunSlot
from perdure.orchestrator.session import Session
from perdure.ports.appends import extend
from perdure.ports.journal import Append, append_one

# A new owner may claim a run twice; of how many claims before the last one locks may be left.
FORMER = 2


class RunLocks:
    """The locks that the runs of one orchestrator hold and wait for.

    `restart` loads a run again from its journal, `broke` and `stop_broken` park a run that an error of the engine
    stopped, in memory or not.
    """

    def __init__(
        self,
        session: Session,
        locker: Locker,
        parking: Parking,
        *,
        enter_soon: Callable[[str], None],
        restart: Callable[[Driver], None],
        broke: Callable[[Driver, Exception], None],
        stop_broken: Callable[[str, Exception], None],
    ) -> None:
        self._session, self._runs, self._loop = session, session.runs, session.loop
        self._locker, self._parking = locker, parking
        self._enter_soon, self._restart, self._broke, self._stop_broken = enter_soon, restart, broke, stop_broken
        self._holds: dict[str, dict[str, Hold]] = {}
        self._waits: dict[str, dict[str, asyncio.Task[None]]] = {}
        # Waits that end because the run was evicted: by then another process may hold the lock in the name of the run.
        self._leaving: set[tuple[str, str]] = set()
        # Of the runs that regain their locks: the task, and the state by which they hold them.
        self._regaining: dict[str, tuple[asyncio.Task[None], RunState]] = {}

    @property
    def idle(self) -> bool:
        """Whether no run has or wants a lock here."""
        return not self._holds and not self._waits and not self._regaining

    # --- what the journal says ------------------------------------------------------------------------------------

    def committed(self, run_id: str, append: Append) -> None:
        """Act on what is durable now."""
        for batch in append.batches:
            for event in batch.events:
                if isinstance(event, WaitOpened) and event.kind == "lock":
                    self._want(run_id, event.op, HeldLock(event.name, event.ttl))
                elif isinstance(event, WaitResolved) and event.by != "lock":
                    self._give_up(run_id, event.op)
                elif isinstance(event, ValueRecorded) and event.kind == "unlock":
                    self._give_up(run_id, unlocked(event.op))
                elif isinstance(event, ChildFinished):
                    self._end(run_id, event.op + "/")

    def join(self, state: RunState) -> None:
        """Reconcile locks with the journal of a run that was read again."""
        run_id = state.run_id
        for op in {*self._holds.get(run_id, ()), *self._waits.get(run_id, ())}:
            if op not in state.locks and op not in state.lock_waits:
                self._give_up(run_id, op)
        for key, (op, epoch) in (state.freed or {}).items():
            # Its last owner may have died after it recorded that the lock is free.
            if state.epoch - FORMER <= epoch < state.epoch:
                self._locker.release_left(key, step_key(run_id, op))
        for op, asked in state.lock_waits.items():
            # It may have taken the lock just before its last owner died.
            self._want(run_id, op, asked, again=True)

    def deliver_again(self, driver: Driver) -> None:
        """Record locks that were taken for a run while it was catching up."""
        for op in driver.state.lock_waits:
            if op in self._holds.get(driver.run_id, ()):
                self._loop.call_soon(self._deliver, driver.run_id, op)

    def release_all(self, run_id: str) -> None:
        """Release every lock of a run that has finished."""
        self._end(run_id, "")

    def _end(self, run_id: str, path: str) -> None:
        for op in [*self._holds.get(run_id, ()), *self._waits.get(run_id, ())]:
            if op.startswith(path):
                self._give_up(run_id, op)

    def forget(self, run_id: str) -> None:
        """Forget the locks of a run without giving them back: its next owner takes them over."""
        for op, task in self._waits.pop(run_id, {}).items():
            self._leaving.add((run_id, op))
            task.add_done_callback(lambda _, key=(run_id, op): self._leaving.discard(key))  # type: ignore[misc]
            task.cancel()
        for hold in self._holds.pop(run_id, {}).values():
            self._locker.forget(hold)

    # --- waiting --------------------------------------------------------------------------------------------------

    def _want(self, run_id: str, op: str, asked: HeldLock, *, again: bool = False) -> None:
        if op in self._holds.get(run_id, ()):
            self._loop.call_soon(self._deliver, run_id, op)
        elif op not in self._waits.get(run_id, ()):
            task = self._loop.create_task(self._wait(run_id, op, asked, again))
            task.add_done_callback(partial(self._over, run_id))
            self._waits.setdefault(run_id, {})[op] = task

    def _over(self, run_id: str, task: asyncio.Task[None]) -> None:
        """A wait for a lock has ended. One that raised would leave its run waiting for ever."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            driver = self._runs.drivers.get(run_id)
            if driver is not None:
                self._broke(driver, contained(error))
            else:
                self._stop_broken(run_id, contained(error))

    async def _wait(self, run_id: str, op: str, asked: HeldLock, again: bool) -> None:
        await self._acquire(run_id, op, asked, again=again)
        waits = self._waits.get(run_id, {})
        waits.pop(op, None)
        if not waits:
            self._waits.pop(run_id, None)
        # In a callback: a body must not be driven from inside a task.
        self._loop.call_soon(self._deliver, run_id, op)

    async def _acquire(self, run_id: str, op: str, asked: HeldLock, *, again: bool) -> None:
        owner = step_key(run_id, op)
        mine = partial(self._is_ours, run_id, op)
        hold = await self._locker.acquire(asked.key, owner, asked.ttl, patient=True, again=again, mine=mine)
        hold.on_lost = lambda: self._lost(run_id, op)
        self._holds.setdefault(run_id, {})[op] = hold

    def _is_ours(self, run_id: str, op: str) -> bool:
        return (run_id, op) not in self._leaving and self._runs.state(run_id) is not REGAINING_LOCKS

    def _deliver(self, run_id: str, op: str) -> None:
        """Record that the run holds a lock.

        What cannot be recorded now is recorded by `deliver_again` after a catch-up, or by `join` after a reload.
        """
        driver, hold = self._runs.drivers.get(run_id), self._holds.get(run_id, {}).get(op)
        if driver is None:
            self.forget(run_id)
            return
        if hold is None or driver.closed or driver.stale or self._session.closing:
            return
        try:
            given_up = CancelKey(op) in driver.replay.pending
            if op in driver.state.lock_waits and not given_up:
                token = _raw(hold.token)
                before = driver.state.kept.token(op) if driver.state.kept is not None else None
                driver.record(WaitResolved(op, "lock", before or token))
                if before is not None and op in driver.state.locks:
                    # A run that is tried again: what it did before under the lock, it did under another token.
                    driver.record(ValueRecorded(op, "lock", token))
        except BaseException as error:
            self._broke(driver, contained(error))

    def _give_up(self, run_id: str, op: str) -> None:
        task = self._waits.get(run_id, {}).pop(op, None)
        if task is not None:
            task.cancel()
        holds = self._holds.get(run_id, {})
        hold = holds.pop(op, None)
        if hold is not None:
            self._locker.release_soon(hold)
        for of_runs in (self._holds, self._waits):
            if not of_runs.get(run_id, True):
                del of_runs[run_id]

    async def all_held_elsewhere(self, state: RunState) -> bool:
        """Whether other runs hold the locks that a run waits for, all of them."""
        for op, asked in state.lock_waits.items():
            owner = await self._locker.owner(asked.key)
            if owner in (None, step_key(state.run_id, op)):
                return False
        return True

    # --- taking over ----------------------------------------------------------------------------------------------

    def has_all(self, state: RunState) -> bool:
        """Whether all locks that a journal says its run holds are held here."""
        return all(op in self._holds.get(state.run_id, ()) for op in state.locks)

    def regain(self, slot: RunSlot, state: RunState) -> None:
        """Claim a run, take the locks that its journal says it holds, and have it loaded again when it has them."""
        task = self._loop.create_task(self._regain(slot, state))
        task.add_done_callback(partial(self._over, state.run_id))
        self._regaining[state.run_id] = task, state

    async def regain_blocked(self, run_id: str) -> bool:
        """Whether another run holds a lock that this one has to regain."""
        _, state = self._regaining.get(run_id, (None, None))
        for op, held in list(state.locks.items()) if state is not None else ():
            owner = await self._locker.owner(held.key)
            if owner not in (None, step_key(run_id, op)):
                return True
        return False

    def renewed(self, state: RunState) -> list[ValueRecorded]:
        """The new tokens of locks that another run has held in between, to be recorded."""
        holds = self._holds.get(state.run_id, {})
        return [
            ValueRecorded(op, "lock", _raw(holds[op].token))
            for op, held in state.locks.items()
            if holds[op].token != held.token
        ]

    async def _regain(self, slot: RunSlot, state: RunState) -> None:
        run_id = state.run_id
        try:
            # Claimed first: the previous owner must not continue while this one waits.
            if await self._claim(state, waits=await self.regain_blocked(run_id)):
                async with asyncio.timeout(self._time_left(state)):
                    # In the order in which they were taken: runs that take several locks in one order never deadlock.
                    for op, held in list(state.locks.items()):
                        if op not in self._holds.get(run_id, {}):
                            await self._acquire(run_id, op, held, again=True)
        except TimeoutError:
            pass  # its deadline has come: it ends without them
        except StoreUnavailable:
            await asyncio.sleep(self._locker.config.retry)
        finally:
            del self._regaining[run_id]
            if slot.state is REGAINING_LOCKS:
                self._runs.move(slot, ABSENT)
        self._enter_soon(run_id)

    def _time_left(self, state: RunState) -> float | None:
        deadline = state.started.deadline if state.started is not None else None
        return None if deadline is None else max(0.0, deadline - self._session.clock.now())

    async def _claim(self, state: RunState, *, waits: bool) -> bool:
        """Become the owner of a run, and do nothing else with it; False when another append came first.

        This resumes a parked run: it fits the code, and its callers must not get the answer that it is parked. If it
        `waits` for its locks, a second claim shows that this process survived its replay. Until it has them, nothing of
        it is executed, so it cannot have killed the owners that end in that time.
        """
        events = list(self._parking.unpark(state))
        claim = self._session.claim(state, early=True)
        if events or not self._session.owns(state):
            events.append(claim)
            claim = msgspec.structs.replace(claim, epoch=claim.epoch + 1)
        if waits:
            events.append(claim)
        return not events or await self._append(state, *events)

    async def _append(self, state: RunState, *events: AnyEvent) -> bool:
        return await append_one(self._session.store.journal, extend(state, events, self._session.clock.now()))

    def _lost(self, run_id: str, op: str) -> None:
        """A run inside its block no longer holds the lock: stop it, and load it again when it has the lock again."""
        self._holds.get(run_id, {}).pop(op, None)
        self._loop.call_soon(self._stop, run_id)

    def _stop(self, run_id: str) -> None:
        driver = self._runs.drivers.get(run_id)
        if driver is not None and not self._session.closing:
            try:
                self._restart(driver)
            except BaseException as error:
                self._broke(driver, contained(error))

    async def hand_over(self) -> None:
        """Release the runs that wait for locks they had: their next owners wait on."""
        waiting = list(self._regaining.values())
        for task, _ in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait([task for task, _ in waiting])
        for _, state in waiting:
            if self._session.owns(state) and state.parked is None and state.finished is None:
                # Where another append came first, the next owner takes the run over as after a crash.
                with suppress(StoreUnavailable):
                    await self._append(state, RunReleased(self._session.name))

    def close(self) -> None:
        """Stop waiting, and leave what runs hold to their next owners."""
        for task, _ in self._regaining.values():
            task.cancel()
        for run_id in [*self._holds, *self._waits]:
            self.forget(run_id)


def _raw(token: int) -> Raw:
    return Raw(str(token).encode())
