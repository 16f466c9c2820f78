"""Runs that wait hold no memory: they leave it, and come back by replay when they are due."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from datetime import timedelta
from typing import Any

import pytest

from perdure import DeadlineExceeded, Engine, Retry, RunStatus, lock, sleep, step, step_context, wait_signal, workflow
from perdure.kernel.events import AttemptFailed, RunClaimed, WaitOpened
from perdure.orchestrator.orchestrator import Orchestrator
from perdure.stores.memory.store import MemoryStore
from tests.amounts import some
from tests.engine.harness import AT_ONCE, PATIENCE, FakeClock, Gates, Recorded, eventually, replay
from tests.orchestrator.steps import called, note


def orchestrator_of(engine: Engine) -> Orchestrator:
    assert engine._orchestrator is not None
    return engine._orchestrator


@workflow
async def nap(n: int) -> str:
    await note(f"before {n}")
    await sleep(timedelta(days=1))
    return await note(f"after {n}")


async def test_a_run_in_a_long_sleep_is_not_in_memory_and_wakes_by_replay() -> None:
    clock, recorded, store = FakeClock(), Recorded(), MemoryStore()
    async with Engine(store, [nap], clock=clock, on_commit=recorded) as engine:
        handle = await engine.start(nap(1))
        await recorded.until(lambda e: isinstance(e, WaitOpened))
        assert not orchestrator_of(engine).active
        assert await handle.status() is RunStatus.WAITING
        clock.advance(86_400)
        assert await handle.result(PATIENCE) == "after 1"
        assert not orchestrator_of(engine).active
    assert called == ["before 1", "after 1"]
    await replay(nap, handle.run_id, store)


async def test_waking_its_own_run_needs_no_claim() -> None:
    clock, recorded = FakeClock(), Recorded()
    async with Engine("memory://", [nap], clock=clock, on_commit=recorded) as engine:
        handle = await engine.start(nap(1))
        await recorded.until(lambda e: isinstance(e, WaitOpened))
        clock.advance(86_400)
        await handle.result(PATIENCE)
    assert len([e for e in recorded.events if isinstance(e, RunClaimed)]) == 1


async def test_the_coroutines_of_a_run_that_left_memory_are_gone() -> None:
    class Probe:
        pass

    alive: list[weakref.ref[Probe]] = []

    @workflow
    async def holding() -> str:
        probe = Probe()
        alive.append(weakref.ref(probe))
        await sleep(timedelta(days=1))
        return str(probe is not None)

    clock, recorded = FakeClock(), Recorded()
    async with Engine("memory://", [holding], clock=clock, on_commit=recorded) as engine:
        handle = await engine.start(holding())
        await recorded.until(lambda e: isinstance(e, WaitOpened))
        await eventually(lambda: not orchestrator_of(engine).active)
        gc.collect()
        assert alive[0]() is None
        clock.advance(86_400)
        assert await handle.result(PATIENCE) == "True"


async def test_leaving_memory_runs_no_step_of_a_finally_block() -> None:
    @workflow
    async def careful() -> str:
        try:
            await sleep(timedelta(days=1))
        finally:
            await note("cleaned up")
        return "done"

    clock, recorded, store = FakeClock(), Recorded(), MemoryStore()
    async with Engine(store, [careful], clock=clock, on_commit=recorded) as engine:
        handle = await engine.start(careful())
        await recorded.until(lambda e: isinstance(e, WaitOpened))
        await eventually(lambda: not orchestrator_of(engine).active)
        assert called == []
        assert await handle.status() is RunStatus.WAITING
        clock.advance(86_400)
        assert await handle.result(PATIENCE) == "done"
    assert called == ["cleaned up"]
    await replay(careful, handle.run_id, store)


async def test_leaving_memory_survives_bodies_that_catch_everything() -> None:
    @workflow
    async def greedy() -> str:
        async def child() -> None:
            try:
                await sleep(timedelta(days=2))
            except BaseException:
                await note("child caught")
                raise

        task = asyncio.create_task(child())
        try:
            await sleep(timedelta(days=1))
        except BaseException as error:
            return f"caught {error!r}"
        task.cancel()
        return "slept"

    clock, recorded, store = FakeClock(), Recorded(), MemoryStore()
    async with Engine(store, [greedy], clock=clock, on_commit=recorded) as engine:
        handle = await engine.start(greedy())
        await recorded.until(lambda e: isinstance(e, WaitOpened))
        await eventually(lambda: not orchestrator_of(engine).active)
        assert await handle.status() is RunStatus.WAITING
        clock.advance(86_400)
        assert await handle.result(PATIENCE) == "slept"


async def test_a_run_that_waits_for_a_retry_leaves_memory_too() -> None:
    @step(retry=Retry(attempts=2, initial=3600, max=3600, jitter=False))
    async def flaky(value: dict[str, int]) -> int:
        called.append(f"attempt {step_context().attempt} with {value}")
        if step_context().attempt == 1:
            raise ConnectionError("busy")
        return value["n"]

    @workflow
    async def patient() -> int:
        return await flaky({"n": 7})

    clock, recorded = FakeClock(), Recorded()
    async with Engine("memory://", [patient], clock=clock, on_commit=recorded) as engine:
        handle = await engine.start(patient())
        await recorded.until(lambda e: isinstance(e, AttemptFailed))
        await eventually(lambda: not orchestrator_of(engine).active)
        clock.advance(3600)
        assert await handle.result(PATIENCE) == 7
    assert called == ["attempt 1 with {'n': 7}", "attempt 2 with {'n': 7}"]


async def test_a_run_with_a_step_under_way_stays_in_memory_while_it_also_sleeps() -> None:
    gate = asyncio.Event()

    @step
    async def hold() -> str:
        await gate.wait()
        return "held"

    @workflow
    async def both() -> str:
        value, _ = await asyncio.gather(hold(), sleep(timedelta(days=1)))
        return value

    clock, recorded = FakeClock(), Recorded()
    async with Engine("memory://", [both], clock=clock, on_commit=recorded) as engine:
        handle = await engine.start(both())
        await recorded.until_started("hold:0")
        assert handle.run_id in orchestrator_of(engine).active
        gate.set()
        await recorded.until_succeeded("hold:0")
        await eventually(lambda: not orchestrator_of(engine).active)
        clock.advance(86_400)
        assert await handle.result(PATIENCE) == "held"


@pytest.mark.parametrize("hundreds", some([4, 20], 1))
async def test_hundreds_of_sleeping_runs_hold_no_memory_and_all_wake(hundreds: int) -> None:
    clock, store = FakeClock(), MemoryStore()
    async with Engine(store, [nap], clock=clock) as engine:
        active = orchestrator_of(engine).active
        handles = []
        for batch in range(hundreds):
            handles += await asyncio.gather(*(engine.start(nap(100 * batch + n)) for n in range(100)))
            await eventually(lambda: not active)
        assert len({h.run_id for h in handles}) == 100 * hundreds
        statuses = {store.journal.rows[h.run_id].status for h in handles}
        assert statuses == {RunStatus.WAITING}
        clock.advance(86_400)
        async with asyncio.timeout(PATIENCE):
            results = await asyncio.gather(*(h.result() for h in handles))
    assert results == [f"after {n}" for n in range(100 * hundreds)]
    assert len(called) == 200 * hundreds


async def test_runs_wake_in_the_order_they_are_due() -> None:
    @workflow
    async def for_hours(hours: int) -> int:
        await sleep(timedelta(hours=hours))
        await note(str(hours))
        return hours

    clock = FakeClock()
    async with Engine("memory://", [for_hours], clock=clock) as engine:
        handles: dict[int, Any] = {n: await engine.start(for_hours(n)) for n in (3, 1, 2)}
        for n in (1, 2, 3):
            clock.advance(3600)
            assert await handles[n].result(PATIENCE) == n
    assert called == ["1", "2", "3"]


async def test_a_delayed_run_begins_when_its_time_has_come() -> None:
    clock, recorded = FakeClock(), Recorded()
    async with Engine("memory://", [nap], clock=clock, recovery=AT_ONCE, on_commit=recorded) as engine:
        handle = await engine.start(nap(1), delay=timedelta(hours=1))
        assert await handle.status() is RunStatus.QUEUED
        assert not orchestrator_of(engine).active
        assert called == []
        clock.advance(3600)
        await recorded.until(lambda e: isinstance(e, WaitOpened))
        assert called == ["before 1"]
        clock.advance(86_400)
        assert await handle.result(PATIENCE) == "after 1"


async def test_a_run_that_sleeps_past_its_deadline_fails_at_the_deadline() -> None:
    clock, recorded = FakeClock(), Recorded()
    async with Engine("memory://", [nap], clock=clock, on_commit=recorded) as engine:
        handle = await engine.start(nap(1), deadline=timedelta(hours=1))
        await recorded.until(lambda e: isinstance(e, WaitOpened))
        await eventually(lambda: not orchestrator_of(engine).active)
        clock.advance(3600)
        with pytest.raises(DeadlineExceeded):
            await handle.result(PATIENCE)
    assert called == ["before 1"]


SWALLOWING = """
import asyncio
from perdure import Engine, sleep, workflow

@workflow
async def stubborn() -> None:
    while True:
        try:
            await sleep(86400)
        except BaseException:
            pass

@workflow
async def other() -> str:
    return "goes on"

async def main() -> None:
    async with Engine("memory://", [stubborn, other]) as engine:
        await engine.start(stubborn())
        result = await engine.run(other())
        print(result.output, flush=True)

asyncio.run(main())
"""


def test_a_body_that_swallows_everything_does_not_stop_the_process() -> None:
    # In a process of its own: a loop that never ends could not be stopped from within.
    done = subprocess.run(
        [sys.executable, "-c", SWALLOWING], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.stdout == "goes on\n"
    assert done.returncode == 0


async def test_a_paused_run_is_not_in_memory_and_goes_on_when_it_is_resumed() -> None:
    gates = Gates()

    @step
    async def pass_gate(name: str) -> str:
        called.append(name)
        await gates.wait(name)
        return name

    @workflow
    async def passes() -> list[str]:
        return [await pass_gate("one"), await pass_gate("two"), await wait_signal("go", type=str)]

    recorded = Recorded()
    async with Engine("memory://", [passes], on_commit=recorded) as engine:
        active = orchestrator_of(engine).active
        gates.open("two")
        run = await engine.start(passes())
        await engine.pause(run.id)
        gates.open("one")
        # The step that was under way has its outcome; the next one has not begun, and nobody holds it in memory.
        await eventually(lambda: not active)
        assert await run.status() is RunStatus.PAUSED
        assert called == ["one"]
        await engine.signal(run.id, "go", "early")
        await eventually(lambda: not active)
        await engine.resume(run.id)
        assert await run.result(PATIENCE) == ["one", "two", "early"]
        await replay(passes, run.run_id, engine.store)
    assert called == ["one", "two"]


async def test_a_paused_run_that_holds_a_lock_stays_to_renew_it() -> None:
    @workflow
    async def holds() -> str:
        async with lock("key", ttl=60):
            return await wait_signal("go", type=str)

    recorded = Recorded()
    async with Engine("memory://", [holds], on_commit=recorded) as engine:
        run = await engine.start(holds())
        await recorded.until(lambda e: isinstance(e, WaitOpened) and e.kind == "signal")
        await engine.pause(run.id)
        for _ in range(20):
            await asyncio.sleep(0)
        assert run.run_id in orchestrator_of(engine).active
        await engine.signal(run.id, "go", "it")
        await engine.resume(run.id)
        assert await run.result(PATIENCE) == "it"
