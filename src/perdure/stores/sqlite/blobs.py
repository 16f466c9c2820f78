"""Blobs in an SQLite file."""

from __future__ import annotations

import time

import apsw

from perdure.kernel.values.limits import blob_id
from perdure.ports.blobs import verified
from perdure.stores.sqlite.database import Database

_PUT = "insert into perdure_blobs (id, data) values (?, ?) on conflict (id) do nothing"
# Noted at each put, so that a blob is not collected before an event refers to it.
_SAY_PUT = "insert into perdure_blob_puts values (?1, ?2) on conflict (blob_id) do update set put_at = ?2"
_GET = "select data from perdure_blobs where id = ?"


class SqlBlobs:
    """Immutable bytes in one database file."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, data: bytes) -> str:
        """Store the bytes durably and return their id."""
        id = blob_id(data)

        def put(db: apsw.Connection) -> None:
            db.execute(_PUT, (id, data))
            db.execute(_SAY_PUT, (id, time.time()))

        await self._database.commit(put)
        return id

    async def get(self, blob_id_: str) -> bytes | None:
        """The bytes, or None. Raises Corrupt when they are not what was put."""
        rows = await self._database.read(_GET, (blob_id_,))
        return verified(blob_id_, rows[0][0]) if rows else None
