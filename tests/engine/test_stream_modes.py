"""When what a step emits is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure import Engine, batched, step, step_context, workflow
from perdure.engine import streams
from perdure.kernel.events import ChunkAppended, StepSucceeded
from perdure.kernel.streams import stream_mode
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, Gates, Recorded, only, run
from tests.engine.stream_parts import ONE_MORE, tokens


async def chunk_events(store: MemoryStore, run_id: str) -> list[int]:
    """How many chunks each event holds."""
    events = [e for batch in await store.journal.read(run_id) for e in batch.events]
    return [len(e.chunks) for e in events if isinstance(e, ChunkAppended)]


async def test_immediate_chunks_are_written_as_they_come() -> None:
    recorded = Recorded()

    @step
    async def one_by_one() -> AsyncIterator[int]:
        for i in range(3):
            yield i
            await recorded.until(lambda e, i=i: isinstance(e, ChunkAppended) and e.end == i + 1)  # type: ignore[misc]

    ran = await run(only(one_by_one)(), on_commit=recorded)
    assert await chunk_events(ran.store, ran.run_id) == [1, 1, 1]


async def test_batched_chunks_are_written_together() -> None:
    @step(stream=batched(4, 3600))
    async def fast() -> AsyncIterator[int]:
        for i in range(10):
            yield i
            await asyncio.sleep(0.001)

    ran = await run(only(fast)())
    assert ran.output == list(range(10))
    # The last ones go with the outcome.
    assert await chunk_events(ran.store, ran.run_id) == [4, 4, 2]
    batches = await ran.store.journal.read(ran.run_id)
    assert any({type(e) for e in b.events} >= {ChunkAppended, StepSucceeded} for b in batches)


async def test_batched_chunks_are_written_after_a_while_however_few_they_are() -> None:
    recorded = Recorded()

    @step(stream=batched(1000, 0.01))
    async def one() -> AsyncIterator[int]:
        yield 1
        await recorded.until(lambda e: isinstance(e, ChunkAppended))
        yield 2

    ran = await run(only(one)(), on_commit=recorded)
    assert await chunk_events(ran.store, ran.run_id) == [1, 1]


async def test_chunks_on_completion_are_written_with_the_outcome_and_not_at_all_by_a_failed_attempt() -> None:
    @step(stream="on_complete", retry=ONE_MORE)
    async def once() -> AsyncIterator[int]:
        for i in range(streams.MOST_CHUNKS + 5):
            yield i
        if step_context().attempt == 1:
            raise ConnectionError

    @workflow
    async def flow() -> int:
        return len(await once())

    ran = await run(flow())
    assert ran.output == streams.MOST_CHUNKS + 5
    assert await chunk_events(ran.store, ran.run_id) == [streams.MOST_CHUNKS + 5]


async def test_options_change_the_mode_for_one_call() -> None:
    @workflow
    async def flow() -> list[str]:
        return await tokens.options(stream="on_complete")("a b c")

    ran = await run(flow())
    assert await chunk_events(ran.store, ran.run_id) == [3]


@pytest.mark.parametrize("wrong", ["sometimes", 3])
def test_an_unknown_mode_is_refused_at_the_decorator(wrong: Any) -> None:
    with pytest.raises(ValueError, match="batched"):
        step(stream=wrong)


@pytest.mark.parametrize(("n", "seconds"), [(0, 1), (-1, 1), (1, -1), ("2", 1), (True, 1)])
def test_a_batch_of_nothing_is_refused(n: Any, seconds: Any) -> None:
    with pytest.raises(ValueError, match="batched"):
        batched(n, seconds)


@pytest.mark.parametrize("durability", ["relaxed", "async", "exit", "every(3)", "manual"])
async def test_streams_are_shown_as_they_come_in_every_durability_mode(durability: str) -> None:
    gates = Gates()

    @step
    async def slow() -> AsyncIterator[int]:
        yield 1
        await gates.wait("end")

    flow = only(slow)

    async with Engine("memory://", [flow], recovery=AT_ONCE, durability=durability) as engine:
        handle = await engine.start(flow(), id="it")
        async with asyncio.timeout(PATIENCE):
            assert (await anext(engine.stream("it"))).value == 1
        gates.open("end")
        assert await handle == [1]


async def test_the_engine_says_when_chunks_are_written_unless_the_step_does() -> None:
    @step
    async def shows() -> None:
        for n in range(6):
            step_context().emit(n)
            await asyncio.sleep(0)

    @step(stream="immediate")
    async def shows_at_once() -> None:
        for n in range(6):
            step_context().emit(n)
            await asyncio.sleep(0)

    @workflow
    async def both() -> None:
        await shows()
        await shows_at_once()

    async with Engine("memory://", [both], stream="on_complete") as engine:
        _ = await engine.run(both(), id="r")
        sizes: dict[str, list[int]] = {}
        for entry in await engine.journal("r"):
            if isinstance(entry.event, ChunkAppended):
                sizes.setdefault(entry.event.op, []).append(len(entry.event.chunks))
        assert sizes["shows:0"] == [6]
        assert sum(sizes["shows_at_once:0"]) == 6
        assert len(sizes["shows_at_once:0"]) > 1
    assert str(stream_mode("batched(20, 0.5)")) == "batched(20, 0.5)"
    with pytest.raises(ValueError, match="is not a mode"):
        _ = Engine("memory://", stream="sometimes")
