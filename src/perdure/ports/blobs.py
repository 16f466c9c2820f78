"""Immutable bytes by content hash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from perdure.errors import Corrupt, PerdureError
from perdure.kernel.divergence.recorded_source import source_ids
from perdure.kernel.divergence.source import Source, decode_source
from perdure.kernel.events import Batch
from perdure.kernel.values.limits import blob_id as id_of


class Blobs(Protocol):
    """Bytes that are stored once however often they are put, and verified when they are read."""

    async def put(self, data: bytes) -> str:
        """Store the bytes durably and return their id, the SHA-256 in hex."""

    async def get(self, blob_id: str) -> bytes | None:
        """The bytes, or None when there is no such blob. Raises Corrupt when they are not what was put."""


def verified(blob_id: str, data: object) -> bytes | None:
    """The bytes of a blob as a store has read them; raises Corrupt if they are not what was put."""
    if data is None:
        return None
    if not isinstance(data, bytes) or id_of(data) != blob_id:
        raise Corrupt(f"the blob {blob_id}", "its bytes do not match its hash")
    return data


async def sources_of(blobs: Blobs, batches: Sequence[Batch]) -> dict[str, Source]:
    """The sources and structures that a run was executed with, by id, in order; without those that cannot be read."""
    found: dict[str, Source] = {}
    for code in source_ids(batches):
        source = await source_of(blobs, code)
        if source is not None:
            found[code] = source
    return found


async def source_of(blobs: Blobs, code: str) -> Source | None:
    """A stored source or structure; None if it cannot be read."""
    try:
        data = await blobs.get(code)
    except PerdureError:
        return None
    return None if data is None else decode_source(data)
