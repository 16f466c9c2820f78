"""Queues in SQL: whose turn it is, and whether there is room. Every question goes down an index, key by key.

A queue may hold ten thousand runs of one key, or a thousand keys: what a look costs depends on the number of keys of
the highest priority, not on the number of runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from perdure.kernel.policies.queues import Line, Queue, Turns
from perdure.kernel.projection import RunRow
from perdure.ports.journal import Full
from perdure.ports.queues import Picks, QueueStats, Waiting
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
NO_LIMIT = -1
ABOVE_ALL = 1 << 40


class SqlQueues:
    """Queued runs in one database file."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def waiting(self, names: Sequence[str] | None) -> Sequence[Waiting]:
        """The queues that have queued runs."""
        wanted = None if names is None else _json(names)
        return [Waiting(*row) for row in self._database.ask(_WAITING, (wanted,))]

    async def pick(self, queue: Queue, room: int, now: float, programs: Sequence[str]) -> Picks:
        """The runs that may begin now, highest priority first and key by key."""
        ask, until = self._database.ask, None
        if queue.concurrency is not None:
            room = min(room, queue.concurrency - ask(_RUNNING, (queue.name, queue.concurrency))[0][0])
        if queue.rate is not None and room > 0:
            count, per = queue.rate.count, queue.rate.seconds
            room = min(room, count - ask(_STARTED, (queue.name, now - per, now + per, count))[0][0])
            if room <= 0:
                until = ask(_NTH_START, (queue.name, now - per, now + per, count - 1))[0][0] + per
        if room <= 0:
            return Picks((), until)
        turns = Turns(room, queue.per_key)
        wanted = {"queue": queue.name, "now": now, "per_key": queue.per_key, "programs": _json(programs)}
        priority = ABOVE_ALL
        while turns.left > 0:
            priority = ask(_NEXT_PRIORITY, {"queue": queue.name, "below": priority})[0][0]
            if priority is None:
                break
            turns.serve(self._lines(turns, {**wanted, "priority": priority}))
        (next_ready,) = ask(_NEXT_READY, (queue.name, now))[0]
        return Picks(turns.picked, next_ready)

    def _lines(self, turns: Turns, wanted: dict[str, Any]) -> list[Line]:
        """The keys of one priority that may have a turn, with as many of their runs as they may need."""
        # Keys that had a turn at a higher priority come last now, whatever the index says of them.
        found = self._database.ask(_KEYS, {**wanted, "limit": turns.left + turns.keys})
        if len(found) - turns.keys >= turns.left:
            return [Line(key, served, [head], running) for key, served, running, head in found]
        lines = []
        for key, served, running, _ in found:
            runs = self._database.ask(_LINE, {**wanted, "key": key, "limit": turns.left})
            lines.append(Line(key, served, [run_id for (run_id,) in runs], running))
        return lines

    async def stats(self) -> Sequence[QueueStats]:
        """Every queue that has queued or running runs, by name."""
        return [QueueStats(*row) for row in await self._database.read(_STATS)]


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


def _json(values: Any) -> str:
    return msgspec.json.encode(values).decode()
