"""A parked run is resolved while an engine is about to leave it parked: its callers get what came of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Accepted, Client, Engine, RunStatus, connect, step, wait_signal, workflow
from perdure.kernel.events import RunParked
from perdure.orchestrator.parking import Parking
from perdure.ports.store import Store
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, eventually
from tests.services.plugin import on_two_stores


@step
async def work(name: str) -> str:
    return name


@workflow(name="fulfil", version="1")
async def first() -> str:
    await work("one")
    await wait_signal("go")
    return "first"


@workflow(name="fulfil", version="1.1")
async def mended() -> str:
    await work("one")
    await wait_signal("go")
    await wait_signal("more")
    return "mended"


@workflow(name="fulfil", version="2", accepts=("1",))
async def second() -> str:
    await work("another")
    return "second"


async def has(client: Client, status: RunStatus) -> None:
    async with asyncio.timeout(PATIENCE):
        while (view := await client.get("it")) is None or view.status is not status:
            await asyncio.sleep(0.01)


async def begun(store: Store) -> None:
    """A run of version 1 that waits for its signal."""
    async with Engine(store, [first], recovery=AT_ONCE) as engine:
        _ = await engine.start(first(), id="it")
        await has(engine, RunStatus.WAITING)


class Held:
    """The first parking that an engine decides on, held back until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.decided, self.released, self.over = asyncio.Event(), asyncio.Event(), asyncio.Event()
        park = Parking.park

        async def held(parking: Parking, *args: Any) -> bool | None:
            if self.decided.is_set():
                return await park(parking, *args)
            self.decided.set()
            await self.released.wait()
            try:
                return await park(parking, *args)
            finally:
                self.over.set()

        monkeypatch.setattr(Parking, "park", held)

    async def release(self) -> None:
        self.released.set()
        await self.over.wait()


RESOLVED: dict[str, dict[str, str]] = {
    "pinned": {"version": "1.1"},
    "from before an op": {"before": "go:0", "version": "1.1"},
    "failed": {"fail": "refunded"},
    "tried again": {},
}


@on_two_stores
@pytest.mark.parametrize("kind", ["engine", "client"])
@pytest.mark.parametrize("how", [*RESOLVED, "a signal"])
async def test_what_was_decided_before_a_run_was_resolved_is_not_told(
    any_store: Store, how: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begun(any_store)
    async with Engine(any_store, [second], recovery=AT_ONCE) as engine:
        await has(engine, RunStatus.PARKED)
    held = Held(monkeypatch)
    async with Engine(any_store, [mended, second], recovery=AT_ONCE) as engine, connect(any_store) as client:
        await held.decided.wait()
        teller: Client = engine if kind == "engine" else client
        if how == "a signal":
            assert isinstance(await teller.signal("it", "go"), Accepted)
        else:
            assert isinstance(await teller.resolve("it", **RESOLVED[how]), Accepted)
        handles = [engine.handle("it"), client.handle("it"), engine.handle("it", mended)]
        callers = [asyncio.ensure_future(handle.outcome(PATIENCE)) for handle in handles]
        going_on = how in ("pinned", "from before an op")
        if going_on:
            await has(client, RunStatus.WAITING)
        await held.release()
        answers = {"go": 1, "more": 1} if going_on else {}
        callers.append(asyncio.ensure_future(engine.handle("it").outcome(PATIENCE, until="rest", answers=answers)))
        expected = RunStatus.FAILED if how == "failed" else RunStatus.PARKED
        expected = RunStatus.COMPLETED if going_on else expected
        results = await asyncio.gather(*callers)
        assert {result.status for result in results} == {expected}
        if expected is RunStatus.COMPLETED:
            assert {result.output for result in results} == {"mended"}


async def test_a_run_that_is_being_parked_is_not_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be due, and a fix for it takes long: each search would replay it, and try the same fixes once more."""
    store = MemoryStore()
    await begun(store)
    async with connect(store) as client:
        _ = await client.signal("it", "go")
    held = Held(monkeypatch)
    async with Engine(store, [second], recovery=AT_ONCE) as engine:
        await held.decided.wait()
        assert engine._service is not None
        await eventually(lambda: engine._service.timers.next_due is not None)  # type: ignore[union-attr]
        (run_id,) = store.journal.rows
        engine._orchestrator.enter_soon(run_id)  # type: ignore[union-attr]
        for _ in range(5):
            assert (await engine._service.timers.run_once(engine.clock.now())).loaded == 0
        await held.release()
        await has(engine, RunStatus.PARKED)


@pytest.mark.parametrize("other", ["pause", "signal"])
async def test_a_parking_that_lost_to_another_append_is_tried_again(
    other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    await begun(store)
    held = Held(monkeypatch)
    async with Engine(store, [second], recovery=AT_ONCE) as engine, connect(store) as client:
        _ = await engine.signal("it", "go")
        await held.decided.wait()
        _ = await (client.pause("it") if other == "pause" else client.signal("it", "go"))
        await held.release()
        await has(client, RunStatus.PARKED)
        (run_id,) = store.journal.rows
        events = [event for batch in await store.journal.read(run_id) for event in batch.events]
        assert [type(event) for event in events].count(RunParked) == 1


async def test_of_two_engines_the_one_that_has_the_version_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    await begun(store)
    async with Engine(store, [second], recovery=AT_ONCE) as engine:
        await has(engine, RunStatus.PARKED)
    held = Held(monkeypatch)
    async with Engine(store, [second], name="a", recovery=AT_ONCE) as without:
        await held.decided.wait()
        async with Engine(store, [mended], name="b", recovery=AT_ONCE) as having:
            assert isinstance(await having.resolve("it", version="1.1"), Accepted)
            await has(having, RunStatus.WAITING)
            # It waits as soon as it is resolved; the engine that has its version takes it then.
            async with asyncio.timeout(PATIENCE):
                while (view := await having.get("it")) is None or view.owner != "b":
                    await asyncio.sleep(0.01)
            caller = asyncio.ensure_future(without.handle("it").outcome(PATIENCE))
            watch = without._base.watch
            await eventually(lambda: bool(watch._waiters))
            await held.release()
            for signal in ("go", "more"):
                _ = await without.signal("it", signal)
            assert (await caller).output == "mended"
