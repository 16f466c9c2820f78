"""Timers: each fires once and never before its time, however many are due at once and whatever the clock does."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from perdure import Engine, Recovery, RunStatus, connect, sleep_until, workflow
from perdure.kernel.events import AnyEvent, RunClaimed, RunStarted, WaitOpened, WaitResolved
from perdure.kernel.state import RunState
from perdure.ports.appends import extend
from perdure.ports.journal import Appended, append_all
from perdure.ports.leases import ORCHESTRATOR, holder
from perdure.ports.timers import Ahead
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


# --- several engines ------------------------------------------------------------------------------------------------


def test_a_timer_is_on_time_though_a_run_of_another_engine_is_due_before_it() -> None:
    """Also of one that came later, and whose timers the first engine takes for anyone's."""
    sim = Simulation(seed=3)

    async def scenario() -> None:
        recovery = Recovery(check_interval=600, lease=600)
        async with sim.engine([alarm], name="a", recovery=recovery) as first:
            run = await first.start(alarm(sim.now() + timedelta(seconds=60)), id="a")
            async with sim.engine([alarm], name="b", recovery=recovery) as second:
                others = [
                    await second.start(alarm(sim.now() + timedelta(seconds=n)), id=f"b{n}") for n in (20, 40, 59, 60)
                ]
                await sim.advance(seconds=100)
                for one, engine in [(run, first), *((other, second) for other in others)]:
                    [late] = check(await journal(engine, one.id), 1)
                    assert late < 2

    sim.play(scenario())


async def test_the_own_timer_is_known_after_a_run_of_another_engine_was_due() -> None:
    store, clock = MemoryStore(), FakeClock()
    now = clock.now()
    due = [WaitOpened("sleep:0", "timer", now + 20)]
    theirs: list[AnyEvent] = [RunStarted("b", "alarm", "1", Raw(b"{}")), RunClaimed("b", 1, "s"), *due]
    async with Engine(store, [alarm], clock=clock, recovery=Recovery(check_interval=3600, grace=0)) as engine:
        run = await engine.start(alarm(datetime.fromtimestamp(now + 60, UTC)), id="a")
        await eventually(lambda: store.journal.rows[run.run_id].wake_at == now + 60)
        service = engine._service
        assert service is not None
        _ = await store.leases.acquire(ORCHESTRATOR + "b", holder("b", "s"), 1e6, now)
        [outcome] = await append_all(store.journal, [extend(RunState("b"), theirs, now)])
        assert outcome == Appended()
        await service.timers.run_once(clock.now())
        clock.advance(21)
        report = await service.timers.run_once(clock.now())
        assert report.next_due == now + 60, "the engine b looks after its own"


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "redis"])
async def test_on_every_store_a_timer_is_not_forgotten_for_that_of_another_engine(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    if kind in ("postgres", "redis"):
        url = request.getfixturevalue(f"{kind}_url")
    rare = Recovery(check_interval=3600, lease=3600, grace=0)
    async with asyncio.timeout(PATIENCE * 4), Engine(url, [alarm], name="a", recovery=rare) as first:
        at = datetime.now(UTC) + timedelta(seconds=3)
        run = await first.start(alarm(at), id="a")
        async with Engine(url, [alarm], name="b", recovery=rare) as second, connect(url) as client:
            others = [await second.start(alarm(at - timedelta(seconds=n / 2)), id=f"b{n}") for n in (1, 2)]
            # On a busy machine their time may have come by now.
            while not {await other.status() for other in others} <= {RunStatus.WAITING, RunStatus.COMPLETED}:
                await asyncio.sleep(0)
            # Both engines are told of it, and the first finds what is due next, whoever looks after it.
            soon = await client.start(alarm(datetime.now(UTC)))
            for one in [soon, *others, run]:
                assert await one.result() == "rang"


async def test_what_is_noted_while_the_store_is_asked_is_not_forgotten() -> None:
    """A run leaves memory after the store has answered, and before the answer is read."""
    store, clock = MemoryStore(), FakeClock()
    async with Engine(store, [alarm], clock=clock, recovery=Recovery(check_interval=3600, grace=0)) as engine:
        service = engine._service
        assert service is not None
        assert engine._orchestrator is not None
        ahead, wakeups = store.timers.ahead, engine._orchestrator.wakeups

        async def late(*arguments: Any) -> Ahead:
            found = await ahead(*arguments)
            wakeups.due(clock.now() + 5)
            return found

        store.timers.ahead = late  # type: ignore[assignment, method-assign]
        report = await service.timers.run_once(clock.now())
        assert report.next_due == clock.now() + 5
