"""Blobs in Redis."""

from __future__ import annotations

from perdure.errors import PayloadTooLarge
from perdure.kernel.values.limits import blob_id
from perdure.ports.blobs import verified
from perdure.stores.redis.scripts import PUT_BLOB
from perdure.stores.redis.server import Server

# The largest value that Redis takes by default.
MAX_SIZE = 512 * 1024 * 1024


class RedisBlobs:
    """Immutable bytes on one server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def put(self, data: bytes) -> str:
        """Store the bytes and return their id."""
        if len(data) > MAX_SIZE:
            raise PayloadTooLarge("a blob", len(data), MAX_SIZE)
        id = blob_id(data)
        await self._server.call(PUT_BLOB, id, data)
        return id

    async def get(self, blob_id_: str) -> bytes | None:
        """The bytes, or None. Raises Corrupt when they are not what was put."""
        return verified(
            blob_id_, await self._server.query("HGET", f"{self._server.address.prefix}blob:{blob_id_}", "d")
        )
