"""Leases in an SQLite file: they expire by time, by the caller's `now`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import apsw

from perdure.errors import NotOwner
from perdure.ports.leases import Acquired, HeldBy, Lease, Renewal
from perdure.stores.sqlite.database import Database
from perdure.stores.sqlite.spelling import as_json

_GET = "select key, owner, epoch, expires from perdure_leases where key = ?"
_PUT = """
    insert into perdure_leases (key, owner, epoch, expires) values (?1, ?2, ?3, ?4)
    on conflict (key) do update set owner = ?2, epoch = ?3, expires = ?4
"""
_RENEW_ALL = """
    update perdure_leases set expires = ?2 + renewal.value ->> 'ttl' from json_each(?1) as renewal
    where perdure_leases.key = renewal.value ->> 'key' and owner = renewal.value ->> 'owner'
    returning perdure_leases.key, (select data_version from pragma_data_version)
"""
# A released lease keeps its row, without an owner: the next holder's epoch must be higher.
_RELEASE = "update perdure_leases set owner = '' where key = ? and owner = ? returning key"
_RELEASE_ALL = "update perdure_leases set owner = '' where owner = ? returning key"
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
        self._swept = 0.0

    async def acquire(self, key: str, owner: str, ttl: float, now: float) -> Acquired | HeldBy:
        """Take a lease that is free, expired, or already yours."""
        return await self._database.commit(lambda db: self._acquire(db, key, owner, ttl, now))

    def _acquire(self, db: apsw.Connection, key: str, owner: str, ttl: float, now: float) -> Acquired | HeldBy:
        if abs(now - self._swept) >= self._database.config.lease_sweep:
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
        wanted = as_json(renewals)
        renewed = {row[0] for row in await self._database.execute(_RENEW_ALL, (wanted, now), routine=True)}
        return [renewal.key for renewal in renewals if renewal.key not in renewed]

    async def release(self, key: str, owner: str) -> None:
        """Release a lease; raises NotOwner when another owner holds it, or none."""
        if not owner or not await self._database.execute(_RELEASE, (key, owner)):
            raise NotOwner(key, owner, self._holder(key))

    async def release_all(self, owner: str) -> int:
        """Release every lease of `owner`."""
        return len(await self._database.execute(_RELEASE_ALL, (owner,)))

    async def get(self, key: str, now: float) -> Lease | None:
        """The lease in force, or None."""
        rows = self._database.query(_GET, (key,))
        lease = Lease(*rows[0]) if rows else None
        return lease if lease is not None and lease.owner and lease.expires > now else None

    async def live(self, prefix: str, now: float) -> Sequence[Lease]:
        """The leases in force whose key begins with `prefix`."""
        return [Lease(*row) for row in self._database.query(_LIVE, (now, prefix))]

    async def watch(self, prefix: str) -> AsyncIterator[str]:
        """Yields nothing: files do not notify. The lock files of the holders say more."""
        await asyncio.Event().wait()
        yield ""

    def _holder(self, key: str) -> str | None:
        rows = self._database.query(_GET, (key,))
        return (rows[0][1] or None) if rows else None
