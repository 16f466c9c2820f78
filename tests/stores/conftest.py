"""An SQLite store, and other processes beside it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from perdure.stores.sqlite.store import SqliteStore
from tests.patience import PATIENCE

CHILD = Path(__file__).parent / "child.py"


class Child:
    """Another process, which speaks and listens line by line."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> str:
        """The next line it says."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def go_on(self) -> None:
        """Let it go on."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def ended(self) -> str:
        """Wait for its end, and return what it said until then; it must have ended well."""
        out, err = self._process.communicate(timeout=PATIENCE)
        assert self._process.returncode == 0, err
        return out.strip()

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """Starts other processes; whatever they are at, they end with the test."""
    started: list[Child] = []

    def start(*arguments: object) -> Child:
        started.append(Child(*map(str, arguments)))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the store lies."""
    return tmp_path / "runs.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    """An empty store."""
    store = SqliteStore(str(path))
    await store.open(migrate=True)
    yield store
    await store.close()
