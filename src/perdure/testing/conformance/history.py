"""Journals to test with, written as an owner writes them. Knows no store but through its ports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import Raw

from perdure.kernel.events import (
    AnyEvent,
    Batch,
    RunClaimed,
    RunFinished,
    RunParked,
    RunReleased,
    RunStarted,
    RunStatus,
    StepStarted,
    StepSucceeded,
    WaitOpened,
    entries,
)
from perdure.kernel.projection import row
from perdure.kernel.state import RunState
from perdure.ports.journal import Append, Appended, Journal, Outcome, append_all
from perdure.ports.store import Store

BEGAN = 1_700_000_000.0


class StoreConformance:
    """What all suites share: the store under test, and a second connection to the same backend."""

    @pytest.fixture
    async def store(self) -> Any:
        """An opened, empty store."""
        raise NotImplementedError(f"{type(self).__name__} needs a `store` fixture: an opened, empty store")

    @pytest.fixture
    async def second(self, store: Store) -> Any:
        """Another connection to the backend of `store`; the same one where there is no other."""
        return store


class History:
    """The journal of one run, append by append."""

    def __init__(self, run_id: str, *, at: float = BEGAN, **fields: Any) -> None:
        self.state = RunState(run_id)
        self.run_id, self.at = run_id, at
        values: dict[str, Any] = {"id": run_id, "program": "checkout", "version": "1", "input": Raw(b"[]")}
        self.started = RunStarted(**(values | fields))

    def begin(self, *events: AnyEvent) -> Append:
        """The append that creates the run."""
        return self.then(self.started, *events)

    def begin_as(self, owner: str, *events: AnyEvent) -> Append:
        """The append that creates the run, with its first owner."""
        return self.begin(RunClaimed(owner, 1), *events)

    def then(self, *events: AnyEvent, fsync: bool = True) -> Append:
        """One more append of one batch, with the row."""
        return self.then_batches(events, fsync=fsync)

    def then_batches(self, *batches: Sequence[AnyEvent], fsync: bool = True) -> Append:
        """One more append of several batches, a second apart."""
        expected, written = self.state.next_seq, []
        for events in batches:
            written.append(Batch(self.state.next_seq, self.at, list(events)))
            for event in events:
                self.state.fold(event, self.at)
            self.at += 1.0
        return Append(self.run_id, expected, written, row(self.state), fsync)


def finished(status: RunStatus = RunStatus.COMPLETED) -> RunFinished:
    """The end of a run."""
    return RunFinished(status, Raw(b'"done"'))


def parked(reason: str = "the code changed") -> RunParked:
    """A parked run."""
    return RunParked(reason)


def released(owner: str) -> RunReleased:
    """A run without an owner."""
    return RunReleased(owner)


def timer(due: float | None, op: str = "sleep:0") -> WaitOpened:
    """A run that waits."""
    return WaitOpened(op, "timer", due)


def step(number: int) -> list[AnyEvent]:
    """A step that was begun and succeeded."""
    op = f"work:{number}"
    return [StepStarted(op), StepSucceeded(op, Raw(str(number).encode()))]


async def write(store: Store, *appends: Append) -> list[Outcome]:
    """Append to a store, whether it answers at once or later."""
    return list(await append_all(store.journal, appends))


async def write_all(store: Store, *appends: Append) -> None:
    """Append to a store, and check that everything was written."""
    assert await write(store, *appends) == [Appended()] * len(appends)


async def numbered(
    journal: Journal, run_id: str, start: int = 0, limit: int | None = None
) -> list[tuple[int, AnyEvent]]:
    """What a journal holds, event by event, with the numbers it gives them."""
    found = entries(run_id, await journal.read(run_id, start, limit))
    return [(entry.seq, entry.event) for entry in found]


def listed(*appends: Append) -> list[tuple[int, AnyEvent]]:
    """What a journal holds after these appends, event by event."""
    events = [event for append in appends for batch in append.batches for event in batch.events]
    return list(enumerate(events))


async def next_due(
    store: Store, programs: Sequence[str], skip: Sequence[str], queues: Sequence[str] | None = None
) -> float | None:
    """The earliest moment at which such a run is due."""
    return (await store.timers.ahead(programs, skip, queues)).next_due
