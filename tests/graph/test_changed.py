"""A graph that was changed while its runs are under way: what fits goes on, what does not is parked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, RunStatus, connect
from perdure.client.upgrade import upgrade_check
from perdure.graph import Graph, interrupt, node, route
from perdure.kernel.history.upgrade import Fit
from perdure.kernel.policies.versions import Programs


def add(name: str, value: str = "x", **options: Any) -> Any:
    """A node that adds one to a value."""
    return node(lambda x: x + 1, name=name, inputs={"x": value}, **options)


def ask(value: str = "a") -> Any:
    """A question about a value."""
    return interrupt(answer=int, name="ask", inputs={"shown": value})(lambda shown: shown)


def choose(*targets: str) -> Any:
    """A gate that chooses its first target."""
    return route(targets=targets, name="choose", inputs={"x": "ask"})(lambda x: targets[0])


def early(*targets: str, name: str = "early") -> Any:
    """A gate that decides at once, and chooses its first target."""
    return route(targets=targets, name=name, inputs={"x": "x"})(lambda x: targets[0])


PLAIN = [add("a"), ask(), add("after", "ask")]
# A map with no limit, and the same with a limit of one, behind a question.
FREE, LIMITED = (
    [
        node(lambda x: [x, x + 1, x + 2], name="items"),
        node(lambda i: i, name="each", inputs={"i": "items"}).map_over("i", limit=limit),
        ask("each"),
        node(lambda ask, each: [ask, *each], name="after"),
    ]
    for limit in (None, 1)
)
NESTED = [Graph([add("a")], name="inner", output="a").as_node("old"), ask("x"), add("after", "ask")]


async def changed(path: Path, before: list[Any], nodes: list[Any], **options: Any) -> Any:
    """Run a graph until it asks, and let another one go on with it."""
    url = f"sqlite:///{path / 'g.db'}"
    first = Graph(before, name="g")
    async with Engine(url, [first]) as engine:
        assert (await engine.run(first(x=1), id="r")).interrupted
    second: Graph[..., Any] = Graph(nodes, name="g", **options)
    if "none" in second.nodes:
        second = second.bind(nothing=[])
    async with connect(url) as client:
        [checked] = [one async for one in upgrade_check(client, Programs([second]))]
    async with Engine(url, [second]) as engine:
        result = await engine.run(second, id="r", answers={"ask": 10})
    return result, checked.fit


FITS: dict[str, tuple[list[Any], list[Any], dict[str, Any], dict[str, Any]]] = {
    "nothing": (PLAIN, PLAIN, {}, {"after": 11}),
    "a leaf that could have run before": (PLAIN, [add("leaf"), *PLAIN], {}, {"after": 11, "leaf": 2}),
    "a node behind all": (PLAIN, [*PLAIN, add("behind", "after")], {}, {"behind": 12}),
    "a default": (PLAIN, [node(lambda x, y=3: x + y, name="a"), *PLAIN[1:]], {}, {"after": 11}),
    "a renamed node": (PLAIN, [add("b"), ask("b"), PLAIN[2]], {"renamed": {"a": "b"}}, {"after": 11}),
    "a renamed question": (
        PLAIN,
        [PLAIN[0], node(ask(), name="asked"), add("after", "asked")],
        {"renamed": {"ask": "asked"}},
        {"after": 11},
    ),
    "a lower limit": (FREE, LIMITED, {}, {"after": [10, 1, 2, 3]}),
    "a higher limit": (LIMITED, FREE, {}, {"after": [10, 1, 2, 3]}),
    "a renamed child": (
        NESTED,
        [Graph([add("a")], name="inner", output="a").as_node("new"), *NESTED[1:]],
        {"renamed": {"old": "new"}},
        {"new": 2, "after": 11},
    ),
    "a retired node": (PLAIN, [ask("x"), PLAIN[2]], {"retired": ["a"]}, {"after": 11}),
    "a retired child": (NESTED, NESTED[1:], {"retired": ["old"]}, {"after": 11}),
    "a gate that has not decided": (
        [*PLAIN, choose("after")],
        [*PLAIN, choose("after", "other"), add("other")],
        {},
        {"after": 11},
    ),
    "a gate behind all": (PLAIN, [*PLAIN, choose("other"), add("other")], {}, {"after": 11, "other": 2}),
    "a gate before a node that has not run": (PLAIN, [*PLAIN, early("after")], {}, {"after": 11}),
    "a gate before a node that has not run, which chooses another": (
        PLAIN,
        [*PLAIN, early("other", "after"), add("other")],
        {},
        {"other": 2},
    ),
    "a condition of a node that has run": (PLAIN, [add("a", when=lambda x: False), *PLAIN[1:]], {}, {"after": 11}),
    "a retired gate": ([*PLAIN, early("a")], PLAIN, {"retired": ["early"]}, {"after": 11}),
    "another target of a gate that has decided": (
        [*PLAIN, early("a")],
        [*PLAIN, early("other", "a"), add("other")],
        {},
        {"after": 11},
    ),
    "one target less of a gate that has decided": (
        [*PLAIN, early("a", "other"), add("other")],
        [*PLAIN, early("a")],
        {},
        {"after": 11},
    ),
}


@pytest.mark.parametrize("case", FITS)
async def test_a_change_that_fits_goes_on(tmp_path: Path, case: str) -> None:
    before, nodes, options, wanted = FITS[case]
    result, checked = await changed(tmp_path, before, nodes, **options)
    assert result.status is RunStatus.COMPLETED, result
    assert checked is Fit.SAFE
    assert dict(result.output) == wanted


def _second(first: int, second: int) -> int:
    return second


def _text(x: int) -> str:
    return str(x)


def _other(first: str, second: int) -> int:
    return second


PARKS = {
    "a node removed that has run": (PLAIN, [ask("x"), PLAIN[2]], ("a:0", "no longer has it", "retired=['a']")),
    "a node renamed that has run": (PLAIN, [add("b"), ask("b"), PLAIN[2]], ("a:0", "renamed={'a'", "b")),
    "a node inserted before one that has run": (
        PLAIN,
        [add("new"), add("a", "new"), *PLAIN[1:]],
        ("a:0", "comes after 'new'"),
    ),
    "a node that takes another value": (
        PLAIN,
        [node(lambda x, y: x, name="a", inputs={"y": "x"}), *PLAIN[1:]],
        ("a:0",),
    ),
    "a type that a recorded value is not of": (
        [add("a"), ask(), node(_second, inputs={"first": "a", "second": "ask"})],
        [node(_text, name="a"), ask(), node(_other, inputs={"first": "a", "second": "ask"})],
        ("the argument first of _other:0", "str"),
    ),
    "a node that has become a question": (
        PLAIN,
        [interrupt(name="a")(lambda x: x), *PLAIN[1:]],
        ("a:0", 'Graph(version="...")'),
    ),
    "a gate before a node that has run, which chooses another": (
        PLAIN,
        [early("other", "a"), add("other"), *PLAIN],
        ("The node 'a' has run, and now comes after 'early', which had not ended then.", 'Graph(version="...")'),
    ),
    "a gate before a node that has run, which chooses it": (
        PLAIN,
        [early("a"), *PLAIN],
        ("The node 'a' has run, and now comes after 'early', which had not ended then.", 'Graph(version="...")'),
    ),
    "a gate before a node that has run and one that has not": (
        PLAIN,
        [early("after", "a"), *PLAIN],
        ("The node 'a' has run, and now comes after 'early'",),
    ),
    "a gate before a gate that has decided": (
        [*PLAIN, early("a")],
        [*PLAIN, early("a"), early("early", name="first")],
        ("early:0", "now comes after 'first'"),
    ),
    "a gate before a question": (PLAIN, [early("ask"), *PLAIN], ("ask:0", "now comes after 'early'")),
    "a gate that is gone": ([*PLAIN, early("a")], PLAIN, ("early:0", "retired=['early']")),
    "a map over nothing before a node that has run": (
        PLAIN,
        [
            node(lambda i: i, name="none", inputs={"i": "nothing"}).map_over("i"),
            add("a", after=["none"]),
            *PLAIN[1:],
        ],
        ("The node 'a' has run, and now comes after 'none'",),
    ),
    "a node that its condition skips before a node that has run": (
        PLAIN,
        [add("skipped", when=lambda x: False), add("a", after=["skipped"]), *PLAIN[1:]],
        ("The node 'a' has run, and now comes after 'skipped'",),
    ),
    "a target that a gate did not have when it decided": (
        [*PLAIN, early("other"), add("other")],
        [*PLAIN, early("other", "a"), add("other")],
        ("The node 'a' has run, and now is skipped: early:0 chose other.",),
    ),
}


@pytest.mark.parametrize("case", PARKS)
async def test_a_change_that_does_not_fit_parks_the_run_and_says_what(tmp_path: Path, case: str) -> None:
    before, nodes, says = PARKS[case]
    result, checked = await changed(tmp_path, before, nodes)
    assert result.status is RunStatus.PARKED, result
    assert checked is not Fit.SAFE
    for words in says:
        assert words in str(result.error)


async def test_a_decision_for_a_node_that_is_gone_parks_the_run(tmp_path: Path) -> None:
    def gate(*targets: str) -> Any:
        return route(targets=targets, name="choose", inputs={"x": "a"})(lambda x: targets[0])

    first = [add("a"), gate("second"), ask("a"), add("second", "ask")]
    result, _ = await changed(tmp_path, first, [add("a"), gate("other"), ask("a"), add("other", "ask")])
    assert result.status is RunStatus.PARKED
    assert "'second'" in str(result.error)
