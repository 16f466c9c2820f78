"""Values that are replaced, and steps that are taken again: only what depends on them runs."""

from __future__ import annotations

import asyncio
import tracemalloc
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from perdure import AlreadyExists, Engine, ForkRefused, Retry, RunStatus, UsageError, connect
from perdure.graph import END, Graph, interrupt, node, route
from perdure.kernel.events import RunFinished
from perdure.ports.journal import Append

CALLS: list[str] = []
# Untyped: what is checked here is not the types.
OPEN: Any = Engine


def step(name: str, *values: str, **options: Any) -> Any:
    """A node that joins its values to a text, and notes that it was called."""

    def join(parts: list[str], suffix: str = "") -> str:
        CALLS.append(name)
        return f"{name}({','.join(parts)}){suffix}"

    return node(join, name=name, inputs={"parts": list(values), "suffix": f"{name}_suffix"}, **options)


def shown(shown: str) -> str:
    return shown


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


async def published(engine: Any) -> None:
    await engine.run(GRAPH(topic="t"), id="r")
    result = await engine.run(GRAPH, id="r", answers={"sign_off": "yes"})
    assert result.output["publish"] == "publish(draft(t),yes,sum(find(t)))"
    assert sorted(CALLS) == ["apart", "draft", "find", "publish", "sum"]
    CALLS.clear()


async def test_a_replaced_value_runs_again_what_depends_on_it_and_asks_anew() -> None:
    async with OPEN("memory://", [GRAPH]) as engine:
        await published(engine)
        assert await engine.update_state("r", {"draft": "D"}, dry_run=True) == ["sign_off:0", "publish:0"]
        handle = await engine.update_state("r", {"draft": "D"})
        asked = await handle.outcome(until="rest")
        assert asked.suspend_payload == "D"
        result = await engine.run(GRAPH, id="r", answers={"sign_off": "no"})
        assert dict(result.output) == {"apart": "apart(t)", "publish": "publish(D,no,sum(find(t)))"}
    assert CALLS == ["publish"]


async def test_a_run_that_rests_goes_on_with_a_replaced_value() -> None:
    async with OPEN("memory://", [GRAPH]) as engine:
        assert (await engine.run(GRAPH(topic="t"), id="r")).interrupted
        CALLS.clear()
        await engine.update_state("r", {"draft": "D"})
        result = await engine.run(GRAPH, id="r", answers={"sign_off": "yes"})
        assert result.output["publish"] == "publish(D,yes,sum(find(t)))"
    assert CALLS == ["publish"]


@pytest.mark.parametrize("durability", ["sync", "exit"])
@pytest.mark.parametrize("outside", [False, True])
async def test_a_run_that_rests_ends_in_the_commit_that_begins_the_next_one(
    tmp_path: Path, outside: bool, durability: Any
) -> None:
    url = f"sqlite:///{tmp_path / 'g.db'}"
    async with AsyncExitStack() as stack:
        async with OPEN(url, [GRAPH]) as engine:
            assert (await engine.run(GRAPH(topic="t"), id="r", durability=durability)).interrupted
            if not outside:
                await updated_at_once(engine)
        if outside:
            await updated_at_once(await stack.enter_async_context(connect(url)))
    async with OPEN(url, [GRAPH]) as engine:
        result = await engine.run(GRAPH, id="r", answers={"sign_off": "yes"})
        assert result.output["publish"] == "publish(D,yes,sum(find(t)))"
    assert CALLS.count("draft") == CALLS.count("find") == 1


async def updated_at_once(client: Any) -> None:
    """Replace a value; a process that dies at any moment leaves either run, and never none."""
    journal, written = client.store.journal, list[Append]()
    append = journal.append

    def appended(appends: Any) -> Any:
        written.extend(appends)
        return append(appends)

    journal.append = appended
    handle = await client.update_state("r", {"draft": "D"})
    [end] = [one for one in written if any(isinstance(e, RunFinished) for b in one.batches for e in b.events)]
    assert [begun.run_id for begun in end.starts] == [handle.run_id]
    assert handle.run_id not in [one.run_id for one in written[: written.index(end) + 1]]


async def test_of_two_updates_at_once_each_continues_a_run_or_is_refused() -> None:
    async with OPEN("memory://", [GRAPH]) as engine:
        assert (await engine.run(GRAPH(topic="t"), id="r")).interrupted
        updates = [engine.update_state("r", {"draft": "D"}), engine.update_state("r", {"draft": "E"})]
        handles = await asyncio.gather(*updates, return_exceptions=True)
        assert len([one for one in handles if not isinstance(one, Exception)]) >= 1
        result = await engine.run(GRAPH, id="r", answers={"sign_off": "yes"})
        assert result.output["publish"] in {f"publish({one},yes,sum(find(t)))" for one in "DE"}


async def test_a_replaced_input_runs_again_what_takes_it() -> None:
    graph = Graph([step("a", "x"), step("b", "y"), step("c", "a", "b")], name="h", output="c")
    async with OPEN("memory://", [graph]) as engine:
        await engine.run(graph(x="1", y="2", b_suffix="!"), id="r")
        CALLS.clear()
        with pytest.raises(ForkRefused, match="of the type"):
            await engine.update_state("r", {"b_suffix": 1}, dry_run=True)
        handle = await engine.update_state("r", {"x": "9"})
        assert await handle.result() == "c(a(9),b(2)!)"
        memos = [
            entry.event.memo for entry in await engine.journal("r") if type(entry.event).__name__ == "StepSucceeded"
        ]
        assert sum(map(bool, memos)) == 1
    assert CALLS == ["a", "c"]


async def test_values_inside_a_graph_are_replaced_by_op_path_and_wrong_names_are_refused() -> None:
    async with OPEN("memory://", [GRAPH]) as engine:
        await published(engine)
        handle = await engine.update_state("r", {"inner:0/find:0": "F"})
        result = await handle.outcome()
        assert result.output["publish"] == "publish(draft(t),yes,sum(F))"
        assert CALLS == ["sum", "publish"]
        with pytest.raises(UsageError, match="drft"):
            await engine.update_state("r", {"drft": 1})
        with pytest.raises(UsageError, match="is a child"):
            await engine.update_state("r", {"inner:0": "I"})
        with pytest.raises(UsageError, match="without values"):
            await engine.update_state("r", {})


@pytest.mark.parametrize("output", [None, "sum"])
async def test_the_value_of_a_graph_inside_is_replaced_and_nothing_in_it_runs_again(output: Any) -> None:
    inner = Graph([step("find", "topic"), step("sum", "find")], name="inner", output=output)
    middle = Graph([inner, step("beside", "topic")], name="middle").rename_outputs(
        **{"inner" if output else "sum": "it"}
    )
    graph = Graph([middle, step("last", "it")], name="g")
    async with OPEN("memory://", [graph]) as engine:
        await engine.run(graph(topic="t"), id="r")
        CALLS.clear()
        assert await engine.update_state("r", {"it": "I"}, dry_run=True) == ["last:0"]
        result = await (await engine.update_state("r", {"it": "I"})).outcome()
        assert result.output["last"] == "last(I)"
        assert (await engine.values("r"))["it"] == "I"
        assert CALLS == ["last"]


@pytest.mark.parametrize(
    "wrong",
    [{"draft": 1}, {"inner": 1}, {"inner:0/find:0": 1}, {"sign_off": 1}, {"apart": "A", "draft": None}],
)
async def test_a_value_of_a_wrong_type_is_refused_before_anything_is_written(wrong: dict[str, Any]) -> None:
    async with OPEN("memory://", [GRAPH]) as engine:
        await published(engine)
        for dry_run in (True, False):
            with pytest.raises(ForkRefused, match="of the type"):
                await engine.update_state("r", wrong, dry_run=dry_run)
        assert (await engine.get("r")).status == "completed"
        assert (await engine.values("r"))["draft"] == "draft(t)"
    assert CALLS == []


async def test_a_fork_takes_values_by_name() -> None:
    graph = Graph([step("a", "x"), step("b", "a")], name="f", output="b")
    async with OPEN("memory://", [graph]) as engine:
        await engine.run(graph(x="1"), id="r")
        assert await (await engine.fork("r", values={"a": "A"}, new_id="s")).result() == "b(A)"
        assert await (await engine.fork("r", values={"a:0": "B"}, new_id="t")).result() == "b(B)"


async def test_time_travel_runs_again_what_depends_on_the_step() -> None:
    async with OPEN("memory://", [GRAPH]) as engine:
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
    async with OPEN("memory://", [graph]) as engine:
        assert (await engine.run(graph(), id="r")).output == 4
        CALLS.clear()
        assert await (await engine.time_travel("r", "count:2", inputs={"total": 10})).result() == 11
        assert CALLS == ["count 10"]
        CALLS.clear()
        assert await (await engine.time_travel("r", "count")).result() == 4
        assert CALLS == ["count 3"]


async def test_a_graph_that_starts_again_with_memo_runs_only_what_has_other_arguments_or_another_version() -> None:
    def graph(of_b: str = "", **options: Any) -> Graph[..., Any]:
        nodes = [step("a", "x"), step("b", "y", version=of_b), step("c", "a", "b")]
        return Graph(nodes, name="m", output="c", **options)

    first, second = graph(), graph("2", version="2", accepts=["1"])
    async with OPEN("memory://", [first, second]) as engine:
        await engine.run(first(x="1", y="2"), id="r")
        for program, x, wanted in ((first, "1", []), (first, "9", ["a", "c"]), (second, "9", ["b"])):
            CALLS.clear()
            result = await engine.run(program(x=x, y="2"), id="r", memo=True)
            assert result.output == f"c(a({x}),b(2))"
            assert wanted == CALLS
        CALLS.clear()
        assert (await engine.run(second(x="9", y="2"), id="elsewhere", memo=True)).output == "c(a(9),b(2))"
        assert CALLS == ["a", "b", "c"]


async def test_a_start_with_memo_does_what_reuse_says() -> None:
    @node
    def a(x: int) -> int:
        CALLS.append(f"a {x}")
        if x < 0:
            raise ValueError(x)
        return x

    graph = Graph([a], name="m", output=a)
    async with OPEN("memory://", [graph]) as engine:
        for id, x in (("done", 1), ("failed", -1)):
            await engine.run(graph(x=x), id=id)
        for reuse in ("reject_duplicate", "allow_if_failed"):
            with pytest.raises(AlreadyExists, match=f"reuse='{reuse}'"):
                await engine.start(graph(x=2), id="done", memo=True, reuse=reuse)
        kept = await engine.run(graph(x=2), id="done", memo=True, reuse="return_existing")
        again = await engine.run(graph(x=2), id="failed", memo=True, reuse="allow_if_failed")
        assert (kept.output, again.output) == (1, 2)
        assert (await engine.run(graph(x=2), id="done", memo=True, reuse="terminate_running")).output == 2


async def test_the_values_of_a_run_are_there_by_name_now_and_as_they_were() -> None:
    @node(outputs=("low", "high"))
    def split(x: int) -> tuple[int, int]:
        return x, x + 1

    @node
    def doubled(item: int) -> int:
        return item * 2

    @node
    def items(low: int, high: int) -> list[int]:
        return [low, high]

    mapped = node(doubled, inputs={"item": "items"}).map_over("item")
    graph = Graph([split, items, mapped, sign_off_of("doubled")], name="v")
    async with OPEN("memory://", [graph]) as engine:
        await engine.run(graph(x=1), id="r")
        assert await engine.values("r") == {"x": 1, "low": 1, "high": 2, "items": [1, 2], "doubled": [2, 4]}
        assert await engine.values("r", at="split:0") == {"x": 1, "low": 1, "high": 2}
        assert await engine.values("r", at=0) == {"x": 1}
        history = await engine.history("r")
        assert [one.op for one in history] == ["", "split:0", "items:0", "doubled:0[0]", "doubled:0[1]"]
        assert [list(one.values) for one in history[:2]] == [["x"], ["x", "low", "high"]]
        both = ("doubled:0[0]", "doubled:0[1]")
        assert [one.next for one in history] == [("split:0",), ("items:0",), both, both[1:], ("asked:0",)]
        await engine.run(graph, id="r", answers={"asked": "yes"})
        last = (await engine.history("r"))[-1]
        assert (last.op, last.values["asked"], last.next) == ("asked:0", "yes", ())
        assert await engine.values("r", at=last.seq) == last.values


async def test_a_checkpoint_has_the_steps_and_the_questions_as_they_stood() -> None:
    tries = list[int]()

    @node(retry=Retry(attempts=3, initial=0.0))
    def flaky(x: int) -> int:
        tries.append(x)
        if len(tries) < 2:
            raise ValueError("not yet")
        return x

    @node
    def after(flaky: int, asked: str) -> str:
        raise ValueError("never")

    asked = interrupt(answer=str, name="asked", inputs={"shown": "flaky"})(lambda shown: shown)
    graph = Graph([flaky, asked, after], name="v")
    async with OPEN("memory://", [graph]) as engine:
        await engine.run(graph(x=1), id="r")
        begun, done = await engine.history("r")
        assert (begun.steps, begun.interrupts) == ((), ())
        [step] = done.steps
        assert (step.op, step.kind, step.status, step.attempts, step.error) == (
            "flaky:0",
            "step",
            "succeeded",
            2,
            "not yet",
        )
        assert step.ended_at is not None
        await engine.run(graph, id="r", answers={"asked": "yes"})
        checkpoints = await engine.history("r")
        assert [[(one.op, one.status) for one in each.steps] for each in checkpoints] == [
            [],
            [("flaky:0", "succeeded")],
            [("flaky:0", "succeeded"), ("asked:0", "succeeded")],
            [("flaky:0", "succeeded"), ("asked:0", "succeeded"), ("after:0", "failed")],
        ]
        assert checkpoints[-1].steps[-1].error == "never"


async def test_a_checkpoint_has_what_is_asked_beside_other_steps() -> None:
    graph = Graph(
        [
            step("find", "topic"),
            interrupt(answer=int, name="asked", inputs={"shown": "topic"}, approvers=["ann"])(
                lambda shown: {"n": shown}
            ),
            interrupt(answer=str, name="other", inputs={"shown": "find"})(shown),
        ],
        name="v",
    )
    async with OPEN("memory://", [graph]) as engine:
        await engine.run(graph(topic="t"), id="r")
        await engine.approve("r", "other", "yes")
        last = (await engine.history("r"))[-1]
        [open_one] = last.interrupts
        assert (open_one.path, open_one.name, open_one.payload) == ("asked:0", "asked", {"n": "t"})
        assert (open_one.schema, open_one.approvers, open_one.id) == ({"type": "integer"}, ("ann",), "r")
        assert {one.op: one.status for one in last.steps}["asked:0"] == "waiting"


async def test_the_values_of_a_map_have_none_where_an_item_has_no_result() -> None:
    def odd(v: int) -> int:
        if v == 1:
            raise ValueError(v)
        return v

    even = Graph([node(odd, inputs={"v": "v"}, when=lambda v: v != 2)], name="even", output="odd")
    graph = Graph(
        [
            node(odd, name="each", inputs={"v": "items"}).map_over("v", on_error="none", limit=1),
            node(even, inputs={"v": "items"}).map_over("v", on_error="none", limit=1),
            node(odd, name="some", inputs={"v": "items"}).map_over("v", on_error="skip", limit=1),
        ],
        name="v",
    )
    async with OPEN("memory://", [graph]) as engine:
        result = await engine.run(graph(items=[0, 1, 2, 3]), id="r")
        values = await engine.values("r")
        assert dict(result.output) == {name: values[name] for name in result.output}
        assert values["each"] == [0, None, 2, 3]
        assert values["even"] == [0, None, None, 3]
        assert values["some"] == [0, 2, 3]


async def test_a_failed_graph_inside_has_no_value() -> None:
    def fail(x: int) -> int:
        raise ValueError(x)

    inner = Graph([node(fail)], name="inner", output="fail")
    graph = Graph([inner], name="v")
    async with OPEN("memory://", [graph]) as engine:
        assert (await engine.run(graph(x=1), id="r")).status is RunStatus.FAILED
        assert await engine.values("r") == {"x": 1}


async def test_a_value_that_a_condition_skipped_is_not_replaced_by_running_its_node() -> None:
    skipped = step("maybe", "x", when=lambda x: x != "1")
    graph = Graph([skipped, node(lambda maybe="none": maybe, name="end")], name="v", output="end")
    async with OPEN("memory://", [graph]) as engine:
        assert (await engine.run(graph(x="1"), id="r")).output == "none"
        with pytest.raises(UsageError, match="neither an input nor a value that the run has made"):
            await engine.update_state("r", {"maybe": "given"})
        with pytest.raises(UsageError, match="skipped by its `when`"):
            await engine.update_state("r", {"maybe:0": "given"})
        assert CALLS == []
        result = await (await engine.update_state("r", {"maybe:0": True})).outcome()
        assert result.output == "maybe(1)"


async def test_in_a_loop_the_value_of_the_last_round_that_made_one_is_replaced() -> None:
    graph = Graph(
        [
            node(lambda n: n + 1, name="n", inputs={"n": "n"}),
            node(lambda n: n + 100, name="even", when=lambda n: n % 2 == 0),
            node(lambda n, even=0: even, name="seen", outputs="log"),
            route(targets=["n", END], name="again", inputs={"v": "n"}, after=["seen"])(lambda v: "n" if v < 3 else END),
        ],
        name="v",
        loops=["n"],
    )
    async with OPEN("memory://", [graph]) as engine:
        assert (await engine.run(graph(n=0), id="r")).output == {"log": 0}
        result = await (await engine.update_state("r", {"even": 7})).outcome()
        assert result.output == {"log": 0}
        assert {step.path: step.output for step in await engine.steps("r")}["seen:1"] == 7


def total_of(rows: Any) -> int:
    return int(sum(rows))


async def test_a_long_list_is_replaced_by_itself() -> None:
    each = node(lambda i: i + 1, name="each", inputs={"i": "items"}).map_over("i", chunk=1)
    graph = Graph([each, node(total_of, name="sum", inputs={"rows": "each"})], name="v", output="sum")
    async with OPEN("memory://", [graph]) as engine:
        assert (await engine.run(graph(items=[1, 2, 3]), id="r")).output == 9
        values = await engine.values("r")
        assert list(values["each"]) == [2, 3, 4]
        result = await (await engine.update_state("r", {"each": values["each"]})).outcome()
        assert result.output == 9


def sign_off_of(value: str) -> Any:
    return interrupt(answer=str, name="asked", inputs={"shown": value})(lambda shown: shown)


ASKS = Graph(
    [
        step("find", "topic"),
        step("sum", "find"),
        interrupt(answer=str, name="ask", inputs={"shown": "place"})(shown),
        interrupt(answer=str, name="check", inputs={"shown": "sum"})(shown),
        step("end", "sum", "ask", "check"),
    ],
    name="asks",
    output="end",
)


@pytest.mark.parametrize("renamed", [False, True])
async def test_a_replaced_value_asks_anew_in_a_graph_inside_only_what_depends_on_it(renamed: bool) -> None:
    inner: Any = ASKS.rename_inputs(topic="about", place="where") if renamed else ASKS
    inputs = {"about" if renamed else "topic": "made"}
    graph = Graph([step("made", "topic"), node(inner, inputs=inputs)], name="g", output="asks")
    given = {"topic": "t", "where" if renamed else "place": "p"}
    async with OPEN("memory://", [graph]) as engine:
        await engine.run(graph(**given), id="r", answers={"ask": "a", "check": "b"})
        CALLS.clear()
        again = await engine.update_state("r", {"made": "M"}, dry_run=True)
        assert [op.partition("/")[2] for op in again] == ["", "find:0", "sum:0", "check:0", "end:0"]
        handle = await engine.update_state("r", {"made": "M"})
        result = await handle.outcome(until="rest")
        assert [(one.path, one.payload) for one in result.interrupts] == [("asks:0/check:0", "sum(find(M))")]
        assert (await engine.run(graph, id="r", answers={"check": "c"})).output == "end(sum(find(M)),a,c)"
    assert CALLS == ["find", "sum", "end"]


async def test_an_input_that_has_another_name_or_was_left_out_is_replaced() -> None:
    graph = Graph([step("a", "x"), interrupt(answer=str, name="ask", inputs={"shown": "a"})(shown)], name="h")
    other: Any = graph.rename_inputs(x="y")
    async with OPEN("memory://", [other]) as engine:
        await engine.run(other(y="1"), id="r", answers={"ask": "yes"})
        result = await (await engine.update_state("r", {"y": "2"})).outcome(until="rest")
        assert result.suspend_payload == "a(2)"
        await engine.run(other, id="r", answers={"ask": "no"})
        result = await (await engine.update_state("r", {"a_suffix": "!"})).outcome(until="rest")
        assert result.suspend_payload == "a(2)!"


async def kept_by(engine: Any, id: str) -> int:
    """How many bytes the history of a run takes."""
    tracemalloc.start()
    try:
        history = await engine.history(id)
        assert len(history) > 1
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


async def test_the_history_of_a_long_run_grows_with_the_run_and_not_with_its_square() -> None:
    def number(x: int) -> int:
        return x + 1

    graphs = [
        Graph(
            [node(number, name=f"n{i}", inputs={"x": f"n{i - 1}" if i else "x"}) for i in range(size)], name=f"g{size}"
        )
        for size in (100, 400)
    ]
    async with OPEN("memory://", graphs) as engine:
        for graph in graphs:
            await engine.run(graph(x=0), id=graph.name)
        small, large = [await kept_by(engine, graph.name) for graph in graphs]
        assert large < 6 * small
        last = (await engine.history("g400"))[-1]
        assert last.values == {"x": 0, **{f"n{i}": i + 1 for i in range(400)}}
