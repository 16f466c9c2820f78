"""Death at a chosen commit: a store whose process is killed just before its n-th commit, or just after it."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Sequence
from typing import Any, NoReturn, cast

from perdure.kernel.divergence.source import decode_source
from perdure.kernel.events import RunFinished
from perdure.ports.journal import Append, Journal, Outcome
from perdure.ports.store import Store
from perdure.stores.open import open_store
from perdure.stores.sqlite.blobs import SqlBlobs
from perdure.stores.sqlite.journal import SqlJournal
from perdure.stores.sqlite.store import SqliteStore


def die() -> NoReturn:
    """Kill -9 this process, from inside."""
    os.kill(os.getpid(), signal.SIGKILL)
    while True:
        signal.pause()


# The commit that ends a run, whichever number it has: how many come before depends on what is merged.
END = -1


class Failpoint:
    """Counts commits from 1 on, and kills at the chosen one. `at=0` only counts."""

    def __init__(self, at: int = 0, after: bool = False) -> None:
        self._at, self._after = at, after
        self.commits = 0

    def before(self, appends: Sequence[Append] = ()) -> bool:
        """A commit is about to be made. Says whether the process is to die right after it."""
        self.commits += 1
        events = (event for append in appends for batch in append.batches for event in batch.events)
        chosen = (
            any(isinstance(event, RunFinished) for event in events) if self._at == END else self.commits == self._at
        )
        if chosen and not self._after:
            die()
        return chosen


class _Journal(SqlJournal):
    def __init__(self, journal: SqlJournal, failpoint: Failpoint) -> None:
        super().__init__(journal._database)
        self._failpoint = failpoint

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome] | Awaitable[Sequence[Outcome]]:
        last = self._failpoint.before(appends)
        outcomes = super().append(appends)
        if not last:
            return outcomes
        if isinstance(outcomes, Awaitable):
            return _then_die(outcomes)
        die()


class _Blobs(SqlBlobs):
    def __init__(self, blobs: SqlBlobs, failpoint: Failpoint) -> None:
        super().__init__(blobs._database)
        self._failpoint = failpoint

    async def put(self, data: bytes) -> str:
        if decode_source(data).parts:
            # The source of a program is stored beside the run, so it has no place among its commits.
            return await super().put(data)
        last = self._failpoint.before()
        id = await super().put(data)
        if last:
            die()
        return id


async def _then_die(outcomes: Awaitable[Any]) -> Any:
    await outcomes
    die()


class _AnyJournal:
    """The journal of any store, with a failpoint."""

    def __init__(self, journal: Journal, failpoint: Failpoint) -> None:
        self._journal, self._failpoint = journal, failpoint

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome] | Awaitable[Sequence[Outcome]]:
        last = self._failpoint.before(appends)
        outcomes = self._journal.append(appends)
        if not last:
            return outcomes
        if isinstance(outcomes, Awaitable):
            return _then_die(outcomes)
        die()


def any_store_with(failpoint: Failpoint, url: str) -> Store:
    """A store of any kind whose journal goes through the failpoint."""
    store: Any = open_store(url)
    store.journal = _AnyJournal(store.journal, failpoint)
    return cast(Store, store)


def store_with(failpoint: Failpoint, path: str) -> SqliteStore:
    """A store whose journal and blobs go through the failpoint."""
    store = SqliteStore(path)
    store.journal = _Journal(store.journal, failpoint)
    store.blobs = _Blobs(store.blobs, failpoint)
    return store
