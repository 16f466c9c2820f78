"""What cannot go on is parked: it keeps its journal, accepts signals, says why, and goes on when the code fits."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import Raw

from perdure import (
    Accepted,
    Engine,
    Recovery,
    RunStatus,
    UsageError,
    Workflow,
    call,
    lock,
    sleep,
    step,
    wait_signal,
    workflow,
)
from perdure.kernel.events import Batch, RunClaimed, RunResumed, SignalReceived, decode_events
from perdure.kernel.events import RunParked as RunParkedEvent
from perdure.kernel.state import fold
from perdure.ports.appends import extend
from perdure.ports.runs import RunFilter
from perdure.stores.memory.store import MemoryStore
from perdure.testing.conformance.history import History, write_all
from tests.amounts import some
from tests.engine.harness import AT_ONCE, PATIENCE, FakeClock, Recorded, eventually, left_by_a_crash, replay
from tests.orchestrator.steps import called, charge, ship


@workflow(name="order")
async def order(n: int = 1) -> int:
    a = await charge(n)
    await sleep(60)
    return a + await ship(n)


@workflow(name="order")
async def bad_deploy(n: int = 1) -> int:
    await ship(n)
    a = await charge(n)
    await sleep(60)
    return a


@workflow
async def other(n: int) -> int:
    return await charge(n) + await ship(n)


async def begun(program: Workflow[..., Any], *args: Any, waits: int = 1) -> tuple[MemoryStore, str, FakeClock]:
    """A run that has come to its n-th wait, left by a crash."""
    store, recorded, clock = MemoryStore(), Recorded(), FakeClock()
    async with Engine(
        store, [program, *CHILDREN], name="w", recovery=AT_ONCE, clock=clock, on_commit=recorded
    ) as engine:
        handle = await engine.start(program(*args), id="it")
        await engine.signal("it", "go", {"n": 1})
        await eventually(lambda: sum(type(e).__name__ == "WaitOpened" for e in recorded.events) >= waits)
        return left_by_a_crash(store), handle.run_id, clock


async def parked(store: MemoryStore, run_id: str) -> None:
    await eventually(lambda: store.journal.rows[run_id].status is RunStatus.PARKED)


@workflow
async def locked(n: int) -> int:
    async with lock("the till"):
        paid = await charge(n)
        await wait_signal("go")
        await wait_signal("on")
        return paid + await ship(n)


async def test_a_run_parked_for_want_of_its_program_goes_on_with_its_lock_and_its_caller_sees_no_parked_run() -> None:
    store, run_id, clock = await begun(locked, 4, waits=3)
    # The same worker comes back without the program, and is alone.
    async with Engine(store, [other], name="w", recovery=AT_ONCE, clock=clock):
        await parked(store, run_id)
    async with Engine(store, [locked], recovery=AT_ONCE, clock=clock) as engine:
        handle = await engine.start(locked(4), id="it")
        waiting = asyncio.create_task(handle.result(PATIENCE))
        # Nor do others, from the moment it is claimed.
        await eventually(lambda: store.journal.rows[run_id].status is not RunStatus.PARKED)
        await engine.signal("it", "on")
        assert await waiting == 8
    assert called == ["charge 4", "ship 4"]


# --- no program -----------------------------------------------------------------------------------------------------


async def test_a_run_whose_program_nobody_has_is_parked_before_it_should_go_on() -> None:
    store, run_id, clock = await begun(order)
    async with Engine(store, [other], name="w", recovery=AT_ONCE, clock=clock) as engine:
        await parked(store, run_id)
        view = await engine.get("it")
        assert view is not None
        assert (view.parked, view.divergence) == ("no_program", None)
        assert "no program named 'order' (it has other)" in view.reason
        assert "@workflow(name='order')" in view.reason
        with pytest.raises(UsageError, match=r"run 'it' is parked, not paused.*`perdure resolve`"):
            await engine.resume("it")
        [item] = await engine.resume_many(status="parked")
        assert "is parked, not paused" in str(item.error)
        assert await engine.run(other(5), id="beside") is not None
    clock.advance(120)
    async with Engine(store, [order], recovery=AT_ONCE, clock=clock) as engine:
        assert await (await engine.start(order(), id="it")).result(PATIENCE) == 2
    await replay(order, run_id, store)


@pytest.mark.parametrize("held", [True, False], ids=["with-a-lock", "without"])
async def test_a_signal_that_arrives_as_a_parked_run_is_about_to_go_on_does_not_keep_it_parked(held: bool) -> None:
    program = locked if held else order
    store, run_id, clock = await begun(program, 4, waits=3 if held else 1)
    async with Engine(store, [other], name="w", recovery=AT_ONCE, clock=clock):
        await parked(store, run_id)
    append, came = store.journal.append, list[str]()

    def first_a_signal(appends: Any) -> Any:
        if not came and any(isinstance(e, RunResumed) for one in appends for b in one.batches for e in b.events):
            came.append("on")
            state = fold(
                run_id, [Batch(seq, at, decode_events(data)) for seq, at, data in store.journal.batches[run_id]]
            )
            append([extend(state, [SignalReceived("on", Raw(b"1"), "s1")], clock.now())])
        return append(appends)

    store.journal.append = first_a_signal  # type: ignore[method-assign]
    clock.advance(120)
    # No search finds it later.
    once = Recovery(grace=0, check_interval=3600)
    async with Engine(store, [program], recovery=once, clock=clock) as engine:
        assert await engine.handle("it").result(PATIENCE) == 8
    assert came == ["on"]


async def test_runs_of_programs_that_another_living_engine_may_have_are_left_alone() -> None:
    store, run_id, clock = await begun(order)
    clock.advance(120)
    async with Engine(store, [], name="a", recovery=AT_ONCE, clock=clock):
        async with Engine(store, [other], name="b", recovery=AT_ONCE, clock=clock):
            await asyncio.sleep(0)
        assert store.journal.rows[run_id].status is RunStatus.WAITING


async def test_an_engine_without_programs_parks_nothing() -> None:
    store, run_id, clock = await begun(order)
    clock.advance(120)
    async with Engine(store, [], recovery=AT_ONCE, clock=clock):
        await asyncio.sleep(0)
    assert store.journal.rows[run_id].status is RunStatus.WAITING


@workflow
async def inner(n: int) -> int:
    await sleep(60)
    return await charge(n)


@workflow
async def outer(n: int) -> int:
    result: int = await call("inner", n)
    return result


CHILDREN: list[Workflow[..., Any]] = [inner]


async def test_a_run_whose_childs_program_is_missing_is_parked() -> None:
    store, run_id, clock = await begun(outer, 3)
    clock.advance(120)
    async with Engine(store, [outer], recovery=AT_ONCE, clock=clock) as engine:
        await parked(store, run_id)
        view = await engine.get("it")
        assert view is not None
        assert view.parked == "no_program"
        assert "'inner'" in view.reason
    assert called == []
    async with Engine(store, [outer, inner], recovery=AT_ONCE, clock=clock) as engine:
        assert await (await engine.start(outer(3), id="it")).result(PATIENCE) == 3


# --- values that no longer decode -----------------------------------------------------------------------------------


@dataclass
class Order:
    n: int


@dataclass
class Priced:
    n: int
    price: int


@step(name="fetch")
async def fetch(n: int) -> Order:
    return Order(n)


@step(name="fetch")
async def fetch_priced(n: int) -> Priced:
    called.append("never")
    return Priced(n, 1)


@workflow(name="values")
async def reads_a_result(n: int) -> int:
    got = await fetch(n)
    await sleep(60)
    return got.n


@workflow(name="values")
async def reads_another_result(n: int) -> int:
    got = await fetch_priced(n)
    await sleep(60)
    await ship(n)
    return got.price


@workflow(name="values")
async def reads_input(order: Order) -> int:
    await sleep(60)
    return order.n


@workflow(name="values")
async def reads_other_input(order: Priced) -> int:
    await sleep(60)
    await ship(1)
    return order.price


@workflow(name="values")
async def needs_more_input(order: Order, customer: str) -> int:
    await ship(1)
    return order.n


@workflow(name="values")
async def hears(n: int) -> int:
    got = await wait_signal("go", type=Order)
    await sleep(60)
    return got.n


@workflow(name="values")
async def hears_something_else(n: int) -> int:
    got = await wait_signal("go", type=Priced)
    await sleep(60)
    await ship(1)
    return got.price


@workflow(name="values")
async def hears_twice(n: int) -> int:
    got = await wait_signal("go", type=Order)
    await wait_signal("again")
    return got.n


@workflow
async def orders(n: int) -> Order:
    return Order(n)


@workflow(name="orders")
async def priced_orders(n: int) -> Priced:
    return Priced(n, 1)


@workflow(name="values")
async def asks_a_child(n: int) -> int:
    got = await orders(n)
    await sleep(60)
    return got.n


@workflow(name="values")
async def asks_another_child(n: int) -> int:
    got = await priced_orders(n)
    await sleep(60)
    await ship(1)
    return got.price


CHILDREN += [orders]


@pytest.mark.parametrize(
    ("before", "args", "after", "waits"),
    [
        (reads_a_result, (1,), reads_another_result, 1),
        (reads_input, (Order(1),), reads_other_input, 1),
        (reads_input, (Order(1),), needs_more_input, 1),
        (hears, (1,), hears_something_else, 2),
        (asks_a_child, (1,), asks_another_child, 1),
    ],
    ids=["result", "input", "missing-argument", "signal", "child"],
)
async def test_a_value_that_no_longer_decodes_parks_the_run(
    before: Workflow[..., Any], args: tuple[Any, ...], after: Workflow[..., Any], waits: int
) -> None:
    store, run_id, clock = await begun(before, *args, waits=waits)
    clock.advance(120)
    async with Engine(store, [after, priced_orders], recovery=AT_ONCE, clock=clock) as engine:
        await parked(store, run_id)
        view = await engine.get("it")
        assert view is not None
        assert view.parked == "undecodable"
        assert "cannot be read as" in view.reason
        assert "continues by itself" in view.reason
        assert await engine.signal("it", "more") == Accepted()
    assert called == []
    async with Engine(store, [before, orders], recovery=AT_ONCE, clock=clock) as engine:
        assert await (await engine.start(before(*args), id="it")).result(PATIENCE) == 1


async def test_a_signal_that_no_longer_decodes_parks_the_run_where_nothing_else_was_recorded_after_it() -> None:
    @workflow(name="values")
    async def changed(n: int) -> int:
        got = await wait_signal("go", type=Priced)
        await ship(1)
        return got.price

    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [hears_twice], recovery=AT_ONCE, on_commit=recorded) as engine:
        handle = await engine.start(hears_twice(1), id="it")
        await engine.signal("it", "go", {"n": 1})
        await eventually(lambda: sum(type(e).__name__ == "WaitOpened" for e in recorded.events) == 2)
    async with Engine(store, [changed], recovery=AT_ONCE) as engine:
        await engine.signal("it", "again")
        await parked(store, handle.run_id)
        view = await engine.get("it")
    assert view is not None
    assert view.parked == "undecodable"
    assert called == []


async def test_a_signal_that_never_fitted_is_the_programs_business() -> None:
    gate = asyncio.Event()

    @step
    async def hold() -> None:
        await gate.wait()

    @workflow
    async def careful() -> str:
        await hold()
        try:
            await wait_signal("go", type=Priced)
        except Exception as error:
            await sleep(60)
            return type(error).__name__
        return "fine"

    store, recorded, clock = MemoryStore(), Recorded(), FakeClock()
    async with Engine(store, [careful], recovery=AT_ONCE, clock=clock, on_commit=recorded) as engine:
        _ = await engine.start(careful(), id="it")
        # Before anybody waits for it: who sends it cannot be told that it will not do.
        await engine.signal("it", "go", {"n": 1})
        gate.set()
        await eventually(lambda: sum(type(e).__name__ == "WaitOpened" for e in recorded.events) == 2)
        store = left_by_a_crash(store)
    clock.advance(120)
    async with Engine(store, [careful], recovery=AT_ONCE, clock=clock) as engine:
        assert await (await engine.start(careful(), id="it")).result(PATIENCE) == "NotDecodable"


# --- a bad deploy ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", some([120, 500], 1))
async def test_runs_parked_by_a_bad_deploy_go_on_after_the_fixed_one(
    count: int, caplog: pytest.LogCaptureFixture
) -> None:
    store, recorded, clock = MemoryStore(), Recorded(), FakeClock()
    async with Engine(store, [order], recovery=AT_ONCE, clock=clock, on_commit=recorded) as engine:
        runs = [await engine.start(order(n), id=f"order {n}") for n in range(count)]
        await eventually(lambda: sum(type(e).__name__ == "WaitOpened" for e in recorded.events) == count)
    clock.advance(120)
    called.clear()
    rows = store.journal.rows

    recorded = Recorded()
    caplog.set_level(logging.INFO, "perdure")
    async with Engine(store, [bad_deploy, other], recovery=AT_ONCE, clock=clock, on_commit=recorded) as engine:
        # Others start and end while those are being parked, and after.
        results = [(await engine.run(other(n), id=f"other {n}")).output for n in range(50)]
        await eventually(lambda: all(rows[run.run_id].status is RunStatus.PARKED for run in runs))
        results += [(await engine.run(other(n), id=f"other {n}")).output for n in range(50, 100)]
        assert results == [2 * n for n in range(100)]
        assert not any(row.status is RunStatus.PARKED for row in rows.values() if row.program == "other")
        # Nothing is tried again and again: the store stays as it is.
        await eventually(lambda: not engine._orchestrator.active)  # type: ignore[union-attr]
        before = store.version()
        for _ in range(100):
            await asyncio.sleep(0.002)
        assert store.version() == before
    assert sorted(call for call in called if call.startswith("ship")) == sorted(f"ship {n}" for n in range(100))
    said = [record for record in caplog.records if "parked" in record.getMessage()]
    assert 1 <= len(said) <= 5
    assert sum("@workflow(version=" in record.getMessage() for record in said) == 1

    called.clear()
    async with Engine(store, [order, other], recovery=AT_ONCE, clock=clock):
        await eventually(lambda: all(rows[run.run_id].status is RunStatus.COMPLETED for run in runs))
    assert sorted(called) == sorted(f"ship {n}" for n in range(count))
    for run in runs:
        events = [e for b in await store.journal.read(run.run_id) for e in b.events]
        assert sum(isinstance(e, RunParkedEvent) for e in events) == 1
        assert sum(isinstance(e, RunResumed) for e in events) == 1


async def test_a_parked_run_accepts_signals_and_finds_them_when_it_goes_on() -> None:
    @workflow(name="listening")
    async def listening() -> Any:
        await charge(1)
        return await wait_signal("go")

    @workflow(name="listening")
    async def changed() -> Any:
        await ship(1)
        return await wait_signal("go")

    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [listening], recovery=AT_ONCE, on_commit=recorded) as engine:
        handle = await engine.start(listening(), id="it")
        await recorded.until(lambda e: type(e).__name__ == "WaitOpened")
    called.clear()
    async with Engine(store, [changed], recovery=AT_ONCE) as engine:
        assert await engine.signal("it", "go", "first") == Accepted()
        await parked(store, handle.run_id)
        assert await engine.signal("it", "go", "second") == Accepted()
        view = await engine.get("it")
        assert view is not None
        assert view.status is RunStatus.PARKED
        assert view.divergence is not None
        assert (view.divergence.change, view.divergence.op) == ("renamed", "charge:0")
    assert called == []
    async with Engine(store, [listening], recovery=AT_ONCE) as engine:
        assert await (await engine.start(listening(), id="it")).result(PATIENCE) == "first"


async def test_parked_runs_are_looked_through_a_page_at_a_check() -> None:
    store, pages = MemoryStore(), Counter[int]()
    listed = store.runs.list

    async def counted(filter: RunFilter) -> Any:
        found = await listed(filter)
        pages[len(found)] += filter.status == [RunStatus.PARKED]
        return found

    async with Engine(store, [other], recovery=Recovery(max_startup=4, check_interval=3600)) as engine:
        _ = await engine.run(other(1), id="model")
        [model] = store.journal.rows.values()
        runs = [History(f"r{n:02}", program="other", version=model.version, input=model.input) for n in range(10)]
        await write_all(store, *(run.begin(RunClaimed("somebody", 1), RunParkedEvent("old code")) for run in runs))
        assert engine._service is not None
        store.runs.list = counted  # type: ignore[method-assign]
        for left in (6, 2, 0):
            _ = await engine._service.takeover.search(startup=False)
            assert sum(row.status is RunStatus.PARKED for row in store.journal.rows.values()) == left
        _ = await engine._service.takeover.search(startup=False)
        assert pages == {4: 2, 2: 1, 0: 1}


# --- paused as well ---------------------------------------------------------------------------------------------------


async def test_a_parked_run_that_is_paused_and_resumed_stays_parked() -> None:
    store, run_id, clock = await begun(order)
    clock.advance(120)
    async with Engine(store, [bad_deploy], recovery=AT_ONCE, clock=clock) as engine:
        await parked(store, run_id)
        before = await engine.get("it")
        await engine.pause("it")
        await engine.resume("it")
        view = await engine.get("it")
        assert before is not None
        assert view is not None
        assert (view.status, view.parked, view.reason) == (RunStatus.PARKED, before.parked, before.reason)
        assert view.divergence == before.divergence
        with pytest.raises(UsageError, match="is parked, not paused"):
            await engine.resume("it")
    async with Engine(store, [order], recovery=AT_ONCE, clock=clock) as engine:
        assert await (await engine.start(order(), id="it")).result(PATIENCE) == 2
    await replay(order, run_id, store)


@pytest.mark.parametrize("how", ["mended", "resolved"])
async def test_a_parked_run_that_was_paused_too_stays_paused_when_the_code_fits_again(how: str) -> None:
    store, run_id, clock = await begun(order)
    clock.advance(120)
    async with Engine(store, [bad_deploy], recovery=AT_ONCE, clock=clock) as engine:
        await parked(store, run_id)
        await engine.pause("it", "not now")
        if how == "resolved":
            await engine.resolve("it")
    async with Engine(store, [order], recovery=AT_ONCE, clock=clock) as engine:
        await eventually(lambda: store.journal.rows[run_id].status is RunStatus.PAUSED)
        assert store.journal.rows[run_id].reason == "not now"
        assert "ship 1" not in called
        await engine.resume("it")
        assert await engine.handle("it").result(PATIENCE) == 2
    await replay(order, run_id, store)
