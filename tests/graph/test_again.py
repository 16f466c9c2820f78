"""Values that are replaced, and steps that are taken again: only what depends on them runs."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Engine, RunStatus, UsageError
from perdure.graph import END, Graph, interrupt, node, route

CALLS: list[str] = []


def step(name: str, *values: str, **options: Any) -> Any:
    """A node that joins its values to a text, and notes that it was called."""

    def join(parts: list[str], suffix: str = "") -> str:
        CALLS.append(name)
        return f"{name}({','.join(parts)}){suffix}"

    return node(join, name=name, inputs={"parts": list(values), "suffix": f"{name}_suffix"}, **options)


@interrupt(answer=str, inputs={"shown": "draft"})
def sign_off(shown: str) -> str:
    return shown


INNER = Graph([step("find", "topic"), step("sum", "find")], name="inner", output="sum")
GRAPH = Graph(
    [step("draft", "topic"), step("apart", "topic"), INNER, sign_off, step("publish", "draft", "sign_off", "inner")],
    name="g",
)


@pytest.fixture(autouse=True)
def fresh() -> None:
    CALLS.clear()


async def published(engine: Engine) -> None:
    await engine.run(GRAPH(topic="t"), id="r")
    result = await engine.run(GRAPH, id="r", answers={"sign_off": "yes"})
    assert result.output["publish"] == "publish(draft(t),yes,sum(find(t)))"
    assert sorted(CALLS) == ["apart", "draft", "find", "publish", "sum"]
    CALLS.clear()


async def test_a_replaced_value_runs_again_what_depends_on_it_and_asks_anew() -> None:
    async with Engine("memory://", [GRAPH]) as engine:
        await published(engine)
        assert await engine.update_state("r", {"draft": "D"}, dry_run=True) == ["sign_off:0", "publish:0"]
        handle = await engine.update_state("r", {"draft": "D"})
        asked = await handle.outcome(until="rest")
        assert asked.suspend_payload == "D"
        result = await engine.run(GRAPH, id="r", answers={"sign_off": "no"})
        assert dict(result.output) == {"apart": "apart(t)", "publish": "publish(D,no,sum(find(t)))"}
    assert CALLS == ["publish"]


async def test_a_run_that_rests_goes_on_with_a_replaced_value() -> None:
    async with Engine("memory://", [GRAPH]) as engine:
        assert (await engine.run(GRAPH(topic="t"), id="r")).interrupted
        CALLS.clear()
        await engine.update_state("r", {"draft": "D"})
        result = await engine.run(GRAPH, id="r", answers={"sign_off": "yes"})
        assert result.output["publish"] == "publish(D,yes,sum(find(t)))"
    assert CALLS == ["publish"]


async def test_a_replaced_input_runs_again_what_takes_it() -> None:
    graph = Graph([step("a", "x"), step("b", "y"), step("c", "a", "b")], name="h", output="c")
    async with Engine("memory://", [graph]) as engine:
        await engine.run(graph(x="1", y="2"), id="r")
        CALLS.clear()
        handle = await engine.update_state("r", {"x": "9"})
        assert await handle.result() == "c(a(9),b(2))"
        memos = [
            entry.event.memo for entry in await engine.journal("r") if type(entry.event).__name__ == "StepSucceeded"
        ]
        assert sum(map(bool, memos)) == 1
    assert CALLS == ["a", "c"]


async def test_values_inside_a_graph_are_replaced_by_op_path_and_wrong_names_are_refused() -> None:
    async with Engine("memory://", [GRAPH]) as engine:
        await published(engine)
        handle = await engine.update_state("r", {"inner:0/find:0": "F"})
        result = await handle.outcome()
        assert result.output["publish"] == "publish(draft(t),yes,sum(F))"
        assert CALLS == ["sum", "publish"]
        for wrong in ("drft", "inner"):
            with pytest.raises(UsageError, match=wrong):
                await engine.update_state("r", {wrong: 1})


async def test_time_travel_runs_again_what_depends_on_the_step() -> None:
    async with Engine("memory://", [GRAPH]) as engine:
        await published(engine)
        handle = await engine.time_travel("r", "inner:0/find:0", inputs={"suffix": "!"}, new_id="other")
        result = await handle.outcome()
        assert result.output["publish"] == "publish(draft(t),yes,sum(find(t)!))"
        assert CALLS == ["find", "sum", "publish"]
        assert (await engine.get("r")).status is RunStatus.COMPLETED


async def test_time_travel_into_a_loop_runs_again_from_that_round_on() -> None:
    @node
    def count(total: int = 0) -> int:
        CALLS.append(f"count {total}")
        return total + 1

    @node(outputs="total")
    def keep(count: int) -> int:
        return count

    @route(targets=["count", END])
    def again(total: int) -> object:
        return END if total > 3 else "count"

    graph = Graph([count, keep, again], name="loop", loops=["count"], output="count")
    async with Engine("memory://", [graph]) as engine:
        assert (await engine.run(graph(), id="r")).output == 4
        CALLS.clear()
        assert await (await engine.time_travel("r", "count:2", inputs={"total": 10})).result() == 11
        assert CALLS == ["count 10"]
        CALLS.clear()
        assert await (await engine.time_travel("r", "count")).result() == 4
        assert CALLS == ["count 3"]
