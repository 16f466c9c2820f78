"""Timeouts of steps, and what becomes of an attempt that does not heed its own."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

from perdure import Engine, Retry, StepStatus, StepTimeout, step, step_context, workflow
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, Gates, only, run
from tests.engine.step_parts import QUICK, TooBusy


async def test_an_async_step_that_takes_too_long_is_cancelled_and_times_out() -> None:
    cancelled = asyncio.Event()

    @step(timeout=0.01)
    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    @workflow
    async def flow() -> str:
        try:
            await slow()
        except StepTimeout as error:
            return f"{error.op} {error.seconds}"
        return ""

    ran = await run(flow())
    assert ran.output == "slow:0 0.01"
    assert cancelled.is_set()


async def test_a_timeout_of_a_step_is_a_timeout_error_too() -> None:
    @step(timeout=timedelta(milliseconds=10))
    async def slow() -> None:
        await asyncio.Event().wait()

    assert isinstance((await run(only(slow)())).result.error, TimeoutError)


async def test_a_step_that_ignores_its_cancellation_does_not_hold_up_the_run() -> None:
    gates = Gates()

    @step(timeout=0.01)
    async def stubborn() -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await gates.wait("end")
        return 1

    @workflow
    async def flow() -> str:
        try:
            await stubborn()
        except StepTimeout:
            return "timed out"
        return "ended"

    store = MemoryStore()
    async with Engine(store, [flow], recovery=AT_ONCE) as engine:
        assert await (await engine.start(flow(), id="it")).result(PATIENCE) == "timed out"
        gates.open("end")
        [view] = await engine.steps("it")
    assert view.status is StepStatus.FAILED


async def test_a_thread_learns_that_nobody_waits_for_it_any_more() -> None:
    begun, ended = threading.Event(), threading.Event()
    seen: list[bool] = []

    @step(timeout=0.01)
    def slow() -> None:
        context = step_context()
        seen.append(context.cancelled)
        begun.set()
        while not context.cancelled:
            ended.wait(0.001)
        seen.append(context.cancelled)
        ended.set()

    @workflow
    async def flow() -> str:
        try:
            await slow()
        except StepTimeout:
            return "timed out"
        return "ended"

    assert (await run(flow())).output == "timed out"
    assert begun.is_set()
    assert await asyncio.to_thread(ended.wait, PATIENCE)
    assert seen == [False, True]


async def test_a_timeout_counts_per_attempt_and_is_tried_again() -> None:
    @step(timeout=0.02, retry=Retry(attempts=2, initial=0, on=(TimeoutError,)))
    async def slow_at_first() -> int:
        attempt = step_context().attempt
        if attempt == 1:
            await asyncio.Event().wait()
        return attempt

    assert (await run(only(slow_at_first)())).output == 2


async def test_an_outcome_that_comes_after_the_timeout_is_dropped() -> None:
    gates = Gates()

    @step(timeout=0.01, retry=Retry(attempts=2, initial=0))
    async def slow() -> str:
        attempt = step_context().attempt
        if attempt == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                gates.open("late")
                return "too late"
        await gates.wait("late")
        return "in time"

    assert (await run(only(slow)())).output == "in time"


async def test_options_change_the_policy_of_one_call() -> None:
    calls = 0

    @step
    async def failing() -> None:
        nonlocal calls
        calls += 1
        raise TooBusy("busy")

    @step
    async def slow() -> None:
        await asyncio.Event().wait()

    @workflow
    async def flow() -> list[Any]:
        seen: list[Any] = []
        try:
            await failing.options(retry=QUICK)()
        except TooBusy:
            seen.append(calls)
        try:
            await failing()
        except TooBusy:
            seen.append(calls)
        try:
            await slow.options(timeout=timedelta(milliseconds=10))()
        except StepTimeout:
            seen.append("timed out")
        return seen

    async with Engine("memory://", [flow]) as engine:
        assert (await engine.run(flow())).output == [3, 4, "timed out"]
