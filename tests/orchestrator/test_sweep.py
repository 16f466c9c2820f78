"""Sweeping: what is due is done, and nothing stays behind."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from perdure import (
    Engine,
    Invocation,
    Queue,
    Recovery,
    Retry,
    RunStatus,
    SweepReport,
    UsageError,
    approval,
    blocking,
    call,
    child,
    connect,
    continue_as,
    lock,
    sleep,
    step,
    wait_signal,
    workflow,
)
from perdure.kernel.events import AnyEvent, RunClaimed, RunStarted, StepStarted
from perdure.kernel.state import RunState
from perdure.orchestrator.service import ServiceConfig
from perdure.orchestrator.session import OrchestratorConfig
from perdure.ports.appends import extend
from perdure.ports.journal import Appended, append_all
from perdure.stores.memory.store import MemoryStore
from perdure.stores.open import open_store
from tests.engine.harness import PATIENCE
from tests.orchestrator.steps import called, note


class FakeClock:
    def __init__(self) -> None:
        self.time = datetime(2030, 1, 1, tzinfo=UTC).timestamp()

    def now(self) -> float:
        return self.time


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


# --- a sweep ends within its limits ---------------------------------------------------------------------------------


@workflow
async def tick() -> str:
    return await note("tick")


async def scheduled(store: MemoryStore, clock: FakeClock, invocation: Invocation[Any], **options: Any) -> None:
    async with connect(store, clock=clock) as client:
        _ = await client.schedule("s", invocation, **options)


async def test_a_schedule_that_ticks_all_the_time_is_swept_up_to_the_limit() -> None:
    store, clock = MemoryStore(), FakeClock()
    engine = Engine(store, [tick], clock=clock)
    await scheduled(store, clock, call("tick"), every=1, catch_up="all", overlap="allow")
    async with asyncio.timeout(PATIENCE):
        assert await engine.sweep(max_schedules=2) == SweepReport()
        clock.time += 5
        assert await engine.sweep(max_schedules=2) == SweepReport(schedules=2, more=True)
        assert called == ["tick"] * 2
        assert await engine.sweep(max_schedules=2) == SweepReport(schedules=2, more=True)
        assert await engine.sweep(max_schedules=2) == SweepReport(schedules=1)
        assert await engine.sweep(max_schedules=0) == SweepReport()
        clock.time += 1
        assert await engine.sweep(max_schedules=0) == SweepReport(more=True)
    assert called == ["tick"] * 5


async def test_a_schedule_in_real_time_ends_a_sweep_too() -> None:
    async with asyncio.timeout(PATIENCE):
        store = MemoryStore()
        async with connect(store) as client:
            _ = await client.schedule("s", call("tick"), every=0.01)
        engine = Engine(store, [tick])
        swept = 0
        while swept < 3:
            report = await engine.sweep(max_schedules=2)
            assert report.schedules <= 2
            swept += report.schedules


async def test_a_schedule_that_has_missed_ten_thousand_ticks_fires_as_many_as_it_may() -> None:
    store, clock = MemoryStore(), FakeClock()
    await scheduled(store, clock, call("tick"), every=1, catch_up="all", overlap="allow")
    clock.time += 10_000
    async with asyncio.timeout(PATIENCE * 4):
        assert await Engine(store, [tick], clock=clock).sweep(max_schedules=30) == SweepReport(schedules=30, more=True)
        assert await Engine(store, [tick], clock=clock).sweep(max_schedules=7) == SweepReport(schedules=7, more=True)
    assert called == ["tick"] * 37


async def test_a_tick_that_waits_for_the_run_before_keeps_no_sweep() -> None:
    store, clock = MemoryStore(), FakeClock()
    engine = Engine(store, [nap], clock=clock)
    await scheduled(store, clock, call("nap", "a"), every=60, overlap="buffer_one")
    async with asyncio.timeout(PATIENCE):
        await engine.sweep()
        clock.time += 61
        assert (await engine.sweep()).schedules == 1
        clock.time += 60
        for _ in range(3):
            assert (await engine.sweep()).timers == 0
        clock.time += 3600
        await engine.sweep()
    assert called.count("a after") == 1


@workflow
async def endless(n: int) -> int:
    await note(f"{n}")
    continue_as(n + 1)


async def test_a_workflow_that_goes_on_for_ever_is_swept_up_to_the_limit() -> None:
    store, clock = MemoryStore(), FakeClock()
    engine = Engine(store, [endless], clock=clock)
    async with connect(store, clock=clock) as client:
        _ = await client.start(endless(0), id="e")
    async with asyncio.timeout(PATIENCE):
        assert await engine.sweep(max_runs=5) == SweepReport(runs=5, more=True)
        assert await engine.sweep(max_runs=2) == SweepReport(runs=2, more=True)
    assert called == [f"{n}" for n in range(7)]


async def test_runs_that_begin_others_are_swept_up_to_the_limit() -> None:
    """By a step that starts them, as a detached child, or into a queue."""
    store, clock = MemoryStore(), FakeClock()
    engine: Engine

    @step
    async def begin(n: int) -> None:
        _ = await engine.start(call("breed", n + 1))

    @workflow
    async def breed(n: int) -> None:
        await begin(n)
        await child(call("other", n), detached=True)

    @workflow
    async def other(n: int) -> None:
        await note("other")

    engine = Engine(store, [breed, other], clock=clock)
    async with connect(store, clock=clock) as client:
        _ = await client.start(call("breed", 0))
    async with asyncio.timeout(PATIENCE):
        report = await engine.sweep(max_runs=9)
        assert report == SweepReport(runs=9, more=True)
        assert await engine.sweep(max_runs=4) == SweepReport(runs=4, more=True)


async def test_a_step_may_wait_for_a_run_that_it_has_begun() -> None:
    store, clock = MemoryStore(), FakeClock()
    engine: Engine

    @step
    async def ask_other() -> Any:
        return await (await engine.start(call("tick"))).result()

    @workflow
    async def asking() -> Any:
        return await ask_other()

    engine = Engine(store, [asking, tick], clock=clock)
    async with connect(store, clock=clock) as client:
        _ = await client.start(call("asking"), id="a")
    async with asyncio.timeout(PATIENCE):
        assert await engine.sweep() == SweepReport(runs=2)
    assert await status_of(store, "a") is RunStatus.COMPLETED


async def test_runs_that_signal_each_other_are_swept_up_to_the_limit() -> None:
    store, clock = MemoryStore(), FakeClock()
    engine: Engine

    @step
    async def pass_on(to: str) -> None:
        _ = await engine.signal(to, "ball")

    @workflow
    async def player(other: str) -> None:
        while True:
            await wait_signal("ball")
            await pass_on(other)

    engine = Engine(store, [player], clock=clock)
    async with connect(store, clock=clock) as client:
        for one, other in ("ab", "ba"):
            _ = await client.start(player(other), id=one)
        assert await engine.sweep() == SweepReport(runs=2)
        _ = await client.signal("a", "ball")
    async with asyncio.timeout(PATIENCE):
        assert await engine.sweep(max_timers=6) == SweepReport(timers=6, more=True)


async def test_a_sweep_does_not_stay_for_runs_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they wait for, and however short."""
    config = OrchestratorConfig(warm=1e6, idle=1e6)
    monkeypatch.setattr(Engine, "_service_config", ServiceConfig(orchestrator=config))
    store, clock = MemoryStore(), FakeClock()

    @workflow
    async def soon() -> None:
        await sleep(0.5)

    @step(retry=Retry(attempts=3, initial=0.5, jitter=False))
    async def stumble() -> None:
        raise ConnectionError

    @workflow
    async def stumbling() -> None:
        await stumble()

    @workflow
    async def question() -> Any:
        return await approval("ok")

    engine = Engine(store, [ask, nap, soon, stumbling, question], clock=clock)
    async with connect(store, clock=clock) as client:
        for one in (ask("a"), nap("n"), soon(), stumbling(), question()):
            _ = await client.start(one)
    async with asyncio.timeout(PATIENCE):
        assert await engine.sweep() == SweepReport(runs=5)
        clock.time += 0.6
        assert await engine.sweep() == SweepReport(timers=2)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres", "redis"])
async def test_two_sweeps_at_once_report_each_timer_once(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    memory, clock = MemoryStore(), FakeClock()
    url = f"sqlite:///{tmp_path}/runs.db" if kind == "sqlite" else ""
    if kind in ("postgres", "redis"):
        url = request.getfixturevalue(f"{kind}_url")

    def engine() -> Engine:
        return Engine(memory if kind == "memory" else open_store(url), [nap], clock=clock)

    async with asyncio.timeout(PATIENCE * 6):
        await engine().sweep()
        async with connect(memory if kind == "memory" else url, clock=clock) as client:
            for n in range(40):
                _ = await client.start(nap(f"{n}"), id=f"{n}")
        runs = await asyncio.gather(engine().sweep(), engine().sweep())
        # What one of them was offered and did not come to is left to the next.
        assert sum(report.runs for report in [*runs, await engine().sweep()]) == 40
        clock.time += 3600
        timers = await asyncio.gather(engine().sweep(), engine().sweep())
        assert sum(report.timers for report in [*timers, await engine().sweep()]) == 40
    assert sorted(called) == sorted(f"{n} {when}" for n in range(40) for when in ("before", "after"))


async def test_a_step_that_hangs_is_handed_over_when_the_time_is_up() -> None:
    store, clock = MemoryStore(), FakeClock()
    over = threading.Event()

    @step
    def hang() -> None:
        over.wait()

    @workflow
    async def hanging() -> None:
        await hang()

    engine = Engine(store, [hanging], clock=clock, recovery=Recovery(grace=3600))
    async with connect(store, clock=clock) as client:
        _ = await client.start(hanging(), id="h")
    try:
        async with asyncio.timeout(PATIENCE):
            assert await engine.sweep(until=0.05) == SweepReport(runs=1, more=True)
    finally:
        over.set()
    assert await status_of(store, "h") is RunStatus.RUNNING


async def test_a_run_that_waits_for_a_lock_of_another_keeps_no_sweep() -> None:
    store, clock = MemoryStore(), FakeClock()
    async with connect(store, clock=clock) as client, asyncio.timeout(PATIENCE):
        held = await client.locks.acquire("door", "somebody", ttl=7200)
        assert held is not None
        _ = await client.start(inside("a"), id="a")
        for _ in range(3):
            assert (await Engine(store, [inside], clock=clock).sweep()).more
        await client.locks.release("door", "somebody")
        assert not (await Engine(store, [inside], clock=clock).sweep()).more
    assert called == ["a in"]


async def test_the_limit_holds_for_all_queues_together() -> None:
    store, clock = MemoryStore(), FakeClock()
    engine = Engine(store, [tick], clock=clock)
    async with connect(store, clock=clock) as client:
        for n in range(4):
            for queue in ("p", "q", "r"):
                _ = await client.start(tick(), id=f"{queue}{n}", queue=queue)
    assert await engine.sweep(max_runs=5) == SweepReport(runs=5, more=True)
    assert await engine.sweep() == SweepReport(runs=7)


async def test_a_run_that_has_lost_its_owner_again_and_again_is_tried_in_a_sweep() -> None:
    store, clock = MemoryStore(), FakeClock()

    @workflow
    async def flow() -> str:
        return await note("done")

    started = RunStarted("r", "flow", "1", Raw(b"{}"))
    events: list[AnyEvent] = [started, RunClaimed("x", 1, "x"), StepStarted("note:0")]
    events += [RunClaimed("y", 2, "y"), StepStarted("note:0", 2)]
    [outcome] = await append_all(store.journal, [extend(RunState("r"), events, clock.time - 1000)])
    assert outcome == Appended()
    async with asyncio.timeout(PATIENCE):
        _ = await Engine(store, [flow], clock=clock).sweep()
    assert store.journal.rows["r"].status is not RunStatus.RUNNING
