"""Upkeep in PostgreSQL: pruning, blob collection, and rows rebuilt from their journals."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.errors import Corrupt
from perdure.kernel.projection import RunRow
from perdure.ports.upkeep import Collected
from perdure.stores.postgres.connection import Connection
from perdure.stores.postgres.database import Database
from perdure.stores.postgres.errors import is_taken
from perdure.stores.postgres.rows import arrays, bindings, by_column
from perdure.stores.sqlshared.rows import TABLE, WIDTH, compose
from perdure.stores.sqlshared.upkeep import SharedUpkeep

# An earlier incarnation that is removed in the same call does not keep a later one. A child's run_id is its root's, '/'
# and its op path; '0' is the character after '/'.
_REMOVE = """
    with gone as materialized (
        select r.run_id from perdure_runs r
        where r.run_id = any($1::text[]) and r.root = '' and r.finished_at is not null
          and not exists (
              select 1 from perdure_runs o where o.id = r.id and o.root = '' and o.incarnation < r.incarnation
                and o.run_id <> all($1::text[]))
        for update of r
    ), journals as (
        delete from perdure_journal j using gone g where j.run_id = g.run_id
    ), heads as (
        delete from perdure_heads h using gone g where h.run_id = g.run_id
    ), uses as (
        delete from perdure_blob_uses u using gone g where u.run_id = g.run_id
    ), children as (
        delete from perdure_runs r using gone g
        where r.run_id > g.run_id || '/' and r.run_id < g.run_id || '0' and r.root = g.run_id
    ), rows as (
        delete from perdure_runs r using gone g where r.run_id = g.run_id
    )
    select run_id from gone
"""
_UNUSED = """
    select b.id, octet_length(b.data) from perdure_blobs b
    where b.put_at <= extract(epoch from clock_timestamp()) - $1::float8
      and not exists (select 1 from perdure_blob_uses u where u.blob_id = b.id) limit $2
"""
_COLLECT = """
    with unused as materialized (
        select b.id, octet_length(b.data) as size from perdure_blobs b
        where b.put_at <= extract(epoch from clock_timestamp()) - $1::float8
          and not exists (select 1 from perdure_blob_uses u where u.blob_id = b.id)
        limit $2 for update of b skip locked
    ), gone as (
        delete from perdure_blobs b using unused u where b.id = u.id
    )
    select id, size from unused
"""
_KEEP = "insert into perdure_blob_uses (blob_id, run_id) values ($1, '') on conflict do nothing"
_LOCK_HEAD = "select next_seq from perdure_heads where run_id = $1 for update"
_REMOVE_ROWS = """
    delete from perdure_runs
    where run_id = $1 or (run_id > $1 || '/' and run_id < $1 || '0' and root = $1)
"""
_INSERT_ROWS = compose(
    "insert into perdure_runs (<columns>) select * from unnest(<arrays>)", columns=", ".join(TABLE), arrays=arrays(1)
)


class PostgresUpkeep(SharedUpkeep):
    """The upkeep of one database."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._database = database

    async def remove(self, run_ids: Sequence[str]) -> Sequence[str]:
        """Remove runs that have ended, with everything that belongs to them."""
        return [run_id for (run_id,) in await self._database.query(_REMOVE, list(run_ids))]

    async def collect(self, age: float, limit: int, *, dry_run: bool = False) -> Collected:
        """Remove blobs that no journal refers to and that were last put over `age` seconds ago."""
        found = await self._database.query(_UNUSED if dry_run else _COLLECT, age, limit)
        return Collected(len(found), sum(size for _, size in found))

    async def keep(self, blob_id: str) -> None:
        """Never collect this blob."""
        await self._database.query(_KEEP, blob_id)

    async def reproject(self, run_id: str, expected_next: int, rows: Sequence[RunRow]) -> bool:
        """Replace the rows of a journal's run and its children."""
        fill, values = self._database.fill, by_column(map(bindings, rows), WIDTH)

        async def replace(connection: Connection) -> bool:
            head = await connection.fetch(fill(_LOCK_HEAD), run_id)
            if not head or head[0][0] != expected_next:
                return False
            await connection.fetch(fill(_REMOVE_ROWS), run_id)
            try:
                await connection.fetch(fill(_INSERT_ROWS), *values)
            except Exception as error:
                if not is_taken(error):
                    raise
                raise Corrupt(f"the row of run_id {run_id}", f"another run has its id: {error}", run_id) from error
            return True

        return await self._database.retry_transaction(replace)
