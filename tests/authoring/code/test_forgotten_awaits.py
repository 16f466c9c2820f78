# mypy: disable-error-code="unused-coroutine,unused-awaitable,truthy-bool,comparison-overlap"
"""An op that a body calls and does not await fails the run at that line, before anything else is done."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from perdure import (
    CompensationFailed,
    Engine,
    Invocation,
    NotDecodable,
    RunStatus,
    UsageError,
    Workflow,
    approval,
    bail,
    checkpoint,
    child,
    continue_as,
    lock,
    saga,
    sleep,
    sleep_until,
    step,
    step_inline,
    wait_signal,
    workflow,
)
from perdure.kernel.events import StepStarted
from tests.engine.harness import AT_ONCE, PATIENCE, go_on_from_everywhere, replay, run

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
async def test_a_value_used_before_its_await_is_named(program: Callable[[], Invocation[Any]], told: str) -> None:
    async with Engine("memory://", [program, refund], recovery=AT_ONCE) as engine:  # type: ignore[list-item]
        result = await (await engine.start(program())).outcome(PATIENCE)
    assert isinstance(result.error, UsageError)
    assert told in str(result.error)


@workflow
async def all_in_order() -> list[str]:
    """Calls that are awaited in the end, however that is written."""
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


# --- what only the end of the body shows ------------------------------------------------------------------------------


@workflow
async def in_a_list() -> int:
    paid = [charge(str(n)) for n in range(3)]
    return len(paid)


@workflow
async def in_a_list_that_was_done_meanwhile() -> int:
    paid = [charge(str(n)) for n in range(3)]
    await ship("x")
    await sleep(0.001)
    return len(paid)


@workflow
async def in_a_dict() -> list[str]:
    paid = {"a": charge("a"), "b": charge("b")}
    return list(paid)


@workflow
async def in_a_tuple() -> int:
    both = (await ship("a"), charge("b"))
    return len(both)


@workflow
async def in_a_condition() -> None:
    paid = charge("x")
    if await ship("x") == "y":
        await paid


@workflow
async def bare_gather() -> None:
    asyncio.gather(charge("a"), charge("b"))


@workflow
async def bare_gather_that_was_done_meanwhile() -> None:
    asyncio.gather(charge("a"), charge("b"))
    await ship("x")
    await sleep(0.001)


@workflow
async def gather_of_coroutines() -> None:
    both = asyncio.gather(sleep(1), sleep(2))
    if await ship("x") == "y":
        await both


@workflow
async def bare_shield() -> None:
    asyncio.shield(charge("a"))
    await ship("x")


@workflow
async def wait_for_that_is_not_awaited() -> None:
    late = asyncio.wait_for(charge("x"), 5)
    if await ship("x") == "y":
        await late
    late.close()


@workflow
async def sleeps_in_a_list() -> int:
    return len([sleep(1), sleep(2)])


@workflow
async def sleep_until_in_a_list() -> int:
    return len([sleep_until(None)])  # type: ignore[arg-type]


@workflow
async def signals_in_a_list() -> int:
    return len([wait_signal("a"), wait_signal("b")])


@workflow
async def approvals_in_a_list() -> int:
    return len([approval("a")])


@workflow
async def checkpoints_in_a_list() -> int:
    return len([checkpoint()])


@workflow
async def inline_in_a_list() -> int:
    return len([step_inline("charge", lambda: called.append("x"))])


@workflow
async def children_in_a_list() -> int:
    return len([child(refund("a")), child(refund("b"))])


@workflow
async def invocations_in_a_list() -> int:
    return len([refund("a"), refund("b")])


@workflow
async def in_a_finally() -> int:
    try:
        await ship("x")
    finally:
        undone = [charge("x")]
    return len(undone)


@workflow
async def in_a_helper() -> int:
    async def pay() -> int:
        return len([charge("x")])

    return await pay()


@workflow
async def in_a_branch_of_a_group() -> int:
    async def pay() -> int:
        return len([charge("x")])

    async with asyncio.TaskGroup() as group:
        first = group.create_task(pay())
        group.create_task(pay())
    return first.result()


@workflow
async def before_it_goes_on_anew(n: int = 0) -> None:
    paid = [charge(str(n))]
    if n < len(paid):
        continue_as(n + 1)


@workflow
async def loses_an_error_that_no_one_awaits() -> int:
    paid = [fails()]
    await ship("x")
    await sleep(0.001)
    return len(paid)


@step
async def fails() -> None:
    raise ValueError("no")


LEFT: list[tuple[Callable[[], Invocation[Any]], str]] = [
    (in_a_list, "charge(...) is not awaited (and 2 more)"),
    (in_a_list_that_was_done_meanwhile, "charge(...) is not awaited (and 2 more)"),
    (in_a_dict, "charge(...) is not awaited (and 1 more)"),
    (in_a_tuple, "charge(...) is not awaited"),
    (in_a_condition, "charge(...) is not awaited"),
    (bare_gather, "asyncio.gather(...) is not awaited"),
    (bare_gather_that_was_done_meanwhile, "asyncio.gather(...) is not awaited"),
    (gather_of_coroutines, "asyncio.gather(...) is not awaited"),
    (bare_shield, "asyncio.shield(...) is not awaited"),
    (wait_for_that_is_not_awaited, "charge(...) is not awaited"),
    (sleeps_in_a_list, "sleep(...) is not awaited (and 1 more)"),
    (sleep_until_in_a_list, "sleep_until(...) is not awaited"),
    (signals_in_a_list, "wait_signal(...) is not awaited"),
    (approvals_in_a_list, "approval(...) is not awaited"),
    (checkpoints_in_a_list, "checkpoint(...) is not awaited"),
    (inline_in_a_list, "charge(...) is not awaited"),
    (children_in_a_list, "refund(...) is not awaited (and 1 more)"),
    (invocations_in_a_list, "refund(...) is not awaited (and 1 more)"),
    (in_a_finally, "charge(...) is not awaited"),
    (in_a_helper, "charge(...) is not awaited"),
    (in_a_branch_of_a_group, "charge(...) is not awaited (and 1 more)"),
    (before_it_goes_on_anew, "charge(...) is not awaited"),
    (loses_an_error_that_no_one_awaits, "fails(...) is not awaited"),
]


@pytest.mark.parametrize(("program", "told"), LEFT, ids=[program.__name__ for program, _ in LEFT])
async def test_a_missing_await_fails_the_run_with_its_line(program: Callable[[], Invocation[Any]], told: str) -> None:
    ran = await run(program())
    assert ran.result.status is RunStatus.FAILED
    assert isinstance(ran.result.error, UsageError)
    fn = program.fn  # type: ignore[attr-defined]
    lines = range(fn.__code__.co_firstlineno, fn.__code__.co_firstlineno + 12)
    assert any(f"test_forgotten_awaits.py:{line}: {told}" in str(ran.result.error) for line in lines)
    assert "so the workflow ends without it" in str(ran.result.error)
    await go_on_from_everywhere(program(), ran)


# --- a refusal that the body catches ----------------------------------------------------------------------------------


@workflow
async def swallowed() -> str:
    try:
        charge("x")
    except Exception:
        pass
    await ship("y")
    await sleep(0.001)
    return await ship("z")


@workflow
async def swallowed_before_a_sleep() -> str:
    with contextlib.suppress(UsageError):
        sleep(1)
        await ship("not reached")
    return await ship("y")


@workflow
async def swallowed_in_a_branch() -> list[Any]:
    async def branch() -> None:
        charge("x")

    return [*await asyncio.gather(branch(), ship("y"), return_exceptions=True), await ship("z")]


@workflow
async def swallowed_in_front_of_a_child() -> str:
    try:
        child(refund("x"))
    except UsageError:
        return await refund("y")
    return ""


@workflow
async def swallowed_before_it_goes_on_anew(left: int = 1) -> None:
    await ship("y")
    with contextlib.suppress(UsageError):
        charge("x")
    if left:
        await continue_as(left - 1)


SWALLOWED: list[Workflow[..., Any]] = [
    swallowed,
    swallowed_before_a_sleep,
    swallowed_in_a_branch,
    swallowed_in_front_of_a_child,
    swallowed_before_it_goes_on_anew,
]


@pytest.mark.parametrize("program", SWALLOWED, ids=[program.name for program in SWALLOWED])
async def test_a_body_that_catches_the_refusal_fails_in_the_end_and_replays(program: Workflow[..., Any]) -> None:
    ran = await run(program(), others=[refund])
    assert ran.result.status is RunStatus.FAILED
    assert "is not awaited, so the workflow would continue without it" in str(ran.result.error)
    await go_on_from_everywhere(program(), ran, others=[refund])


async def test_a_compensation_of_a_missing_await_goes_on_after_a_crash() -> None:
    @workflow
    async def flow() -> None:
        async with saga() as s:
            s.compensate(ship, "back")
            s.compensate(ship, "other")
            await charge("x")
            charge("y")

    ran = await run(flow())
    assert called == ["x", "ship other", "ship back"]
    assert "charge(...) is not awaited" in str(ran.result.error)
    await go_on_from_everywhere(flow(), ran)


async def test_arguments_of_a_child_that_are_refused_are_refused_after_a_crash() -> None:
    @workflow
    async def flow(order: Any) -> str:
        try:
            return await refund(order)
        except NotDecodable:
            await ship("instead")
            return await ship("at last")

    ran = await run(flow(5), others=[refund])
    assert ran.output == "at last"
    await go_on_from_everywhere(flow(5), ran, others=[refund])


async def test_a_missing_await_in_a_child_fails_its_parent_with_the_line() -> None:
    @workflow
    async def parent() -> int:
        return await in_a_list()

    async with Engine("memory://", [parent, in_a_list], recovery=AT_ONCE) as engine:
        result = await (await engine.start(parent())).outcome(PATIENCE)
    assert result.status is RunStatus.FAILED
    assert "charge(...) is not awaited (and 2 more)" in str(result.error)


async def test_a_compensation_that_forgets_is_one_that_failed() -> None:
    async def undo() -> int:
        return len([charge("back"), sleep(1)])

    @workflow
    async def flow() -> None:
        async with saga() as s:
            s.compensate(ship, "other")
            s.compensate(undo)
            await fails()

    ran = await run(flow())
    error = ran.result.error
    assert isinstance(error, CompensationFailed)
    assert "charge(...) is not awaited (and 1 more)" in str(error)
    assert "ship other" in called, "the others run all the same"


@workflow
async def tasks_that_are_cancelled() -> None:
    task = asyncio.create_task(charge("x"))
    other = charge("y")
    task.cancel()
    other.cancel()  # type: ignore[attr-defined]


@workflow
async def the_rest_of_a_wait() -> int:
    slow = [asyncio.create_task(sleep(100)), sleep(100)]
    done, rest = await asyncio.wait(
        [charge("x"), asyncio.ensure_future(slow[1]), slow[0]],  # type: ignore[type-var]
        return_when=asyncio.FIRST_COMPLETED,
    )
    return len(done) + len(rest)


@workflow
async def the_rest_of_a_wait_for_steps() -> int:
    done, rest = await asyncio.wait(
        [charge("x"), child(endless())],  # type: ignore[type-var]
        return_when=asyncio.FIRST_COMPLETED,
    )
    return len(done) + len(rest)


@workflow
async def endless() -> None:
    await sleep(1000)


@workflow
async def too_late() -> str:
    async def two() -> None:
        first, second = sleep(100), charge("later")
        await first
        await second

    try:
        await asyncio.wait_for(two(), 0.001)
    except TimeoutError:
        return "late"
    return "in time"


@workflow
async def shielded() -> str:
    kept = asyncio.shield(charge("x"))
    try:
        async with asyncio.timeout(0.001):
            await asyncio.shield(sleep(100))
    except TimeoutError:
        pass
    return await kept


@workflow
async def past_an_error() -> str:
    first, second = fails(), charge("x")
    try:
        await first
        await second
    except ValueError:
        return "handled"
    return "both"


@workflow
async def past_an_error_that_came_early() -> str:
    first, second = fails(), charge("x")
    await ship("y")
    await sleep(0.001)
    try:
        await first
        await second
    except ValueError:
        return "handled"
    return "both"


@workflow
async def a_group_that_fails() -> str:
    async def other() -> None:
        first, second = sleep(100), charge("x")
        await first
        await second

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(other())
            group.create_task(fails())
    except* ValueError:
        pass
    return "handled"


@workflow
async def meant() -> None:
    _ = charge("x")
    _both = [charge("y"), child(endless())]
    _gathered = asyncio.gather(sleep(100))


@workflow
async def read_by_result() -> list[str]:
    first, second = charge("x"), charge("y")
    both = asyncio.gather(first, second)
    while not both.done():
        await sleep(0.001)
    return [*both.result(), first.result(), second.result()]  # type: ignore[attr-defined]


@workflow
async def task_left_at_the_end() -> None:
    asyncio.create_task(charge("a"))  # noqa: RUF006


@workflow
async def task_of_a_helper_left_at_the_end() -> str:
    async def later() -> None:
        await sleep(1)
        await charge("a")

    task = asyncio.create_task(later())
    await ship("x")
    return task.get_name()


@workflow
async def ensured_and_left() -> str:
    late = asyncio.ensure_future(sleep(100))
    one = asyncio.ensure_future(charge("a"))
    await ship("x")
    return str(late.done() and one.done())


@workflow
async def done_beside_the_rest() -> None:
    asyncio.create_task(charge("x"))  # noqa: RUF006
    await ship("y")
    await sleep(0.01)


@workflow
async def a_background_task_with_a_callback() -> None:
    kept: set[asyncio.Task[Any]] = set()
    task = asyncio.create_task(sleep(100))
    kept.add(task)
    task.add_done_callback(kept.discard)


@workflow
async def invocations_as_values() -> list[str]:
    wanted = [refund("a"), refund("b"), refund("c"), refund("d")]
    first = asyncio.create_task(wanted[2])
    pair = await asyncio.gather(child(wanted[0]), wanted[1])
    await child(wanted[3], detached=True)
    return [*pair, await first]


@workflow
async def as_they_complete() -> str:
    tasks = [asyncio.create_task(charge("x")), asyncio.create_task(sleep(100))]
    return str(await next(iter(asyncio.as_completed(tasks))))


@workflow
async def half_of_a_generator() -> str:
    async def numbers() -> AsyncIterator[str]:
        try:
            for n in range(9):
                yield await charge(str(n))
        finally:
            await sleep(100)

    async for one in numbers():
        return one
    return ""


@workflow
async def gives_up() -> None:
    paid = [charge("x")]
    bail(f"on purpose, with {len(paid)} open")


@workflow
async def fails_by_itself() -> None:
    paid = [charge("x")]
    raise ValueError(len(paid))


FINE: list[Callable[[], Invocation[Any]]] = [
    tasks_that_are_cancelled,
    the_rest_of_a_wait,
    the_rest_of_a_wait_for_steps,
    too_late,
    shielded,
    past_an_error,
    past_an_error_that_came_early,
    a_group_that_fails,
    meant,
    read_by_result,
    done_beside_the_rest,
    a_background_task_with_a_callback,
    task_left_at_the_end,
    task_of_a_helper_left_at_the_end,
    ensured_and_left,
    invocations_as_values,
    as_they_complete,
    half_of_a_generator,
]


@pytest.mark.parametrize("program", FINE, ids=[program.__name__ for program in FINE])
async def test_what_is_left_on_purpose_is_no_mistake(program: Callable[[], Invocation[Any]]) -> None:
    async with Engine("memory://", [program, refund, endless], recovery=AT_ONCE) as engine:  # type: ignore[list-item]
        result = await (await engine.start(program())).outcome(PATIENCE)
    assert result.error is None
    assert result.status is RunStatus.COMPLETED


async def test_a_missing_await_does_not_hide_a_bail_or_a_failure() -> None:
    assert (await run(gives_up())).result.status is RunStatus.BAILED
    assert isinstance((await run(fails_by_itself())).result.error, ValueError)


async def test_a_run_that_completed_with_a_missing_await_still_replays() -> None:
    """Its journal was written before missing awaits were detected."""

    @workflow(name="flow")
    async def flow() -> int:
        _paid = charge("x")
        return 1

    ran = await run(flow())

    @workflow(name="flow")
    async def as_it_was() -> int:
        paid = [charge("x")]
        return len(paid)

    assert ran.output == 1
    await replay(as_it_was, ran.result.run_id, ran.store)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_a_step_that_returns_what_it_does_not_await_says_so() -> None:
    @step
    async def passes_on() -> Any:
        return charge("x")

    @step
    async def in_a_list() -> Any:
        return [1, charge("x")]

    @workflow
    async def flow() -> list[str]:
        return [str(one) for one in await asyncio.gather(passes_on(), in_a_list(), return_exceptions=True)]

    whole, part = (await run(flow())).output
    end = "the coroutine charge(...), which is not awaited; write `await` before it"
    assert whole == f"the result of passes_on:0 cannot be stored: $ is {end}"
    assert part == f"the result of in_a_list:0 cannot be stored: $[1] is {end}"


async def test_code_outside_of_bodies_is_not_checked() -> None:
    wanted = [refund("a"), refund("b")]
    both = asyncio.gather(charge("c"), charge("d"))
    task = asyncio.create_task(charge("e"))
    async with Engine("memory://", [refund]) as engine:
        assert (await engine.run(wanted[0])).output == "a"
    assert await both == ["c", "d"]
    assert await task == "e"
