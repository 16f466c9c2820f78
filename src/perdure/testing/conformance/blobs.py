"""The contract of blobs: stored once, named by their content, verified when read."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from perdure.ports.store import Store
from perdure.testing.conformance.history import StoreConformance


class BlobsConformance(StoreConformance):
    """The blobs of a store."""

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\0",
            b"plain",
            "Zoë 👩‍👩‍👧‍👦".encode(),
            bytes(range(256)) * 16,
            b"\xff\xfe not text \x80",
            b"0123456789" * 300_000,
        ],
        ids=["empty", "nul", "ascii", "unicode", "every byte", "not text", "3 MB"],
    )
    async def test_bytes_come_back_exactly(self, store: Store, second: Store, data: bytes) -> None:
        """What was put is what is got, whatever the bytes, from every connection."""
        blob_id = await store.blobs.put(data)
        assert await second.blobs.get(blob_id) == data

    async def test_a_blob_is_named_by_the_sha256_of_its_bytes(self, store: Store) -> None:
        """The id is the content's SHA-256 in hex, so that any store names a blob alike."""
        assert await store.blobs.put(b"abc") == hashlib.sha256(b"abc").hexdigest()

    async def test_equal_bytes_are_one_blob(self, store: Store, second: Store) -> None:
        """Putting the same bytes again, from anywhere and at once, gives the same id and keeps them readable."""
        ids = await asyncio.gather(*(on.blobs.put(b"same") for on in (store, second) * 5))
        assert len(set(ids)) == 1
        assert await store.blobs.get(ids[0]) == b"same"

    async def test_other_bytes_are_another_blob(self, store: Store) -> None:
        """Different content never shares an id."""
        one, other = await store.blobs.put(b"one"), await store.blobs.put(b"other")
        assert one != other
        assert (await store.blobs.get(one), await store.blobs.get(other)) == (b"one", b"other")

    async def test_a_missing_blob_is_none(self, store: Store) -> None:
        """An id that names nothing is an answer, not an error, whatever it looks like."""
        assert await store.blobs.get("0" * 64) is None
        assert await store.blobs.get("no such id") is None
        assert await store.blobs.get("") is None
