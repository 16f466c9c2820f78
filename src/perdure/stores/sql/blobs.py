"""Blobs in an SQLite file."""

from __future__ import annotations

from inspect import isawaitable

from perdure.errors import Corrupt
from perdure.kernel.payload import blob_id
from perdure.stores.sql.database import Database

_PUT = "insert into perdure_blobs (id, data) values (?, ?) on conflict (id) do nothing"
_GET = "select data from perdure_blobs where id = ?"


class SqlBlobs:
    """Immutable bytes in one database file."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, data: bytes) -> str:
        """Store the bytes durably and return their id."""
        id = blob_id(data)
        result = self._database.write(lambda db: db.execute(_PUT, (id, data)).fetchall())
        if isawaitable(result):
            await result
        return id

    async def get(self, blob_id_: str) -> bytes | None:
        """The bytes, or None. Raises Corrupt when they are not what was put."""
        rows = await self._database.read(_GET, (blob_id_,))
        if not rows:
            return None
        data: object = rows[0][0]
        if not isinstance(data, bytes) or blob_id(data) != blob_id_:
            raise Corrupt(f"the blob {blob_id_}", "its bytes do not match its hash")
        return data
