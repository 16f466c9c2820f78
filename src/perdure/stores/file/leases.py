"""Leases in one small file, under a lock. They expire by time, by the caller's `now`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from perdure.errors import Corrupt, NotOwner
from perdure.ports.leases import Acquired, HeldBy, Lease, Renewal
from perdure.stores.file.folder import Folder
from perdure.stores.memory.store import MemoryLeases

T = TypeVar("T")


class _Saved(msgspec.Struct):
    """The file of leases. `changes` counts how often a lease changed hands."""

    changes: int = 0
    floor: int = 0
    leases: list[Lease] = []


class FileLeases:
    """Leases of one directory."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._read: tuple[tuple[int, int], _Saved] | None = None

    async def acquire(self, key: str, owner: str, ttl: float, now: float) -> Acquired | HeldBy:
        """Take a lease that is free, expired, or already yours."""
        with self._folder.writing():
            saved, leases = self._open()
            for held in list(leases.values()):
                if held.expires <= now - self._folder.config.kept_lease:
                    saved.floor = max(saved.floor, held.epoch)
                    del leases[held.key]
            # A lease that was swept is taken with a higher epoch than it can have had.
            leases.setdefault(key, Lease(key, "", saved.floor, 0.0))
            before = leases[key].owner
            answer = await MemoryLeases(leases).acquire(key, owner, ttl, now)
            if isinstance(answer, HeldBy):
                return answer
            self._save(saved, leases, changed=before != owner)
        return answer

    async def renew_all(self, renewals: Sequence[Renewal], now: float) -> Sequence[str]:
        """Renew many leases, each or not at all."""
        return await self._change(lambda memory: memory.renew_all(renewals, now), changed=False)

    async def release(self, key: str, owner: str) -> None:
        """Release a lease; raises NotOwner when another owner holds it, or none."""
        if not owner:
            raise NotOwner(key, owner, None)
        await self._change(lambda memory: memory.release(key, owner), changed=True)

    async def release_all(self, owner: str) -> int:
        """Release every lease of `owner`."""
        return await self._change(lambda memory: memory.release_all(owner), changed=True)

    async def get(self, key: str, now: float) -> Lease | None:
        """The lease in force, or None."""
        return next((lease for lease in await self.live(key, now) if lease.key == key), None)

    async def live(self, prefix: str, now: float) -> Sequence[Lease]:
        """The leases in force whose key begins with `prefix`."""
        found = self._saved().leases
        return [lease for lease in found if lease.owner and lease.expires > now and lease.key.startswith(prefix)]

    async def watch(self, prefix: str) -> AsyncIterator[str]:
        """Yields nothing: files do not notify. The lock files of the holders say more."""
        await asyncio.Event().wait()
        yield ""

    @property
    def changes(self) -> int:
        """The epoch of a lease: how often it has changed hands."""
        return self._saved().changes

    async def _change(self, change: Callable[[MemoryLeases], Awaitable[T]], *, changed: bool) -> T:
        with self._folder.writing():
            saved, leases = self._open()
            # Nothing suspends here: memory answers at once, and the lock is held briefly.
            result = await change(MemoryLeases(leases))
            self._save(saved, leases, changed=changed)
        return result

    def _open(self) -> tuple[_Saved, dict[str, Lease]]:
        saved = self._saved()
        return msgspec.structs.replace(saved), {lease.key: lease for lease in saved.leases}

    def _save(self, saved: _Saved, leases: dict[str, Lease], *, changed: bool) -> None:
        saved.changes += changed
        saved.leases = list(leases.values())
        self._folder.replace(self._path, msgspec.json.format(msgspec.json.encode(saved), indent=1) + b"\n")

    def _saved(self) -> _Saved:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return _Saved()
        key = (found.st_ino, found.st_mtime_ns)
        if self._read is None or self._read[0] != key:
            with open(self._path, "rb") as file:
                opened = os.fstat(file.fileno())
                try:
                    saved = msgspec.json.decode(file.read(), type=_Saved)
                except ValueError as error:
                    raise Corrupt(self._path, f"{error}; delete it while no process uses the store") from error
            self._read = ((opened.st_ino, opened.st_mtime_ns), saved)
        return self._read[1]

    @property
    def _path(self) -> str:
        return self._folder.name("leases.json")
