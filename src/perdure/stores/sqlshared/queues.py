"""Which runs of a queue are next, for both SQL stores. Every question goes down an index, key by key.

A queue may hold ten thousand runs of one key, or a thousand keys: the cost of a pick depends on the number of keys of
the highest priority, not on the number of runs. Statements are written as `sqlshared/runs.py` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.kernel.policies.queues import Line, Queue, Rate
from perdure.ports.queues import Picks, QueueStats, Waiting, picks
from perdure.stores.sqlshared.runs import FIRST_QUEUED, QUEUES, SqlDatabase, as_list

_WAITING = QUEUES + FIRST_QUEUED + " and ($1::text[] is null or name = any($1::text[]))"
# How many runs are under way, how many began in the window, the start that must leave it first, the highest priority,
# and when the next run may begin. Counting stops at the limits: beyond them the number does not matter. The index is
# named, since SQLite's planner would rather go through everything that ever began.
_ROOM = """
    select (select count(*) from (
                select 1 from perdure_runs indexed by perdure_runs_under_way
                where queue = $1 and began_at is not null and finished_at is null limit $2::bigint) counted),
        (select count(*) from (
                select 1 from perdure_runs
                where queue = $1 and began_at is not null and began_at > $3::float8 and began_at < $4::float8
                limit $5::bigint) counted),
        (select began_at from perdure_runs
         where queue = $1 and began_at is not null and began_at > $3::float8 and began_at < $4::float8
         order by began_at desc limit 1 offset $6::bigint),
        (select max(priority) from perdure_runs where status = 'queued' and queue = $1 and queue <> ''),
        (select min(coalesce(not_before, created_at)) from perdure_runs
         where status = 'queued' and queue = $1 and queue <> '' and coalesce(not_before, created_at) > $7::float8)
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
                select 1 from perdure_runs r indexed by perdure_runs_under_way
                where $3::bigint is not null and r.queue = $1 and r.queue_key = key
                  and r.began_at is not null and r.finished_at is null limit coalesce($3, 0)) counted)
            + case when key = any($8::text[])
                then (select count(*) from unnest($8::text[]) as held where held = key) else 0 end as running,
            (select r.run_id from perdure_runs r
             where r.status = 'queued' and r.queue = $1 and r.queue <> '' and r.priority = $2 and r.queue_key = key
               and coalesce(r.not_before, r.created_at) <= $4
               and (r.program = any($5::text[]) or r.program || ':' || r.version = any($5::text[]))
               and r.run_id <> all($7::text[])
             order by coalesce(r.not_before, r.created_at), r.run_id limit 1) as head
        from keys where key is not null
    )
    select key, served, running, head from lines
    where head is not null and ($3 is null or running < $3)
    order by served nulls first, key limit $6
"""
_LINES = """
    select key, (select json_agg(run_id) from (
        select r.run_id from perdure_runs r
        where r.status = 'queued' and r.queue = $1 and r.queue <> '' and r.priority = $2 and r.queue_key = key
          and coalesce(r.not_before, r.created_at) <= $3
          and (r.program = any($4::text[]) or r.program || ':' || r.version = any($4::text[]))
          and r.run_id <> all($7::text[])
        order by coalesce(r.not_before, r.created_at), r.run_id limit $5) line)
    from unnest($6::text[]) as key
"""
_STATS = """
    select name, sum(queued)::bigint, sum(running)::bigint, min(oldest) from (
        select queue as name, count(*) as queued, 0 as running, min(created_at) as oldest
        from perdure_runs where status = 'queued' and queue <> '' group by queue
        union all
        select queue, 0, count(*), null from perdure_runs indexed by perdure_runs_under_way
        where began_at is not null and finished_at is null and queue <> '' group by queue
    ) counted group by name order by name
"""


class Held(msgspec.Struct, frozen=True):
    """The runs that other stores are about to begin, and the key of each."""

    run_ids: list[str] = []
    keys: list[str] = []


class SharedQueues:
    """Queued runs in one database."""

    def __init__(self, database: SqlDatabase) -> None:
        self._sql = database

    async def waiting(self, names: Sequence[str] | None) -> Sequence[Waiting]:
        """The queues that have queued runs."""
        return [Waiting(*row) for row in await self._sql.query(_WAITING, as_list(names))]

    async def pick(self, queue: Queue, room: int, now: float, programs: Sequence[str]) -> Picks:
        """The runs that may begin now, highest priority first and key by key."""
        return await self._pick(queue, room, now, programs, Held())

    async def _pick(self, queue: Queue, room: int, now: float, programs: Sequence[str], held: Held) -> Picks:
        rate = queue.rate
        per, count = (rate.seconds, rate.count) if rate is not None else (0.0, 0)
        window = (now - per, now + per, count, max(count - 1, 0))
        [found] = await self._sql.query(_ROOM, queue.name, queue.concurrency or 0, *window, now)
        return await picks(_Reader(self._sql, queue, now, [*programs], held, found), queue, room)

    async def stats(self) -> Sequence[QueueStats]:
        """Every queue that has queued or running runs, by name."""
        return [QueueStats(*row) for row in await self._sql.read(_STATS)]


class _Reader:
    """One queue at one moment, for runs of some programs. One statement has answered what it can beforehand."""

    def __init__(
        self, sql: SqlDatabase, queue: Queue, now: float, programs: list[str], held: Held, found: Sequence[Any]
    ) -> None:
        self._sql, self._queue, self._now, self._programs, self._held = sql, queue, now, programs, held
        self._running: int = found[0]
        self._started: int = found[1]
        self._nth: float | None = found[2]
        self._priority: int | None = found[3]
        self._ready: float | None = found[4]

    async def running(self, limit: int) -> int:
        return self._running + len(self._held.run_ids)

    async def started(self, rate: Rate) -> tuple[int, float | None]:
        return self._started + len(self._held.run_ids), self._nth if self._started >= rate.count else None

    async def next_priority(self, below: int | None) -> int | None:
        if below is not None:
            [(self._priority,)] = await self._sql.query(_NEXT_PRIORITY, self._queue.name, below)
        return self._priority

    async def lines(self, priority: int, left: int, served: int) -> Sequence[Line]:
        name, now, programs, held = self._queue.name, self._now, self._programs, self._held
        wanted = (name, priority, self._queue.per_key, now, programs, left + served)
        found = await self._sql.query(_KEYS, *wanted, held.run_ids, held.keys)
        if len(found) - served >= left or not found:
            return [Line(key, at, [head], running) for key, at, running, head in found]
        keys = [key for key, _, _, _ in found]
        rows = await self._sql.query(_LINES, name, priority, now, programs, left, keys, held.run_ids)
        runs = {key: msgspec.json.decode(line or b"[]", type=list[str]) for key, line in rows}
        return [Line(key, at, runs[key], running) for key, at, running, _ in found]

    async def next_ready(self) -> float | None:
        return self._ready
