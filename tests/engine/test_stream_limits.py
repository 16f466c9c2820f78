"""Streams within the limits of values, journals and the store's speed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Engine,
    HistoryTooLarge,
    Limits,
    NotSerializable,
    PayloadTooLarge,
    StepCancelled,
    step,
    step_context,
    workflow,
)
from perdure.engine import streams
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, Gates, eventually, only, run
from tests.engine.stream_parts import shown


async def failing(fn: Any, **options: Any) -> BaseException:
    emitting = step(fn)

    ran = await run(only(emitting)(), **options)
    assert ran.result.error is not None
    return ran.result.error


@pytest.mark.parametrize("threads", [False, True])
async def test_a_chunk_that_cannot_be_kept_fails_the_step_with_the_reason(threads: bool) -> None:
    def bad() -> None:
        step_context().emit({"a": [float("nan")]})

    async def bad_on_the_loop() -> None:
        bad()

    error = await failing(bad if threads else bad_on_the_loop)
    assert isinstance(error, NotSerializable)
    assert "a chunk of bad" in str(error)
    assert "$.a[0]" in str(error)


async def test_a_chunk_above_the_limit_of_a_payload_is_refused() -> None:
    async def large() -> None:
        step_context().emit("x" * 2000)

    error = await failing(large, limits=Limits(payload=1000, blob=1000))
    assert isinstance(error, PayloadTooLarge)
    assert "a chunk of large:0 is 2,002 bytes" in str(error)


@pytest.mark.parametrize("threads", [False, True])
async def test_a_stream_cannot_grow_a_journal_beyond_its_limit(threads: bool) -> None:
    def endless() -> None:
        while True:
            step_context().emit("x" * 1000)

    async def endless_on_the_loop() -> None:
        endless()

    error = await failing(endless if threads else endless_on_the_loop, limits=Limits(history=100_000))
    assert isinstance(error, HistoryTooLarge)


class Slow(MemoryStore):
    """A store whose commits take until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.go.set()
        append = self.journal.append

        async def later(appends: Any) -> Any:
            await self.go.wait()
            return append(appends)

        self.journal.append = later  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("threads", [False, True])
async def test_a_generator_that_is_faster_than_the_store_waits_for_it(threads: bool) -> None:
    made = 0

    async def fast() -> AsyncIterator[int]:
        nonlocal made
        for i in range(10 * streams.MOST_CHUNKS):
            made += 1
            yield i

    def fast_in_a_thread() -> Iterator[int]:
        nonlocal made
        for i in range(10 * streams.MOST_CHUNKS):
            made += 1
            yield i

    making: Any = step(fast_in_a_thread) if threads else step(fast)

    @workflow
    async def flow() -> int:
        return len(await making())

    store = Slow()
    async with Engine(store, [flow], recovery=AT_ONCE) as engine:
        handle = await engine.start(flow(), id="it")
        store.go.clear()
        await eventually(lambda: made >= streams.MOST_CHUNKS)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert made <= 2 * streams.MOST_CHUNKS
        store.go.set()
        assert await handle.result(PATIENCE) == 10 * streams.MOST_CHUNKS


async def test_a_thread_that_waits_for_the_store_is_let_go_when_nobody_waits_for_it_any_more() -> None:
    ended = threading.Event()

    @step(timeout=0.2)
    def fast() -> None:
        try:
            while True:
                step_context().emit("x")
        except StepCancelled:
            ended.set()
            raise

    @workflow
    async def flow() -> str:
        try:
            await fast()
        except TimeoutError:
            return "timed out"
        return ""

    store = Slow()
    async with Engine(store, [flow], recovery=AT_ONCE) as engine:
        handle = await engine.start(flow(), id="it")
        store.go.clear()
        await eventually(ended.is_set)
        store.go.set()
        assert await handle.result(PATIENCE) == "timed out"


async def test_a_stream_that_never_pauses_does_not_hold_up_other_steps() -> None:
    gates = Gates()

    @step
    async def endless() -> AsyncIterator[int]:
        i = 0
        while not gates._events["stop"].is_set():
            yield (i := i + 1)

    @step
    async def stop(i: int) -> None:
        if i == 3:
            gates.open("stop")

    @workflow
    async def flow() -> int:
        async def others() -> None:
            for i in range(4):
                await stop(i)

        made, _ = await asyncio.gather(endless(), others())
        return len(made)

    ran = await run(flow())
    assert ran.output > 0


async def test_several_threads_of_one_step_emit_at_once(tmp_path: Path) -> None:
    @step
    async def working() -> None:
        def emit(worker: int) -> None:
            for i in range(700):
                step_context().emit([worker, i])

        await asyncio.gather(*(asyncio.to_thread(emit, worker) for worker in range(4)))

    flow = only(working)

    async with Engine(f"sqlite:///{tmp_path}/runs.db", [flow], recovery=AT_ONCE) as engine:
        handle = await engine.start(flow(), id="it")
        seen = await shown(engine)
        await handle
    assert [index for index, *_ in seen] == list(range(2800))
    for worker in range(4):
        assert [value[1] for _, _, value, _ in seen if value[0] == worker] == list(range(700))
