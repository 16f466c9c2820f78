"""What steps raise, and what of it reaches the body."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Engine, RunFailed, sleep, step, workflow
from tests.engine.harness import AT_ONCE, PATIENCE, go_on_from_everywhere, run
from tests.engine.step_parts import Declined


class WithData(Exception):
    """Has an __init__ of its own, and data that is not in its message."""

    made = 0

    def __init__(self, order: str, *, cents: int) -> None:
        super().__init__(f"order {order}")
        self.order, self.cents = order, cents
        type(self).made += 1


async def test_exceptions_of_the_users_classes_are_caught_by_type_with_their_data() -> None:
    @step
    async def failing() -> None:
        raise WithData("a-1", cents=250)

    @workflow
    async def flow() -> list[Any]:
        try:
            await failing()
        except WithData as error:
            return [str(error), error.order, error.cents]
        return []

    ran = await run(flow())
    assert ran.output == ["order a-1", "a-1", 250]
    await go_on_from_everywhere(flow(), ran)


async def test_the_cause_of_an_exception_comes_along() -> None:
    @step
    def failing() -> None:
        try:
            raise KeyError("k")
        except KeyError as error:
            raise Declined(7, "no key") from error

    @workflow
    async def flow() -> str:
        try:
            await failing()
        except Declined as error:
            return repr(error.__cause__)
        return ""

    ran = await run(flow())
    assert ran.output == "KeyError('k')"
    await go_on_from_everywhere(flow(), ran)


async def test_an_exception_of_a_class_that_cannot_be_found_is_the_same_on_the_first_run_as_on_replay() -> None:
    @step
    async def failing() -> None:
        class Local(Exception):
            pass

        raise Local("here only")

    @workflow
    async def flow() -> str:
        try:
            await failing()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    ran = await run(flow())
    assert ran.output.startswith("StepError: ")
    assert "Local: here only" in ran.output
    await go_on_from_everywhere(flow(), ran)


@pytest.mark.parametrize("error", [StopIteration("x"), StopAsyncIteration("x"), GeneratorExit("x")])
async def test_exceptions_that_drive_python_itself_fail_a_plain_step_and_stop_nothing(error: BaseException) -> None:
    @step
    def failing() -> None:
        raise error

    @workflow
    async def flow() -> str:
        try:
            await failing()
        except Exception as caught:
            return repr(caught)
        return ""

    async with Engine("memory://", [flow], recovery=AT_ONCE) as engine:
        handle = await engine.start(flow())
        assert type(error).__name__ in await handle.result(PATIENCE)


async def test_exceptions_that_drive_python_itself_fail_an_async_step_and_stop_nothing() -> None:
    @step
    async def empty() -> int:
        return next(iter([]))

    @step
    async def cancelled() -> None:
        raise asyncio.CancelledError("from within")

    @workflow
    async def flow() -> list[str]:
        errors = await asyncio.gather(empty(), cancelled(), return_exceptions=True)
        return [str(e) for e in errors]

    first, second = (await run(flow())).output
    assert "StopIteration" in first
    assert "Cancelled" in second


async def test_a_run_whose_exception_cannot_be_rebuilt_raises_run_failed_with_its_type_and_cause() -> None:
    @step
    async def failing() -> None:
        class Local(Exception):
            pass

        try:
            raise KeyError("k")
        except KeyError as error:
            raise Local("here only") from error

    @workflow
    async def flow() -> None:
        await failing()

    async with Engine("memory://", [flow]) as engine:
        handle = await engine.start(flow(), id="it")
        with pytest.raises(RunFailed, match="here only") as caught:
            await handle.result(PATIENCE)
    assert caught.value.id == "it"
    assert "Local" in caught.value.type
    assert isinstance(caught.value.__cause__, KeyError)
    assert "in test_a_run_whose_exception_cannot_be_rebuilt" in caught.value.traceback


async def test_steps_of_a_run_end_in_the_order_of_their_outcomes_not_of_their_starts() -> None:
    @step
    async def nap(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    @workflow
    async def flow() -> list[float]:
        order: list[float] = []

        async def branch(seconds: float) -> None:
            order.append(await nap(seconds))
            await sleep(0)

        await asyncio.gather(branch(0.02), branch(0))
        return order

    assert (await run(flow())).output == [0, 0.02]
