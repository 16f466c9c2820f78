"""Small graphs that combine what graphs can do, with what a run of each comes to as the guide describes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from perdure import Retry, bail, rule, workflow
from perdure import step as step_of
from perdure.graph import END, Graph, ifelse, interrupt, route
from perdure.graph import node as typed_node

# Untyped: what is checked here is not the types.
node: Any = typed_node

BIG = "x" * 900  # stored apart in these runs


@dataclass(frozen=True)
class Case:
    """A graph with its inputs, the answers to its questions by op path, and how its run ends."""

    graph: Graph[..., Any]
    inputs: dict[str, Any]
    output: Any = None
    status: str = "completed"
    answers: dict[str, Any] = field(default_factory=dict)
    # What was skipped, by op path, with the op or the word that is to blame.
    skipped: dict[str, str] = field(default_factory=dict)
    blocked: tuple[str, ...] = ()


def add(name: str, *values: str, by: int = 0, **options: Any) -> Any:
    """A node that adds its values, and something more."""
    return node(lambda parts: sum(parts) + by, name=name, inputs={"parts": list(values)}, **options)


def inc(name: str, value: str, by: int = 1, **options: Any) -> Any:
    """A node that adds to a value."""
    return node(lambda x: x + by, name=name, inputs={"x": value}, **options)


def boom(name: str, value: str = "x", **options: Any) -> Any:
    """A node that fails."""

    def fail(v: Any) -> int:
        raise ValueError(name)

    return node(fail, name=name, inputs={"v": value}, **options)


def fails_on(name: str, value: str, *bad: Any, **options: Any) -> Any:
    """A node that fails for some values."""

    def fail(v: Any) -> Any:
        if v in bad:
            raise ValueError(f"{name} {v}")
        return v

    return node(fail, name=name, inputs={"v": value}, **options)


def ask(name: str, value: str, **options: Any) -> Any:
    """A question that shows a value."""
    return interrupt(answer=int, name=name, inputs={"shown": value}, **options)(lambda shown: shown)


def gate(name: str, value: str, *targets: Any, choose: Any, **options: Any) -> Any:
    """A gate that chooses by a value."""
    return route(targets=list(targets), name=name, inputs={"v": value}, **options)(lambda v: choose(v))


def both(name: str, value: str, yes: Any, no: Any, holds: Any) -> Any:
    return ifelse(yes, no, name=name, inputs={"v": value})(lambda v: bool(holds(v)))


def listed(name: str, value: str = "x") -> Any:
    """A node that gives a list of numbers below a value."""
    return node(lambda n: list(range(n)), name=name, inputs={"n": value})


def lazily(name: str, value: str = "x") -> Any:
    """The same, one at a time."""

    def count(n: int) -> Any:
        yield from range(n)

    count.__annotations__ = {"n": int}
    return node(count, name=name, inputs={"n": value})


def joined(name: str, value: str) -> Any:
    return node(lambda rows: sum(one or 0 for one in rows), name=name, inputs={"rows": value})


@step_of
async def times(x: int, by: int) -> int:
    return x * by


@workflow
async def code(x: int) -> int:
    first = await times(x, 2)
    return await times(first, 5)


@workflow
async def failing(x: int) -> int:
    await times(x, 2)
    raise ValueError("no")


@workflow
async def bailing(x: int) -> int:
    bail("enough", output=x + 100)


INNER = Graph([inc("a", "x"), inc("b", "a", 10)], name="inner", output="b")
ASKING = Graph([ask("ok", "x"), add("end", "x", "ok")], name="asking", output="end")
BAILS = Graph(
    [node(lambda x: bail("enough", output={"x": x}) if x > 1 else x, name="a", inputs={"x": "x"})],
    name="bails",
    output="a",
)
BROKEN = Graph([inc("a", "x"), boom("b", "a"), inc("c", "a")], name="broken", output="c")
ODD = Graph([gate("way", "x", "a", END, choose=lambda v: "a" if v % 2 else END), inc("a", "x")], name="odd", output="a")


def loop(body: list[Any], until: int, value: str = "n", start: str = "n", **options: Any) -> Graph[..., Any]:
    """A loop that runs until a value is large enough."""
    again = gate("again", value, start, END, choose=lambda v: start if v < until else END)
    return Graph([*body, again], name="loop", loops=[start], output=value, **options)


COUNT = loop([inc("n", "n")], 3)
CASES: dict[str, Case] = {
    # --- joins, skips, stand-ins
    "a diamond": Case(
        Graph([inc("a", "x"), inc("b", "a"), inc("c", "a", 2), add("d", "b", "c")], name="g"), {"x": 1}, {"d": 7}
    ),
    "a join in another order": Case(
        Graph([inc("a", "x"), inc("b", "x", 5), node(lambda p: p, name="j", inputs={"p": ["b", "a", "b"]})], name="g"),
        {"x": 1},
        {"j": [6, 2, 6]},
    ),
    "a skip that spreads to a join and stops at a default": Case(
        Graph(
            [
                both("way", "x", "a", "b", lambda v: v > 5),
                inc("a", "x"),
                inc("b", "x"),
                add("needs", "a", "b"),
                node(lambda a=70, b=0: a + b, name="either"),
            ],
            name="g",
        ),
        {"x": 1},
        {"either": 72},
        skipped={"a:0": "way:0", "needs:0": "a:0"},
    ),
    "exclusive producers behind exclusive gates": Case(
        Graph(
            [
                both("one", "x", "low", "two", lambda v: v < 3),
                both("two", "x", "mid", "high", lambda v: v < 6),
                inc("low", "x", 10, outputs="it"),
                inc("mid", "x", 20, outputs="it"),
                inc("high", "x", 30, outputs="it"),
                inc("end", "it"),
            ],
            name="g",
        ),
        {"x": 7},
        {"end": 38},
        skipped={"low:0": "one:0", "mid:0": "two:0"},
    ),
    "after a skipped node": Case(
        Graph([inc("a", "x", when=lambda x: x > 9), inc("b", "x", after=["a"])], name="g"),
        {"x": 1},
        {"b": 2},
        skipped={"a:0": "when"},
    ),
    "a gate that chooses none of many, and one that chooses all": Case(
        Graph(
            [
                gate("none", "x", "a", "b", choose=lambda v: [], many=True),
                gate("all", "x", "c", "d", choose=lambda v: ["d", "c"], many=True),
                *(inc(name, "x", i) for i, name in enumerate("abcd")),
            ],
            name="g",
        ),
        {"x": 1},
        {"c": 3, "d": 4},
        skipped={"a:0": "none:0", "b:0": "none:0"},
    ),
    "a bound value that stands in for a skipped one": Case(
        Graph([inc("a", "x", when=lambda x: False), add("b", "a", "x")], name="g").bind(a=40),
        {"x": 1},
        {"b": 41},
        skipped={"a:0": "when"},
    ),
    "two outputs of which one is taken": Case(
        Graph([node(lambda x: (x, x + 1), name="pair", outputs=("l", "h")), inc("end", "h")], name="g"),
        {"x": 1},
        {"l": 1, "end": 3},
    ),
    # --- loops
    "a loop": Case(COUNT, {"n": 0}, 3),
    "a loop that reaches its limit": Case(loop([inc("n", "n")], 9, max_rounds=4), {"n": 0}, status="failed"),
    "a loop with a branch that is skipped in some rounds": Case(
        Graph(
            [
                inc("n", "n"),
                inc("even", "n", 100, when=lambda n: n % 2 == 0),
                node(lambda n, even=0: even, name="seen", outputs="log"),
                gate("again", "n", "n", END, choose=lambda v: "n" if v < 3 else END, after=["seen"]),
            ],
            name="g",
            loops=["n"],
        ),
        {"n": 0},
        {"log": 0},
    ),
    "a loop in a loop, whose rounds begin anew": Case(
        Graph(
            [
                inc("outer", "total", 0),
                node(lambda outer, n=0: n + 1, name="n"),
                gate("more", "n", "n", END, choose=lambda v: "n" if v < 2 else END),
                node(lambda outer, n: outer + n, name="sum", outputs="total"),
                gate("again", "total", "outer", END, choose=lambda v: "outer" if v < 5 else END),
            ],
            name="g",
            loops=["outer", "n"],
            output="total",
        ).bind(total=0),
        {},
        6,
    ),
    "a question in each round": Case(
        Graph(
            [
                node(lambda x, total=0: total, name="turn"),
                ask("ok", "turn"),
                add("sum", "turn", "ok", outputs="total"),
                gate("again", "total", "turn", END, choose=lambda v: "turn" if v < 5 else END),
            ],
            name="g",
            loops=["turn"],
            output="total",
        ),
        {"x": 0},
        7,
        answers={"ok:0": 3, "ok:1": 4},
    ),
    "a map in each round": Case(
        Graph(
            [
                node(lambda n=0: n + 1, name="n"),
                listed("items", "n"),
                inc("each", "items").map_over("x"),
                joined("sum", "each"),
                gate("again", "sum", "n", END, choose=lambda v: "n" if v < 6 else END),
            ],
            name="g",
            loops=["n"],
            output="sum",
        ),
        {},
        6,
    ),
    "a graph in each round, which asks": Case(
        Graph(
            [
                node(lambda total=0: total, name="turn"),
                node(ASKING, inputs={"x": "turn"}, outputs="total"),
                gate("again", "total", "turn", END, choose=lambda v: "turn" if v < 3 else END),
            ],
            name="g",
            loops=["turn"],
            output="total",
        ),
        {},
        3,
        answers={"asking:0/ok:0": 1, "asking:1/ok:0": 2},
    ),
    "a failure in a later round": Case(
        Graph(
            [
                inc("n", "n"),
                fails_on("check", "n", 2),
                gate("again", "n", "n", END, choose=lambda v: "n" if v < 3 else END, after=["check"]),
            ],
            name="g",
            loops=["n"],
            on_failure="continue",
        ),
        {"n": 0},
        status="failed",
    ),
    "a node beside a loop sees its last round": Case(
        Graph(
            [
                inc("n", "n"),
                fails_on("check", "n", 2),
                gate("again", "n", "n", END, choose=lambda v: "n" if v < 3 else END),
            ],
            name="g",
            loops=["n"],
        ),
        {"n": 0},
        {"check": 3},
    ),
    "a large value that is carried": Case(
        Graph(
            [
                node(lambda text: text + BIG, name="text"),
                gate("again", "text", "text", END, choose=lambda v: "text" if len(v) < 2000 else END),
                node(lambda text: len(text), name="length"),
            ],
            name="g",
            loops=["text"],
        ),
        {"text": ""},
        {"length": 2700},
    ),
    # --- maps
    "a map of nothing": Case(
        Graph([listed("items"), inc("each", "items").map_over("x"), joined("sum", "each")], name="g"),
        {"x": 0},
        {"sum": 0},
    ),
    "a zip": Case(
        Graph(
            [node(lambda a, b, c: a * b + c, name="each", inputs={"a": "l", "b": "r"}).map_over("a", "b", limit=2)],
            name="g",
        ),
        {"l": [1, 2, 3], "r": [4, 5, 6], "c": 1},
        {"each": [5, 11, 19]},
    ),
    "lists of different lengths": Case(
        Graph(
            [node(lambda a, b: a, name="each").map_over("a", "b"), inc("apart", "x")], name="g", on_failure="continue"
        ),
        {"a": [1], "b": [1, 2], "x": 1},
        status="failed",
    ),
    "no list": Case(Graph([inc("each", "x").map_over("x")], name="g"), {"x": 3}, status="failed"),
    "failures in a map that are tolerated": Case(
        Graph(
            [
                listed("items"),
                fails_on("each", "items", 1, 3).map_over("v", on_error="none", tolerate=0.5, limit=2),
                joined("sum", "each"),
            ],
            name="g",
        ),
        {"x": 4},
        {"sum": 2},
    ),
    "one failure too many": Case(
        Graph([listed("items"), fails_on("each", "items", 1, 3).map_over("v", on_error="skip", tolerate=1)], name="g"),
        {"x": 4},
        status="failed",
    ),
    "a map that is ended early": Case(
        Graph([listed("items"), inc("each", "items").map_over("x", limit=1, until=lambda r: r == 3)], name="g"),
        {"x": 50},
        {"each": [1, 2, 3]},
    ),
    "a map in chunks that is ended early": Case(
        Graph(
            [listed("items"), inc("each", "items").map_over("x", limit=1, chunk=2, until=lambda r: r == 3)], name="g"
        ),
        {"x": 8},
        {"each": [1, 2, 3]},
    ),
    "a map over questions": Case(
        Graph(
            [listed("items"), node(ASKING, inputs={"x": "items"}).map_over("x", limit=2), joined("sum", "asking")],
            name="g",
        ),
        {"x": 3},
        {"sum": 9},
        answers={f"asking:0[{n}]/ok:0": n + 1 for n in range(3)},
    ),
    "a map of maps": Case(
        Graph(
            [
                listed("items"),
                node(
                    Graph(
                        [listed("inside", "k"), inc("each", "inside").map_over("x"), joined("sum", "each")],
                        name="inner",
                        output="sum",
                    ),
                    inputs={"k": "items"},
                ).map_over("k"),
            ],
            name="g",
        ),
        {"x": 4},
        {"inner": [0, 1, 3, 6]},
    ),
    "a map of code": Case(
        Graph([listed("items"), node(code, inputs={"x": "items"}).map_over("x", limit=2)], name="g"),
        {"x": 3},
        {"code": [0, 10, 20]},
    ),
    "a map of graphs that skip": Case(
        Graph([listed("items"), node(ODD, inputs={"x": "items"}).map_over("x", on_error="none")], name="g"),
        {"x": 4},
        {"odd": [None, 2, None, 4]},
    ),
    "a map that feeds a map, item by item in chunks": Case(
        Graph(
            [
                lazily("items"),
                inc("first", "items").map_over("x", chunk=2),
                inc("second", "first", 10).map_over("x", chunk=3),
                joined("sum", "second"),
            ],
            name="g",
        ),
        {"x": 5},
        {"sum": 65},
    ),
    "a map of large values": Case(
        Graph(
            [
                node(lambda x: [str(i) + BIG for i in range(x)], name="texts"),
                node(lambda t: t[0] + BIG, name="each", inputs={"t": "texts"}).map_over("t"),
                node(lambda rows: [row[0] for row in rows], name="heads", inputs={"rows": "each"}),
            ],
            name="g",
        ),
        {"x": 3},
        {"heads": ["0", "1", "2"]},
    ),
    "a map of pairs, taken apart": Case(
        Graph(
            [
                listed("items"),
                node(lambda i: (i, i * i), name="pairs", outputs=("is", "squares"), inputs={"i": "items"}).map_over(
                    "i"
                ),
                joined("sum", "squares"),
            ],
            name="g",
        ),
        {"x": 4},
        {"is": [0, 1, 2, 3], "sum": 14},
    ),
    # --- failures
    "a failure beside what goes on": Case(
        Graph(
            [boom("bad"), inc("behind", "bad"), inc("a", "x"), inc("b", "a"), inc("after", "x", after=["bad"])],
            name="g",
            on_failure="continue",
        ),
        {"x": 1},
        status="failed",
        blocked=("behind:0",),
    ),
    "a failure that a rule makes a skip": Case(
        Graph(
            [boom("bad"), node(lambda bad=5: bad, name="with_default"), inc("without", "bad")],
            name="g",
            rules=[rule("bad", on_failure="skip")],
        ),
        {"x": 1},
        {"with_default": 5},
        skipped={"without:0": "bad:0"},
    ),
    "a failing gate, with what it would have chosen": Case(
        Graph(
            [gate("way", "x", "a", END, choose=lambda v: "nowhere"), inc("a", "x"), inc("b", "x")],
            name="g",
            on_failure="continue",
        ),
        {"x": 1},
        status="failed",
        blocked=("a:0",),
    ),
    "a graph inside that fails": Case(
        Graph([node(BROKEN), inc("behind", "broken"), inc("beside", "x")], name="g", on_failure="continue"),
        {"x": 1},
        status="failed",
        blocked=("behind:0",),
    ),
    "code inside that fails": Case(Graph([node(failing), inc("b", "failing")], name="g"), {"x": 1}, status="failed"),
    # --- bail
    "a bail in a graph inside": Case(
        Graph([node(BAILS), inc("behind", "bails")], name="g"), {"x": 2}, {"x": 2}, status="bailed"
    ),
    "a bail in an item": Case(
        Graph(
            [listed("items"), node(BAILS, inputs={"x": "items"}).map_over("x", limit=1), joined("s", "bails")], name="g"
        ),
        {"x": 4},
        {"x": 2},
        status="bailed",
    ),
    "a bail in code inside": Case(Graph([node(bailing), inc("b", "bailing")], name="g"), {"x": 1}, {"b": 102}),
    "a bail beside an open question": Case(
        Graph([ask("ok", "x"), inc("a", "x"), node(lambda a: bail("no", output=a), name="stop")], name="g"),
        {"x": 1},
        2,
        status="bailed",
    ),
    # --- questions
    "questions in parallel branches, one of them in a graph": Case(
        Graph([ask("ok", "x"), node(ASKING, inputs={"ok": "mine"}), add("end", "ok", "asking")], name="g"),
        {"x": 1},
        {"end": 34},
        answers={"asking:0/ok:0": 30, "ok:0": 3},
    ),
    "an answer that was known, beside one that is asked": Case(
        Graph([ask("one", "x"), ask("two", "x"), add("end", "one", "two")], name="g"),
        {"x": 1, "one": 5},
        {"end": 11},
        answers={"two:0": 6},
    ),
    "an answer that a gate decides by": Case(
        Graph(
            [
                ask("ok", "x"),
                both("way", "ok", "yes", "no", lambda v: v > 0),
                inc("yes", "ok", outputs="it"),
                inc("no", "ok", -1, outputs="it"),
                inc("end", "it"),
            ],
            name="g",
        ),
        {"x": 1},
        {"end": 7},
        answers={"ok:0": 5},
        skipped={"no:0": "way:0"},
    ),
    "a question that times out with a value": Case(
        Graph([ask("ok", "x", timeout=5.0, on_timeout=9), add("end", "ok", "x")], name="g"), {"x": 1}, {"end": 10}
    ),
    "a question that times out": Case(
        Graph([ask("ok", "x", timeout=5.0), inc("end", "ok"), inc("beside", "x")], name="g", on_failure="continue"),
        {"x": 1},
        status="failed",
        blocked=("end:0",),
    ),
    "questions of items of which some time out": Case(
        Graph(
            [
                listed("items"),
                node(
                    Graph([ask("ok", "x", timeout=300.0), add("end", "x", "ok")], name="asking", output="end"),
                    inputs={"x": "items"},
                ).map_over("x", on_error="none"),
            ],
            name="g",
        ),
        {"x": 3},
        {"asking": [None, 11, None]},
        answers={"asking:0[1]/ok:0": 10},
    ),
    # --- nested, large, retried
    "three graphs deep": Case(
        Graph(
            [
                node(Graph([node(Graph([node(INNER)], name="two", output="inner"))], name="one", output="two")),
                inc("end", "one"),
            ],
            name="g",
        ),
        {"x": 1},
        {"end": 13},
    ),
    "a graph that is used twice under two names": Case(
        Graph([INNER.as_node("first"), node(INNER, name="second", inputs={"x": "first"})], name="g"),
        {"x": 1},
        {"second": 23},
    ),
    "a large value with many consumers, one of them a gate": Case(
        Graph(
            [
                node(lambda x: BIG * x, name="text"),
                *(node(lambda text: len(text), name=f"l{i}") for i in range(4)),
                gate("way", "text", "yes", END, choose=lambda v: "yes" if len(v) > 1000 else END),
                node(lambda text: text[:1], name="yes"),
            ],
            name="g",
        ),
        {"x": 2},
        {**{f"l{i}": 1800 for i in range(4)}, "yes": "x"},
    ),
    "retries, then success": Case(
        Graph([inc("a", "x", retry=Retry(attempts=3, initial=0.01)), inc("b", "a")], name="g"), {"x": 1}, {"b": 3}
    ),
    "a result that is a class": Case(
        Graph([inc("a", "x"), inc("b", "x", when=lambda x: False)], name="g", output="b"),
        {"x": 1},
        None,
        skipped={"b:0": "when"},
    ),
    "items that a step takes one by one": Case(
        Graph([lazily("rows"), node(lambda rows: sum(rows), name="total", inputs={"rows": "rows"})], name="g"),
        {"x": 4},
        {"total": 6},
    ),
}
