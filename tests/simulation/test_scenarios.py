"""`Simulation.play`: virtual time for tests of workflows."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from perdure import Retry, RunStatus, UsageError, now, sleep, step, step_context, wait_signal, workflow
from perdure.testing.simulation import PromiseBroken, Simulation

sent: list[str] = []


@step
async def send(to: str) -> str:
    sent.append(to)
    return to


@step
def count(n: int) -> int:
    return n + 1


@step(cpu=True)
def heavy(n: int) -> int:
    return n * 2


@step(retry=Retry(attempts=3, initial=60.0, max=120.0, jitter=False))
async def flaky() -> int:
    attempt = step_context().attempt
    if attempt < 3:
        raise ConnectionError("not yet")
    return attempt


@workflow
async def remind(to: str, days: int = 1) -> str:
    await sleep(timedelta(days=days))
    return await send(to)


@workflow
async def add() -> int:
    return await count(await heavy(2))


@workflow
async def stubborn() -> int:
    return await flaky()


@workflow
async def told() -> None:
    _ = await wait_signal("go")


@workflow
async def dated() -> datetime:
    return now()


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    sent.clear()


def test_time_goes_by_when_somebody_waits_and_at_no_other_time() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine([remind]) as engine:
            run = await engine.start(remind("ada"), id="r1")
            await sim.advance(hours=23)
            assert await run.status() == RunStatus.WAITING
            assert sent == []
            await sim.advance(hours=1)
            assert sent == ["ada"]
            assert await run.status() == RunStatus.COMPLETED

    sim.play(scenario())
    assert sim.world.time == pytest.approx(timedelta(hours=24).total_seconds(), abs=10)


def test_a_scenario_returns_what_its_coroutine_returns() -> None:
    sim = Simulation()

    async def scenario() -> str:
        async with sim.engine([remind]) as engine:
            return await (await engine.start(remind("ada", days=30))).result()

    assert sim.play(scenario()) == "ada"


def test_a_scenario_raises_what_its_coroutine_raises() -> None:
    sim = Simulation()

    async def scenario() -> None:
        await sim.advance(minutes=1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        sim.play(scenario())


def test_what_a_scenario_leaves_open_is_lost_as_in_a_crash_and_the_next_one_recovers_it() -> None:
    sim = Simulation()

    async def crash() -> None:
        engine = await sim.engine([remind], name="a").open()
        run = await engine.start(remind("ada"), id="r1")
        assert run.id == "r1"

    async def recover() -> str:
        async with sim.engine([remind], name="a") as engine:
            return await (await engine.start(remind("not ada"), id="r1")).result()

    sim.play(crash())
    assert sim.play(recover()) == "ada"
    assert sent == ["ada"]


def test_retries_wait_in_virtual_time() -> None:
    sim = Simulation()

    async def scenario() -> tuple[int, float]:
        async with sim.engine([stubborn]) as engine:
            began = asyncio.get_running_loop().time()
            result = await (await engine.start(stubborn())).result()
            return result, asyncio.get_running_loop().time() - began

    result, took = sim.play(scenario())
    assert result == 3
    assert took == pytest.approx(180, abs=1)


def test_plain_steps_and_those_for_processes_run_in_place() -> None:
    sim = Simulation()

    async def scenario() -> int:
        async with sim.engine([add]) as engine:
            return await (await engine.start(add())).result()

    assert sim.play(scenario()) == 5


def test_workflows_and_scenarios_see_the_same_clock() -> None:
    sim = Simulation(start=datetime(2031, 5, 1, tzinfo=UTC).timestamp())

    async def scenario() -> datetime:
        async with sim.engine([dated]) as engine:
            await sim.advance(days=30)
            seen = await (await engine.start(dated())).result()
            assert abs(seen - sim.now()) < timedelta(seconds=1)
            return seen

    assert sim.play(scenario()).date().isoformat() == "2031-05-31"


def test_an_engine_sees_what_a_client_started() -> None:
    sim = Simulation()

    async def scenario() -> str:
        async with sim.engine([remind]), sim.client() as client:
            run = await client.start(remind("ada"), id="r1")
            return await run.result()

    assert sim.play(scenario()) == "ada"


@pytest.mark.parametrize("seconds", [0.0, 1.0, 10.0, 33.3])
def test_an_engine_hears_of_a_signal_that_is_sent_in_the_moment_of_its_first_look(seconds: float) -> None:
    sim = Simulation(seed=1)

    async def begin() -> None:
        async with sim.engine([told]) as engine:
            _ = await engine.start(told(), id="r")
            await sim.advance(seconds)

    async def tell() -> str:
        async with sim.engine([told]) as engine:
            await sim.advance()
            _ = await engine.signal("r", "go", "now")
            await sim.advance(1)
            view = await engine.get("r")
            assert view is not None
            return view.status

    sim.play(begin())
    assert sim.play(tell()) == RunStatus.COMPLETED


def test_a_month_of_waiting_takes_no_time() -> None:
    sim = Simulation()

    async def scenario() -> None:
        async with sim.engine([remind]) as engine:
            run = await engine.start(remind("ada", days=29), id="r1")
            await sim.advance(days=30)
            assert await run.status() == RunStatus.COMPLETED

    sim.play(scenario())
    assert sent == ["ada"]


def test_a_scenario_that_waits_for_nothing_is_an_error() -> None:
    sim = Simulation()

    async def scenario() -> None:
        await asyncio.Event().wait()

    with pytest.raises(UsageError, match="never happen"):
        sim.play(scenario())


def test_a_task_of_a_scenario_that_fails_unseen_is_an_error() -> None:
    sim = Simulation()

    async def scenario() -> None:
        async def fail() -> None:
            raise KeyError("unseen")

        task = asyncio.create_task(fail())
        await sim.advance(1)
        assert task.done()

    with pytest.raises(PromiseBroken, match="unseen"):
        sim.play(scenario())


def test_a_simulation_refuses_to_run_inside_another_loop() -> None:
    async def inside() -> None:
        Simulation().run(add())

    with pytest.raises(UsageError, match="plain function"):
        asyncio.run(inside())


def test_an_engine_belongs_to_a_scenario() -> None:
    with pytest.raises(UsageError, match="inside a scenario"):
        _ = Simulation().engine([add])


def test_threads_have_no_place_in_a_scenario() -> None:
    sim = Simulation()

    async def scenario() -> None:
        await asyncio.to_thread(print)

    with pytest.raises(UsageError, match="no threads"):
        sim.play(scenario())


def test_nothing_of_a_machine_runs_after_its_crash() -> None:
    effects: list[str] = []
    sim = Simulation()

    async def scenario() -> None:
        async def work() -> None:
            try:
                await asyncio.sleep(10)
                effects.append("went on")
            finally:
                effects.append("cleaned up")

        task = asyncio.create_task(work())
        await sim.advance(1)
        assert not task.done()
        sim.world.machines[0].crash()
        effects.append("the last callback")

    with pytest.raises(UsageError):
        sim.play(scenario())
    # Python must close the coroutine in the end; it does so after the world has ended.
    assert effects == ["the last callback", "cleaned up"]
