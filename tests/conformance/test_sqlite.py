"""The SQLite store holds the contract of every port: with one connection, with two, and with commits in the thread."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure.ports.store import Store
from perdure.stores.sqlite import database
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


class OnSqlite:
    """An empty file, and a second store on the same file."""

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Store]:
        store = SqliteStore(str(tmp_path / "runs.db"))
        await store.open(migrate=True)
        yield store
        await store.close()

    @pytest.fixture
    async def second(self, store: Store, tmp_path: Path) -> AsyncIterator[Store]:
        second = SqliteStore(str(tmp_path / "runs.db"))
        await second.open(migrate=False)
        yield second
        await second.close()


class OnSlowSqlite(OnSqlite):
    """The same on a disk whose commits are slow, so that a thread makes them."""

    @pytest.fixture(autouse=True)
    def slow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(database, "INLINE_SECONDS", 0.0)


class TestSqliteJournal(OnSqlite, JournalConformance): ...


class TestSqliteRuns(OnSqlite, RunsConformance): ...


class TestSqliteTimers(OnSqlite, TimersConformance): ...


class TestSqliteQueues(OnSqlite, QueuesConformance): ...


class TestSqliteLeases(OnSqlite, LeasesConformance): ...


class TestSqliteBlobs(OnSqlite, BlobsConformance): ...


class TestSlowSqliteJournal(OnSlowSqlite, JournalConformance): ...


class TestSlowSqliteRuns(OnSlowSqlite, RunsConformance): ...


class TestSlowSqliteQueues(OnSlowSqlite, QueuesConformance): ...


class TestSlowSqliteLeases(OnSlowSqlite, LeasesConformance): ...


class TestSlowSqliteBlobs(OnSlowSqlite, BlobsConformance): ...


class TestSqliteUpkeep(OnSqlite, UpkeepConformance): ...


class TestSlowSqliteUpkeep(OnSlowSqlite, UpkeepConformance): ...
