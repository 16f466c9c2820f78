"""No leases, for a single orchestrator. Every process that asks for a name gets it: the user promises that there is
one.

Locks are real leases of the store: the runs of one orchestrator exclude each other too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from perdure.ports.leases import ORCHESTRATOR, Acquired, HeldBy, Lease, Leases, Renewal

# The leases that orchestrators renew as their heartbeat.
NAMES = ORCHESTRATOR


class NoLeases:
    """Leases on names are always granted, and kept nowhere; all other leases are the store's."""

    def __init__(self, others: Leases) -> None:
        self._others = others
        self._names: dict[str, Lease] = {}

    async def acquire(self, key: str, owner: str, ttl: float, now: float) -> Acquired | HeldBy:
        """Grant a name; other keys are the store's."""
        if not key.startswith(NAMES):
            return await self._others.acquire(key, owner, ttl, now)
        held = self._names.get(key)
        epoch = held.epoch if held is not None and held.owner == owner else int(now * 1000)
        self._names[key] = Lease(key, owner, epoch, now + ttl)
        return Acquired(owner, epoch, now + ttl)

    async def renew_all(self, renewals: Sequence[Renewal], now: float) -> Sequence[str]:
        """Renew names without a check; other keys are the store's."""
        for renewal in renewals:
            if renewal.key.startswith(NAMES):
                await self.acquire(renewal.key, renewal.owner, renewal.ttl, now)
        rest = [renewal for renewal in renewals if not renewal.key.startswith(NAMES)]
        return await self._others.renew_all(rest, now) if rest else []

    async def release(self, key: str, owner: str) -> None:
        """Release a lease."""
        if self._names.pop(key, None) is None:
            await self._others.release(key, owner)

    async def release_all(self, owner: str) -> int:
        """Release every lease of `owner`."""
        mine = [key for key, lease in self._names.items() if lease.owner == owner]
        for key in mine:
            del self._names[key]
        return len(mine) + await self._others.release_all(owner)

    async def get(self, key: str, now: float) -> Lease | None:
        """The lease in force, or None."""
        if not key.startswith(NAMES):
            return await self._others.get(key, now)
        held = self._names.get(key)
        return held if held is not None and held.expires > now else None

    async def live(self, prefix: str, now: float) -> Sequence[Lease]:
        """The leases in force; of names, this process's alone."""
        names = [held for key, held in self._names.items() if key.startswith(prefix) and held.expires > now]
        if prefix.startswith(NAMES):
            return names
        return names + [held for held in await self._others.live(prefix, now) if not held.key.startswith(NAMES)]

    async def watch(self, prefix: str) -> AsyncIterator[str]:
        """The leases that end; names never do."""
        if prefix.startswith(NAMES):
            await asyncio.Event().wait()
        async for key in self._others.watch(prefix):
            yield key
