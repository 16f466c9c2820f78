"""Streams beside other processes, and beside other writers of the same journal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from perdure import Engine, UsageError, step, workflow
from perdure.kernel.events import Batch, SignalReceived
from perdure.ports.journal import Append
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, Gates, only
from tests.engine.stream_parts import read, values


def test_a_generator_in_another_process_is_refused_at_the_decorator() -> None:
    with pytest.raises(TypeError, match="cannot emit what it yields"):

        @step(cpu=True)
        def wrong() -> Iterator[int]:
            yield 1


async def test_what_runs_in_another_process_is_told_that_it_cannot_emit() -> None:
    from tests.engine import cpu_steps

    @workflow
    async def flow() -> Any:
        return await cpu_steps.emitting()

    async with Engine("memory://", [flow], recovery=AT_ONCE) as engine:
        error = (await engine.run(flow())).error
    assert isinstance(error, UsageError)
    assert "emit() of a step works in the engine's own process" in str(error)


async def test_a_generator_in_an_executor_of_processes_is_told_so() -> None:
    with ProcessPoolExecutor(1) as pool:
        async with Engine("memory://", [read], recovery=AT_ONCE, executor=pool) as engine:
            error = (await engine.run(read("a"))).error
    assert isinstance(error, UsageError)
    assert "from which it cannot emit" in str(error)


async def test_chunks_survive_others_who_write_to_the_same_journal() -> None:
    """Somebody else appends between each two chunks: the journal is read anew, and the stream has no gap."""
    gates, store = Gates(), MemoryStore()

    @step
    async def slow() -> AsyncIterator[int]:
        for i in range(20):
            yield i
            await asyncio.sleep(0)
            if i % 3 == 0:
                interfere(i)
            await asyncio.sleep(0.001)
        await gates.wait("end")

    flow = only(slow)

    def interfere(i: int) -> None:

        (run_id,) = store.journal.batches
        seq, at, data = store.journal.batches[run_id][-1]
        from perdure.kernel.events import decode_events

        seq += len(decode_events(data))
        store.journal.append([Append(run_id, seq, [Batch(seq, at, [SignalReceived(f"s{i}")])])])

    async with Engine(store, [flow], recovery=AT_ONCE) as engine:
        handle = await engine.start(flow(), id="it")
        following = asyncio.create_task(values(engine))
        gates.open("end")
        assert await handle.result(PATIENCE) == list(range(20))
        assert await following == list(range(20))
        assert await values(engine) == list(range(20))
