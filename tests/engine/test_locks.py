"""Locks in workflow bodies: taken in turn, held, given back."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Engine,
    HeldBy,
    InvalidLock,
    LockTimeout,
    RunStatus,
    UsageError,
    bail,
    connect,
    lock,
    sleep,
    wait_signal,
    workflow,
)
from perdure.kernel.events import StepSucceeded, ValueRecorded, WaitOpened
from perdure.kernel.state import fold
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, LASTING, PATIENCE, FakeClock, LoopTime, Recorded, replay
from tests.engine.lock_parts import _no_locks, free, gated, gates, is_locked, most, until, wait_for, work

pytestmark = pytest.mark.usefixtures("no_locks_left")


@workflow
async def alone(name: str) -> int:
    async with lock("room") as held:
        assert held.key == "room"
        await work(name)
        return held.token


async def test_runs_that_want_one_lock_go_one_by_one_in_the_order_of_asking(local_url: str) -> None:
    async with Engine(local_url, [alone]) as engine:
        runs = [await engine.start(alone(str(i)), id=f"r{i}") for i in range(10)]
        tokens = [await run.result(PATIENCE) for run in runs]
        await until(lambda: free(engine))
    assert most == [1] * 10
    assert tokens == sorted(set(tokens))


async def test_the_journal_knows_what_a_run_holds() -> None:
    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [gated], on_commit=recorded) as engine:
        run = await engine.start(gated("go"), id="r1")
        await recorded.until(is_locked)
        state = fold(run.run_id, await store.journal.read(run.run_id))
        assert [(held.key, held.ttl, held.token) for held in state.locks.values()] == [("room", 30.0, 1)]
        assert (await engine.locks.list())[0].owner == f"{run.run_id}/lock:0"
        gates.open("go")
        assert await run.result(PATIENCE) == 1
        await until(lambda: free(engine))
    opened = next(e for e in recorded.events if isinstance(e, WaitOpened))
    assert (opened.kind, opened.name, opened.ttl) == ("lock", "room", 30.0)
    assert [e.kind for e in recorded.events if isinstance(e, ValueRecorded)] == ["unlock"]
    await replay(gated, run.run_id, store)


async def test_a_waiting_run_shows_the_lock_it_waits_for() -> None:
    recorded = Recorded()
    async with Engine("memory://", [alone], on_commit=recorded) as engine:
        async with engine.locks.hold("room"):
            run = await engine.start(alone("a"), id="r1")
            view = await engine.get("r1")
            assert view is not None
            assert [(wait.kind, wait.name) for wait in view.waits] == [("lock", "room")]
            assert view.status is RunStatus.RUNNING
        assert await run.result(PATIENCE) == 2


async def test_a_lock_that_does_not_come_free_in_time_raises_lock_timeout(local_url: str) -> None:
    @workflow
    async def impatient() -> str:
        try:
            async with lock("room", timeout=0.01):
                return "inside"
        except TimeoutError as error:
            if not isinstance(error, LockTimeout):
                raise
            return f"{error.key} {error.seconds}"

    async with Engine(local_url, [impatient]) as engine, engine.locks.hold("room"):
        assert await (await engine.start(impatient())).result(PATIENCE) == "room 0.01"


@pytest.mark.parametrize("key", ["", "k" * 10_240, "a\nb", 7, None, "\ud800"])
async def test_a_key_that_cannot_be_a_lock_is_refused_and_the_run_goes_on(key: Any) -> None:
    @workflow
    async def bad() -> str:
        try:
            async with lock(key):
                return "inside"
        except InvalidLock as error:
            return str(error)

    async with Engine("memory://", [bad]) as engine:
        message = await (await engine.start(bad())).result(PATIENCE)
        assert "choose a short name" in message
        assert len(message) < 250
        with pytest.raises(InvalidLock):
            await engine.locks.acquire(key, "me")
        with pytest.raises(InvalidLock):
            await engine.locks.get(key)


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), "30", True, timedelta(0)])
def test_a_ttl_that_is_no_time_is_refused(ttl: Any) -> None:
    with pytest.raises(InvalidLock, match="ttl=30"):
        lock("room", ttl=ttl)


@pytest.mark.parametrize("timeout", [-1, "1", float("nan"), True])
def test_a_timeout_that_is_no_time_is_refused(timeout: Any) -> None:
    with pytest.raises(UsageError, match="seconds to wait"):
        lock("room", timeout=timeout)


async def test_a_lock_outside_a_workflow_names_the_way_to_take_one() -> None:
    with pytest.raises(UsageError, match=r"engine\.locks\.hold"):
        async with lock("room"):
            pass
    with pytest.raises(UsageError, match="is not held"):
        _ = lock("room").token


async def test_branches_of_one_run_take_turns_too() -> None:
    @workflow
    async def branches() -> list[int]:
        async def branch(name: str) -> int:
            async with lock("room") as held:
                await work(name)
                return held.token

        return list(await asyncio.gather(*(branch(str(i)) for i in range(5))))

    store = MemoryStore()
    async with Engine(store, [branches]) as engine:
        run = await engine.start(branches())
        assert await run.result(PATIENCE) == [1, 2, 3, 4, 5]
    assert most == [1] * 5
    await replay(branches, run.run_id, store)


async def test_a_body_that_takes_a_lock_inside_itself_is_told_so() -> None:
    @workflow
    async def nested() -> None:
        async with lock("room"), lock("room"):
            pass

    async with Engine("memory://", [nested]) as engine:
        with pytest.raises(UsageError, match="would deadlock"):
            await (await engine.start(nested())).result(PATIENCE)
        await until(lambda: free(engine))


async def test_two_locks_may_be_held_at_once() -> None:
    @workflow
    async def both() -> list[str]:
        async with lock("a"), lock("b"):
            await wait_for("go")
        return ["done"]

    recorded = Recorded()
    async with Engine("memory://", [both], on_commit=recorded) as engine:
        run = await engine.start(both())
        await recorded.until(lambda e: is_locked(e) and getattr(e, "op", "") == "lock:1")
        assert [view.key for view in await engine.locks.list()] == ["a", "b"]
        gates.open("go")
        assert await run.result(PATIENCE) == ["done"]
        await until(lambda: _no_locks(engine))


@pytest.mark.parametrize("end", ["fail", "bail", "cancel", "deadline"])
async def test_a_run_that_ends_in_its_block_gives_its_lock_back(local_url: str, end: str) -> None:
    @workflow
    async def ends() -> None:
        async with lock("room"):
            if end == "fail":
                raise ValueError("no")
            if end == "bail":
                bail("enough")
            await sleep(3600)

    recorded = Recorded()
    async with Engine(local_url, [ends], on_commit=recorded) as engine:
        run = await engine.start(ends(), id="r", deadline=0.2 if end == "deadline" else None)
        if end == "cancel":
            await recorded.until(is_locked)
            await engine.cancel("r")
        _ = await run.outcome(PATIENCE)
        await until(lambda: free(engine))


async def test_a_run_that_is_ended_by_another_process_gives_its_lock_back(tmp_path: Path) -> None:
    local_url = f"sqlite:///{tmp_path / 'locks.db'}"
    recorded = Recorded()
    async with Engine(local_url, [gated], on_commit=recorded, recovery=AT_ONCE) as engine, connect(local_url) as client:
        _ = await engine.start(gated("never"), id="r")
        await recorded.until(is_locked)
        other = await client.start(gated("never"), id="r", reuse="terminate_running", delay=3600)
        await until(lambda: free(engine))
        assert await other.status() is RunStatus.QUEUED


async def test_a_lock_that_a_dead_owner_had_recorded_as_free_is_released_by_the_next_one(tmp_path: Path) -> None:
    @workflow
    async def twice() -> None:
        async with lock("room", ttl=86_400):
            await work("first")
        await wait_for("never")
        async with lock("room", ttl=86_400):
            await work("second")

    url = f"sqlite:///{tmp_path / 'locks.db'}"
    recorded = Recorded()
    async with Engine(url, [twice], on_commit=recorded, recovery=AT_ONCE) as engine:
        run = await engine.start(twice(), id="r")
        await recorded.until(lambda event: isinstance(event, ValueRecorded) and event.kind == "unlock")
        await until(lambda: free(engine))
    async with connect(url) as client:
        # As if the process had died before it released the lease.
        assert not isinstance(await client.locks.acquire("room", f"{run.run_id}/lock:0", ttl=86_400), HeldBy)
    async with Engine(url, [twice], recovery=AT_ONCE) as engine:
        await until(lambda: free(engine))


@pytest.mark.parametrize("durability", ["relaxed", "async", "exit", "every(5)", "manual"])
async def test_what_was_done_under_a_lock_is_in_the_store_before_it_is_given_back(durability: str) -> None:
    @workflow
    async def two_rooms() -> None:
        async with lock("room"):
            await work("inside")
        await wait_for("never")

    store = MemoryStore()
    async with Engine(store, [two_rooms], recovery=AT_ONCE) as engine:
        run = await engine.start(two_rooms(), durability=durability)
        await until(lambda: _taken_and_free(store))
        events = [event for batch in await store.journal.read(run.run_id) for event in batch.events]
        assert [e.op for e in events if isinstance(e, StepSucceeded)] == ["work:0"]
        assert [e.kind for e in events if isinstance(e, ValueRecorded)] == ["unlock"]


async def _taken_and_free(store: MemoryStore) -> bool:
    lease = store.leases._leases.get("lock:room")
    return lease is not None and lease.owner == ""


async def test_a_wait_that_the_body_gives_up_takes_no_lock() -> None:
    @workflow
    async def fickle() -> str:
        try:
            async with asyncio.timeout(0.01):
                async with lock("room"):
                    return "inside"
        except TimeoutError:
            return "left"

    store = MemoryStore()
    async with Engine(store, [fickle]) as engine:
        async with engine.locks.hold("room"):
            run = await engine.start(fickle())
            assert await run.result(PATIENCE) == "left"
        assert await free(engine)
    await replay(fickle, run.run_id, store)


async def test_more_runs_may_wait_for_a_lock_than_steps_may_run_at_once() -> None:
    async with Engine("memory://", [alone], max_concurrency=1) as engine:
        runs = [await engine.start(alone(str(i)), max_concurrency=1) for i in range(20)]
        assert len({await run.result(PATIENCE) for run in runs}) == 20


async def test_a_paused_run_takes_its_turn_and_goes_on_when_it_is_resumed() -> None:
    async with Engine("memory://", [alone]) as engine:
        async with engine.locks.hold("room"):
            run = await engine.start(alone("a"), id="r")
            _ = await engine.pause("r")
        await until(lambda: _held_by(engine, run.run_id))
        assert await run.status() is RunStatus.PAUSED
        assert most == []
        _ = await engine.resume("r")
        assert await run.result(PATIENCE) == 2
        async with engine.locks.hold("room"):
            other = await engine.start(alone("b"), id="s")
            _ = await engine.pause("s")
            _ = await engine.cancel("s")
            assert (await other.outcome(PATIENCE)).status is RunStatus.CANCELLED
        await until(lambda: free(engine))


async def _held_by(engine: Engine, run_id: str) -> bool:
    held = await engine.locks.get("room")
    return held is not None and held.owner.startswith(run_id)


async def _hold(engine: Engine, timeout: float) -> None:
    async with engine.locks.hold("room", timeout=timeout):
        pass


async def test_a_sleeping_holder_stays_in_memory_and_keeps_its_lock() -> None:
    @workflow
    async def sleeper() -> None:
        async with lock("room", ttl=30):
            await wait_signal("wake")

    recorded, time, clock = Recorded(), LoopTime(), FakeClock()
    async with Engine("memory://", [sleeper, alone], on_commit=recorded, clock=clock, recovery=LASTING) as engine:
        run = await engine.start(sleeper(), id="s")
        await recorded.until(lambda e: isinstance(e, WaitOpened) and e.kind == "signal")
        # Another waits for it, for longer than the ttl.
        waiting = asyncio.create_task(_hold(engine, timeout=100))
        for _ in range(11):
            clock.advance(10)
            await time.advance(10)
        with pytest.raises(LockTimeout):
            await waiting
        assert (await engine.locks.list())[0].owner == f"{run.run_id}/lock:0"
        await engine.signal("s", "wake")
        await run.result(PATIENCE)
