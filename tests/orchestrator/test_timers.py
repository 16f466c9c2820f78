"""Timers: each fires once and never before its time, however many are due at once and whatever the clock does."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from perdure import Engine, RunStatus, sleep_until, workflow
from perdure.kernel.events import AnyEvent, WaitOpened, WaitResolved
from perdure.stores.memory.store import MemoryStore
from perdure.testing.simulation import Simulation
from tests.engine.harness import PATIENCE, FakeClock, eventually

HOUR, DAY = 3600.0, 86400.0


@workflow
async def alarm(at: datetime) -> str:
    await sleep_until(at)
    return "rang"


@workflow
async def alarms(first: datetime, count: int) -> int:
    """Many timers of one run, all due within a second."""
    moments = [first + timedelta(seconds=n / count) for n in range(count)]
    return len(await asyncio.gather(*[sleep_until(moment) for moment in moments]))


def check(events: list[tuple[float, AnyEvent]], count: int) -> list[float]:
    """Every timer fired once, and none before it was due. Says how late each was."""
    due = {e.op: e.deadline for _, e in events if isinstance(e, WaitOpened) and e.kind == "timer"}
    fired = [(at, e) for at, e in events if isinstance(e, WaitResolved) and e.by == "timer"]
    assert len(due) == len(fired) == len({e.op for _, e in fired}) == count
    late = []
    for at, event in fired:
        deadline = due[event.op]
        assert deadline is not None
        assert at >= deadline, f"{event.op} fired {deadline - at} s early"
        late.append(at - deadline)
    return late


async def journal(engine: Engine, id: str) -> list[tuple[float, AnyEvent]]:
    return [(entry.at.timestamp(), entry.event) for entry in await engine.journal(id)]


def test_many_runs_due_within_a_second_wake_once_each_and_none_early() -> None:
    sim, count = Simulation(seed=1), 600

    async def scenario() -> None:
        first = sim.now() + timedelta(hours=1)
        moments = [first + timedelta(seconds=n / count) for n in range(count)]
        async with sim.engine([alarm]) as engine:
            runs = [await engine.start(alarm(at), id=f"r{n}") for n, at in enumerate(moments)]
            await sim.advance(minutes=59, seconds=50)
            assert {await run.status() for run in runs} == {RunStatus.WAITING}
            await sim.advance(seconds=15)
            for run in runs:
                assert await run.result() == "rang"
                [late] = check(await journal(engine, run.id), 1)
                assert late < 3

    sim.play(scenario())


def test_many_timers_of_one_run_fire_once_each_and_none_early() -> None:
    sim = Simulation(seed=2)

    async def scenario() -> None:
        async with sim.engine([alarms]) as engine:
            run = await engine.start(alarms(sim.now() + timedelta(hours=1), 2000), id="it")
            assert await run.result() == 2000
            assert max(check(await journal(engine, "it"), 2000)) < 3

    sim.play(scenario())


@pytest.mark.parametrize("jump", [HOUR, -HOUR, DAY, -DAY])
async def test_a_clock_that_jumps_wakes_nobody_early_loses_nobody_and_wakes_nobody_twice(jump: float) -> None:
    clock = FakeClock()
    start = clock.now()
    # Some are due before the place the clock jumps to, and some after it.
    waits = [0.4, 30.0, HOUR / 2, HOUR - 1, HOUR + 60, DAY - 1, DAY + 60]
    async with Engine("memory://", [alarm], clock=clock) as engine:
        runs = {
            wait: await engine.start(alarm(datetime.fromtimestamp(start + wait, UTC)), id=f"r{wait}") for wait in waits
        }

        async def woken() -> set[float]:
            return {wait for wait, run in runs.items() if (await run.status()).finished}

        async def until_woken(expected: set[float]) -> None:
            async with asyncio.timeout(PATIENCE):
                while await woken() != expected:
                    assert await woken() <= expected, "early"
                    await asyncio.sleep(0.005)

        clock.advance(jump)
        await until_woken({wait for wait in waits if wait <= jump})
        # Back to where it was, as a clock that is put right, and on from there.
        clock.advance(-jump)
        await engine.signal("r30.0", "nobody")  # something happens while the clock is back
        await until_woken({wait for wait in waits if wait <= max(0.0, jump)})
        clock.advance(HOUR / 2)
        await until_woken({wait for wait in waits if wait <= max(HOUR / 2, jump)})
        clock.advance(2 * DAY)
        await until_woken(set(waits))
        for run in runs.values():
            check(await journal(engine, run.id), 1)


async def test_a_clock_set_back_while_an_engine_is_down_wakes_nobody_early() -> None:
    clock = FakeClock()
    due = datetime.fromtimestamp(clock.now() + HOUR, UTC)
    store = MemoryStore()
    async with Engine(store, [alarm], clock=clock) as engine:
        _ = await engine.start(alarm(due), id="it")
        assert engine._orchestrator is not None
        active = engine._orchestrator.active
        await eventually(lambda: not active)
    clock.advance(-DAY)
    async with Engine(store, [alarm], clock=clock) as engine:
        run = await engine.start(alarm(due), id="it")
        clock.advance(DAY + HOUR - 1)
        assert await run.status() is RunStatus.WAITING
        clock.advance(2)
        assert await run.result(PATIENCE) == "rang"
        check(await journal(engine, "it"), 1)
