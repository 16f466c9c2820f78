"""Offer runs to several orchestrators, to each one different runs.

Every orchestrator finds the same orphans and due runs. Each would claim them, and all but one would have read the
journals for nothing. So an offer is noted for a moment, and the next orchestrator is offered the next runs: `for update
skip locked` separates two queries at the same instant, and the note those that come one after the other. It is a hint:
the journal decides who may write, and the notes of an orchestrator that died expire.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence

from perdure.kernel.events import RunStatus
from perdure.ports.timers import Due
from perdure.stores.postgres.connection import Row
from perdure.stores.postgres.database import Database

# All filters apply before the limit: runs that this orchestrator cannot take do not displace those that it can. Runs
# with an owner are never withheld: the caller may be that owner. The last column says whether runs were left to others.
_DUE = """
    with found as materialized (
        select r.run_id, r.program, r.owner, r.wake_at, r.status = 'waiting' as waiting from perdure_runs r
        where r.wake_at <= $1
          and (r.program = any($2::text[]) or r.program || ':' || r.version = any($2::text[]))
          and (r.owner is null or r.owner <> all($3::text[]))
          and ($4::text[] is null or r.queue = any($4))
          and (r.owner is not null or not exists (
              select 1 from perdure_offers o
              where o.run_id = r.run_id and o.taker <> $6 and o.until > extract(epoch from clock_timestamp())))
        order by r.wake_at, r.run_id limit $5 for update of r skip locked
    ), noted as (
        insert into perdure_offers (run_id, taker, until)
        select run_id, $6, extract(epoch from clock_timestamp()) + $7::float8 from found where owner is null
        order by run_id
        on conflict (run_id) do update set taker = excluded.taker, until = excluded.until
    )
    select f.run_id, f.program, f.owner, f.wake_at, f.waiting, exists (
        select 1 from perdure_offers o where o.taker <> $6 and o.until > extract(epoch from clock_timestamp()))
    from (select 1) one left join found f on true order by f.wake_at, f.run_id
"""
# Runs that the caller itself owns get no note: if it dies, no other orchestrator has to wait for a note to expire.
_OWNED = """
    with found as materialized (
        select r.run_id, r.owner from perdure_runs r
        where r.finished_at is null and r.owner = any($1::text[]) and r.status = $2
          and (r.program = any($3::text[]) or r.program || ':' || r.version = any($3::text[]))
          and ($4::text[] is null or r.queue = any($4))
          and not exists (
              select 1 from perdure_offers o
              where o.run_id = r.run_id and o.taker <> $6 and o.until > extract(epoch from clock_timestamp()))
        order by r.run_id limit $5 for update of r skip locked
    ), noted as (
        insert into perdure_offers (run_id, taker, until)
        select run_id, $6, extract(epoch from clock_timestamp()) + $7::float8 from found
        where owner <> all($8::text[]) order by run_id
        on conflict (run_id) do update set taker = excluded.taker, until = excluded.until
    )
    select f.run_id, exists (
        select 1 from perdure_offers o where o.taker <> $6 and o.until > extract(epoch from clock_timestamp()))
    from (select 1) one left join found f on true order by f.run_id
"""
_FORGET = """
    with old as (delete from perdure_picks where until <= extract(epoch from clock_timestamp()) - 60)
    delete from perdure_offers where until <= extract(epoch from clock_timestamp()) - 60
"""


class Offers:
    """The offers to one store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.taker, self.seconds = secrets.token_hex(6), database.config.offer
        self._again: asyncio.TimerHandle | None = None
        self._asked = 0
        # Whether orphans were left to another store.
        self._orphans = False

    async def due(
        self, now: float, limit: int, programs: Sequence[str], skip: Sequence[str], queues: list[str] | None
    ) -> Sequence[Due]:
        """Due runs, without those that were just offered to another store."""
        rows = await self._query(_DUE, now, list(programs), list(skip), queues, limit)
        return [Due(*row[:5]) for row in rows if row[0] is not None]

    async def owned(
        self, owners: Sequence[str], status: RunStatus, programs: Sequence[str], limit: int, queues: list[str] | None
    ) -> Sequence[str]:
        """Runs of these owners, without those that were just offered to another store."""
        own = list(self._database.names_held)
        rows = await self._query(_OWNED, list(owners), status.value, list(programs), queues, limit, more=(own,))
        return [row[0] for row in rows if row[0] is not None]

    async def _query(self, sql: str, *arguments: object, more: tuple[object, ...] = ()) -> list[Row]:
        rows = await self._database.query(sql, *arguments, self.taker, self.seconds, *more)
        if rows[0][-1]:
            self._orphans |= sql is _OWNED
            self.look_again()
        self._asked += 1
        if self._asked % 100 == 0:
            await self._database.query(_FORGET)
        return rows

    def look_again(self) -> None:
        """Poll again when the notes have expired: the orchestrator that was offered the missing runs may have died."""
        if self._again is None:
            loop = asyncio.get_running_loop()
            self._again = loop.call_later(self.seconds + 0.5, self._move)

    def _move(self) -> None:
        self._again = None
        self._database.notifications.changed()
        if self._orphans:
            self._orphans = False
            self._database.notifications.orphans_possible()

    def close(self) -> None:
        """Cancel the pending poll."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
