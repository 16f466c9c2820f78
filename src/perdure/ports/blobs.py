"""Immutable bytes by content hash."""

from __future__ import annotations

from typing import Protocol


class Blobs(Protocol):
    """Bytes that are stored once however often they are put, and verified when they are read."""

    async def put(self, data: bytes) -> str:
        """Store the bytes durably and return their id, the SHA-256 in hex."""

    async def get(self, blob_id: str) -> bytes | None:
        """The bytes, or None when there is no such blob. Raises Corrupt when they are not what was put."""
