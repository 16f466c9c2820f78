"""Changed code: a run that no longer fits is parked with an explanation, executes nothing, and goes on when it fits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from perdure import Engine, RunParked, RunStatus, Workflow, call, connect, now, sleep, step, workflow
from perdure.kernel.events import RunParked as RunParkedEvent
from perdure.stores.memory.store import MemoryBlobs, MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, FakeClock, Recorded, eventually, left_by_a_crash, replay
from tests.orchestrator.steps import called, charge, ship


@step
async def refund(n: int) -> int:
    called.append(f"refund {n}")
    return n


@workflow(name="order")
async def original() -> int:
    a = await charge(1)
    await sleep(60)
    return a + await ship(2)


# --- changes that do not fit -----------------------------------------------------------------------------------------


@workflow(name="order")
async def another_step() -> int:
    a = await refund(1)
    await sleep(60)
    return a + await ship(2)


@workflow(name="order")
async def other_inputs() -> int:
    a = await charge(7)
    await sleep(60)
    return a + await ship(2)


@workflow(name="order")
async def another_order() -> int:
    await sleep(60)
    return await charge(1) + await ship(2)


@workflow(name="order")
async def no_sleep() -> int:
    return await charge(1) + await ship(2)


@workflow(name="order")
async def one_step_more() -> int:
    a = await charge(1)
    await refund(1)
    await sleep(60)
    return a + await ship(2)


@workflow(name="order")
async def a_value_more() -> int:
    a = await charge(1)
    now()
    await sleep(60)
    return a + await ship(2)


@workflow(name="order")
async def ends_at_once() -> int:
    return 0


@workflow(name="order")
async def raises_at_once() -> int:
    raise RuntimeError("a bug in the new code")


@workflow(name="order")
async def needs_an_argument(customer: str) -> int:
    return await charge(len(customer))


@step(name="charge")
async def charge_as_text(n: int) -> list[str]:
    called.append("never")
    return [str(n)]


@workflow(name="order")
async def another_type() -> int:
    a = await charge_as_text(1)
    await sleep(60)
    return len(a) + await ship(2)


CHANGES = [
    another_step,
    other_inputs,
    another_order,
    no_sleep,
    one_step_more,
    ends_at_once,
    raises_at_once,
    needs_an_argument,
    another_type,
]
# How the owner that began the run went away: by a crash, or in good order.
Leave = Callable[[MemoryStore], MemoryStore]


async def begun(clock: FakeClock, crash: bool) -> tuple[MemoryStore, str]:
    """A run that has charged, and sleeps, in a store whose engine is gone."""
    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [original], recovery=AT_ONCE, clock=clock, on_commit=recorded) as engine:
        handle = await engine.start(original(), id="it")
        await recorded.until(lambda e: type(e).__name__ == "WaitOpened")
        found = left_by_a_crash(store)
    return (found if crash else store), handle.run_id


async def parked(store: MemoryStore, run_id: str) -> None:
    await eventually(lambda: store.journal.rows[run_id].status is RunStatus.PARKED)


@pytest.mark.parametrize("crash", [True, False])
@pytest.mark.parametrize("changed", CHANGES, ids=lambda flow: flow.fn.__name__)
async def test_a_run_that_no_longer_fits_is_parked_and_executes_nothing(
    changed: Workflow[[], int], crash: bool
) -> None:
    clock = FakeClock()
    store, run_id = await begun(clock, crash)
    clock.advance(120)
    called.clear()
    async with Engine(store, [changed], recovery=AT_ONCE, clock=clock) as engine:
        await parked(store, run_id)
        view = await engine.get("it")
    assert view is not None
    assert view.status is RunStatus.PARKED
    assert view.reason
    assert called == []
    # Restored code goes on where it stood.
    async with Engine(store, [original], recovery=AT_ONCE, clock=clock) as engine:
        handle = await engine.start(original(), id="it")
        await eventually(lambda: store.journal.rows[run_id].status is not RunStatus.PARKED)
        assert await handle.result(PATIENCE) == 3
    assert called == ["ship 2"]
    await replay(original, run_id, store)


async def test_the_reason_names_the_source_lines_of_both() -> None:
    clock = FakeClock()
    store, run_id = await begun(clock, True)
    clock.advance(120)
    async with Engine(store, [another_step], recovery=AT_ONCE, clock=clock) as engine:
        await parked(store, run_id)
        handle = await engine.start(another_step(), id="it")
        with pytest.raises(RunParked) as caught:
            await handle.result(PATIENCE)
    reason = caught.value.reason
    there = original.fn.__code__.co_firstlineno + 2
    here = another_step.fn.__code__.co_firstlineno + 2
    assert f"tests/orchestrator/test_divergence.py:{there}" in reason
    assert f"tests/orchestrator/test_divergence.py:{here}" in reason
    assert "charge:0" in reason
    assert "refund:0" in reason
    assert caught.value.id == "it"


async def test_the_reason_for_other_inputs_says_so() -> None:
    clock = FakeClock()
    store, run_id = await begun(clock, True)
    clock.advance(120)
    async with Engine(store, [other_inputs], recovery=AT_ONCE, clock=clock) as engine:
        await parked(store, run_id)
        view = await engine.get("it")
    assert view is not None
    assert view.reason.startswith("The inputs of the step charge have changed.")


async def test_a_parked_run_that_still_does_not_fit_stays_parked_without_another_event() -> None:
    clock = FakeClock()
    store, run_id = await begun(clock, True)
    clock.advance(120)
    for _ in range(3):
        async with Engine(store, [another_step], recovery=AT_ONCE, clock=clock):
            await parked(store, run_id)
    events = [e for b in await store.journal.read(run_id) for e in b.events]
    assert len([e for e in events if isinstance(e, RunParkedEvent)]) == 1


async def test_a_run_result_for_a_parked_run_raises_nothing() -> None:
    clock = FakeClock()
    store, run_id = await begun(clock, True)
    clock.advance(120)
    async with Engine(store, [another_step], recovery=AT_ONCE, clock=clock) as engine:
        await parked(store, run_id)
        result = await engine.run(another_step(), id="it")
    assert result.status is RunStatus.PARKED
    assert isinstance(result.error, RunParked)


async def test_other_runs_are_not_affected() -> None:
    @workflow(name="other")
    async def other(n: int) -> int:
        await sleep(60)
        return await charge(n)

    clock, recorded, store = FakeClock(), Recorded(), MemoryStore()
    async with Engine(store, [original, other], recovery=AT_ONCE, clock=clock, on_commit=recorded) as engine:
        bad = await engine.start(original(), id="it")
        good = [await engine.start(other(n), id=f"other {n}") for n in range(5)]
        await eventually(lambda: len([e for e in recorded.events if type(e).__name__ == "WaitOpened"]) == 6)
        found = left_by_a_crash(store)
    clock.advance(120)
    recorded = Recorded()
    async with Engine(found, [another_step, other], recovery=AT_ONCE, clock=clock, on_commit=recorded) as engine:
        handles = [await engine.start(other(n), id=f"other {n}") for n in range(5)]
        assert [h.run_id for h in handles] == [h.run_id for h in good]
        assert [await h.result(PATIENCE) for h in handles] == [0, 1, 2, 3, 4]
        await parked(found, bad.run_id)
        # And a new run of the changed program works.
        fresh = await engine.start(another_step())
        await recorded.until(lambda e: type(e).__name__ == "WaitOpened")
        clock.advance(120)
        assert await fresh.result(PATIENCE) == 3


# --- changes that fit ------------------------------------------------------------------------------------------------


@workflow(name="order")
async def changed_after_where_it_stood() -> int:
    a = await charge(1)
    await sleep(60)
    return a + await refund(10)


@workflow(name="order")
async def moved_and_refactored() -> int:
    async def pay() -> int:
        return await charge(1)

    a = await pay()
    for _ in range(1):
        await sleep(60)
    return a + await ship(2)


@workflow(name="order")
async def a_longer_sleep() -> int:
    a = await charge(1)
    await sleep(6000)
    return a + await ship(2)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [(changed_after_where_it_stood, 11), (moved_and_refactored, 3), (a_longer_sleep, 3), (a_value_more, 3)],
    ids=lambda x: getattr(getattr(x, "fn", None), "__name__", ""),
)
async def test_changes_that_do_not_touch_the_past_are_taken(changed: Workflow[[], int], expected: int) -> None:
    clock = FakeClock()
    store, run_id = await begun(clock, True)
    called.clear()
    clock.advance(120)
    async with Engine(store, [changed], recovery=AT_ONCE, clock=clock) as engine:
        assert await (await engine.start(changed(), id="it")).result(PATIENCE) == expected
    assert "charge 1" not in called
    await replay(changed, run_id, store)


# --- damage from outside ---------------------------------------------------------------------------------------------


async def test_an_input_that_a_program_cannot_take_ends_or_parks_that_run_and_no_other() -> None:
    """A client may send anything while no worker says what the program takes."""

    @workflow
    async def number(n: int) -> int:
        return await charge(n)

    store = MemoryStore()
    async with connect(store) as client:
        bad: list[Any] = [
            await client.start(call("number", "not a number"), id="bad 1"),
            await client.start(call("number"), id="bad 2"),
            await client.start(call("number", 1, 2, 3), id="bad 3"),
            await client.start(call("number", m=1), id="bad 4"),
        ]
    async with connect(store) as client, Engine(store, [number], recovery=AT_ONCE) as engine:
        good = [await client.start(call("number", n), id=f"good {n}") for n in range(3)]
        assert [await h.result(PATIENCE) for h in good] == [0, 1, 2]
        for handle in bad:
            result = await engine.handle(handle.id).outcome(PATIENCE)
            assert result.status in (RunStatus.FAILED, RunStatus.PARKED)


async def test_a_workflow_that_is_not_deterministic_is_parked_not_half_executed() -> None:
    turns: list[int] = []

    async def coin() -> int:
        turns.append(1)
        return await (charge(1) if len(turns) % 2 else refund(1))

    @workflow
    async def flaky() -> int:
        a = await coin()
        await sleep(60)
        return a + await ship(2)

    clock, recorded, store = FakeClock(), Recorded(), MemoryStore()
    async with Engine(store, [flaky], recovery=AT_ONCE, clock=clock, on_commit=recorded) as engine:
        handle = await engine.start(flaky())
        await recorded.until(lambda e: type(e).__name__ == "WaitOpened")
        clock.advance(120)
        result = await handle.outcome(PATIENCE)
    assert result.status is RunStatus.PARKED
    assert called == ["charge 1"]


class SlowBlobs(MemoryBlobs):
    """Takes its time, as a disk does, and keeps how many runs and events were there when each blob was stored."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__()
        self.events_at: dict[str, int] = {}
        self._recorded = recorded

    async def put(self, data: bytes) -> str:
        for _ in range(1000):
            await asyncio.sleep(0)
        blob = await super().put(data)
        self.events_at.setdefault(blob, len(self._recorded.events))
        return blob


async def test_the_code_of_a_run_is_stored_before_its_journal_names_it_so_that_a_kill_does_not_lose_it() -> None:
    clock, recorded, store = FakeClock(), Recorded(), MemoryStore()
    store.blobs = blobs = SlowBlobs(recorded)
    async with Engine(store, [original], clock=clock, on_commit=recorded) as engine:
        _ = await engine.start(original(), id="it")
        await recorded.until(lambda e: type(e).__name__ == "WaitOpened")
    assert blobs.events_at == {original.source().digest(): 0}

    store, later = left_by_a_crash(store), Recorded()
    store.blobs = blobs = SlowBlobs(later)
    clock.advance(120)
    async with Engine(store, [moved_and_refactored], recovery=AT_ONCE, clock=clock, on_commit=later) as engine:
        await (await engine.start(moved_and_refactored(), id="it")).result()
    assert blobs.events_at == {moved_and_refactored.source().digest(): 0}
