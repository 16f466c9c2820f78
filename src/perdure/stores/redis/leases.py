"""Leases in Redis. They expire by the callers' clocks, not by the server's: Redis expires none of the keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from perdure.errors import NotOwner
from perdure.ports.leases import Acquired, HeldBy, Lease, Renewal
from perdure.stores.redis.notifications import Notifications
from perdure.stores.redis.scripts import ACQUIRE, LIVE, RELEASE, RELEASE_ALL, RENEW
from perdure.stores.redis.server import LostReply, Server


class RedisLeases:
    """Leases on one server."""

    def __init__(self, server: Server, notifications: Notifications) -> None:
        self._server, self._notifications = server, notifications

    async def acquire(self, key: str, owner: str, ttl: float, now: float) -> Acquired | HeldBy:
        """Take a lease that is free, expired, or already yours."""
        wanted = (key, owner, repr(now + ttl), repr(now), repr(now - self._server.config.unused_lease))
        commits, epoch, *holder = await self._server.call(ACQUIRE, wanted)
        self._notifications.committed(commits)
        if holder:
            return HeldBy(holder[0].decode(), float(holder[1]))
        return Acquired(owner, epoch, now + ttl)

    async def renew_all(self, renewals: Sequence[Renewal], now: float) -> Sequence[str]:
        """Renew many leases in one script."""
        if not renewals:
            return []
        wanted = [(one.key, one.owner, repr(now + one.ttl)) for one in renewals]
        commits, lost = await self._server.call(RENEW, wanted)
        self._notifications.committed(commits)
        return [key.decode() for key in lost]

    async def release(self, key: str, owner: str) -> None:
        """Release a lease; raises NotOwner when another owner holds it, or none."""
        repeated = False
        try:
            answer = await self._server.once(RELEASE, (key, owner))
        except LostReply:
            repeated = True
            answer = await self._server.call(RELEASE, (key, owner))
        commits, released, *holder = answer
        self._notifications.committed(commits)
        held_by = holder[0].decode() if holder else ""
        # Sent twice, and now without an owner: the first try released it.
        if not released and not (repeated and not held_by):
            raise NotOwner(key, owner, held_by or None)

    async def release_all(self, owner: str) -> int:
        """Release every lease of `owner`."""
        commits, given = await self._server.call(RELEASE_ALL, owner)
        self._notifications.committed(commits)
        return int(given)

    async def get(self, key: str, now: float) -> Lease | None:
        """The lease in force, or None."""
        text = await self._server.query("HGET", f"{self._server.address.prefix}leases", key)
        if text is None:
            return None
        epoch, expires, owner = text.decode().split(" ", 2)
        return Lease(key, owner, int(epoch), float(expires)) if owner and float(expires) > now else None

    async def live(self, prefix: str, now: float) -> Sequence[Lease]:
        """The leases in force whose key begins with `prefix`."""
        found = await self._server.call(LIVE, (prefix, repr(now)))
        return [Lease(key.decode(), owner.decode(), epoch, float(expires)) for key, owner, epoch, expires in found]

    def watch(self, prefix: str) -> AsyncIterator[str]:
        """The keys under `prefix` whose lease was released, or not renewed in time."""
        return self._notifications.leases.watch(prefix)
