"""A failed fan-out is retried on every store, by an engine and by a client that does not know its code."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from perdure import Engine, Limits, RunStatus, child, connect, set_state, step, workflow
from perdure.client.client import Client
from perdure.ports.store import Store
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import PATIENCE

calls: Counter[int] = Counter()
broken: set[int] = set()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    calls.clear()
    broken.clear()


@step
async def part(number: int) -> str:
    calls[number] += 1
    if number in broken:
        raise ConnectionError(f"no {number}")
    return str(number) * 100


@workflow
async def one(number: int) -> str:
    return await part(number)


@workflow
async def wide(count: int) -> list[int]:
    room, ended = asyncio.Semaphore(2), 0

    async def guarded(number: int) -> str:
        nonlocal ended
        async with room:
            made = await (child(one(number)) if number % 2 else part(number))
        ended += 1
        set_state("ended", ended)
        return made

    made = await asyncio.gather(*(guarded(number) for number in range(count)), return_exceptions=True)
    if any(isinstance(value, Exception) for value in made):
        raise RuntimeError("some of them failed")
    return [len(str(value)) for value in made]


@pytest.mark.parametrize("who", ["engine", "client"])
async def test_only_what_failed_is_called_again(any_store: Store, any_url: str, who: str) -> None:
    broken.update({1, 4})
    elsewhere = connect(any_url) if who == "client" and not isinstance(any_store, MemoryStore) else None
    async with Engine(any_store, [wide, one], limits=Limits(blob=50)) as engine:
        run = await engine.start(wide(7), id="r")
        async with asyncio.timeout(PATIENCE * 6):
            assert (await run.outcome()).status is RunStatus.FAILED
            broken.remove(1)
            caller: Client = engine if who == "engine" else elsewhere or Client(any_store)
            if who == "client":
                _ = await caller.open()
            assert (await (await caller.retry("r")).outcome()).status is RunStatus.FAILED
            broken.clear()
            assert await (await caller.retry("r")).result() == [100] * 7
        assert calls == {0: 1, 1: 2, 2: 1, 3: 1, 4: 3, 5: 1, 6: 1}
        assert (await engine.get("r")).state == {"ended": 7}  # type: ignore[union-attr]
    if elsewhere is not None:
        await elsewhere.close()
