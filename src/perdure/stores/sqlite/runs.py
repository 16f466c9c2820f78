"""Reading runs in SQLite: what is not the same in both SQL stores."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.events import RunStatus
from perdure.kernel.projection import RunRow
from perdure.ports.journal import Head
from perdure.stores.sqlite.database import Database
from perdure.stores.sqlite.spelling import SpelledDatabase
from perdure.stores.sqlshared.rows import RUN, RUN_AND_HEAD, WITHOUT_VALUES, run_and_head
from perdure.stores.sqlshared.runs import SharedRuns, as_list

_FIND = RUN_AND_HEAD + " where r.id = ? order by r.root = '' desc, r.incarnation desc, r.run_id desc limit 1"
_OWNED = """
    select run_id from perdure_runs
    where finished_at is null and owner = any($1::text[]) and status = $2
      and (program = any($3::text[]) or program || ':' || version = any($3::text[]))
      and ($4::text[] is null or queue = any($4::text[]))
    order by run_id limit $5
"""


class SqlRuns(SharedRuns):
    """The rows of runs in one database file."""

    run, run_and_head, without_values = RUN, RUN_AND_HEAD, WITHOUT_VALUES
    asking = """r.run_id in (
        select run_id from perdure_runs indexed by perdure_runs_by_approvals where approvals > 0 and root = '') and """

    def __init__(self, database: Database) -> None:
        super().__init__(SpelledDatabase(database))
        self._database = database

    async def find(self, id: str) -> tuple[RunRow, Head] | None:
        """The latest incarnation under a caller's id, or None."""
        rows = self._database.query(_FIND, (id,))
        return run_and_head(rows[0]) if rows else None

    async def owned(
        self,
        owners: Sequence[str],
        status: RunStatus,
        programs: Sequence[str],
        limit: int,
        queues: Sequence[str] | None = None,
    ) -> Sequence[str]:
        """Ids of runs of these owners, programs and queues in this status, oldest first."""
        rows = await self._sql.read(_OWNED, [*owners], status.value, [*programs], as_list(queues), limit)
        return [run_id for (run_id,) in rows]
