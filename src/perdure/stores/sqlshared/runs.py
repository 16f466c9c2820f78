"""Reading runs and due runs, for both SQL stores. Writes nothing: rows change only with the journal.

Statements of this package are written once, in PostgreSQL's spelling and with the index that SQLite must be told to
use; each store takes from them what is its own (`postgres/names.py`, `sqlite/spelling.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from perdure.errors import Corrupt
from perdure.kernel.events import FINISHED, RunStatus
from perdure.kernel.projection import RunRow
from perdure.ports.journal import Head
from perdure.ports.queues import Waiting
from perdure.ports.runs import RunFilter, Span, Tally, without_values
from perdure.ports.timers import Ahead, Due, Late
from perdure.stores.sqlshared.rows import compose, listed, run_row, run_row_or_damage

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
    r.run_id < $1 and <floor>
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
      and ($15::bool is false or r.root <= '')
      and ($16::float8 is null or h.at >= $16)
    order by r.run_id desc limit $7
"""
# PostgreSQL guesses how many rows of a table without statistics fit: few have a value or are in a range, a third is
# below a value. Where it expects few, it sorts all. So there is no range without a floor, and `=` finds no roots.
_FLOORED = compose(_FILTER, floor="r.run_id >= $14")
_WHOLE = compose(_FILTER, floor="$14::text is not null")
# An optional condition uses no index: what is few among many has statements of its own.
_STATUS = {status: f"r.status = '{status.value}' and " for status in RunStatus}
_PROGRAM = "r.program = $3 and "
# Most runs of a program are completed, and by status those of other programs would be read in vain.
_COMPLETED_OF_PROGRAM = _PROGRAM + "r.status || '' = 'completed' and "
# The run_ids of a tree begin with the root's run_id and '/'; '0' is the character after '/'.
_TREE = "r.run_id >= $10 and r.run_id < $10 || '0' and "
# What may match: which of these runs do is found out when they are read.
_MATCHES = {
    "": "",
    "input": "(strpos(r.input, $17) > 0 or strpos(r.input, $18) > 0) and ",
    "output": "(strpos(r.output, $17) > 0 or strpos(r.output, $18) > 0) and ",
    "error": """(strpos(lower(r.error), lower($17)) > 0 or strpos(lower(r.reason), lower($17)) > 0
        or strpos(lower(r.error), lower($18)) > 0) and """,
}
# Above every run_id.
LAST = "\U0010ffff"
# Rows that are decoded without a pause of the event loop.
SLICE = 200
_NTH = "select run_id from perdure_runs where run_id < $1 order by run_id desc limit 1 offset $2"
# Programs by status, by skip scans. Counting stops at a bound.
_KINDS = """
    with recursive kinds (status, program) as (
        select s.status, (select min(r.program) from perdure_runs r where r.status = s.status)
        from unnest($1::text[]) as s (status)
        union all
        select k.status,
            (select min(r.program) from perdure_runs r where r.status = k.status and r.program > k.program)
        from kinds k where k.program is not null
    )
"""
_COUNTS = compose(
    """<kinds>
    select program, status, (select count(*) from (
        select 1 from perdure_runs r where r.status = kinds.status and r.program = kinds.program
        limit $2::bigint) counted)
    from kinds where program is not null
""",
    kinds=_KINDS,
)
_ENDED = compose(
    """<kinds>
    , buckets (n) as (select 0 union all select n + 1 from buckets where n + 1 < $5::bigint)
    select program, status, (select count(*) from (
        select 1 from perdure_runs r where r.status = kinds.status and r.program = kinds.program
            and r.finished_at >= $3::float8 + buckets.n * $4::float8
            and r.finished_at < $3::float8 + (buckets.n + 1) * $4::float8
        limit $2::bigint) counted), n
    from kinds, buckets where program is not null and ($6::text is null or program = $6)
""",
    kinds=_KINDS,
)
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
    """The rows of runs in one database.

    `run`, `run_and_head` and `without_values` are how the store selects them.
    """

    run: str
    run_and_head: str
    without_values: str
    # The condition on runs with open approvals.
    asking: str

    def __init__(self, database: SqlDatabase) -> None:
        self._sql = database
        self._get = self.run + " where r.run_id = $1"
        self._finished = self.run + _FINISHED
        self._lists: dict[tuple[bool, str, tuple[str, ...], str], str] = {}

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
        match, found = filter.match, list[tuple[RunRow, Head]]()
        while len(found) < filter.limit:
            asked = min(filter.limit - len(found), SLICE) if match is None else SLICE
            page = await self._page(filter, asked)
            if match is None:
                found += page
            else:
                rows = ((row, head) for row, head in page if match.fits(row))
                found += [(row if filter.values else without_values(row), head) for row, head in rows]
            if len(page) < asked:
                break
            filter = replace(filter, cursor=page[-1][0].run_id)
            await asyncio.sleep(0)
        return found[: filter.limit]

    async def _page(self, filter: RunFilter, limit: int) -> Sequence[tuple[RunRow, Head]]:
        """The next runs that may match, as they are at one moment."""
        match = filter.match
        values = filter.values or match is not None
        rows = await self._sql.read(
            self._statement(
                values, match.field if match else "", self._indexes(filter), _FLOORED if filter.floor else _WHOLE
            ),
            filter.cursor or LAST,
            [status.value for status in filter.status] or None,
            filter.program,
            filter.built_in,
            filter.since,
            # Without the braces: a key and its value as they are encoded in the tags of a run.
            [msgspec.json.encode({key: value}).decode()[1:-1] for key, value in (filter.tags or {}).items()],
            limit,
            filter.owner,
            filter.parent,
            filter.root,
            filter.queue,
            filter.until,
            filter.id_prefix,
            filter.floor,
            filter.roots,
            filter.changed_since,
            *(match.needles() if match else ()),
        )
        return [listed(self.columns(row), checked=values) for row in rows]

    def _indexes(self, filter: RunFilter) -> tuple[str, ...]:
        """The conditions by which the rows are found, each by an index that has them in order."""
        if filter.asking:
            return (self.asking,)
        if filter.root is not None:
            return (_TREE,)
        by_status = dict(_STATUS)
        if filter.program is not None:
            by_status[RunStatus.COMPLETED] = _COMPLETED_OF_PROGRAM
        if not filter.status:
            return ("" if filter.program is None else _PROGRAM,)
        return tuple(by_status[status] for status in dict.fromkeys(filter.status))

    def _statement(self, values: bool, field: str, indexes: tuple[str, ...], rest: str) -> str:
        """One statement, also for several statuses: a run that changes its status is found exactly once."""
        statement = self._lists.get((values, field, indexes, rest))
        if statement is None:
            select = (self.run_and_head if values else self.without_values) + " where "
            parts = [select + only + _MATCHES[field] + rest for only in indexes]
            statement = parts[0]
            if len(parts) > 1:
                parts = [compose("select * from (<part>) as p", part=part) for part in parts]
                statement = " union all ".join(parts) + " order by 1 desc limit $7"
            self._lists[values, field, indexes, rest] = statement
        return statement

    async def nth(self, count: int, cursor: str | None = None) -> str | None:
        """The run_id of the newest run but `count`, before the cursor."""
        rows = await self._sql.read(_NTH, cursor or LAST, count)
        return rows[0][0] if rows else None

    async def counts(self, bound: int) -> Sequence[Tally]:
        """How many runs there are, by program and status."""
        rows = await self._sql.read(_COUNTS, [*RunStatus], bound + 1)
        return sorted(_tally(*row, bound=bound) for row in rows)

    async def count_ended(self, span: Span, program: str | None, bound: int) -> Sequence[Tally]:
        """How many runs ended in each bucket of a time."""
        rows = await self._sql.read(
            _ENDED, [*sorted(FINISHED)], bound + 1, span.since, span.width, span.buckets, program
        )
        return sorted(_tally(*row, bound=bound) for row in rows if row[2])

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


def _tally(program: str, status: str, count: int, bucket: int = 0, *, bound: int) -> Tally:
    return Tally(program, RunStatus(status), min(count, bound), bucket, count > bound)


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
