"""Steps that emit, workflows that call them, and readers of their streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

from perdure import Engine, Retry, step, workflow
from tests.engine.harness import PATIENCE

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
