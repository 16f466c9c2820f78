"""Signs of life and progress of steps, and the deadline of a run over them. Time is virtual where it matters."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from perdure import (
    DeadlineExceeded,
    Engine,
    HeartbeatTimeout,
    PayloadTooLarge,
    Retry,
    RunStatus,
    StepStatus,
    StepTimeout,
    UsageError,
    Workflow,
    connect,
    default,
    rule,
    step,
    step_context,
    workflow,
)
from perdure.kernel.events import AnyEvent, AttemptFailed, StepFailed, StepProgressed, StepStarted
from perdure.stores.memory.store import MemoryStore
from perdure.testing.simulation import Simulation
from tests.engine.harness import AT_ONCE, LASTING, LONG, PATIENCE, Gates, LoopTime, Recorded, only, run

T = TypeVar("T")


def play(scenario: Callable[[Engine], Coroutine[Any, Any, T]], *programs: Workflow[..., Any]) -> T:
    """Play a scenario with an engine in virtual time."""
    sim = Simulation()

    async def main() -> T:
        async with sim.engine(list(programs)) as engine:
            return await scenario(engine)

    return sim.play(main())


async def journal(engine: Engine, id: str = "it") -> list[tuple[float, AnyEvent]]:
    """The events of a run and when they were, in seconds since its start."""
    entries = await engine.journal(id)
    return [((entry.at - entries[0].at).total_seconds(), entry.event) for entry in entries]


# --- signs of life --------------------------------------------------------------------------------------------------


def test_a_step_that_gives_no_sign_of_life_is_given_up_before_its_timeout() -> None:
    @step(heartbeat=10, timeout=3600)
    async def silent() -> None:
        await asyncio.sleep(30)

    flow = only(silent)

    async def scenario(engine: Engine) -> None:
        result = await engine.run(flow(), id="it")
        assert isinstance(result.error, HeartbeatTimeout)
        assert isinstance(result.error, StepTimeout)
        assert isinstance(result.error, TimeoutError)
        assert (result.error.op, result.error.seconds) == ("silent:0", 10)
        assert "heartbeat()" in str(result.error)
        (failed,) = [at for at, event in await journal(engine) if isinstance(event, StepFailed)]
        assert 10 <= failed < 11

    play(scenario, flow)


def test_a_step_that_gives_signs_of_life_takes_as_long_as_it_likes() -> None:
    @step(heartbeat=timedelta(seconds=10))
    async def lively() -> str:
        for _ in range(100):
            await asyncio.sleep(9)
            step_context().heartbeat()
        return "done"

    flow = only(lively)

    assert play(lambda engine: _output(engine, flow), flow) == "done"


def test_a_step_that_emits_is_alive() -> None:
    @step(heartbeat=10)
    async def lively() -> AsyncIterator[int]:
        for i in range(10):
            await asyncio.sleep(9)
            yield i

    flow = only(lively)

    assert play(lambda engine: _output(engine, flow), flow) == list(range(10))


async def _output(engine: Engine, flow: Workflow[[], T]) -> T:
    return await (await engine.start(flow(), id="it")).result()


def test_the_moment_counts_from_the_last_sign_of_life() -> None:
    @step(heartbeat=10)
    async def tired() -> None:
        await asyncio.sleep(8)
        step_context().heartbeat()
        await asyncio.sleep(3600)

    flow = only(tired)

    async def scenario(engine: Engine) -> None:
        assert isinstance((await engine.run(flow(), id="it")).error, HeartbeatTimeout)
        (failed,) = [at for at, event in await journal(engine) if isinstance(event, StepFailed)]
        assert 18 <= failed < 19

    play(scenario, flow)


def test_a_silent_attempt_is_tried_again_as_the_policy_says() -> None:
    @step(heartbeat=10, retry=Retry(attempts=3, initial=5.0, factor=1.0, jitter=False, on=(HeartbeatTimeout,)))
    async def silent_at_first() -> int:
        if step_context().attempt < 3:
            await asyncio.sleep(3600)
        return step_context().attempt

    flow = only(silent_at_first)

    async def scenario(engine: Engine) -> None:
        assert await _output(engine, flow) == 3
        started = [at for at, event in await journal(engine) if isinstance(event, StepStarted)]
        assert [round(at) for at in started] == [0, 15, 30]

    play(scenario, flow)


def test_options_give_one_call_another_heartbeat() -> None:
    @step
    async def silent() -> None:
        await asyncio.sleep(3600)

    @workflow
    async def flow() -> None:
        await silent.options(heartbeat=2)()

    async def scenario(engine: Engine) -> None:
        assert isinstance((await engine.run(flow())).error, HeartbeatTimeout)

    play(scenario, flow)


def test_without_a_heartbeat_option_silence_is_fine() -> None:
    @step
    async def silent() -> str:
        step_context().heartbeat()
        await asyncio.sleep(3600)
        return "done"

    flow = only(silent)

    assert play(lambda engine: _output(engine, flow), flow) == "done"


async def test_a_thread_gives_signs_of_life_too_and_a_silent_one_is_told_that_nobody_waits() -> None:
    stopped, go, time = threading.Event(), threading.Event(), LoopTime()

    @step(heartbeat=LONG)
    def lively() -> str:
        for _ in range(5):
            step_context().heartbeat()
            time.advance_from_thread(LONG / 2)
        return "done"

    @step(heartbeat=0.05)
    def silent() -> None:
        while not step_context().cancelled:
            go.wait(0.005)
        stopped.set()

    @workflow
    async def flow() -> str:
        result = await lively()
        try:
            await silent()
        except HeartbeatTimeout:
            return result
        return "not given up"

    ran = await run(flow(), recovery=LASTING)
    assert ran.output == "done"
    assert stopped.wait(PATIENCE)


# --- progress -------------------------------------------------------------------------------------------------------


async def test_progress_is_seen_while_the_step_goes_on_also_by_others(tmp_path: Path) -> None:
    gates, recorded, url = Gates(), Recorded(), f"sqlite:///{tmp_path}/runs.db"

    @step
    async def working() -> None:
        step_context().heartbeat({"done": 3, "of": 10})
        await gates.wait("end")

    flow = only(working)

    async with Engine(url, [flow], recovery=AT_ONCE, on_commit=recorded) as engine, connect(url) as client:
        handle = await engine.start(flow(), id="it")
        await recorded.until(lambda event: isinstance(event, StepProgressed))
        (view,) = await client.steps("it")
        assert (view.status, view.progress) == (StepStatus.RUNNING, {"done": 3, "of": 10})
        gates.open("end")
        await handle


def test_progress_is_recorded_about_once_a_second_and_the_last_word_is_kept() -> None:
    @step
    async def busy() -> None:
        for i in range(1001):
            step_context().heartbeat(i)
            await asyncio.sleep(0.01)

    flow = only(busy)

    async def scenario(engine: Engine) -> None:
        await _output(engine, flow)
        progress = [(at, event.progress) for at, event in await journal(engine) if isinstance(event, StepProgressed)]
        assert 10 <= len(progress) <= 12
        assert [int(bytes(value)) for _, value in progress] == sorted(int(bytes(value)) for _, value in progress)
        (view,) = await engine.steps("it")
        assert view.progress == 1000

    play(scenario, flow)


def test_the_next_attempt_knows_how_far_the_last_one_came() -> None:
    seen: list[Any] = []

    @step(retry=Retry(attempts=2, initial=1.0, jitter=False))
    async def resuming() -> int:
        done = step_context().progress or 0
        seen.append(done)
        for i in range(done, 10):
            if i == 5 and step_context().attempt == 1:
                raise ConnectionError
            step_context().heartbeat(i + 1)
        assert step_context().progress == 10
        return 10 - done

    flow = only(resuming)

    assert play(lambda engine: _output(engine, flow), flow) == 5
    assert seen == [0, 5]


async def test_progress_from_a_thread_is_kept() -> None:
    @step
    def working() -> None:
        for i in range(100):
            step_context().heartbeat(f"{i}%")

    flow = only(working)

    ran = await run(flow())
    async with Engine(ran.store, [flow], recovery=AT_ONCE) as engine:
        (view,) = await engine.steps("it")
    assert view.progress == "99%"


async def test_progress_that_is_too_large_is_refused() -> None:
    @step
    async def talkative() -> None:
        step_context().heartbeat("x" * 300_000)

    assert isinstance((await run(only(talkative)())).result.error, PayloadTooLarge)


async def test_what_runs_in_another_process_is_told_that_it_gives_no_signs_of_life() -> None:
    from tests.engine import cpu_steps

    @workflow
    async def flow() -> None:
        await cpu_steps.beating()

    async with Engine("memory://", [flow], recovery=AT_ONCE) as engine:
        error = (await engine.run(flow())).error
    assert isinstance(error, UsageError)
    assert "heartbeat() of a step" in str(error)


# --- the deadline of a run ------------------------------------------------------------------------------------------


@workflow
async def stuck(timeout: float | None, heartbeat: float | None) -> None:
    """A step that outlasts everything, under the limits that are given."""
    await stay.options(timeout=timeout, heartbeat=heartbeat)()


@step
async def stay() -> None:
    await asyncio.sleep(86_400)


@pytest.mark.parametrize(
    ("timeout", "heartbeat", "deadline", "error", "after"),
    [
        (None, None, 10, DeadlineExceeded, 10),
        (60, None, 10, DeadlineExceeded, 10),
        (5, None, 10, StepTimeout, 5),
        (10, None, 10, DeadlineExceeded, 10),
        (None, 60, 10, DeadlineExceeded, 10),
        (None, 5, 10, HeartbeatTimeout, 5),
        (60, 5, 10, HeartbeatTimeout, 5),
        (3, 5, 10, StepTimeout, 3),
    ],
)
def test_whichever_limit_comes_first_ends_a_step(
    timeout: float | None, heartbeat: float | None, deadline: float, error: type[BaseException], after: float
) -> None:
    async def scenario(engine: Engine) -> None:
        result = await engine.run(stuck(timeout, heartbeat), id="it", deadline=deadline)
        assert type(result.error) is error
        at, _ = (await journal(engine))[-1]
        assert after <= at < after + 1

    play(scenario, stuck)


def test_the_deadline_of_a_run_caps_what_a_step_is_told() -> None:
    @step(timeout=60)
    async def ask() -> float:
        deadline = step_context().deadline
        assert deadline is not None
        return deadline.timestamp()

    flow = only(ask)

    async def scenario(engine: Engine) -> None:
        began = engine.clock.now()
        capped = await (await engine.start(flow(), deadline=10)).result()
        assert began <= capped <= began + 11
        free = await (await engine.start(flow(), deadline=3600)).result()
        assert began + 59 <= free <= began + 62

    play(scenario, flow)


def test_a_wait_for_the_next_attempt_ends_with_the_deadline_of_the_run() -> None:
    @step(retry=Retry(attempts=5, initial=3600.0, jitter=False, max=3600.0))
    async def failing() -> None:
        raise ConnectionError

    flow = only(failing)

    async def scenario(engine: Engine) -> None:
        result = await engine.run(flow(), id="it", deadline=60)
        assert isinstance(result.error, DeadlineExceeded)
        events = await journal(engine)
        assert 60 <= events[-1][0] < 61
        assert sum(isinstance(event, AttemptFailed) for _, event in events) == 1
        assert sum(isinstance(event, StepStarted) for _, event in events) == 1
        (view,) = await engine.steps("it")
        assert view.status is StepStatus.FAILED

    play(scenario, flow)


def test_a_deadline_that_has_passed_lets_nothing_begin() -> None:
    begun: list[int] = []

    @step
    async def never() -> None:
        begun.append(1)

    @workflow
    async def flow() -> None:
        await asyncio.sleep(10)
        await never()

    async def scenario(engine: Engine) -> None:
        result = await engine.run(flow(), deadline=5)
        assert result.status is RunStatus.FAILED
        assert isinstance(result.error, DeadlineExceeded)

    play(scenario, flow)
    assert begun == []


async def test_a_rule_for_all_steps_gives_no_heartbeat_to_what_runs_in_another_process() -> None:
    from tests.engine import cpu_steps

    @workflow
    async def flow() -> int:
        return await cpu_steps.pid()

    async with Engine("memory://", [flow], recovery=AT_ONCE, rules=[rule(default, heartbeat=0.01)]) as engine:
        assert (await engine.run(flow())).error is None


async def test_an_engine_that_is_left_in_good_order_loses_no_progress() -> None:
    store, said = MemoryStore(), asyncio.Event()

    @step
    async def working() -> None:
        for i in range(10):
            step_context().heartbeat(i)
            await asyncio.sleep(0)
        said.set()
        await asyncio.sleep(3600)

    flow = only(working)

    async with Engine(store, [flow], recovery=AT_ONCE) as engine:
        _ = await engine.start(flow(), id="it")
        await said.wait()
    async with connect(store) as client:
        (view,) = await client.steps("it")
    assert view.progress == 9
