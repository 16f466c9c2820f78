"""Any engine that lives holds the deadline of a run whose program no engine has, in every status and on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure import (
    Client,
    DeadlineExceeded,
    Engine,
    Queue,
    RunStatus,
    call,
    child,
    connect,
    lock,
    sleep,
    step,
    wait_signal,
    workflow,
)
from perdure.ports.store import Store
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, FakeClock


@step
async def work(n: int) -> int:
    return n


@workflow
async def known(n: int) -> int:
    return await work(n)


@workflow
async def napping(n: int) -> int:
    await sleep(50)
    return await work(n)


@workflow
async def signalled(n: int) -> int:
    await wait_signal("go")
    return await work(n)


@workflow
async def family(n: int) -> int:
    return await child(signalled(n), id="kid")


@workflow
async def locking(n: int) -> int:
    async with lock("room"):
        await wait_signal("go")
    return n


BEGUN: list[Any] = [napping, signalled, family, locking]


@asynccontextmanager
async def stranger(store: Store, clock: FakeClock, **options: Any) -> Any:
    """An engine that has none of the programs of the others."""
    async with Engine(store, [known], name="stranger", recovery=AT_ONCE, clock=clock, **options) as engine:
        yield engine


async def status(client: Client, id: str) -> RunStatus:
    view = await client.get(id)
    assert view is not None
    return view.status


async def is_late(client: Client, clock: FakeClock, id: str, seconds: float) -> None:
    """The run is there until its deadline comes, and has failed then; who waits for it hears of that."""
    waiting = asyncio.create_task(client.handle(id).result(PATIENCE * 4))
    clock.advance(seconds - 1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not (await status(client, id)).finished
    clock.advance(2)
    with pytest.raises(DeadlineExceeded):
        await waiting
    assert await status(client, id) is RunStatus.FAILED


@pytest.mark.parametrize("options", [{}, {"delay": 1000}, {"queue": "strange"}, {"queue": "full", "delay": 7}], ids=str)
@pytest.mark.parametrize("paused", [False, True], ids=["free", "paused"])
async def test_a_run_that_has_not_begun(store: Callable[[], Store], options: dict[str, Any], paused: bool) -> None:
    clock = FakeClock()
    async with (
        stranger(store(), clock, queues=[Queue("full", concurrency=1)]),
        connect(store(), clock=clock) as client,
    ):
        _ = await client.start(call("nobody_has_it", 1), id="r", deadline=100, **options)
        if paused:
            await client.pause("r")
        await is_late(client, clock, "r", 100)


async def test_deadlines_of_many_programs_hold_one_after_the_other(store: Callable[[], Store]) -> None:
    clock = FakeClock()
    async with stranger(store(), clock), connect(store(), clock=clock) as client:
        for n in range(5):
            _ = await client.start(call(f"nobody_has_{n}", 1), id=f"r{n}", deadline=100 + 10 * n)
        _ = await client.start(call("nobody_has_0", 1), id="patient")
        await is_late(client, clock, "r0", 100)
        for n in range(1, 5):
            assert not (await status(client, f"r{n}")).finished
            await is_late(client, clock, f"r{n}", 9)
        assert await status(client, "patient") is RunStatus.QUEUED


@pytest.mark.parametrize("program", BEGUN, ids=lambda program: program.name)
async def test_a_run_that_has_begun_and_lost_its_engine(store: Callable[[], Store], program: Any) -> None:
    """It ends as a parked one does: no code is asked, and what it had open is given up."""
    clock = FakeClock()
    async with Engine(store(), BEGUN, name="theirs", recovery=AT_ONCE, clock=clock) as engine:
        _ = await engine.start(program(1), id="r", deadline=100)
        async with asyncio.timeout(PATIENCE * 4):
            while not (await engine.get("r")).waits:  # type: ignore[union-attr]
                await asyncio.sleep(0.01)
    async with stranger(store(), clock), connect(store(), clock=clock) as client:
        await is_late(client, clock, "r", 100)
        view = await client.get("r")
        assert view is not None
        assert view.waits == ()
        if program is family:
            assert await status(client, "kid") is RunStatus.CANCELLED
    async with Engine(store(), BEGUN, name="theirs", recovery=AT_ONCE, clock=clock) as engine:
        assert await status(engine, "r") is RunStatus.FAILED
        assert (await engine.rebuild()).differences == []


async def test_a_run_of_an_engine_that_lives_is_left_to_it(store: Callable[[], Store]) -> None:
    clock = FakeClock()
    async with (
        stranger(store(), clock) as other,
        Engine(store(), BEGUN, name="theirs", recovery=AT_ONCE, clock=clock) as engine,
    ):
        _ = await engine.start(signalled(1), id="r", deadline=100)
        _ = await engine.start(signalled(1), id="later", deadline=500)
        await is_late(engine, clock, "r", 100)
        assert await status(other, "later") is RunStatus.WAITING
        await engine.signal("later", "go")
        assert await engine.handle("later").result(PATIENCE * 4) == 1


async def test_a_run_that_completes_leaves_no_deadline_behind(store: Callable[[], Store]) -> None:
    clock = FakeClock()
    async with stranger(store(), clock) as engine:
        for n in range(3):
            assert await (await engine.start(known(n), deadline=100)).result(PATIENCE * 4) == n
        late = await engine.store.timers.late(clock.now() + 1000, 10, ["known"], [])
        assert (list(late.run_ids), late.next_deadline) == ([], None)
        late = await engine.store.timers.late(clock.now(), 10, ["known"], [])
        assert late.next_deadline is None


async def test_a_sweep_holds_them_too(store: Callable[[], Store]) -> None:
    clock = FakeClock()
    async with stranger(store(), clock):
        pass
    async with connect(store(), clock=clock) as client:
        _ = await client.start(call("nobody_has_it", 1), id="r", deadline=100)
        clock.advance(101)
        _ = await Engine(store(), [known], recovery=AT_ONCE, clock=clock).sweep()
        assert await status(client, "r") is RunStatus.FAILED


async def test_on_complete_hears_of_a_run_that_was_ended_by_its_deadline() -> None:
    clock, store, heard = FakeClock(), MemoryStore(), []
    done = asyncio.Event()

    async def on_complete(result: Any) -> None:
        heard.append(result.id)
        done.set()

    async with stranger(store, clock, on_complete=[on_complete]), connect(store, clock=clock) as client:
        _ = await client.start(call("nobody_has_it", 1), id="r", deadline=100)
        await is_late(client, clock, "r", 100)
        async with asyncio.timeout(PATIENCE):
            await done.wait()
    assert heard == ["r"]
