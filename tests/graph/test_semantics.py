"""What a graph does, sentence by sentence: turns, skips, gates, producers, loops, names and failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, RunStatus, patched, rule, step
from perdure.errors import LoopLimit
from perdure.graph import END, Graph, ifelse, interrupt, node, route
from tests.graph.running import run

# --- turns ----------------------------------------------------------------------------------------------------------


async def test_a_quick_branch_does_not_wait_for_a_slow_sibling() -> None:
    quick_is_done = asyncio.Event()

    @node
    async def slow(x: int) -> int:
        await quick_is_done.wait()
        return x

    @node
    def quick(x: int) -> int:
        return x

    @node
    async def after_quick(quick: int) -> int:
        quick_is_done.set()
        return quick + 1

    @node
    def both(slow: int, after_quick: int) -> int:
        return slow + after_quick

    ran = await run(Graph([slow, quick, after_quick, both], name="g", output=both), x=1)
    assert ran.output == 3


async def test_a_join_of_branches_of_unequal_length_runs_once() -> None:
    calls: list[tuple[int, int]] = []

    @node
    def a(x: int) -> int:
        return x + 1

    @node
    def b(a: int) -> int:
        return a + 1

    @node
    def c(b: int) -> int:
        return b + 1

    @node
    def join(a: int, c: int) -> int:
        calls.append((a, c))
        return a + c

    ran = await run(Graph([join, c, b, a], name="g", output=join), x=0)
    assert ran.output == 4
    assert calls == [(1, 3)]
    assert ran.paths() == ["a:0", "b:0", "c:0", "join:0"]


async def test_a_join_gives_its_values_in_the_order_written() -> None:
    @node
    def left(x: int) -> str:
        return f"left {x}"

    @node
    async def right(x: int) -> str:
        await asyncio.sleep(0)
        return f"right {x}"

    def merge(parts: list[str]) -> str:
        return ", ".join(parts)

    merged = node(merge, inputs={"parts": ["right", "left", "right"]})
    assert (await run(Graph([left, right, merged], name="g", output=merged), x=1)).output == "right 1, left 1, right 1"


@pytest.mark.parametrize("kind", ["gate", "question", "condition"])
async def test_what_decides_takes_joins_too(kind: str) -> None:
    seen: list[list[int]] = []

    def decide(parts: list[int]) -> bool:
        seen.append(parts)
        return True

    joined = {"parts": ["a", "b"]}
    one = node(lambda x: x, name="one")
    deciding: Any = {
        "gate": ifelse(when_true="one", when_false=END, inputs=joined)(decide),
        "question": interrupt(answer=int, inputs=joined)(decide),
        "condition": node(lambda x: x, name="two", when=lambda a, b: decide([a, b])),
    }[kind]
    a, b = node(lambda x: x + 1, name="a"), node(lambda x: x + 2, name="b")
    await run(Graph([a, b, one, deciding], name="g"), x=1)
    assert seen == [[2, 3]]


async def test_after_orders_nodes_without_a_value() -> None:
    order: list[str] = []

    async def first(x: int) -> None:
        await asyncio.sleep(0.01)
        order.append("first")

    def second(x: int) -> None:
        order.append("second")

    await run(Graph([node(second, after=["first"]), node(first)], name="g"), x=1)
    assert order == ["first", "second"]


@pytest.mark.parametrize(
    ("given", "bound", "wanted"),
    [({}, {}, "made 5"), ({"k": 7}, {}, "made 7"), ({}, {"k": 6}, "made 6"), ({"k": 7}, {"k": 6}, "made 7")],
)
async def test_a_value_comes_from_an_edge_before_what_is_given_bound_or_the_default(
    given: dict[str, Any], bound: dict[str, int], wanted: str
) -> None:
    @node
    def made(query: str) -> str:
        return query

    @node
    def answer(made: str = "default", k: int = 5) -> str:
        return f"{made} {k}"

    graph = Graph([made, answer], name="g", output=answer).bind(**bound)
    assert (await run(graph, query="made", **given)).output == wanted


def test_inputs_says_what_is_required_optional_and_bound() -> None:
    @node
    def made(query: str, k: int = 5, top: int = 1) -> str:
        return query

    inputs = Graph([made], name="g").bind(top=3).inputs
    assert (set(inputs.required), set(inputs.optional), set(inputs.bound)) == ({"query"}, {"k"}, {"top"})


# --- skips ----------------------------------------------------------------------------------------------------------


@node
def odd(x: int) -> int:
    return x


@node
def even(x: int) -> int:
    return x


@route(targets=["odd", "even", END])
def parity(x: int) -> object:
    return END if x == 0 else odd if x % 2 else "even"


@node
def half(even: int) -> int:
    return even // 2


@node
def quarter(half: int) -> int:
    return half // 2


@node
def stands_in(half: int = -1) -> int:
    return half


BRANCHES = Graph([odd, even, half, quarter, stands_in, parity], name="branches")


@pytest.mark.parametrize(
    ("x", "ran", "skipped", "outputs"),
    [
        (4, ["even:0", "half:0", "quarter:0", "stands_in:0"], ["odd:0"], {"quarter": 1, "stands_in": 2}),
        (3, ["odd:0", "stands_in:0"], ["even:0", "half:0", "quarter:0"], {"odd": 3, "stands_in": -1}),
        (0, ["stands_in:0"], ["even:0", "half:0", "odd:0", "quarter:0"], {"stands_in": -1}),
    ],
)
async def test_skips_spread_along_required_values_and_stop_where_something_stands_in(
    x: int, ran: list[str], skipped: list[str], outputs: dict[str, int]
) -> None:
    found = await run(BRANCHES, x=x)
    assert (found.paths(), found.paths("skipped"), dict(found.output)) == (ran, skipped, outputs)


async def test_what_is_skipped_says_why() -> None:
    skipped = (await run(BRANCHES, x=3)).skipped()
    assert set(skipped) == {"even:0", "half:0", "quarter:0"}
    assert "parity" in skipped["even:0"]
    assert "even" in skipped["half:0"]
    assert "half" in skipped["quarter:0"]


async def test_an_output_that_is_not_there_says_why() -> None:
    outputs = (await run(BRANCHES, x=3)).output
    with pytest.raises(KeyError, match=r"(?s)quarter.*skipped"):
        outputs["quarter"]
    with pytest.raises(KeyError, match=r"(?s)half.*select"):
        outputs["half"]
    with pytest.raises(KeyError, match=r"(?s)quater.*did you mean 'quarter'"):
        outputs["quater"]
    with pytest.raises(KeyError, match="skipped"):
        outputs[quarter]
    assert outputs[odd] == outputs["odd"] == 3
    assert "quarter" not in outputs


async def test_after_a_skipped_node_is_satisfied() -> None:
    def last(x: int) -> int:
        return x

    ran = await run(Graph([odd, even, parity, node(last, after=["even"])], name="g"), x=3)
    assert ran.paths() == ["last:0", "odd:0"]


async def test_a_condition_that_is_false_skips_its_node() -> None:
    def refund(total: int) -> str:
        return f"refunded {total}"

    @node
    def told(refund: str) -> str:
        return refund

    @node
    def total(x: int) -> int:
        return x

    graph = Graph([total, node(refund, when=lambda total: total > 0), told], name="g")
    assert dict((await run(graph, x=3)).output) == {"told": "refunded 3"}
    ran = await run(graph, x=0)
    assert dict(ran.output) == {}
    assert set(ran.skipped()) == {"refund:0", "told:0"}
    assert "when" in ran.skipped()["refund:0"]


async def test_a_condition_that_returns_no_bool_fails_the_run() -> None:
    def refund(x: int) -> int:
        return x

    ran = await run(Graph([node(refund, when=lambda x: x)], name="g"), x=3)
    assert ran.result.status is RunStatus.FAILED
    assert "True or False" in str(ran.result.error)


# --- gates ----------------------------------------------------------------------------------------------------------


def gate_of(choose: Callable[[int], object], **options: Any) -> Graph[..., Any]:
    @route(targets=["odd", "even", END], **options)
    def gate(x: int) -> object:
        return choose(x)

    return Graph([odd, even, gate], name="g")


@pytest.mark.parametrize(
    ("chosen", "options", "ran"),
    [
        ("odd", {}, ["odd:0"]),
        (odd, {}, ["odd:0"]),
        (END, {}, []),
        (None, {}, []),
        (None, {"fallback": "even"}, ["even:0"]),
        (["odd", even], {"many": True}, ["even:0", "odd:0"]),
        ([], {"many": True}, []),
    ],
)
async def test_a_gate_chooses(chosen: object, options: dict[str, Any], ran: list[str]) -> None:
    assert (await run(gate_of(lambda _: chosen, **options), x=1)).paths() == ran


@pytest.mark.parametrize(
    ("chosen", "options"),
    [("nowhere", {}), (3, {}), (["odd"], {}), (3, {"many": True}), (["odd", "nowhere"], {"many": True}), ("END", {})],
)
async def test_a_gate_that_returns_nonsense_fails_the_run_and_lists_its_targets(
    chosen: object, options: dict[str, Any]
) -> None:
    result = (await run(gate_of(lambda _: chosen, **options), x=1)).result
    assert result.status is RunStatus.FAILED
    assert all(word in str(result.error) for word in ("'odd'", "'even'", "gate"))
    assert ("without quotes" in str(result.error)) is (chosen == "END")


async def test_a_gate_that_was_mended_is_asked_again_by_a_retry() -> None:
    chosen = "nowhere"
    graph = gate_of(lambda _: chosen)
    async with Engine("memory://", [graph]) as engine:
        assert (await engine.run(graph(x=1), id="r")).status is RunStatus.FAILED
        chosen = "odd"
        await (await engine.retry("r")).outcome()
        assert [done.path for done in await engine.steps("r") if done.status == "succeeded"] == ["odd:0"]


@pytest.mark.parametrize(("answer", "ran"), [(True, ["odd:0"]), (False, ["even:0"])])
async def test_an_ifelse_has_two_ways(answer: bool, ran: list[str]) -> None:
    @ifelse(when_true="odd", when_false=even)
    def gate(x: int) -> bool:
        return answer

    assert (await run(Graph([odd, even, gate], name="g"), x=1)).paths() == ran


@pytest.mark.parametrize("answer", [1, 0, None, "yes"])
async def test_an_ifelse_takes_nothing_but_a_bool(answer: Any) -> None:
    @ifelse(when_true="odd", when_false=END)
    def gate(x: int) -> bool:
        return answer  # type: ignore[no-any-return]

    result = (await run(Graph([odd, gate], name="g"), x=1)).result
    assert result.status is RunStatus.FAILED
    assert "True or False" in str(result.error)


async def test_a_recorded_decision_counts_and_the_gate_is_not_asked_again(tmp_path: Path) -> None:
    asked: list[int] = []

    @route(targets=["odd", "even"])
    def gate(x: int) -> object:
        asked.append(x)
        return "odd" if len(asked) == 1 else "even"

    @interrupt(answer=int)
    def wait(odd: int) -> str:
        return "?"

    graph, url = Graph([odd, even, gate, wait], name="g"), f"sqlite:///{tmp_path / 'g.db'}"
    async with Engine(url, [graph]) as engine:
        assert (await engine.run(graph(x=1), id="r")).interrupted
    async with Engine(url, [graph]) as engine:
        assert (await engine.run(graph, answers={"wait": 5}, id="r")).output == {"wait": 5}
    assert asked == [1]


def test_end_is_no_string() -> None:
    assert not isinstance(END, str)
    assert repr(END) == "END"


# --- several producers ------------------------------------------------------------------------------------------------


async def test_exclusive_producers_of_one_value_stand_in_for_each_other() -> None:
    @node(outputs="answer")
    def short(x: int) -> str:
        return f"short {x}"

    @node
    def research(x: int) -> int:
        return x * 10

    @node(outputs="answer")
    def long(research: int) -> str:
        return f"long {research}"

    @node
    def send(answer: str) -> str:
        return f"sent {answer}"

    @ifelse(when_true="short", when_false="research")
    def simple(x: int) -> bool:
        return x < 5

    graph = Graph([send, short, research, long, simple], name="g", output=send)
    assert (await run(graph, x=1)).output == "sent short 1"
    assert (await run(graph, x=7)).output == "sent long 70"


# --- loops ------------------------------------------------------------------------------------------------------------


@node
def draft(topic: str, feedback: str = "") -> str:
    return f"{topic}{feedback}"


@node(outputs="score")
def review(draft: str) -> int:
    return len(draft)


@node(outputs="feedback")
def advise(draft: str, score: int) -> str:
    return "!" * score


@route(targets=["draft", END])
def good_enough(score: int, feedback: str) -> object:
    return END if score > 8 else draft


@node
def publish(draft: str, score: int) -> str:
    return f"{draft} ({score})"


WRITE: list[Any] = [draft, review, advise, good_enough, publish]


async def test_a_loop_goes_round_until_its_gate_chooses_otherwise_and_what_is_behind_it_sees_the_last_round() -> None:
    ran = await run(Graph(WRITE, name="write", loops=["draft"]), topic="ab")
    # "ab" (2), "ab!!" (4), "ab!!!!" (6), "ab!!!!!!" (8), "ab!!!!!!!!" (10)
    assert dict(ran.output) == {"publish": "ab!!!!!!!! (10)"}
    assert [path for path in ran.paths() if path.startswith(("draft", "publish"))] == [
        *(f"draft:{i}" for i in range(5)),
        "publish:0",
    ]


@node
def agent(question: str, tool: int = 0) -> int:
    return tool + 1


@node
def tool(agent: int) -> int:
    return agent * 2


@route(targets=["tool", END])
def needs_a_tool(agent: int) -> object:
    return tool if agent < 10 else END


@node
def report(agent: int, tool: int = -1) -> str:
    return f"{agent} {tool}"


async def test_a_loop_without_a_gate_back_goes_round_as_long_as_its_values_are_produced() -> None:
    ran = await run(
        Graph([agent, tool, needs_a_tool, report], name="tools", loops=["agent"], output=report), question="?"
    )
    # 1, 2 → 3, 6 → 7, 14 → 15; in the last round the tool was skipped
    assert ran.output == "15 -1"
    assert ran.paths() == ["agent:0", "agent:1", "agent:2", "agent:3", "report:0", "tool:0", "tool:1", "tool:2"]
    assert ran.paths("skipped") == ["tool:3"]


async def test_a_node_that_takes_its_own_output_carries_it_over_rounds() -> None:
    @node
    def total(agent: int, total: int = 100) -> int:
        return total + agent

    @route(targets=["agent", END])
    def again(agent: int, total: int) -> object:
        return agent_node if total < 105 else END

    agent_node = node(agent, inputs={"tool": "total"})
    # agent 1, total 101; agent 102, total 203
    ran = await run(Graph([agent_node, total, again], name="g", loops=["agent"]).select("total"), question="?")
    assert dict(ran.output) == {"total": 203}


async def test_a_loop_that_goes_round_too_often_fails_names_its_gate_and_goes_on_by_a_retry() -> None:
    calls: list[str] = []

    @node
    def draft(topic: str, feedback: str = "") -> str:
        calls.append(feedback)
        return f"{topic}{feedback}"

    graph = Graph([draft, *WRITE[1:]], name="write", loops=["draft"], max_rounds=3)
    async with Engine("memory://", [graph]) as engine:
        result = await engine.run(graph(topic="ab"), id="r")
        assert result.status is RunStatus.FAILED
        assert isinstance(result.error, LoopLimit)
        assert all(word in str(result.error) for word in ("draft", "good_enough", "max_rounds", "3"))
        again = await (await engine.retry("r", max_rounds=10)).outcome()
        assert again.status is RunStatus.COMPLETED
        assert again.output == {"publish": "ab!!!!!!!! (10)"}
    assert len(calls) == 5


async def test_a_loop_of_exactly_as_many_rounds_as_it_may_have_ends_well() -> None:
    assert dict((await run(Graph(WRITE, name="write", loops=["draft"], max_rounds=5), topic="ab")).output)


async def test_loops_within_loops_count_anew_in_each_round() -> None:
    @node
    def outer(n: int, total: int = 0) -> int:
        return total

    @node
    def inner(outer: int, more: int = 0) -> int:
        return more

    @node(outputs="more")
    def add(inner: int) -> int:
        return inner + 1

    @route(targets=["inner", END])
    def inner_again(more: int) -> object:
        return END if more == 3 else "inner"

    @node
    def total(outer: int, more: int) -> int:
        return outer + more

    @route(targets=["outer", END])
    def outer_again(total: int, n: int) -> object:
        return END if total >= n else "outer"

    graph = Graph(
        [outer, inner, add, inner_again, total, outer_again], name="g", loops=["outer", "inner"], max_rounds=4
    ).select("total")
    ran = await run(graph, n=9)
    # Three rounds of the inner loop in each of three rounds of the outer one: more than the four that either may have.
    assert dict(ran.output) == {"total": 9}
    assert [path for path in ran.paths() if path.startswith(("inner", "outer"))] == [
        *(f"inner:{i}" for i in range(9)),
        *(f"outer:{i}" for i in range(3)),
    ]


# --- failures -------------------------------------------------------------------------------------------------------


@node
def breaks(x: int) -> int:
    raise ValueError("broken")


@node
def needs_it(breaks: int) -> int:
    return breaks


@node
def needs_that(needs_it: int = 0) -> int:
    return needs_it


@node
def apart(x: int) -> int:
    return x


@node
def behind(apart: int) -> int:
    return apart


async def test_a_failure_stops_the_graph_and_what_runs_is_recorded() -> None:
    broken = asyncio.Event()

    @node
    async def breaks(x: int) -> int:
        broken.set()
        raise ValueError("broken")

    @node
    async def apart(x: int) -> int:
        await broken.wait()
        for _ in range(50):
            await asyncio.sleep(0)
        return x

    ran = await run(Graph([breaks, needs_it, apart, behind], name="g"), x=1)
    assert ran.result.status is RunStatus.FAILED
    assert isinstance(ran.result.error, ValueError)
    assert ran.paths() == ["apart:0"]
    assert ran.paths("failed") == ["breaks:0"]
    assert "needs_it:0" in ran.paths("blocked")


async def test_a_graph_that_continues_runs_all_that_does_not_need_what_failed() -> None:
    ran = await run(Graph([breaks, needs_it, needs_that, apart, behind], name="g", on_failure="continue"), x=1)
    assert ran.result.status is RunStatus.FAILED
    assert ran.paths() == ["apart:0", "behind:0"]
    assert ran.paths("blocked") == ["needs_it:0", "needs_that:0"]
    assert "breaks" in (ran["needs_it:0"].skipped_by or "")


async def test_what_needs_something_blocked_says_that_it_was_blocked() -> None:
    @route(targets=["chosen", END])
    def gate(needs_it: int) -> object:
        return END

    @node
    def chosen(x: int) -> int:
        return x

    for on_failure in ("stop", "continue"):
        options: Any = {"on_failure": on_failure}
        ran = await run(Graph([breaks, needs_it, gate, chosen], name="g", **options), x=1)
        assert ran["needs_it:0"].reason == "breaks:0 failed"
        assert ran["gate:0"].reason == "needs_it:0 was blocked"
        assert ran["chosen:0"].reason == "gate:0 was blocked"


@pytest.mark.parametrize("on_failure", ["stop", "continue"])
async def test_a_step_keeps_its_own_policy_whatever_runs_beside_it(on_failure: Any) -> None:
    @node
    def skipped(x: int) -> int:
        raise ValueError("broken")

    @node
    def saved(x: int) -> int:
        raise ValueError("broken")

    @node
    def sum_of(saved: int, behind: int, skipped: int = 100) -> int:
        return saved + behind + skipped

    @node
    def gone(skipped: int) -> int:
        return skipped

    rules = [rule("skipped", on_failure="skip"), rule("saved", fallback=lambda failed: 7)]
    graph = Graph([skipped, saved, apart, behind, sum_of, gone], name="g", on_failure=on_failure, rules=rules)
    ran = await run(graph, x=1)
    assert dict(ran.output) == {"sum_of": 108}
    assert {"skipped:0", "gone:0"} <= set(ran.paths("skipped"))


# --- the rest -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("annotation", [tuple[int, int], Any])
async def test_a_tuple_of_outputs_is_taken_apart_and_a_wrong_one_fails(annotation: Any) -> None:
    def split(x: int) -> Any:
        return (x, x + 1) if x else (x,)

    split.__annotations__["return"] = annotation
    graph = Graph([node(split, outputs=("low", "high"))], name="g")
    assert dict((await run(graph, x=1)).output) == {"low": 1, "high": 2}
    result = (await run(graph, x=0)).result
    assert result.status is RunStatus.FAILED
    assert all(word in str(result.error) for word in ("split", "2"))


async def test_one_at_a_time_loses_nothing() -> None:
    nodes = [node(_square, name=f"s{i}") for i in range(20)]
    ran = await run(Graph(nodes, name="g"), {"max_concurrency": 1}, x=3)
    assert dict(ran.output) == {f"s{i}": 9 for i in range(20)}


def _square(x: int) -> int:
    return x * x


async def test_a_step_is_a_node_and_may_be_used_twice() -> None:
    @step
    def charge(order: str, amount: int) -> str:
        return f"{order} {amount}"

    fee = node(charge, name="charge_fee", inputs={"amount": "fee"})
    ran = await run(Graph([charge, fee], name="g"), order="o", amount=3, fee=1)
    assert dict(ran.output) == {"charge": "o 3", "charge_fee": "o 1"}


async def test_a_patch_marks_new_runs() -> None:
    @node
    def either(x: int) -> str:
        return "new" if patched("v2") else "old"

    assert (await run(Graph([either], name="g", output=either, patches=["v2"]), x=1)).output == "new"
    result = (await run(Graph([either], name="g", output=either), x=1)).result
    assert result.status is RunStatus.FAILED or result.output == "old"


async def test_what_decides_knows_the_patches_of_its_run(tmp_path: Path) -> None:
    @route(targets=["left", "right"])
    def side(patches: int) -> str:
        return "right" if patched("v2") else "left"

    left, right = (node(lambda: "x", name=name, outputs="one") for name in ("left", "right"))

    @interrupt(answer=str)
    def ask(one: str) -> str:
        return f"new {patched('v2')}"

    last = node(lambda ask: ask, name="last", when=lambda ask: patched("v2"))
    some = node(lambda i: i, name="some", inputs={"i": "many"}).map_over("i", limit=1, until=lambda i: patched("v2"))
    nodes, given, url = (
        [side, left, right, ask, last, some],
        {"patches": 1, "many": [1, 2]},
        f"sqlite:///{tmp_path}/g.db",
    )
    before: Any = Graph([*nodes[:2], right, ask], name="g", patches=["v1"])
    after: Any = Graph(nodes, name="g", patches=["v2"])
    async with Engine(url, [after]) as engine:
        result = await engine.run(after(**given), id="new")
        assert result.suspend_payload == "new True"
        result = await engine.run(after, id="new", answers={"ask": "a"})
        assert result.output == {"last": "a", "some": [1]}
    async with Engine(url, [before]) as engine:
        result = await engine.run(before(patches=1), id="unnamed")
        assert "Graph(patches=['v2'])" in str(result.error)
    asks = interrupt(answer=str, name="ask")(lambda: "q")
    unmarked, marked = Graph([asks], name="h"), Graph([asks, last], name="h", patches=["v2"])
    async with Engine(url, [unmarked]) as engine:
        await engine.run(unmarked(), id="old")
    async with Engine(url, [marked]) as engine:
        assert (await engine.run(marked, id="old", answers={"ask": "a"})).output == {}


@pytest.mark.parametrize("call", [{}, {"x": 1, "y": 2}])
def test_a_call_is_checked_against_the_inputs(call: dict[str, int]) -> None:
    with pytest.raises(TypeError, match=r"'[xy]'"):
        _ = Graph([odd], name="g")(**call)


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(TypeError, match="max_concurency"):
        Graph([odd], name="g", max_concurency=1)  # type: ignore[call-overload]


async def test_the_cause_of_a_skip_is_what_is_missing_and_not_what_another_node_stands_in_for() -> None:
    @route(targets=["left", "right"])
    def side(x: int) -> str:
        return "right"

    @node(outputs="one")
    def left(x: int) -> int:
        return x

    @node(outputs="one")
    def right(x: int) -> int:
        return x

    def none(x: int) -> int:
        return x

    def joined(parts: list[int]) -> int:
        return sum(parts)

    never = node(none, when=lambda x: x > 1)
    graph = Graph([side, left, right, never, node(joined, inputs={"parts": ["one", "none"]})], name="g")
    async with Engine("memory://", [graph]) as engine:
        result = await engine.run(graph(x=1), id="r")
        assert result.output is not None
        assert result.output.skipped["joined"] == "none:0 was skipped"
        causes = {step.path: step.skipped_by for step in await engine.steps("r") if step.status == "skipped"}
        assert causes == {"left:0": "side:0", "none:0": "when", "joined:0": "none:0"}


@pytest.mark.parametrize("chosen", ["after", "later", None])
async def test_a_gate_of_a_loop_skips_one_turn_of_a_node_outside_it(chosen: str | None) -> None:
    @node
    def count(count: int = 0) -> int:
        return count + 1

    @route(targets=["count", "after", "later", END])
    def again(count: int) -> Any:
        return "count" if count < 3 else chosen or END

    @node
    def after(count: int) -> int:
        return count

    @route(targets=["last", END])
    def later(count: int) -> Any:
        return "last"

    @node
    def last(count: int) -> int:
        return count

    graph = Graph([count, again, after, later, last], name="g", loops=["count"])
    async with Engine("memory://", [graph]) as engine:
        await engine.run(graph(), id="r")
        causes = {step.path: step.skipped_by for step in await engine.steps("r") if step.status == "skipped"}
    wanted = {"after:0": "again:2", "later:0": "again:2", "last:0": "later:0"}
    gone = {"after": ["after:0"], "later": ["later:0", "last:0"], None: []}[chosen]
    assert causes == {op: cause for op, cause in wanted.items() if op not in gone}
