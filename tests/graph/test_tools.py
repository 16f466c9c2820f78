"""What works on workflows works on graphs: crash trials and replays of recorded runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from perdure import Diverged, Engine, step_context
from perdure.graph import END, Graph, Items, interrupt, node, route
from perdure.testing import crash_everywhere, interleavings, replay
from perdure.testing.simulation import STORMY, Faults, Message, Sender, Simulation

effects: dict[str, int] = {}


@node
async def left(x: int) -> int:
    effects[step_context().id] = x
    return x + 1


@node
async def right(x: int) -> int:
    effects[step_context().id] = x
    return x + 2


@node
async def again(left: int, right: int, last: int = 0) -> int:
    return last + left + right


@node
async def last(again: int) -> int:
    return again


@route(targets=["again", END])
def enough(last: int) -> object:
    return END if last > 10 else again


GRAPH = Graph([left, right, again, last, enough], name="sums", loops=["again"], output=last)


def test_a_graph_survives_a_crash_at_every_commit_and_any_order_of_its_steps() -> None:
    survived = crash_everywhere(GRAPH(x=1), before=effects.clear, effects=lambda: sorted(effects.values()))
    assert survived.result.output == 15
    assert survived.boundaries >= 8
    assert set(survived.executions.values()) <= {1, 2}
    assert len(interleavings(GRAPH(x=1), seeds=8).orders) > 1


def test_a_recorded_run_of_a_graph_is_replayed() -> None:
    async def recorded() -> bytes:
        async with Engine("memory://", [GRAPH]) as engine:
            await engine.run(GRAPH(x=1), id="r")
            return await engine.export("r")

    capsule = asyncio.run(recorded())
    replay(capsule, GRAPH).check()
    changed = Graph([left, right, node(again, name="other", inputs={"last": "first"})], name="sums")
    with pytest.raises(Diverged, match="again"):
        replay(capsule, changed).check()


def counting(n: int) -> Iterator[int]:
    yield from range(n)


async def counting_on_the_loop(n: int) -> AsyncIterator[int]:
    for number in range(n):
        yield number


async def square(number: int) -> int:
    return number * number


def total(square: Items[int]) -> int:
    return sum(square)


async def total_on_the_loop(square: Items[int]) -> int:
    return sum([one async for one in square])


@pytest.mark.parametrize("seed", range(6))
def test_a_store_that_is_away_for_a_moment_fails_no_step_that_reads_or_writes_items(seed: int) -> None:
    numbers = node(counting_on_the_loop, name="numbers")
    totals: Any = node(total_on_the_loop, name="total", inputs={"square": "numbers"})
    graph = Graph([numbers, totals], name="g", output=totals)
    report = Simulation(seed, faults=Faults(refusals=0.4)).run(graph(n=5), programs=[graph])
    assert report.results["run-0"].output == 10


@pytest.mark.parametrize("on_the_loop", [True, False])
@pytest.mark.parametrize("faults", [None, STORMY], ids=["calm", "stormy"])
def test_a_map_over_items_survives_a_crash_at_every_commit(on_the_loop: bool, faults: Faults | None) -> None:
    numbers = node(counting_on_the_loop if on_the_loop else counting, name="numbers")
    squares = node(square, inputs={"number": "numbers"}).map_over("number", chunk=2)
    totals: Any = node(total_on_the_loop if on_the_loop else total, name="total")
    graph = Graph([numbers, squares, totals], name="g", output=totals)
    if faults is not None:
        report = Simulation(1, faults=faults).run(graph(n=5), programs=[graph], engines=2)
        assert report.results["run-0"].output == 30
        return
    survived = crash_everywhere(graph(n=5))
    assert survived.result.output == 30
    assert set(survived.executions) == {"numbers:0", "total:0", *(f"square:0[{n}]" for n in range(5))}


def test_a_long_map_in_a_graph_inside_survives_a_crash_at_every_commit() -> None:
    squares = node(square, inputs={"number": "numbers"}).map_over("number", chunk=1)
    inner = Graph([squares, node(total)], name="inner", output="total")
    graph = Graph([node(inner, name="sums")], name="g", output="sums")
    survived = crash_everywhere(graph(numbers=[1, 2, 3]))
    assert survived.result.output == 14
    assert set(survived.executions) == {"sums:0/total:0", *(f"sums:0/square:0[{n}]" for n in range(3))}


@pytest.mark.parametrize("nested", [False, True])
def test_questions_of_items_in_chunks_survive_a_crash_at_every_commit(nested: bool) -> None:
    question = interrupt(answer=int, name="ask")(lambda number: number)
    asked = node(question, inputs={"number": "numbers"}).map_over("number", chunk=1)
    graph, at = Graph([asked, node(square, name="total", inputs={"number": "n"})], name="g"), ""
    if nested:
        graph, at = Graph([graph], name="around"), "g:0/"
    answers = [Sender([Message("approve", f"{at}ask:0[{i}]/ask:0", i * 10)]) for i in range(3)]
    survived = crash_everywhere(graph(numbers=[1, 2, 3], n=2), senders=answers)
    assert survived.result.output["ask"] == [0, 10, 20]
