"""Reading runs and due runs in PostgreSQL. Changes no row: those change only with the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.errors import Corrupt
from perdure.kernel.events import RunStatus
from perdure.kernel.projection import RunRow
from perdure.ports.journal import Head
from perdure.ports.queues import Waiting
from perdure.ports.runs import RunFilter
from perdure.ports.timers import Ahead, Due, Late
from perdure.stores.postgres.database import Database
from perdure.stores.postgres.offers import Offers
from perdure.stores.postgres.rows import (
    RUN,
    RUN_AND_HEAD,
    listed,
    run_and_head,
    run_row,
    run_row_or_damage,
)
from perdure.stores.sqlshared.skip_scans import FIRST_QUEUED, OWNERS, PROGRAMS, QUEUES

# A filter that is not given compares a parameter with null, so that one statement serves every combination. Tags are
# compared as encoded text: keys and values are strings, and equal strings are encoded alike.
_FILTER = """
    ($1::text is null or r.run_id < $1)
      and ($2::text[] is null or r.status = any($2))
      and ($3::text is null or r.program = $3)
      and ($4::bool or substr(r.program, 1, 8) <> 'perdure.')
      and ($5::float8 is null or r.created_at >= $5)
      and not exists (
          select 1 from unnest($6::text[]) as tag where position(',' || tag in ',' || substr(r.tags, 2)) = 0)
      and ($8::text is null or r.owner = $8)
      and ($9::text is null or r.parent = $9)
      and ($10::text is null or r.run_id = $10 or r.root = $10)
      and ($11::text is null or r.queue = $11)
      and ($12::float8 is null or r.created_at < $12)
      and ($13::text is null or starts_with(r.id, $13))
    order by r.run_id desc limit $7
"""
_LIST = RUN_AND_HEAD + " where " + _FILTER
_LIST_ASKING = RUN_AND_HEAD + " where r.approvals > 0 and r.root = '' and " + _FILTER
_LIST_PARKED = RUN_AND_HEAD + " where r.status = 'parked' and " + _FILTER
# The run_ids of a tree begin with the root's run_id and '/'; '0' is the character after '/'.
_LIST_TREE = RUN_AND_HEAD + " where r.run_id >= $10 and r.run_id < $10 || '0' and " + _FILTER
_GET = RUN + " where r.run_id = $1"
_OF_EACH = "select f.* from unnest($1::text[]) as w (id) cross join lateral ("
_LATEST = " where r.id = w.id order by (r.root = '') desc, r.incarnation desc, r.run_id desc limit 1) f"
_FIND = _OF_EACH + RUN_AND_HEAD + _LATEST
_FINISHED = RUN + " where r.run_id = any($1::text[]) and (r.finished_at is not null or r.status = 'parked')"
_DUE = """
    select r.run_id, r.program, r.owner, r.wake_at, r.status = 'waiting' from perdure_runs r
    where r.wake_at <= $1 and r.program = any($2::text[]) and (r.owner is null or r.owner <> all($3::text[]))
      and ($4::text[] is null or r.queue = any($4))
    order by r.wake_at, r.run_id limit $5
"""
WAITING = QUEUES + FIRST_QUEUED + " and ($1::text[] is null or name = any($1))"
_NEXT_DUE = """
    select null::text, (
        select r.wake_at from perdure_runs r
        where r.wake_at is not null and r.program = any($1::text[]) and (r.owner is null or r.owner <> all($2::text[]))
          and ($3::text[] is null or r.queue = any($3))
        order by r.wake_at limit 1)
    union all
"""
# A run that has ended, or was imported, has no `wake_at`, though its deadline may still be listed. The row without a
# run is the next deadline.
_LATE = """
    (select d.run_id, d.deadline from perdure_deadlines d join perdure_runs r on r.run_id = d.run_id
     where d.program = any($2::text[]) and d.deadline <= $1 and r.wake_at is not null
       and (r.owner is null or r.owner <> all($3::text[]))
     order by d.deadline, d.run_id limit $4)
    union all
    select null, min((
        select d.deadline from perdure_deadlines d where d.program = p.name and d.deadline > $1
        order by d.deadline limit 1))
    from unnest($2::text[]) as p (name)
"""
_AHEAD = QUEUES + _NEXT_DUE + FIRST_QUEUED + " and ($3::text[] is null or name = any($3))"


class PostgresRuns:
    """The rows of runs in one database."""

    def __init__(self, database: Database, offers: Offers) -> None:
        self._database, self._offers = database, offers
        # The ids to find in this turn of the loop, and the queries under way.
        self._wanted: dict[str, asyncio.Future[tuple[RunRow, Head] | None]] = {}
        self._finding: set[asyncio.Task[None]] = set()

    async def get(self, run_id: str) -> RunRow | None:
        """One run, or None."""
        rows = await self._database.query(_GET, run_id)
        return run_row(rows[0]) if rows else None

    async def find(self, id: str) -> tuple[RunRow, Head] | None:
        """The latest incarnation under a caller's id, or None."""
        loop = asyncio.get_running_loop()
        if not self._wanted:
            loop.call_soon(self._find_wanted)
        found = self._wanted.get(id)
        if found is None:
            found = self._wanted[id] = loop.create_future()
        return await asyncio.shield(found)  # other callers may wait for it too

    def _find_wanted(self) -> None:
        """Find the ids of many callers in one statement: runs that are started together look theirs up at once."""
        wanted, self._wanted = self._wanted, {}
        task = asyncio.get_running_loop().create_task(self._find_all(wanted))
        self._finding.add(task)
        task.add_done_callback(self._finding.discard)

    async def _find_all(self, wanted: dict[str, asyncio.Future[tuple[RunRow, Head] | None]]) -> None:
        try:
            for row in await self._database.query(_FIND, [*wanted]):
                found = wanted.pop(row[1])
                try:
                    found.set_result(run_and_head(row))
                except Corrupt as error:
                    found.set_exception(error)
            for found in wanted.values():
                found.set_result(None)
        except Exception as error:
            for found in wanted.values():
                found.set_exception(error)
        finally:
            for found in wanted.values():
                found.cancel()  # no effect on those that are set

    async def list(self, filter: RunFilter) -> Sequence[tuple[RunRow, Head]]:
        """Runs that match, newest first."""
        statement = _LIST
        if filter.asking:
            statement = _LIST_ASKING
        elif filter.root is not None:
            statement = _LIST_TREE
        elif list(filter.status) == [RunStatus.PARKED]:
            statement = _LIST_PARKED
        rows = await self._database.query(
            statement,
            filter.cursor,
            [status.value for status in filter.status] if filter.status else None,
            filter.program,
            filter.built_in,
            filter.since,
            # Without the braces: a key and its value as they are encoded in the tags of a run.
            [msgspec.json.encode({key: value}).decode()[1:-1] for key, value in (filter.tags or {}).items()],
            filter.limit,
            filter.owner,
            filter.parent,
            filter.root,
            filter.queue,
            filter.until,
            filter.id_prefix,
        )
        return [listed(row) for row in rows]

    async def owned(
        self,
        owners: Sequence[str],
        status: RunStatus,
        programs: Sequence[str],
        limit: int,
        queues: Sequence[str] | None = None,
    ) -> Sequence[str]:
        """Ids of runs of these owners, programs and queues in this status, oldest first."""
        return await self._offers.owned(owners, status, programs, limit, _list(queues))

    async def owners(self) -> Sequence[str]:
        """Every orchestrator that owns a run which is not finished."""
        return [owner for (owner,) in await self._database.query(OWNERS)]

    async def programs(self) -> Sequence[str]:
        """The names of the programs of all runs that are not finished."""
        return [program for (program,) in await self._database.query(PROGRAMS)]

    async def finished(self, run_ids: Sequence[str]) -> Sequence[RunRow | Corrupt]:
        """Those `run_ids` that have ended or are parked; a damaged row is returned as its error."""
        self._database.notifications.follow(run_ids)
        return [run_row_or_damage(row) for row in await self._database.query(_FINISHED, list(run_ids))]


class PostgresTimers:
    """Due runs in one database."""

    def __init__(self, database: Database, offers: Offers) -> None:
        self._database, self._offers = database, offers

    async def due(
        self,
        now: float,
        limit: int,
        programs: Sequence[str],
        skip: Sequence[str],
        queues: Sequence[str] | None = None,
    ) -> Sequence[Due]:
        """Runs of these programs and queues due at `now`, earliest first."""
        if skip:
            # Other orchestrators are alive, and find the same runs.
            return await self._offers.due(now, limit, programs, skip, _list(queues))
        rows = await self._database.query(_DUE, now, list(programs), list(skip), _list(queues), limit)
        return [Due(*row) for row in rows]

    async def ahead(self, programs: Sequence[str], skip: Sequence[str], queues: Sequence[str] | None = None) -> Ahead:
        """The next due moment, and the queues with queued runs."""
        rows = await self._database.query(_AHEAD, list(programs), list(skip), _list(queues))
        found: dict[str | None, Any] = dict(rows)
        waiting = [Waiting(name, first) for name, first in found.items() if name is not None]
        return Ahead(found[None], waiting)

    async def late(self, now: float, limit: int, programs: Sequence[str], skip: Sequence[str]) -> Late:
        """Runs of these programs whose deadline has passed, and the next deadline."""
        rows = await self._database.query(_LATE, now, list(programs), list(skip), limit)
        found = sorted((deadline, run_id) for run_id, deadline in rows if run_id is not None)
        ahead = next(deadline for run_id, deadline in rows if run_id is None)
        return Late([run_id for _, run_id in found], ahead)


def _list(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)
