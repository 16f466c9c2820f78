"""Reading runs and due runs in SQLite. Writes nothing: rows change only with the journal."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.errors import Corrupt
from perdure.kernel.events import RunStatus
from perdure.kernel.projection import RunRow
from perdure.ports.journal import Head
from perdure.ports.queues import Waiting
from perdure.ports.runs import RunFilter
from perdure.ports.timers import Ahead, Due, Late
from perdure.stores.sqlite.bindings import as_json
from perdure.stores.sqlite.database import Database
from perdure.stores.sqlshared.rows import RUN, RUN_AND_HEAD, listed, run_and_head, run_row, run_row_or_damage
from perdure.stores.sqlshared.skip_scans import FIRST_QUEUED, OWNERS, PROGRAMS, QUEUES

# A filter that is not given compares a parameter with null, so that one statement serves every combination.
_FILTER = """
    (:cursor is null or r.run_id < :cursor)
      and (:status is null or r.status in (select value from json_each(:status)))
      and (:program is null or r.program = :program)
      and (:built_in or substr(r.program, 1, 8) <> 'perdure.')
      and (:since is null or r.created_at >= :since)
      and (:until is null or r.created_at < :until)
      and (:owner is null or r.owner = :owner)
      and (:parent is null or r.parent = :parent)
      and (:root is null or r.run_id = :root or r.root = :root)
      and (:queue is null or r.queue = :queue)
      and (:id_prefix is null or substr(r.id, 1, length(:id_prefix)) = :id_prefix)
      and (:tags is null or not exists (
          select 1 from json_each(:tags) wanted
          where not exists (select 1 from json_each(r.tags) has
                            where has.key = wanted.key and has.value = wanted.value)))
    order by r.run_id desc limit :limit
"""
LIST_FILTER = " where " + _FILTER
# An optional condition uses no index: open approvals and parked runs have statements of their own.
_ASKING = """
    where r.run_id in (
        select run_id from perdure_runs indexed by perdure_runs_by_approvals where approvals > 0 and root = '')
      and
"""
ASKING_FILTER = _ASKING + _FILTER
PARKED_FILTER = " where r.status = 'parked' and " + _FILTER
# The run_ids of a tree begin with the root's run_id and '/'; '0' is the character after '/'.
TREE_FILTER = " where r.run_id >= :root and r.run_id < :root || '0' and " + _FILTER
ENDED = """
    where r.run_id in (select value from json_each(?)) and (r.finished_at is not null or r.status = 'parked')
"""
_GET = RUN + " where r.run_id = ?"
_FIND = RUN_AND_HEAD + " where r.id = ? order by r.root = '' desc, r.incarnation desc, r.run_id desc limit 1"
_LIST = RUN_AND_HEAD + LIST_FILTER
_LIST_ASKING = RUN_AND_HEAD + ASKING_FILTER
_LIST_PARKED = RUN_AND_HEAD + PARKED_FILTER
_LIST_TREE = RUN_AND_HEAD + TREE_FILTER
_OWNED = """
    select run_id from perdure_runs
    where finished_at is null and owner in (select value from json_each(?1)) and status = ?2
      and program in (select value from json_each(?3))
      and (?4 is null or queue in (select value from json_each(?4)))
    order by run_id limit ?5
"""
_FINISHED = RUN + ENDED
_DUE = """
    select run_id, program, owner, wake_at, status = 'waiting' from perdure_runs
    where wake_at <= ?1 and program in (select value from json_each(?2))
      and (owner is null or owner not in (select value from json_each(?3)))
      and (?4 is null or queue in (select value from json_each(?4)))
    order by wake_at, run_id limit ?5
"""
_NEXT_DUE = """
    select null, (
        select wake_at from perdure_runs
        where wake_at is not null and program in (select value from json_each(?1))
          and (owner is null or owner not in (select value from json_each(?2)))
          and (?3 is null or queue in (select value from json_each(?3)))
        order by wake_at limit 1)
    union all
"""
# A run that has ended, or was imported, has no `wake_at`, though its deadline may still be listed.
_LATE = """
    select d.run_id from perdure_deadlines d join perdure_runs r on r.run_id = d.run_id
    where d.program in (select value from json_each(?2)) and d.deadline <= ?1 and r.wake_at is not null
      and (r.owner is null or r.owner not in (select value from json_each(?3)))
    order by d.deadline, d.run_id limit ?4
"""
_NEXT_DEADLINE = """
    select min((select d.deadline from perdure_deadlines d where d.program = p.value and d.deadline > ?1
                order by d.deadline limit 1))
    from json_each(?2) p
"""
_SERVED = " and (?3 is null or name in (select value from json_each(?3)))"
_AHEAD = QUEUES + _NEXT_DUE + FIRST_QUEUED + _SERVED


class SqlRuns:
    """The rows of runs in one database file."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, run_id: str) -> RunRow | None:
        """One run, or None."""
        rows = self._database.query(_GET, (run_id,))
        return run_row(rows[0]) if rows else None

    async def find(self, id: str) -> tuple[RunRow, Head] | None:
        """The latest incarnation under a caller's id, or None."""
        rows = self._database.query(_FIND, (id,))
        return run_and_head(rows[0]) if rows else None

    async def list(self, filter: RunFilter) -> Sequence[tuple[RunRow, Head]]:
        """Runs that match, newest first."""
        bindings = {
            "cursor": filter.cursor,
            "status": as_json(filter.status or None),
            "program": filter.program,
            "since": filter.since,
            "tags": as_json(filter.tags or None),
            "limit": filter.limit,
            "built_in": filter.built_in,
            "owner": filter.owner,
            "parent": filter.parent,
            "root": filter.root,
            "queue": filter.queue,
            "until": filter.until,
            "id_prefix": filter.id_prefix,
        }
        statement = _LIST
        if filter.asking:
            statement = _LIST_ASKING
        elif filter.root is not None:
            statement = _LIST_TREE
        elif list(filter.status) == [RunStatus.PARKED]:
            statement = _LIST_PARKED
        rows = await self._database.read(statement, bindings)
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
        bindings = (as_json(owners), status.value, as_json(programs), as_json(queues), limit)
        return [run_id for (run_id,) in await self._database.read(_OWNED, bindings)]

    async def owners(self) -> Sequence[str]:
        """Every orchestrator that owns a run which is not finished."""
        return [owner for (owner,) in await self._database.read(OWNERS)]

    async def programs(self) -> Sequence[str]:
        """The names of the programs of all runs that are not finished."""
        return [program for (program,) in await self._database.read(PROGRAMS)]

    async def finished(self, run_ids: Sequence[str]) -> Sequence[RunRow | Corrupt]:
        """Those `run_ids` that have ended or are parked; a damaged row is returned as its error."""
        return [run_row_or_damage(row) for row in self._database.query(_FINISHED, (as_json(run_ids),))]


class SqlTimers:
    """Due runs in one database file."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def due(
        self,
        now: float,
        limit: int,
        programs: Sequence[str],
        skip: Sequence[str],
        queues: Sequence[str] | None = None,
    ) -> Sequence[Due]:
        """Runs of these programs and queues due at `now`, earliest first."""
        bindings = (now, as_json(programs), as_json(skip), as_json(queues), limit)
        rows = self._database.query(_DUE, bindings)
        return [Due(run_id, program, owner, at, bool(waiting)) for run_id, program, owner, at, waiting in rows]

    async def ahead(self, programs: Sequence[str], skip: Sequence[str], queues: Sequence[str] | None = None) -> Ahead:
        """The next due moment, and the queues with queued runs."""
        rows = self._database.query(_AHEAD, (as_json(programs), as_json(skip), as_json(queues)))
        found = dict(rows)
        return Ahead(found.pop(None), [Waiting(name, first) for name, first in found.items()])

    async def late(self, now: float, limit: int, programs: Sequence[str], skip: Sequence[str]) -> Late:
        """Runs of these programs whose deadline has passed, and the next deadline."""
        names = as_json(programs)
        found = self._database.query(_LATE, (now, names, as_json(skip), limit))
        [(ahead,)] = self._database.query(_NEXT_DEADLINE, (now, names))
        return Late([run_id for (run_id,) in found], ahead)
