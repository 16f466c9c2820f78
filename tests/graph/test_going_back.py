"""Retries, forks and time travel of graphs: what has an outcome is kept, only what depends on a change runs again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Engine, ForkRefused, RunStatus, UsageError
from perdure.graph import END, Graph, ifelse, interrupt, node, route
from perdure.kernel.events import StepSucceeded

calls: list[Any] = []
broken: set[Any] = set()


@pytest.fixture(autouse=True)
def fresh() -> None:
    calls.clear()
    broken.clear()


def called(*what: Any) -> None:
    """Note a call; it fails while it is broken."""
    calls.append(what)
    if what in broken:
        raise ValueError(what)


def leaf(name: str) -> Any:
    """A node of this name that gives on what it takes."""

    def give(x: int) -> int:
        called(name)
        return x

    give.__name__ = give.__qualname__ = name
    return node(give)


@node
def total(f0: int, f1: int, f2: int, f3: int) -> int:
    return f0 + f1 + f2 + f3


FAN = Graph([*(leaf(f"f{i}") for i in range(4)), total], name="fan", on_failure="continue", output=total)


def page(x: int) -> int:
    called(x)
    return x


PAGES = Graph([Graph([node(page)], name="fetch", output="page").map_over("x", limit=1)], name="pages")


@node
def agent(x: int, tool: int = 0) -> int:
    called("agent", tool)
    return tool + 1


@node
def tool(agent: int) -> int:
    called("tool", agent)
    return agent


@route(targets=["agent", END])
def again(tool: int) -> object:
    return "agent" if tool < 4 else END


LOOP = Graph([agent, tool, again], name="loop", loops=["agent"]).select("tool")


@pytest.mark.parametrize(
    ("graph", "given", "breaks", "second", "output"),
    [
        (FAN, 1, [("f1",), ("f3",)], [("f1",), ("f3",)], 4),
        (PAGES, [1, 2, 3], [(2,)], [(2,), (3,)], {"fetch": [1, 2, 3]}),
        (LOOP, 1, [("tool", 3)], [("tool", 3), ("agent", 3), ("tool", 4)], {"tool": 4}),
    ],
    ids=["fan", "pages", "loop"],
)
async def test_a_retry_runs_what_failed_and_what_is_missing(
    graph: Graph[..., Any], given: Any, breaks: list[Any], second: list[Any], output: Any
) -> None:
    async with Engine("memory://", [graph]) as engine:
        broken.update(breaks)
        assert (await engine.run(graph(x=given), id="r")).status is RunStatus.FAILED
        broken.clear()
        calls.clear()
        assert (await (await engine.retry("r")).outcome()).output == output
    assert sorted(calls, key=str) == sorted(second, key=str)


@node
def embed(query: str) -> str:
    called("embed")
    return query


@node
def generate(embed: str, temperature: float = 0.1) -> str:
    called("generate", temperature)
    return f"{embed} {temperature}"


@node
def beside(query: str) -> str:
    called("beside")
    return query


@interrupt(answer=str)
def review(answer: str) -> str:
    called("review")
    return answer


@node
def publish(answer: str, beside: str, review: str) -> str:
    called("publish")
    return f"{answer} {beside} {review}"


INNER = Graph([embed, generate], name="inner", output=generate)
ANSWER = Graph([INNER.as_node(name="answer"), beside, review, publish], name="g", output=publish)


async def test_time_travel_into_a_nested_graph_runs_the_op_and_what_depends_on_it_and_asks_again() -> None:
    async with Engine("memory://", [ANSWER]) as engine:
        await engine.run(ANSWER(query="q"), id="r")
        assert (await engine.run(ANSWER, answers={"review": "good"}, id="r")).output == "q 0.1 q good"
        calls.clear()
        travelled = await engine.time_travel("r", "answer:0/generate:0", {"temperature": 0.9})
        result = await travelled.outcome(until="rest", answers={"review": "better"})
        assert (result.output or (await travelled.outcome()).output) == "q 0.9 q better"
        assert [what for what in calls if what != ("review",)] == [("generate", 0.9), ("publish",)]
        # The original is what it was.
        assert (await engine.run(ANSWER, id="r")).output == "q 0.1 q good"


async def test_time_travel_keeps_a_branch_that_ended_later() -> None:
    done = asyncio.Event()

    @node
    def quick(x: int, k: int = 1) -> int:
        called("quick")
        return x * k

    @node
    def behind(quick: int) -> int:
        called("behind")
        done.set()
        return quick

    @node
    async def slow(x: int) -> int:
        await done.wait()
        called("slow")
        return x

    graph = Graph([quick, behind, slow], name="g")
    async with Engine("memory://", [graph]) as engine:
        await engine.run(graph(x=1), id="r")
        calls.clear()
        result = await (await engine.time_travel("r", "quick:0", {"k": 5})).outcome()
        assert result.output == {"behind": 5, "slow": 1}
    assert calls == [("quick",), ("behind",)]


@pytest.mark.parametrize(("op", "second"), [("agent:2", 4), ("agent", 2), ("tool:3", 1)])
async def test_time_travel_into_a_loop_goes_on_from_that_round(op: str, second: int) -> None:
    async with Engine("memory://", [LOOP]) as engine:
        await engine.run(LOOP(x=1), id="r")
        assert len(calls) == 8
        calls.clear()
        assert (await (await engine.time_travel("r", op)).outcome()).output == {"tool": 4}
    assert len(calls) == second


@pytest.mark.parametrize(
    ("decision", "output"),
    [("f1", {"f1": 2}), (["f1"], {"f1": 2}), (None, {}), ({"chose": ["f1"], "skips": ["f0"]}, {"f1": 2})],
)
async def test_a_fork_can_decide_otherwise(decision: Any, output: dict[str, int]) -> None:
    @ifelse(when_true="f0", when_false="f1")
    def gate(x: int) -> bool:
        return x > 0

    graph = Graph([leaf("f0"), leaf("f1"), gate], name="g")
    async with Engine("memory://", [graph]) as engine:
        assert (await engine.run(graph(x=2), id="r")).output == {"f0": 2}
        other = await engine.fork("r", values={"gate:0": decision}, new_id="other")
        assert (await other.outcome()).output == output
        for wrong, error in (("nowhere", ForkRefused), (3, UsageError)):
            with pytest.raises(error):
                _ = await engine.fork("r", values={"gate:0": wrong})
        again = await engine.update_state("r", {"gate:0": decision})
        assert (await again.outcome()).output == output


async def test_the_journal_has_each_value_once() -> None:
    text = "x" * 5000

    @node
    def made(x: int) -> str:
        return text

    @node
    def length(given: str) -> int:
        return len(given)

    graph = Graph([made, *(node(length, name=f"n{i}", inputs={"given": "made"}) for i in range(20))], name="g")
    async with Engine("memory://", [graph]) as engine:
        await engine.run(graph(x=1), id="r")
        entries = await engine.journal("r")
        view = await engine.get("r")
    assert sum(isinstance(entry.event, StepSucceeded) for entry in entries) == 21
    assert view is not None
    assert view.size < 3 * len(text)
