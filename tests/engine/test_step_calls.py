"""How steps are called, and with what."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure import PerdureError, step, workflow
from perdure.kernel.events import StepStarted
from tests.engine.harness import go_on_from_everywhere, run
from tests.engine.step_parts import QUICK


async def test_a_step_that_calls_another_step_calls_it_plainly() -> None:
    @step
    async def inner(x: int) -> int:
        return x + 1

    @step
    def inner_in_a_thread(x: int) -> int:
        return x + 1

    @step
    async def outer(x: int) -> int:
        plain: Any = inner_in_a_thread(x)
        return await inner(plain)

    @step
    def outer_in_a_thread(x: int) -> Any:
        return inner_in_a_thread(x)

    @workflow
    async def flow() -> list[int]:
        return [await outer(1), await outer_in_a_thread(1)]

    ran = await run(flow())
    assert ran.output == [3, 2]
    assert await ran.ops() == ["outer:0", "outer_in_a_thread:0"]


async def test_wrong_arguments_are_an_error_that_names_the_function() -> None:
    @step
    async def charge(amount: int, currency: str) -> int:
        return amount

    @step
    def charge_in_a_thread(amount: int) -> int:
        return amount

    @workflow
    async def flow() -> list[str]:
        errors = await asyncio.gather(
            charge(1),  # type: ignore[call-arg]
            charge(1, "EUR", 3),  # type: ignore[call-arg]
            charge_in_a_thread(1, sum=3),  # type: ignore[call-arg]
            return_exceptions=True,
        )
        return [f"{type(e).__name__}: {e}" for e in errors]

    output = (await run(flow())).output
    assert all(line.startswith("TypeError") for line in output)
    assert "charge() missing 1 required positional argument: 'currency'" in output[0]
    assert "charge() takes 2 positional arguments but 3 were given" in output[1]
    assert "unexpected keyword argument 'sum'" in output[2]


async def test_arguments_that_do_not_fit_their_annotations_fail_the_step_and_are_not_tried_again() -> None:
    called: list[Any] = []

    @step(retry=QUICK)
    async def charge(amount: int) -> int:
        called.append(amount)
        return amount

    @workflow
    async def flow() -> str:
        try:
            await charge("a lot")  # type: ignore[arg-type]
        except PerdureError as error:
            return str(error)
        return ""

    ran = await run(flow())
    assert "charge:0" in ran.output
    assert called == []
    assert len([e for e in await ran.events() if isinstance(e, StepStarted)]) == 1


async def test_all_kinds_of_parameters_reach_a_step() -> None:
    @step
    async def kinds(a: int, /, b: int, *rest: int, c: str = "c", **more: float) -> list[Any]:
        return [a, b, list(rest), c, more]

    @workflow
    async def flow() -> list[Any]:
        return [
            await kinds(1, 2),
            await kinds(1, b=2, c="x"),
            await kinds(1, 2, 3, 4, c="x", d=0.5),
        ]

    assert (await run(flow())).output == [
        [1, 2, [], "c", {}],
        [1, 2, [], "x", {}],
        [1, 2, [3, 4], "x", {"d": 0.5}],
    ]


async def test_exception_classes_defined_beside_a_step_inside_a_function_are_caught_by_type() -> None:
    class Local(Exception):
        pass

    @step
    async def failing() -> None:
        raise Local("beside the step")

    @workflow
    async def flow() -> str:
        try:
            await failing()
        except Local as error:
            return str(error)
        return ""

    ran = await run(flow())
    assert ran.output == "beside the step"
    await go_on_from_everywhere(flow(), ran)
