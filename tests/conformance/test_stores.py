"""Every store holds the contract of every port, with two stores on one backend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure.ports.store import Store
from perdure.stores.file.config import FileConfig
from perdure.stores.file.store import FileStore
from perdure.stores.open import open_store
from perdure.stores.sqlite.config import SqliteConfig
from perdure.stores.sqlite.store import SqliteStore
from perdure.testing.conformance import (
    BlobsConformance,
    JournalConformance,
    LeasesConformance,
    QueuesConformance,
    RunsConformance,
    TimersConformance,
    UpkeepConformance,
)


class EveryPort(
    JournalConformance,
    RunsConformance,
    TimersConformance,
    QueuesConformance,
    LeasesConformance,
    BlobsConformance,
    UpkeepConformance,
):
    """An empty store at a URL, and a second store at the same one."""

    migrate = True

    def make(self, url: str) -> Store:
        """A store at the URL."""
        return open_store(url)

    @pytest.fixture
    async def store(self, url: str) -> AsyncIterator[Store]:
        store = self.make(url)
        await store.open(migrate=self.migrate)
        yield store
        await store.close()

    @pytest.fixture
    async def second(self, store: Store, url: str) -> AsyncIterator[Store]:
        second = self.make(url)
        await second.open(migrate=False)
        yield second
        await second.close()


class TestMemory(EveryPort):
    @pytest.fixture
    def url(self) -> str:
        return "memory://"

    @pytest.fixture
    async def second(self, store: Store) -> Store:
        return store


class TestSqlite(EveryPort):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/runs.db"


class TestSlowSqlite(TestSqlite):
    """On a disk whose commits are slow, so that a thread makes them."""

    def make(self, url: str) -> Store:
        return SqliteStore(url.removeprefix("sqlite:///"), config=SqliteConfig(inline=0.0))


class TestFile(EveryPort):
    pushes = False

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"file:///{tmp_path}/runs"


class TestFileOfShortLogs(TestFile):
    """With a file of commits that begins anew with each of them."""

    def make(self, url: str) -> Store:
        return FileStore(url.removeprefix("file:///"), FileConfig(longest_log=0))


class TestPostgres(EveryPort):
    migrate = False  # `postgres_url` has the tables

    @pytest.fixture
    def url(self, postgres_url: str) -> str:
        return postgres_url


class TestRedis(EveryPort):
    @pytest.fixture
    def url(self, redis_url: str) -> str:
        return redis_url
