"""What readers of a stream see, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure import (
    Chunk,
    Engine,
    NoSuchRun,
    StoreUnavailable,
    UsageError,
    blocking,
    connect,
    step,
    step_context,
    step_inline,
    workflow,
)
from perdure.kernel.events import Batch, ChunkAppended
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, Gates, go_on_from_everywhere, only, run
from tests.engine.stream_parts import answer, lines, read, shown, tokens, values


async def test_what_an_async_generator_yields_is_shown_and_its_result_is_the_list_of_it() -> None:
    ran = await run(answer("a b c"))
    assert ran.output == ["a", "b", "c"]
    async with Engine(ran.store, [answer], recovery=AT_ONCE) as engine:
        assert await shown(engine) == [(i, "tokens:0", c, False) for i, c in enumerate("abc")]
        assert [c async for c in engine.stream("it", "tokens", 2)] == [Chunk(2, "tokens:0", "c", 1)]
        assert await shown(engine, step="tokens:0", start=3) == []
    await go_on_from_everywhere(answer("a b c"), ran)


async def test_a_plain_generator_works_in_its_thread() -> None:
    ran = await run(read("a b c"))
    assert ran.output == ["a", "b", "c"]
    async with Engine(ran.store, [read], recovery=AT_ONCE) as engine:
        assert await values(engine, "lines") == ["a", "b", "c"]


async def test_outside_of_a_workflow_a_generator_step_gives_the_list() -> None:
    assert await tokens("a b") == ["a", "b"]
    assert lines("a b") == ["a", "b"]  # type: ignore[comparison-overlap]
    assert [item async for item in tokens.fn("a b")] == ["a", "b"]


@pytest.mark.parametrize("threads", [False, True])
async def test_any_step_can_emit(threads: bool) -> None:
    def emit(n: int) -> int:
        for i in range(n):
            step_context().emit({"i": i})
        return n

    async def emit_on_the_loop(n: int) -> int:
        return emit(n)

    counting = step(emit) if threads else step(emit_on_the_loop)

    @workflow
    async def count() -> int:
        return await counting(5)

    ran = await run(count())
    assert ran.output == 5
    async with Engine(ran.store, [count], recovery=AT_ONCE) as engine:
        assert await values(engine) == [{"i": i} for i in range(5)]


async def test_a_generator_can_be_called_inline() -> None:
    async def letters(text: str) -> AsyncIterator[str]:
        for letter in text:
            yield letter

    @workflow
    async def flow() -> list[str]:
        return [*await step_inline("letters", letters, "ab"), *await step_inline("more", lines.fn, "c d")]

    ran = await run(flow())
    assert ran.output == ["a", "b", "c", "d"]
    async with Engine(ran.store, [flow], recovery=AT_ONCE) as engine:
        assert await values(engine) == ["a", "b", "c", "d"]


async def test_readers_see_a_chunk_while_its_step_goes_on_and_only_when_it_is_durable() -> None:
    gates = Gates()

    @step
    async def slow() -> AsyncIterator[int]:
        for i in range(3):
            yield i
            await gates.wait(str(i))

    flow = only(slow)

    async with Engine("memory://", [flow], recovery=AT_ONCE) as engine:
        handle = await engine.start(flow(), id="it")
        stream = handle.stream("slow")
        for i in range(3):
            chunk = await asyncio.wait_for(anext(stream), PATIENCE)
            assert (chunk.index, chunk.value) == (i, i)
            stored = [entry.event for entry in await engine.journal("it")]
            assert sum(len(e.chunks) for e in stored if isinstance(e, ChunkAppended)) == i + 1
            gates.open(str(i))
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        assert await handle == [0, 1, 2]


async def test_a_stream_of_a_step_ends_with_the_step_and_that_of_a_run_with_the_run() -> None:
    gates = Gates()

    @step
    async def wait() -> None:
        step_context().emit("waits")
        await gates.wait("end")

    @workflow
    async def flow() -> list[str]:
        first = await tokens("a b")
        await wait()
        return first + await tokens("c")

    async with Engine("memory://", [flow], recovery=AT_ONCE) as engine:
        handle = await engine.start(flow(), id="it")
        assert await shown(engine, step="tokens") == [(0, "tokens:0", "a", False), (1, "tokens:0", "b", False)]
        everything = asyncio.create_task(shown(engine))
        gates.open("end")
        assert await handle == ["a", "b", "c"]
        whole = [(0, "tokens:0", "a"), (1, "tokens:0", "b"), (2, "wait:0", "waits"), (3, "tokens:1", "c")]
        assert [item[:3] for item in await everything] == whole
        assert [item[:3] for item in await shown(engine, start=2)] == whole[2:]
        assert await shown(engine, step="tokens:1") == [(0, "tokens:1", "c", False)]


async def test_a_reader_that_comes_back_again_and_again_sees_no_gap_and_no_repeat() -> None:
    gates = Gates()

    @step
    async def many(n: int) -> AsyncIterator[int]:
        for i in range(n):
            yield i
            if i % 10 == 0:
                await asyncio.sleep(0)
        await gates.wait("end")

    @workflow
    async def flow() -> int:
        return len(await many(200))

    async with Engine("memory://", [flow], recovery=AT_ONCE) as engine:
        handle = await engine.start(flow(), id="it")
        seen: list[int] = []
        while len(seen) < 200:
            async for chunk in engine.stream("it", "many", len(seen)):
                assert chunk.index == chunk.value == len(seen)
                seen.append(chunk.value)
                if len(seen) % 7 == 0:
                    break
                if len(seen) == 200:
                    break
        gates.open("end")
        assert await handle == 200
        assert seen == list(range(200))


async def test_a_client_in_another_connection_follows_a_stream(tmp_path: Path) -> None:
    gates, url = Gates(), f"sqlite:///{tmp_path}/runs.db"

    @step
    async def slow() -> AsyncIterator[int]:
        yield 1
        await gates.wait("go")
        yield 2

    flow = only(slow)

    async with Engine(url, [flow], recovery=AT_ONCE) as engine, connect(url) as client:
        handle = await engine.start(flow(), id="it")
        stream = client.stream("it", "slow")
        async with asyncio.timeout(PATIENCE):
            assert (await anext(stream)).value == 1
            gates.open("go")
            assert (await anext(stream)).value == 2
            assert [c async for c in stream] == []
        assert await handle == [1, 2]


def test_blocking_code_reads_streams_too(tmp_path: Path) -> None:
    with blocking.Engine(f"sqlite:///{tmp_path}/runs.db", [answer]) as engine:
        handle = engine.start(answer("a b"), id="it")
        assert [c.value for c in handle.stream()] == ["a", "b"]
        assert [c.value for c in engine.stream("it", "tokens", 1)] == ["b"]


async def test_bad_questions_are_answered_with_what_to_do() -> None:
    ran = await run(answer("a"))
    async with Engine(ran.store, [answer], recovery=AT_ONCE) as engine:
        with pytest.raises(NoSuchRun):
            await shown(engine, "other")
        with pytest.raises(UsageError, match="without a step 'token'; its steps: tokens:0"):
            await shown(engine, step="token")
        with pytest.raises(UsageError, match="numbered from 0"):
            await shown(engine, start=-1)


async def test_an_engine_that_is_left_tells_its_readers() -> None:
    @step
    async def stuck() -> AsyncIterator[int]:
        yield 1
        await asyncio.sleep(3600)

    flow = only(stuck)

    async with Engine("memory://", [flow], recovery=AT_ONCE) as engine:
        _ = await engine.start(flow(), id="it")
        stream = engine.stream("it")
        assert (await anext(stream)).value == 1
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
    with pytest.raises(UsageError, match="follow it again"):
        await waiting


@pytest.mark.parametrize("fails", [True, False])
async def test_an_engine_that_is_left_tells_those_who_are_reading(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """A store that is asked over a network answers later: by then it is closed, or there is nothing new."""
    gates = Gates()

    @step
    async def stuck() -> AsyncIterator[int]:
        yield 1
        await asyncio.sleep(3600)

    flow = only(stuck)

    async def late(*args: object) -> list[Batch]:
        gates.open("reads")
        await gates.wait("left")
        if fails:
            raise StoreUnavailable("memory://", "it is closed")
        return []

    store = MemoryStore()
    async with Engine(store, [flow], recovery=AT_ONCE) as engine:
        _ = await engine.start(flow(), id="it")
        stream = engine.stream("it")
        assert (await anext(stream)).value == 1
        with monkeypatch.context() as patch:
            patch.setattr(store.journal, "read", late)
            waiting = asyncio.ensure_future(anext(stream))
            await gates.wait("reads")
    gates.open("left")
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(UsageError, match="follow it again"):
            await waiting
