"""What a later attempt makes of what an earlier one emitted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from perdure import Engine, batched, step, step_context
from perdure.kernel.events import ChunkAppended
from tests.engine.harness import AT_ONCE, Recorded, only, run
from tests.engine.stream_parts import ONE_MORE, values


async def test_an_attempt_that_looks_at_the_chunks_goes_on_from_them() -> None:
    @step(retry=ONE_MORE)
    async def careful(n: int) -> AsyncIterator[int]:
        for i in range(len(step_context().chunks), n):
            yield i
            if i == 2:
                raise ConnectionError

    flow = only(careful, 5)

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

    flow = only(careless, 4)

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

    flow = only(changeable)

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

    flow = only(picky)

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

    flow = only(picky)

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

    ran = await run(only(words)())
    assert ran.output == [Word("a"), Word("a")]
    assert seen == [Word("a")]


async def test_what_a_generator_changes_after_it_was_shown_is_not_changed_in_the_result() -> None:
    @step
    async def growing() -> AsyncIterator[list[int]]:
        so_far: list[int] = []
        for i in range(3):
            so_far.append(i)
            yield so_far

    assert (await run(only(growing)())).output == [[0], [0, 1], [0, 1, 2]]
