"""Long journals are loaded from a snapshot and their tail; without one, or with a damaged one, from the journal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import apsw
import pytest

from perdure import Engine, Recovery, Retry, RunStatus, sleep, step, step_context, wait_signal, workflow
from perdure.kernel.events import Batch, RunReleased, SnapshotTaken, numbered
from perdure.kernel.state import fold
from perdure.orchestrator.snapshots import SnapshotReader
from perdure.ports.journal import Append, Appended, Journal, append_all
from perdure.ports.store import Store
from perdure.stores.memory.store import MemoryStore
from perdure.testing.simulation import STORMY, Simulation
from tests.patience import PATIENCE

OFTEN = Recovery(snapshot=20, grace=0)
CALLS: list[str] = []


@step(retry=Retry(attempts=3, initial=0.0, jitter=False))
async def talk(count: int) -> int:
    CALLS.append("talk")
    for number in range(count):
        step_context().emit(number)
        await asyncio.sleep(0)
    if step_context().attempt < 2:
        raise ConnectionError("away")
    return count


@workflow
async def chatty(rounds: int) -> int:
    total = 0
    for _ in range(rounds):
        total += await talk(10)
    answer: int = await wait_signal("go", type=int)
    return total + answer


@workflow
async def sleepy(rounds: int) -> int:
    total = 0
    for _ in range(rounds):
        total += await talk(10)
        await sleep(2)
    return total


async def until_it_waits(engine: Engine, id: str) -> None:
    """Until the run waits and a snapshot of it is in its journal."""
    seen: set[str] = set()
    async for entry in engine.follow(id):
        seen.add(type(entry.event).__name__)
        if {"WaitOpened", "SnapshotTaken"} <= seen:
            return


async def a_long_run(store: Store | str) -> str:
    async with Engine(store, [chatty], recovery=OFTEN) as engine:
        run = await engine.start(chatty(10), id="long")
        await until_it_waits(engine, "long")
        return run.run_id


def events(batches: list[Batch]) -> int:
    return sum(len(batch.events) for batch in batches)


def joined(batches: list[Batch]) -> list[Batch]:
    """The same events, with neighbours of one time in one batch."""
    found: list[Batch] = []
    for batch in batches:
        if found and found[-1].at == batch.at:
            found[-1] = Batch(found[-1].seq, batch.at, [*found[-1].events, *batch.events])
        else:
            found.append(batch)
    return found


async def test_a_long_run_is_loaded_from_its_snapshot_and_goes_on() -> None:
    store = MemoryStore()
    run_id = await a_long_run(store)
    whole = await store.journal.read(run_id)
    loaded = (await SnapshotReader(store, 20).read_many([run_id]))[run_id]
    assert not isinstance(loaded, Exception)
    assert events(loaded) < events(whole) / 2
    one, two = fold(run_id, loaded), fold(run_id, whole)
    assert (one.next_seq, one.epoch, one.steps, list(one.ops)) == (two.next_seq, two.epoch, two.steps, list(two.ops))
    CALLS.clear()
    async with Engine(store, [chatty], recovery=OFTEN) as engine:
        await engine.signal("long", "go", 1)
        run = await engine.start(chatty(10), id="long")
        assert await run.result(PATIENCE) == 101
    assert CALLS == []


async def test_runs_that_are_long_and_short_are_loaded_together() -> None:
    store = MemoryStore()
    run_id = await a_long_run(store)
    async with Engine(store, [chatty], recovery=Recovery(snapshot=20)) as engine:
        short = await engine.start(chatty(0), id="short")
        found = await SnapshotReader(store, 20).read_many([run_id, short.run_id, "nobody"])
    assert set(found) == {run_id, short.run_id}


@step
async def plain(number: int) -> int:
    return number


@workflow
async def steady(rounds: int) -> int:
    for number in range(rounds):
        await plain(number)
    answer: int = await wait_signal("go", type=int)
    return answer


class CountingJournal:
    """A journal that counts the events that are read from it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.read_events = 0
        # Called once, after the first read.
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    async def read(self, run_id: str, start: int = 0, limit: int | None = None) -> list[Batch]:
        found = await self._journal.read(run_id, start, limit)
        self.read_events += events(found)
        if (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            await meanwhile()
        return found


async def a_steady_run(store: Store, rounds: int) -> str:
    """The run_id of a run without failures: no event of it is obsolete, so it never gets a snapshot."""
    async with Engine(store, [steady], recovery=OFTEN) as engine:
        run = await engine.start(steady(rounds), id="steady")
        async for entry in engine.follow("steady"):
            if type(entry.event).__name__ == "WaitOpened":
                break
        return run.run_id


@pytest.mark.parametrize("rounds", [25, 36, 60])
async def test_a_long_journal_without_a_snapshot_is_read_once(rounds: int) -> None:
    store = MemoryStore()
    run_id = await a_steady_run(store, rounds)
    whole = await store.journal.read(run_id)
    head = events(whole)
    counting = CountingJournal(store.journal)
    with patch.object(store, "journal", counting):
        loaded = await SnapshotReader(store, 20).read(run_id, head)
    assert [(batch.at, *batch.events) for batch in joined(loaded)] == [(b.at, *b.events) for b in joined(whole)]
    assert [seq for seq, _, _ in numbered(loaded)] == list(range(head))
    assert counting.read_events == head


async def test_what_is_appended_while_the_rest_is_read_is_read_later() -> None:
    store = MemoryStore()
    run_id, journal = await a_steady_run(store, 60), store.journal
    head = events(await journal.read(run_id))

    async def released() -> None:
        append = Append(run_id, head, [Batch(head, 1.0, [RunReleased("budget")])])
        assert await append_all(journal, [append]) == [Appended()]

    counting = CountingJournal(journal)
    counting.meanwhile = released
    with patch.object(store, "journal", counting):
        loaded = await SnapshotReader(store, 20).read(run_id, head)
    assert [seq for seq, _, _ in numbered(loaded)] == list(range(head))


async def test_a_journal_that_was_rewritten_between_two_reads_is_read_again() -> None:
    store = MemoryStore()
    run_id, journal = await a_steady_run(store, 60), store.journal
    whole = await journal.read(run_id)
    head = events(whole)
    # Shorter than what the first read left out.
    shorter = [Batch(0, 1.0, [event for batch in whole for event in batch.events][:9])]

    async def rewritten() -> None:
        assert await journal.rewrite(run_id, head, shorter) == Appended()

    counting = CountingJournal(journal)
    counting.meanwhile = rewritten
    with patch.object(store, "journal", counting):
        assert await SnapshotReader(store, 20).read(run_id, head) == shorter


async def test_without_snapshots_none_is_taken() -> None:
    store = MemoryStore()
    async with Engine(store, [chatty], recovery=Recovery(snapshot=0)) as engine:
        run = await engine.start(chatty(10), id="long")
        await engine.signal("long", "go", 1)
        assert await run.result() == 101
        assert not any(isinstance(entry.event, SnapshotTaken) for entry in await engine.journal("long"))


async def test_a_missing_snapshot_is_no_loss(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    await a_long_run(store)
    store.blobs.blobs.clear()
    with caplog.at_level(logging.WARNING, "perdure"):
        async with Engine(store, [chatty], recovery=OFTEN) as engine:
            await engine.signal("long", "go", 1)
            run = await engine.start(chatty(10), id="long")
            assert await run.result(PATIENCE) == 101
    assert "is missing" in caplog.text


@pytest.mark.parametrize("damage", ["other bytes", "another run's", "no snapshot"])
async def test_a_damaged_snapshot_is_no_loss(damage: str, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    run_id = await a_long_run(store)
    for blob in list(store.blobs.blobs):
        data = store.blobs.blobs[blob]
        changed: Any = {
            "other bytes": data[:-1] + b"!",
            "another run's": data.replace(run_id.encode(), b"another"),
            "no snapshot": b"[]",
        }[damage]
        store.blobs.blobs[blob] = changed
    with caplog.at_level(logging.WARNING, "perdure"):
        async with Engine(store, [chatty], recovery=OFTEN) as engine:
            await engine.signal("long", "go", 1)
            run = await engine.start(chatty(10), id="long")
            assert await run.result(PATIENCE) == 101
    assert "loaded from its journal" in caplog.text


async def test_a_snapshot_in_a_file_that_is_damaged_is_no_loss(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    await a_long_run(url)
    db = apsw.Connection(str(tmp_path / "runs.db"))
    db.execute("update perdure_blobs set data = substr(data, 2)")
    assert db.changes() > 0
    db.close()
    async with Engine(url, [chatty], recovery=OFTEN) as engine:
        await engine.signal("long", "go", 1)
        run = await engine.start(chatty(10), id="long")
        assert await run.result(PATIENCE) == 101
        view = await engine.get("long")
        assert view is not None
        assert view.status is RunStatus.COMPLETED


def test_a_run_that_leaves_memory_at_once_has_snapshots_too() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine([sleepy], recovery=Recovery(snapshot=20, lease=3600, check_interval=3600)) as engine:
            run = await engine.start(sleepy(12), id="s")
            assert await run.result() == 120
            taken = [e.seq for e in await engine.journal("s") if isinstance(e.event, SnapshotTaken)]
            assert len(taken) > 3

    sim.play(scenario())


@pytest.mark.parametrize("seed", range(12))
def test_promises_hold_with_snapshots_in_a_storm(seed: int) -> None:
    recovery = Recovery(snapshot=5, lease=6.0, check_interval=4.0)
    report = Simulation(seed, faults=STORMY).run(sleepy(4), recovery=recovery, engines=2)
    assert report.results["run-0"].output == 40
