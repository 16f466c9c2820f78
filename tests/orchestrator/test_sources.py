"""A start waits until the source of its program is stored: what becomes of it when something comes in between."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Engine, StoreUnavailable, step, workflow
from perdure.stores.memory.store import MemoryBlobs, MemoryStore


@step
async def work(number: int) -> int:
    return number


@workflow
async def working(number: int) -> int:
    return await work(number)


class HeldBlobs(MemoryBlobs):
    """Blobs that answer no question before `released` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.released = asyncio.Event(), asyncio.Event()

    async def get(self, blob_id: str) -> bytes | None:
        self.asked.set()
        await self.released.wait()
        return await super().get(blob_id)


class HeldStore(MemoryStore):
    """A store with such blobs."""

    def __init__(self) -> None:
        super().__init__()
        self.blobs: HeldBlobs = HeldBlobs()


async def test_a_start_says_that_its_engine_was_suspended_meanwhile() -> None:
    store = HeldStore()
    async with Engine(store, [working]) as engine:
        starting = asyncio.create_task(engine.start(working(1), id="w"))
        await store.blobs.asked.wait()
        assert engine._orchestrator is not None
        engine._orchestrator.suspend()
        store.blobs.released.set()
        with pytest.raises(StoreUnavailable, match="no heartbeat of this engine"):
            _ = await starting
        assert await engine.get("w") is None


async def test_a_start_says_that_its_engine_was_closed_meanwhile() -> None:
    store = HeldStore()
    async with Engine(store, [working]) as engine:
        starting = asyncio.create_task(engine.start(working(1), id="w"))
        await store.blobs.asked.wait()
        asyncio.get_running_loop().call_later(0.01, store.blobs.released.set)
    with pytest.raises(StoreUnavailable, match="this engine was closed"):
        _ = await starting


async def test_a_start_that_is_cancelled_meanwhile_leaves_nothing_behind() -> None:
    store = HeldStore()
    async with Engine(store, [working]) as engine:
        starting = asyncio.create_task(engine.start(working(1), id="w"))
        await store.blobs.asked.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            _ = await starting
        store.blobs.released.set()
        assert engine._orchestrator is not None
        assert engine._orchestrator.runs.empty
        assert await (await engine.start(working(2), id="w")).result() == 2
