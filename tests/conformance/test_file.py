"""The file store holds the contract of every port: with one connection, with two, and with a log that begins anew."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure.ports.store import Store
from perdure.stores.file import folder
from perdure.stores.file.store import FileStore
from perdure.testing.conformance import (
    BlobsConformance,
    JournalConformance,
    LeasesConformance,
    QueuesConformance,
    RunsConformance,
    TimersConformance,
    UpkeepConformance,
)


class OnFiles:
    """An empty directory, and a second store on the same directory."""

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Store]:
        store = FileStore(str(tmp_path / "runs"))
        await store.open(migrate=True)
        yield store
        await store.close()

    @pytest.fixture
    async def second(self, store: Store, tmp_path: Path) -> AsyncIterator[Store]:
        second = FileStore(str(tmp_path / "runs"))
        await second.open(migrate=False)
        yield second
        await second.close()


class OnShortFiles(OnFiles):
    """The same with a file of commits that begins anew with each of them."""

    @pytest.fixture(autouse=True)
    def short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(folder, "LONGEST_LOG", 0)


class TestFileJournal(OnFiles, JournalConformance): ...


class TestFileRuns(OnFiles, RunsConformance): ...


class TestFileTimers(OnFiles, TimersConformance): ...


class TestFileQueues(OnFiles, QueuesConformance): ...


class TestFileLeases(OnFiles, LeasesConformance):
    pushes = False


class TestFileBlobs(OnFiles, BlobsConformance): ...


class TestFileUpkeep(OnFiles, UpkeepConformance): ...


class TestShortFileJournal(OnShortFiles, JournalConformance): ...


class TestShortFileRuns(OnShortFiles, RunsConformance): ...


class TestShortFileQueues(OnShortFiles, QueuesConformance): ...


class TestShortFileUpkeep(OnShortFiles, UpkeepConformance): ...
