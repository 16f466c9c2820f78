"""Remote steps in virtual time: executed elsewhere, reported once, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from perdure import (
    Cancelled,
    Engine,
    PayloadTooLarge,
    Program,
    Queue,
    Retry,
    RunStatus,
    Step,
    StepCancelled,
    UsageError,
    step,
    step_context,
    workflow,
)
from perdure.kernel.events import StepStarted, StepSucceeded
from perdure.testing.simulation import STORMY, Simulation
from tests.amounts import some

calls: list[str] = []


@step(queue="gpu")
async def render(frame: str, seconds: float = 1.0) -> str:
    calls.append(frame)
    await asyncio.sleep(seconds)
    return f"rendered {frame}"


@step(queue="gpu", retry=Retry(attempts=3, initial=1.0, jitter=False))
async def flaky(frame: str) -> int:
    calls.append(frame)
    if step_context().attempt < 3:
        raise ConnectionError("not yet")
    return step_context().attempt


@step(queue="gpu")
async def broken(what: str) -> None:
    raise ValueError(what)


@step(queue="gpu")
async def large(size: int) -> str:
    return "x" * size


@step
async def local(value: str) -> str:
    return value + "!"


STEPS: list[Step[..., Any]] = [render, flaky, broken, large]


@workflow
async def film(frame: str = "1", seconds: float = 1.0) -> str:
    return await local(await render(frame, seconds))


@workflow
async def many(count: int) -> list[str]:
    return await asyncio.gather(*(render(f"{n}", float(count - n)) for n in range(count)))


@workflow
async def trying() -> int:
    return await flaky("f")


@workflow
async def failing() -> str:
    try:
        await broken("no film")
    except ValueError as error:
        return f"caught {error}"
    return "nothing was raised"


@workflow
async def sizing(size: int) -> int:
    return len(await large(size))


@workflow
async def swallowing(text: str) -> int:
    return len(await render(text, 0.0))


@workflow
async def impatient() -> str:
    try:
        async with asyncio.timeout(10):
            return await render("slow", 3600.0)
    except TimeoutError:
        return "gave up"


@workflow
async def undisturbed() -> str:
    try:
        return await render("x", 60.0)
    except StepCancelled:
        return "cancelled there"


WORKFLOWS: list[Program] = [film, many, trying, failing, sizing, swallowing, impatient, undisturbed]


@pytest.fixture(autouse=True)
def fresh() -> None:
    calls.clear()


def play(invocation: Any, **options: Any) -> Any:
    """One run, with a worker beside the engine that owns it."""
    sim = Simulation(seed=1)

    async def scenario() -> Any:
        async with sim.engine(WORKFLOWS) as engine, sim.engine([], steps=STEPS, serves=("gpu",), **options):
            return await (await engine.start(invocation, id="r")).result()

    return sim.play(scenario())


def test_a_remote_step_is_executed_by_an_engine_that_serves_its_queue() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine(WORKFLOWS, name="a") as engine:
            run = await engine.start(film("7"), id="r")
            await sim.advance(hours=1)
            # Nobody has it: the run waits, and takes no memory.
            assert await run.status() is RunStatus.WAITING
            assert engine._orchestrator is not None
            assert not engine._orchestrator.active
            view = await engine.get("r")
            assert view is not None
            assert [(wait.kind, wait.name) for wait in view.waits] == [("remote", "gpu")]
            async with sim.engine([], name="b", steps=STEPS, serves=("gpu",)):
                assert await run.result() == "rendered 7!"
            started = [e.event for e in await engine.journal("r") if isinstance(e.event, StepStarted)]
            assert [(event.op, event.queue) for event in started] == [("render:0", "gpu"), ("local:0", "")]
            assert [view.id for view in await engine.list()] == ["r"]

    sim.play(scenario())
    assert calls == ["7"]


def test_an_engine_with_the_steps_executes_them_itself() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine(WORKFLOWS, steps=STEPS, queues=[Queue("gpu", concurrency=2)]) as engine:
            run = await engine.start(many(6))
            assert await run.result() == [f"rendered {n}" for n in range(6)]

    sim.play(scenario())
    assert sorted(calls) == [f"{n}" for n in range(6)]


def test_results_come_back_in_any_order() -> None:
    assert play(many(8)) == [f"rendered {n}" for n in range(8)]


def test_a_remote_step_is_tried_again_by_its_own_policy() -> None:
    assert play(trying()) == 3
    assert len(calls) == 3


def test_a_remote_step_that_fails_raises_what_it_raised() -> None:
    assert play(failing()) == "caught no film"


def test_large_results_and_inputs_lie_apart() -> None:
    assert play(sizing(600_000)) == 600_000
    assert play(swallowing("y" * 600_000)) == 600_009


def test_a_large_input_lies_apart_after_another_step_too() -> None:
    @workflow
    async def second() -> int:
        await local("first")
        return len(await render("x" * 300_000))

    sim = Simulation(1)

    async def scenario() -> None:
        async with sim.engine([second], steps=STEPS) as engine:
            run = await engine.start(second(), id="it")
            assert await run.result() == 300_009
            remote = next(row for row in sim.store.journal.rows.values() if row.parent)
            assert remote.input_blob
            assert bytes(remote.input) == b"null"

    sim.play(scenario())


def test_an_input_that_is_too_large_is_refused_in_the_body() -> None:
    with pytest.raises(PayloadTooLarge):
        play(swallowing("y" * 3_000_000))


def test_a_remote_step_that_nobody_waits_for_is_cancelled_where_it_runs() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine(WORKFLOWS) as engine, sim.engine([], steps=STEPS, serves=("gpu",)) as worker:
            assert await (await engine.start(impatient(), id="r")).result() == "gave up"
            await sim.advance(5)
            (remote,) = await engine.list(program="perdure.step.render")
            assert remote.status is RunStatus.CANCELLED
            assert worker._orchestrator is not None
            assert not worker._orchestrator.active

    sim.play(scenario())


def test_cancelling_the_parent_reaches_the_remote_step() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine(WORKFLOWS) as engine, sim.engine([], steps=STEPS, serves=("gpu",)):
            run = await engine.start(film("x", 3600.0), id="r")
            await sim.advance(10)
            assert await run.cancel() == Cancelled()
            assert (await run.outcome()).status is RunStatus.CANCELLED
            await sim.advance(5)
            (remote,) = await engine.list(program="perdure.step.render")
            assert remote.status is RunStatus.CANCELLED

    sim.play(scenario())


@pytest.mark.parametrize("wait", [0.0, 5.0])
def test_cancelling_the_remote_run_tells_the_parent(wait: float) -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine(WORKFLOWS) as engine:
            run = await engine.start(undisturbed(), id="r")
            worker = await sim.engine([], steps=STEPS, serves=("gpu",)).open() if wait else None
            await sim.advance(wait + 1)
            (remote,) = await engine.list(program="perdure.step.render")
            assert remote.status is (RunStatus.RUNNING if wait else RunStatus.QUEUED)
            assert await engine.cancel(remote.id) == Cancelled()
            assert await run.result() == "cancelled there"
            if worker is not None:
                await worker.close()

    sim.play(scenario())


def test_a_worker_that_dies_is_replaced_by_another() -> None:
    sim = Simulation(seed=1)

    async def crash() -> None:
        engine = await sim.engine(WORKFLOWS, name="a").open()
        _ = await sim.engine([], name="w1", steps=STEPS, serves=("gpu",)).open()
        _ = await engine.start(film("x", 100.0), id="r")
        await sim.advance(50)

    async def another() -> str:
        async with sim.engine(WORKFLOWS, name="a") as engine, sim.engine([], name="w2", steps=STEPS, serves=("gpu",)):
            return await (await engine.start(film(), id="r")).result()

    sim.play(crash())
    assert sim.play(another()) == "rendered x!"
    assert calls == ["x", "x"]


def test_a_result_that_arrives_after_a_takeover_of_the_parent_counts_once() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        first = await sim.engine(WORKFLOWS, name="a").open()
        async with sim.engine([], name="w", steps=STEPS, serves=("gpu",)):
            _ = await first.start(film("x", 7200.0), id="r")
            await sim.advance(60)
            assert first._orchestrator is not None
            first._orchestrator.abort()  # it dies: the worker goes on
            await first._service.stop()  # type: ignore[union-attr]
            async with sim.engine(WORKFLOWS, name="b") as second:
                assert [step.status for step in await second.steps("r")] == ["running"]
                await sim.advance(hours=4)
                view = await second.get("r")
                assert view is not None
                assert (view.status, view.output) == (RunStatus.COMPLETED, "rendered x!")
                succeeded = [e.event for e in await second.journal("r") if isinstance(e.event, StepSucceeded)]
                assert [event.op for event in succeeded] == ["render:0", "local:0"]

    sim.play(scenario())
    assert calls == ["x"]


@pytest.mark.parametrize("seed", some(range(12), 6))
def test_remote_steps_survive_storms(seed: int) -> None:
    sim = Simulation(seed=seed, faults=replace(STORMY, crashes=0.03))
    report = sim.run(
        *(film(f"{n}", 0.5) for n in range(3)), many(3), engines=3, steps=STEPS, queues=[Queue("gpu", concurrency=2)]
    )
    outputs = [report.results[f"run-{n}"].output for n in range(4)]
    assert outputs == [*(f"rendered {n}!" for n in range(3)), [f"rendered {n}" for n in range(3)]]
    assert report.most_under_way["gpu"] <= 2


def test_steps_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UsageError, match="takes steps"):
        _ = Engine("memory://", [], steps=[film])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="two steps are named"):
        _ = Engine("memory://", [], steps=[render, render.options(timeout=5)])
    with pytest.raises(UsageError, match="name of a queue"):
        _ = step(queue="a/b")(lambda: None)
