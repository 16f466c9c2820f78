"""A parked run that held locks goes on when the code fits and the locks are free, however often engines come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from perdure import Engine, RunStatus, Workflow, child, lock, sleep, wait_signal, workflow
from perdure.kernel.events import RunClaimed, RunReleased
from perdure.kernel.events import RunParked as RunParkedEvent
from perdure.ports.store import Store
from tests.engine.harness import AT_ONCE, PATIENCE, FakeClock
from tests.orchestrator.steps import called, charge, ship
from tests.services.plugin import on_two_stores


@workflow(name="sale")
async def sale(n: int) -> int:
    async with lock("till"):
        paid = await charge(n)
        await wait_signal("go")
        return paid + await ship(n)


@workflow(name="sale")
async def bad_sale(n: int) -> int:
    await ship(n)
    async with lock("till"):
        return await charge(n)


@workflow(name="sale")
async def two_locks(n: int) -> int:
    async with lock("drawer"), lock("till"):
        paid = await charge(n)
        await wait_signal("go")
        return paid + await ship(n)


@workflow(name="inner")
async def inner(n: int) -> int:
    async with lock("till"):
        paid = await charge(n)
        await wait_signal("go")
        return paid + await ship(n)


@workflow(name="sale")
async def lock_in_child(n: int) -> int:
    return await child(inner(n), id="inside")


@workflow(name="sale")
async def sleeps(n: int) -> int:
    async with lock("till"):
        paid = await charge(n)
        await sleep(60)
        return paid + await ship(n)


@workflow
async def neighbour() -> str:
    async with lock("till"):
        await wait_signal("leave")
    return "left"


HELD: dict[str, Workflow[..., Any]] = {
    "one": sale,
    "several": two_locks,
    "child": lock_in_child,
    "sleeping": sleeps,
}


def engine_of(store: Store, clock: FakeClock, *programs: Workflow[..., Any], name: str = "w") -> Engine:
    return Engine(store, [*programs, inner, neighbour], name=name, recovery=AT_ONCE, clock=clock)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.01)


async def status(engine: Engine, id: str = "it") -> RunStatus:
    view = await engine.get(id)
    assert view is not None
    return view.status


async def waits(engine: Engine, id: str) -> bool:
    view = await engine.get(id)
    return view is not None and any(wait.kind != "lock" for wait in view.waits)


async def parked_with_its_locks(store: Store, clock: FakeClock, program: Workflow[..., Any]) -> None:
    """The run "it", parked by a bad deploy in a block under its locks. They have expired, and "b" is in its block."""
    async with engine_of(store, clock, program) as engine:
        _ = await engine.start(program(1), id="it")
        await until(lambda: waits(engine, "inside" if program is lock_in_child else "it"))
    clock.advance(100)

    async def is_parked() -> bool:
        return await status(engine) is RunStatus.PARKED

    async with engine_of(store, clock, bad_sale) as engine:
        await until(is_parked)
        _ = await engine.start(neighbour(), id="b")
        await until(lambda: waits(engine, "b"))


async def resumed(engine: Engine) -> bool:
    return await status(engine) is not RunStatus.PARKED and "lock `till` held by run b" in str(await engine.why("it"))


async def no_locks(engine: Engine) -> bool:
    return await engine.locks.list() == []


async def survived(engine: Engine) -> bool:
    """Whether the engine has shown that the replay of the run did not kill it."""
    claims = [event for event in await events_of(engine) if isinstance(event, RunClaimed)]
    return sum(claim.owner == engine.name for claim in claims) == 2


async def events_of(engine: Engine, id: str = "it") -> Sequence[Any]:
    return [entry.event for entry in await engine.journal(id)]


@on_two_stores
@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("end", ["closed", "killed"])
async def test_it_waits_in_line_for_its_lock_however_many_engines_end_meanwhile(
    any_store: Store, held: str, end: str
) -> None:
    program, clock = HELD[held], FakeClock()
    await parked_with_its_locks(any_store, clock, program)
    for n in range(6):
        async with engine_of(any_store, clock, program, name=f"w{n}") as engine:
            await until(lambda: resumed(engine))
            if end == "killed":
                await until(lambda: survived(engine))
                assert engine._orchestrator is not None
                engine._orchestrator.abort()
    async with engine_of(any_store, clock, program) as engine:
        await until(lambda: resumed(engine))
        assert called == ["charge 1"]
        await engine.signal("inside" if held == "child" else "it", "go")
        await engine.signal("b", "leave")
        assert await engine.handle("b").result(PATIENCE) == "left"
        if held == "sleeping":
            clock.advance(61)
        assert await engine.handle("it").result(PATIENCE) == 2
        assert called == ["charge 1", "ship 1"]
        events = await events_of(engine)
        assert sum(isinstance(event, RunParkedEvent) for event in events) == 1
        if end == "closed":
            assert any(isinstance(event, RunReleased) for event in events)
        await until(lambda: no_locks(engine))


@on_two_stores
async def test_two_engines_that_start_at_once_go_on_with_it_once(any_store: Store) -> None:
    clock = FakeClock()
    await parked_with_its_locks(any_store, clock, sale)
    one, two = (engine_of(any_store, clock, sale, name=name) for name in ("one", "two"))
    await asyncio.gather(one.open(), two.open())
    try:
        await until(lambda: resumed(one))
        await two.signal("it", "go")
        await one.signal("b", "leave")
        assert await one.handle("it").result(PATIENCE) == 2
        assert await two.handle("it").result(PATIENCE) == 2
    finally:
        await asyncio.gather(one.close(), two.close())
    assert called == ["charge 1", "ship 1"]


@on_two_stores
async def test_a_signal_that_arrives_while_it_is_parked_or_waits_for_its_lock_is_kept(any_store: Store) -> None:
    clock = FakeClock()
    await parked_with_its_locks(any_store, clock, sale)
    async with engine_of(any_store, clock, bad_sale) as engine:
        await engine.signal("it", "go")
        assert await status(engine) is RunStatus.PARKED
    async with engine_of(any_store, clock, sale) as engine:
        await until(lambda: resumed(engine))
        await engine.signal("it", "another")
        await engine.signal("b", "leave")
        assert await engine.handle("it").result(PATIENCE) == 2


@on_two_stores
async def test_one_that_was_cancelled_while_parked_ends_once_it_has_its_lock(any_store: Store) -> None:
    """What it cleans up belongs under the lock."""
    clock = FakeClock()
    await parked_with_its_locks(any_store, clock, sale)
    async with engine_of(any_store, clock, sale) as engine:
        await until(lambda: resumed(engine))
        await engine.cancel("it")
        await engine.signal("b", "leave")
        outcome = await engine.handle("it").outcome(PATIENCE)
        assert outcome.status is RunStatus.CANCELLED
        await until(lambda: no_locks(engine))


@on_two_stores
async def test_one_that_is_failed_by_hand_while_it_waits_leaves_the_line(any_store: Store) -> None:
    clock = FakeClock()
    await parked_with_its_locks(any_store, clock, sale)
    async with engine_of(any_store, clock, bad_sale) as engine:
        await engine.resolve("it", fail="given up")
        assert await status(engine) is RunStatus.FAILED
    async with engine_of(any_store, clock, sale) as engine:
        await engine.signal("b", "leave")
        assert await engine.handle("b").result(PATIENCE) == "left"
        await until(lambda: no_locks(engine))
