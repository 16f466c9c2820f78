"""Leases in PostgreSQL: one statement each. They expire by time alone, by the caller's `now`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from perdure.errors import NotOwner
from perdure.ports.leases import ORCHESTRATOR, Acquired, HeldBy, Lease, Renewal, orchestrator_name
from perdure.stores.postgres.connection import Row
from perdure.stores.postgres.database import Database

# Takes the lease if it is free, expired or ours. Epochs come from one sequence for all leases: a new holder's epoch is
# higher than that of any earlier holder.
_ACQUIRE = """
    insert into perdure_leases as held (key, owner, epoch, expires)
    values ($1, $2, nextval('perdure_epochs'), $3::float8 + $4::float8)
    on conflict (key) do update set
        epoch = case when held.owner = $2 then held.epoch else nextval('perdure_epochs') end,
        owner = $2, expires = excluded.expires
    where held.owner = $2 or held.owner = '' or held.expires <= $3
    returning epoch, expires
"""
_HOLDER = "select owner, expires from perdure_leases where key = $1"
_RENEW_ALL = """
    update perdure_leases l set expires = $4::float8 + w.ttl
    from unnest($1::text[], $2::text[], $3::float8[]) as w (key, owner, ttl)
    where l.key = w.key and l.owner = w.owner returning l.key
"""
# A heartbeat. It need not survive a crash of the server, so it does not wait for the disk. It notifies the other
# processes: an orchestrator whose heartbeat is late may be dead.
_HEARTBEAT = """
    with lazy as materialized (select set_config('synchronous_commit', 'off', true)), renewed as (
        update perdure_leases l set expires = $4::float8 + w.ttl
        from unnest($1::text[], $2::text[], $3::float8[]) as w (key, owner, ttl), lazy
        where l.key = w.key and l.owner = w.owner returning l.key, w.ttl
    )
    select key, pg_notify($5, $6 || key || ' ' || ttl) from renewed
"""
_RELEASE = """
    with freed as (update perdure_leases set owner = '' where key = $1 and owner = $2 returning key)
    select key, pg_notify($3, $4) from freed
"""
_RELEASE_ALL = """
    with freed as (update perdure_leases set owner = '' where owner = $1 returning key)
    select key from freed
"""
_NOTIFY = "select pg_notify($1, $2)"
_NOTIFY_BOTH = "select pg_notify($1, $2), pg_notify($1, $3)"
_SWEEP = "delete from perdure_leases where expires <= $1::float8 - 86400"
_GET = "select key, owner, epoch, expires from perdure_leases where key = $1 and owner <> '' and expires > $2"
_LIVE = """
    select key, owner, epoch, expires from perdure_leases
    where key >= $2 and starts_with(key, $2) and expires > $1 and owner <> '' order by key
"""


class PostgresLeases:
    """Leases in one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._swept = 0.0

    async def acquire(self, key: str, owner: str, ttl: float, now: float) -> Acquired | HeldBy:
        """Take a lease that is free, expired, or already yours."""
        if abs(now - self._swept) >= self._database.config.lease_sweep:
            self._swept = now
            await self._query(_SWEEP, now)
        while True:
            if rows := await self._query(_ACQUIRE, key, owner, now, ttl):
                if key.startswith(ORCHESTRATOR):
                    self._database.names_held.add(orchestrator_name(key))
                    # Notify the others of a new orchestrator, so that they miss it even if it dies before its first
                    # heartbeat.
                    notifications = self._database.notifications
                    beat = f"{notifications.for_heartbeat()}{key} {ttl!r}"
                    await self._query(_NOTIFY_BOTH, self._database.channel, notifications.for_work(), beat)
                return Acquired(owner, *rows[0])
            if rows := await self._query(_HOLDER, key):
                holder, expires = rows[0]
                if holder not in ("", owner) and expires > now:
                    return HeldBy(holder, expires)
            # It was released between the two statements.

    async def renew_all(self, renewals: Sequence[Renewal], now: float) -> Sequence[str]:
        """Renew many leases in one statement."""
        if not renewals:
            return []
        wanted = [one.key for one in renewals], [one.owner for one in renewals], [one.ttl for one in renewals]
        beat = all(one.key.startswith(ORCHESTRATOR) for one in renewals)
        notice = (self._database.channel, self._database.notifications.for_heartbeat()) if beat else ()
        # Over the listening connection: if that is dead, this notices it.
        rows, _ = await self._database.query_reporting(
            _HEARTBEAT if beat else _RENEW_ALL,
            *wanted,
            now,
            *notice,
            patience=self._database.config.lease_patience,
            by=self._database.listener,
        )
        renewed = {row[0] for row in rows}
        return [one.key for one in renewals if one.key not in renewed]

    async def release(self, key: str, owner: str) -> None:
        """Release a lease; raises NotOwner when another owner holds it, or none."""
        notifications = self._database.notifications
        notice = (self._database.channel, notifications.for_leases([key]))
        rows, again = ([], False) if not owner else await self._query_reporting(_RELEASE, key, owner, *notice)
        if rows:
            notifications.changed()
            return
        holder = await self._query(_HOLDER, key)
        if again and holder and not holder[0][0]:
            return  # released by the try whose reply was lost
        raise NotOwner(key, owner, (holder[0][0] or None) if holder else None)

    async def release_all(self, owner: str) -> int:
        """Release every lease of `owner`."""
        rows = await self._query(_RELEASE_ALL, owner)
        if rows:
            notifications = self._database.notifications
            notifications.changed()
            await self._query(_NOTIFY, self._database.channel, notifications.for_leases([key for (key,) in rows]))
        return len(rows)

    async def get(self, key: str, now: float) -> Lease | None:
        """The lease in force, or None."""
        rows = await self._query(_GET, key, now)
        return Lease(*rows[0]) if rows else None

    async def live(self, prefix: str, now: float) -> Sequence[Lease]:
        """The leases in force whose key begins with `prefix`."""
        return [Lease(*row) for row in await self._query(_LIVE, now, prefix)]

    def watch(self, prefix: str) -> AsyncIterator[str]:
        """The keys under `prefix` whose lease was released, or not renewed in time."""
        return self._database.notifications.leases.watch(prefix)

    async def _query(self, sql: str, *arguments: object) -> list[Row]:
        rows, _ = await self._query_reporting(sql, *arguments)
        return rows

    async def _query_reporting(self, sql: str, *arguments: object) -> tuple[list[Row], bool]:
        return await self._database.query_reporting(sql, *arguments, patience=self._database.config.lease_patience)
