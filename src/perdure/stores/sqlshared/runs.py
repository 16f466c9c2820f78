"""Reading runs and due runs, for both SQL stores. Writes nothing: rows change only with the journal.

Statements of this package are written once, in PostgreSQL's spelling and with the index that SQLite must be told to
use; each store takes from them what is its own (`postgres/names.py`, `sqlite/spelling.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from perdure.errors import Corrupt
from perdure.kernel.events import RunStatus
from perdure.kernel.projection import RunRow
from perdure.ports.journal import Head
from perdure.ports.queues import Waiting
from perdure.ports.runs import RunFilter
from perdure.ports.timers import Ahead, Due, Late
from perdure.stores.sqlshared.rows import listed, run_row, run_row_or_damage

# Distinct names by skip scans: one index step for each name, however many runs have it.
_OWNERS = """
    with recursive owners(owner) as (
        select min(owner) from perdure_runs where finished_at is null
        union all
        select (select min(r.owner) from perdure_runs r where r.finished_at is null and r.owner > owners.owner)
        from owners where owners.owner is not null
    )
    select owner from owners where owner is not null
"""
_PROGRAMS = """
    with recursive programs(program) as (
        select min(program) from perdure_runs where finished_at is null
        union all
        select (select min(r.program) from perdure_runs r where r.finished_at is null and r.program > programs.program)
        from programs where programs.program is not null
    )
    select program from programs where program is not null
"""
# To be followed by what to select for each name.
QUEUES = """
    with recursive names (name) as (
        select min(queue) from perdure_runs where status = 'queued' and queue <> ''
        union all
        select (select min(r.queue) from perdure_runs r
                where r.status = 'queued' and r.queue <> '' and r.queue > names.name)
        from names where names.name is not null
    )
"""
# When the first run of each may begin. To be followed by a condition on the names.
FIRST_QUEUED = """
    select name, (select min(coalesce(r.not_before, r.created_at)) from perdure_runs r
                  where r.status = 'queued' and r.queue = name and r.queue <> '')
    from names where name is not null
"""
# A filter that is not given compares a parameter with null, so that one statement serves every combination. Tags are
# compared as encoded text: keys and values are strings, and equal strings are encoded alike.
_FILTER = """
    ($1::text is null or r.run_id < $1)
      and ($2::text[] is null or r.status = any($2::text[]))
      and ($3::text is null or r.program = $3)
      and ($4::bool or substr(r.program, 1, 8) <> 'perdure.')
      and ($5::float8 is null or r.created_at >= $5)
      and not exists (
          select 1 from unnest($6::text[]) as tag where strpos(',' || substr(r.tags, 2), ',' || tag) = 0)
      and ($8::text is null or r.owner = $8)
      and ($9::text is null or r.parent = $9)
      and ($10::text is null or r.run_id = $10 or r.root = $10)
      and ($11::text is null or r.queue = $11)
      and ($12::float8 is null or r.created_at < $12)
      and ($13::text is null or substr(r.id, 1, length($13)) = $13)
    order by r.run_id desc limit $7
"""
# An optional condition uses no index: open approvals, parked runs and trees have statements of their own.
_PARKED = "r.status = 'parked' and "
# The run_ids of a tree begin with the root's run_id and '/'; '0' is the character after '/'.
_TREE = "r.run_id >= $10 and r.run_id < $10 || '0' and "
_FINISHED = " where r.run_id = any($1::text[]) and (r.finished_at is not null or r.status = 'parked')"
_DUE = """
    select r.run_id, r.program, r.owner, r.wake_at, r.status = 'waiting' from perdure_runs r
    where r.wake_at <= $1
      and (r.program = any($2::text[]) or r.program || ':' || r.version = any($2::text[]))
      and (r.owner is null or r.owner <> all($3::text[]))
      and ($4::text[] is null or r.queue = any($4::text[]))
    order by r.wake_at, r.run_id limit $5
"""
_NEXT_DUE = """
    select null::text, (
        select r.wake_at from perdure_runs r
        where r.wake_at is not null
          and (r.program = any($1::text[]) or r.program || ':' || r.version = any($1::text[]))
          and (r.owner is null or r.owner <> all($2::text[]))
          and ($3::text[] is null or r.queue = any($3::text[]))
        order by r.wake_at limit 1)
    union all
"""
_AHEAD = QUEUES + _NEXT_DUE + FIRST_QUEUED + " and ($3::text[] is null or name = any($3::text[]))"
# A run that has ended, or was imported, has no `wake_at`, though its deadline may still be listed. The row without a
# run is the next deadline.
_LATE = """
    select run_id, deadline from (
        select d.run_id, d.deadline from perdure_deadlines d join perdure_runs r on r.run_id = d.run_id
        where d.program = any($2::text[]) and d.deadline <= $1 and r.wake_at is not null
          and (r.owner is null or r.owner <> all($3::text[]))
        order by d.deadline, d.run_id limit $4) late
    union all
    select null, min((
        select d.deadline from perdure_deadlines d where d.program = p.name and d.deadline > $1
        order by d.deadline limit 1))
    from unnest($2::text[]) as p (name)
"""


class SqlDatabase(Protocol):
    """A database that takes statements of this package. Lists are parameters too."""

    async def query(self, sql: str, *arguments: Any) -> Sequence[Any]:
        """The rows of a small query: a few rows by index."""

    async def read(self, sql: str, *arguments: Any) -> Sequence[Any]:
        """The rows of a large query."""


class SharedRuns:
    """The rows of runs in one database. `run` and `run_and_head` are how the store selects them."""

    run: str
    run_and_head: str
    # The condition on runs with open approvals.
    asking: str

    def __init__(self, database: SqlDatabase) -> None:
        self._sql = database
        self._get = self.run + " where r.run_id = $1"
        self._finished = self.run + _FINISHED
        self._list = self.run_and_head + " where "

    @staticmethod
    def columns(found: Sequence[Any]) -> Sequence[Any]:
        """A row as `sqlshared.rows` reads it."""
        return found

    async def get(self, run_id: str) -> RunRow | None:
        """One run, or None."""
        rows = await self._sql.query(self._get, run_id)
        return run_row(self.columns(rows[0])) if rows else None

    async def list(self, filter: RunFilter) -> Sequence[tuple[RunRow, Head]]:
        """Runs that match, newest first."""
        only = ""
        if filter.asking:
            only = self.asking
        elif filter.root is not None:
            only = _TREE
        elif list(filter.status) == [RunStatus.PARKED]:
            only = _PARKED
        rows = await self._sql.read(
            self._list + only + _FILTER,
            filter.cursor,
            [status.value for status in filter.status] or None,
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
        return [listed(self.columns(row)) for row in rows]

    async def owners(self) -> Sequence[str]:
        """Every orchestrator that owns a run which is not finished."""
        return [owner for (owner,) in await self._sql.read(_OWNERS)]

    async def programs(self) -> Sequence[str]:
        """The names of the programs of all runs that are not finished."""
        return [program for (program,) in await self._sql.read(_PROGRAMS)]

    async def finished(self, run_ids: Sequence[str]) -> Sequence[RunRow | Corrupt]:
        """Those `run_ids` that have ended or are parked; a damaged row is returned as its error."""
        rows = await self._sql.query(self._finished, [*run_ids])
        return [run_row_or_damage(self.columns(row)) for row in rows]


class SharedTimers:
    """Due runs in one database."""

    def __init__(self, database: SqlDatabase) -> None:
        self._sql = database

    async def due(
        self,
        now: float,
        limit: int,
        programs: Sequence[str],
        skip: Sequence[str],
        queues: Sequence[str] | None = None,
    ) -> Sequence[Due]:
        """Runs of these programs and queues due at `now`, earliest first."""
        rows = await self._sql.query(_DUE, now, [*programs], [*skip], as_list(queues), limit)
        return [Due(run_id, program, owner, at, bool(waiting)) for run_id, program, owner, at, waiting in rows]

    async def ahead(self, programs: Sequence[str], skip: Sequence[str], queues: Sequence[str] | None = None) -> Ahead:
        """The next due moment, and the queues with queued runs."""
        rows = await self._sql.query(_AHEAD, [*programs], [*skip], as_list(queues))
        found: dict[str | None, Any] = dict(rows)
        return Ahead(found.pop(None), [Waiting(str(name), first) for name, first in found.items()])

    async def late(self, now: float, limit: int, programs: Sequence[str], skip: Sequence[str]) -> Late:
        """Runs of these programs whose deadline has passed, and the next deadline."""
        rows = await self._sql.query(_LATE, now, [*programs], [*skip], limit)
        found = sorted((deadline, run_id) for run_id, deadline in rows if run_id is not None)
        ahead = next(deadline for run_id, deadline in rows if run_id is None)
        return Late([run_id for _, run_id in found], ahead)


def as_list(names: Sequence[str] | None) -> list[str] | None:
    """A list of names as a parameter; None for a filter that is not given."""
    return None if names is None else [*names]
