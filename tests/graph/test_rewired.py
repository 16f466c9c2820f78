"""A node that takes a value from elsewhere than when it ran: both sides are shown, and both ways out work."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, RunStatus, call, connect, workflow
from perdure.cli.main import main
from perdure.client.upgrade import upgrade_check
from perdure.graph import Graph, interrupt, node
from perdure.kernel.policies.versions import Programs


@interrupt(answer=int)
def ask(n: int) -> int:
    """Keeps a run open."""
    return n


@node(outputs="order")
def validate(raw: str) -> str:
    """Makes the value that was an input."""
    return f"valid {raw}"


def charge(order: str) -> str:
    """A step that has run."""
    return f"charged {order}"


BEFORE = Graph([node(charge), ask], name="checkout")
AFTER = Graph([validate, node(charge), ask], name="checkout").rename_inputs(raw="order")


async def parked(url: str, before: Any, after: Any, **inputs: Any) -> str:
    """Why a run is parked that was begun by one program and goes on with another."""
    async with Engine(url, [before]) as engine:
        assert (await engine.run(before(**inputs), id="order-123", until="rest")).interrupted
    async with Engine(url, [after]) as engine:
        result = await engine.run(after, id="order-123", answers={"ask": 1})
        assert result.status is RunStatus.PARKED
        return str(result.error)


async def test_both_sides_are_shown_with_their_lines_and_both_ways_out_work(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'g.db'}"
    text = await parked(url, BEFORE, AFTER, order="o", n=1)
    here = "tests/graph/test_rewired.py"
    assert f"recorded  charge:0  order = input.order     (seq 2; {here}:" in text
    assert ") of version 1" not in text
    assert "of version 1)" in text
    assert f"now       charge:0  order = validate.order  ({here}:" in text
    assert "'charge' takes 'order' from 'validate' now; when it ran, it took it from the input." in text
    assert "perdure runs travel order-123 charge:0" in text
    assert "Graph(..., version=...)" in text

    # Before it is deployed, the same is said; and by what the row of the run shows.
    async with connect(url) as client:
        [checked] = [one async for one in upgrade_check(client, Programs([AFTER]))]
        assert (checked.kind, checked.reason) == ("inserted", text.removeprefix("run 'order-123' is parked: "))
        view = await client.get("order-123")
        assert view is not None
        assert view.divergence is not None
        assert view.divergence.change == "inserted"
    # One way: both versions are there.
    versions = [BEFORE, Graph([validate, node(charge), ask], name="checkout", version="2").rename_inputs(raw="order")]
    async with Engine(url, versions) as engine:
        assert dict(await engine.handle("order-123").result()) == {"charge": "charged o", "ask": 1}


async def test_the_other_way_runs_what_was_rewired_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'g.db'}"
    await parked(url, BEFORE, AFTER, order="o", n=1)
    async with connect(url) as client:  # it need not have the code
        _ = await client.time_travel("order-123", "charge:0", new_id="again")
    async with Engine(url, [AFTER]) as engine:
        result = await engine.run(AFTER, id="again", answers={"ask": 1})
        assert result.output is not None
        assert dict(result.output) == {"charge": "charged valid o", "ask": 1}


def two(order: str, extra: str = "none") -> str:
    """A step with another argument."""
    return order + extra


CASES: dict[str, tuple[Any, Any, dict[str, Any], str, str]] = {
    "another argument": (
        node(two),
        node(two, inputs={"extra": "order"}),
        {"order": "o"},
        "extra = input.order",
        "'two' takes 'extra' from the input 'order' now; when it ran, it took it from the input.",
    ),
    "another input": (
        node(two),
        node(two, inputs={"order": "other"}),
        {"order": "o", "other": "p"},
        "order = input.other",
        "'two' takes 'order' from the input 'other' now; when it ran, it took it from the input.",
    ),
}


@workflow
async def calls(inputs: dict[str, Any]) -> Any:
    """Code that runs the graph."""
    return await call("checkout", **inputs)


@pytest.mark.parametrize("where", ["root", "nested", "called by code"])
@pytest.mark.parametrize("case", CASES)
async def test_the_sides_are_found_at_any_depth(case: str, where: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'g.db'}"
    first, second, given, now, sentence = CASES[case]
    inputs: dict[str, Any] = {**given, "n": 1}
    also = [node(lambda order, other: order, name="also")] if "other" in inputs else []
    before, after = (Graph([made, ask, *also], name="checkout") for made in (first, second))
    if where == "called by code":
        async with Engine(url, [calls, before]) as engine:
            assert (await engine.run(calls(inputs), id="order-123", until="rest")).interrupted
        async with Engine(url, [calls, after]) as engine:
            text = str((await engine.run(calls(inputs), id="order-123", answers={"ask": 1})).error)
    elif where == "nested":
        outer = [Graph([one.as_node("middle")], name="outer") for one in (before, after)]
        text = await parked(url, *outer, **inputs)
    else:
        text = await parked(url, before, after, **inputs)
    assert now in text
    assert sentence in text


async def test_a_value_that_comes_from_a_node_which_was_there_is_only_rewired(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'g.db'}"
    before = Graph([validate, node(charge, inputs={"order": "raw"}), ask], name="checkout")
    after = Graph([validate, node(charge), ask], name="checkout")
    text = await parked(url, before, after, raw="o", n=1)
    assert "order = input.raw" in text
    assert (
        "is parked: 'charge' takes 'order' from 'validate' now; when it ran, it took it from the input 'raw'." in text
    )
    async with connect(url) as client:
        view = await client.get("order-123")
        assert view is not None
        assert view.divergence is not None
        assert view.divergence.change == "rewired"


def test_two_runs_are_compared_with_where_they_took_their_values_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'g.db'}"

    async def both() -> None:
        for id, graph in (("old", BEFORE), ("new", AFTER)):
            async with Engine(url, [graph]) as engine:
                await engine.run(graph(order="o", n=1), id=id)

    asyncio.run(both())
    for arguments, wanted in (
        (["runs", "diff", "old", "new"], ["charge:0  order = input.order (", "charge:0  order = validate.order ("]),
        (["runs", "diff", "old", "new", "--json"], ['"takes"']),
    ):
        assert main([*arguments, "--store", url]) == 0
        shown = capsys.readouterr().out
        assert all(text in shown for text in wanted), shown
