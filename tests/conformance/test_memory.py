"""The memory store holds the contract of every port."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from perdure.ports.store import Store
from perdure.stores.memory.store import MemoryStore
from perdure.testing.conformance import (
    BlobsConformance,
    JournalConformance,
    LeasesConformance,
    QueuesConformance,
    RunsConformance,
    TimersConformance,
    UpkeepConformance,
)


class OnMemory:
    """An empty store in memory."""

    @pytest.fixture
    async def store(self) -> AsyncIterator[Store]:
        store = MemoryStore()
        await store.open(migrate=True)
        yield store
        await store.close()


class TestMemoryJournal(OnMemory, JournalConformance): ...


class TestMemoryRuns(OnMemory, RunsConformance): ...


class TestMemoryTimers(OnMemory, TimersConformance): ...


class TestMemoryQueues(OnMemory, QueuesConformance): ...


class TestMemoryLeases(OnMemory, LeasesConformance): ...


class TestMemoryBlobs(OnMemory, BlobsConformance): ...


class TestMemoryUpkeep(OnMemory, UpkeepConformance): ...
