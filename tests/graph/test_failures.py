"""What a failure does to what runs beside it, in graphs within graphs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Engine, RunStatus, StepStatus, bail
from perdure.errors import LoopLimit, NotDecodable, NotSerializable, UsageError
from perdure.graph import END, Graph, ifelse, interrupt, node, route
from tests.engine.awkward_steps import KINDS, make
from tests.patience import PATIENCE


@interrupt(answer=int)
def asks(x: int) -> int:
    return x


async def test_a_failure_does_not_wait_for_a_question_in_a_graph_beside_it_but_for_the_steps_there() -> None:
    begun, broken = asyncio.Event(), asyncio.Event()

    @node
    async def works(x: int) -> int:
        begun.set()
        await broken.wait()
        return x

    @node
    async def breaks(x: int) -> int:
        await begun.wait()
        broken.set()
        raise ValueError("broken")

    @node
    def later(works: int) -> int:
        return works

    inner = Graph([asks, works, later], name="inner")
    graph = Graph([breaks, Graph([inner], name="between"), asks], name="g")
    async with Engine("memory://", [graph]) as engine:
        result = await engine.run(graph(x=1), id="r")
        assert (result.status, str(result.error)) == (RunStatus.FAILED, "broken")
        steps = {step.path: step.status for step in await engine.steps("r")}
        assert steps["between:0/inner:0/works:0"] is StepStatus.SUCCEEDED
        assert "between:0/inner:0/later:0" not in steps


async def test_a_run_that_is_cancelled_does_not_wait_for_its_steps() -> None:
    begun = asyncio.Event()

    @node
    async def hangs(x: int) -> int:
        begun.set()
        await asyncio.Event().wait()
        return x

    graph = Graph([Graph([hangs, asks], name="inner")], name="g")
    async with Engine("memory://", [graph]) as engine:
        handle = await engine.start(graph(x=1), id="r")
        await begun.wait()
        await engine.cancel("r", "enough")
        assert (await handle.outcome()).status is RunStatus.CANCELLED


async def test_a_loop_that_goes_round_too_often_does_not_wait_for_a_question_in_a_graph_beside_it() -> None:
    @node
    def count(x: int, count: int = 0) -> int:
        return count + 1

    @route(targets=["count", END])
    def again(count: int) -> object:
        return "count"

    beside = Graph([asks], name="beside")
    graph = Graph([count, again, beside], name="g", loops=["count"], max_rounds=3)
    async with Engine("memory://", [graph]) as engine:
        result = await engine.run(graph(x=1), id="r")
        assert isinstance(result.error, LoopLimit)


async def test_what_fails_when_it_is_decided_is_among_the_steps_with_its_error() -> None:
    def fails(x: int) -> bool:
        raise ValueError("a mistake")

    @node
    def fine(x: int) -> int:
        return x

    for failing in (
        route(targets=["fine", END], name="it")(fails),
        ifelse(when_true="fine", when_false=END, name="it")(fails),
        interrupt(answer=int, name="it")(fails),
        node(fine, name="it", when=fails),
        node(lambda x: x, name="it").map_over("x"),
    ):
        graph = Graph([failing, fine], name="g", on_failure="continue")
        async with Engine("memory://", [graph]) as engine:
            result = await engine.run(graph(x=1), id="r")
            (step,) = (step for step in await engine.steps("r") if step.path == "it:0")
            assert step.status is StepStatus.FAILED
            assert step.error is not None
            assert (result.status, step.error.message) == (RunStatus.FAILED, str(result.error))


class Panic(BaseException):
    """What is no Exception."""


@pytest.mark.parametrize("error", [SystemExit(3), Panic("no"), asyncio.CancelledError(), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("decides", ["route", "ifelse", "interrupt", "when", "until"])
async def test_whatever_a_decision_raises_fails_its_node_and_nothing_else(decides: str, error: BaseException) -> None:
    def fails(x: int) -> bool:
        raise error

    @node
    def fine(x: int) -> int:
        return x

    failing: dict[str, Any] = {
        "route": route(targets=["fine", END], name="it")(fails),
        "ifelse": ifelse(when_true="fine", when_false=END, name="it")(fails),
        "interrupt": interrupt(answer=int, name="it")(fails),
        "when": node(fine, name="it", when=fails),
        "until": node(fine, name="it", inputs={"x": "xs"}).map_over("x", until=fails),
    }
    graph = Graph([failing[decides], fine], name="g")
    given = {"x": 1, "xs": [1, 2]} if decides == "until" else {"x": 1}
    async with Engine("memory://", [graph]) as engine:
        result = await engine.run(graph(**given), id="r")
        assert result.status is RunStatus.FAILED, result
        assert type(error).__name__ in repr(result.error)
        assert (await engine.run(graph(**given), id="other")).status is RunStatus.FAILED


async def test_a_gate_cannot_bail() -> None:
    @route(targets=[END])
    def stop(x: int) -> object:
        bail("enough")

    graph = Graph([stop], name="g")
    async with Engine("memory://", [graph]) as engine:
        result = await engine.run(graph(x=1), id="r")
        assert isinstance(result.error, UsageError)
        assert "call it in a node" in str(result.error)


@pytest.mark.parametrize("value", [object(), float("nan")])
async def test_a_bound_value_that_cannot_be_stored_fails_what_takes_it(value: object) -> None:
    @node
    def takes(x: Any) -> Any:
        return x

    graph = Graph([takes], name="g").bind(x=value)
    async with Engine("memory://", [graph]) as engine:
        assert isinstance((await engine.run(graph(), id="r")).error, NotSerializable)
        (step,) = await engine.steps("r")
        assert (step.path, step.status) == ("takes:0", StepStatus.FAILED)


@pytest.mark.parametrize(("value", "error"), [(object(), NotSerializable), ("text", NotDecodable)])
async def test_a_stand_in_for_an_answer_is_checked_as_an_answer_is(value: object, error: type[Exception]) -> None:
    question = interrupt(answer=int, timeout=0, on_timeout=value, name="it")(lambda x: x)

    @node
    def takes(it: int) -> int:
        return it

    graph = Graph([question, takes], name="g")
    async with Engine("memory://", [graph]) as engine:
        result = await engine.run(graph(x=1), id="r", until="end")
        assert isinstance(result.error, error)
        assert {step.path: step.status.value for step in await engine.steps("r")} == {
            "it:0": "failed",
            "takes:0": "blocked",
        }


@pytest.mark.parametrize("chunk", [2, 500])
@pytest.mark.parametrize("where", ["beside", "inside", "item"])
async def test_a_map_begins_no_item_after_a_failure_beside_it(where: str, chunk: int) -> None:
    begun, failed, ran = asyncio.Event(), asyncio.Event(), list[int]()

    @node
    async def breaks(x: int) -> int:
        await begun.wait()
        asyncio.get_running_loop().call_soon(failed.set)
        raise ValueError("broken")

    async def each(number: int) -> int:
        ran.append(number)
        if len(ran) == 2:
            begun.set()
        await failed.wait()
        await asyncio.sleep(0)
        return number

    mapped: Any = node(each, inputs={"number": "numbers"}).map_over("number", limit=2, chunk=chunk)
    if where == "inside":
        mapped = Graph([mapped], name="inner")
    elif where == "item":
        mapped = node(Graph([mapped], name="inner"), inputs={"numbers": "lists"}).map_over("numbers")
    graph = Graph([breaks, mapped], name="g")
    given = {"lists": [[0, 1, 2, 3, 4, 5]]} if where == "item" else {"numbers": [0, 1, 2, 3, 4, 5]}
    async with Engine("memory://", [graph]) as engine:
        result = await engine.run(graph(x=1, **given), id="r")
        assert (result.status, str(result.error)) == (RunStatus.FAILED, "broken")
        assert len(ran) == 2
        # What has ended is recorded, and a retry runs the others.
        begun.set()
        retried = await (await engine.retry("r")).outcome()
        assert str(retried.error) == "broken"
        assert len(ran) == len(set(ran))


@pytest.mark.parametrize("kind", KINDS)
async def test_whatever_a_decision_raises_fails_its_node(kind: str) -> None:
    def decides(x: int) -> Any:
        raise make(kind)

    @node
    def works(x: int) -> int:
        return x

    graphs = [
        Graph([route(targets=["works", END])(decides), works], name="gate"),
        Graph([node(works, when=decides)], name="condition"),
        Graph([interrupt(answer=int)(decides)], name="question"),
    ]
    async with Engine("memory://", graphs) as engine:
        for graph in graphs:
            result = await (await engine.start(graph(x=1))).outcome(PATIENCE)
            assert result.status is RunStatus.FAILED, graph.name
