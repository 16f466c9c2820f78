"""What a look into a queue costs in SQLite, counted in steps of its machine: a matter of keys, not of runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import apsw
import msgspec
import pytest

from perdure.kernel.events import RunClaimed
from perdure.kernel.policies.queues import Queue
from perdure.stores.sqlite.store import SqliteStore
from perdure.testing.conformance.history import BEGAN, History, finished, write_all

NOW = BEGAN + 1e6
PROGRAMS = ["checkout"]
GRAIN = 20


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(tmp_path / "runs.db"))
    await store.open(migrate=True)
    yield store
    await store.close()


async def fill(store: SqliteStore, keys: int, runs: int) -> None:
    appends = [
        History(f"r{key:05}-{n:05}", queue="q", queue_key=f"k{key:05}", at=BEGAN + n).begin()
        for key in range(keys)
        for n in range(runs)
    ]
    for start in range(0, len(appends), 1000):
        await write_all(store, *appends[start : start + 1000])


async def steps_of(store: SqliteStore, queue: Queue, room: int) -> tuple[list[str], int]:
    """Whose turn it is, and how many steps SQLite took to say so."""
    # A read uses either of them.
    connections = store._database._reader, store._database._writer
    count = 0

    def tick() -> bool:
        nonlocal count
        count += GRAIN
        return False

    for connection in connections:
        await count_steps(connection, tick)
    try:
        picks = await store.queues.pick(queue, room, NOW, PROGRAMS)
    finally:
        for connection in connections:
            await count_steps(connection, None)
    return list(picks.run_ids), count


async def count_steps(connection: apsw.Connection | None, tick: Callable[[], bool] | None) -> None:
    """Call `tick` while SQLite works, from when the store's thread has left the connection."""
    assert connection is not None
    while True:
        try:
            return connection.set_progress_handler(tick, GRAIN)
        except apsw.ThreadingViolationError:
            await asyncio.sleep(0)


async def test_the_number_of_queued_runs_does_not_matter(store: SqliteStore) -> None:
    await fill(store, 1, 10)
    few, small = await steps_of(store, Queue("q", concurrency=5), 5)
    await write_all(store, *(History(f"s{n:05}", queue="q", queue_key="k00000").begin() for n in range(10_000)))
    await write_all(store, History("single", queue="q", queue_key="other", at=NOW - 1).begin())
    many, large = await steps_of(store, Queue("q", concurrency=5), 5)
    assert few == [f"r00000-{n:05}" for n in range(5)]
    assert many[1] == "single"
    assert large < 4 * small + 500


async def test_a_look_at_a_thousand_keys_goes_down_the_index_for_each(store: SqliteStore) -> None:
    await fill(store, 1000, 3)
    picked, steps = await steps_of(store, Queue("q", concurrency=50, per_key=1), 50)
    assert len({run_id.partition("-")[0] for run_id in picked}) == 50
    assert steps < 1000 * 160


async def test_what_has_ended_is_not_counted_again_and_again(store: SqliteStore) -> None:
    """A long history makes neither looks nor admissions slower."""
    limits = Queue("q", concurrency=5, per_key=5)
    await fill(store, 1, 20)
    _, before = await steps_of(store, limits, 5)
    runs = [History(f"x{n:05}", queue="q", queue_key="k00000") for n in range(2000)]
    await write_all(store, *(run.begin() for run in runs))
    await write_all(store, *(run.then(RunClaimed("a", 1)) for run in runs))
    await write_all(store, *(run.then(finished()) for run in runs))
    _, after = await steps_of(store, limits, 5)
    assert after < 2 * before + 500
    writer = store._database._writer
    assert writer is not None
    count = 0

    def tick() -> bool:
        nonlocal count
        count += GRAIN
        return False

    run = History("r00000-00000", queue="q", queue_key="k00000", at=BEGAN)
    run.begin()
    run.at = NOW
    await count_steps(writer, tick)
    await write_all(store, msgspec.structs.replace(run.then(RunClaimed("a", 1)), admit=limits))
    assert count < 2000
