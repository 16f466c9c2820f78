"""Which steps a workflow calls, and the rules that are refused because of it."""

from __future__ import annotations

import asyncio
import functools
import logging
from types import SimpleNamespace
from typing import Any

import pytest

import perdure
from perdure import Engine, InvalidRule, default, rule, saga, sleep, step, step_inline, workflow
from tests.authoring.code import reached

LIMIT = 5


@step
async def charge(n: int) -> int:
    return n


@step(name="give-back")
async def refund(n: int) -> int:
    return n


@step
async def unused(n: int) -> int:
    return n


async def helper(n: int) -> int:
    return await charge(n)


TABLE = {"charge": charge, "refund": refund}


def steps_of(program: Any) -> tuple[list[str], bool]:
    found = program.step_names()
    return sorted(found.steps), found.complete


def test_steps_are_found_where_they_are_called() -> None:
    @workflow
    async def flow(n: int) -> int:
        await sleep(LIMIT)
        for i in range(n):
            await asyncio.gather(charge(i), charge.options(timeout=5)(i))
        return await refund(n)

    assert steps_of(flow) == (["charge", "give-back"], True)


def test_steps_are_found_through_functions_closures_tables_and_modules() -> None:
    local = unused

    @workflow
    async def flow(n: int) -> int:
        async def inner() -> int:
            return await local(n) + await helper(n)

        async with saga() as s:
            s.compensate(refund, n)
        return await inner() + await reached.deep(n) + await functools.partial(reached.shallow, n)()

    assert steps_of(flow) == (["charge", "deep_step", "give-back", "shallow", "unused"], True)


def test_steps_are_found_in_tables() -> None:
    @workflow
    async def flow(name: str) -> int:
        return await TABLE[name](7)

    assert steps_of(flow) == (["charge", "give-back"], True)


def test_steps_of_children_are_found() -> None:
    @workflow
    async def child(n: int) -> int:
        return await charge(n)

    @workflow
    async def flow(n: int) -> int:
        return await child(n)

    assert steps_of(flow) == (["charge"], True)


def test_a_workflow_that_calls_itself_is_no_problem() -> None:
    @workflow
    async def flow(n: int) -> int:
        return await flow(n - 1) if n else await charge(n)

    assert steps_of(flow) == (["charge"], True)


def test_code_that_decides_at_run_time_is_not_complete() -> None:
    service: Any = SimpleNamespace(charge=charge)

    @workflow
    async def dynamic(name: str) -> int:
        found: int = await getattr(reached, name)(7)
        return found

    @workflow
    async def inline(n: int) -> None:
        await step_inline("roll", lambda: n)

    @workflow
    async def by_name() -> None:
        await perdure.call("other", 1)

    @workflow
    async def through_an_object() -> int:
        found: int = await service.charge(1)
        return found

    assert steps_of(dynamic) == ([], False)
    assert steps_of(inline) == ([], False)
    assert "roll" in inline.step_names().texts
    assert steps_of(by_name) == ([], False)
    assert steps_of(through_an_object) == (["charge"], False)


def test_objects_whose_attributes_raise_are_no_problem() -> None:
    @workflow
    async def flow(n: int) -> Any:
        return await charge(n), reached.PROXY.anything

    assert steps_of(flow) == (["charge"], False)


# --- rules ----------------------------------------------------------------------------------------------------------


@workflow
async def shop(n: int) -> int:
    return await charge(n) + await refund(n)


async def test_a_rule_for_an_unknown_step_is_refused_with_the_nearest_name() -> None:
    async with Engine("memory://", [shop]) as engine:
        with pytest.raises(InvalidRule) as caught:
            _ = await engine.start(shop(1), id="it", rules=[rule("charge", timeout=5), rule("chrage", timeout=5)])
        assert str(caught.value) == (
            "start(rules=...), rule 2: 'chrage' can match nothing: the workflow 'shop' calls no step of that name; "
            "did you mean 'charge'?"
        )
        with pytest.raises(InvalidRule, match="it calls charge, give-back"):
            _ = await engine.start(shop(1), id="it", rules=[rule("something", timeout=5)])
        assert await engine.get("it") is None
        assert (await engine.run(shop(1), id="it", rules=[rule("give-back", timeout=5), rule(default)])).output == 2


def test_a_workflow_with_a_rule_for_no_step_of_its_own_is_refused() -> None:
    @workflow(rules=[rule("chrage", timeout=5)])
    async def wrong(n: int) -> int:
        return await charge(n)

    with pytest.raises(InvalidRule, match="@workflow wrong, rule 1: 'chrage' can match nothing"):
        _ = Engine("memory://", [wrong])


def test_an_engine_refuses_a_likely_typo_and_warns_of_other_unknown_names(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InvalidRule, match="this engine calls no step of that name; did you mean 'charge'"):
        _ = Engine("memory://", [shop], rules=[rule("chargee", timeout=5)])
    with caplog.at_level(logging.WARNING, "perdure"):
        _ = Engine("memory://", [shop], rules=[rule("of_another_engine", timeout=5)])
    assert "'of_another_engine' can match nothing" in caplog.text
    caplog.clear()
    _ = Engine("memory://", [shop], rules=[rule("charge", timeout=5)])
    assert caplog.text == ""


async def test_names_are_not_held_against_code_that_cannot_be_followed() -> None:
    @workflow
    async def inline(n: int) -> int:
        roll: int = await step_inline(f"roll-{n}", lambda: n)
        return roll

    async with Engine("memory://", [inline]) as engine:
        assert (await engine.run(inline(3), rules=[rule("roll-3", timeout=5)])).output == 3
        assert (await engine.run(inline(3), rules=[rule("whatever", timeout=5)])).output == 3
