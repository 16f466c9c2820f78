"""A program that is a table runs through the engine like any other: the kernel's contract is all it needs."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from perdure import Engine, Invocation, Retry, RunParked, RunStatus, StepStatus, call, step_context
from perdure.kernel.commands import StepSpec
from perdure.kernel.events import StepStarted
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, Gates, Recorded
from tests.kernel.table import Row, Table, step_row, timer_row, total


def asynchronous(op: str, fn: Any, *after: str, gives_up: tuple[str, ...] = (), **policy: Any) -> Row:
    """A row whose step is a coroutine function."""
    return Row(op, StepSpec(op.partition(":")[0], fn, asynchronous=True, returns=int, **policy), after, gives_up)


def invoke(table: Table) -> Invocation[dict[str, int]]:
    return call(table.name)


DIAMOND = Table(
    (
        step_row("a:0"),
        step_row("b:0", "a:0"),
        step_row("c:0", "a:0"),
        timer_row("sleep:0", 0.0, "b:0"),
        step_row("d:0", "b:0", "c:0", "sleep:0"),
    )
)


async def test_a_table_runs_to_its_end() -> None:
    async with Engine(MemoryStore(), [DIAMOND]) as engine:
        run = await engine.start(invoke(DIAMOND), id="order-1")
        assert await run.result() == {"a:0": 1, "b:0": 2, "c:0": 2, "sleep:0": 0, "d:0": 5}
        steps = await engine.steps("order-1")
        assert [(step.path, step.status) for step in steps] == [
            (op, StepStatus.SUCCEEDED) for op in ("a:0", "b:0", "c:0", "d:0")
        ]
        assert steps[0].source == "table row a:0"


async def test_many_tables_run_side_by_side() -> None:
    async with Engine(MemoryStore(), [DIAMOND]) as engine:
        runs = [await engine.start(invoke(DIAMOND)) for _ in range(20)]
        results = await asyncio.gather(*(run.result() for run in runs))
        assert [result["d:0"] for result in results] == [5] * 20


async def test_a_step_of_a_table_is_tried_again() -> None:
    tries: list[int] = []

    async def flaky() -> int:
        tries.append(step_context().attempt)
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return 7

    table = Table((asynchronous("flaky:0", flaky, retry=Retry(attempts=3, initial=0.0)),))
    async with Engine(MemoryStore(), [table]) as engine:
        assert await (await engine.start(invoke(table))).result() == {"flaky:0": 7}
    assert tries == [1, 2, 3]


async def test_a_table_fails_with_the_error_of_its_step() -> None:
    async def broken() -> int:
        raise ValueError("no such customer")

    table = Table((asynchronous("broken:0", broken), step_row("after:0", "broken:0")))
    async with Engine(MemoryStore(), [table]) as engine:
        run = await engine.start(invoke(table))
        with pytest.raises(ValueError, match="no such customer"):
            await run.result()
        assert await run.status() is RunStatus.FAILED


async def test_what_a_table_gives_up_is_stopped() -> None:
    stopped = asyncio.Event()

    async def endless() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return 0

    async def quick() -> int:
        return 1

    table = Table((asynchronous("endless:0", endless), asynchronous("quick:0", quick, gives_up=("endless:0",))))
    async with Engine(MemoryStore(), [table]) as engine:
        run = await engine.start(invoke(table), id="order-1")
        assert await run.result() == {"quick:0": 1, "endless:0": 0}
        await stopped.wait()
        assert {step.path: step.status for step in await engine.steps("order-1")} == {
            "endless:0": StepStatus.FAILED,
            "quick:0": StepStatus.SUCCEEDED,
        }


async def test_a_table_goes_on_in_another_engine() -> None:
    store, gates, recorded, calls = MemoryStore(), Gates(), Recorded(), Counter[str]()

    async def counted(*values: int) -> int:
        name = step_context().id.rpartition("/")[2]
        calls[name] += 1
        await gates.wait(name)
        return total(*values)

    table = Table(
        (asynchronous("a:0", counted), asynchronous("b:0", counted, "a:0"), asynchronous("c:0", counted, "a:0"))
    )
    for name in ("a:0", "b:0"):
        gates.open(name)
    async with Engine(store, [table], name="one", recovery=AT_ONCE, on_commit=recorded) as engine:
        _ = await engine.start(invoke(table), id="order-1")
        await recorded.until_succeeded("b:0")
        await recorded.until_started("c:0")
    gates.open("c:0")
    async with Engine(store, [table], name="two", recovery=AT_ONCE) as engine:
        run = await engine.start(invoke(table), id="order-1")
        assert await run.result() == {"a:0": 1, "b:0": 2, "c:0": 2}
        attempts = [e.event for e in await engine.journal("order-1") if isinstance(e.event, StepStarted)]
        assert Counter(event.op for event in attempts)["c:0"] == calls["c:0"] == 2
    assert calls == {"a:0": 1, "b:0": 1, "c:0": 2}


async def test_a_table_that_no_longer_fits_its_journal_is_parked_and_goes_on_when_it_fits_again() -> None:
    store, gates, recorded, ran = MemoryStore(), Gates(), Recorded(), list[str]()

    async def held() -> int:
        await gates.wait("held")
        return 1

    async def never() -> int:
        ran.append("never")
        return 0

    old = Table((asynchronous("held:0", held), step_row("last:0", "held:0")))
    new = Table((asynchronous("never:0", never), asynchronous("held:1", held)))
    async with Engine(store, [old], name="one", recovery=AT_ONCE, on_commit=recorded) as engine:
        _ = await engine.start(invoke(old), id="order-1")
        await recorded.until_started("held:0")
    gates.open("held")
    async with Engine(store, [new], name="two", recovery=AT_ONCE) as engine:
        run = await engine.start(invoke(new), id="order-1")
        with pytest.raises(RunParked, match="the code asks for the step never"):
            await run.result()
    assert ran == []
    async with Engine(store, [old], name="three", recovery=AT_ONCE) as engine:
        run = await engine.start(invoke(old), id="order-1")
        assert await run.result() == {"held:0": 1, "last:0": 2}
