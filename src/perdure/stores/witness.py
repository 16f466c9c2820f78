"""Leases with lock files that prove which holders on this machine are dead.

A lease expires by time. On one machine more can be known: each orchestrator also holds a lock on a small file, which
the operating system drops when the process dies. A holder whose file another process can lock is dead, and its lease on
its name is free at once. Holders without such a file, on other machines or in other containers, are dead only once
their lease has expired; so are the holders of other leases, runs and steps, which outlive a process.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from perdure.errors import NotOwner, StoreUnavailable
from perdure.inherited import forget_private, keep_private
from perdure.ports.leases import ORCHESTRATOR, Acquired, HeldBy, Lease, Leases, Renewal
from perdure.stores.machine import shared_folder

try:
    import fcntl
except ImportError:  # Windows: leases expire by time alone
    fcntl = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class WitnessConfig:
    """Durations are in seconds."""

    poll_interval: float = 0.5
    """How often the lock files are polled; that sends no statement."""


class WitnessedLeases:
    """Leases of a backend, without those of holders that are known to be dead.

    `folder` is where the lock files are; for a store on a server, all processes of a user on the machine share one.
    """

    def __init__(
        self,
        leases: Leases,
        url: str,
        folder: str | None = None,
        config: WitnessConfig = WitnessConfig(),  # noqa: B008 - frozen
    ) -> None:
        self._leases, self._url, self._folder, self._config = leases, url, folder, config
        self._presence: Presence | None = None

    def _witness(self) -> Presence | None:
        if self._presence is None:
            place = hashlib.blake2b(self._url.encode(), digest_size=8).hexdigest()
            folder = self._folder or shared_folder("owners", place)
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
            if self._folder is not None:
                # Files of the dead must not pile up in the folder of a store.
                for lease in await self._leases.live(ORCHESTRATOR, 0.0):
                    if witness.is_dead(lease.owner):
                        await self._free(lease.key, lease.owner)
        while True:
            result = await self._leases.acquire(key, owner, ttl, now)
            if isinstance(result, Acquired):
                if witness is not None and key.startswith(ORCHESTRATOR):
                    witness.show()
                return result
            if not self._is_dead(key, result.owner):
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
                # A new holder creates a file in the folder, and shows it once it has its lease: both change the mtime.
                current = witness.version()
                if current != seen:
                    seen, before = current, known
                    known = {one.key: one.owner for one in await self._leases.live(prefix, 0.0)}
                    for key in before.keys() - known.keys():
                        ended.put_nowait(key)  # released, or freed by another process
                for key, owner in list(known.items()):
                    if self._is_dead(key, owner):
                        del known[key]
                        ended.put_nowait(key)
                await asyncio.sleep(self._config.poll_interval)
        except Exception as error:
            ended.put_nowait(error)

    def close(self) -> None:
        """Release the lock files of all names."""
        if self._presence is not None:
            self._presence.close()


class Presence:
    """Lock files in one folder: a holder is alive while its process holds the lock on its file."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}

    def hold(self, owner: str) -> None:
        """Hold the lock file of `owner`, unless another process does."""
        while fcntl is not None and owner not in self._held:
            os.makedirs(self._folder, exist_ok=True)
            try:
                file = os.open(self._path(owner), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:
                continue  # the last holder has just removed the folder
            if not _lock(file, fcntl.LOCK_EX):
                # Held by another process under that name, or for an instant by one that checks for dead holders.
                asked = _lock(file, fcntl.LOCK_SH)
                os.close(file)
                if not asked:
                    return
            elif _is_at(file, self._path(owner)):
                # A forked child must not hold the lock when its parent has died.
                keep_private(file)
                self._held[owner] = file
            else:
                os.close(file)  # removed between opening and locking: create it again

    def release(self, owner: str) -> None:
        """Release the lock file of `owner`, and remove it."""
        file = self._held.pop(owner, None)
        if file is None:
            return
        self._remove(self._path(owner))
        forget_private(file)
        os.close(file)
        try:
            os.rmdir(self._folder)
        except OSError:
            pass  # there are other holders

    def is_dead(self, owner: str) -> bool:
        """Whether the process that held the file of `owner` has certainly ended. A missing file proves nothing."""
        if fcntl is None or owner in self._held:
            return False
        path = self._path(owner)
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            # Shared: several processes may check at once, and a new holder can tell a check from a holder.
            return _lock(file, fcntl.LOCK_SH)
        finally:
            os.close(file)

    def show(self) -> None:
        """Have other processes look again: the lease comes after the lock file, and they may have looked in between."""
        now = time.time_ns()  # finer than what the system writes there
        with suppress(OSError):
            os.utime(self._folder, ns=(now, now))

    def version(self) -> object:
        """Changes when a lock file is created, shown or removed, and not when a holder dies."""
        try:
            return os.stat(self._folder).st_mtime_ns
        except OSError:
            return 0

    def forget(self, owner: str) -> None:
        """Remove the file of a dead holder."""
        if fcntl is None or owner in self._held:
            return
        try:
            file = os.open(self._path(owner), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return
        try:
            # Not if a process has taken that name since.
            if _lock(file, fcntl.LOCK_SH):
                self._remove(self._path(owner))
        finally:
            os.close(file)

    def abandon(self, owner: str) -> None:
        """Release the lock and leave the file, so that other processes see at once that its holder has ended."""
        file = self._held.pop(owner, None)
        if file is not None:
            forget_private(file)
            os.close(file)

    def close(self) -> None:
        """Release the lock files of all names."""
        for owner in list(self._held):
            self.release(owner)

    def _path(self, owner: str) -> str:
        return os.path.join(self._folder, hashlib.blake2b(owner.encode(), digest_size=12).hexdigest())

    def _remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except OSError:
            pass  # removed by another process


def _lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_at(file: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except OSError:
        return False
