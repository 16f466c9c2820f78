"""A run that takes inputs again and again, and one that is made durable and snapshotted from outside."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Accepted,
    Duplicate,
    Engine,
    Finished,
    NoSuchRun,
    NotFound,
    PerdureError,
    Recovery,
    RunStatus,
    SignalRejected,
    UsageError,
    blocking,
    child,
    connect,
    continue_as,
    inputs,
    set_state,
    step,
    wait_signal,
    workflow,
)
from perdure.kernel.events import SnapshotTaken
from perdure.ports.store import Store
from tests.engine.harness import PATIENCE, Gates
from tests.services.plugin import on_two_stores


@dataclass
class Order:
    id: str
    cents: int


@step
async def book(order: Order) -> int:
    return order.cents


@workflow
async def account(balance: int = 0, most: int = 100) -> int:
    fed = inputs(Order)
    async for order in fed:
        balance += await book(order)
        set_state("balance", balance)
        if order.id == "last":
            return balance
        if fed.count == most:
            continue_as(balance, most)
    raise AssertionError("unreachable")


# --- inputs ---------------------------------------------------------------------------------------------------------


@on_two_stores
async def test_a_run_takes_its_inputs_in_order_and_shows_what_it_has(any_store: Store) -> None:
    async with Engine(any_store, [account]) as engine:
        run = await engine.start(account(), id="a")
        for cents in (1, 2, 3):
            assert await engine.feed("a", Order("o", cents)) == Accepted()
        async with asyncio.timeout(PATIENCE):
            while (await engine.get("a")).state.get("balance") != 6:  # type: ignore[union-attr]
                await asyncio.sleep(0.005)
        assert await run.feed(Order("last", 4)) == Accepted()
        assert await run.result(PATIENCE) == 10
        assert await engine.feed("a", Order("late", 1)) == Finished(RunStatus.COMPLETED)
        assert await engine.feed("missing", Order("o", 1)) == NotFound()


async def test_an_input_counts_once_and_must_be_of_the_type_that_is_waited_for() -> None:
    async with Engine("memory://", [account]) as engine:
        run = await engine.start(account(), id="a")
        assert await engine.feed("a", Order("o", 1), input_id="1") == Accepted()
        assert await engine.feed("a", Order("o", 1), input_id="1") == Duplicate()
        async with asyncio.timeout(PATIENCE):
            while not (view := await engine.get("a")) or not view.waits or view.state.get("balance") != 1:
                await asyncio.sleep(0)
        with pytest.raises(SignalRejected, match=r"or inputs\(\.\.\.\) asks for"):
            await engine.feed("a", {"cents": "many"})
        await engine.feed("a", Order("last", 1))
        assert await run.result(PATIENCE) == 2


async def test_inputs_go_along_when_the_run_goes_on_in_a_new_journal(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url, [account]) as engine, connect(url) as client:
        run = await engine.start(account(0, 2), id="a")
        for n in range(9):
            await client.feed("a", Order("last" if n == 8 else "o", 1), input_id=str(n))
        assert await run.result(PATIENCE) == 9


async def test_a_run_that_gets_no_input_for_a_while_ends_its_loop() -> None:
    @workflow
    async def collects() -> list[Any]:
        return [item async for item in inputs(idle=0.05, name="item")]

    async with Engine("memory://", [collects]) as engine:
        run = await engine.start(collects(), id="a")
        await engine.feed("a", 1, name="item")
        await run.feed("two", name="item")
        assert await run.result(PATIENCE) == [1, "two"]


def test_inputs_outside_of_a_workflow_say_where_they_work() -> None:
    with pytest.raises(PerdureError, match=r"inputs\(\) works only inside a workflow"):
        inputs()


# --- checkpoints ----------------------------------------------------------------------------------------------------


async def test_a_run_in_a_lazy_mode_is_made_durable_from_outside(tmp_path: Path) -> None:
    gates, url = Gates(), f"sqlite:///{tmp_path}/runs.db"

    @step
    async def quick(n: int) -> int:
        return n

    @step
    async def gated() -> str:
        await gates.wait("go")
        return "done"

    @workflow
    async def lazy() -> str:
        for n in range(5):
            await quick(n)
        return await gated()

    async with Engine(url, [lazy], name="a") as engine, connect(url) as client:
        run = await engine.start(lazy(), id="r", durability="manual")
        driver = engine._orchestrator.active[run.run_id]  # type: ignore[union-attr]
        async with asyncio.timeout(PATIENCE):
            while "gated:0" not in driver.attempts.running:
                await asyncio.sleep(0)
        assert len(await client.steps("r")) < 6
        with pytest.raises(UsageError, match=r"under way in another process \('a' owns it\)"):
            await client.checkpoint("r")
        written = await engine.checkpoint("r")
        assert [view.name for view in await client.steps("r")] == ["quick"] * 5 + ["gated"]
        assert written == len(await client.journal("r"))
        assert await client.get_checkpoint("r") is not None
        gates.open("go")
        assert await run.result(PATIENCE) == "done"


@workflow
async def waits() -> str:
    await book(Order("o", 1))
    return await wait_signal("go", type=str)


@workflow
async def parent() -> str:
    return await child(waits(), id="inner")


async def test_a_snapshot_can_be_asked_for_and_the_run_goes_on_from_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url, [waits], name="a") as engine:
        _ = await engine.start(waits(), id="r")
        assert await engine.get_checkpoint("r") is None
        written = await engine.checkpoint("r")
        taken = await engine.get_checkpoint("r")
        assert taken is not None
        assert taken < written
        assert any(isinstance(entry.event, SnapshotTaken) for entry in await engine.journal("r"))
    async with Engine(url, [waits], name="b") as engine:
        await engine.signal("r", "go", "went")
        assert await engine.handle("r").result(PATIENCE) == "went"
        assert await engine.checkpoint("r") == len(await engine.journal("r"))


async def test_no_snapshot_is_taken_where_there_are_to_be_none() -> None:
    async with Engine("memory://", [waits], recovery=Recovery(snapshot=0)) as engine:
        _ = await engine.start(waits(), id="r")
        assert await engine.checkpoint("r") > 0
        assert await engine.get_checkpoint("r") is None
        for asked in (engine.checkpoint("missing"), engine.get_checkpoint("missing")):
            with pytest.raises(NoSuchRun):
                await asked


async def test_a_child_is_made_durable_with_its_root_and_its_entries_name_both() -> None:
    async with Engine("memory://", [parent, waits]) as engine:
        run = await engine.start(parent(), id="r")
        async with asyncio.timeout(PATIENCE):
            while await engine.get("inner") is None:
                await asyncio.sleep(0)
        assert await engine.checkpoint("inner") <= len(await engine.journal("r"))
        of_child, of_root = await engine.journal("inner"), await engine.journal("r")
        assert {(entry.run_id, entry.root_run_id) for entry in of_child} == {(f"{run.run_id}/waits:0", run.run_id)}
        assert {(entry.run_id, entry.root_run_id) for entry in of_root} == {(run.run_id, run.run_id)}


def test_blocking_code_feeds_and_checkpoints_as_well(tmp_path: Path) -> None:
    with blocking.Engine(f"sqlite:///{tmp_path}/runs.db", [account]) as engine:
        run = engine.start(account(), id="a")
        assert run.feed(Order("o", 1)) == engine.feed("a", Order("o", 2)) == Accepted()
        assert engine.checkpoint("a") > 0
        assert engine.get_checkpoint("a") is not None
        engine.feed("a", Order("last", 3))
        assert run.result() == 6
