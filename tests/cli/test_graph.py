"""Graphs on the command line: they are drawn, run, read and checked."""

from __future__ import annotations

from tests.cli.conftest import Cli

GRAPHS = """
from perdure import workflow
from perdure.graph import Graph, node


@node
def embed(query: str) -> int:
    return len(query)


@node
def answer(query: str, embed: int) -> str:
    return query * embed


rag = Graph([embed, answer], name="rag", output=answer)
outer = Graph([rag], name="outer")


@workflow
async def plain() -> int:
    return 1
"""


def test_a_graph_of_a_module_is_drawn(cli: Cli) -> None:
    (cli.folder / "graphs.py").write_text(GRAPHS, encoding="utf-8")
    shown = cli("graph", "show", "graphs.py:rag")
    assert (shown.code, shown.out.splitlines()[0]) == (0, "flowchart TD")
    assert "n0 --> n1" in shown.out
    assert cli("graph", "show", "graphs.py:outer", "--format", "dot").out.startswith("digraph {")
    assert "cluster" not in cli("graph", "show", "graphs.py:outer", "--format", "dot", "--depth", "0").out
    refused = cli("graph", "show", "graphs.py:plain")
    assert refused.code != 0
    assert "only graphs and flows have diagrams" in refused.err


def test_a_graph_is_run_read_and_checked_as_a_workflow_is(cli: Cli) -> None:
    (cli.folder / "graphs.py").write_text(GRAPHS, encoding="utf-8")
    ran = cli("run", "graphs.py:rag", "--input", '{"query": "ab"}', "--id", "r", "--store", cli.url)
    assert (ran.code, ran.json) == (0, "abab")
    steps = cli("runs", "steps", "r", "--store", cli.url, "--json").json
    assert [step["path"] for step in steps] == ["embed:0", "answer:0"]
    ran = cli("run", "graphs.py:outer", "--input", '{"query": "ab"}', "--id", "o", "--store", cli.url)
    assert (ran.code, ran.json) == (0, {"rag": "abab"})
    tasks = cli("runs", "inspect", "o", "--at", "rag:0/answer:0", "--store", cli.url, "--json").json["tasks"]
    assert [task["waits_for"] for task in tasks] == ["", "rag:0", "", "rag:0/answer:0"]
    assert tasks[2]["frames"][0]["variables"] == {"query": "'ab'", "embed": "2"}
    assert tasks[3]["frames"][0]["variables"] == {"query": "'ab'", "embed": "2"}
    assert "> @node" in cli("runs", "inspect", "r", "--at", "answer:0", "--store", cli.url).out
    assert "has ended" in cli("runs", "inspect", "r", "--store", cli.url).err
    assert cli("upgrade-check", "graphs.py", "--store", cli.url).code == 0
    wrong = cli("run", "graphs.py:rag", "--input", '{"quary": "ab"}', "--store", cli.url)
    assert wrong.code == 2
    assert "quary" in wrong.err
