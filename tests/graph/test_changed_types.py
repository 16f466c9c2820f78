"""Code whose types no longer read what was recorded: the run is parked wherever it meets that, and is never failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, Limits, RunResult, RunStatus, connect, workflow
from perdure.client.upgrade import upgrade_check
from perdure.graph import END, Graph, Items, ifelse, interrupt, node, route
from perdure.kernel.history.upgrade import Fit
from perdure.kernel.policies.versions import Programs


@dataclass
class Old:
    """A value as it was."""

    n: int
    pad: str = ""


@dataclass
class New:
    """The same value as it is read now: what was stored lacks a field."""

    n: int
    rate: float
    pad: str = ""


Nodes = Callable[[Any], list[Any]]
PAD = "x" * 2000


def typed(fn: Callable[..., Any], **types: Any) -> Callable[..., Any]:
    """The function with these annotations."""
    fn.__annotations__ = types
    return fn


def made(type: Any, name: str = "made", pad: str = "", **options: Any) -> Any:
    """A node that made a value of the former type."""

    def make(x: Any) -> Any:
        return Old(1, pad)

    return node(typed(make, **{"return": type}), name=name, **options)


def made_list(type: Any, count: int = 3) -> Any:
    def make(x: Any) -> Any:
        return [Old(n) for n in range(count)]

    return node(typed(make, **{"return": list[type]}), name="made")


def ask(**options: Any) -> Any:
    """A question that holds the run until the code has changed."""
    return interrupt(answer=int, name="ask", inputs={"shown": "x"}, **options)(lambda shown: shown)


def asked(value: str, **options: Any) -> Any:
    """The question about a value."""
    return interrupt(answer=int, name="ask", inputs={"shown": value}, **options)(lambda shown: 0)


def takes(type: Any, source: Any = "made", name: str = "last", **options: Any) -> Any:
    """A node that takes the value behind the question."""
    fn = typed(lambda value, ask: ask, value=type)
    return node(fn, name=name, inputs={"value": source}, **options)


def gate(type: Any, source: str = "made") -> Any:
    return route(targets=["last", END], name="choose", inputs={"value": source})(
        typed(lambda value, ask: "last", value=type)
    )


def last(source: str = "ask") -> Any:
    return node(lambda value: value, name="last", inputs={"value": source})


def loop(type: Any) -> list[Any]:
    """A loop that carries a value from its first round to its second, and asks in between."""
    turn = node(typed(lambda x, state=None: Old(x), state=type | None, **{"return": type}), name="turn")
    keep = node(typed(lambda turn, ask: turn, turn=type, **{"return": type}), name="keep", outputs="state")
    asked = interrupt(answer=int, name="ask", inputs={"shown": "turn"})(typed(lambda shown: 0, shown=Any))
    again = route(targets=["turn", END], name="again")(
        typed(lambda state, ask: "turn" if ask == 10 else END, state=Any)
    )
    return [turn, asked, keep, again]


def carried(type: Any) -> list[Any]:
    """A loop whose value was carried before the question that its second round waits for."""
    turn = node(typed(lambda x, state=None: Old(x), **{"return": type}), name="turn", outputs="state")
    asked = interrupt(answer=int, name="ask", inputs={"shown": "state"}, after=["turn"])(lambda shown: 0)
    look = route(targets=["turn", END], name="again")(typed(lambda state, ask: END, state=type))
    return [turn, asked, look]


def produced(type: Any) -> list[Any]:
    """Two exclusive producers of one value."""
    way = ifelse("made", "other", name="way", inputs={"x": "x"})(typed(lambda x: True, x=int))
    return [way, made(type, outputs="it"), made(type, "other", outputs="it"), ask(), takes(type, "it")]


def code(type: Any) -> Any:
    @workflow(name="code")
    async def run(value: Any, ask: int) -> int:
        return ask

    run.types = (("value", type), ("ask", int))
    return run


def inner(type: Any) -> Any:
    return Graph([takes(type, "value")], name="inner", output="last")


def each(type: Any) -> Any:
    """A graph that asks about an item."""
    nodes = [asked("value"), takes(type, "value")]
    return node(Graph(nodes, name="inner", output="last"), name="each", inputs={"value": "made"})


def deep(type: Any) -> Any:
    """A graph that asks and decides by itself."""
    nodes = [made(type), ask(), gate(type), last()]
    return Graph(nodes, name="inner", output="last").as_node("deep")


def many(type: Any) -> Any:
    """A generator, whose items are stored apart."""

    def make(x: Any) -> Iterator[Any]:
        for n in range(3):
            yield Old(n)

    return node(typed(make, **{"return": Iterator[type]}), name="made")


CASES: dict[str, Nodes] = {
    "a step": lambda type: [made(type), ask(), takes(type)],
    "a gate": lambda type: [made(type), ask(), gate(type), last()],
    "a condition": lambda type: [
        made(type),
        ask(),
        node(lambda ask: ask, name="last", when=typed(lambda made, ask: True, made=type)),
    ],
    "a question": lambda type: [
        made(type),
        ask(),
        interrupt(answer=int, name="more")(typed(lambda made, ask: 1, made=type)),
    ],
    "a join": lambda type: [made(type), made(type, "other"), ask(), takes(list[type], ["made", "other"])],  # type: ignore[valid-type]
    "exclusive producers": produced,
    "a value that another one could stand in for": lambda type: [
        made(type),
        ask(),
        node(typed(lambda made=None, ask=0: ask, made=type | None), name="last"),
    ],
    "a part of a tuple": lambda type: [
        node(typed(lambda x: (Old(1), 2), **{"return": tuple[type, int]}), name="pair", outputs=("one", "two")),  # type: ignore[valid-type]
        ask(),
        takes(type, "one"),
    ],
    "a step that takes a large value": lambda type: [made(type, pad=PAD), ask(), takes(type)],
    "a step that takes two large values": lambda type: [
        made(Old, "first", PAD),
        made(type, pad=PAD + "y"),
        ask(),
        node(typed(lambda first, made, ask: ask, first=Old, made=type), name="last"),
    ],
    "a gate that takes a large value": lambda type: [made(type, pad=PAD), ask(), gate(type), last()],
    "the next round of a loop": loop,
    "a gate in a loop": carried,
    "an item": lambda type: [made_list(type), ask(), takes(type).map_over("value")],
    "an item whose failure is tolerated": lambda type: [
        made_list(type),
        ask(),
        takes(type).map_over("value", on_error="none"),
    ],
    "what all items take": lambda type: [
        made(type),
        node(lambda x: [x, x], name="xs"),
        ask(),
        node(typed(lambda value, i, ask: ask, value=type), name="last", inputs={"value": "made", "i": "xs"}).map_over(
            "i"
        ),
    ],
    "an item of a map in chunks": lambda type: [made_list(type), ask(), takes(type).map_over("value", chunk=1)],
    "an item of a long list": lambda type: [many(type), ask(), takes(type).map_over("value", chunk=1)],
    "a step that takes a long list": lambda type: [many(type), ask(), takes(Items[type])],  # type: ignore[valid-type]
    "a graph": lambda type: [made(type), ask(), node(inner(type), name="last", inputs={"value": "made", "ask": "ask"})],
    "a workflow": lambda type: [made(type), ask(), node(code(type), name="last", inputs={"value": "made"})],
    "a gate in a graph in it": lambda type: [deep(type)],
    "the items of a map that are left": lambda type: [made_list(type), each(type).map_over("value", limit=1)],
    "the condition that ends a map": lambda type: [
        node(lambda x: [1, 2, 3], name="numbers"),
        node(
            Graph([made(type, inputs={"x": "n"}), asked("n", when=lambda n: n == 2)], name="inner", output="made"),
            inputs={"n": "numbers"},
        ).map_over("n", until=lambda made: False),
    ],
}
# What is in blobs, and is not read before the code is deployed.
STORED = ("an item of a long list", "a step that takes a long list")
INPUTS: dict[str, Nodes] = {
    "a step": lambda type: [ask(), takes(type, "given")],
    "a gate": lambda type: [ask(), gate(type, "given"), last()],
    "a question": lambda type: [
        ask(),
        interrupt(answer=int, name="more", inputs={"value": "given"})(typed(lambda value, ask: 1, value=type)),
    ],
    "a join": lambda type: [made(type), ask(), takes(list[type], ["made", "given"])],  # type: ignore[valid-type]
    "an item": lambda type: [ask(), takes(type, "givens").map_over("value")],
    "an answer that was given with the input": lambda type: [
        interrupt(answer=type, name="given")(lambda x: x),
        ask(),
        takes(type, "given"),
    ],
    "a nested graph": lambda type: [ask(), node(inner(type), name="last", inputs={"value": "given", "ask": "ask"})],
}


async def parks(path: Path, nodes: Nodes, *, checked: bool = True, inputs: dict[str, Any] | None = None) -> None:
    url, limits = f"sqlite:///{path / 'g.db'}", Limits(blob=1000)
    loops = ["turn"] if nodes in (loop, carried) else []
    before: Graph[..., Any] = Graph(nodes(Old), name="g", loops=loops)
    now: Graph[..., Any] = Graph(nodes(New), name="g", loops=loops)
    async with Engine(url, [before], limits=limits) as engine:
        assert (await engine.run(before(x=1, **(inputs or {})), id="r")).interrupted
    async with Engine(url, [now], limits=limits) as engine:
        result = await engine.run(now, id="r", answers={"ask": 10})
        assert result.status is RunStatus.PARKED, result
        assert "rate" in str(result.error)
    async with connect(url) as client:
        fits = [one.fit async for one in upgrade_check(client, Programs([now])) if one.id == "r"]
        assert fits == [Fit.BREAKS if checked else Fit.SAFE]
    async with Engine(url, [before], limits=limits) as engine:
        result = await engine.run(before, id="r")
        while result.interrupted:
            result = await engine.run(before, id="r", answers={result.interrupt_name or "": 1})
        assert result.status is RunStatus.COMPLETED, result


@pytest.mark.parametrize("case", CASES)
async def test_a_recorded_value_that_the_code_cannot_read_parks_the_run(tmp_path: Path, case: str) -> None:
    await parks(tmp_path, CASES[case], checked=case not in STORED)


@pytest.mark.parametrize("case", INPUTS)
async def test_an_input_that_the_code_cannot_read_parks_the_run(tmp_path: Path, case: str) -> None:
    name = "givens" if case == "an item" else "given"
    await parks(tmp_path, INPUTS[case], inputs={name: [Old(1)] if name == "givens" else Old(1)})


@pytest.mark.parametrize("taker", [gate, takes])
async def test_a_value_of_the_wrong_type_that_this_code_makes_fails_the_run(tmp_path: Path, taker: Any) -> None:
    url = f"sqlite:///{tmp_path / 'g.db'}"
    late = node(typed(lambda ask: Old(1), ask=int), name="made")
    graph: Graph[..., Any] = Graph([ask(), late, taker(New), *([last()] if taker is gate else [])], name="g")
    async with Engine(url, [graph]) as engine:
        assert (await engine.run(graph(x=1), id="r")).interrupted
    async with Engine(url, [graph]) as engine:
        assert (await engine.run(graph, id="r", answers={"ask": 1})).status is RunStatus.FAILED


async def test_a_parked_run_is_explained_by_the_value_that_cannot_be_read(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'g.db'}"
    results = list[RunResult[Any]]()
    for type in (Old, New):
        graph: Graph[..., Any] = Graph(CASES["a gate"](type), name="g")
        async with Engine(url, [graph]) as engine:
            answers = {"ask": 1} if type is New else {}
            results.append(await engine.run(graph(x=1), id="r", answers=answers))
    result = results[-1]
    assert result.status is RunStatus.PARKED
    assert "made:0" in str(result.error)
    assert "accepted as int" not in str(result.error)
