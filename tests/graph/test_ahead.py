"""What later nodes will take of what a run holds is read when the code has changed: not when their turn comes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, RunStatus, connect, workflow
from perdure.client.upgrade import upgrade_check
from perdure.graph import END, Graph, ifelse, interrupt, node, route
from perdure.kernel.history.upgrade import Fit
from perdure.kernel.policies.versions import Programs
from tests.patience import PATIENCE

DONE: list[str] = []


def typed(fn: Callable[..., Any], **types: Any) -> Callable[..., Any]:
    """The function with these annotations."""
    fn.__annotations__ = types
    return fn


def ask(name: str = "ask", **options: Any) -> Any:
    """A question that holds the run while the code changes."""
    return interrupt(answer=int, name=name, inputs={"shown": "x"}, **options)(lambda shown: shown)


def draft(type: Any = Any, name: str = "draft", made: Any = "text", **options: Any) -> Any:
    """A node that ran before the question."""
    return node(typed(lambda x: made, **({} if type is Any else {"return": type})), name=name, **options)


def tell(after: str = "ask", name: str = "tell") -> Any:
    """A node that takes effect before the one whose value does not fit."""

    def effect(value: Any) -> Any:
        DONE.append(name)
        return value

    return node(effect, name=name, inputs={"value": after})


def takes(type: Any, source: Any = "draft", name: str = "last", **options: Any) -> Any:
    """The node that takes a recorded value at the very end."""

    def effect(value: Any, tell: Any) -> Any:
        DONE.append(name)
        return tell

    return node(typed(effect, value=type), name=name, inputs={"value": source}, **options)


def to(*targets: Any, source: str = "tell", name: str = "choose") -> Any:
    """A gate that has not decided, and chooses its first target."""
    return route(targets=targets, name=name, inputs={"value": source})(lambda value: targets[0])


def inner(type: Any) -> Any:
    return Graph([takes(type, "value")], name="inner", output="last")


def within(type: Any) -> list[Any]:
    """A nested graph that asks, and then tells and takes."""
    nodes = [draft(type), ask(), tell(), takes(type)]
    return [Graph(nodes, name="inner", output="last").as_node("deep")]


def asked_for_each(type: Any) -> Any:
    """A graph that asks about an item, and takes it then."""
    nodes = [ask(), tell(), takes(type, "value")]
    return node(Graph(nodes, name="inner", output="last"), name="each", inputs={"value": "draft"})


def code(type: Any) -> Any:
    @workflow(name="code")
    async def run(value: Any, tell: Any) -> Any:
        return tell

    run.types = (("value", type), ("tell", Any))
    return run


def loop(type: Any, outside: Any = Any) -> list[Any]:
    """A loop whose second round takes what the first one carried, and a value from outside."""
    turn = node(typed(lambda x, given, state=None: "state", state=type | None, given=outside), name="turn")
    keep = node(typed(lambda turn: turn, **{"return": type}), name="state")
    asked = interrupt(answer=int, name="ask", inputs={"shown": "turn"})(lambda shown: 0)
    more = route(targets=["turn", END], name="again", inputs={"state": "state", "ask": "ask"})(
        lambda state, ask: "turn" if ask == 10 else END
    )
    return [turn, keep, asked, more]


def guarded(type: Any) -> list[Any]:
    """A gate that lets nothing through that the node behind it cannot read."""
    gate = ifelse("last", "other", name="fits", inputs={"value": "draft", "tell": "tell"})(
        typed(lambda value, tell: isinstance(value, int), value=Any)
    )
    return [draft(), ask(), tell(), gate, takes(type), tell("tell", "other")]


Nodes = Callable[[Any], list[Any]]
# What the first code has as str, and the other one as int, while a text is recorded.
PARKS: dict[str, Nodes] = {
    "a step": lambda type: [draft(type), ask(), tell(), takes(type)],
    "a step, of a node without annotation": lambda type: [draft(), ask(), tell(), takes(type)],
    "a gate": lambda type: [
        draft(type),
        ask(),
        tell(),
        route(targets=["last", END], name="choose", inputs={"value": "draft", "tell": "tell"})(
            typed(lambda value, tell: "last", value=type)
        ),
        tell("tell", "last"),
    ],
    "a condition": lambda type: [
        draft(type),
        ask(),
        tell(),
        node(lambda tell: tell, name="last", when=typed(lambda draft: True, draft=type)),
    ],
    "a question": lambda type: [
        draft(type),
        ask(),
        tell(),
        interrupt(answer=int, name="more", inputs={"value": "draft", "tell": "tell"})(
            typed(lambda value, tell: 1, value=type)
        ),
    ],
    "a join": lambda type: [draft(type), draft(type, "b"), ask(), tell(), takes(list[type], ["draft", "b"])],  # type: ignore[valid-type]
    "a join of which a part is to come": lambda type: [
        draft(type),
        ask(),
        tell(),
        node(lambda tell: "late", name="b"),
        takes(list[type], ["draft", "b"]),  # type: ignore[valid-type]
    ],
    "a part of a tuple": lambda type: [
        draft(tuple[type, int], made=("text", 2), outputs=("one", "two")),  # type: ignore[valid-type]
        ask(),
        tell(),
        takes(type, "one"),
    ],
    "behind a gate": lambda type: [draft(type), ask(), tell(), to("last", "other"), takes(type), tell("tell", "other")],
    "behind a gate, of a node without annotation": lambda type: [
        draft(),
        ask(),
        tell(),
        to("last", "other"),
        takes(type),
        tell("tell", "other"),
    ],
    "behind a node with a condition": lambda type: [
        draft(type),
        ask(),
        node(lambda ask: DONE.append("tell"), name="tell", when=lambda ask: True),
        takes(type),
    ],
    "an item": lambda type: [draft(list[type], made=["a", "b"]), ask(), tell(), takes(type).map_over("value")],  # type: ignore[valid-type]
    "an item of a map in chunks": lambda type: [
        draft(list[type], made=["a", "b", "c"]),  # type: ignore[valid-type]
        ask(),
        tell(),
        takes(type).map_over("value", chunk=1),
    ],
    "a graph": lambda type: [
        draft(type),
        ask(),
        tell(),
        node(inner(type), name="last", inputs={"value": "draft", "tell": "tell"}),
    ],
    "a workflow": lambda type: [draft(type), ask(), tell(), node(code(type), name="last", inputs={"value": "draft"})],
    "in a graph in it": within,
    "the round before": loop,
    "a value from outside of the loop": lambda type: loop(Any, type),
    "an answer": lambda type: [
        interrupt(answer=int if type is str else dict, name="first", inputs={"shown": "x"})(lambda shown: shown),
        ask(after=["first"]),
        tell(),
        takes(dict if type is int else int, "first"),
    ],
    "an input": lambda type: [ask(), tell(), takes(type, "given")],
    "an input behind a gate": lambda type: [ask(), tell(), to("last", END), takes(type, "given")],
    "an item that is left": lambda type: [
        draft(list[type], made=["a", "b"]),  # type: ignore[valid-type]
        asked_for_each(type).map_over("value", limit=1),
    ],
    "an input that was not given": lambda type: [ask(), tell(), takes(Any, "given" if type is str else "lacking")],
    "an input that was not given to a gate": lambda type: [
        ask(),
        tell(),
        route(
            targets=["last", END],
            name="choose",
            inputs={"value": "given" if type is str else "lacking"},
            after=["tell"],
        )(lambda value: "last"),
        tell("tell", "last"),
    ],
    "an input that was not given for all items": lambda type: [
        ask(),
        tell(),
        node(lambda tell: [1, 2], name="numbers"),
        node(
            lambda number, value: DONE.append("last"),
            name="last",
            inputs={"number": "numbers", "value": "given" if type is str else "lacking"},
        ).map_over("number"),
    ],
}
FITS: dict[str, Nodes] = {
    "who takes it has run": lambda type: [
        draft(type),
        node(typed(lambda value: 1, value=type), name="reader", inputs={"value": "draft"}),
        ask(),
        tell(),
    ],
    "who takes it was skipped": lambda type: [
        draft(type),
        to("other", "last", source="draft"),
        takes(type),
        ask(),
        tell(),
        tell("ask", "other"),
    ],
    "a gate keeps from it what it cannot read": guarded,
    "what it requires was skipped": lambda type: [
        draft(type),
        to("other", "gone", source="draft"),
        node(lambda draft: draft, name="gone"),
        ask(),
        tell(),
        node(typed(lambda draft, gone, ask: 1, draft=type), name="last"),
        tell("ask", "other"),
    ],
    "it is made anew": lambda type: [
        ask(),
        draft(type, made="text" if type is str else 1, after=["ask"]),
        tell(),
        takes(type),
    ],
    "it has a default": lambda type: [
        ask(),
        tell(),
        node(typed((lambda tell: tell) if type is str else (lambda tell, lacking=1: tell)), name="last"),
    ],
    "any of the types": lambda type: [draft(), ask(), tell(), takes(str if type is str else int | str)],
}


def graph(nodes: Nodes, type: Any, **options: Any) -> Graph[..., Any]:
    loops = ["turn"] if any(one.name == "turn" for one in nodes(type)) else []
    return Graph(nodes(type), name="g", loops=loops, **options)


async def deployed(path: Path, before: Graph[..., Any], now: Graph[..., Any], given: Mapping[str, Any]) -> Any:
    """What upgrade-check says about a run, and what becomes of it when the code is deployed and it is answered."""
    url = f"sqlite:///{path / 'g.db'}"
    async with Engine(url, [before]) as engine:
        result = await engine.run(before(x=1, **given), id="r")
        while result.interrupt_name == "first":
            result = await engine.run(before, id="r", answers={"first": 1})
        assert result.interrupted, result
    async with connect(url) as client:
        [checked] = [one async for one in upgrade_check(client, Programs([now]))]
    DONE.clear()
    async with Engine(url, [now]) as engine:
        result = await engine.run(now, id="r", answers={"ask": 10})
        while result.interrupted and checked.fit is Fit.SAFE:
            result = await engine.run(now, id="r", answers={result.interrupt_name or "": 1})
        # Where one of its chunks is parked first, it rests for a moment before it is parked itself.
        async with asyncio.timeout(PATIENCE):
            while checked.fit is Fit.BREAKS and result.status is RunStatus.WAITING:
                await asyncio.sleep(0.001)
                result = await engine.handle("r").outcome(until="rest")
        return checked, result


async def heals(path: Path, before: Graph[..., Any]) -> None:
    async with Engine(f"sqlite:///{path / 'g.db'}", [before]) as engine:
        result = await engine.run(before, id="r")
        while result.interrupted:
            result = await engine.run(before, id="r", answers={result.interrupt_name or "": 1})
        assert result.status is RunStatus.COMPLETED, result


@pytest.mark.parametrize("case", PARKS)
async def test_what_a_later_node_cannot_read_parks_the_run_before_any_effect(tmp_path: Path, case: str) -> None:
    before, now = graph(PARKS[case], str), graph(PARKS[case], int)
    given = {"given": "text"} if "given" in before.inputs.required else {}
    checked, result = await deployed(tmp_path, before, now, given)
    assert (checked.fit, checked.kind) == (Fit.BREAKS, "undecodable"), checked
    assert result.status is RunStatus.PARKED, result
    assert not DONE
    assert checked.title in str(result.error)
    assert "test_ahead.py" in checked.source
    await heals(tmp_path, before)


@pytest.mark.parametrize("case", FITS)
async def test_what_no_node_will_read_parks_nothing(tmp_path: Path, case: str) -> None:
    checked, result = await deployed(tmp_path, graph(FITS[case], str), graph(FITS[case], int), {})
    assert checked.fit is Fit.SAFE, checked
    assert result.status is RunStatus.COMPLETED, result


async def test_a_bound_value_that_a_later_node_cannot_read_parks_the_run(tmp_path: Path) -> None:
    nodes = [ask(), tell(), takes(int, "given")]
    before, now = Graph(nodes, name="g").bind(given=1), Graph(nodes, name="g").bind(given="text")
    checked, result = await deployed(tmp_path, before, now, {})
    assert (checked.fit, result.status, DONE) == (Fit.BREAKS, RunStatus.PARKED, [])
    await heals(tmp_path, before)


async def test_the_last_chunks_of_a_map_are_read_while_its_first_ones_run(tmp_path: Path) -> None:
    def nodes(type: Any) -> list[Any]:
        asking = Graph([ask(), tell(), takes(type, "value")], name="inner", output="last")
        each = node(asking, name="each", inputs={"value": "draft"}).map_over("value", limit=1, chunk=1)
        return [draft(list[type], made=["a", "b", "c"]), each]

    checked, result = await deployed(tmp_path, graph(nodes, str), graph(nodes, int), {})
    assert (checked.fit, result.status, DONE) == (Fit.BREAKS, RunStatus.PARKED, [])


MENDED: dict[str, tuple[str, str, Callable[[], Graph[..., Any]]]] = {
    "a default": (
        "lacking",
        "Give the parameter of last a default",
        lambda: Graph([draft(), ask(), tell(), node(lambda tell, lacking=1: tell, name="last")], name="g"),
    ),
    "a bound value": (
        "lacking",
        "`bind(lacking=...)`",
        lambda: Graph([draft(), ask(), tell(), takes(Any, "lacking")], name="g").bind(lacking=1),
    ),
    "both types": (
        "draft",
        "Let the code accept both, `int | str`",
        lambda: Graph([draft(int), ask(), tell(), takes(int | str)], name="g"),
    ),
}


@pytest.mark.parametrize("way", MENDED)
async def test_the_way_that_is_shown_lets_the_run_go_on(tmp_path: Path, way: str) -> None:
    source, shown, mended = MENDED[way]
    nodes = [draft(int), ask(), tell(), takes(int, source)]
    before = Graph([draft(str), ask(), tell(), takes(str, "draft")], name="g")
    checked, result = await deployed(tmp_path, before, Graph(nodes, name="g"), {})
    assert result.status is RunStatus.PARKED
    assert shown in checked.reason
    assert "accepted as" not in str(result.error)
    async with Engine(f"sqlite:///{tmp_path / 'g.db'}", [mended()]) as engine:
        result = await engine.run(mended(), id="r")
    assert result.status is RunStatus.COMPLETED, result


@dataclass
class Paid:
    """What was paid, as it was stored."""

    cents: int = 0


@dataclass
class Payment:
    """The same, with another name for the field."""

    amount: int = 0


@pytest.mark.parametrize("behind", [False, True])
async def test_a_field_with_another_name_is_not_read_as_its_default(tmp_path: Path, behind: bool) -> None:
    def nodes(type: Any) -> list[Any]:
        gate = [to("last", "other", source="draft"), tell("tell", "other")] if behind else []
        return [draft(type, made=type(5)), ask(), tell(), *gate, takes(type)]

    checked, result = await deployed(tmp_path, graph(nodes, Paid), graph(nodes, Payment), {})
    assert (checked.fit, checked.kind, result.status) == (Fit.BREAKS, "renamed", RunStatus.PARKED)
    assert "`cents` is no longer read, and `amount` takes its default" in checked.title
    assert not DONE
    await heals(tmp_path, graph(nodes, Paid))


async def test_a_node_may_take_less_than_another_one_made(tmp_path: Path) -> None:
    def nodes(type: Any) -> list[Any]:
        return [draft(made={"cents": 5}), ask(), tell(), takes(type)]

    checked, result = await deployed(tmp_path, graph(nodes, Paid), graph(nodes, Payment), {})
    assert (checked.fit, result.status) == (Fit.SAFE, RunStatus.COMPLETED)


@pytest.mark.parametrize(("case", "maker"), [("a workflow", code), ("a graph", takes)])
async def test_the_line_that_is_shown_is_that_of_the_code_which_takes_the_value(
    tmp_path: Path, case: str, maker: Callable[..., Any]
) -> None:
    checked, _ = await deployed(tmp_path, graph(PARKS[case], str), graph(PARKS[case], int), {})
    lines, first = inspect.getsourcelines(maker)
    assert int(checked.source.rpartition(":")[2]) in range(first, first + len(lines))
