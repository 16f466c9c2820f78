"""A first test of a workflow: children, long sleeps, signals that never come."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from perdure import RunStatus, UsageError, approval, sleep, step, wait_signal, workflow
from perdure.testing import crash_everywhere, interleavings
from perdure.testing.fixtures import LearningEngine, VirtualTime
from perdure.testing.simulation import PromiseBroken

effects: list[str] = []


@step
async def pack(item: str) -> str:
    effects.append(item)
    return f"box of {item}"


@workflow
async def crate(items: list[str]) -> list[str]:
    return list(await asyncio.gather(*(pack(item) for item in items)))


async def by_a_helper(items: list[str]) -> list[str]:
    return await crate(items)


@workflow
async def ship(items: list[str]) -> list[str]:
    await sleep(timedelta(days=2))
    return await by_a_helper(items)


@workflow
async def asking(n: int) -> Any:
    return [await wait_signal("go"), await approval("ship")]


async def test_the_engine_of_a_test_learns_of_children_too() -> None:
    @workflow
    async def at_once(items: list[str]) -> list[str]:
        return await by_a_helper(items)

    async with LearningEngine("memory://") as engine:
        assert (await engine.run(at_once(["a"]))).output == ["box of a"]


def test_virtual_time_knows_children() -> None:
    assert VirtualTime().outcome(ship(["a", "b"])).output == ["box of a", "box of b"]


def test_crash_everywhere_handles_a_workflow_that_sleeps_for_days() -> None:
    survived = crash_everywhere(ship(["a", "b"]))
    assert survived.result.output == ["box of a", "box of b"]
    assert survived.crashes >= 3 * (survived.boundaries - 1)
    assert survived.executions["crate:0/pack:0"] == 2


def test_the_orders_of_a_workflow_that_sleeps_for_days_are_tried() -> None:
    assert len(interleavings(ship(["a", "b"]), seeds=10).orders) == 2


def test_a_signal_that_never_comes_is_named() -> None:
    with pytest.raises(AssertionError, match="waits for the signal 'go', which is never sent; to send something"):
        VirtualTime().outcome(asking(1))
    with pytest.raises(PromiseBroken, match="run-0 waits for the signal 'go', which is never sent"):
        crash_everywhere(asking(1), limit=100)


def test_an_approval_that_never_comes_is_named() -> None:
    world = VirtualTime()

    async def scenario() -> RunStatus:
        async with world.engine([asking]) as engine:
            run = await engine.start(asking(1))
            _ = await engine.signal(run.id, "go")
            await world.advance(60)
            return await run.status()

    assert world.play(scenario()) is RunStatus.WAITING
    with pytest.raises(PromiseBroken, match="run-0 waits for the approval 'ship', which is never answered"):
        crash_everywhere(_only_asks(1), limit=100)


@workflow
async def _only_asks(n: int) -> Any:
    return await approval("ship")


@pytest.mark.parametrize("given", [ship, 7, None])
def test_anything_but_an_invocation_is_refused_with_an_example(given: Any) -> None:
    for try_it in (crash_everywhere, interleavings, VirtualTime().outcome):
        with pytest.raises(UsageError, match=r"an invocation, such as fulfil\(order\), not"):
            try_it(given)


def test_effects_that_are_not_reset_fail_with_a_hint() -> None:
    effects.clear()
    with pytest.raises(AssertionError, match="before= is called before each run, to reset state"):
        crash_everywhere(crate(["a"]), effects=lambda: len(effects))
