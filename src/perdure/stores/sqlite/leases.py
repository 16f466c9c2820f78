"""Leases in an SQLite file, with lock files that prove which holders are alive.

A lease expires by time. On one machine more can be known: each orchestrator also holds a lock on a small file beside
the database, which the operating system drops when the process dies. A holder whose file another process can lock is
dead, and its leases are free at once. Other leases are held by runs and steps, which outlive a process, and expire by
time alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Sequence
from inspect import isawaitable
from typing import Any, TypeVar

import apsw

from perdure.errors import NotOwner, StoreUnavailable
from perdure.inherited import forget_private, keep_private
from perdure.ports.leases import Acquired, HeldBy, Lease, Renewal
from perdure.stores.sqlite.database import Database
from perdure.stores.sqlite.spelling import as_json

try:
    import fcntl
except ImportError:  # Windows: leases expire by time alone
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")

# How often unused rows are swept: a sweep reads all of them.
SWEEP_SECONDS = 3600.0
# How often the lock files are polled; that sends no statement.
WATCH_SECONDS = 0.5
# The keys whose holders have a lock file.
WITNESSED = "orchestrator:"

_GET = "select key, owner, epoch, expires from perdure_leases where key = ?"
_PUT = """
    insert into perdure_leases (key, owner, epoch, expires) values (?1, ?2, ?3, ?4)
    on conflict (key) do update set owner = ?2, epoch = ?3, expires = ?4
"""
_RENEW_ALL = """
    update perdure_leases set expires = ?2 + wish.value ->> 'ttl' from json_each(?1) as wish
    where perdure_leases.key = wish.value ->> 'key' and owner = wish.value ->> 'owner'
    returning perdure_leases.key, (select data_version from pragma_data_version)
"""
# A released lease keeps its row, without an owner: the next holder's epoch must be higher.
_RELEASE = "update perdure_leases set owner = '' where key = ? and owner = ? returning key"
_RELEASE_ALL = "update perdure_leases set owner = '' where owner = ? returning key"
_OWNERS = """
    select distinct owner from perdure_leases where owner <> '' and key > 'orchestrator:' and key < 'orchestrator;'
"""
_EXPIRE = "update perdure_leases set expires = min(expires, ?) where owner = ?"
# Rows that were unused for a day are swept. The highest epoch among them stays, under a key that no lease has: the next
# holder of such a lease must get a higher one.
_REMEMBER = """
    insert into perdure_leases (key, owner, epoch, expires)
    select '', '', max(epoch), 1e18 from perdure_leases where expires <= ? - 86400 having max(epoch) is not null
    on conflict (key) do update set epoch = max(epoch, excluded.epoch)
"""
_SWEEP = "delete from perdure_leases where expires <= ? - 86400"
_FLOOR = "select coalesce((select epoch from perdure_leases where key = ''), 0)"
_LIVE = """
    select key, owner, epoch, expires from perdure_leases
    where expires > ?1 and owner <> '' and key >= ?2 and key < ?2 || char(1114111) and substr(key, 1, length(?2)) = ?2
"""


class SqlLeases:
    """Leases in one database file."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._presence = Presence(database.path + "-owners")
        self._swept = 0.0

    async def acquire(self, key: str, owner: str, ttl: float, now: float) -> Acquired | HeldBy:
        """Take a lease that is free, expired, or already yours."""
        if key.startswith(WITNESSED):
            self._presence.hold(owner)
        gone: set[str] = set()
        result: Acquired | HeldBy = await self._write(lambda db: self._acquire(db, key, owner, ttl, now, gone))
        for dead in gone:
            self._presence.forget(dead)
        return result

    def _acquire(
        self, db: apsw.Connection, key: str, owner: str, ttl: float, now: float, gone: set[str]
    ) -> Acquired | HeldBy:
        # Release the leases of dead holders with this write, and then remove the files that proved them dead.
        for row in db.execute(_OWNERS).fetchall():
            other = str(row[0])
            if self._presence.is_dead(other):
                db.execute(_EXPIRE, (now, other))
                gone.add(other)
        if abs(now - self._swept) >= SWEEP_SECONDS:
            self._swept = now
            db.execute(_REMEMBER, (now,))
            db.execute(_SWEEP, (now,))
        found = db.execute(_GET, (key,)).fetchone()
        if found is None:
            epoch = int(db.execute(_FLOOR).get) + 1
        else:
            held = Lease(*found)
            if held.owner == owner:
                epoch = held.epoch
            elif held.owner and held.expires > now:
                return HeldBy(held.owner, held.expires)
            else:
                epoch = held.epoch + 1
        db.execute(_PUT, (key, owner, epoch, now + ttl))
        return Acquired(owner, epoch, now + ttl)

    async def renew_all(self, renewals: Sequence[Renewal], now: float) -> Sequence[str]:
        """Renew many leases in one statement."""
        wishes = as_json(renewals)
        renewed = {row[0] for row in await self._database.execute(_RENEW_ALL, (wishes, now), routine=True)}
        return [renewal.key for renewal in renewals if renewal.key not in renewed]

    async def release(self, key: str, owner: str) -> None:
        """Release a lease; raises NotOwner when another owner holds it, or none."""
        if not owner or not await self._database.execute(_RELEASE, (key, owner)):
            raise NotOwner(key, owner, self._holder(key))

    async def release_all(self, owner: str) -> int:
        """Release every lease of `owner`."""
        try:
            released = await self._database.execute(_RELEASE_ALL, (owner,))
        except StoreUnavailable:
            self._presence.abandon(owner)
            raise
        self._presence.release(owner)
        return len(released)

    async def get(self, key: str, now: float) -> Lease | None:
        """The lease in force, or None."""
        rows = self._database.query(_GET, (key,))
        return next((lease for lease in map(_lease, rows) if self._in_force(lease, now)), None)

    async def live(self, prefix: str, now: float) -> Sequence[Lease]:
        """The leases in force whose key begins with `prefix`."""
        rows = self._database.query(_LIVE, (now, prefix))
        return [lease for lease in map(_lease, rows) if self._in_force(lease, now)]

    async def watch(self, prefix: str) -> AsyncIterator[str]:
        """The keys under `prefix` whose holders have died, among those with a lock file."""
        known: dict[str, str] = {}
        seen: object = None
        while True:
            # A new holder creates a file in the folder, which changes the folder's mtime.
            current = self._presence.version()
            if current != seen:
                seen, before = current, known
                rows = self._database.query(_LIVE, (0.0, prefix))
                known = {lease.key: lease.owner for lease in map(_lease, rows) if lease.key.startswith(WITNESSED)}
                for key in before.keys() - known.keys():
                    yield key
            for key, owner in list(known.items()):
                if self._presence.is_dead(owner):
                    del known[key]
                    yield key
            await asyncio.sleep(WATCH_SECONDS)

    def _in_force(self, lease: Lease, now: float) -> bool:
        return bool(lease.owner) and lease.expires > now and not self._presence.is_dead(lease.owner)

    def _holder(self, key: str) -> str | None:
        rows = self._database.query(_GET, (key,))
        return (rows[0][1] or None) if rows else None

    async def _write(self, transaction: Any) -> Any:
        result = self._database.write(transaction)
        return await result if isawaitable(result) else result

    def close(self) -> None:
        """Release the lock files of all names."""
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
            # Shared: several may check at once, and a new holder can tell a check from a holder.
            return _lock(file, fcntl.LOCK_SH)
        finally:
            os.close(file)

    def version(self) -> object:
        """Changes when a lock file is created or removed, and not when a holder dies."""
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
            # Not if a process has taken that name meanwhile.
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


def _lease(row: tuple[Any, ...]) -> Lease:
    return Lease(*row)
