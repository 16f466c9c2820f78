"""Signals: kept, delivered in order, once, wherever the run is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Accepted,
    Duplicate,
    Engine,
    Finished,
    NotDecodable,
    NotFound,
    RunStatus,
    SignalRejected,
    SignalTimeout,
    connect,
    step,
    wait_signal,
    workflow,
)
from perdure.kernel.events import RunClaimed, SignalReceived, WaitOpened, WaitResolved
from perdure.kernel.state import fold
from perdure.orchestrator.service import ServiceConfig
from perdure.orchestrator.session import OrchestratorConfig
from perdure.ports.appends import extend
from perdure.ports.journal import append_one
from perdure.testing.conformance.history import numbered
from tests.engine.harness import PATIENCE, FakeClock, Gates, Recorded, eventually, replay
from tests.engine.wait_parts import World, asleep, note


@workflow
async def collect(count: int) -> list[Any]:
    return [await wait_signal("item") for _ in range(count)]


@workflow
async def timed(seconds: float) -> str:
    try:
        return f"signal {await wait_signal('go', timeout=seconds)}"
    except TimeoutError as error:
        return type(error).__name__


async def test_signals_that_come_early_are_kept_and_taken_in_their_order(url: str) -> None:
    @workflow
    async def late() -> list[int]:
        await note("first")
        return [await wait_signal("item", type=int) for _ in range(5)]

    world = World(url, [late])
    async with world.engine as engine:
        run = await engine.start(late(), id="it")
        for i in range(5):
            assert await engine.signal("it", "item", i) == Accepted()
        assert await run.result(PATIENCE) == [0, 1, 2, 3, 4]
        await replay(late, run.run_id, engine.store)


async def test_a_signal_wakes_a_run_that_has_left_memory(url: str) -> None:
    world = World(url, [collect])
    async with world.engine as engine:
        run = await engine.start(collect(2), id="it")
        await world.opened("item:0")
        await asleep(engine, run.run_id)
        await engine.signal("it", "item", "a")
        await engine.signal("it", "item", "b")
        assert await run.result(PATIENCE) == ["a", "b"]
        await replay(collect, run.run_id, engine.store)


async def test_a_run_that_waits_here_is_told_without_being_looked_up(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(url, [collect])
    async with world.engine as engine:
        run = await engine.start(collect(3), id="it")
        await world.opened("item:0")
        await asleep(engine, run.run_id)
        with monkeypatch.context() as patch:
            patch.setattr(engine.store.runs, "find", None)
            assert await engine.signal("it", "item", "a") == Accepted()  # it sleeps
            assert await engine.signal("it", "item", "b") == Accepted()  # it is in memory
        await engine.signal("it", "item", "c")
        assert await run.result(PATIENCE) == ["a", "b", "c"]
        assert isinstance(await engine.signal("it", "item", "d"), Finished)


async def test_a_run_that_waited_here_and_is_another_s_now_is_told_all_the_same(url: str) -> None:
    world = World(url, [collect])
    async with world.engine as engine:
        run = await engine.start(collect(2), id="it")
        await world.opened("item:0")
        active = await asleep(engine, run.run_id)
        # Somebody else has claimed it, and its row says so.
        state = fold(run.run_id, await engine.store.journal.read(run.run_id))
        assert await append_one(engine.store.journal, extend(state, [RunClaimed("other", 2, "s")], engine.clock.now()))
        assert await engine.signal("it", "item", "a") == Accepted()
        assert run.run_id not in active
        events = [event for _, event in await numbered(engine.store.journal, run.run_id)]
        assert [type(event) for event in events[-2:]] == [RunClaimed, SignalReceived]


async def test_a_signal_id_makes_a_signal_arrive_once(url: str) -> None:
    world = World(url, [collect])
    async with world.engine as engine:
        run = await engine.start(collect(2), id="it")
        assert await engine.signal("it", "item", "a", signal_id="1") == Accepted()
        assert await engine.signal("it", "item", "again", signal_id="1") == Duplicate()
        assert await engine.signal("it", "item", "b", signal_id="2") == Accepted()
        assert await run.result(PATIENCE) == ["a", "b"]
        assert await engine.signal("it", "item", "c", signal_id="3") == Finished(RunStatus.COMPLETED)
        assert await engine.signal("it", "item", "late", signal_id="1") == Duplicate()
        assert await engine.signal("nobody", "item") == NotFound()


async def test_a_wait_that_times_out_leaves_the_signal_to_the_next_wait() -> None:
    @workflow
    async def twice() -> list[str]:
        out = []
        for _ in range(2):
            try:
                out.append(await wait_signal("go", timeout=60))
            except SignalTimeout as error:
                out.append(str(error))
        return out

    clock, recorded = FakeClock(), Recorded()
    async with Engine("memory://", [twice], clock=clock, on_commit=recorded) as engine:
        run = await engine.start(twice(), id="it")
        await recorded.until(lambda e: isinstance(e, WaitOpened))
        clock.advance(61)
        await recorded.until(lambda e: isinstance(e, WaitOpened) and e.op == "go:1")
        await engine.signal("it", "go", "here")
        assert await run.result(PATIENCE) == ["no signal 'go' came in time", "here"]
        await replay(twice, run.run_id, engine.store)


async def test_a_signal_that_is_there_wins_over_a_timeout_that_is_due() -> None:
    clock, recorded = FakeClock(), Recorded()
    async with Engine("memory://", [timed], clock=clock, on_commit=recorded) as engine:
        run = await engine.start(timed(60.0), id="it")
        await recorded.until(lambda e: isinstance(e, WaitOpened))
        clock.advance(61)
        await engine.signal("it", "go", 1)
        assert await run.result(PATIENCE) in ("signal 1", "SignalTimeout")
        winners = [e for e in await engine.journal("it") if isinstance(e.event, WaitResolved)]
        assert len(winners) == 1
        await replay(timed, run.run_id, engine.store)


async def test_several_waits_may_be_open_at_once(url: str) -> None:
    @workflow
    async def both() -> list[str]:
        return list(await asyncio.gather(wait_signal("a"), wait_signal("b"), wait_signal("a")))

    world = World(url, [both])
    async with world.engine as engine:
        run = await engine.start(both(), id="it")
        for name, value in (("b", "b1"), ("a", "a1"), ("a", "a2")):
            await engine.signal("it", name, value)
        assert await run.result(PATIENCE) == ["a1", "b1", "a2"]
        await replay(both, run.run_id, engine.store)


async def test_a_wait_that_the_body_gives_up_takes_no_signal_with_it(url: str) -> None:
    @workflow
    async def pick() -> list[str]:
        waits = [asyncio.create_task(wait_signal("left")), asyncio.create_task(wait_signal("right"))]
        done, rest = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        first = next(iter(done)).result()
        return [first, await wait_signal("right" if first == "L" else "left")]

    world = World(url, [pick])
    async with world.engine as engine:
        run = await engine.start(pick(), id="it")
        await engine.signal("it", "left", "L")
        await engine.signal("it", "right", "R")
        assert sorted(await run.result(PATIENCE)) == ["L", "R"]
        await replay(pick, run.run_id, engine.store)


async def test_a_signal_reaches_a_body_whose_steps_wait_for_room(url: str) -> None:
    gates = Gates()

    @step
    async def slow(number: int) -> int:
        await gates.wait("slow")
        return number

    @workflow
    async def until_told() -> str:
        steps = [asyncio.create_task(slow(n)) for n in range(3)]
        told: str = await wait_signal("stop")
        for task in steps:
            task.cancel()
        return told

    world = World(url, [until_told])
    async with world.engine as engine:
        run = await engine.start(until_told(), id="it", max_concurrency=1)
        await world.opened("stop:0")
        await engine.signal("it", "stop", "enough")
        assert await run.result(PATIENCE) == "enough"
        await replay(until_told, run.run_id, engine.store)


async def test_signals_one_by_one_are_taken_by_a_run_that_stays_in_memory(url: str) -> None:
    world = World(url, [collect])
    async with world.engine as engine:
        run = await engine.start(collect(30), id="it")
        await world.opened("item:0")
        assert engine._orchestrator is not None
        driver = engine._orchestrator.active[run.run_id]
        for n in range(29):
            await engine.signal("it", "item", n)
            await world.opened(f"item:{n + 1}")
            assert engine._orchestrator.active[run.run_id] is driver, "it was not read anew"
        await engine.signal("it", "item", 29)
        assert await run.result(PATIENCE) == list(range(30))
        await replay(collect, run.run_id, engine.store)


async def test_signals_from_elsewhere_are_taken_by_a_run_that_stays_in_memory(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tail.db'}"
    world = World(url, [collect])
    async with world.engine as engine, connect(url) as client:
        run = await engine.start(collect(3), id="it")
        await world.opened("item:0")
        assert engine._orchestrator is not None
        driver = engine._orchestrator.active[run.run_id]
        for n in range(2):
            await client.signal("it", "item", n)
            await world.opened(f"item:{n + 1}")
            assert engine._orchestrator.active[run.run_id] is driver, "only the end of its journal was read"
        await client.signal("it", "item", 2)
        assert await run.result(PATIENCE) == [0, 1, 2]
        await replay(collect, run.run_id, engine.store)


async def test_a_run_that_waits_leaves_memory_after_a_moment_and_at_once_when_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("perdure.orchestrator.warm_cache.WARM_LIMIT", 3)
    monkeypatch.setattr(Engine, "_service_config", ServiceConfig(orchestrator=OrchestratorConfig(warm=0.05)))
    world = World("memory://", [collect])
    async with world.engine as engine:
        assert engine._orchestrator is not None
        active = engine._orchestrator.active
        for n in range(10):
            _ = await engine.start(collect(1), id=f"r{n}")
        await eventually(lambda: len(active) <= 3)
        await eventually(lambda: not active)
        for n in range(10):
            await engine.signal(f"r{n}", "item", n)
        for n in range(10):
            assert await (await engine.start(collect(1), id=f"r{n}")).result(PATIENCE) == [n]


async def test_a_payload_that_does_not_fit_its_type_is_the_bodys_to_judge(url: str) -> None:
    @workflow
    async def strict() -> list[Any]:
        out: list[Any] = []
        while len(out) < 2:
            try:
                out.append(await wait_signal("n", type=int))
            except NotDecodable as error:
                out.append(str(error))
        return out

    world = World(url, [strict])
    async with world.engine as engine:
        run = await engine.start(strict(), id="it")
        await engine.pause("it")
        await engine.signal("it", "other", "nobody waits for it, and nobody knows its type")
        with pytest.raises(SignalRejected, match="not of type"):
            await engine.signal("it", "n", "not a number")
        await engine.signal("it", "n", 6)
        # Behind one that waits to be taken it is too early to say.
        await engine.signal("it", "n", "not a number")
        await engine.resume("it")
        number, message = await run.result(PATIENCE)
        assert message.startswith("the signal 'n' taken by n:1 cannot be read as int: ")
        assert number == 6


async def test_a_client_signals_a_run_of_an_engine_elsewhere(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'two.db'}"
    world = World(url, [collect])
    async with world.engine as engine:
        run = await engine.start(collect(3), id="it")
        async with connect(url) as client:
            for i in range(3):
                assert await client.signal("it", "item", i) == Accepted()
        assert await run.result(PATIENCE) == [0, 1, 2]


async def test_signals_sent_while_no_engine_lives_are_delivered_by_the_next(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'later.db'}"
    world = World(url, [collect])
    async with world.engine as engine:
        _ = await engine.start(collect(2), id="it")
        await world.opened("item:0")
    async with connect(url) as client:
        await client.signal("it", "item", "x")
        await client.signal("it", "item", "y")
    async with Engine(url, [collect]) as engine:
        assert await (await engine.start(collect(2), id="it")).result(PATIENCE) == ["x", "y"]
