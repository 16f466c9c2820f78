"""The streams of children."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Engine, UsageError, child, step, workflow
from tests.engine.harness import AT_ONCE, PATIENCE, Gates
from tests.engine.stream_parts import answer, shown, tokens


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
