"""Locks for callers: `engine.locks`. What runs and steps hold is taken with `lock()`, and seen here."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from perdure.engine.locks import Locker
from perdure.errors import Corrupt, InvalidLock, LockLost, NotOwner
from perdure.kernel.events import moment
from perdure.kernel.ids import plain
from perdure.kernel.policies.lock_keys import PREFIX, check_key, check_ttl, lease_key
from perdure.ports.clock import Clock
from perdure.ports.leases import HeldBy, Lease, Leases, Renewal
from perdure.ports.runs import Runs


@dataclass(frozen=True, slots=True)
class LockView:
    """A lock in force. `token` grows each time it changes hands; `owner` is a run and its op, a step, or a caller.

    `run_id` and `id` are those of the run that holds it, or whose step does; `id` is None where the run is not known.
    """

    key: str
    owner: str
    token: int
    expires_at: datetime
    run_id: str | None = None
    id: str | None = None


class Locks:
    """The locks of a store."""

    def __init__(self, leases: Leases, clock: Clock, locker: Locker, runs: Runs) -> None:
        self._leases, self._clock, self.locker, self._runs = leases, clock, locker, runs

    @asynccontextmanager
    async def hold(
        self, key: str, ttl: float | timedelta = 30, timeout: float | None = None
    ) -> AsyncIterator[LockView]:
        """Hold a lock for the length of a block, renewed as long as it lasts: `async with engine.locks.hold(key)`.

        Raises LockTimeout when it does not come free within `timeout` seconds, and LockLost at the end of a block
        during which another owner took it.
        """
        key = check_key(key)
        seconds = check_ttl(ttl, key)
        held = await self.locker.acquire(key, f"caller:{secrets.token_hex(6)}", seconds, timeout=timeout)
        try:
            yield LockView(key, held.owner, held.token, moment(held.expires))
        finally:
            await self.locker.release(held)
        if held.lost:
            raise LockLost(key, held.token)

    async def acquire(self, key: str, owner: str, ttl: float | timedelta = 30) -> LockView | HeldBy:
        """Take a lock that is free, expired or already the owner's, without waiting. Only its owner renews it."""
        key = check_key(key)
        answer = await self._leases.acquire(lease_key(key), _owner(key, owner), check_ttl(ttl, key), self._clock.now())
        if isinstance(answer, HeldBy):
            return answer
        return LockView(key, owner, answer.epoch, moment(answer.expires))

    async def renew(self, key: str, owner: str, ttl: float | timedelta = 30) -> LockView:
        """Renew a lock; raises NotOwner when it is not the owner's."""
        key = check_key(key)
        now, name = self._clock.now(), lease_key(key)
        lost = await self._leases.renew_all([Renewal(name, owner, check_ttl(ttl, key))], now)
        held = await self._leases.get(name, now)
        if lost or held is None or held.owner != owner:
            raise NotOwner(name, owner, None if held is None else held.owner)
        return _view(held)

    async def release(self, key: str, owner: str) -> None:
        """Release a lock; raises NotOwner when it is not the owner's."""
        key = check_key(key)
        await self._leases.release(lease_key(key), _owner(key, owner))
        self.locker.changed(key)

    async def force_release(self, key: str) -> LockView | None:
        """Release a lock of any holder, and return what it was; None when the lock is free.

        Its holder learns of it at its next renewal at the latest, and a run then waits until it has the lock again.
        Until then two holders may be inside: only the token tells them apart.
        """
        while (held := await self.get(key)) is not None:
            try:
                await self._leases.release(lease_key(key), held.owner)
                self.locker.changed(key)
                return held
            except NotOwner:
                continue  # it has just changed hands
        return None

    async def get(self, key: str) -> LockView | None:
        """A lock that is held, or None."""
        lease = await self._leases.get(lease_key(check_key(key)), self._clock.now())
        return None if lease is None else await self._named(_view(lease))

    async def list(self) -> list[LockView]:
        """Every lock that is held, by key."""
        views = map(_view, await self._leases.live(PREFIX, self._clock.now()))
        return sorted([await self._named(view) for view in views], key=lambda view: view.key)

    async def _named(self, view: LockView) -> LockView:
        """With the id of the run that holds it."""
        if view.run_id is None:
            return view
        try:
            row = await self._runs.get(view.run_id)
        except Corrupt:
            return view  # the lock is held all the same
        return replace(view, id=row.id) if row is not None else replace(view, run_id=None)


def _owner(key: str, owner: str) -> str:
    if not isinstance(owner, str) or not owner:
        raise InvalidLock(key, f"has owner={owner!r}, which is not a name", cure="give the name of who holds it")
    return plain(owner)


def _view(lease: Lease) -> LockView:
    # What a run or a step of it holds is named after its op.
    run_id, slash, _ = lease.owner.partition("/")
    return LockView(
        lease.key.removeprefix(PREFIX), lease.owner, lease.epoch, moment(lease.expires), run_id if slash else None
    )
