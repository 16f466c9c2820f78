"""The PostgreSQL store holds the contract of every port, with two stores on one database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from perdure.ports.store import Store
from perdure.stores.postgres.store import PostgresStore
from perdure.testing.conformance import (
    BlobsConformance,
    JournalConformance,
    LeasesConformance,
    QueuesConformance,
    RunsConformance,
    TimersConformance,
    UpkeepConformance,
)


class OnPostgres:
    """An empty database, and a second store on it."""

    @pytest.fixture
    async def store(self, postgres_url: str) -> AsyncIterator[Store]:
        store = PostgresStore(postgres_url)
        await store.open(migrate=True)
        yield store
        await store.close()

    @pytest.fixture
    async def second(self, store: Store, postgres_url: str) -> AsyncIterator[Store]:
        second = PostgresStore(postgres_url)
        await second.open(migrate=False)
        yield second
        await second.close()


class TestPostgresJournal(OnPostgres, JournalConformance): ...


class TestPostgresRuns(OnPostgres, RunsConformance): ...


class TestPostgresTimers(OnPostgres, TimersConformance): ...


class TestPostgresQueues(OnPostgres, QueuesConformance): ...


class TestPostgresLeases(OnPostgres, LeasesConformance): ...


class TestPostgresBlobs(OnPostgres, BlobsConformance): ...


class TestPostgresUpkeep(OnPostgres, UpkeepConformance): ...
