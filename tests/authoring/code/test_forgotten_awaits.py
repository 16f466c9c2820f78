# mypy: disable-error-code="unused-coroutine,unused-awaitable,truthy-bool,comparison-overlap"
"""An op that a body calls and does not await fails the run at that line, before anything else is done."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from perdure import (
    Engine,
    Invocation,
    RunStatus,
    UsageError,
    approval,
    checkpoint,
    child,
    lock,
    sleep,
    sleep_until,
    step,
    step_inline,
    wait_signal,
    workflow,
)
from perdure.kernel.events import StepStarted
from tests.engine.harness import AT_ONCE, PATIENCE, go_on_from_everywhere, run

called: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_called() -> None:
    called.clear()


@step
async def charge(order: str) -> str:
    called.append(order)
    return order


@step
async def ship(order: str) -> str:
    called.append(f"ship {order}")
    return order


@workflow
async def refund(order: str) -> str:
    return await charge(order)


@workflow
async def dropped() -> None:
    charge("x")
    await ship("x")


@workflow
async def dropped_at_the_end() -> None:
    charge("x")


@workflow
async def dropped_with_options() -> None:
    charge.options(timeout=5)("x")
    await ship("x")


@workflow
async def assigned() -> None:
    paid = charge("x")  # noqa: F841
    await ship("x")


@workflow
async def taken_for_true() -> None:
    if charge("x"):
        await ship("x")


@workflow
async def negated() -> None:
    if not charge("x"):
        await ship("x")
    await ship("y")


@workflow
async def compared() -> None:
    if "x" == charge("x"):  # noqa: SIM300
        await ship("x")
    await ship("y")


@workflow
async def shown() -> None:
    await ship(f"{charge('x')}")


@workflow
async def dropped_inline() -> None:
    step_inline("charge", lambda: called.append("x"))
    await ship("x")


@workflow
async def dropped_child() -> None:
    child(refund("x"))
    await ship("x")


@workflow
async def dropped_invocation() -> None:
    refund("x")
    await ship("x")


@workflow
async def dropped_sleep() -> None:
    sleep(5)
    await ship("x")


@workflow
async def dropped_sleep_until() -> None:
    sleep_until("never")  # type: ignore[arg-type]
    await ship("x")


@workflow
async def dropped_signal() -> None:
    wait_signal("go")
    await ship("x")


@workflow
async def dropped_approval() -> None:
    approval("go")
    await ship("x")


@workflow
async def dropped_checkpoint() -> None:
    checkpoint()
    await ship("x")


@workflow
async def dropped_lock() -> None:
    lock("k")
    await ship("x")


@workflow
async def in_a_branch() -> None:
    async def branch() -> None:
        charge("x")
        await ship("x")

    await asyncio.gather(branch(), branch())


@workflow
async def returned() -> Any:
    return charge("x")


@workflow
async def returned_in_a_list() -> Any:
    return [charge(item) for item in ("a", "b")]


@workflow
async def returned_in_a_dict() -> Any:
    return {"paid": [refund("a")]}


@workflow
async def given_to_a_step_in_a_list() -> Any:
    return await ship([charge("a")])  # type: ignore[arg-type]


@workflow
async def returned_invocation() -> Any:
    return refund("x")


@workflow
async def given_to_a_step() -> Any:
    return await ship(charge("x"))  # type: ignore[arg-type]


@workflow
async def invocation_given_to_a_step() -> Any:
    return await ship(refund("x"))  # type: ignore[arg-type]


async def _helper() -> None: ...


@workflow
async def coroutine_given_to_a_step() -> Any:
    return await ship(_helper())  # type: ignore[arg-type]


FORGETFUL: list[tuple[Callable[[], Invocation[Any]], str]] = [
    (dropped, "charge"),
    (dropped_at_the_end, "charge"),
    (dropped_with_options, "charge"),
    (assigned, "charge"),
    (taken_for_true, "charge"),
    (negated, "charge"),
    (compared, "charge"),
    (shown, "charge"),
    (dropped_inline, "charge"),
    (dropped_child, "child"),
    (dropped_invocation, "refund"),
    (dropped_sleep, "sleep"),
    (dropped_sleep_until, "sleep_until"),
    (dropped_signal, "wait_signal"),
    (dropped_approval, "approval"),
    (dropped_checkpoint, "checkpoint"),
    (dropped_lock, "lock"),
    (in_a_branch, "charge"),
]


@pytest.mark.parametrize(("program", "name"), FORGETFUL, ids=[program.__name__ for program, _ in FORGETFUL])
async def test_an_op_that_is_not_awaited_fails_the_run_with_its_line(
    program: Callable[[], Invocation[Any]], name: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with Engine("memory://", [program, refund], recovery=AT_ONCE) as engine:  # type: ignore[list-item]
            result = await (await engine.start(program())).outcome(PATIENCE)
    assert result.status is RunStatus.FAILED
    assert isinstance(result.error, UsageError)
    fn = program.fn  # type: ignore[attr-defined]
    lines = range(fn.__code__.co_firstlineno, fn.__code__.co_firstlineno + 12)
    assert any(f"test_forgotten_awaits.py:{line}: {name}(" in str(result.error) for line in lines)
    assert "not awaited" in str(result.error)
    assert "async with" in str(result.error) or f"await {name}(" in str(result.error)
    assert not called, "nothing is done after it"


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (returned, "returned charge(...) without awaiting it"),
        (returned_invocation, "returned refund(...) without awaiting it"),
        (returned_in_a_list, "returned charge(...) without awaiting it; write `await` before it"),
        (returned_in_a_dict, "returned refund(...) without awaiting it"),
        (given_to_a_step_in_a_list, "ship(...) is given charge(...), which is not awaited"),
        (given_to_a_step, "ship(...) is given charge(...), which is not awaited"),
        (invocation_given_to_a_step, "ship(...) is given refund(...), which is not awaited"),
        (coroutine_given_to_a_step, "ship(...) is given _helper(...), which is not awaited"),
    ],
)
async def test_what_is_used_before_it_is_awaited_is_named(program: Callable[[], Invocation[Any]], told: str) -> None:
    async with Engine("memory://", [program, refund], recovery=AT_ONCE) as engine:  # type: ignore[list-item]
        result = await (await engine.start(program())).outcome(PATIENCE)
    assert isinstance(result.error, UsageError)
    assert told in str(result.error)


@workflow
async def all_in_order() -> list[str]:
    """Whatever is awaited in the end, however that is written."""
    first = charge("1")
    task = asyncio.create_task(charge("2"))
    both = asyncio.gather(charge("3"), charge("4"))
    later = [charge(str(n)) for n in range(5, 7)]
    by_name = {"a": charge("7")}
    _ = charge("8")
    nap = sleep(0.001)
    (one,) = await asyncio.wait_for(asyncio.gather(charge("9")), 5)
    quick, slow = ship("a"), sleep(100)
    slow_task = asyncio.ensure_future(slow)
    await asyncio.wait([quick, slow_task], return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
    slow_task.cancel()
    await nap
    return [await first, await task, *await both, *[await f for f in later], await by_name["a"], one]


async def test_what_is_awaited_later_or_by_asyncio_is_awaited() -> None:
    ran = await run(all_in_order())
    assert ran.output == ["1", "2", "3", "4", "5", "6", "7", "9"]


async def test_a_run_that_fails_so_fails_so_again_after_a_crash() -> None:
    @workflow
    async def flow() -> None:
        await ship("x")
        charge("x")
        await ship("y")

    async with Engine("memory://", [flow], recovery=AT_ONCE) as engine:
        result = await (await engine.start(flow())).outcome(PATIENCE)
        assert isinstance(result.error, UsageError)
        steps = [entry.event for entry in await engine.journal(result.run_id)]
    assert [event.op for event in steps if isinstance(event, StepStarted)] == ["ship:0"]


async def test_sleeping_in_a_task_has_the_path_it_always_had() -> None:
    @workflow
    async def flow() -> None:
        await asyncio.gather(sleep(0.001), asyncio.create_task(sleep(0.001)))

    ran = await run(flow())
    ops = [getattr(event, "op", "") for event in await ran.events()]
    assert "sleep:0/sleep:0" in ops
    assert "sleep:1/sleep:0" in ops
    await go_on_from_everywhere(flow(), ran)
