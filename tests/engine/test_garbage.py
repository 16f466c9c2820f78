"""A run that has left memory is gone at once: what waits for the garbage collector is paid for with its pauses."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from perdure import Engine, Retry, child, sleep, step, step_context, wait_signal, workflow
from tests.engine.harness import AT_ONCE

RUNS = 20


@step
async def double(number: int) -> int:
    return 2 * number


@step
def in_a_thread(number: int) -> int:
    return number


@step(retry=Retry(attempts=2, initial=0.001, jitter=False))
async def fails_once() -> int:
    if step_context().attempt == 1:
        raise ConnectionError("not yet")
    return 1


@step
async def counts() -> AsyncIterator[int]:
    yield 1
    yield 2


@workflow
async def retries() -> int:
    return await fails_once()


@workflow
async def emits() -> list[int]:
    return await counts()


@workflow
async def sequence() -> int:
    return await double(await double(1))


@workflow
async def at_once() -> int:
    return sum(await asyncio.gather(*(double(i) for i in range(3))))


@workflow
async def threads() -> int:
    return await in_a_thread(1)


@workflow
async def asks() -> int:
    return await wait_signal("go", type=int)


@workflow
async def naps() -> None:
    await sleep(0.001)


@workflow
async def has_children() -> int:
    return await sequence() + await child(at_once())


PROGRAMS: list[Any] = [sequence, at_once, retries, emits, threads, asks, naps, has_children]


async def finish(engine: Engine, program: Any, number: int) -> None:
    run = await engine.start(program(), id=f"{program.name}-{number}")
    if program is asks:
        await engine.signal(run.id, "go", 1)
    await run.result()


@pytest.fixture
def collected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
async def test_nothing_of_a_run_that_has_ended_is_left_to_the_garbage(program: Any) -> None:
    async with Engine("memory://", PROGRAMS, recovery=AT_ONCE) as engine:
        await finish(engine, program, 0)
        await asyncio.sleep(0)
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        for number in range(1, RUNS + 1):
            await finish(engine, program, number)
        await asyncio.sleep(0)
        gc.collect()
        left = Counter(type(one).__qualname__ for one in gc.garbage if type(one).__module__.startswith("perdure"))
    assert not left
