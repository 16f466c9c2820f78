"""What runs have sent each other arrives before a sweep ends, however long the store takes."""

from __future__ import annotations

import asyncio
import inspect
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import Engine, Queue, SweepReport, call, child, connect, lock, step, wait_signal, workflow
from perdure.graph import Graph, node
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import PATIENCE

# How many turns of the event loop a call takes before and after the store does what it says.
TURNS = 40


class FixedClock:
    def __init__(self) -> None:
        self.time = datetime(2030, 1, 1, tzinfo=UTC).timestamp()

    def now(self) -> float:
        return self.time


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def slowed(method: Any, before: int, after: int) -> Any:
    """A method of a port that takes longer."""

    async def slow(*args: Any, **kwargs: Any) -> Any:
        await turns(before)
        found = method(*args, **kwargs)
        if inspect.isawaitable(found):
            found = await found
        await turns(after)
        return found

    return slow


def slow_store(methods: str, before: int, after: int) -> MemoryStore:
    """A store of which some methods, or all of a port, are as far away as a server is."""
    store = MemoryStore()
    for name in ("journal", "runs", "timers", "queues", "leases", "blobs"):
        port = getattr(store, name)
        asynchronous = {method for method, _ in inspect.getmembers(port, inspect.iscoroutinefunction)}
        for method in {*asynchronous, "append"} if name == "journal" else asynchronous:
            if f"{name}.{method}".startswith(methods):
                setattr(port, method, slowed(getattr(port, method), before, after))
    return store


SLOW = ["", "journal", "runs.finished", "leases.release"]


@pytest.fixture(params=[(methods, *how) for methods in SLOW for how in ((TURNS, 0), (0, TURNS))], ids=str)
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return slow_store(*request.param)


async def swept(store: MemoryStore, clock: FixedClock, *programs: Any, **options: Any) -> SweepReport:
    async with asyncio.timeout(PATIENCE * 2):
        return await Engine(store, programs, clock=clock, **options).sweep()


async def test_a_run_gets_the_lock_that_another_run_has_just_released(store: MemoryStore) -> None:
    called: list[str] = []

    @step
    async def note(what: str) -> None:
        called.append(what)

    @workflow
    async def through(name: str) -> None:
        async with lock("door", ttl=60):
            await note(f"{name} in")
            await note(f"{name} out")

    clock = FixedClock()
    async with connect(store, clock=clock) as client:
        for name in "abcd":
            _ = await client.start(through(name), id=name)
    assert await swept(store, clock, through) == SweepReport(runs=4)
    assert sorted(called) == sorted(f"{name} {how}" for name in "abcd" for how in ("in", "out"))


@pytest.mark.parametrize("steps", [0, 1, 3])
async def test_ticks_that_are_filled_in_fire_one_after_another(store: MemoryStore, steps: int) -> None:
    called: list[str] = []

    @step
    async def note() -> None:
        called.append("step")

    @workflow
    async def report() -> None:
        for _ in range(steps):
            await note()

    clock = FixedClock()
    async with connect(store, clock=clock) as client:
        schedule = await client.schedule("hourly", report(), cron="0 * * * *")
        start = datetime.fromtimestamp(clock.time, UTC) - timedelta(hours=5)
        _ = await schedule.backfill(start, start + timedelta(hours=5))
    assert await swept(store, clock, report) == SweepReport(schedules=5)
    assert called == ["step"] * steps * 5


async def test_a_queued_run_begins_when_the_run_before_it_has_ended(store: MemoryStore) -> None:
    @workflow
    async def quick() -> None: ...

    clock = FixedClock()
    async with connect(store, clock=clock) as client:
        for n in range(4):
            _ = await client.start(quick(), id=str(n), queue="q")
    assert await swept(store, clock, quick, queues=[Queue("q", concurrency=1)]) == SweepReport(runs=4)


async def test_the_report_of_a_step_in_a_queue_reaches_its_run(store: MemoryStore) -> None:
    @step(queue="q")
    async def far(n: int) -> int:
        return n + 1

    @workflow
    async def counting() -> int:
        return sum(await asyncio.gather(*[far(n) for n in range(3)]))

    clock = FixedClock()
    async with connect(store, clock=clock) as client:
        run = await client.start(counting(), id="c")
        _ = await swept(store, clock, counting, queues=[Queue("q", concurrency=1)], steps=[far])
        view = await client.get(run.id)
        assert view is not None
        assert view.status == "completed"


async def test_a_signal_of_another_run_reaches_the_run_that_waits(store: MemoryStore) -> None:
    @workflow
    async def waits() -> Any:
        return await wait_signal("go")

    engine: Engine

    @step
    async def tell() -> None:
        _ = await engine.signal("w", "go", 1)

    @workflow
    async def tells() -> None:
        await tell()

    clock = FixedClock()
    engine = Engine(store, [waits, tells], clock=clock)
    async with connect(store, clock=clock) as client:
        _ = await client.start(waits(), id="w")
        async with asyncio.timeout(PATIENCE * 2):
            assert (await engine.sweep()).runs == 1
            _ = await client.start(tells(), id="t")
            _ = await engine.sweep()
        view = await client.get("w")
        assert view is not None
        assert view.status == "completed"


async def test_a_detached_child_and_what_it_begins_end_in_the_sweep(store: MemoryStore) -> None:
    called: list[int] = []

    @step
    async def note(n: int) -> None:
        called.append(n)

    @workflow
    async def parent(n: int) -> None:
        if n < 3:
            _ = await child(call("parent", n + 1), detached=True)
        await note(n)

    clock = FixedClock()
    async with connect(store, clock=clock) as client:
        _ = await client.start(parent(0), id="p")
    _ = await swept(store, clock, parent)
    assert sorted(called) == [0, 1, 2, 3]


async def test_the_chunks_of_a_long_map_report_before_the_sweep_ends(store: MemoryStore) -> None:
    @node
    async def rows() -> list[int]:
        return list(range(1200))

    @node
    async def double(row: int) -> int:
        return row * 2

    @node
    async def total(double: list[int]) -> int:
        return sum(double)

    graph = Graph([rows, node(double, inputs={"row": "rows"}).map_over("row"), total], name="long", output=total)
    clock = FixedClock()
    async with connect(store, clock=clock) as client:
        _ = await client.start(graph(), id="g")
        _ = await swept(store, clock, graph)
        view = await client.get("g")
        assert view is not None
        assert view.status == "completed"
