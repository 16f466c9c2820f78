"""Streams: what a step shows before it ends, how readers see it, and what becomes of it when an attempt fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Chunk,
    Engine,
    HistoryTooLarge,
    Limits,
    NoSuchRun,
    NotSerializable,
    PayloadTooLarge,
    Retry,
    StepCancelled,
    StoreUnavailable,
    UsageError,
    batched,
    blocking,
    child,
    connect,
    step,
    step_context,
    step_inline,
    workflow,
)
from perdure.engine import streams
from perdure.kernel.events import Batch, ChunkAppended, SignalReceived, StepSucceeded
from perdure.kernel.streams import stream_mode
from perdure.ports.journal import Append
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, Gates, Recorded, eventually, go_on_from_everywhere, run

ONE_MORE = Retry(attempts=2, initial=0.0, jitter=False)


@step
async def tokens(prompt: str) -> AsyncIterator[str]:
    for word in prompt.split():
        yield word


@step
def lines(text: str) -> Iterator[str]:
    yield from text.split()


@workflow
async def answer(prompt: str) -> list[str]:
    return await tokens(prompt)


@workflow
async def read(text: str) -> list[str]:
    return await lines(text)


async def shown(
    engine: Engine, id: str = "it", step: str | None = None, start: int = 0
) -> list[tuple[int, str, Any, bool]]:
    """A whole stream, as readers see it."""
    async with asyncio.timeout(PATIENCE):
        return [(c.index, c.path, c.value, c.restart) async for c in engine.stream(id, step, start)]


async def values(engine: Engine, step: str | None = None, start: int = 0) -> list[Any]:
    return ["<restart>" if restart else value for _, _, value, restart in await shown(engine, "it", step, start)]


# --- what readers see -----------------------------------------------------------------------------------------------


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

    @workflow
    async def flow() -> list[int]:
        return await slow()

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

    @workflow
    async def flow() -> list[int]:
        return await slow()

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

    @workflow
    async def flow() -> list[int]:
        return await stuck()

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

    @workflow
    async def flow() -> list[int]:
        return await stuck()

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


# --- modes ----------------------------------------------------------------------------------------------------------


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

    @workflow
    async def flow() -> list[int]:
        return await one_by_one()

    ran = await run(flow(), on_commit=recorded)
    assert await chunk_events(ran.store, ran.run_id) == [1, 1, 1]


async def test_batched_chunks_are_written_together() -> None:
    @step(stream=batched(4, 3600))
    async def fast() -> AsyncIterator[int]:
        for i in range(10):
            yield i
            await asyncio.sleep(0.001)

    @workflow
    async def flow() -> list[int]:
        return await fast()

    ran = await run(flow())
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

    @workflow
    async def flow() -> list[int]:
        return await one()

    ran = await run(flow(), on_commit=recorded)
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

    @workflow
    async def flow() -> list[int]:
        return await slow()

    async with Engine("memory://", [flow], recovery=AT_ONCE, durability=durability) as engine:
        handle = await engine.start(flow(), id="it")
        async with asyncio.timeout(PATIENCE):
            assert (await anext(engine.stream("it"))).value == 1
        gates.open("end")
        assert await handle == [1]


# --- later attempts -------------------------------------------------------------------------------------------------


async def test_an_attempt_that_looks_at_the_chunks_goes_on_from_them() -> None:
    @step(retry=ONE_MORE)
    async def careful(n: int) -> AsyncIterator[int]:
        for i in range(len(step_context().chunks), n):
            yield i
            if i == 2:
                raise ConnectionError

    @workflow
    async def flow() -> list[int]:
        return await careful(5)

    ran = await run(flow())
    assert ran.output == [0, 1, 2, 3, 4]
    async with Engine(ran.store, [flow], recovery=AT_ONCE) as engine:
        assert await values(engine) == [0, 1, 2, 3, 4]
        assert [c.attempt async for c in engine.stream("it")] == [1, 1, 1, 2, 2]


async def test_an_attempt_that_does_not_look_begins_again_and_readers_see_a_mark() -> None:
    @step(retry=ONE_MORE)
    async def careless(n: int) -> AsyncIterator[int]:
        for i in range(n):
            yield i
            if i == 2 and step_context().attempt == 1:
                raise ConnectionError

    @workflow
    async def flow() -> list[int]:
        return await careless(4)

    ran = await run(flow())
    assert ran.output == [0, 1, 2, 3]
    async with Engine(ran.store, [flow], recovery=AT_ONCE) as engine:
        assert await values(engine) == [0, 1, 2, "<restart>", 0, 1, 2, 3]
        assert await values(engine, start=3) == ["<restart>", 0, 1, 2, 3]
        assert await values(engine, start=4) == [0, 1, 2, 3]


async def test_a_later_attempt_that_makes_nothing_declares_void_what_was_shown() -> None:
    @step(retry=ONE_MORE)
    async def changeable() -> AsyncIterator[int]:
        if step_context().attempt == 1:
            yield 1
            raise ConnectionError

    @workflow
    async def flow() -> list[int]:
        return await changeable()

    ran = await run(flow())
    assert ran.output == []
    async with Engine(ran.store, [flow], recovery=AT_ONCE) as engine:
        assert await values(engine) == [1, "<restart>"]


async def test_an_attempt_can_begin_again_by_itself() -> None:
    recorded = Recorded()

    @step
    async def picky() -> AsyncIterator[str]:
        step_context().restart()  # nothing was shown: nothing to say
        yield "bad"
        await recorded.until(lambda e: isinstance(e, ChunkAppended))
        step_context().restart()
        yield "good"
        assert step_context().chunks == []

    @workflow
    async def flow() -> list[str]:
        return await picky()

    ran = await run(flow(), on_commit=recorded)
    assert ran.output == ["good"]
    async with Engine(ran.store, [flow], recovery=AT_ONCE) as engine:
        assert await values(engine) == ["bad", "<restart>", "good"]


async def test_what_was_never_shown_needs_no_mark() -> None:
    @step(stream=batched(100, 3600))
    async def picky() -> AsyncIterator[str]:
        yield "bad"
        step_context().restart()
        yield "good"

    @workflow
    async def flow() -> list[str]:
        return await picky()

    ran = await run(flow())
    assert ran.output == ["good"]
    async with Engine(ran.store, [flow], recovery=AT_ONCE) as engine:
        assert await values(engine) == ["good"]


async def test_the_chunks_have_the_type_of_the_annotation() -> None:
    from dataclasses import dataclass

    @dataclass
    class Word:
        text: str

    seen: list[Any] = []

    @step(retry=ONE_MORE)
    async def words() -> AsyncIterator[Word]:
        seen.extend(step_context().chunks)
        yield Word("a")
        if step_context().attempt == 1:
            raise ConnectionError

    @workflow
    async def flow() -> list[Word]:
        return await words()

    ran = await run(flow())
    assert ran.output == [Word("a"), Word("a")]
    assert seen == [Word("a")]


async def test_what_a_generator_changes_after_it_was_shown_is_not_changed_in_the_result() -> None:
    @step
    async def growing() -> AsyncIterator[list[int]]:
        so_far: list[int] = []
        for i in range(3):
            so_far.append(i)
            yield so_far

    @workflow
    async def flow() -> list[list[int]]:
        return await growing()

    assert (await run(flow())).output == [[0], [0, 1], [0, 1, 2]]


# --- limits ---------------------------------------------------------------------------------------------------------


async def failing(fn: Any, **options: Any) -> BaseException:
    emitting = step(fn)

    @workflow
    async def flow() -> Any:
        return await emitting()

    ran = await run(flow(), **options)
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

    @workflow
    async def flow() -> None:
        await working()

    async with Engine(f"sqlite:///{tmp_path}/runs.db", [flow], recovery=AT_ONCE) as engine:
        handle = await engine.start(flow(), id="it")
        seen = await shown(engine)
        await handle
    assert [index for index, *_ in seen] == list(range(2800))
    for worker in range(4):
        assert [value[1] for _, _, value, _ in seen if value[0] == worker] == list(range(700))


# --- other processes, and other writers -----------------------------------------------------------------------------


def test_a_generator_in_another_process_is_refused_at_the_decorator() -> None:
    with pytest.raises(TypeError, match="cannot show what it yields"):

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
    assert "from where nothing can be shown" in str(error)


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

    @workflow
    async def flow() -> list[int]:
        return await slow()

    def interfere(i: int) -> None:
        from perdure.kernel.events import Batch

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


# --- children -------------------------------------------------------------------------------------------------------


@workflow
async def parent() -> list[list[str]]:
    return [await tokens("a b"), await child(answer("c d"), id="inner"), await tokens("e")]


async def test_the_stream_of_a_run_has_what_its_children_show_and_a_child_has_its_own() -> None:
    async with Engine("memory://", [parent, answer], recovery=AT_ONCE) as engine:
        assert (await engine.run(parent(), id="it")).output == [["a", "b"], ["c", "d"], ["e"]]
        whole = await shown(engine)
        inner = next(path for _, path, value, _ in whole if value == "c")
        assert [item[1:3] for item in whole] == [
            ("tokens:0", "a"),
            ("tokens:0", "b"),
            (inner, "c"),
            (inner, "d"),
            ("tokens:1", "e"),
        ]
        assert inner.endswith("/tokens:0")
        assert await shown(engine, "it", inner) == [(0, inner, "c", False), (1, inner, "d", False)]
        for step in (None, "tokens", "tokens:0", inner):
            assert await shown(engine, "inner", step) == [(0, inner, "c", False), (1, inner, "d", False)]
        with pytest.raises(UsageError, match="without a step 'tokens:1'"):
            await shown(engine, "inner", "tokens:1")


async def test_the_stream_of_a_child_ends_with_the_child() -> None:
    gates = Gates()

    @step
    async def wait() -> None:
        await gates.wait("end")

    @workflow
    async def outer() -> None:
        await child(answer("a b"), id="inner")
        await wait()

    async with Engine("memory://", [outer, answer], recovery=AT_ONCE) as engine:
        handle = await engine.start(outer(), id="it")
        async with asyncio.timeout(PATIENCE):
            while await engine.get("inner") is None:
                await asyncio.sleep(0)
        assert [item[2] for item in await shown(engine, "inner")] == ["a", "b"]
        gates.open("end")
        await handle


# --- the engine's own mode ------------------------------------------------------------------------------------------


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
