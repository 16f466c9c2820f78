"""`@step` and `@workflow` as decorators: plain calls outside a workflow, and mistakes reported where they are made."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Engine, Invocation, Retry, Step, UsageError, Workflow, call, step, workflow
from tests.engine.harness import run

if TYPE_CHECKING:
    from collections.abc import Sequence


@step
async def double(x: int) -> int:
    """Twice as much."""
    return 2 * x


@step
def triple(x: int, *, offset: int = 0) -> int:
    return 3 * x + offset


@workflow
async def flow(x: int, y: int = 1) -> int:
    """Adds up."""
    return await double(x) + await triple(y)


# --- outside a workflow ----------------------------------------------------------------------------------------------


async def test_an_async_step_outside_a_workflow_is_a_plain_coroutine() -> None:
    assert inspect.iscoroutine(coroutine := double(2))
    assert await coroutine == 4


def test_a_plain_step_outside_a_workflow_is_a_plain_call() -> None:
    assert triple(2, offset=1) == 7


async def test_a_plain_step_outside_a_workflow_but_inside_a_loop_is_a_plain_call() -> None:
    assert triple(2) == 6  # type: ignore[comparison-overlap]


def test_arguments_outside_a_workflow_are_not_copied() -> None:
    @step
    def touch(items: list[int]) -> list[int]:
        items.append(1)
        return items

    items: list[int] = []
    assert touch(items) is items


async def test_fn_is_the_plain_function() -> None:
    assert inspect.iscoroutinefunction(double.fn)
    assert await double.fn(2) == 4
    assert triple.fn(2) == 6
    assert inspect.iscoroutinefunction(flow.fn)
    assert flow.fn.__name__ == "flow"


def test_a_step_looks_like_its_function() -> None:
    assert double.__name__ == "double"
    assert double.__doc__ == "Twice as much."
    assert double.__module__ == __name__
    assert str(inspect.signature(double)) == "(x: 'int') -> 'int'"
    assert repr(double) == "<step double>"
    assert flow.__name__ == "flow"
    assert flow.__doc__ == "Adds up."
    assert repr(flow) == "<workflow flow>"


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_a_generator_cannot_be_sent_to_a_process() -> None:
    def plain() -> Iterator[int]:
        yield 1

    async def asynchronous() -> AsyncIterator[int]:
        yield 1

    for generator in (plain, asynchronous):
        with pytest.raises(TypeError, match="yields"):
            step(cpu=True)(generator)


def test_a_step_in_a_process_has_no_heartbeat() -> None:
    with pytest.raises(TypeError, match="use timeout="):
        step(cpu=True, heartbeat=1)(triple.fn)
    with pytest.raises(TypeError, match="use timeout="):
        step(cpu=True)(triple.fn).options(heartbeat=1)


@pytest.mark.parametrize("wrong", [0, -1, float("nan")])
def test_a_heartbeat_that_no_step_could_keep_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="heartbeat"):
        step(heartbeat=wrong)(double.fn)
    with pytest.raises(ValueError, match="heartbeat"):
        double.options(heartbeat=wrong)


def test_a_step_is_no_step_of_its_own() -> None:
    with pytest.raises(TypeError, match="needs a function"):
        step(double)
    with pytest.raises(TypeError, match="needs a function"):
        step(7)  # type: ignore[call-overload]


def test_an_async_step_cannot_be_sent_to_a_process() -> None:
    async def asynchronous() -> None: ...

    with pytest.raises(TypeError, match="plain def"):
        step(cpu=True)(asynchronous)


def test_a_retry_that_is_a_number_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Retry\(attempts=3\)"):
        step(retry=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"Retry\(attempts=3\)"):
        double.options(retry=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [-1, float("nan"), "10", True])
def test_a_timeout_that_makes_no_sense_is_refused(timeout: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="timeout"):
        step(timeout=timeout)
    with pytest.raises((TypeError, ValueError), match="timeout"):
        double.options(timeout=timeout)


@pytest.mark.parametrize("name", ["a/b", "a:b", "a[0]", "", "x" * 201, "a\nb"])
def test_a_name_that_would_break_a_path_is_refused(name: str) -> None:
    if name:
        with pytest.raises(ValueError, match="name of a step"):
            step(name=name)(double.fn)
        with pytest.raises(ValueError, match="name of a workflow"):
            workflow(name=name)(flow.fn)


def test_a_plain_function_is_no_workflow() -> None:
    def plain() -> int:
        return 1

    with pytest.raises(TypeError, match="async def"):
        workflow(plain)  # type: ignore[arg-type]


def test_an_annotation_for_type_checkers_only_is_refused_at_the_decorator() -> None:
    with pytest.raises(NameError, match="Sequence"):

        @step
        async def lost(xs: Sequence[int]) -> int:
            return len(xs)


def test_an_annotation_may_name_what_is_local_to_any_function_around() -> None:
    class Order:
        pass

    def between() -> Step[..., Any]:
        class Parcel:
            pass

        @step
        async def pack(order: Order, parcel: Parcel) -> None: ...

        return pack

    def declares() -> Step[..., Any]:
        @step
        async def ship(stranger: Stranger) -> None: ...  # type: ignore[name-defined]  # noqa: F821

        return ship

    def calls() -> Step[..., Any]:
        class Stranger:
            pass

        _ = Stranger
        return declares()

    assert [kind.__name__ for _, kind in between().spec.types] == ["Order", "Parcel"]
    with pytest.raises(NameError, match="Stranger"):
        calls()


def test_a_wrong_call_of_a_workflow_fails_where_it_is_written() -> None:
    with pytest.raises(TypeError, match="missing a required argument"):
        _ = flow()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword"):
        _ = flow(1, z=2)  # type: ignore[call-arg]


def test_a_retry_needs_at_least_one_attempt() -> None:
    with pytest.raises(ValueError, match="at least one attempt"):
        Retry(attempts=0)
    with pytest.raises(ValueError, match="factor"):
        Retry(factor=0.5)


# --- decorating ------------------------------------------------------------------------------------------------------


async def test_steps_may_be_decorated_functions() -> None:
    def noting(fn: Any) -> Any:
        @functools.wraps(fn)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return ["noted", await fn(*args, **kwargs)]

        return wrapper

    @step
    @noting
    async def plus(x: int) -> Any:
        return x + 1

    @workflow
    async def decorated() -> Any:
        return await plus(1)

    assert (await run(decorated())).output == ["noted", 2]


async def test_a_step_may_be_a_static_method_or_a_callable_object() -> None:
    class Bank:
        @staticmethod
        @step
        async def charge(x: int) -> int:
            return x + 1

    @workflow
    async def methods() -> int:
        return await Bank.charge(1)

    assert (await run(methods())).output == 2


async def test_options_make_another_step_and_leave_the_first_alone() -> None:
    quick = double.options(timeout=5, retry=Retry(attempts=2), at_most_once=True)
    assert isinstance(quick, Step)
    assert (quick.spec.timeout, quick.spec.retry.attempts, quick.spec.at_most_once) == (5.0, 2, True)
    assert (double.spec.timeout, double.spec.retry.attempts, double.spec.at_most_once) == (None, 1, False)
    assert quick.options(timeout=1).spec.retry.attempts == 2
    assert quick.name == "double"
    assert await quick(4) == 8


# --- invocations -----------------------------------------------------------------------------------------------------


def test_calling_a_workflow_runs_nothing() -> None:
    invocation = flow(1, y=2)
    assert isinstance(invocation, Invocation)
    assert repr(invocation) == "<flow(1, y=2), not started>"


async def test_awaiting_an_invocation_by_mistake_says_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"engine\.start"):
        await flow(1)


async def test_a_program_is_called_by_name() -> None:
    async with Engine("memory://", [flow]) as engine:
        assert (await engine.run(call("flow", 2, 3))).output == 13
        assert (await engine.run(call("flow", x=2, y=3))).output == 13
        assert (await engine.run(call("flow", 2, y=3))).output == 13


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_call_needs_a_name(name: Any) -> None:
    with pytest.raises(UsageError, match="name of a program"):
        _ = call(name)


# --- how arguments reach the body ------------------------------------------------------------------------------------


async def test_all_kinds_of_parameters_reach_the_body() -> None:
    @workflow
    async def kinds(a: int, /, b: int, *rest: int, c: int = 3, **more: int) -> list[Any]:
        return [a, b, list(rest), c, more]

    async with Engine("memory://", [kinds]) as engine:
        assert (await engine.run(kinds(1, 2))).output == [1, 2, [], 3, {}]
        assert (await engine.run(kinds(1, 2, 5, 6, c=4, d=7))).output == [1, 2, [5, 6], 4, {"d": 7}]
        assert (await engine.run(kinds(1, b=2, d=7))).output == [1, 2, [], 3, {"d": 7}]


async def test_defaults_are_those_of_the_code_that_runs() -> None:
    @workflow
    async def defaults(a: int, b: list[int] | None = None) -> list[Any]:
        return [a, b]

    assert (await run(defaults(1))).output == [1, None]
    assert (await run(defaults(1, [2]))).output == [1, [2]]


async def test_a_workflow_may_be_named_and_versioned() -> None:
    @workflow(name="fulfil orders", version="3")
    async def fulfil() -> str:
        await asyncio.sleep(0)
        return "done"

    assert isinstance(fulfil, Workflow)
    async with Engine("memory://", [fulfil]) as engine:
        await engine.run(fulfil(), id="it")
        view = await engine.get("it")
    assert view is not None
    assert (view.program, view.version) == ("fulfil orders", "3")
