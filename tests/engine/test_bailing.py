"""`bail()` and `patched()` in steps: the end of the run on purpose, and the path that the run takes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Engine,
    InvalidName,
    NotSerializable,
    PayloadTooLarge,
    Retry,
    RunStatus,
    StepBailed,
    UsageError,
    Workflow,
    bail,
    child,
    connect,
    patched,
    rule,
    set_state,
    step,
    step_inline,
    workflow,
)
from tests.engine.cpu_steps import ask_patch, bail_out
from tests.engine.harness import PATIENCE


@step(retry=Retry(attempts=5, initial=0.001))
async def gives_up(output: Any = None) -> str:
    try:
        bail("no stock", output)
    except Exception:
        return "caught"


@step
def gives_up_in_thread() -> str:
    bail("no stock", {"left": 0})


@step(queue="elsewhere")
async def gives_up_elsewhere() -> str:
    bail("no stock", {"left": 0})


@workflow
async def orders(kind: str) -> Any:
    try:
        if kind == "loop":
            return await gives_up({"left": 0})
        if kind == "thread":
            return await gives_up_in_thread()
        if kind == "remote":
            return await gives_up_elsewhere()
        if kind == "cpu":
            return await bail_out()
        if kind == "inline":
            return await step_inline("inline", lambda: bail("no stock", {"left": 0}))
        if kind == "gather":
            return (await asyncio.gather(gives_up({"left": 0}), gives_up_in_thread()))[0]
        return await child(orders("loop"))
    except Exception as error:
        return f"caught {error!r}"


@pytest.mark.parametrize("kind", ["loop", "thread", "remote", "cpu", "inline", "gather"])
async def test_a_step_that_bails_ends_its_run_on_purpose(kind: str) -> None:
    async with Engine("memory://", [orders], steps=[gives_up_elsewhere]) as engine:
        result = await engine.run(orders(kind), id="r")
        assert (result.status, result.output, result.error) == (RunStatus.BAILED, {"left": 0}, None)
        view = await engine.get("r")
        assert view is not None
        assert view.reason == "no stock"
        (first, *_) = await engine.steps("r")
        assert (first.attempt, first.error.message if first.error else "") == (1, "no stock")


@step
async def gives_up_for(kind: str) -> None:
    bail(REASONS[kind])


@workflow
async def gives_up_at_once(kind: str) -> None:
    bail(REASONS[kind])


@workflow
async def gives_up_in_a_step(kind: str) -> None:
    await gives_up_for(kind)


REASONS: dict[str, Any] = {
    "number": 5,
    "list": ["no stock"],
    "exception": ValueError("no stock"),
    "surrogate": "\ud800",
    "long": "x" * 10_001,
}


@pytest.mark.parametrize("kind", REASONS)
@pytest.mark.parametrize("where", [gives_up_at_once, gives_up_in_a_step])
async def test_a_reason_that_cannot_be_kept_fails_the_run(where: Workflow[[str], None], kind: str) -> None:
    async with Engine("memory://", [where]) as engine:
        result = await engine.run(where(kind), id="r")
        assert result.status is RunStatus.FAILED
        assert isinstance(result.error, UsageError)
        assert "the reason of bail()" in str(result.error)
        assert await engine.journal("r")


async def test_a_child_whose_step_bails_bails_and_its_parent_goes_on() -> None:
    async with Engine("memory://", [orders]) as engine:
        result = await engine.run(orders("child"), id="r")
        assert (result.status, result.output) == (RunStatus.COMPLETED, {"left": 0})


async def test_a_child_that_bailed_is_not_tried_again_when_its_parent_is_retried() -> None:
    calls: list[int] = []
    broken = [True]

    @step
    async def gives() -> int:
        calls.append(1)
        bail("enough", 5)

    @step
    async def fails() -> int:
        if broken[0]:
            raise ValueError("no")
        return 1

    @workflow
    async def inner() -> int:
        return await gives()

    @workflow
    async def outer() -> list[int]:
        return [await inner(), await fails()]

    async with Engine("memory://", [outer, inner]) as engine:
        _ = await engine.run(outer(), id="r")
        broken[0] = False
        assert await (await engine.retry("r")).result(PATIENCE) == [5, 1]
        assert calls == [1]


async def test_no_policy_makes_anything_else_of_it() -> None:
    policies: list[Any] = [
        rule("gives_up", retry=Retry(attempts=5, initial=0.001, on=(BaseException,))),
        rule("gives_up", on_failure="skip"),
        rule("gives_up", fallback=lambda failed: 7),
    ]
    for policy in policies:
        async with Engine("memory://", [orders], rules=[policy]) as engine:
            result = await engine.run(orders("loop"), id="r")
            assert (result.status, result.output) == (RunStatus.BAILED, {"left": 0})
            assert (await engine.steps("r"))[0].attempt == 1


async def test_a_run_that_bailed_in_a_step_is_replayed_as_it_was(tmp_path: Path) -> None:
    @workflow
    async def cleans() -> str:
        try:
            return await gives_up(1)
        finally:
            set_state("cleaned", True)

    url = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url, [cleans]) as engine:
        _ = await engine.run(cleans(), id="r")
        forked = await engine.fork("r", at="gives_up:0", new_id="again")
        assert (await forked.outcome(PATIENCE)).status is RunStatus.BAILED
    async with connect(url) as client:
        assert await client.handle("r").status() is RunStatus.BAILED


async def test_what_cannot_be_kept_of_it_fails_the_step() -> None:
    class Odd:
        pass

    @step
    async def odd() -> None:
        bail("odd", Odd())

    @step
    async def large() -> None:
        bail("large", "x" * 300_000)

    @workflow
    async def tries(which: str) -> str:
        try:
            await (odd() if which == "odd" else large())
        except (NotSerializable, PayloadTooLarge) as error:
            return type(error).__name__
        return "?"

    async with Engine("memory://", [tries]) as engine:
        assert (await engine.run(tries("odd"))).output == "NotSerializable"
        assert (await engine.run(tries("large"))).output == "PayloadTooLarge"


def hand_made(how: str) -> BaseException:
    """A StepBailed that bail() would not have made."""
    if how == "bare":
        return StepBailed.__new__(StepBailed)
    made = StepBailed("no stock")
    if how == "no output":
        del made.output
    elif how == "a number":
        made.reason = 7  # type: ignore[assignment]
    elif how == "a surrogate":
        made.reason = "\ud800"
    elif how == "long":
        made.reason = "x" * 20_000
    elif how == "other arguments":
        made.args = (1, 2, 3)
    return made


@step
async def breaks(how: str) -> None:
    raise hand_made(how)


@step(queue="elsewhere")
async def breaks_elsewhere(how: str) -> None:
    raise hand_made(how)


@workflow
async def trusting(how: str, where: str) -> str:
    try:
        await (breaks(how) if where == "here" else breaks_elsewhere(how))
    except UsageError as error:
        return str(error)
    return "?"


@pytest.mark.parametrize("where", ["here", "elsewhere"])
@pytest.mark.parametrize("how", ["bare", "no output", "a number", "a surrogate", "long"])
async def test_a_step_bailed_that_was_made_by_hand_and_is_broken_fails_the_step(how: str, where: str) -> None:
    async with Engine("memory://", [trusting], steps=[breaks_elsewhere]) as engine:
        handle = await engine.start(trusting(how, where))
        assert "StepBailed" in await handle.result(PATIENCE)


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_step_bailed_with_other_arguments_still_bails(where: str) -> None:
    async with Engine("memory://", [trusting], steps=[breaks_elsewhere]) as engine:
        outcome = await (await engine.start(trusting("other arguments", where))).outcome(PATIENCE)
        assert outcome.status is RunStatus.BAILED


def test_a_step_that_is_called_plainly_raises_what_bail_raises() -> None:
    with pytest.raises(StepBailed, match="no stock") as raised:
        gives_up_in_thread.fn()
    assert raised.value.output == {"left": 0}


# --- patched --------------------------------------------------------------------------------------------------------


@step
def price(cents: int) -> int:
    return cents * 2 if patched("twice") else cents


@step(queue="elsewhere")
async def price_elsewhere(cents: int) -> int:
    return cents * 2 if patched("twice") else cents


async def test_a_step_gets_the_answer_that_its_body_was_given() -> None:
    @workflow
    async def asks() -> list[int]:
        patched("twice")
        return [await price(1), await price_elsewhere(1), await ask_patch(1), await inner()]

    @workflow
    async def inner() -> int:
        patched("twice")
        return await price(2)

    async with Engine("memory://", [asks, inner], steps=[price_elsewhere]) as engine:
        assert (await engine.run(asks())).output == [2, 2, 2, 4]


async def test_a_run_that_was_beyond_the_place_keeps_its_old_path_in_its_steps(tmp_path: Path) -> None:
    from perdure import wait_signal

    url = f"sqlite:///{tmp_path}/runs.db"

    @workflow(name="sells")
    async def before() -> int:
        await wait_signal("go")
        return 0

    @workflow(name="sells")
    async def after() -> list[int]:
        patched("twice")
        await wait_signal("go")
        return [await price(1), await price_elsewhere(1), await ask_patch(1)]

    async with Engine(url, [before], name="a") as engine:
        _ = await engine.start(before(), id="old")
    async with Engine(url, [after], name="a", steps=[price_elsewhere]) as engine:
        _ = await engine.start(after(), id="new")
        for id in ("old", "new"):
            await engine.signal(id, "go")
        assert await engine.handle("old").result(PATIENCE) == [1, 1, 1]
        assert await engine.handle("new").result(PATIENCE) == [2, 2, 2]


async def test_a_step_that_asks_before_its_body_is_told_to_ask_there() -> None:
    @workflow
    async def forgets() -> int:
        return await price(1)

    async with Engine("memory://", [forgets]) as engine:
        error = (await engine.run(forgets())).error
        assert isinstance(error, UsageError)
        assert "write patched('twice') in its body, before it calls the step" in str(error)
    with pytest.raises(InvalidName):
        patched("a/b")
