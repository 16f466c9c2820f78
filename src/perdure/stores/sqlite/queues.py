"""Queues in SQLite: whose turn it is, and whether there is room. Every question goes down an index, key by key.

A queue may hold ten thousand runs of one key, or a thousand keys: the cost of a pick depends on the number of keys of
the highest priority, not on the number of runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from perdure.kernel.policies.queues import Line, Queue, Rate
from perdure.kernel.projection import RunRow
from perdure.ports.journal import Full
from perdure.ports.queues import Picks, QueueStats, Waiting, picks
from perdure.stores.sqlite.bindings import as_json
from perdure.stores.sqlite.database import Database
from perdure.stores.sqlshared.skip_scans import FIRST_QUEUED, QUEUES

_SERVED = " and (?1 is null or name in (select value from json_each(?1)))"
_WAITING = QUEUES + FIRST_QUEUED + _SERVED
# Counting stops at the limit: beyond it the number does not matter. The index is named, since the planner would rather
# go through everything that ever began.
_RUNNING = """
    select count(*) from (select 1 from perdure_runs indexed by perdure_runs_under_way
                          where queue = ? and began_at is not null and finished_at is null limit ?)
"""
_RUNNING_OF_KEY = """
    select count(*) from (select 1 from perdure_runs indexed by perdure_runs_under_way
                          where queue = ? and queue_key = ? and began_at is not null and finished_at is null limit ?)
"""
# Starts on either side of a moment: a clock may have been set back, and no window holds more than is allowed.
_STARTED = """
    select count(*) from (select 1 from perdure_runs
                          where queue = ? and began_at is not null and began_at > ? and began_at < ? limit ?)
"""
_NTH_START = """
    select began_at from perdure_runs where queue = ? and began_at is not null and began_at > ? and began_at < ?
    order by began_at desc limit 1 offset ?
"""
_NEXT_PRIORITY = """
    select max(priority) from perdure_runs
    where status = 'queued' and queue = :queue and queue <> '' and priority < :below
"""
_KEYS = """
    with recursive keys(key) as (
        select min(queue_key) from perdure_runs
        where status = 'queued' and queue = :queue and queue <> '' and priority = :priority
        union all
        select (select min(queue_key) from perdure_runs
                where status = 'queued' and queue = :queue and queue <> '' and priority = :priority
                  and queue_key > keys.key)
        from keys where keys.key is not null
    ), lines as (
        select key,
            (select max(began_at) from perdure_runs
             where queue = :queue and queue_key = key and began_at is not null) as served,
            (select count(*) from (
                select 1 from perdure_runs indexed by perdure_runs_under_way
                where :per_key is not null and queue = :queue and queue_key = key
                  and began_at is not null and finished_at is null limit coalesce(:per_key, 0))) as running,
            (select run_id from perdure_runs
             where status = 'queued' and queue = :queue and queue <> '' and priority = :priority and queue_key = key
               and coalesce(not_before, created_at) <= :now and program in (select value from json_each(:programs))
             order by coalesce(not_before, created_at), run_id limit 1) as head
        from keys where key is not null
    )
    select key, served, running, head from lines
    where head is not null and (:per_key is null or running < :per_key)
    order by served nulls first, key limit :limit
"""
_LINE = """
    select run_id from perdure_runs
    where status = 'queued' and queue = :queue and queue <> '' and priority = :priority and queue_key = :key
      and coalesce(not_before, created_at) <= :now and program in (select value from json_each(:programs))
    order by coalesce(not_before, created_at), run_id limit :limit
"""
_NEXT_READY = """
    select min(coalesce(not_before, created_at)) from perdure_runs
    where status = 'queued' and queue = ? and queue <> '' and coalesce(not_before, created_at) > ?
"""
_STATS = """
    select name, sum(queued), sum(running), min(oldest) from (
        select queue as name, count(*) as queued, 0 as running, min(created_at) as oldest
        from perdure_runs where status = 'queued' and queue <> '' group by queue
        union all
        select queue, 0, count(*), null from perdure_runs indexed by perdure_runs_under_way
        where began_at is not null and finished_at is null and queue <> '' group by queue
    ) group by name order by name
"""
ABOVE_ALL = 1 << 40


class SqlQueues:
    """Queued runs in one database file."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def waiting(self, names: Sequence[str] | None) -> Sequence[Waiting]:
        """The queues that have queued runs."""
        wanted = as_json(names)
        return [Waiting(*row) for row in self._database.query(_WAITING, (wanted,))]

    async def pick(self, queue: Queue, room: int, now: float, programs: Sequence[str]) -> Picks:
        """The runs that may begin now, highest priority first and key by key."""
        return await picks(_Reader(self._database, queue, now, programs), queue, room)

    async def stats(self) -> Sequence[QueueStats]:
        """Every queue that has queued or running runs, by name."""
        return [QueueStats(*row) for row in await self._database.read(_STATS)]


class _Reader:
    """One queue at one moment, for runs of some programs."""

    def __init__(self, database: Database, queue: Queue, now: float, programs: Sequence[str]) -> None:
        self._query, self._name, self._now = database.query, queue.name, now
        self._wanted = {"queue": queue.name, "now": now, "per_key": queue.per_key, "programs": as_json(programs)}

    async def running(self, limit: int) -> int:
        [(running,)] = self._query(_RUNNING, (self._name, limit))
        return int(running)

    async def started(self, rate: Rate) -> tuple[int, float | None]:
        window = (self._name, self._now - rate.seconds, self._now + rate.seconds)
        [(started,)] = self._query(_STARTED, (*window, rate.count))
        return started, self._query(_NTH_START, (*window, rate.count - 1))[0][0] if started >= rate.count else None

    async def next_priority(self, below: int | None) -> int | None:
        bindings = {"queue": self._name, "below": ABOVE_ALL if below is None else below}
        priority: int | None = self._query(_NEXT_PRIORITY, bindings)[0][0]
        return priority

    async def lines(self, priority: int, left: int, served: int) -> Sequence[Line]:
        wanted = {**self._wanted, "priority": priority}
        found = self._query(_KEYS, {**wanted, "limit": left + served})
        if len(found) - served >= left:
            return [Line(key, at, [head], running) for key, at, running, head in found]
        runs = {key: self._query(_LINE, {**wanted, "key": key, "limit": left}) for key, _, _, _ in found}
        return [Line(key, at, [run_id for (run_id,) in runs[key]], running) for key, at, running, _ in found]

    async def next_ready(self) -> float | None:
        ready: float | None = self._query(_NEXT_READY, (self._name, self._now))[0][0]
        return ready


def refusal(db: apsw.Connection, queue: Queue, row: RunRow) -> Full | None:
    """Why a run may not begin now, by what the transaction sees; None when it may."""
    if queue.concurrency is not None:
        if db.execute(_RUNNING, (row.queue, queue.concurrency)).get >= queue.concurrency:
            return Full()
    if queue.per_key is not None:
        if db.execute(_RUNNING_OF_KEY, (row.queue, row.queue_key, queue.per_key)).get >= queue.per_key:
            return Full()
    if queue.rate is not None and row.began_at is not None:
        per = queue.rate.seconds
        window = (row.queue, row.began_at - per, row.began_at + per, queue.rate.count - 1)
        nth = db.execute(_NTH_START, window).get
        if nth is not None:
            return Full(nth + per)
    return None
