"""Queues in PostgreSQL: whose turn it is. Every question goes down an index, key by key.

The cost of a pick depends on the number of keys of the highest priority, not on the number of runs. The picks of one
store are noted for a moment (see `offers`): other stores count them as begun, and pick the next runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.kernel.policies.queues import Line, Queue, Rate
from perdure.ports.queues import Picks, QueueStats, Waiting, picks
from perdure.stores.postgres.connection import Row
from perdure.stores.postgres.database import Database
from perdure.stores.postgres.offers import OFFER_SECONDS, Offers
from perdure.stores.postgres.runs import WAITING

# How many runs are under way, how many began in the window, and the start that must leave it first; counted up to the
# limits.
_ROOM = """
    select (select count(*) from (
                select 1 from perdure_runs
                where queue = $1 and began_at is not null and finished_at is null limit $2::bigint) counted),
        (select count(*) from (
                select 1 from perdure_runs
                where queue = $1 and began_at is not null and began_at > $3::float8 and began_at < $4::float8
                limit $5::bigint) counted),
        (select began_at from perdure_runs
         where queue = $1 and began_at is not null and began_at > $3::float8 and began_at < $4::float8
         order by began_at desc limit 1 offset greatest($5::bigint - 1, 0)),
        (select max(priority) from perdure_runs where status = 'queued' and queue = $1 and queue <> ''),
        (select min(coalesce(not_before, created_at)) from perdure_runs
         where status = 'queued' and queue = $1 and queue <> '' and coalesce(not_before, created_at) > $6::float8)
"""
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
_NEXT_PRIORITY = """
    select max(priority) from perdure_runs where status = 'queued' and queue = $1 and queue <> '' and priority < $2
"""
_KEYS = """
    with recursive keys (key) as (
        select min(queue_key) from perdure_runs
        where status = 'queued' and queue = $1 and queue <> '' and priority = $2
        union all
        select (select min(r.queue_key) from perdure_runs r
                where r.status = 'queued' and r.queue = $1 and r.queue <> '' and r.priority = $2
                  and r.queue_key > keys.key)
        from keys where keys.key is not null
    ), lines as (
        select key,
            case when key = any($8::text[]) then $4 else (
                select max(r.began_at) from perdure_runs r
                where r.queue = $1 and r.queue_key = key and r.began_at is not null) end as served,
            (select count(*) from (
                select 1 from perdure_runs r
                where $3::bigint is not null and r.queue = $1 and r.queue_key = key
                  and r.began_at is not null and r.finished_at is null limit coalesce($3, 0)) counted)
            + (select count(*) from unnest($8) as held where held = key) as running,
            (select r.run_id from perdure_runs r
             where r.status = 'queued' and r.queue = $1 and r.queue <> '' and r.priority = $2 and r.queue_key = key
               and coalesce(r.not_before, r.created_at) <= $4 and r.program = any($5::text[])
               and r.run_id <> all($7::text[])
             order by coalesce(r.not_before, r.created_at), r.run_id limit 1) as head
        from keys where key is not null
    )
    select key, served, running, head from lines
    where head is not null and ($3 is null or running < $3)
    order by served nulls first, key limit $6
"""
_LINES = """
    select key, array(
        select r.run_id from perdure_runs r
        where r.status = 'queued' and r.queue = $1 and r.queue <> '' and r.priority = $2 and r.queue_key = key
          and coalesce(r.not_before, r.created_at) <= $3 and r.program = any($4::text[])
          and r.run_id <> all($7::text[])
        order by coalesce(r.not_before, r.created_at), r.run_id limit $5)
    from unnest($6::text[]) as key
"""
_STATS = """
    select name, sum(queued)::bigint, sum(running)::bigint, min(oldest) from (
        select queue as name, count(*) as queued, 0 as running, min(created_at) as oldest
        from perdure_runs where status = 'queued' and queue <> '' group by queue
        union all
        select queue, 0, count(*), null from perdure_runs
        where began_at is not null and finished_at is null and queue <> '' group by queue
    ) counted group by name order by name
"""


# How often to try again when other stores took the runs first.
TRIES = 3


class Held(msgspec.Struct, frozen=True):
    """What other stores are about to begin: the runs, and the key of each."""

    run_ids: list[str]
    keys: list[str]


class PostgresQueues:
    """Queued runs in one database."""

    def __init__(self, database: Database, offers: Offers) -> None:
        self._database, self._offers = database, offers

    async def waiting(self, names: Sequence[str] | None) -> Sequence[Waiting]:
        """The queues that have queued runs."""
        wanted = None if names is None else list(names)
        return [Waiting(*row) for row in await self._database.query(WAITING, wanted)]

    async def pick(self, queue: Queue, room: int, now: float, programs: Sequence[str]) -> Picks:
        """The runs that may begin now, highest priority first and key by key; without the picks of other stores."""
        found = Picks(())
        for _ in range(TRIES):
            rows = await self._database.query(_HELD, queue.name, self._offers.taker)
            held = Held([run_id for run_id, _ in rows], [key for _, key in rows])
            reader = await _Reader.of(self._database, queue, now, list(programs), held)
            found = await picks(reader, queue, room)
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
        rows = await self._database.query(_TAKE, queue.name, self._offers.taker, list(run_ids), OFFER_SECONDS)
        return {run_id for run_id, _ in rows}

    async def stats(self) -> Sequence[QueueStats]:
        """Every queue that has queued or running runs, by name."""
        return [QueueStats(*row) for row in await self._database.query(_STATS)]


class _Reader:
    """One queue at one moment, for runs of some programs. One statement answers what it can beforehand."""

    def __init__(
        self, database: Database, queue: Queue, now: float, programs: list[str], held: Held, found: Row
    ) -> None:
        self._query, self._queue, self._now, self._programs, self._held = database.query, queue, now, programs, held
        self._running: int = found[0]
        self._started: int = found[1]
        self._nth: float | None = found[2]
        self._priority: int | None = found[3]
        self._ready: float | None = found[4]

    @classmethod
    async def of(cls, database: Database, queue: Queue, now: float, programs: list[str], held: Held) -> _Reader:
        rate = queue.rate
        per, count = (rate.seconds, rate.count) if rate is not None else (0.0, 0)
        [found] = await database.query(_ROOM, queue.name, queue.concurrency or 0, now - per, now + per, count, now)
        return cls(database, queue, now, programs, held, found)

    async def running(self, limit: int) -> int:
        return self._running + len(self._held.run_ids)

    async def started(self, rate: Rate) -> tuple[int, float | None]:
        return self._started + len(self._held.run_ids), self._nth if self._started >= rate.count else None

    async def next_priority(self, below: int | None) -> int | None:
        if below is not None:
            [(self._priority,)] = await self._query(_NEXT_PRIORITY, self._queue.name, below)
        return self._priority

    async def lines(self, priority: int, left: int, served: int) -> Sequence[Line]:
        name, now, programs, held = self._queue.name, self._now, self._programs, self._held
        wanted = (name, priority, self._queue.per_key, now, programs, left + served)
        found = await self._query(_KEYS, *wanted, held.run_ids, held.keys)
        if len(found) - served >= left or not found:
            return [Line(key, at, [head], running) for key, at, running, head in found]
        keys = [key for key, _, _, _ in found]
        runs: dict[str, list[str]] = dict(
            await self._query(_LINES, name, priority, now, programs, left, keys, held.run_ids)
        )
        return [Line(key, at, runs[key], running) for key, at, running, _ in found]

    async def next_ready(self) -> float | None:
        return self._ready
