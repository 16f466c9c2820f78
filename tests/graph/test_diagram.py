"""Graphs as mermaid and dot."""

from __future__ import annotations

import re
from typing import Any

import pytest

from perdure import Engine, UsageError, workflow
from perdure.authoring.graph.diagram import Turns, turns_of
from perdure.graph import END, Graph, interrupt, node, route


@node
def draft(topic: str, feedback: str = "") -> str:
    return f"{topic}{feedback}"


@node(outputs="score")
def review(draft: str) -> int:
    return len(draft)


@interrupt(answer=str)
def feedback(draft: str, score: int) -> str:
    return draft


@route(targets=["draft", END])
def good_enough(score: int, feedback: str) -> object:
    return END if score > 8 else draft


@node
def pages(draft: Any) -> list[str]:
    return [draft]


def fetch(page: str) -> int:
    return len(page)


def told(x: str) -> None:
    pass


inner = Graph([node(told)], name="inner")

WRITE = Graph(
    [
        draft,
        review,
        feedback,
        good_enough,
        pages,
        node(fetch, inputs={"page": "pages"}).map_over("page"),
        inner.rename_inputs(x="draft").as_node(name="tell"),
        node(told, name="last", inputs={"x": "topic"}, after=["fetch"]),
    ],
    name="write",
    loops=["draft"],
)


def test_mermaid_has_a_shape_for_each_kind_of_node_and_a_line_for_each_kind_of_edge() -> None:
    assert (
        WRITE.diagram()
        == """\
flowchart TD
    i0(["topic"])
    n0["draft"]
    n1["review"]
    n2{{"feedback"}}
    n3{"good_enough"}
    n4["pages"]
    n5[["fetch"]]
    subgraph n6["tell"]
        n6_n0["told"]
    end
    n7["last"]
    i0 --> n0
    n2 ==> n0
    n0 --> n1
    n0 --> n2
    n1 -->|"score"| n2
    n1 -->|"score"| n3
    n2 --> n3
    n3 ==> n0
    n0 --> n4
    n4 --> n5
    n0 --> n6
    i0 --> n7
    n5 -.-> n7
"""
    )


def test_dot_says_the_same() -> None:
    lines = WRITE.diagram(format="dot", depth=0).splitlines()
    assert (lines[0], lines[-1]) == ("digraph {", "}")
    for line in (
        'n3 [label="good_enough", shape="diamond"]',
        'n3 -> n0 [style="bold"]',
        'n6 [label="tell", shape="folder"]',
    ):
        assert f"    {line}" in lines
    assert "cluster_n6" in WRITE.diagram(format="dot")


def test_a_large_graph_is_folded_unless_it_is_told_otherwise() -> None:
    many = [node(told, name=f"n{i}") for i in range(150)]
    whole = Graph([Graph(many, name="left"), Graph(many, name="right")], name="whole")
    assert "subgraph" not in whole.diagram()
    assert whole.diagram(depth=1).count("subgraph") == 2
    assert whole.diagram(depth=1).count('["n149"]') == 2


def test_a_long_chain_can_be_drawn() -> None:
    links = [node(pages, name=f"n{i}", inputs={"draft": f"n{i - 1}"}) for i in range(1, 1000)]
    chain = Graph([node(pages, name="n0", inputs={"draft": "x"}), *links], name="c")
    assert chain.diagram().count("-->") == 1000


@pytest.mark.parametrize("options", [{"format": "svg"}, {"depth": -1}, {"depth": "all"}])
def test_an_option_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        WRITE.diagram(**options)


def test_a_notebook_draws_a_graph() -> None:
    bundle = WRITE._repr_mimebundle_()
    assert bundle["text/vnd.mermaid"] == WRITE.diagram()
    assert bundle["text/markdown"] == f"```mermaid\n{WRITE.diagram()}```"
    assert "write" in bundle["text/plain"]


async def test_a_run_is_drawn_with_its_statuses_and_the_edges_taken() -> None:
    tell = inner.rename_inputs(x="draft").as_node(name="tell")
    graph = Graph([draft, review, feedback, good_enough, tell], name="g", loops=["draft"])
    first = graph(topic="ab")
    async with Engine("memory://", [graph, fetching]) as engine:
        await engine.run(first, id="r", until="rest")
        waiting = await engine.diagram("r")
        await engine.run(first, id="r", until="rest", answers={"feedback": "longer text"})
        await engine.run(first, id="r", until="rest", answers={"feedback": "well"})
        ended = await engine.diagram("r")
        assert (await engine.diagram("r", format="dot")).startswith("digraph")
        await engine.run(fetching(), id="w")
        with pytest.raises(UsageError, match="only runs of graphs"):
            await engine.diagram("w")
    classes = dict(re.findall(r"class (\S+) (\S+)", waiting))
    assert classes == {"n0": "succeeded", "n1": "succeeded", "n2": "waiting"}
    # topic → draft, draft → review, draft → feedback, score → feedback
    assert marked(waiting) == ["i0 --> n0", "n0 --> n1", "n0 --> n2", 'n1 -->|"score"| n2']
    classes = dict(re.findall(r"class (\S+) (\S+)", ended))
    assert classes == dict.fromkeys(("n0", "n1", "n2", "n3", "n4", "n4_n0"), "succeeded")
    # In the last round the loop was taken, and left.
    assert {"n2 ==> n0", "n3 ==> n0", "n0 --> n4"} <= set(marked(ended))


def marked(text: str) -> list[str]:
    """The edges of a drawing that are marked as taken."""
    edges = [line.strip() for line in text.splitlines() if re.search(r"(-->|==>|-\.->)", line)]
    found = re.search(r"linkStyle ([\d,]+) ", text)
    return [edges[int(number)] for number in found[1].split(",")] if found else []


@workflow
async def fetching() -> int:
    return 1


def test_turns_are_counted_and_the_items_of_a_map_are_one() -> None:
    ops = {"a:1": "failed", "a:0": "succeeded", "m:0[0]": "succeeded", "m:0[1]": "running", "g:0[3]/a:0": "skipped"}
    assert turns_of(ops) == {
        "a": Turns(2, "failed"),
        "m": Turns(1, "running"),
        "g/a": Turns(1, "skipped"),
    }
