"""A client tells a run things that it does not wait for, while it takes locks, makes large values and shows chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from perdure import Durability, Engine, connect, every, lock, set_state, step, workflow
from perdure.client.client import Client
from perdure.engine.change_feed import ChangeFeedConfig, change_feed
from perdure.orchestrator.service import ServiceConfig
from perdure.ports.store import Store
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import PATIENCE

SIGNALS, TURNS = 100, 10
LARGE = 300 * 1024
MODES: list[str | Durability] = ["sync", "async", "exit", "manual", every(1), every(5)]


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines look for what others wrote all the time, so that they are often in the middle of it."""
    monkeypatch.setattr(Engine, "_service_config", ServiceConfig(change_interval=0.002))


async def result_while_told(
    store: Store, url: str, run: Callable[[Engine], Coroutine[Any, Any, Any]], *programs: Any
) -> Any:
    """What a run comes to while a client elsewhere sends it signals that nobody waits for."""
    feed = change_feed(store, config=ChangeFeedConfig(poll_interval=0.001))
    async with Engine(store, programs) as engine:
        assert engine._service is not None
        assert engine._service._changes._feed is feed
        running = asyncio.ensure_future(run(engine))
        # Elsewhere, except where the store is in this process only.
        client = Client(store) if isinstance(store, MemoryStore) else connect(url)
        _ = await client.open()

        async def pester() -> None:
            # A bounded number: an owner that always comes second would never write.
            for _ in range(SIGNALS):
                if await client.get("r") is not None:
                    _ = await client.signal("r", "nobody")
                for _ in range(TURNS):
                    await asyncio.sleep(0)

        pestering = asyncio.create_task(pester())
        try:
            async with asyncio.timeout(PATIENCE * 6):
                return await running
        finally:
            pestering.cancel()
            if not isinstance(store, MemoryStore):
                await client.close()


@workflow
async def locker(times: int) -> int:
    for number in range(times):
        async with lock(f"free {number}", ttl=60):
            set_state("taken", number)
    return times


async def test_a_body_that_takes_free_locks_gets_each_of_them_while_it_is_told_things(
    any_store: Store, any_url: str
) -> None:
    async def run(engine: Engine) -> int:
        return await (await engine.start(locker(30), id="r")).result()

    assert await result_while_told(any_store, any_url, run, locker) == 30


@step
async def heavy(number: int) -> str:
    return chr(97 + number % 26) * LARGE


@workflow
async def hauler(times: int) -> list[str]:
    return [(await heavy(number))[0] for number in range(times)]


async def haul(store: Store, url: str, mode: str | Durability) -> None:
    async def run(engine: Engine) -> list[str]:
        return await (await engine.start(hauler(8), id="r", durability=mode)).result()

    assert await result_while_told(store, url, run, hauler) == list("abcdefgh")


@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_a_large_result_reaches_its_run_in_every_mode_while_that_is_told_things(mode: str | Durability) -> None:
    await haul(MemoryStore(), "memory://", mode)


async def test_a_large_result_reaches_its_run_while_that_is_told_things(any_store: Store, any_url: str) -> None:
    await haul(any_store, any_url, "async")


@step
async def shown(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


@workflow
async def streamer() -> int:
    return len(await shown(3000))


async def test_a_stream_that_is_faster_than_the_store_goes_on_while_its_run_is_told_things(
    any_store: Store, any_url: str
) -> None:
    async def run(engine: Engine) -> int:
        return await (await engine.start(streamer(), id="r")).result()

    assert await result_while_told(any_store, any_url, run, streamer) == 3000


@pytest.mark.parametrize("mode", ["exit", "manual", every(100)], ids=str)
async def test_a_cancel_from_elsewhere_ends_a_run_that_has_nothing_to_write_for_long(mode: str | Durability) -> None:
    begun, called = asyncio.Event(), 0

    @step
    async def tick() -> None:
        nonlocal called
        called += 1
        begun.set()
        for _ in range(TURNS):
            await asyncio.sleep(0)

    @workflow
    async def endless() -> None:
        while True:
            await tick()

    store = MemoryStore()
    async with Engine(store, [endless], durability=mode) as engine:
        run = await engine.start(endless(), id="r")
        async with asyncio.timeout(PATIENCE * 6):
            await begun.wait()
            _ = await (await Client(store).open()).cancel("r")
            assert (await run.outcome()).status == "cancelled"
