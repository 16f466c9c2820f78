"""What a graph gives back whose output was skipped, and what that means for a graph around it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, RunStatus, connect, workflow
from perdure.graph import END, Graph, ifelse, node


@node
def a(x: int) -> int:
    return x


@ifelse(when_true="a", when_false=END)
def gate(x: int) -> bool:
    return x > 0


@node
def apart(x: int) -> int:
    return x


@dataclass
class Report:
    a: int
    apart: int


@dataclass
class Draft:
    apart: int
    a: int = 7


INNER = Graph([a, gate], name="inner", output=a)


async def test_an_output_that_was_skipped_is_none() -> None:
    @workflow
    async def calls(x: int) -> int | None:
        return await INNER(x=x)

    async with Engine("memory://", [INNER, calls]) as engine:
        assert (await engine.run(INNER(x=1))).output == 1
        result = await engine.run(INNER(x=0), id="r")
        assert (result.status, repr(result.output)) == (RunStatus.COMPLETED, "None")
        assert await engine.handle("r", INNER).result() is None
        assert (await engine.run(calls(1))).output == 1
        assert (await engine.run(calls(0))).output is None


@pytest.mark.parametrize(
    ("output", "there", "skipped"), [(Report, Report(1, 1), None), (Draft, Draft(1, 1), Draft(0, 7))]
)
async def test_a_skipped_value_of_a_typed_result(output: Any, there: object, skipped: object) -> None:
    graph = Graph([a, gate, apart], name="g", output=output)
    async with Engine("memory://", [graph]) as engine:
        assert (await engine.run(graph(x=1))).output == there
        assert (await engine.run(graph(x=0))).output == skipped


@pytest.mark.parametrize("output", [a, Report, "a"])
async def test_a_skip_in_a_nested_graph_spreads_to_what_needs_its_output(output: Any) -> None:
    inner = Graph([a, gate, apart], name="inner", output=output)

    @node
    def after(inner: Any) -> int:
        return 1

    @node
    def stands_in(inner: Any = None) -> bool:
        return inner is None

    graph = Graph([inner, after, stands_in], name="g")
    async with Engine("memory://", [graph]) as engine:
        assert (await engine.run(graph(x=1))).output == {"after": 1, "stands_in": False}
        result = await engine.run(graph(x=0), id="r")
        assert result.output == {"stands_in": True}
        with pytest.raises(KeyError, match="inner:0 was skipped"):
            result.output["after"]
        [skipped] = [step for step in await engine.steps("r") if step.path == "after:0"]
        assert (skipped.status, skipped.skipped_by) == ("skipped", "inner:0")
        assert await engine.values("r") == {"x": 0, "stands_in": True}


async def test_two_levels_down_and_renamed() -> None:
    middle = Graph([INNER], name="middle", output="inner").rename_outputs(inner="out")

    @node
    def after(middle: int) -> int:
        return middle

    graph = Graph([middle, after], name="g", output=after)
    async with Engine("memory://", [graph]) as engine:
        assert (await engine.run(graph(x=1))).output == 1
        assert (await engine.run(graph(x=0))).output is None


@pytest.mark.parametrize(("on_error", "results"), [("fail", [1, 2]), ("skip", [1, 2]), ("none", [1, None, 2])])
async def test_an_item_whose_output_was_skipped_has_no_result(on_error: Any, results: list[Any]) -> None:
    graph = Graph([INNER.map_over("x", on_error=on_error, until=lambda one: one == 2)], name="g")
    async with Engine("memory://", [graph]) as engine:
        assert (await engine.run(graph(x=[1, 0, 2, 3]))).output == {"inner": results}


async def test_an_item_whose_output_was_skipped_is_shown_as_skipped() -> None:
    whole = Graph([a, gate, apart], name="whole")
    graph = Graph([INNER.map_over("x"), whole.map_over("x")], name="g")
    async with Engine("memory://", [graph]) as engine:
        await engine.run(graph(x=[1, 0, 2]), id="r")
        items = await engine.items("r", "inner")
        assert [(one.status, one.output) for one in items] == [("succeeded", 1), ("skipped", None), ("succeeded", 2)]
        assert items[1].reason == "gate:0 chose none of its targets"
        assert await engine.items("r", "inner", status="skipped") == [items[1]]
        # A part of its values is there: the item has run.
        [_, part, _] = await engine.items("r", "whole")
        assert (part.status, part.output, part.reason) == ("succeeded", {"apart": 0}, "")
        values = await engine.values("r")
        assert (values["inner"], values["whole"][1]) == ([1, 2], {"apart": 0})


@pytest.mark.parametrize(("output", "shown"), [(None, {"apart": 0}), (a, None), (Report, None), (Draft, {"apart": 0})])
async def test_a_process_without_the_code_sees_no_marker(output: Any, shown: object, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'g.db'}"
    inner = Graph([a, gate, apart], name="inner", output=output)
    graph = Graph([inner], name="g")
    async with Engine(url, [inner, graph]) as engine:
        await engine.run(inner(x=0), id="r")
        await engine.run(graph(x=0), id="outer")
    async with connect(url) as client:
        for id in ("r", "outer/inner:0"):
            view = await client.get(id)
            assert view is not None
            assert (view.status, view.output) == ("completed", shown)
            assert await client.handle(id).result() == shown
        assert all("$" not in str(run.output) for run in await client.list())


async def test_a_node_that_takes_the_results_of_a_graph_sees_no_marker() -> None:
    @workflow
    async def own(x: list[int]) -> dict[str, Any]:
        return {"$skipped": {"mine": x}}

    @node
    def whole(parts: Any) -> Any:
        return parts

    @node
    def reduced(many: list[dict[str, int]], last: Any) -> Any:
        return many, last

    parts = Graph([a, gate, apart], name="parts")
    middle = Graph([parts.as_node("parts"), whole], name="middle", output=whole)
    graph = Graph([middle.as_node("many").map_over("x"), node(own, name="last"), reduced], name="g", output=reduced)
    async with Engine("memory://", [graph, middle]) as engine:
        result = await engine.run(graph(x=[0, 1]), id="r")
        # What a workflow returns is its own, whatever its keys are.
        assert result.output == [[{"apart": 0}, {"a": 1, "apart": 1}], {"$skipped": {"mine": [0, 1]}}]
        [fork] = [await engine.fork("r", at="reduced", new_id="f")]
        assert (await fork.outcome()).output == result.output


async def test_a_map_whose_list_was_skipped_is_skipped() -> None:
    def item(a: int = 7) -> int:
        return a

    def many(x: int) -> list[int]:
        return [x]

    graph = Graph([node(many, name="a"), gate, node(item).map_over("a"), apart], name="g")
    default = Graph([node(item, name="of_item")], name="of_graph").map_over("a")
    graphs = Graph([node(many, name="a"), gate, default, apart], name="h")
    async with Engine("memory://", [graph, graphs]) as engine:
        assert (await engine.run(graph(x=0))).output == {"apart": 0}
        assert (await engine.run(graph(x=1))).output == {"apart": 1, "item": [1]}
        assert (await engine.run(graphs(x=0))).output == {"apart": 0}


@pytest.mark.parametrize(("on_error", "results"), [("fail", [1, 2]), ("none", [1, None, 2])])
async def test_a_value_that_some_items_lack(on_error: Any, results: list[Any]) -> None:
    parts = Graph([a, gate, apart], name="parts").map_over("x", on_error=on_error)
    graph = Graph([parts, node(lambda a: a, name="took")], name="g")
    async with Engine("memory://", [graph]) as engine:
        result = await engine.run(graph(x=[1, 0, 2]))
        assert result.output == {"took": results, "apart": [1, 0, 2]}
