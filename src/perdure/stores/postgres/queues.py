"""Queues in PostgreSQL: whose turn it is. Every question goes down an index, key by key.

What a look costs depends on the number of keys of the highest priority, not on the number of runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.kernel.queues import Line, Queue, Turns
from perdure.ports.queues import Picks, QueueStats, Waiting
from perdure.stores.postgres.database import Database
from perdure.stores.postgres.runs import WAITING

# How much is under way, what began in the window, and the start that must be over before another may be: as far as
# the limits make it matter.
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
            (select max(r.began_at) from perdure_runs r
             where r.queue = $1 and r.queue_key = key and r.began_at is not null) as served,
            (select count(*) from (
                select 1 from perdure_runs r
                where $3::bigint is not null and r.queue = $1 and r.queue_key = key
                  and r.began_at is not null and r.finished_at is null limit coalesce($3, 0)) counted) as running,
            (select r.run_id from perdure_runs r
             where r.status = 'queued' and r.queue = $1 and r.queue <> '' and r.priority = $2 and r.queue_key = key
               and coalesce(r.not_before, r.created_at) <= $4 and r.program = any($5::text[])
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


class PostgresQueues:
    """Queued runs in one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def waiting(self, names: Sequence[str] | None) -> Sequence[Waiting]:
        """The queues that have queued runs."""
        wanted = None if names is None else list(names)
        return [Waiting(*row) for row in await self._database.ask(WAITING, wanted)]

    async def pick(self, queue: Queue, room: int, now: float, programs: Sequence[str]) -> Picks:
        """The runs that may begin now, highest priority first and key by key."""
        ask = self._database.ask
        per = queue.rate.seconds if queue.rate is not None else 0.0
        count = queue.rate.count if queue.rate is not None else 0
        [(running, started, nth, priority, ready)] = await ask(
            _ROOM, queue.name, queue.concurrency or 0, now - per, now + per, count, now
        )
        if queue.concurrency is not None:
            room = min(room, queue.concurrency - running)
        if room > 0 and queue.rate is not None:
            room = min(room, count - started)
            if room <= 0:
                return Picks((), nth + per)
        if room <= 0:
            return Picks(())
        turns = Turns(room, queue.per_key)
        while priority is not None and turns.left > 0:
            turns.serve(await self._lines(turns, queue, priority, now, list(programs)))
            if turns.left > 0:
                [(priority,)] = await ask(_NEXT_PRIORITY, queue.name, priority)
        return Picks(turns.picked, ready)

    async def _lines(self, turns: Turns, queue: Queue, priority: int, now: float, programs: list[str]) -> list[Line]:
        """The keys of one priority that may have a turn, with as many of their runs as they may need."""
        # Keys that had a turn at a higher priority come last now, whatever the index says of them.
        wanted: list[Any] = [queue.name, priority, queue.per_key, now, programs, turns.left + turns.keys]
        found = await self._database.ask(_KEYS, *wanted)
        if len(found) - turns.keys >= turns.left or not found:
            return [Line(key, served, [head], running) for key, served, running, head in found]
        keys = [key for key, _, _, _ in found]
        rows = await self._database.ask(_LINES, queue.name, priority, now, programs, turns.left, keys)
        runs: dict[str, list[str]] = dict(rows)
        return [Line(key, served, runs[key], running) for key, served, running, _ in found]

    async def stats(self) -> Sequence[QueueStats]:
        """Every queue that has queued or running runs, by name."""
        return [QueueStats(*row) for row in await self._database.ask(_STATS)]
