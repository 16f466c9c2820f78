"""Long lists, the results of maps in chunks, that gates, questions, conditions and workflows in code take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, PayloadTooLarge, UsageError, workflow
from perdure.graph import END, Graph, InterruptNode, Items, ifelse, interrupt, node, route
from perdure.testing import crash_everywhere
from tests.graph.running import run


@node
def urls(n: int) -> list[int]:
    return list(range(n))


def doubled(url: int) -> int:
    return url * 2


@workflow
async def counted(fetch: list[int]) -> int:
    return len(fetch)


@workflow
async def texts(fetch: list[str]) -> int:
    return len(fetch)


def is_nine(annotation: Any) -> Any:
    """A condition by a list."""

    def decide(fetch: Any) -> bool:
        return len(fetch) == 9

    decide.__annotations__ = {"fetch": annotation, "return": bool}
    return decide


def taking(kind: str, annotation: Any = list[int]) -> list[Any]:
    """What takes the results of a map, and is not a step; its value is that of `end`."""

    def decide(fetch: Any) -> Any:
        return len(fetch)

    decide.__annotations__ = {"fetch": annotation}
    end: Any = node(lambda n: n, name="end")
    answer: Any = node(lambda n: n, name="end", inputs={"n": "ask"})
    shows: Any = InterruptNode(name="ask", input_param="fetch", response_schema=int, suspend_schema=annotation)
    return {
        "gate": [route(targets=["end", END], name="gate")(lambda fetch: "end" if len(fetch) == 9 else END), end],
        "typed gate": [ifelse(when_true="end", when_false=END, name="gate")(is_nine(annotation)), end],
        "question": [interrupt(answer=int, name="ask")(decide), answer],
        "shown": [shows, answer],
        "condition": [node(lambda n: n, name="end", when=is_nine(annotation))],
        "workflow": [node(counted if annotation == list[int] else texts, name="end")],
    }[kind]


KINDS = pytest.mark.parametrize("kind", ["gate", "typed gate", "question", "shown", "condition", "workflow"])


@KINDS
@pytest.mark.parametrize("stays", [True, False])
async def test_what_decides_in_the_orchestrator_takes_long_lists(kind: str, stays: bool, tmp_path: Path) -> None:
    mapped = node(doubled, name="fetch", inputs={"url": "urls"}).map_over("url", chunk=2)
    graph = Graph([urls, mapped, *taking(kind)], name="g", output="end")
    url = "memory://" if stays else f"sqlite:///{tmp_path / 'runs.db'}"
    asked = kind in ("question", "shown")
    async with Engine(url, [graph]) as engine:
        result = await engine.run(graph(n=9), id="r")
        assert result.interrupted is asked
        if asked:
            assert result.suspend_payload == (9 if kind == "question" else [2 * n for n in range(9)])
        if stays:
            assert (await engine.run(graph, id="r", answers={"ask": 9} if asked else None)).output == 9
    if not stays:
        async with Engine(url, [graph]) as engine:
            assert (await engine.run(graph, id="r", answers={"ask": 9} if asked else None)).output == 9


@KINDS
async def test_a_list_above_the_limit_fails_what_decides(kind: str) -> None:
    def large(url: int) -> str:
        return "x" * 300_000

    mapped = node(large, name="fetch", inputs={"url": "urls"}).map_over("url", chunk=2)
    graph = Graph([urls, mapped, *taking(kind, list[str])], name="g")
    result = (await run(graph, n=9)).result
    assert isinstance(result.error, PayloadTooLarge), result
    assert "annotate `fetch: Items[...]`" in str(result.error)


def test_what_decides_by_a_long_list_survives_a_crash_at_every_commit() -> None:
    mapped = node(doubled, name="fetch", inputs={"url": "urls"}).map_over("url", chunk=2)
    for kind in ("gate", "condition", "workflow"):
        graph = Graph([urls, mapped, *taking(kind)], name="g", output="end")
        assert crash_everywhere(graph(n=9)).result.output == 9


def test_a_list_that_a_step_was_called_with_is_loaded_again_after_a_crash() -> None:
    @node
    def total(fetch: list[int]) -> int:
        return sum(fetch)

    @node(inputs={"parts": ["fetch", "fetch"]})
    def totals(parts: list[list[int]]) -> int:
        return sum(map(sum, parts))

    mapped = node(doubled, name="fetch", inputs={"url": "urls"}).map_over("url", chunk=2)
    alone: Any = node(totals.fn, name="totals")
    nested = node(Graph([alone], name="nested", output=alone), inputs={"parts": ["fetch", "fetch"]})
    graph = Graph([urls, mapped, total, totals, nested], name="g")
    survived = crash_everywhere(graph(n=5))
    assert dict(survived.result.output) == {"total": 20, "totals": 40, "nested": 40}


async def test_lists_in_lists_and_long_lists_for_each_item_are_refused() -> None:
    @workflow
    async def each(url: int, fetch: list[int]) -> int:
        return url

    @route(targets=[END], inputs={"parts": ["fetch", "fetch"]})
    def joins(parts: list[list[int]]) -> object:
        return END

    mapped = node(doubled, name="fetch", inputs={"url": "urls"}).map_over("url", chunk=2)
    for taker in (node(each, inputs={"url": "urls"}).map_over("url"), joins):
        members: list[Any] = [urls, mapped, taker]
        result = (await run(Graph(members, name="g"), n=9)).result
        assert isinstance(result.error, UsageError)
        assert "a long list" in str(result.error)


def page(url: int) -> str:
    return f"{url}" * 300_000


async def test_results_above_the_limit_are_items_also_of_a_map_in_one_journal() -> None:
    pages = node(page, name="pages", inputs={"url": "urls"}).map_over("url")
    inner = Graph([urls, pages], name="inner", output=pages)

    @node
    def lengths(pages: list[str]) -> list[int]:
        return [len(one) for one in pages]

    @node
    async def measured(pages: Items[str]) -> list[int]:
        return [len(one) async for one in pages]

    alone = Graph([urls, pages], name="alone")
    both: Any = [inner.as_node(name="pages"), measured]
    outer = Graph(both, name="outer", output=measured)
    sizes = Graph([lengths], name="sizes", output=lengths)
    given = Graph([urls, pages, sizes], name="given", output="sizes")
    async with Engine("memory://", [inner, alone, outer, given]) as engine:
        for graph in (inner, alone):
            output: Any = (await engine.run(graph(n=9))).output
            found = output if graph is inner else output["pages"]
            assert isinstance(found, Items)
            assert [one[:1] async for one in found] == [str(i) for i in range(9)]
        assert (await engine.run(outer(n=9))).output == [300_000] * 9
        # The list is as long as before for a node that does not take items.
        assert isinstance((await engine.run(given(n=9))).error, PayloadTooLarge)
        assert (await engine.run(given(n=3))).output == [300_000] * 3


def test_a_result_above_the_limit_survives_a_crash_at_every_commit() -> None:
    pages = node(page, name="pages", inputs={"url": "urls"}).map_over("url")
    inner = Graph([urls, pages], name="inner", output=pages)
    survived = crash_everywhere(Graph([inner], name="g", output="inner")(n=8))
    assert len(survived.result.output) == 8


@pytest.mark.parametrize("kind", [list, tuple, dict])
async def test_of_values_that_are_too_large_together_lists_are_apart(kind: Any) -> None:
    @node
    def a(n: int) -> Any:
        return kind({"x" * n: 1, "y" * n: 2})

    graph = Graph([a, node(a, name="b")], name="g")
    result = (await run(graph, n=600_000)).result
    if kind is dict:
        assert isinstance(result.error, PayloadTooLarge)
    else:
        assert [len(one) for one in result.output["a"]] == [600_000] * 2
