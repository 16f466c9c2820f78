"""Locks of runs: taken when a body waits for one, given back when its journal says so, taken again after a takeover.

The journal knows what a run holds. The lease behind a lock bears the name of the run and the op that asked for it, so
any orchestrator that owns the run can renew it, and nobody else can give it back.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Raw

from perdure.engine.driver import Driver
from perdure.engine.locks import RETRY_SECONDS, Hold, Locker
from perdure.engine.outbox import extend
from perdure.errors import StoreUnavailable
from perdure.kernel.commands import CancelKey
from perdure.kernel.events import ChildFinished, RunClaimed, ValueRecorded, WaitOpened, WaitResolved
from perdure.kernel.ids import step_key
from perdure.kernel.inbound import unpark
from perdure.kernel.policies.lock_keys import HeldLock, unlocked
from perdure.kernel.state import RunState
from perdure.kernel.values.raised import contained
from perdure.ports.journal import Append, append_one

if TYPE_CHECKING:
    from perdure.orchestrator.orchestrator import Orchestrator


class RunLocks:
    """What the runs of one orchestrator hold and wait for."""

    def __init__(self, orchestrator: Orchestrator, locker: Locker) -> None:
        self._orchestrator, self._locker = orchestrator, locker
        self._holds: dict[str, dict[str, Hold]] = {}
        self._waits: dict[str, dict[str, asyncio.Task[None]]] = {}
        # Waits that end because the run has left: another process may hold the same lock in the run's name by now.
        self._leaving: set[tuple[str, str]] = set()
        # Runs that were taken over and go on when they have their locks again.
        self.regaining: dict[str, asyncio.Task[None]] = {}
        # What those hold by their journals.
        self._lost_locks: dict[str, dict[str, HeldLock]] = {}

    @property
    def idle(self) -> bool:
        """Whether no run has or wants a lock here."""
        return not self._holds and not self._waits and not self.regaining

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
        """Agree with the journal of a run that was read anew."""
        run_id = state.run_id
        for op in {*self._holds.get(run_id, ()), *self._waits.get(run_id, ())}:
            if op not in state.locks and op not in state.lock_waits:
                self._give_up(run_id, op)
        for op, asked in state.lock_waits.items():
            # It may have taken the lock just before its last owner died.
            self._want(run_id, op, asked, again=True)

    def tell_again(self, driver: Driver) -> None:
        """Tell a run of locks that were taken for it while it could not be told."""
        for op in driver.state.lock_waits:
            if op in self._holds.get(driver.run_id, ()):
                self._orchestrator.loop.call_soon(self._deliver, driver.run_id, op)

    def ended(self, run_id: str) -> None:
        """Give back everything that a run holds: it is finished."""
        self._end(run_id, "")

    def _end(self, run_id: str, path: str) -> None:
        for op in [*self._holds.get(run_id, ()), *self._waits.get(run_id, ())]:
            if op.startswith(path):
                self._give_up(run_id, op)

    def left(self, run_id: str) -> None:
        """Let go of a run without giving anything back: whoever goes on with it takes its locks over."""
        for op, task in self._waits.pop(run_id, {}).items():
            self._leaving.add((run_id, op))
            task.add_done_callback(lambda _, key=(run_id, op): self._leaving.discard(key))  # type: ignore[misc]
            task.cancel()
        for hold in self._holds.pop(run_id, {}).values():
            self._locker.forget(hold)

    # --- waiting --------------------------------------------------------------------------------------------------

    def _want(self, run_id: str, op: str, asked: HeldLock, *, again: bool = False) -> None:
        if op in self._holds.get(run_id, ()):
            self._orchestrator.loop.call_soon(self._deliver, run_id, op)
        elif op not in self._waits.get(run_id, ()):
            task = self._orchestrator.loop.create_task(self._wait(run_id, op, asked, again))
            task.add_done_callback(partial(self._over, run_id))
            self._waits.setdefault(run_id, {})[op] = task

    def _over(self, run_id: str, task: asyncio.Task[None]) -> None:
        """A wait for a lock has ended. One that raised would leave its run waiting for ever."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._broke(run_id, contained(error))

    def _broke(self, run_id: str, error: Exception) -> None:
        driver = self._orchestrator.active.get(run_id)
        if driver is not None:
            self._orchestrator.broke(driver, error)
        else:
            self._orchestrator.stop_broken(run_id, error)

    async def _wait(self, run_id: str, op: str, asked: HeldLock, again: bool) -> None:
        await self._take(run_id, op, asked, again=again)
        waits = self._waits.get(run_id, {})
        waits.pop(op, None)
        if not waits:
            self._waits.pop(run_id, None)
        # In a callback: a body must not be driven from inside a task.
        self._orchestrator.loop.call_soon(self._deliver, run_id, op)

    async def _take(self, run_id: str, op: str, asked: HeldLock, *, again: bool) -> None:
        owner = step_key(run_id, op)
        mine = partial(self._is_ours, run_id, op)
        hold = await self._locker.take(asked.key, owner, asked.ttl, patient=True, again=again, mine=mine)
        hold.on_lost = lambda: self._lost(run_id, op)
        self._holds.setdefault(run_id, {})[op] = hold

    def _is_ours(self, run_id: str, op: str) -> bool:
        return (run_id, op) not in self._leaving and run_id not in self.regaining

    def _deliver(self, run_id: str, op: str) -> None:
        """Tell the run that it holds a lock.

        One that cannot be told now is told by `tell_again` when it has caught up, or by `join` when it was read anew.
        """
        driver, hold = self._orchestrator.active.get(run_id), self._holds.get(run_id, {}).get(op)
        if driver is None:
            self.left(run_id)
            return
        if hold is None or driver.closed or driver.stale or self._orchestrator.closing:
            return
        try:
            given_up = CancelKey(op) in driver.replay.wishes
            if op in driver.state.lock_waits and not given_up:
                token = _raw(hold.token)
                before = driver.state.kept.token(op) if driver.state.kept is not None else None
                driver.record(WaitResolved(op, "lock", before or token))
                if before is not None and op in driver.state.locks:
                    # A run that is tried again: what it did before under the lock, it did under another token.
                    driver.record(ValueRecorded(op, "lock", token))
        except BaseException as error:
            self._orchestrator.broke(driver, contained(error))

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

    async def kept_out(self, state: RunState) -> bool:
        """Whether others hold the locks that a run waits for, all of them."""
        for op, asked in state.lock_waits.items():
            owner = await self._locker.owner(asked.key)
            if owner in (None, step_key(state.run_id, op)):
                return False
        return True

    # --- taking over ----------------------------------------------------------------------------------------------

    def has_all(self, state: RunState) -> bool:
        """Whether all locks that a journal says its run holds are held here."""
        return all(op in self._holds.get(state.run_id, ()) for op in state.locks)

    def regained(self, state: RunState) -> bool:
        """Whether a run has all locks that its journal says it holds. If not, it is loaded again when it has."""
        if self.has_all(state):
            return True
        if state.run_id not in self.regaining:
            task = self._orchestrator.loop.create_task(self._regain(state))
            task.add_done_callback(partial(self._over, state.run_id))
            self.regaining[state.run_id] = task
            self._lost_locks[state.run_id] = dict(state.locks)
        return False

    async def shut_out(self, run_id: str) -> bool:
        """Whether another run holds a lock that this one has to have again."""
        for op, held in self._lost_locks.get(run_id, {}).items():
            owner = await self._locker.owner(held.key)
            if owner not in (None, step_key(run_id, op)):
                return True
        return False

    def renewed(self, state: RunState) -> list[ValueRecorded]:
        """What to record of locks that somebody else has held meanwhile: their tokens are new."""
        holds = self._holds.get(state.run_id, {})
        return [
            ValueRecorded(op, "lock", _raw(holds[op].token))
            for op, held in state.locks.items()
            if holds[op].token != held.token
        ]

    async def _regain(self, state: RunState) -> None:
        run_id = state.run_id
        try:
            # Claimed first: the owner before us must not go on while we wait.
            if await self._claim(state):
                async with asyncio.timeout(self._time_left(state)):
                    # In the order in which they were taken, so that whoever takes several in one order never waits in
                    # a circle.
                    for op, held in list(state.locks.items()):
                        if op not in self._holds.get(run_id, {}):
                            await self._take(run_id, op, held, again=True)
        except TimeoutError:
            pass  # its deadline has come: it ends without them
        except StoreUnavailable:
            await asyncio.sleep(RETRY_SECONDS)
        finally:
            del self.regaining[run_id]
            self._lost_locks.pop(run_id, None)
        self._orchestrator.loading.load_soon(run_id)

    def _time_left(self, state: RunState) -> float | None:
        deadline = state.started.deadline if state.started is not None else None
        return None if deadline is None else max(0.0, deadline - self._orchestrator.clock.now())

    async def _claim(self, state: RunState) -> bool:
        """Become the owner of a run, and do nothing else with it; False when somebody else appended first.

        One that was parked is so no longer: it fits the code, and who waits for it must not be told otherwise.
        """
        orchestrator = self._orchestrator
        resumed = unpark(state) if state.parked is not None else []
        if (state.owner, state.session) == (orchestrator.name, orchestrator.session) and not resumed:
            return True
        claim = RunClaimed(orchestrator.name, state.epoch + 1, orchestrator.session, early=True)
        return await append_one(orchestrator.store.journal, extend(state, [*resumed, claim], orchestrator.clock.now()))

    def _lost(self, run_id: str, op: str) -> None:
        """A run inside its block no longer holds the lock: stop it, and let it go on when it has the lock again."""
        self._holds.get(run_id, {}).pop(op, None)
        self._orchestrator.loop.call_soon(self._stop, run_id)

    def _stop(self, run_id: str) -> None:
        driver: Driver | None = self._orchestrator.active.get(run_id)
        if driver is not None and not self._orchestrator.closing:
            try:
                self._orchestrator.restart(driver)
            except BaseException as error:
                self._orchestrator.broke(driver, contained(error))

    def close(self) -> None:
        """Stop waiting, and leave what runs hold to whoever goes on with them."""
        for task in self.regaining.values():
            task.cancel()
        for run_id in [*self._holds, *self._waits]:
            self.left(run_id)


def _raw(token: int) -> Raw:
    return Raw(str(token).encode())
