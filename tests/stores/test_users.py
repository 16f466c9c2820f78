"""A store object that engines and clients share: the last of them disconnects, on every store."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Engine, connect, step, wait_signal, workflow
from perdure.errors import UsageError
from perdure.ports.store import Store
from perdure.stores.open import open_store
from tests.patience import PATIENCE

LOOPS_OF_THEIR_OWN = ("postgres", "redis")


@step
async def double(n: int) -> int:
    return 2 * n


@workflow
async def flow(n: int) -> int:
    return await double(n)


@workflow
async def waiting() -> str:
    return await wait_signal("go", type=str)


@pytest.fixture
def shared(any_url: str) -> Store:
    """A store object that nothing has opened yet."""
    return open_store(any_url)


async def test_a_client_that_leaves_does_not_close_the_store_of_an_engine(shared: Store) -> None:
    async with Engine(shared, [flow, waiting]) as engine:
        handle = await engine.start(waiting(), id="it")
        async with connect(shared) as client:
            await client.signal("it", "go", "on")
        assert await handle.result(PATIENCE) == "on"
        assert (await engine.run(flow(2))).output == 4


async def test_an_engine_that_leaves_does_not_close_the_store_of_a_client(shared: Store) -> None:
    async with Engine(shared, [flow]):
        client = await connect(shared)
    async with client:
        async with Engine(shared, [flow]) as engine:
            await engine.run(flow(3), id="it")
        view = await client.get("it")
        assert view is not None
        assert view.output == 6


async def test_an_engine_may_come_after_a_client_and_writes(shared: Store) -> None:
    async with Engine(shared, [flow]):
        pass
    async with connect(shared) as client, Engine(shared, [flow]) as engine:
        await engine.run(flow(1), id="it")
        assert await client.handle("it").result(PATIENCE) == 2


async def test_two_engines_leave_one_after_the_other(shared: Store) -> None:
    async with Engine(shared, [flow], name="stays") as engine:
        async with Engine(shared, [flow], name="leaves"):
            pass
        assert (await engine.run(flow(5))).output == 10
    async with Engine(shared, [flow], name="later") as engine:
        assert (await engine.run(flow(6))).output == 12


async def test_they_may_open_and_leave_at_the_same_time(shared: Store) -> None:
    async with Engine(shared, [flow]):
        pass
    for _ in range(3):
        clients = await asyncio.gather(*(connect(shared).open() for _ in range(5)))
        assert [await client.get("nothing") for client in clients] == [None] * 5
        await asyncio.gather(*(client.close() for client in clients))


async def test_who_opened_a_store_by_hand_keeps_it_open(shared: Store) -> None:
    await shared.open(migrate=True)
    try:
        async with Engine(shared, [flow]) as engine:
            await engine.run(flow(1), id="it")
        assert await shared.runs.find("it") is not None
    finally:
        await shared.close()


async def test_an_engine_that_could_not_be_opened_leaves_the_store_to_the_others(
    shared: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(durability: object) -> None:
        raise UsageError("it promises nothing")

    async with Engine(shared, [flow], name="here") as engine:
        with monkeypatch.context() as patched:
            patched.setattr(shared, "check_durability", refuse)
            with pytest.raises(UsageError, match="promises nothing"):
                _ = await Engine(shared, [flow], name="there").open()
        assert (await engine.run(flow(5))).output == 10


@pytest.mark.parametrize("any_url", ["memory", "file", "sqlite"], indirect=True)
def test_a_store_that_a_loop_did_not_close_is_opened_anew_in_the_next(shared: Store) -> None:
    async def leave_it() -> None:
        await shared.open(migrate=True)

    async def work() -> object:
        async with Engine(shared, [flow]) as engine:
            return (await engine.run(flow(4))).output

    asyncio.run(leave_it())
    assert asyncio.run(work()) == 8


@pytest.mark.parametrize("any_url", LOOPS_OF_THEIR_OWN, indirect=True)
def test_connections_that_belong_to_another_loop_are_refused_with_what_to_write(shared: Store) -> None:
    async def elsewhere() -> None:
        async with connect(shared):
            pass

    async def work() -> None:
        async with Engine(shared, [flow]):
            with pytest.raises(UsageError, match=r"another event loop.*by the URL"):
                await asyncio.to_thread(lambda: asyncio.run(elsewhere()))

    asyncio.run(work())
