"""Runs without an end: one incarnation after the other under one id, with nothing lost between them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import (
    Accepted,
    Duplicate,
    Engine,
    RunStatus,
    UsageError,
    connect,
    continue_as,
    step,
    wait_signal,
    workflow,
)
from perdure.kernel.events import RunFinished, RunStarted
from perdure.testing.simulation import STORMY, Crash, Simulation

called: list[int] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    called.clear()


@step
async def note(n: int) -> int:
    called.append(n)
    return n


@workflow
async def count(n: int, until: int) -> int:
    await note(n)
    if n < until:
        continue_as(n + 1, until)
    return n


@workflow
async def gather_up(taken: list[Any], wanted: int) -> list[Any]:
    taken.append(await wait_signal("item"))
    if len(taken) < wanted:
        continue_as(taken, wanted)
    return taken


async def test_a_run_goes_on_as_its_next_incarnation() -> None:
    async with Engine("memory://", [count]) as engine:
        run = await engine.start(count(0, until=3), id="it", tags={"team": "a"})
        assert await run.result(10) == 3
        assert called == [0, 1, 2, 3]
        view = await engine.get("it")
        assert view is not None
        assert (view.status, view.output, view.tags) == (RunStatus.COMPLETED, 3, {"team": "a"})
        assert view.input == {"n": 3, "until": 3}
        journal = [entry.event for entry in await engine.journal("it")]
        assert isinstance(journal[0], RunStarted)
        assert journal[0].incarnation == 4
        first = [entry.event for entry in await engine.journal(run.run_id)]
        assert isinstance(first[-1], RunFinished)
        assert first[-1].continued_as
        # Whoever asks under the id again gets the run that there is.
        assert await (await engine.start(count(0, until=3), id="it")).result(10) == 3


async def test_signals_that_nobody_took_go_along() -> None:
    async with Engine("memory://", [gather_up]) as engine, connect(engine.store) as other:
        run = await engine.start(gather_up([], 6), id="it")
        for n in range(3):
            assert await engine.signal("it", "item", n, signal_id=f"s{n}") == Accepted()
            assert await other.signal("it", "item", 10 + n) == Accepted()
        assert await engine.signal("it", "item", 1, signal_id="s1") == Duplicate()
        assert await run.result(10) == [0, 10, 1, 11, 2, 12]


async def test_a_signal_that_was_taken_before_is_still_known_as_a_duplicate() -> None:
    async with Engine("memory://", [gather_up]) as engine:
        run = await engine.start(gather_up([], 2), id="it")
        assert await engine.signal("it", "item", "a", signal_id="s") == Accepted()
        while (view := await engine.get("it")) is None or view.run_id == run.run_id or not view.waits:
            await asyncio.sleep(0)
        assert await engine.signal("it", "item", "again", signal_id="s") == Duplicate()
        assert await engine.signal("it", "item", "b", signal_id="t") == Accepted()
        assert await run.result(10) == ["a", "b"]


async def test_cancelling_reaches_the_incarnation_that_there_is() -> None:
    async with Engine("memory://", [gather_up]) as engine:
        run = await engine.start(gather_up([], 3), id="it")
        await engine.signal("it", "item", "a")
        await engine.cancel("it", "enough")
        result = await run.outcome(10)
        assert result.status is RunStatus.CANCELLED


async def test_an_awaited_child_cannot_continue_as_another() -> None:
    @workflow
    async def outer() -> int:
        return await count(0, until=3)

    async with Engine("memory://", [outer, count]) as engine:
        with pytest.raises(UsageError, match="detached"):
            await (await engine.start(outer())).result(10)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_between_incarnations(seed: int) -> None:
    report = Simulation(seed, faults=STORMY).run(
        count(0, until=5), crashes=[Crash(seed % 12), Crash(seed % 12 + 5, "after")]
    )
    assert report.results["run-0"].output == 5
