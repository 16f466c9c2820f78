"""Queues in PostgreSQL: the picks of one store are noted for a moment (see `offers`): other stores count them as begun,
and pick the next runs."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.policies.queues import Queue
from perdure.ports.queues import Picks
from perdure.stores.postgres.database import Database
from perdure.stores.postgres.offers import Offers
from perdure.stores.sqlshared.queues import Held, SharedQueues

# The runs that other stores picked a moment ago, and that have not begun.
_HELD = """
    select r.run_id, r.queue_key from (
        select unnest(run_ids) as run_id from perdure_picks
        where queue = $1 and taker <> $2 and until > extract(epoch from clock_timestamp())) noted
    join perdure_runs r on r.run_id = noted.run_id where r.status = 'queued'
"""
# Take the picked runs. Row locks separate two stores that pick at the same instant.
_TAKE = """
    with found as materialized (
        select r.run_id from perdure_runs r
        where r.run_id = any($3::text[]) and r.status = 'queued' and not exists (
            select 1 from perdure_picks p
            where p.queue = $1 and p.taker <> $2 and p.until > extract(epoch from clock_timestamp())
              and r.run_id = any(p.run_ids))
        order by r.run_id for update of r skip locked
    ), noted as (
        insert into perdure_picks (queue, taker, until, run_ids)
        select $1, $2, extract(epoch from clock_timestamp()) + $4::float8, array(select run_id from found)
        on conflict (queue, taker) do update set until = excluded.until, run_ids = excluded.run_ids
    )
    select run_id, set_config('synchronous_commit', 'off', true) from found
"""
# How often to try again when other stores took the runs first.
TRIES = 3


class PostgresQueues(SharedQueues):
    """Queued runs in one database."""

    def __init__(self, database: Database, offers: Offers) -> None:
        super().__init__(database)
        self._database, self._offers = database, offers

    async def pick(self, queue: Queue, room: int, now: float, programs: Sequence[str]) -> Picks:
        """The runs that may begin now, highest priority first and key by key; without the picks of other stores."""
        found = Picks(())
        for _ in range(TRIES):
            rows = await self._database.query(_HELD, queue.name, self._offers.taker)
            held = Held([run_id for run_id, _ in rows], [key for _, key in rows])
            found = await self._pick(queue, room, now, programs, held)
            if held.run_ids and len(found.run_ids) < room:
                self._offers.look_again()
            if not found.run_ids:
                return found
            taken = await self._reserve(queue, found.run_ids)
            if taken:
                return Picks([run_id for run_id in found.run_ids if run_id in taken], found.until)
        self._offers.look_again()
        return Picks((), found.until)

    async def _reserve(self, queue: Queue, run_ids: Sequence[str]) -> set[str]:
        rows = await self._database.query(_TAKE, queue.name, self._offers.taker, list(run_ids), self._offers.seconds)
        return {run_id for run_id, _ in rows}
