"""Every store holds the contract of every port, with two stores on one backend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure.kernel.events import Batch
from perdure.ports.store import Store
from perdure.stores.file.config import FileConfig
from perdure.stores.file.store import FileStore
from perdure.stores.open import open_store
from perdure.stores.sqlite.config import SqliteConfig
from perdure.stores.sqlite.store import SqliteStore
from perdure.stores.sqlshared.entries import one_batch
from perdure.testing.conformance import (
    BlobsConformance,
    JournalConformance,
    LeasesConformance,
    QueuesConformance,
    RunsConformance,
    TimersConformance,
    UpkeepConformance,
)
from perdure.testing.conformance.history import History, numbered, step, write_all


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

    async def test_reading_a_page_decodes_the_batches_on_it_alone(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Long journals are read page by page: what is behind a page must not be decoded once for each page."""
        history = History("r1")
        await write_all(store, history.begin(), *(history.then(*step(n) * 15) for n in range(30)))
        decoded: list[int] = []

        def counted(run_id: str, seq: int, at: float, recorded: int, data: bytes) -> Batch:
            decoded.append(seq)
            return one_batch(run_id, seq, at, recorded, data)

        monkeypatch.setattr("perdure.stores.sqlshared.entries.one_batch", counted)
        for start in (0, 1, 95, 100, 899):
            decoded.clear()
            events = await numbered(store.journal, "r1", start, 40)
            assert len(events) == min(40, 901 - start)
            assert len(decoded) <= 3


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
