"""The reads of upkeep, for both SQL stores. Statements are written as `sqlshared/runs.py` says."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.events import RunStatus
from perdure.ports.upkeep import Ended, Load
from perdure.stores.sqlshared.runs import SqlDatabase

_LOADS = """
    select owner, count(*) filter (where status = 'running'), count(*) filter (where status <> 'running')
    from perdure_runs where finished_at is null and root = '' group by owner order by owner nulls first
"""
_ENDED = """
    select r.run_id, r.id, r.program, r.status, r.finished_at, h.size
    from perdure_runs r join perdure_heads h on h.run_id = r.run_id
    where r.root = '' and r.finished_at < $1 and r.status = any($2::text[]) and r.run_id > $3
    order by r.run_id limit $4
"""
_JOURNALS = """
    select run_id from (select run_id from perdure_heads where run_id > $1 order by run_id limit $2) headed
    union
    select run_id from (select distinct run_id from perdure_journal where run_id > $1 order by run_id limit $2) written
    order by run_id limit $2
"""


class SharedUpkeep:
    """The reading part of the upkeep of one database."""

    def __init__(self, database: SqlDatabase) -> None:
        self._sql = database

    async def loads(self) -> Sequence[Load]:
        """How many unfinished root runs each owner has."""
        return [Load(*row) for row in await self._sql.read(_LOADS)]

    async def list_ended(
        self, before: float, statuses: Sequence[RunStatus], limit: int, after: str = ""
    ) -> Sequence[Ended]:
        """Root runs of these statuses that ended before that moment, by run_id."""
        rows = await self._sql.read(_ENDED, before, [status.value for status in statuses], after, limit)
        return [
            Ended(run_id, id, program, RunStatus(status), at, size) for run_id, id, program, status, at, size in rows
        ]

    async def journals(self, after: str, limit: int) -> Sequence[str]:
        """The run_ids of all journals, in order."""
        return [run_id for (run_id,) in await self._sql.read(_JOURNALS, after, limit)]
