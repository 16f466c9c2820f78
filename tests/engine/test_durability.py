"""When what happened reaches the store, counted in appends; and that lazy modes lose nothing but time to a crash."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import (
    Durability,
    Engine,
    Retry,
    RunStatus,
    Workflow,
    checkpoint,
    every,
    sleep,
    step,
    step_context,
    workflow,
)
from perdure.kernel.events import StepSucceeded
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, Gates, Recorded, eventually, left_by_a_crash, only, replay

STEPS = 9
LAZY: list[Any] = ["async", "exit", "manual", every(3), every(1000)]


@step
async def one(n: int) -> int:
    return n


@workflow
async def sequence(n: int) -> int:
    return sum([await one(i) for i in range(n)])


@workflow
async def with_checkpoints(n: int) -> int:
    total = 0
    for i in range(n):
        total += await one(i)
        if i in (2, 5):
            await checkpoint()
    return total


async def appends(flow: Workflow[[int], int], mode: Any, **options: Any) -> int:
    """How many appends a run of nine steps takes."""
    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [flow], durability=mode, on_commit=recorded) as engine:
        handle = await engine.start(flow(STEPS), **options)
        assert await handle.result(PATIENCE) == sum(range(STEPS))
    # The journal is whole, whatever the number of appends.
    await replay(flow, handle.run_id, store)
    assert len([e for e in recorded.events if isinstance(e, StepSucceeded)]) == STEPS
    return len(recorded.appends)


@pytest.mark.parametrize("mode", ["sync", "relaxed"])
async def test_sync_takes_one_append_per_step_that_holds_its_outcome_and_the_next_intent(mode: str) -> None:
    assert await appends(sequence, mode) == STEPS + 1


async def test_exit_takes_an_append_at_the_start_and_one_at_the_end() -> None:
    assert await appends(sequence, "exit") == 2


async def test_manual_takes_an_append_for_each_checkpoint_too() -> None:
    assert await appends(sequence, "manual") == 2
    assert await appends(with_checkpoints, "manual") == 4


async def test_every_takes_an_append_for_every_nth_outcome() -> None:
    assert await appends(sequence, every(3)) in (4, 5)
    assert await appends(sequence, "every(3)") in (4, 5)
    assert await appends(sequence, every(1000)) == 2


async def test_async_takes_few_appends_when_steps_are_quicker_than_its_lag() -> None:
    assert await appends(sequence, Durability("async", lag=60)) == 2


async def test_a_run_may_have_another_mode_than_its_engine() -> None:
    assert await appends(sequence, "sync", durability="exit") == 2
    assert await appends(sequence, "exit", durability="sync") == STEPS + 1
    assert await appends(sequence, "manual", durability=every(3)) in (4, 5)


@pytest.mark.parametrize("mode", ["fast", "every(0)", "every", "", "every(x)"])
async def test_a_mode_that_does_not_exist_is_refused(mode: str) -> None:
    with pytest.raises(ValueError, match="every"):
        _ = Engine("memory://", [sequence], durability=mode)
    async with Engine("memory://", [sequence]) as engine:
        with pytest.raises(ValueError, match="every"):
            _ = await engine.start(sequence(1), durability=mode, id="it")
        assert await engine.get("it") is None


# --- when steps start ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sync", "relaxed"])
async def test_a_step_starts_only_after_its_intent_and_all_before_it_are_in_the_store(mode: str) -> None:
    store = MemoryStore()
    seen: list[tuple[int, int]] = []

    @step
    async def look(n: int) -> None:
        batches = await store.journal.read(step_context().run_id)
        events = [type(e).__name__ for b in batches for e in b.events]
        seen.append((events.count("StepStarted"), events.count("StepSucceeded")))

    @workflow
    async def flow() -> None:
        for n in range(4):
            await look(n)

    async with Engine(store, [flow], durability=mode) as engine:
        await engine.run(flow())
    assert seen == [(1, 0), (2, 1), (3, 2), (4, 3)]


@pytest.mark.parametrize("mode", LAZY)
async def test_a_step_after_a_checkpoint_starts_when_everything_before_is_in_the_store(mode: Any) -> None:
    store = MemoryStore()

    @step
    async def look() -> list[str]:
        batches = await store.journal.read(step_context().run_id)
        return [e.op for b in batches for e in b.events if isinstance(e, StepSucceeded)]

    @workflow
    async def flow() -> list[str]:
        for i in range(4):
            await one(i)
        await checkpoint()
        return await look()

    async with Engine(store, [flow], durability=mode) as engine:
        result = await engine.run(flow())
    assert result.output == ["one:0", "one:1", "one:2", "one:3"]


@pytest.mark.parametrize("mode", ["sync", *LAZY])
async def test_a_run_is_in_the_store_when_start_returns(mode: Any) -> None:
    store = MemoryStore()
    async with Engine(store, [sequence], durability=mode) as engine:
        handle = await engine.start(sequence(3), id="it")
        row = store.journal.rows[handle.run_id]
        assert row.id == "it"
        await handle.result(PATIENCE)


@pytest.mark.parametrize("mode", ["sync", *LAZY])
async def test_a_result_is_in_the_store_when_its_caller_has_it(mode: Any) -> None:
    store = MemoryStore()
    async with Engine(store, [sequence], durability=mode) as engine:
        handle = await engine.start(sequence(3))
        await handle.result(PATIENCE)
        assert store.journal.rows[handle.run_id].status is RunStatus.COMPLETED


@pytest.mark.parametrize("mode", LAZY)
async def test_everything_is_in_the_store_while_a_run_waits(mode: Any) -> None:
    @workflow
    async def flow() -> None:
        for i in range(5):
            await one(i)
        await sleep(3600)

    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [flow], durability=mode, on_commit=recorded) as engine:
        handle = await engine.start(flow())
        await recorded.until(lambda e: type(e).__name__ == "WaitOpened")
        assert store.journal.rows[handle.run_id].status is RunStatus.WAITING
        await eventually(lambda: len([e for e in recorded.events if isinstance(e, StepSucceeded)]) == 5)


# --- lazy modes behave like the others -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", LAZY)
async def test_a_timer_fires_while_a_step_is_under_way(mode: Any) -> None:
    @step
    async def never() -> None:
        await asyncio.Event().wait()

    @workflow
    async def flow() -> str:
        await one(1)
        try:
            async with asyncio.timeout(0.01):
                await never()
        except TimeoutError:
            return "timed out"
        return "in time"

    async with Engine("memory://", [flow], durability=mode, recovery=AT_ONCE) as engine:
        assert await (await engine.start(flow())).result(PATIENCE) == "timed out"


@pytest.mark.parametrize("mode", LAZY)
async def test_a_retry_comes_while_another_step_is_under_way(mode: Any) -> None:
    gates = Gates()

    @step(retry=Retry(attempts=2, initial=0.01, jitter=False))
    async def flaky() -> str:
        if step_context().attempt == 1:
            raise ConnectionError("busy")
        gates.open("retried")
        return "flaky"

    @step
    async def hold() -> str:
        await gates.wait("retried")
        return "hold"

    @workflow
    async def flow() -> list[str]:
        await one(1)
        return list(await asyncio.gather(flaky(), hold()))

    async with Engine("memory://", [flow], durability=mode, recovery=AT_ONCE) as engine:
        assert await (await engine.start(flow())).result(PATIENCE) == ["flaky", "hold"]


@pytest.mark.parametrize("mode", LAZY)
async def test_outcomes_reach_the_store_when_the_engine_is_left(mode: Any) -> None:
    gates = Gates()

    @step
    async def hold() -> None:
        gates.open("holding")
        await gates.wait("hold")

    @workflow
    async def flow() -> int:
        total = sum([await one(i) for i in range(5)])
        await hold()
        return total

    calls = 0
    store = MemoryStore()
    async with Engine(store, [flow], durability=mode, recovery=AT_ONCE) as engine:
        handle = await engine.start(flow(), id="it")
        await gates.wait("holding")
    batches = await store.journal.read(handle.run_id)
    calls = len([e for b in batches for e in b.events if isinstance(e, StepSucceeded)])
    assert calls == 5
    gates.open("hold")
    async with Engine(store, [flow], recovery=AT_ONCE) as engine:
        assert await (await engine.start(flow(), id="it")).result(PATIENCE) == 10


@pytest.mark.parametrize("mode", LAZY)
async def test_a_crash_loses_a_suffix_and_never_a_middle(mode: Any) -> None:
    gates = Gates()
    called: list[int] = []

    @step
    async def note(n: int) -> int:
        called.append(n)
        return n

    @step
    async def hold() -> None:
        gates.open("holding")
        await gates.wait("hold")

    @workflow
    async def flow() -> list[int]:
        values = [await note(n) for n in range(7)]
        await hold()
        return values

    store = MemoryStore()
    async with Engine(store, [flow], durability=mode, recovery=AT_ONCE) as engine:
        _ = await engine.start(flow(), id="it")
        await gates.wait("holding")
        found = left_by_a_crash(store)
    gates.open("hold")
    kept = len(
        [e for b in next(iter(found.journal.batches.values())) for e in _events(b) if isinstance(e, StepSucceeded)]
    )
    async with Engine(found, [flow], recovery=AT_ONCE) as engine:
        assert await (await engine.start(flow(), id="it")).result(PATIENCE) == list(range(7))
    # What was kept was not called again, and what was not kept was called again in its order.
    assert called == [*range(7), *range(kept, 7)]


def _events(encoded: tuple[int, float, bytes]) -> list[Any]:
    from perdure.kernel.events import decode_events

    return list(decode_events(encoded[2]))


async def test_async_writes_within_its_lag_without_waiting_for_the_run() -> None:
    gates = Gates()

    @step
    async def hold() -> None:
        await gates.wait("hold")

    @workflow
    async def flow() -> None:
        await one(1)
        await hold()

    recorded = Recorded()
    mode = Durability("async", lag=0.01)
    async with Engine("memory://", [flow], durability=mode, on_commit=recorded) as engine:
        handle = await engine.start(flow())
        await recorded.until_succeeded("one:0")
        assert await handle.status() is RunStatus.RUNNING
        gates.open("hold")
        await handle.result(PATIENCE)


async def test_async_keeps_its_lag_after_a_crash() -> None:
    gates = Gates()

    @step
    async def hold() -> None:
        await gates.wait("hold")

    flow = only(hold)

    store = MemoryStore()
    async with Engine(store, [flow], durability=Durability("async", lag=42.5), recovery=AT_ONCE) as engine:
        handle = await engine.start(flow(), id="it")
        found = left_by_a_crash(store)
    async with Engine(found, [flow], recovery=AT_ONCE) as engine:
        orchestrator = engine._orchestrator
        assert orchestrator is not None
        await eventually(lambda: handle.run_id in orchestrator.active)
        assert orchestrator.active[handle.run_id].durability == Durability("async", lag=42.5)
        gates.open("hold")
        await (await engine.start(flow(), id="it")).result(PATIENCE)
