"""What would end the process, were it let out of a step: it fails that step, and nothing else notices."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from perdure import Engine, Retry, RunStatus, blocking, step, step_context, step_inline, workflow
from perdure.kernel.events import AttemptFailed, StepFailed
from tests.engine.cpu_steps import raises
from tests.engine.harness import AT_ONCE, PATIENCE, run

KINDS: dict[str, type[BaseException]] = {
    "SystemExit": SystemExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
}


@step
def in_thread(kind: str) -> None:
    raise KINDS[kind]("x")


@step
async def on_loop(kind: str) -> None:
    raise KINDS[kind]("x")


@step
async def on_loop_later(kind: str) -> None:
    await asyncio.sleep(0)
    raise KINDS[kind]("x")


@step
def generator(kind: str) -> Iterator[int]:
    yield 1
    raise KINDS[kind]("x")


@step
async def async_generator(kind: str) -> AsyncIterator[int]:
    yield 1
    raise KINDS[kind]("x")


def throw(kind: str) -> None:
    raise KINDS[kind]("x")


async def throw_later(kind: str) -> None:
    raise KINDS[kind]("x")


CALLS: dict[str, Callable[[str], Any]] = {
    "def": in_thread,
    "async def": on_loop,
    "async def that waited": on_loop_later,
    "generator": generator,
    "async generator": async_generator,
    "cpu": raises,
    "inline": lambda kind: step_inline("inline", throw, kind),
    "inline coroutine": lambda kind: step_inline("inline", lambda: throw_later(kind)),
}


@workflow
async def flow(how: str, kind: str) -> str:
    try:
        await CALLS[how](kind)
    except Exception as error:
        return f"{type(error).__name__} {error}"
    return "nothing"


@workflow
async def trivial() -> int:
    return await one()


@step
def one() -> int:
    return 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", CALLS)
async def test_what_ends_a_process_fails_the_step_that_raises_it(how: str, kind: str) -> None:
    async with Engine("memory://", [flow, trivial], recovery=AT_ONCE) as engine:
        handle = await engine.start(flow(how, kind))
        assert f"builtins.{kind}" in await handle.result(PATIENCE * 4)
        assert await (await engine.start(trivial())).result(PATIENCE) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["def", "async def", "async generator", "inline coroutine"])
def test_it_does_not_end_the_loop_of_a_blocking_engine(how: str, kind: str) -> None:
    with blocking.Engine("memory://", [flow, trivial], recovery=AT_ONCE) as engine:
        assert f"builtins.{kind}" in engine.start(flow(how, kind)).result(PATIENCE)
        assert engine.start(trivial()).result(PATIENCE) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_nor_the_executor_of_the_user(kind: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        async with Engine("memory://", [flow, trivial], recovery=AT_ONCE, executor=pool) as engine:
            assert f"builtins.{kind}" in await (await engine.start(flow("def", kind))).result(PATIENCE)
            assert await (await engine.start(trivial())).result(PATIENCE) == 1


async def test_a_step_that_exits_is_tried_again_as_after_any_failure() -> None:
    @step(retry=Retry(attempts=3, initial=0))
    def exits_twice() -> int:
        if step_context().attempt < 3:
            sys.exit(2)
        return step_context().attempt

    @workflow
    async def stubborn() -> int:
        return await exits_twice()

    ran = await run(stubborn())
    assert ran.output == 3
    failures = [event.error for event in await ran.events() if isinstance(event, AttemptFailed)]
    assert [(failure.type, failure.message) for failure in failures] == [("builtins.SystemExit", "2")] * 2


async def test_a_run_that_does_not_catch_it_fails_and_says_where() -> None:
    @workflow
    async def careless() -> None:
        await in_thread("SystemExit")

    ran = await run(careless())
    assert ran.result.status is RunStatus.FAILED
    [failed] = [event for event in await ran.events() if isinstance(event, StepFailed)]
    assert failed.error.type == "builtins.SystemExit"
    assert "in in_thread" in failed.error.traceback


async def test_a_loop_of_blocking_outlives_a_task_that_a_step_left_behind() -> None:
    @step
    async def leaves_a_task() -> int:
        async def later() -> None:
            sys.exit(4)

        task = asyncio.get_running_loop().create_task(later())
        await asyncio.wait([task])
        return 1

    @workflow
    async def untidy() -> int:
        return await leaves_a_task()

    def use() -> tuple[int, int]:
        with blocking.Engine("memory://", [untidy, trivial], recovery=AT_ONCE) as engine:
            return engine.start(untidy()).result(PATIENCE), engine.start(trivial()).result(PATIENCE)

    assert await asyncio.to_thread(use) == (1, 1)
