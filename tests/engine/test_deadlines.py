"""A deadline holds in every status: the run fails with DeadlineExceeded when it comes, whatever it is at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from perdure import (
    DeadlineExceeded,
    Engine,
    Queue,
    Retry,
    RunStatus,
    approval,
    child,
    lock,
    sleep,
    step,
    wait_signal,
    workflow,
)
from perdure.kernel.policies.lock_keys import lease_key
from perdure.ports.leases import Acquired
from perdure.testing.simulation import Simulation

calls: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    calls.clear()


@step
async def work(seconds: float = 0.0) -> str:
    calls.append("work")
    await asyncio.sleep(seconds)
    return "done"


@step(retry=Retry(attempts=100, initial=50.0))
async def failing() -> None:
    calls.append("failing")
    raise ConnectionError("no")


@step(queue="far")
async def remote() -> str:
    return "never"


@workflow
async def plain() -> str:
    return await work()


@workflow
async def sleeping() -> None:
    await sleep(1000)


@workflow
async def signalled() -> None:
    await wait_signal("go")


@workflow
async def approved() -> None:
    await approval("ship")


@workflow
async def backing_off() -> None:
    await failing()


@workflow
async def executing() -> None:
    await work(1000)


@workflow
async def parent() -> None:
    await sleeping()


@workflow
async def calling() -> str:
    return await remote()


@workflow
async def holder() -> None:
    async with lock("room", ttl=30):
        await sleep(100_000)


@workflow
async def guest() -> None:
    async with lock("room", ttl=30):
        await work()


PROGRAMS: list[Any] = [plain, sleeping, signalled, approved, backing_off, executing, parent, calling, holder, guest]
QUEUES = [Queue("full", concurrency=1)]
FAR = {"queues": [*QUEUES, Queue("far", concurrency=1)]}


async def is_late(engine: Engine, id: str, sim: Simulation, at: float = 100.0) -> None:
    """A run that was started just now with a deadline of 100 seconds ends then, and not before."""
    await sim.advance(at - 1)
    view = await engine.get(id)
    assert view is not None
    assert not view.status.finished, view.status
    await sim.advance(2)
    view = await engine.get(id)
    assert view is not None
    assert view.status is RunStatus.FAILED, (id, view.status)
    assert "DeadlineExceeded" in str(view.error)


def play(scenario: Callable[[Simulation, Engine], Any], **options: Any) -> None:
    sim = Simulation(seed=1)

    async def whole() -> None:
        async with sim.engine(PROGRAMS, **{**FAR, **options}) as engine:
            await scenario(sim, engine)

    sim.play(whole())


@pytest.mark.parametrize("program", [sleeping, signalled, approved, backing_off, executing, parent, calling], ids=str)
def test_a_deadline_ends_a_run_that_has_begun(program: Any) -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        if program is calling:
            _ = await engine.start(sleeping(), queue="far")
        _ = await engine.start(program(), id="r", deadline=100)
        await is_late(engine, "r", sim)

    play(scenario)


def test_a_deadline_ends_a_run_before_its_delay_is_over() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        run = await engine.start(plain(), id="r", delay=1000, deadline=100)
        await is_late(engine, "r", sim)
        with pytest.raises(DeadlineExceeded):
            await run.result()
        await sim.advance(2000)
        assert calls == []

    play(scenario)


def test_a_deadline_ends_a_run_in_a_full_queue_and_the_next_has_its_turn() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        _ = await engine.start(sleeping(), id="first", queue="full")
        _ = await engine.start(plain(), id="r", queue="full", deadline=100)
        last = await engine.start(plain(), id="last", queue="full")
        await is_late(engine, "r", sim)
        await sim.advance(1000)
        assert await last.result() == "done"
        assert calls == ["work"]

    play(scenario)


def test_a_deadline_ends_a_run_that_waits_for_a_lock() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        _ = await engine.start(holder(), id="holder")
        await sim.advance(1)
        _ = await engine.start(guest(), id="r", deadline=100)
        await is_late(engine, "r", sim)
        assert [view.key for view in await engine.locks.list()] == ["room"]

    play(scenario)


@pytest.mark.parametrize("program", [plain, sleeping, signalled, executing, parent], ids=str)
@pytest.mark.parametrize("options", [{}, {"delay": 1000}, {"queue": "full"}], ids=str)
def test_a_deadline_ends_a_paused_run(program: Any, options: dict[str, Any]) -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        if "queue" in options:
            _ = await engine.start(sleeping(), queue="full")
        if program is plain and not options:
            return  # it is over at once
        _ = await engine.start(program(), id="r", deadline=100, **options)
        await sim.advance(10)
        _ = await engine.pause("r")
        assert (await engine.get("r")).status is RunStatus.PAUSED  # type: ignore[union-attr]
        await is_late(engine, "r", sim, 90.0)

    play(scenario)


def test_a_deadline_of_a_child_holds_while_the_run_is_paused() -> None:
    @workflow
    async def family() -> str:
        try:
            await child(sleeping(), deadline=100)
        except DeadlineExceeded:
            return "late"
        return "in time"

    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine([family, sleeping]) as engine:
            run = await engine.start(family(), id="r")
            await sim.advance(10)
            _ = await engine.pause("r")
            await sim.advance(200)
            assert (await engine.get("r")).status is RunStatus.PAUSED  # type: ignore[union-attr]
            _ = await engine.resume("r")
            assert await run.result() == "late"

    sim.play(scenario())


def test_a_deadline_ends_a_parked_run_which_can_be_retried() -> None:
    new: list[bool] = []

    @workflow
    async def changing() -> list[str]:
        first = [await wait_signal("new")] if new else [await work()]
        await wait_signal("go")
        return [*first, await work()]

    sim = Simulation(seed=1)

    async def begin() -> None:
        async with sim.engine([changing]) as engine:
            _ = await engine.start(changing(), id="r", deadline=100)
            await sim.advance(10)

    async def after() -> None:
        async with sim.engine([changing]) as engine:
            _ = await engine.signal("r", "go")
            await sim.advance(10)
            assert (await engine.get("r")).status is RunStatus.PARKED  # type: ignore[union-attr]
            await is_late(engine, "r", sim, 80.0)
            new.clear()
            assert await (await engine.retry("r")).result() == ["done", "done"]
            assert len(calls) == 2

    sim.play(begin())
    new.append(True)
    sim.play(after())


@pytest.mark.parametrize("how", ["delayed", "queued", "paused", "sleeping", "executing"])
def test_a_deadline_that_came_while_no_engine_was_there_is_kept_by_the_next_one(how: str) -> None:
    sim = Simulation(seed=1)

    async def begin() -> None:
        async with sim.engine(PROGRAMS, queues=QUEUES) as engine:
            kinds: dict[str, dict[str, Any]] = {"delayed": {"delay": 10_000}, "queued": {"queue": "full"}}
            options = kinds.get(how, {})
            if how == "queued":
                _ = await engine.start(sleeping(), queue="full")
            program = {"sleeping": sleeping, "executing": executing}.get(how, signalled)
            _ = await engine.start(program(), id="r", deadline=100, **options)
            await sim.advance(10)
            if how == "paused":
                _ = await engine.pause("r")

    async def wait() -> None:
        await sim.advance(500)

    async def after() -> None:
        async with sim.engine(PROGRAMS, queues=QUEUES) as engine:
            await sim.advance(5)
            view = await engine.get("r")
            assert view is not None
            assert view.status is RunStatus.FAILED
            assert "DeadlineExceeded" in str(view.error)

    for part in (begin, wait, after):
        sim.play(part())


def test_a_deadline_ends_a_run_that_waits_to_have_its_lock_again() -> None:
    sim = Simulation(seed=1)

    async def begin() -> None:
        engine = sim.engine(PROGRAMS)
        _ = await engine.open()
        _ = await engine.start(holder(), id="r", deadline=20_000)
        await sim.advance(10)  # and dies

    async def after() -> None:
        await sim.advance(100)
        taken = await sim.store.leases.acquire(lease_key("room"), "another", 1_000_000.0, sim.now().timestamp())
        assert isinstance(taken, Acquired)
        async with sim.engine(PROGRAMS) as engine:
            await sim.advance(15_000)
            assert (await engine.get("r")).status is RunStatus.RUNNING  # type: ignore[union-attr]
            await sim.advance(5_000)
            view = await engine.get("r")
            assert view is not None
            assert view.status is RunStatus.FAILED

    sim.play(begin())
    sim.play(after())


def test_a_deadline_longer_than_the_run_does_nothing() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        run = await engine.start(plain(), id="r", delay=10, deadline=100)
        assert await run.result() == "done"
        await sim.advance(200)
        assert (await engine.get("r")).status is RunStatus.COMPLETED  # type: ignore[union-attr]

    play(scenario)
