"""Locks of one process: taken in turn, renewed while they are held, given back. The leases of the store are the truth.

Whoever waits here is told at once when a holder in this process lets go, in the order of asking. What other processes
do shows in the store's version, which costs no statement, so that waiting for a lock that nobody touches is idle.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from perdure.errors import LockTimeout, NotOwner, StoreUnavailable, UsageError
from perdure.kernel.policies.lock_keys import PREFIX, lease_key
from perdure.ports.clock import Clock
from perdure.ports.leases import Acquired, HeldBy, Leases, Renewal

log = logging.getLogger("perdure")

# How often the store's version is looked at while somebody else holds a lock, and how often at most its leases are.
WATCH_SECONDS = 0.05
LOOK_SECONDS = 0.1
# How long to wait at most before a lock that somebody holds is asked for again, whatever the clocks say.
ASK_AGAIN_SECONDS = 30.0
RETRY_SECONDS = 0.2
# So many locks are asked for one by one; for more, all that are held are read.
FEW = 10


class Hold:
    """A lock that is held through this process, until it is given back or lost."""

    __slots__ = ("expires", "key", "lost", "on_lost", "owner", "renew_at", "token", "ttl", "wanted")

    def __init__(self, key: str, owner: str, ttl: float, token: int, expires: float) -> None:
        self.key, self.owner, self.ttl, self.token, self.expires = key, owner, ttl, token, expires
        self.lost = False
        # In the time of the loop.
        self.renew_at = 0.0
        self.on_lost: Callable[[], None] = lambda: None
        # A holder that nobody waits for any more is not renewed: its lock runs out at the latest.
        self.wanted: Callable[[], bool] = lambda: True


class Locker:
    """Takes locks for the runs, steps and callers of one process."""

    def __init__(self, leases: Leases, clock: Clock, version: Callable[[], object]) -> None:
        self.loop = asyncio.get_running_loop()
        self._leases, self._clock, self._version = leases, clock, version
        self._holds: dict[str, Hold] = {}
        # Those who wait for a lock, by its key; only the first of them asks the store.
        self._queues: dict[str, deque[asyncio.Event]] = {}
        # Locks that somebody outside holds and somebody here waits for.
        self._outside: set[str] = set()
        self._seen: object = None
        self._watching: asyncio.Task[None] | None = None
        self._renewal: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    # --- taking ---------------------------------------------------------------------------------------------------

    async def take(
        self,
        key: str,
        owner: str,
        ttl: float,
        *,
        timeout: float | None = None,
        patient: bool = False,
        again: bool = False,
        heir_of: Callable[[str], bool] = lambda owner: False,
        mine: Callable[[], bool] = lambda: True,
    ) -> Hold:
        """Wait for a lock and hold it; raises LockTimeout when it does not come free in time.

        `patient`: a store that is out of reach is waited for, too. `again`: what is the owner's already needs no turn.
        `heir_of` says of which owner this one takes the place: it gets what that one holds at once. `mine` says, when
        the wait is cancelled, whether what it brought in that moment may be given back: not if another process has
        become the same owner meanwhile.
        """
        deadline = None if timeout is None else self.loop.time() + timeout
        ask = partial(self._ask, key, owner, ttl, patient, heir_of, mine)
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
                    self._look_outside(key)
                left = self._left(deadline)
                if left is not None and left <= 0:
                    raise TimeoutError
                wait = max(0.001, min(found.expires - self._clock.now(), ASK_AGAIN_SECONDS))
                with suppress(TimeoutError):
                    await _wait(turn, wait if left is None else min(wait, left))
        except TimeoutError:
            raise LockTimeout(key, timeout or 0.0) from None
        finally:
            if queue[0] is turn:
                self._outside.discard(key)
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
        """Who holds a lock now, here or elsewhere."""
        lease = await self._leases.get(lease_key(key), self._clock.now())
        return None if lease is None else lease.owner

    async def _ask(
        self,
        key: str,
        owner: str,
        ttl: float,
        patient: bool,
        heir_of: Callable[[str], bool],
        mine: Callable[[], bool],
    ) -> Hold | HeldBy:
        if self._closed:
            raise UsageError(f"the lock {key!r} cannot be taken any more: the engine or client was closed")
        here = self._holds.get(key)
        if here is not None and here.owner != owner and here.expires > self._clock.now() and not heir_of(here.owner):
            return HeldBy(here.owner, here.expires)
        # In a task of its own: if nobody waits for the answer any more, what it brought must be given back.
        asking = self.loop.create_task(self._acquire(key, owner, ttl, heir_of))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            self._spawn(self._undo(asking, mine()))
            raise
        except StoreUnavailable:
            if not patient:
                raise
            return HeldBy("", self._clock.now() + RETRY_SECONDS)

    async def _acquire(self, key: str, owner: str, ttl: float, heir_of: Callable[[str], bool]) -> Hold | HeldBy:
        now = self._clock.now()
        answer = await self._leases.acquire(lease_key(key), owner, ttl, now)
        if isinstance(answer, HeldBy) and heir_of(answer.owner):
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

    # --- giving back ----------------------------------------------------------------------------------------------

    async def release(self, hold: Hold) -> None:
        """Give a lock back. One that was lost, or has been given back, is nobody's business any more."""
        if self._holds.get(hold.key) is not hold:
            return
        del self._holds[hold.key]
        try:
            await self._leases.release(lease_key(hold.key), hold.owner)
        except NotOwner:
            hold.lost = True
        except StoreUnavailable as error:
            log.warning("the lock %r was not given back, and runs out in %g s: %s", hold.key, hold.ttl, error)
        finally:
            self._wake(hold.key)

    def release_soon(self, hold: Hold) -> None:
        """Give a lock back in the background."""
        self._spawn(self.release(hold))

    def changed(self, key: str) -> None:
        """Somebody gave a lock back, or took it away, past its holder here: nobody need wait to find out."""
        hold = self._holds.get(key)
        if hold is not None:
            self._lose(hold)
        self._wake(key)

    def forget(self, hold: Hold) -> None:
        """Renew a lock no more and leave it in force: another process takes its holder over."""
        if self._holds.get(hold.key) is hold:
            del self._holds[hold.key]
            self._wake(hold.key)

    async def close(self) -> None:
        """Give back everything that is held here, and wait for no more."""
        self._closed = True
        for hold in list(self._holds.values()):
            await self.release(hold)
        for queue in self._queues.values():
            for turn in queue:
                turn.set()
        if self._renewal is not None:
            self._renewal.cancel()
        tasks = [task for task in (self._watching, *self._tasks) if task is not None]
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
        self._spawn(self._renew())

    async def _renew(self) -> None:
        """Hold on to what is due, and to what will be soon: one statement for all of them."""
        now = self.loop.time()
        due = [h for h in self._holds.values() if h.renew_at <= now + h.ttl / 6 and h.wanted()]
        for hold in self._holds.values():
            if hold.renew_at <= now:
                hold.renew_at = now + hold.ttl / 3
        if due:
            await self._renew_all(due)
        self._set_renewal()

    async def _renew_all(self, due: Sequence[Hold]) -> None:
        wall = self._clock.now()
        try:
            wishes = [Renewal(lease_key(hold.key), hold.owner, hold.ttl) for hold in due]
            lost = set(await self._leases.renew_all(wishes, wall))
        except StoreUnavailable as error:
            log.warning(
                "%d locks could not be renewed: %s. It is tried again; a lock that is not renewed in time is lost",
                len(due),
                error,
            )
            for hold in due:
                hold.renew_at = self.loop.time() + min(RETRY_SECONDS * 5, hold.ttl / 10)
            return
        for hold in due:
            if self._holds.get(hold.key) is not hold:
                continue
            if lease_key(hold.key) in lost:
                self._lose(hold)
            else:
                hold.expires = wall + hold.ttl
                hold.renew_at = self.loop.time() + hold.ttl / 3

    def _lose(self, hold: Hold) -> None:
        if self._holds.get(hold.key) is hold:
            del self._holds[hold.key]
        hold.lost = True
        log.warning("%s has lost the lock %r: it ran out, and another holder took it", hold.owner, hold.key)
        hold.on_lost()
        self._wake(hold.key)

    # --- what others do -------------------------------------------------------------------------------------------

    def _look_outside(self, key: str) -> None:
        self._outside.add(key)
        # It may have come free between the answer and now: look once in any case.
        self._seen = object()
        if self._watching is None or self._watching.done():
            self._watching = self.loop.create_task(self._watch())

    async def _watch(self) -> None:
        looked = -LOOK_SECONDS
        listening = self.loop.create_task(self._listen())
        try:
            while self._outside:
                await asyncio.sleep(WATCH_SECONDS)
                if self.loop.time() - looked >= LOOK_SECONDS:
                    looked = self.loop.time()
                    await self.look()
        finally:
            listening.cancel()

    async def _listen(self) -> None:
        """Hear of locks that come free, from leases that tell: what is kept beside the store shows in no version."""
        while True:
            try:
                async for name in self._leases.watch(PREFIX):
                    for key in [key for key in self._outside if lease_key(key) == name]:
                        self._wake(key)
            except StoreUnavailable:
                pass
            except Exception:
                log.exception("an unexpected error while locks are watched; they are polled meanwhile")
            await asyncio.sleep(RETRY_SECONDS * 5)

    def look_soon(self) -> None:
        """As `look`, in the background."""
        if self._outside:
            self._spawn(self.look())

    async def look(self) -> None:
        """See whether a lock that somebody here waits for has come free elsewhere, if anything was written at all."""
        current = self._version()
        if current == self._seen or not self._outside:
            return
        self._seen = current
        try:
            for key in await self._free(list(self._outside)):
                self._wake(key)
        except StoreUnavailable:
            self._seen = object()
        except Exception:
            log.exception("an unexpected error while locks are looked at; they are looked at again")
            self._seen = object()

    async def _free(self, keys: Sequence[str]) -> list[str]:
        now = self._clock.now()
        if len(keys) <= FEW:
            return [key for key in keys if await self._leases.get(lease_key(key), now) is None]
        live = {lease.key for lease in await self._leases.live(PREFIX, now)}
        return [key for key in keys if lease_key(key) not in live]

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _wait(turn: asyncio.Event, seconds: float | None) -> None:
    """Wait for a turn; raises TimeoutError when it does not come."""
    async with asyncio.timeout(seconds):
        await turn.wait()
    turn.clear()
