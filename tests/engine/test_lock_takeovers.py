"""What becomes of a lock when its run is taken over."""

from __future__ import annotations

import pytest

from perdure import Engine, HeldBy, connect, lock, workflow
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, LASTING, PATIENCE, LoopTime, Recorded, replay
from tests.engine.lock_parts import free, gated, gates, is_locked, most, until, wait_for, work

pytestmark = pytest.mark.usefixtures("no_locks_left")


async def test_a_run_that_is_handed_over_keeps_its_lock_and_its_token() -> None:
    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [gated], on_commit=recorded, recovery=AT_ONCE) as engine:
        run = await engine.start(gated("go"), id="r")
        await recorded.until(is_locked)
    assert [lease.owner for lease in await store.leases.live("lock:", 0)] == [f"{run.run_id}/lock:0"]
    async with Engine(store, [gated]) as engine:
        gates.open("go")
        result = await engine.run(gated("go"), id="r")
        assert result.output == 1
        await until(lambda: free(engine))
    await replay(gated, run.run_id, store)


async def test_a_run_whose_lock_went_to_another_waits_for_it_and_gets_a_new_token() -> None:
    @workflow
    async def twice() -> list[int]:
        async with lock("room") as held:
            tokens = [held.token]
            await wait_for("go")
            tokens.append(held.token)
            await work("after")
            return [*tokens, held.token]

    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [twice], on_commit=recorded, recovery=AT_ONCE) as engine:
        run = await engine.start(twice(), id="r")
        await recorded.until(is_locked)
    gates.open("go")
    async with connect(store) as client:
        assert await client.locks.force_release("room") is not None
        async with client.locks.hold("room") as held:
            assert held.token == 2
            async with Engine(store, [twice]) as engine:
                # It was taken over, and does nothing while somebody else is inside.
                await until(lambda: _owned(engine, "r"))
                assert most == []
    async with Engine(store, [twice]) as engine:
        assert await (await engine.start(twice(), id="r")).result(PATIENCE) == [1, 3, 3]
    await replay(twice, run.run_id, store)


async def _owned(engine: Engine, id: str) -> bool:
    view = await engine.get(id)
    return view is not None and view.owner == engine.name


async def test_a_run_that_loses_its_lock_stops_and_goes_on_when_it_has_it_again() -> None:
    @workflow
    async def guarded() -> list[int]:
        async with lock("room", ttl=30) as held:
            first = held.token
            await wait_for("go")
            return [first, held.token]

    store, recorded, time = MemoryStore(), Recorded(), LoopTime()
    async with Engine(store, [guarded], on_commit=recorded, recovery=LASTING) as engine:
        run = await engine.start(guarded(), id="r")
        await recorded.until(is_locked)
        taken = await engine.locks.force_release("room")
        assert taken is not None
        assert taken.owner == f"{run.run_id}/lock:0"
        assert not isinstance(await engine.locks.acquire("room", "thief", 30), HeldBy)
        # It is renewed three times in its ttl.
        await time.advance(11)
        await until(lambda: _gone(engine, run.run_id))
        gates.open("go")
        await engine.locks.release("room", "thief")
        assert await run.result(PATIENCE) == [1, 3]
    await replay(guarded, run.run_id, store)


async def _gone(engine: Engine, run_id: str) -> bool:
    assert engine._orchestrator is not None
    return run_id not in engine._orchestrator.active
