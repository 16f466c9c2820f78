"""Locks in bodies and steps: one holder at a time, renewed while held, given back, and refused with a reason."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Engine,
    HeldBy,
    InvalidLock,
    LockLost,
    LockTimeout,
    NotOwner,
    Retry,
    RunStatus,
    UsageError,
    bail,
    connect,
    lock,
    sleep,
    step,
    step_context,
    wait_signal,
    workflow,
)
from perdure.kernel.events import StepSucceeded, ValueRecorded, WaitOpened, WaitResolved
from perdure.kernel.state import fold
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, Gates, Recorded, replay

inside: list[str] = []
most: list[int] = []
gates = Gates()


@pytest.fixture(autouse=True)
def _empty() -> None:
    global gates
    inside.clear()
    most.clear()
    gates = Gates()


@step
async def work(name: str) -> str:
    inside.append(name)
    most.append(len(inside))
    await asyncio.sleep(0)
    inside.remove(name)
    return name


@step
async def wait_for(gate: str) -> None:
    await gates.wait(gate)


@workflow
async def alone(name: str) -> int:
    async with lock("room") as held:
        assert held.key == "room"
        await work(name)
        return held.token


@workflow
async def gated(gate: str, ttl: float = 30.0) -> int:
    async with lock("room", ttl=ttl) as held:
        await wait_for(gate)
        return held.token


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'locks.db'}"


def is_locked(event: Any) -> bool:
    return isinstance(event, WaitResolved) and event.by == "lock"


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Let the loop turn until the condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.001)


async def free(engine: Engine, key: str = "room") -> bool:
    return await engine.locks.get(key) is None


async def test_runs_that_want_one_lock_go_one_by_one_in_the_order_of_asking(url: str) -> None:
    async with Engine(url, [alone]) as engine:
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


async def test_a_lock_that_does_not_come_free_in_time_raises_lock_timeout(url: str) -> None:
    @workflow
    async def impatient() -> str:
        try:
            async with lock("room", timeout=0.01):
                return "inside"
        except TimeoutError as error:
            if not isinstance(error, LockTimeout):
                raise
            return f"{error.key} {error.seconds}"

    async with Engine(url, [impatient]) as engine, engine.locks.hold("room"):
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
        with pytest.raises(UsageError, match="would wait for itself"):
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


async def _no_locks(engine: Engine) -> bool:
    return await engine.locks.list() == []


@pytest.mark.parametrize("end", ["fail", "bail", "cancel", "deadline"])
async def test_a_run_that_ends_in_its_block_gives_its_lock_back(url: str, end: str) -> None:
    @workflow
    async def ends() -> None:
        async with lock("room"):
            if end == "fail":
                raise ValueError("no")
            if end == "bail":
                bail("enough")
            await sleep(3600)

    recorded = Recorded()
    async with Engine(url, [ends], on_commit=recorded) as engine:
        run = await engine.start(ends(), id="r", deadline=0.2 if end == "deadline" else None)
        if end == "cancel":
            await recorded.until(is_locked)
            await engine.cancel("r")
        _ = await run.outcome(PATIENCE)
        await until(lambda: free(engine))


async def test_a_run_that_is_ended_by_another_process_gives_its_lock_back(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'locks.db'}"
    recorded = Recorded()
    async with Engine(url, [gated], on_commit=recorded, recovery=AT_ONCE) as engine, connect(url) as client:
        _ = await engine.start(gated("never"), id="r")
        await recorded.until(is_locked)
        other = await client.start(gated("never"), id="r", reuse="terminate_running", delay=3600)
        await until(lambda: free(engine))
        assert await other.status() is RunStatus.QUEUED


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


async def test_a_sleeping_holder_stays_in_memory_and_keeps_its_lock() -> None:
    @workflow
    async def sleeper() -> None:
        async with lock("room", ttl=0.06):
            await wait_signal("wake")

    recorded = Recorded()
    async with Engine("memory://", [sleeper, alone], on_commit=recorded) as engine:
        run = await engine.start(sleeper(), id="s")
        await recorded.until(lambda e: isinstance(e, WaitOpened) and e.kind == "signal")
        # Another waits for it, for longer than the ttl.
        with pytest.raises(LockTimeout):
            async with engine.locks.hold("room", timeout=0.2):
                pass
        assert (await engine.locks.list())[0].owner == f"{run.run_id}/lock:0"
        await engine.signal("s", "wake")
        await run.result(PATIENCE)


# --- children ---------------------------------------------------------------------------------------------------------


@workflow
async def visitor(end: str) -> int:
    async with lock("room") as held:
        await work("child")
        if end == "bail":
            bail("enough", held.token)
        if end == "fail":
            raise ValueError("no")
        return held.token


@workflow
async def host(end: str) -> list[Any]:
    async with lock("house") as held:
        try:
            inside = await visitor(end)
        except ValueError:
            inside = -1
        async with lock("room") as after:
            return [held.token, inside, after.token]


@pytest.mark.parametrize(("end", "token"), [("return", 1), ("fail", -1), ("bail", 1)])
async def test_a_child_has_locks_of_its_own_and_gives_them_back_at_its_end(url: str, end: str, token: int) -> None:
    recorded = Recorded()
    async with Engine(url, [host, visitor], on_commit=recorded) as engine:
        run = await engine.start(host(end), id="h")
        result = await run.result(PATIENCE)
        assert [result[0], result[2]] == [1, 2]
        assert result[1] in (token, None)
        await until(lambda: _no_locks(engine))


async def test_a_parent_keeps_its_lock_when_its_child_gives_one_back() -> None:
    @workflow
    async def careful() -> int:
        async with lock("house") as held:
            await visitor("return")
            await wait_for("go")
            return held.token

    recorded = Recorded()
    async with Engine("memory://", [careful, visitor], on_commit=recorded) as engine:
        run = await engine.start(careful())
        await recorded.until_started("wait_for:0")
        await until(lambda: free(engine))
        assert [view.key for view in await engine.locks.list()] == ["house"]
        gates.open("go")
        assert await run.result(PATIENCE) == 1


async def test_a_child_that_is_taken_over_has_its_lock_again() -> None:
    @workflow
    async def inner() -> list[int]:
        async with lock("room") as held:
            first = held.token
            await wait_for("go")
            return [first, held.token]

    @workflow
    async def outer() -> list[int]:
        return await inner()

    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [outer, inner], on_commit=recorded, recovery=AT_ONCE) as engine:
        _ = await engine.start(outer(), id="r")
        await recorded.until_started("inner:0/wait_for:0")
    gates.open("go")
    async with connect(store) as client:
        assert await client.locks.force_release("room") is not None
        async with client.locks.hold("room"):
            pass
    async with Engine(store, [outer, inner]) as engine:
        assert (await engine.run(outer(), id="r")).output == [1, 3]


async def test_a_run_that_is_claimed_while_it_waits_for_its_lock_keeps_the_rows_of_its_children() -> None:
    @workflow
    async def inner() -> None:
        async with lock("room"):
            await wait_for("go")

    @workflow
    async def outer() -> None:
        await inner()

    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [outer, inner], on_commit=recorded, recovery=AT_ONCE, name="first") as engine:
        run = await engine.start(outer(), id="r")
        await recorded.until_started("inner:0/wait_for:0")
    gates.open("go")

    async def claimed() -> bool:
        row = await store.runs.get(run.run_id)
        return row is not None and row.owner == "second"

    async with connect(store) as client:
        assert await client.locks.force_release("room") is not None
        async with client.locks.hold("room"), Engine(store, [outer, inner], name="second"):
            await until(claimed)
            child = await store.runs.get(f"{run.run_id}/inner:0")
            assert child is not None
            assert (child.status, child.root) == (RunStatus.RUNNING, run.run_id)
    async with Engine(store, [outer, inner]) as engine:
        await engine.run(outer(), id="r")
        child = await store.runs.get(f"{run.run_id}/inner:0")
        assert child is not None
        assert child.status is RunStatus.COMPLETED


# --- takeovers --------------------------------------------------------------------------------------------------------


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
        async with lock("room", ttl=0.09) as held:
            first = held.token
            await wait_for("go")
            return [first, held.token]

    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [guarded], on_commit=recorded) as engine:
        run = await engine.start(guarded(), id="r")
        await recorded.until(is_locked)
        taken = await engine.locks.force_release("room")
        assert taken is not None
        assert taken.owner == f"{run.run_id}/lock:0"
        assert not isinstance(await engine.locks.acquire("room", "thief", 30), HeldBy)
        await until(lambda: _gone(engine, run.run_id))
        gates.open("go")
        await engine.locks.release("room", "thief")
        assert await run.result(PATIENCE) == [1, 3]
    await replay(guarded, run.run_id, store)


async def _gone(engine: Engine, run_id: str) -> bool:
    assert engine._orchestrator is not None
    return run_id not in engine._orchestrator.active


# --- steps ------------------------------------------------------------------------------------------------------------


@step
async def guarded_step(name: str) -> int:
    async with lock("room") as held:
        inside.append(name)
        most.append(len(inside))
        await asyncio.sleep(0)
        inside.remove(name)
        return held.token


@step
def guarded_thread(name: str) -> int:
    with lock("room") as held:
        inside.append(name)
        most.append(len(inside))
        inside.remove(name)
        return held.token


@workflow
async def many_steps() -> list[int]:
    names = [str(i) for i in range(4)]
    return list(await asyncio.gather(*map(guarded_step, names), *map(guarded_thread, names)))


async def test_steps_on_the_loop_and_in_threads_take_turns(url: str) -> None:
    async with Engine(url, [many_steps]) as engine:
        tokens = await (await engine.start(many_steps())).result(PATIENCE)
        assert sorted(tokens) == [1, 2, 3, 4, 5, 6, 7, 8]
        assert await free(engine)
    assert most == [1] * 8


async def test_a_step_that_fails_or_is_cancelled_gives_its_lock_back() -> None:
    @step(timeout=0.05)
    async def stuck() -> None:
        async with lock("room"):
            await gates.wait("never")

    @step
    async def fails() -> None:
        async with lock("room"):
            raise ValueError("no")

    @workflow
    async def both() -> int:
        for call in (stuck, fails):
            try:
                await call()
            except (TimeoutError, ValueError):
                pass
        return await guarded_step("after")

    async with Engine("memory://", [both]) as engine:
        assert await (await engine.start(both())).result(PATIENCE) == 3
        assert await free(engine)


async def test_the_next_attempt_takes_over_from_a_thread_that_does_not_notice_its_end() -> None:
    stop, tokens = threading.Event(), []

    @step(timeout=0.1, retry=Retry(attempts=2, initial=0.01))
    def stubborn() -> int:
        with lock("room") as held:
            tokens.append(held.token)
            if step_context().attempt == 1:
                stop.wait(PATIENCE)
            return held.token

    @workflow
    async def calls() -> int:
        return await stubborn()

    async with Engine("memory://", [calls]) as engine:
        assert await (await engine.start(calls())).result(PATIENCE) == 2
        stop.set()
        async with engine.locks.hold("room") as held:
            assert held.token == 3
    assert tokens == [1, 2]


async def test_a_thread_that_waits_for_a_lock_ends_with_its_step() -> None:
    ended = threading.Event()

    @step(timeout=0.05)
    def waits() -> None:
        try:
            with lock("room"):
                pass
        finally:
            ended.set()

    @workflow
    async def calls() -> None:
        await waits()

    async with Engine("memory://", [calls]) as engine, engine.locks.hold("room"):
        with pytest.raises(TimeoutError):
            await (await engine.start(calls())).result(PATIENCE)
        assert await asyncio.to_thread(ended.wait, PATIENCE)


async def test_a_step_that_lost_its_lock_is_told_at_the_end_of_its_block() -> None:
    @step
    async def robbed() -> None:
        async with lock("room", ttl=0.06):
            await gates.wait("go")

    @workflow
    async def calls() -> None:
        await robbed()

    async with Engine("memory://", [calls]) as engine:
        run = await engine.start(calls())
        await until(lambda: _held(engine))
        assert await engine.locks.force_release("room") is not None
        assert not isinstance(await engine.locks.acquire("room", "thief"), HeldBy)
        gates.open("go")
        with pytest.raises(LockLost):
            await run.result(PATIENCE)


async def _held(engine: Engine) -> bool:
    return not await free(engine)


async def test_a_step_that_waits_in_vain_fails_with_lock_timeout_in_the_body() -> None:
    @step
    async def impatient() -> None:
        async with lock("room", timeout=0):
            pass

    @workflow
    async def calls() -> list[Any]:
        try:
            await impatient()
        except LockTimeout as error:
            return [error.key, error.seconds]
        return []

    async with Engine("memory://", [calls]) as engine, engine.locks.hold("room"):
        assert await (await engine.start(calls())).result(PATIENCE) == ["room", 0.0]


async def test_a_step_that_takes_a_lock_inside_itself_is_told_so() -> None:
    @step
    async def nested() -> None:
        async with lock("room"), lock("room"):
            pass

    @step
    async def wrong() -> None:
        with lock("room"):
            pass

    @workflow
    async def calls() -> list[str]:
        errors = []
        for call in (nested, wrong):
            try:
                await call()
            except UsageError as error:
                errors.append(str(error))
        return errors

    async with Engine("memory://", [calls]) as engine:
        first, second = await (await engine.start(calls())).result(PATIENCE)
        assert "would wait for itself" in first
        assert "async with" in second
        assert await free(engine)


# --- callers ----------------------------------------------------------------------------------------------------------


async def test_callers_hold_renew_and_give_back_locks(url: str) -> None:
    async with Engine(url) as engine:
        locks = engine.locks
        first = await locks.acquire("room", "me", ttl=timedelta(seconds=30))
        assert not isinstance(first, HeldBy)
        assert (first.key, first.owner, first.token) == ("room", "me", 1)
        refused = await locks.acquire("room", "you")
        assert isinstance(refused, HeldBy)
        assert refused.owner == "me"
        renewed = await locks.renew("room", "me", 60)
        assert renewed.expires_at > first.expires_at
        assert await locks.get("room") == renewed
        assert await locks.list() == [renewed]
        for call in (locks.renew, locks.release):
            with pytest.raises(NotOwner):
                await call("room", "you")
        await locks.release("room", "me")
        assert await locks.get("room") is None
        assert await locks.force_release("room") is None
        with pytest.raises(InvalidLock, match="names nobody"):
            await locks.acquire("room", "")


async def test_a_caller_who_waits_is_told_when_the_engine_is_closed(url: str) -> None:
    engine = await Engine(url).open()
    _ = await engine.locks.acquire("room", "somebody")
    waiting = asyncio.create_task(_hold(engine))
    while not engine.locks.locker._outside:
        await asyncio.sleep(0)
    await engine.close()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(UsageError, match="was closed"):
            await waiting


async def test_a_lock_leaves_no_file_beside_the_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'locks.db'}"
    async with Engine(url, [many_steps]) as engine, engine.locks.hold("door"):
        _ = await engine.run(many_steps())
        assert len(list((tmp_path / "locks.db-owners").iterdir())) == 1


async def test_a_caller_waits_for_a_lock_of_another_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'locks.db'}"
    async with Engine(url) as engine, connect(url) as client:
        async with engine.locks.hold("room"):
            waiting = asyncio.create_task(_hold(client))
            with pytest.raises(LockTimeout):
                async with client.locks.hold("room", timeout=0.05):
                    pass
        async with asyncio.timeout(PATIENCE):
            assert await waiting > 1


async def _hold(client: Any) -> int:
    async with client.locks.hold("room") as held:
        token: int = held.token
        return token
