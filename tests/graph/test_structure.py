"""The structure of a graph, stored with its runs: what a process without the code can tell of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import Engine, Limits, RunStatus, call, connect, workflow
from perdure.client.views import StepView
from perdure.graph import END, Graph, ifelse, interrupt, node, route
from perdure.kernel.divergence.source import Source
from perdure.kernel.events import ChildStarted, RunClaimed, RunStarted


def add(name: str, value: str = "x", **options: Any) -> Any:
    """A node that adds one to a value."""
    return node(lambda x: x + 1, name=name, inputs={"x": value}, **options)


def broken(x: int) -> Any:
    """What a gate or a condition does that has a mistake."""
    raise ValueError("a mistake")


def gate(function: Any, **options: Any) -> Any:
    """A gate over `x` with the targets `a` and `b`."""
    return route(targets=["a", "b", END], name="gate", inputs={"x": "x"}, **options)(function)


def told(steps: Sequence[StepView]) -> list[tuple[Any, ...]]:
    """What did not run, and why; what failed when it was decided did not run either."""
    return [
        (step.path, step.status.value, step.skipped_by, step.reason, str(step.error), step.source)
        for step in steps
        if not step.attempts
    ]


INNER = Graph([gate(lambda x: "a"), add("a"), add("b"), add("after", "b")], name="inner", output="a")
BLOCKED = Graph([node(broken, name="a"), add("b", "a"), add("after", "b")], name="blocked", on_failure="continue")


@workflow
async def calls(x: int) -> Any:
    """Code that runs a graph."""
    return await INNER(x=x)


@workflow
async def calls_by_name(x: int) -> Any:
    """Code that runs a graph that it knows by name."""
    return await call("inner", x=x)


async def lists(x: int) -> list[int]:
    """A list of numbers."""
    return [x, x, x, x]


async def len_of(x: list[int]) -> int:
    """How many there are."""
    return len(x)


# Graphs and workflows, and how many nodes of them do not run.
CASES: dict[str, tuple[Any, int]] = {
    "a gate": (INNER, 2),
    "a condition": (Graph([add("a", when=lambda x: x > 1), add("b", "a")], name="g"), 2),
    "a failure": (BLOCKED, 2),
    "a failure that stops": (Graph([node(broken, name="a"), add("b", "a"), add("after", "b")], name="g"), 2),
    "a gate that fails": (Graph([gate(broken), add("a"), add("b"), add("after", "a")], name="g"), 4),
    "a gate that fails beside others": (
        Graph([gate(broken), add("a"), add("b"), add("after", "a"), add("c")], name="g", on_failure="continue"),
        4,
    ),
    "a condition that fails": (Graph([add("a", when=broken), add("b", "a")], name="g"), 2),
    "two levels down": (Graph([Graph([INNER], name="middle"), add("last", "inner")], name="g"), 2),
    "items": (
        Graph([node(lists), node(INNER, name="n", inputs={"x": "lists"}).map_over("x")], name="g"),
        8,
    ),
    "items that end early": (
        Graph(
            [
                node(lists),
                node(lambda x: x, name="one", inputs={"x": "lists"}).map_over("x", limit=1, until=lambda one: one == 1),
                node(len_of, name="n", inputs={"x": "one"}),
                route(targets=["a", "b"], name="choose", inputs={"x": "n"})(lambda x: "a"),
                add("a"),
                add("b"),
            ],
            name="g",
        ),
        1,
    ),
    "other names of inputs": (INNER.rename_inputs(x="y").with_name("other"), 2),
    "a part of a graph": (Graph([INNER.rename_inputs(x="y").as_node("n")], name="g").rename_inputs(y="z"), 2),
    "bound values": (
        Graph([gate(lambda x: "a"), add("a"), add("b"), add("c", "y").map_over("x")], name="g").bind(y=[1, 2]),
        1,
    ),
    "code that runs a graph": (calls, 2),
    "code that runs a graph by name": (calls_by_name, 2),
    "code in a graph that runs a graph": (Graph([node(calls, name="n")], name="g"), 2),
    "a loop": (
        Graph(
            [
                add("a", "x"),
                route(targets=["a", "b"], name="again", inputs={"n": "a"})(lambda n: "a" if n < 4 else "b"),
                add("b", "a"),
                add("x", "a"),
                add("end", "b"),
            ],
            name="g",
            loops=["a"],
        ),
        0,
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_process_without_the_code_tells_what_did_not_run(case: str, tmp_path: Path) -> None:
    program, count = CASES[case]
    url = f"sqlite:///{tmp_path / 'g.db'}"
    names = ("x", "y", "z") if not isinstance(program, Graph) else program.inputs.required
    inputs = {name: 1 for name in names if name in getattr(program, "inputs", INNER.inputs).required}
    async with Engine(url, [program, INNER], limits=Limits(blob=100)) as engine:
        await engine.run(program(**inputs), id="r")
        known = await engine.steps("r")
        drawn = await engine.diagram("r") if isinstance(program, Graph) else ""
    async with connect(url) as client:
        assert told(await client.steps("r")) == told(known)
        assert len(told(known)) == count, told(known)
        if drawn:
            assert await client.diagram("r") == drawn
    async with Engine(url, []) as other:
        assert told(await other.steps("r")) == told(known)


async def test_a_structure_is_stored_once_and_named_by_the_start_of_a_run(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'g.db'}"
    async with Engine(url, [INNER, calls]) as engine:
        for id in ("a", "b"):
            await engine.run(INNER(x=1), id=id)
            started, claimed, *_ = [entry.event for entry in await engine.journal(id)]
            assert isinstance(started, RunStarted)
            assert isinstance(claimed, RunClaimed)
            assert (started.structure, claimed.code) == (INNER.structure, "")
        await engine.run(calls(1), id="c")
        [child] = [e.event for e in await engine.journal("c") if isinstance(e.event, ChildStarted)]
        assert child.structure == INNER.structure
    async with connect(url) as client:
        # Started by name: the owner that has the graph says which.
        _ = await client.start(call("inner", x=1), id="by-name")
    async with Engine(url, [INNER]) as engine:
        await engine.handle("by-name").result()
        claims = [e.event for e in await engine.journal("by-name") if isinstance(e.event, RunClaimed)]
        assert claims[0].code == INNER.structure
        stored = await engine.blobs.get(INNER.structure)
        assert stored is not None
        found = msgspec.json.decode(stored)
        assert found["nodes"][0]["name"] == "gate"
        assert found["nodes"][0]["targets"] == ["a", "b"]
        [a] = [one for one in found["nodes"] if one["name"] == "a"]
        assert a["takes"] == [{"name": "x", "source": {"input": "x"}}]
        assert a["where"].startswith("tests/graph/test_structure.py:")
        # Nothing collects it while runs may need it.
        await engine.prune(older_than=0, dry_run=False)
        assert await engine.blobs.get(INNER.structure) == stored


async def test_the_values_of_a_run_are_known_without_its_code(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'g.db'}"
    graph = Graph([INNER.as_node("n"), add("last", "n")], name="g")
    async with Engine(url, [graph]) as engine:
        await engine.run(graph(x=1), id="r")
        values, history = await engine.values("r"), await engine.history("r")
    async with connect(url) as client:
        assert await client.values("r") == values == {"x": 1, "n": 2, "last": 3}
        assert await client.history("r") == history
        assert await client.values("r/n:0") == {"x": 1, "a": 2}
        assert "subgraph" not in await client.diagram("r/n:0")


async def test_code_that_does_not_fit_shows_what_the_run_did(tmp_path: Path) -> None:
    @interrupt(answer=int)
    def ask(x: int) -> int:
        return x

    url = f"sqlite:///{tmp_path / 'g.db'}"
    first = Graph([gate(lambda x: "a"), add("a"), add("b"), ask], name="g")
    async with Engine(url, [first]) as engine:
        await engine.run(first(x=1), id="r")
        known = told(await engine.steps("r"))
    second = Graph([gate(lambda x: "a"), add("new"), add("a", "new"), add("b"), ask], name="g")
    async with Engine(url, [second]) as engine:
        assert (await engine.run(second, id="r", answers={"ask": 1})).status is RunStatus.PARKED
        assert told(await engine.steps("r")) == known
        assert [path for path, *_ in known] == ["b:0"]


@ifelse(when_true="a", when_false=END)
def positive(x: int) -> bool:
    """Whether a number is positive."""
    return x > 0


async def test_a_run_without_a_structure_reads_as_before(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'g.db'}"

    class Older(Graph[..., Any]):
        """A graph of a version of perdure that stored no structure."""

        structure = ""

        def source(self) -> Source:
            return Source()

    graph = Older([positive, add("a"), add("b", "a")], name="g")
    async with Engine(url, [graph]) as engine:
        await engine.run(graph(x=0), id="r")
        assert [path for path, *_ in told(await engine.steps("r"))] == ["a:0", "b:0"]
    async with connect(url) as client:
        assert [path for path, *_ in told(await client.steps("r"))] == ["a:0"]
