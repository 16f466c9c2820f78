"""Blobs in PostgreSQL."""

from __future__ import annotations

from perdure.kernel.values.limits import blob_id
from perdure.ports.blobs import verified
from perdure.stores.postgres.database import Database

# Putting a blob again makes it young, so that it is not collected before an event refers to it.
_PUT = """
    insert into perdure_blobs (id, data, put_at) values ($1, $2, extract(epoch from clock_timestamp()))
    on conflict (id) do update set put_at = excluded.put_at
"""
_GET = "select data from perdure_blobs where id = $1"


class PostgresBlobs:
    """Immutable bytes in one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, data: bytes) -> str:
        """Store the bytes durably and return their id."""
        id = blob_id(data)
        await self._database.query(_PUT, id, data)
        return id

    async def get(self, blob_id_: str) -> bytes | None:
        """The bytes, or None. Raises Corrupt when they are not what was put."""
        rows = await self._database.query(_GET, blob_id_)
        return verified(blob_id_, rows[0][0]) if rows else None
