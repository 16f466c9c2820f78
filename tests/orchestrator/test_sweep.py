"""Sweeping: what is due is done, and nothing stays behind."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import (
    Engine,
    Queue,
    Recovery,
    RunStatus,
    SweepReport,
    UsageError,
    blocking,
    connect,
    lock,
    sleep,
    step,
    wait_signal,
    workflow,
)
from perdure.stores.memory.store import MemoryStore

called: list[str] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    called.clear()


class FakeClock:
    def __init__(self) -> None:
        self.time = datetime(2030, 1, 1, tzinfo=UTC).timestamp()

    def now(self) -> float:
        return self.time


@step
async def note(what: str) -> str:
    called.append(what)
    return what


@workflow
async def nap(name: str) -> str:
    await note(f"{name} before")
    await sleep(timedelta(hours=1))
    return await note(f"{name} after")


@workflow
async def ask(name: str) -> Any:
    return await wait_signal("go")


async def status_of(store: MemoryStore, id: str) -> RunStatus:
    async with connect(store) as client:
        view = await client.get(id)
        assert view is not None
        return view.status


async def start(store: MemoryStore, clock: FakeClock, *names: str) -> None:
    async with connect(store, clock=clock) as client:
        for name in names:
            _ = await client.start(nap(name), id=name)


async def test_a_sweep_does_what_is_due_and_leaves() -> None:
    store, clock = MemoryStore(), FakeClock()
    engine = Engine(store, [nap], clock=clock)
    assert await engine.sweep() == SweepReport()
    await start(store, clock, "a", "b")
    assert await engine.sweep() == SweepReport(runs=2)
    assert called == ["a before", "b before"]
    assert await status_of(store, "a") is RunStatus.WAITING
    assert await engine.sweep() == SweepReport()
    clock.time += 3600
    assert await engine.sweep() == SweepReport(timers=2)
    assert sorted(called) == ["a after", "a before", "b after", "b before"]
    assert await status_of(store, "b") is RunStatus.COMPLETED


async def test_limits_leave_the_rest_for_the_next_sweep() -> None:
    store, clock = MemoryStore(), FakeClock()
    engine = Engine(store, [nap], clock=clock)
    await start(store, clock, "a", "b", "c")
    assert await engine.sweep(max_runs=2) == SweepReport(runs=2, more=True)
    assert await engine.sweep(max_runs=2) == SweepReport(runs=1)
    clock.time += 3600
    assert await engine.sweep(max_timers=0) == SweepReport(more=True)
    assert await engine.sweep(max_timers=1) == SweepReport(timers=1, more=True)
    assert await engine.sweep() == SweepReport(timers=2)


async def test_what_is_not_done_in_time_is_handed_over() -> None:
    store, clock = MemoryStore(), FakeClock()
    begun, patience = asyncio.Event(), asyncio.Event()

    @step
    async def slow() -> str:
        begun.set()
        await patience.wait()
        return "done"

    @workflow
    async def long() -> str:
        return await slow()

    engine = Engine(store, [long], clock=clock, recovery=Recovery(grace=0.0))
    async with connect(store, clock=clock) as client:
        _ = await client.start(long(), id="it")
    assert await engine.sweep(until=0) == SweepReport(runs=1, more=True)
    assert await status_of(store, "it") is RunStatus.RUNNING
    patience.set()
    assert await engine.sweep(until=timedelta(minutes=1)) == SweepReport(runs=1)
    assert await status_of(store, "it") is RunStatus.COMPLETED


async def test_a_run_whose_owner_died_is_taken_up() -> None:
    store, clock = MemoryStore(), FakeClock()
    engine = Engine(store, [nap], clock=clock, name="first")
    async with engine:
        _ = await engine.start(nap("a"), id="a")
        assert engine._orchestrator is not None
        engine._orchestrator.abort()
        clock.time += 3600
    assert (await Engine(store, [nap], clock=clock).sweep()).more is False
    clock.time += 3600
    await Engine(store, [nap], clock=clock).sweep()
    assert await status_of(store, "a") is RunStatus.COMPLETED


async def test_a_signal_that_has_come_is_due() -> None:
    store, clock = MemoryStore(), FakeClock()
    engine = Engine(store, [ask], clock=clock)
    async with connect(store, clock=clock) as client:
        _ = await client.start(ask("a"), id="a")
        await engine.sweep()
        await client.signal("a", "go", 7)
        assert await engine.sweep() == SweepReport(timers=1)
        view = await client.get("a")
        assert view is not None
        assert view.output == 7


async def test_an_open_engine_can_be_swept_too() -> None:
    async with Engine("memory://", [nap]) as engine:
        assert await engine.sweep() == SweepReport()
        assert await engine.list() == []


@pytest.mark.parametrize("limit", [-1, 1.5, True, "many"])
async def test_a_limit_is_a_whole_number(limit: Any) -> None:
    with pytest.raises(UsageError, match="max_runs"):
        await Engine("memory://", [nap]).sweep(max_runs=limit)


def test_sweeping_from_blocking_code() -> None:
    assert blocking.Engine("memory://", [nap]).sweep() == SweepReport()


async def test_queued_runs_begin_within_the_limits_of_their_queue() -> None:
    store, clock = MemoryStore(), FakeClock()
    engine = Engine(store, [nap], clock=clock, queues=[Queue("q", concurrency=2)])
    async with connect(store, clock=clock) as client:
        for name in "abc":
            _ = await client.start(nap(name), id=name, queue="q")
    assert await engine.sweep() == SweepReport(runs=2)
    clock.time += 3600
    assert await engine.sweep() == SweepReport(timers=2, runs=1)


async def test_the_run_that_a_tick_begins_goes_as_far_as_it_gets() -> None:
    store, clock = MemoryStore(), FakeClock()

    @step
    async def long(name: str) -> str:
        for _ in range(100):
            await asyncio.sleep(0)
        called.append(name)
        return name

    @workflow
    async def report(name: str) -> str:
        return await long(name)

    engine = Engine(store, [report], clock=clock, recovery=Recovery(grace=0.0))
    async with connect(store, clock=clock) as client:
        schedule = await client.schedule("daily", report("a"), cron="0 6 * * *")
        run = await schedule.trigger()
    assert await engine.sweep() == SweepReport(schedules=1)
    assert called == ["a"]
    assert await status_of(store, run) is RunStatus.COMPLETED


async def test_queued_runs_that_end_at_once_make_room_for_the_next() -> None:
    store, clock = MemoryStore(), FakeClock()

    @workflow
    async def quick(name: str) -> str:
        return name

    engine = Engine(store, [quick], clock=clock, queues=[Queue("q", concurrency=1)])
    async with connect(store, clock=clock) as client:
        for name in "abcde":
            _ = await client.start(quick(name), id=name, queue="q")
    assert await engine.sweep(max_runs=2) == SweepReport(runs=2, more=True)
    assert await engine.sweep() == SweepReport(runs=3)
    assert await status_of(store, "e") is RunStatus.COMPLETED


@workflow
async def inside(name: str) -> str:
    async with lock("door", ttl=60):
        await note(f"{name} in")
        await sleep(timedelta(hours=1))
        await wait_signal("leave")
        return await note(f"{name} out")


async def test_a_run_inside_a_lock_goes_on_from_sweep_to_sweep() -> None:
    store, clock = MemoryStore(), FakeClock()
    async with connect(store, clock=clock) as client:
        _ = await client.start(inside("a"), id="a")
        assert await Engine(store, [inside], clock=clock).sweep() == SweepReport(runs=1)
        assert called == ["a in"]
        assert [held.key for held in await client.locks.list()] == ["door"]
        clock.time += 3600
        assert (await Engine(store, [inside], clock=clock).sweep()).more is False
        view = await client.get("a")
        assert view is not None
        assert [wait.name for wait in view.waits] == ["leave"]
        _ = await client.signal("a", "leave")
        assert (await Engine(store, [inside], clock=clock).sweep()).more is False
    assert called == ["a in", "a out"]
    assert await status_of(store, "a") is RunStatus.COMPLETED


async def test_a_sweep_whose_time_is_up_leaves_a_run_that_waits_for_a_lock() -> None:
    store, clock = MemoryStore(), FakeClock()
    async with connect(store, clock=clock) as client:
        _ = await client.locks.acquire("door", "somebody", ttl=7200)
        _ = await client.start(inside("a"), id="a")
        assert await Engine(store, [inside], clock=clock).sweep(until=0.0) == SweepReport(runs=1, more=True)
        await client.locks.release("door", "somebody")
        assert (await Engine(store, [inside], clock=clock).sweep()).more is False
    assert called == ["a in"]
