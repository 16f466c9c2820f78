"""Leases on a server, with lock files that prove which holders on this machine are dead.

As beside an SQLite file, each orchestrator keeps a lock on a small file, in a folder that all processes of its user on
the machine share. A holder whose file another process can lock is dead, and its lease on its name is free at once.
Holders without such a file, on other machines or in other containers, are dead only once their lease has expired.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence

from perdure.errors import NotOwner, StoreUnavailable
from perdure.ports.leases import ORCHESTRATOR, Acquired, HeldBy, Lease, Leases, Renewal
from perdure.stores.machine import shared_folder
from perdure.stores.sqlite.leases import Presence

# How often the lock files are polled; that sends no statement.
WATCH_SECONDS = 0.5


class WitnessedLeases:
    """Leases of a backend, without those of holders that are known to be dead."""

    def __init__(self, leases: Leases, url: str) -> None:
        self._leases, self._url = leases, url
        self._presence: Presence | None = None

    def _witness(self) -> Presence | None:
        if self._presence is None:
            folder = shared_folder("owners", hashlib.blake2b(self._url.encode(), digest_size=8).hexdigest())
            self._presence = Presence(folder) if folder is not None else None
        return self._presence

    def _is_dead(self, key: str, owner: str) -> bool:
        witness = self._witness() if key.startswith(ORCHESTRATOR) else None
        return witness is not None and witness.is_dead(owner)

    async def acquire(self, key: str, owner: str, ttl: float, now: float) -> Acquired | HeldBy:
        """Take a lease that is free, expired, held by a dead process, or already yours."""
        witness = self._witness()
        if witness is not None and key.startswith(ORCHESTRATOR):
            witness.hold(owner)
        while True:
            result = await self._leases.acquire(key, owner, ttl, now)
            if isinstance(result, Acquired) or not self._is_dead(key, result.owner):
                return result
            await self._free(key, result.owner)

    async def _free(self, key: str, owner: str) -> None:
        """Release the lease of a dead holder."""
        try:
            await self._leases.release(key, owner)
        except NotOwner:
            pass  # another process was faster
        if self._presence is not None:
            self._presence.forget(owner)

    async def renew_all(self, renewals: Sequence[Renewal], now: float) -> Sequence[str]:
        """Renew leases."""
        return await self._leases.renew_all(renewals, now)

    async def release(self, key: str, owner: str) -> None:
        """Release a lease; raises NotOwner when another owner holds it, or none."""
        await self._leases.release(key, owner)

    async def release_all(self, owner: str) -> int:
        """Release every lease of `owner`."""
        try:
            released = await self._leases.release_all(owner)
        except StoreUnavailable:
            if self._presence is not None:
                self._presence.abandon(owner)
            raise
        if self._presence is not None:
            self._presence.release(owner)
        return released

    async def get(self, key: str, now: float) -> Lease | None:
        """The lease in force, or None."""
        found = await self._leases.get(key, now)
        return None if found is not None and self._is_dead(key, found.owner) else found

    async def live(self, prefix: str, now: float) -> Sequence[Lease]:
        """The leases in force whose key begins with `prefix`."""
        return [lease for lease in await self._leases.live(prefix, now) if not self._is_dead(lease.key, lease.owner)]

    async def watch(self, prefix: str) -> AsyncIterator[str]:
        """The keys under `prefix` whose lease has ended: as the backend reports, or once a holder here is dead."""
        ended: asyncio.Queue[str | BaseException] = asyncio.Queue()
        tasks = [asyncio.create_task(self._listen(prefix, ended)), asyncio.create_task(self._poll(prefix, ended))]
        try:
            while True:
                one = await ended.get()
                if isinstance(one, BaseException):
                    raise one
                yield one
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, prefix: str, ended: asyncio.Queue[str | BaseException]) -> None:
        try:
            async for key in self._leases.watch(prefix):
                ended.put_nowait(key)
        except Exception as error:
            ended.put_nowait(error)

    async def _poll(self, prefix: str, ended: asyncio.Queue[str | BaseException]) -> None:
        try:
            witness = self._witness()
            if witness is None:
                return
            known: dict[str, str] = {}
            seen: object = None
            while True:
                # A new holder creates a file in the folder, which changes the folder's mtime.
                current = witness.version()
                if current != seen:
                    seen = current
                    known |= {one.key: one.owner for one in await self._leases.live(prefix, 0.0)}
                for key, owner in list(known.items()):
                    if self._is_dead(key, owner):
                        del known[key]
                        ended.put_nowait(key)
                await asyncio.sleep(WATCH_SECONDS)
        except Exception as error:
            ended.put_nowait(error)

    def close(self) -> None:
        """Release the lock files of all names."""
        if self._presence is not None:
            self._presence.close()
