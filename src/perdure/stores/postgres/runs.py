"""Reading runs and due runs in PostgreSQL: what is not the same in both SQL stores. Changes no row."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from perdure.errors import Corrupt
from perdure.kernel.events import RunStatus
from perdure.kernel.projection import RunRow
from perdure.ports.journal import Head
from perdure.ports.timers import Due
from perdure.stores.postgres.database import Database
from perdure.stores.postgres.offers import Offers
from perdure.stores.postgres.rows import RUN, RUN_AND_HEAD, WITHOUT_VALUES, columns
from perdure.stores.sqlshared.rows import run_and_head
from perdure.stores.sqlshared.runs import SharedRuns, SharedTimers, as_list

_OF_EACH = "select f.* from unnest($1::text[]) as w (id) cross join lateral ("
_LATEST = " where r.id = w.id order by (r.root = '') desc, r.incarnation desc, r.run_id desc limit 1) f"
_FIND = _OF_EACH + RUN_AND_HEAD + _LATEST


class PostgresRuns(SharedRuns):
    """The rows of runs in one database."""

    run, run_and_head, without_values = RUN, RUN_AND_HEAD, WITHOUT_VALUES
    asking = "r.approvals > 0 and r.root = '' and "
    columns = staticmethod(columns)

    def __init__(self, database: Database, offers: Offers) -> None:
        super().__init__(database)
        self._database, self._offers = database, offers
        # The ids to find in this turn of the loop, and the queries under way.
        self._wanted: dict[str, asyncio.Future[tuple[RunRow, Head] | None]] = {}
        self._finding: set[asyncio.Task[None]] = set()

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
                    found.set_result(run_and_head(columns(row)))
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

    async def owned(
        self,
        owners: Sequence[str],
        status: RunStatus,
        programs: Sequence[str],
        limit: int,
        queues: Sequence[str] | None = None,
    ) -> Sequence[str]:
        """Ids of runs of these owners, programs and queues in this status, oldest first."""
        return await self._offers.owned(owners, status, programs, limit, as_list(queues))

    async def finished(self, run_ids: Sequence[str]) -> Sequence[RunRow | Corrupt]:
        """Those `run_ids` that have ended or are parked; a damaged row is returned as its error."""
        self._database.notifications.follow(run_ids)
        return await super().finished(run_ids)


class PostgresTimers(SharedTimers):
    """Due runs in one database."""

    def __init__(self, database: Database, offers: Offers) -> None:
        super().__init__(database)
        self._offers = offers

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
            return await self._offers.due(now, limit, programs, skip, as_list(queues))
        return await super().due(now, limit, programs, skip, queues)
