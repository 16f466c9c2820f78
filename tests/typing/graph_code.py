"""Graphs as a user writes them, under `mypy --strict`: every `type: ignore` here is an error that must be found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypedDict, assert_type  # noqa: F401 - named in a text

from perdure import Engine, RunResult, step, workflow
from perdure.graph import END, Graph, Items, Outputs, ifelse, interrupt, node, route


@dataclass
class Doc:
    text: str


@dataclass
class Report:
    docs: list[Doc]
    answer: str


class Partial(TypedDict):
    answer: str


@node
def embed(query: str) -> list[float]:
    return [1.0]


@node(outputs="docs", timeout=10)
async def retrieve(embed: list[float], k: int = 5) -> list[Doc]:
    return []


@node
async def answer(query: str, docs: list[Doc]) -> str:
    return query


@step
def charge(order: str) -> int:
    return 1


@workflow
async def fulfil(order: str) -> bytes:
    return b""


@route(targets=["answer", END])
def gate(query: str) -> object:
    return answer


@ifelse(when_true=answer, when_false=END)
def either(query: str) -> bool:
    return True


@ifelse(when_true=answer, when_false=END)  # type: ignore[arg-type]
def neither(query: str) -> str:
    return ""


@interrupt(answer=Report)
def ask(docs: list[Doc]) -> str:
    return "?"


plain = Graph([embed, retrieve, answer], name="plain")
one = Graph([embed, retrieve, answer], name="one", output=answer)
whole = Graph([embed, retrieve, answer], name="whole", output=Report)
part = Graph([embed, retrieve, answer], name="part", output=Partial)

assert_type(plain, "Graph[..., Outputs]")
assert_type(one, "Graph[..., str]")
assert_type(whole, "Graph[..., Report]")
assert_type(part, "Graph[..., Partial]")
assert_type(Graph([charge], name="g", output=charge), "Graph[..., int]")

Graph([embed, retrieve, answer], name="g", output=3)  # type: ignore[call-overload]
Graph([embed, retrieve, answer], name="g", on_failure="explode")  # type: ignore[call-overload]
Graph([embed, retrieve, answer], name="g", max_round=3)  # type: ignore[call-overload]
node(embed, retries=3)  # type: ignore[call-overload]


def sig(query: str, k: int = 5) -> None: ...


typed = one.takes(sig)


async def use() -> None:
    async with Engine("memory://", [plain, one, whole]) as engine:
        result = await engine.run(one(query="hello"), id="c")
        assert_type(result, RunResult[str])
        assert_type(result.output, str)
        found = (await engine.run(plain(query="hello"))).output
        assert_type(found, Outputs)
        assert_type(found[retrieve], list[Doc])
        assert_type(found[answer], str)
        assert_type(found[charge], int)
        assert_type(found["answer"], object)
        _ = found[3]  # type: ignore[call-overload]
        report = (await engine.run(whole(query="hello"))).output
        assert_type(report.docs, list[Doc])
        assert_type((await engine.run(typed("hello", k=3))).output, str)
        _ = typed(3)  # type: ignore[arg-type]
        _ = typed("hello", j=3)  # type: ignore[call-arg]
        _ = typed()  # type: ignore[call-arg]


# Other graphs of one: with what their inputs and results are then.
assert_type(typed.select("docs"), "Graph[..., Any]")
assert_type(typed.with_entrypoint("retrieve"), "Graph[..., str]")
assert_type(typed.rename_inputs(query="question"), "Graph[..., str]")
assert_type(Graph([one], name="of_graph", output=one), "Graph[..., Any]")


# A node stays what it was: called outside, it is the function.
async def call_plainly() -> None:
    assert_type(await answer("q", []), str)
    await answer(3, [])  # type: ignore[arg-type]
    assert_type(await answer.fn("q", []), str)


@node(outputs="bill")
def charged(docs: list[Doc]) -> int:
    return len(docs)


@node
def streamed(query: str) -> Iterator[str]:
    yield query


def are_functions() -> None:
    assert_type(charged.fn([]), int)
    charged.fn("x")  # type: ignore[arg-type]
    streamed.fn(3)  # type: ignore[arg-type]


# A mapped node gives a list of what it gives otherwise; a graph in a graph is a node of its output.
mapped = node(embed, inputs={"query": "queries"}).map_over("query")
assert_type(Graph([mapped], name="m", output=mapped), "Graph[..., list[list[float]]]")
inner = one.as_node(name="inner")
assert_type(Graph([inner], name="o", output=inner), "Graph[..., str]")
each = one.map_over("query")
assert_type(Graph([each], name="e", output=each), "Graph[..., list[str]]")
assert_type(Graph([ask], name="a", output=ask), "Graph[..., Report]")
assert_type(Graph([node(fulfil)], name="w", output=node(fulfil)), "Graph[..., bytes]")


def texts(items: Items[Doc]) -> list[str]:
    assert_type(items[0], Doc)
    assert_type(items[1:], Items[Doc])
    return [item.text for item in items]
