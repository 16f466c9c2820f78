"""Locks of one process: acquired in turn, renewed while they are held, released. The leases of the store are the truth.

When a holder in this process releases its lock, the first waiter is woken at once. The change feed notifies of locks
that other processes release, so that waiting costs no statements.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from perdure.engine.change_feed import Subscription, change_feed
from perdure.engine.duties import Duties
from perdure.errors import LockTimeout, NotOwner, StoreUnavailable, UsageError
from perdure.kernel.policies.lock_keys import PREFIX, lease_key
from perdure.logs import log
from perdure.ports.clock import Clock
from perdure.ports.leases import Acquired, HeldBy, Renewal
from perdure.ports.store import Store


@dataclass(frozen=True, slots=True)
class LocksConfig:
    """Durations are in seconds."""

    refresh_interval: float = 0.125
    """The minimum interval between reads of locks that other processes hold."""
    retry: float = 0.2
    """How long after the store was out of reach a lock is asked for again."""
    longest_wait: float = 30.0
    """The maximum pause before a waiter tries to acquire a held lock again."""
    few: int = 10
    """Up to this many locks are read one by one; beyond it, all held locks are listed."""


class Hold:
    """A lock that this process holds, until it is released or lost."""

    __slots__ = ("expires", "key", "lost", "on_lost", "owner", "renew_at", "token", "ttl", "wanted")

    def __init__(self, key: str, owner: str, ttl: float, token: int, expires: float) -> None:
        self.key, self.owner, self.ttl, self.token, self.expires = key, owner, ttl, token, expires
        self.lost = False
        # In the time of the loop.
        self.renew_at = 0.0
        self.on_lost: Callable[[], None] = lambda: None
        # The lock of a holder whose run has no waiter any more is not renewed, and expires.
        self.wanted: Callable[[], bool] = lambda: True


@dataclass(frozen=True, slots=True)
class LocksReport:
    """The report of a renewal."""

    renewed: int = 0
    lost: int = 0


class Locker:
    """Takes locks for the runs, steps and callers of one process. Renewing them is its duty."""

    name = "renewing locks"

    def __init__(
        self,
        store: Store,
        clock: Clock,
        config: LocksConfig = LocksConfig(),  # noqa: B008 - frozen
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._leases, self._clock, self.config = store.leases, clock, config
        self._duties = Duties(f"store {store.url}", clock)
        self._holds: dict[str, Hold] = {}
        # The waiters for each lock; only the first of them polls the store.
        self._queues: dict[str, deque[asyncio.Event]] = {}
        # Locks that are being released in the background, each as often as that is under way.
        self._leaving: Counter[str] = Counter()
        # Locks that other processes hold and waiters here want.
        self._held_elsewhere: set[str] = set()
        self._changes = Subscription(
            change_feed(store),
            "reading locks that other processes hold",
            self._wake_free,
            interval=config.refresh_interval,
            wanted=lambda: bool(self._held_elsewhere),
            leases=PREFIX,
            on_freed=self._lease_ended,
        )
        self._renewal: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    # --- acquiring ------------------------------------------------------------------------------------------------

    async def acquire(
        self,
        key: str,
        owner: str,
        ttl: float,
        *,
        timeout: float | None = None,
        patient: bool = False,
        again: bool = False,
        replaces: Callable[[str], bool] = lambda owner: False,
        mine: Callable[[], bool] = lambda: True,
    ) -> Hold:
        """Wait for a lock and hold it; raises LockTimeout if it is not released in time.

        `patient`: also wait while the store is out of reach. `again`: if the owner has the lock already, it need not
        queue. `replaces`: whether this owner succeeds another one, whose lock it gets at once. `mine`: whether a lock
        that was acquired at the moment of a cancellation may be released: not if another process has become the same
        owner.
        """
        deadline = None if timeout is None else self.loop.time() + timeout
        ask = partial(self._try_acquire, key, owner, ttl, patient, replaces, mine)
        if again and isinstance(hold := await ask(), Hold):
            return hold
        turn = asyncio.Event()
        queue = self._queues.setdefault(key, deque())
        queue.append(turn)
        try:
            while queue[0] is not turn:
                await _wait(turn, self._left(deadline))
            while True:
                found = await ask()
                if isinstance(found, Hold):
                    return found
                if key not in self._holds:
                    self._wait_for_release(key)
                left = self._left(deadline)
                if left is not None and left <= 0:
                    raise TimeoutError
                wait = max(0.001, min(found.expires - self._clock.now(), self.config.longest_wait))
                with suppress(TimeoutError):
                    await _wait(turn, wait if left is None else min(wait, left))
        except TimeoutError:
            raise LockTimeout(key, timeout or 0.0) from None
        finally:
            if queue[0] is turn:
                self._held_elsewhere.discard(key)
            queue.remove(turn)
            self._wake(key)
            if not queue and self._queues.get(key) is queue:
                del self._queues[key]

    def _left(self, deadline: float | None) -> float | None:
        return None if deadline is None else deadline - self.loop.time()

    def holds(self, key: str, owner: str) -> bool:
        """Whether this owner holds this lock through this process."""
        return key in self._holds and self._holds[key].owner == owner

    async def owner(self, key: str) -> str | None:
        """The owner of a lock, here or elsewhere; None also while the lock is being released here."""
        leaving = self._leaving[key] > 0
        lease = await self._leases.get(lease_key(key), self._clock.now())
        return None if lease is None or leaving else lease.owner

    async def _try_acquire(
        self,
        key: str,
        owner: str,
        ttl: float,
        patient: bool,
        replaces: Callable[[str], bool],
        mine: Callable[[], bool],
    ) -> Hold | HeldBy:
        if self._closed:
            raise UsageError(f"the lock {key!r} cannot be acquired: the engine or client was closed")
        here = self._holds.get(key)
        if here is not None and here.owner != owner and here.expires > self._clock.now() and not replaces(here.owner):
            return HeldBy(here.owner, here.expires)
        # In a task of its own: if the waiter is cancelled, the lock that the answer brings must be released.
        asking = self.loop.create_task(self._acquire(key, owner, ttl, replaces))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            self._spawn_release(key, self._undo(asking, mine()))
            raise
        except StoreUnavailable:
            if not patient:
                raise
            return HeldBy("", self._clock.now() + self.config.retry)

    async def _acquire(self, key: str, owner: str, ttl: float, replaces: Callable[[str], bool]) -> Hold | HeldBy:
        now = self._clock.now()
        answer = await self._leases.acquire(lease_key(key), owner, ttl, now)
        if isinstance(answer, HeldBy) and replaces(answer.owner):
            with suppress(NotOwner):
                await self._leases.release(lease_key(key), answer.owner)
            answer = await self._leases.acquire(lease_key(key), owner, ttl, now)
        if isinstance(answer, HeldBy):
            return answer
        before = self._holds.get(key)
        if before is not None:
            self._lose(before)
        return self._hold(key, owner, ttl, answer)

    def _hold(self, key: str, owner: str, ttl: float, acquired: Acquired) -> Hold:
        hold = self._holds[key] = Hold(key, owner, ttl, acquired.epoch, acquired.expires)
        hold.renew_at = self.loop.time() + ttl / 3
        self._set_renewal()
        return hold

    async def _undo(self, asking: asyncio.Task[Hold | HeldBy], mine: bool) -> None:
        with suppress(StoreUnavailable):
            found = await asking
            if isinstance(found, Hold):
                await self.release(found) if mine else self.forget(found)

    # --- releasing ------------------------------------------------------------------------------------------------

    async def release(self, hold: Hold) -> None:
        """Release a lock, unless it was lost or released before."""
        if self._holds.get(hold.key) is not hold:
            return
        del self._holds[hold.key]
        try:
            await self._leases.release(lease_key(hold.key), hold.owner)
        except NotOwner:
            hold.lost = True
        except StoreUnavailable as error:
            log.warning("the lock %r could not be released, and expires in %g s: %s", hold.key, hold.ttl, error)
        finally:
            self._wake(hold.key)

    def release_soon(self, hold: Hold) -> None:
        """Release a lock in the background."""
        self._spawn_release(hold.key, self.release(hold))

    def release_left(self, key: str, owner: str) -> None:
        """Release in the background a lock that an owner may have left when its process died."""
        self._spawn_release(key, self._release_left(key, owner))

    async def _release_left(self, key: str, owner: str) -> None:
        with suppress(NotOwner, StoreUnavailable):
            await self._leases.release(lease_key(key), owner)
            self._wake(key)

    def changed(self, key: str) -> None:
        """A lock was released or taken away from its holder here by a caller: wake its waiters at once."""
        hold = self._holds.get(key)
        if hold is not None:
            self._lose(hold)
        self._wake(key)

    def forget(self, hold: Hold) -> None:
        """Stop renewing a lock without releasing it: another process takes over its holder."""
        if self._holds.get(hold.key) is hold:
            del self._holds[hold.key]
            self._wake(hold.key)

    async def close(self) -> None:
        """Release all locks held here, and cancel the waiters."""
        self._closed = True
        for hold in list(self._holds.values()):
            await self.release(hold)
        for queue in self._queues.values():
            for turn in queue:
                turn.set()
        if self._renewal is not None:
            self._renewal.cancel()
        await self._changes.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _wake(self, key: str) -> None:
        queue = self._queues.get(key)
        if queue:
            queue[0].set()

    # --- renewing -------------------------------------------------------------------------------------------------

    def _set_renewal(self) -> None:
        if not self._holds or self._closed:
            return
        due = min(hold.renew_at for hold in self._holds.values())
        if self._renewal is not None:
            if self._renewal.when() <= due and not self._renewal.cancelled():
                return
            self._renewal.cancel()
        self._renewal = self.loop.call_at(due, self._renew_soon)

    def _renew_soon(self) -> None:
        self._renewal = None
        self._spawn(self._duties.perform(self))

    async def run_once(self, now: float) -> LocksReport:
        """Renew the locks that are due, and those that will be soon: one statement for all of them."""
        time = self.loop.time()
        due = [h for h in self._holds.values() if h.renew_at <= time + h.ttl / 6 and h.wanted()]
        for hold in self._holds.values():
            if hold.renew_at <= time:
                hold.renew_at = time + hold.ttl / 3
        try:
            return await self._renew_all(due, now) if due else LocksReport()
        finally:
            self._set_renewal()

    async def _renew_all(self, due: Sequence[Hold], now: float) -> LocksReport:
        try:
            renewals = [Renewal(lease_key(hold.key), hold.owner, hold.ttl) for hold in due]
            lost = set(await self._leases.renew_all(renewals, now))
        except StoreUnavailable as error:
            log.warning(
                "%d locks could not be renewed: %s. Retrying; a lock that is not renewed in time is lost",
                len(due),
                error,
            )
            for hold in due:
                hold.renew_at = self.loop.time() + min(self.config.retry * 5, hold.ttl / 10)
            return LocksReport()
        for hold in due:
            if self._holds.get(hold.key) is not hold:
                continue
            if lease_key(hold.key) in lost:
                self._lose(hold)
            else:
                hold.expires = now + hold.ttl
                hold.renew_at = self.loop.time() + hold.ttl / 3
        return LocksReport(len(due) - len(lost), len(lost))

    def _lose(self, hold: Hold) -> None:
        if self._holds.get(hold.key) is hold:
            del self._holds[hold.key]
        hold.lost = True
        log.warning("%s has lost the lock %r: it expired, and another holder acquired it", hold.owner, hold.key)
        hold.on_lost()
        self._wake(hold.key)

    # --- what other processes do ----------------------------------------------------------------------------------

    def _wait_for_release(self, key: str) -> None:
        self._held_elsewhere.add(key)
        self._changes.start()
        # It may have been released since it was read.
        self._changes.notify()

    def _lease_ended(self, name: str) -> None:
        for key in [key for key in self._held_elsewhere if lease_key(key) == name]:
            self._wake(key)

    async def _wake_free(self) -> None:
        """Wake the waiters for released locks."""
        for key in await self._free(list(self._held_elsewhere)):
            self._wake(key)

    async def _free(self, keys: Sequence[str]) -> list[str]:
        now = self._clock.now()
        if len(keys) <= self.config.few:
            return [key for key in keys if await self._leases.get(lease_key(key), now) is None]
        live = {lease.key for lease in await self._leases.live(PREFIX, now)}
        return [key for key in keys if lease_key(key) not in live]

    def _spawn(self, work: Coroutine[Any, Any, Any], *done: Callable[[Any], object]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        for callback in (self._tasks.discard, *done):
            task.add_done_callback(callback)

    def _spawn_release(self, key: str, work: Coroutine[Any, Any, Any]) -> None:
        self._leaving[key] += 1
        self._spawn(work, lambda _: self._released(key))

    def _released(self, key: str) -> None:
        self._leaving[key] -= 1
        if not self._leaving[key]:
            del self._leaving[key]


async def _wait(turn: asyncio.Event, seconds: float | None) -> None:
    """Wait for a turn; raises TimeoutError when it does not come."""
    async with asyncio.timeout(seconds):
        await turn.wait()
    turn.clear()
