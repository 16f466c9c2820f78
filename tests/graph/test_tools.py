"""What works on workflows works on graphs: crash trials and replays of recorded runs."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Diverged, Engine, step_context
from perdure.graph import END, Graph, node, route
from perdure.testing import crash_everywhere, interleavings, replay

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
