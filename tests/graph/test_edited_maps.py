"""What is edited in maps, and run again in them: the same in one journal (`chunk=500`) and in chunks (`chunk=2`).

Five items: up to twice as many as a chunk has run in one journal.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Engine, ForkRefused, NoSuchOp, PerdureError, RunStatus, UsageError
from perdure.errors import Corrupt
from perdure.graph import Graph, Items, interrupt, node, route
from perdure.kernel.events import StepSucceeded
from perdure.ports.runs import RunFilter

CALLS: list[str] = []
# Untyped: what is checked here is not the types.
OPEN: Any = Engine
IN_CHUNKS = pytest.mark.parametrize("chunk", [2, 500])


@pytest.fixture(autouse=True)
def fresh() -> None:
    CALLS.clear()


@node
def load(x: int) -> int:
    CALLS.append(f"load {x}")
    return x


@interrupt(answer=str)
def ask(load: int) -> str:
    return f"What about {load}?"


@node
def save(load: int, ask: str) -> str:
    CALLS.append(f"save {load}")
    return f"{load} {ask}"


@node
async def report(page: Items[Any], prefix: str = "") -> str:
    CALLS.append("report")
    return prefix + ", ".join([str(one) async for one in page])


ITEM = Graph([load, ask, save], name="item", output=save)


def pages(chunk: int, of: Any = ITEM, **options: Any) -> Graph[..., Any]:
    mapped = node(of, name="page", inputs={"x": "xs"}).map_over("x", chunk=chunk, **options)
    return Graph([mapped, report], name="pages", output=report)


async def answered(engine: Any, handle: Any) -> Any:
    """Answer what a run asks until it has ended."""
    result = await handle.outcome(until="rest")
    while result.interrupted:
        result = await handle.outcome(until="rest", answers={one.path: "ok" for one in result.interrupts})
    assert result.status is RunStatus.COMPLETED, result
    return result.output


@IN_CHUNKS
@pytest.mark.parametrize("nested", [False, True])
async def test_time_travel_to_an_op_in_an_item_runs_again_what_depends_on_it(chunk: int, nested: bool) -> None:
    graph, at = pages(chunk), ""
    if nested:
        graph, at = Graph([graph], name="around", output="pages"), "pages:0/"
    async with OPEN("memory://", [graph]) as engine:
        await answered(engine, await engine.start(graph(xs=[0, 1, 2, 3, 4]), id="r"))

        async def again(op: str, **inputs: Any) -> tuple[list[str], list[str], str]:
            CALLS.clear()
            handle = await engine.time_travel("r", f"{at}{op}", inputs)
            asked = [one.path for one in (await handle.outcome(until="rest")).interrupts]
            return asked, CALLS, await answered(engine, handle)

        one, rest = "page:0[3]", "0 ok, 1 ok, 2 ok, 3 ok, 4 ok"
        assert await again(f"{one}/load:0") == ([f"{at}{one}/ask:0"], ["load 3", "save 3", "report"], rest)
        assert await again(f"{one}/ask:0") == ([f"{at}{one}/ask:0"], ["save 3", "report"], rest)
        assert await again(f"{one}/save:0") == ([], ["save 3", "report"], rest)
        assert await again(f"{one}/save:0", load=9) == ([], ["save 9", "report"], rest.replace("3", "9"))
        for missing in ("page:0[3]/sav:0", "page:0[9]/save:0", "page:0[9]"):
            with pytest.raises(NoSuchOp):
                await engine.time_travel("r", f"{at}{missing}")


@IN_CHUNKS
async def test_the_outcome_of_an_op_in_an_item_is_replaced(chunk: int) -> None:
    graph = pages(chunk)
    async with OPEN("memory://", [graph]) as engine:
        await answered(engine, await engine.start(graph(xs=[0, 1, 2, 3, 4]), id="r"))

        async def update(values: dict[str, Any]) -> tuple[set[str], str]:
            said = set(await engine.update_state("r", values, dry_run=True))
            CALLS.clear()
            return said, await answered(engine, await engine.update_state("r", values))

        behind = {"page:0[3]/ask:0", "page:0[3]/save:0", "report:0"}
        assert await update({"page:0[3]/load:0": 30}) == (behind, "0 ok, 1 ok, 2 ok, 30 ok, 4 ok")
        assert CALLS == ["save 30", "report"]
        both = {"page:0[2]/ask:0": "no", "page:0[3]/ask:0": "never"}
        said = {"page:0[2]/save:0", "page:0[3]/save:0", "report:0"}
        assert await update(both) == (said, "0 ok, 1 ok, 2 no, 30 never, 4 ok")
        # It holds also in the runs that follow.
        assert await update({"prefix": "> "}) == ({"report:0"}, "> 0 ok, 1 ok, 2 no, 30 never, 4 ok")
        assert CALLS == ["report"]
        with pytest.raises(UsageError, match="is a child, whose outcome cannot be replaced"):
            await engine.update_state("r", {"page:0[3]": "x"})
        with pytest.raises(ForkRefused, match="cannot be read as int"):
            await engine.update_state("r", {"page:0[3]/load:0": "x"})


async def square(x: int) -> int:
    CALLS.append(f"square {x}")
    if x == 7:
        raise ValueError("seven")
    return x * x


@IN_CHUNKS
async def test_the_result_of_an_item_is_replaced(chunk: int) -> None:
    graph = pages(chunk, square)
    async with OPEN("memory://", [graph]) as engine:
        await engine.run(graph(xs=[0, 1, 2, 3, 4]), id="r")
        CALLS.clear()
        assert await engine.update_state("r", {"page:0[3]": 1000}, dry_run=True) == ["report:0"]
        assert await (await engine.update_state("r", {"page:0[3]": 1000})).result() == "0, 1, 4, 1000, 16"
        assert CALLS == ["report"]
        assert [item.output for item in await engine.items("r", "page:0")] == [0, 1, 4, 1000, 16]
        with pytest.raises(UsageError, match="neither an input nor a value"):
            await engine.update_state("r", {"page:0[5]": 1})


@IN_CHUNKS
async def test_the_results_of_a_map_are_replaced_as_a_whole(chunk: int) -> None:
    graph = pages(chunk, square, on_error="none")
    async with OPEN("memory://", [graph]) as engine:
        assert (await engine.run(graph(xs=[0, 1, 2, 7, 3]), id="r")).output == "0, 1, 4, None, 9"
        for name, values in (("page", [5, None]), ("page:0", [])):
            CALLS.clear()
            assert await engine.update_state("r", {name: values}, dry_run=True) == ["report:0"]
            output = await (await engine.update_state("r", {name: values})).result()
            assert (output, CALLS) == (", ".join(map(str, values)), ["report"])
            assert (await engine.values("r"))["page"] == values
            # It holds also in the runs that follow.
            for prefix in ("> ", ""):
                handle = await engine.update_state("r", {"prefix": prefix})
                assert await handle.result() == prefix + output
            assert CALLS == ["report"] * 3
        with pytest.raises(ForkRefused, match=r"cannot be read as list\[int \| None\]"):
            await engine.update_state("r", {"page": ["x"]})
        fork = await engine.fork("r", values={"page": [1, 2, 3]})
        assert await fork.result() == "1, 2, 3"
        with pytest.raises(UsageError, match="the value of a map is the list of the results"):
            await engine.fork("r", values={"page": 3})
        assert await (await engine.time_travel("r", "page")).result() == "0, 1, 4, None, 9"


@IN_CHUNKS
async def test_a_part_of_each_result_of_a_map_is_not_replaced_by_its_name(chunk: int) -> None:
    @node(outputs=("low", "high"))
    def bounds(x: int) -> tuple[int, int]:
        return x, x + 1

    graph = Graph([node(bounds, inputs={"x": "xs"}).map_over("x", chunk=chunk)], name="g")
    async with OPEN("memory://", [graph]) as engine:
        assert (await engine.run(graph(xs=[1, 2, 3, 4, 5]), id="r")).output["high"] == [2, 3, 4, 5, 6]
        with pytest.raises(UsageError, match="it is a part of each result of bounds:0"):
            await engine.update_state("r", {"low": [9]})
        handle = await engine.update_state("r", {"bounds:0": [(1, 9)]})
        assert await handle.result() == {"low": [1], "high": [9]}


@IN_CHUNKS
async def test_a_map_over_nothing_is_a_value_too(chunk: int) -> None:
    graph = pages(chunk, square)
    async with OPEN("memory://", [graph]) as engine:
        await engine.run(graph(xs=[]), id="r")
        assert (await engine.values("r"))["page"] == []


@IN_CHUNKS
@pytest.mark.parametrize("nested", [False, True])
async def test_a_fork_replaces_outcomes_in_items(chunk: int, nested: bool) -> None:
    graph, at = pages(chunk), ""
    if nested:
        graph, at = Graph([graph], name="around", output="pages"), "pages:0/"
    async with OPEN("memory://", [graph]) as engine:
        await answered(engine, await engine.start(graph(xs=[0, 1, 2, 3, 4]), id="r"))
        CALLS.clear()
        values = {f"{at}page:0[1]/load:0": 10, f"{at}page:0[3]/ask:0": "no"}
        assert [one.op[-5:] for one in await engine._forks.questions("r", values)] == ["ask:0"]
        fork = await engine.fork("r", values=values, new_id="f", by="ann")
        assert await answered(engine, fork) == "0 ok, 10 ok, 2 ok, 3 no, 4 ok"
        assert (await engine.get("f")).forked_from == (await engine.get("r")).run_id
        assert "save 10" in CALLS
        assert "save 3" in CALLS
        assert "load 1" not in CALLS
        # The origin is as it was.
        assert await engine.handle("r").result() == "0 ok, 1 ok, 2 ok, 3 ok, 4 ok"


async def test_a_fork_says_what_it_cannot_replace_in_chunks() -> None:
    graph = pages(2, square)
    async with OPEN("memory://", [graph]) as engine:
        await engine.run(graph(xs=[0, 1, 2, 3, 4]), id="r")
        both = await engine.fork("r", values={"page:0[3]": 1000, "page:0[0]": -1}, inputs={"prefix": "> "})
        assert await both.result() == "> -1, 1, 4, 1000, 16"
        early = await engine.fork("r", at="report:0", values={"page:0[3]": 1000})
        assert await early.result() == "0, 1, 4, 1000, 16"
        for given, message in (
            ({"values": {"page:0[3]": 1}, "state": {"phase": "x"}}, "leave out state="),
            ({"values": {"page:0[9]": 1}}, "has no op 'page:0\\[9\\]'"),
            ({"values": {"page:0[3]": 1, "report:1": ""}}, "neither an input nor a value"),
            ({"values": {"page:0[3]": "x"}}, "cannot be read as int"),
            ({"values": {"page:0[3]": 1}, "new_id": "r"}, "exists and is completed"),
            ({"values": {"page:0[3]": 1}, "at": "page:0"}, "ends before it has its value"),
            ({"values": {"page:0[2-3]": 1}}, "a chunk of a map.*such as page:0.2."),
        ):
            with pytest.raises(PerdureError, match=message):
                await engine.fork("r", **given)


@IN_CHUNKS
async def test_a_decision_in_an_item_is_replaced_unless_it_is_in_a_chunk(chunk: int) -> None:
    @route(targets=["low", "high"])
    def side(x: int) -> str:
        return "low"

    low, high = (node(load, name=name, outputs="one") for name in ("low", "high"))
    twice = node(lambda i: 2 * i, name="twice", inputs={"i": "many"}).map_over("i")
    many = node(lambda one: [one], name="many")
    of = Graph([side, low, high, many, twice], name="of", output="twice")
    graph = Graph([node(of, name="page", inputs={"x": "xs"}).map_over("x", chunk=chunk)], name="g", output="page")
    async with OPEN("memory://", [graph]) as engine:
        await engine.run(graph(xs=[0, 1, 2, 3, 4]), id="r")
        for values, output in (({"page:0[3]/side:0": "high"}, [6]), ({"page:0[3]/twice:0": [7]}, [7])):
            if chunk == 2:
                for edit in (engine.fork, engine.update_state):
                    with pytest.raises(UsageError, match="a decision in a chunk"):
                        await edit("r", values=values)
                continue
            fork = await engine.fork("r", values=values)
            assert (await fork.result())[3] == output
            paths = [one.path for one in await engine.steps(fork.id) if one.status == "succeeded"]
            assert ("page:0[3]/high:0" in paths) == (output == [6])


@pytest.mark.parametrize("how", ["time_travel", "fork"])
async def test_a_run_under_way_keeps_its_chunks_when_another_begins_with_its_past(how: str) -> None:
    reached, goes_on = asyncio.Event(), asyncio.Event()

    async def held(x: int, k: int = 1) -> int:
        CALLS.append(f"held {x}")
        if x == 5:
            reached.set()
            await goes_on.wait()
        return x * k

    graph = pages(3, held)
    async with OPEN("memory://", [graph]) as engine:
        origin = await engine.start(graph(xs=[0, 1, 2, 3, 4, 5]), id="r")
        await reached.wait()
        while len(await engine.items("r", "page:0", status="succeeded")) < 5:
            await asyncio.sleep(0)
        CALLS.clear()
        if how == "fork":
            other = await engine.fork("r", values={"page:0[4]": 40})
        else:
            other = await engine.time_travel("r", "page:0[4]", {"k": 10})
        goes_on.set()
        assert await other.result() == "0, 1, 2, 3, 40, 5"
        assert await origin.result() == "0, 1, 2, 3, 4, 5"
        # An attempt without an outcome belongs to the origin.
        assert sorted(CALLS) == ["held 4"] * (how == "time_travel") + ["held 5", "report", "report"]


async def test_a_chunk_that_cannot_be_continued_fails_its_map() -> None:
    async def large(x: int) -> str:
        return str(x) * 400_000

    graph = pages(2, large)
    async with OPEN("memory://", [graph]) as engine:
        result = await engine.run(graph(xs=[0, 1, 2, 3, 4]), id="r")
        assert result.status is RunStatus.COMPLETED
        store = engine._base.store
        for row, _ in await store.runs.list(RunFilter(parent=result.run_id)):
            for batch in await store.journal.read(row.run_id):
                for event in batch.events:
                    if isinstance(event, StepSucceeded) and event.op == "page:0[2]":
                        del store.blobs.blobs[event.blob]
        result = await (await engine.time_travel("r", "page:0[3]")).outcome()
        assert isinstance(result.error, Corrupt), result
