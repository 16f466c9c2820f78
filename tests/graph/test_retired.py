"""A node that a graph has retired while it was under way: it is given up, and the run goes on without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, Recovery, RunStatus, approval, step, workflow
from perdure.client.views import StepView
from perdure.graph import Graph, interrupt, node
from perdure.kernel.events import StepSucceeded
from tests.engine.harness import PATIENCE, Recorded


def add(name: str, value: str = "x", **options: Any) -> Any:
    """A node that adds one to a value."""
    return node(lambda x: x + 1, name=name, inputs={"x": value}, **options)


async def hang(x: int) -> int:
    """A step that is under way when its process ends."""
    await asyncio.Event().wait()
    return x


@step(queue="elsewhere")
async def far(x: int) -> int:
    """A step of a queue that no engine serves."""
    return x


@workflow
async def asks(x: int) -> int:
    """Code that is under way in several places."""
    answer: int = await approval("sure", schema=int)
    return answer + x


def ask(name: str) -> Any:
    """A question."""
    return interrupt(answer=int, name=name)(lambda x: x)


async def twice(x: int) -> list[int]:
    """A list."""
    return [x, x]


def begins(op: str) -> Callable[[Any], bool]:
    """Whether an event is about an op."""
    return lambda event: getattr(event, "op", "") == op


HANGS = node(hang, name="old")
INSIDE = Graph([node(hang, name="slow"), ask("really"), add("done")], name="inside")
# Nodes that are retired, with the ops that they have under way.
CASES: dict[str, tuple[list[Any], list[str]]] = {
    "a step": ([HANGS], ["old:0"]),
    "a remote step": ([node(far, name="old")], ["old:0"]),
    "a question": ([ask("old")], ["old:0"]),
    "a graph": ([INSIDE.as_node("old")], ["old:0/really:0", "old:0/slow:0"]),
    "code": ([node(asks, name="old")], ["old:0/sure:0"]),
    "two levels": (
        [Graph([INSIDE.as_node("within")], name="outer").as_node("old")],
        ["old:0/within:0/really:0", "old:0/within:0/slow:0"],
    ),
    "a map": ([node(twice), node(hang, name="old", inputs={"x": "twice"}).map_over("x")], ["old:0[0]", "old:0[1]"]),
    "a map of graphs": (
        [node(twice), node(INSIDE, name="old", inputs={"x": "twice"}).map_over("x")],
        ["old:0[0]/really:0", "old:0[0]/slow:0", "old:0[1]/really:0", "old:0[1]/slow:0"],
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_what_is_under_way_of_a_retired_node_is_given_up(case: str, tmp_path: Path) -> None:
    old, ops = CASES[case]
    url, recorded = f"sqlite:///{tmp_path / 'g.db'}", Recorded()
    rest = [ask("ask"), interrupt(answer=int, name="later", inputs={"x": "ask"})(lambda x: x), add("after", "later")]
    before = Graph([*old, *rest], name="g", output="after")
    async with Engine(url, [before], recovery=Recovery(grace=0), on_commit=recorded) as engine:
        _ = await engine.start(before(x=1), id="r")
        for op in (*ops, "ask:0"):
            await recorded.until(begins(op))
    after = Graph([*old[:-1], *rest], name="g", output="after", retired=["old"])
    async with Engine(url, [after]) as engine:
        await engine.approve("r", "ask", 1)
        result = await engine.run(after, id="r")
        assert [one.path for one in result.interrupts] == ["later:0"]
        view = await engine.get("r")
        assert view is not None
        assert (view.status, [wait.path for wait in view.waits]) == (RunStatus.WAITING, ["later:0"])
        shown: dict[str, StepView] = {step.path: step for step in await engine.steps("r")}
        for op in ops:
            if op in shown:
                assert shown[op].status == "failed"
                assert "the graph has retired it" in str(shown[op].error)
    # A later owner replays what was given up.
    async with Engine(url, [after]) as engine:
        assert (await engine.run(after, id="r", answers={"later": 1})).output == 2
        assert not (await engine.list(status=["queued", "running", "waiting"]))


async def test_one_that_has_ended_is_passed_over_as_before(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'g.db'}"
    before = Graph([add("old"), ask("ask"), add("after", "ask")], name="g", output="after")
    async with Engine(url, [before]) as engine:
        await engine.run(before(x=1), id="r")
    after = Graph([ask("ask"), add("after", "ask")], name="g", output="after", retired=["old"])
    async with Engine(url, [after]) as engine:
        assert (await engine.run(after, id="r", answers={"ask": 1})).output == 2
        [old, _] = await engine.steps("r")
        assert (old.path, old.status, old.output) == ("old:0", "succeeded", 2)


@pytest.mark.parametrize("case", ["a step", "a question", "a graph", "code"])
async def test_the_node_that_comes_back_parks_the_run_and_says_that_it_was_given_up(case: str, tmp_path: Path) -> None:
    old, ops = CASES[case]
    url, recorded = f"sqlite:///{tmp_path / 'g.db'}", Recorded()
    rest = [ask("ask"), interrupt(answer=int, name="later", inputs={"x": "ask"})(lambda x: x)]
    before, after = Graph([*old, *rest], name="g"), Graph(rest, name="g", retired=["old"])
    async with Engine(url, [before], recovery=Recovery(grace=0), on_commit=recorded) as engine:
        _ = await engine.start(before(x=1), id="r")
        for op in (*ops, "ask:0"):
            await recorded.until(begins(op))
    async with Engine(url, [after]) as engine:
        await engine.approve("r", "ask", 1)
        assert (await engine.run(after, id="r")).interrupted
    async with Engine(url, [before]) as engine:
        handle = engine.handle("r")
        await handle.approve("later", 1)
        result = await handle.outcome(PATIENCE, until="rest")
        assert result.status is RunStatus.PARKED, result
        assert "The run cancelled old:0" in str(result.error)
    async with Engine(url, [after]) as engine:
        assert (await engine.handle("r").result()) == {"later": 1}


@pytest.mark.parametrize("case", [case for case in CASES if "remote" not in case])
async def test_a_run_that_waits_for_nothing_else_goes_on_at_the_deploy(case: str, tmp_path: Path) -> None:
    old, ops = CASES[case]
    url, recorded = f"sqlite:///{tmp_path / 'g.db'}", Recorded()
    before = Graph([*old, ask("ask"), add("after", "ask")], name="g", output="after")
    async with Engine(url, [before], recovery=Recovery(grace=0), on_commit=recorded) as engine:
        _ = await engine.start(before(x=1), id="r")
        for op in (*ops, "ask:0"):
            await recorded.until(begins(op))
        await engine.approve("r", "ask", 1)
        await recorded.until(begins("after:0"))
    after = Graph([*old[:-1], ask("ask"), add("after", "ask")], name="g", output="after", retired=["old"])
    async with Engine(url, [after]) as engine:
        assert await engine.handle("r").result(PATIENCE) == 2


async def test_a_node_that_was_added_beside_an_open_question_runs_at_the_deploy(tmp_path: Path) -> None:
    url, recorded = f"sqlite:///{tmp_path / 'g.db'}", Recorded()
    before = Graph([ask("ask"), add("after", "ask")], name="g")
    async with Engine(url, [before]) as engine:
        assert (await engine.run(before(x=1), id="r")).interrupted
    after = Graph([ask("ask"), add("after", "ask"), add("beside")], name="g")
    async with Engine(url, [after], on_commit=recorded) as engine:
        await recorded.until(lambda event: isinstance(event, StepSucceeded) and event.op == "beside:0")
        assert (await engine.run(after, id="r")).interrupted
    async with Engine(url, [after]) as engine:
        assert (await engine.run(after, id="r", answers={"ask": 1})).output == {"after": 2, "beside": 2}
