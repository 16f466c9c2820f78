"""`Outputs` where values are stored or printed: as an object of its values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from perdure import Engine, NotSerializable, TypeCodec, workflow
from perdure.errors import GraphInvalid
from perdure.graph import Graph, Items, Outputs, node
from perdure.kernel.values.codec import Codec


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


async def test_a_workflow_keeps_and_returns_the_outputs_of_a_graph() -> None:
    @node
    def a(x: int) -> int:
        return x

    g = Graph([a], name="g")

    @workflow
    async def w(x: int) -> dict[str, Any]:
        found = await g(x=x)
        return {"found": found, "list": [found]}

    @workflow
    async def plain(x: int) -> dict[str, int]:
        return await g(x=x)  # type: ignore[return-value]

    async with Engine("memory://", [g, w, plain]) as engine:
        assert (await engine.run(plain(3))).output == {"a": 3}
        assert (await engine.run(w(3))).output == {"found": {"a": 3}, "list": [{"a": 3}]}


@dataclass
class Price:
    """A value that JSON alone does not tell."""

    amount: Decimal


@node
def price(x: int) -> Price:
    return Price(Decimal(x) / 4)


@node(outputs=("low", "high"))
def range_of(x: int) -> tuple[Decimal, set[int]]:
    return Decimal(x), {x}


INNER = Graph([price, range_of], name="inner")
ONE, TWO = Price(Decimal("0.25")), Price(Decimal("0.5"))


@pytest.mark.parametrize("chunk", [1, 500])
async def test_the_outputs_of_a_graph_inside_are_outputs_wherever_they_are(chunk: int) -> None:
    each = node(INNER, name="each", inputs={"x": "xs"}).map_over("x", chunk=chunk)
    inside = INNER.as_node()

    @node
    def takes(inner: Outputs, each: list[Outputs]) -> list[bool]:
        assert inner["price"] == {"amount": "0.25"}  # by name, its type is not known
        with pytest.raises(KeyError, match="did you mean 'price'"):
            inner["prize"]
        return [
            inner[price] == ONE,
            inner[range_of] == (Decimal(1), {1}),
            [one[price] for one in each] == [ONE, TWO, ONE],
        ]

    graph = Graph([inside, each, takes], name="g").select("inner", "each", "takes")
    single, mapped = Graph([inside], name="single", output=inside), Graph([each], name="mapped", output=each)
    async with Engine("memory://", [graph, single, mapped]) as engine:
        output: Any = (await engine.run(graph(x=1, xs=[1, 2, 1]))).output
        assert output["takes"] == [True, True, True]
        assert output[inside][price] == ONE
        assert [one[price] for one in output[each]] == [ONE, TWO, ONE]
        assert [one["price"] for one in (await engine.run(mapped(xs=[1, 2]))).output] == [ONE, TWO]
        alone: Any = (await engine.run(single(x=1))).output
        assert (alone[price], alone[range_of], alone["price"]) == (ONE, (1, {1}), ONE)


async def test_a_graph_without_values_is_mapped() -> None:
    @node(outputs=None)
    def says(x: int) -> None: ...

    quiet = Graph([says], name="quiet")
    graph = Graph([node(quiet, inputs={"x": "xs"}).map_over("x")], name="g")
    async with Engine("memory://", [graph]) as engine:
        assert (await engine.run(graph(xs=[1, 2]))).output == {"quiet": [{}, {}]}


@pytest.mark.parametrize(("annotation", "fits"), [(dict[str, Any], True), (Mapping[str, object], True), (int, False)])
def test_what_may_take_the_outputs_of_a_graph(annotation: Any, fits: bool) -> None:
    def takes(inner: Any) -> None: ...

    takes.__annotations__ = {"inner": annotation}
    if fits:
        assert Graph([INNER, node(takes)], name="g").outputs == ("price", "low", "high", "takes")
    else:
        with pytest.raises(GraphInvalid, match=r"takes inner: int, and gets 'inner', which is perdure\.graph\.Outputs"):
            Graph([INNER, node(takes)], name="g")


def width(inner: Outputs) -> int:
    """Called in another process."""
    return len(inner)


async def test_outputs_are_sent_to_other_processes() -> None:
    graph = Graph([INNER, node(width, cpu=True)], name="g")
    async with Engine("memory://", [graph]) as engine:
        assert (await engine.run(graph(x=1))).output["width"] == 3


@pytest.mark.parametrize("encode", [Codec.encode, Codec.encode_inputs])
def test_outputs_and_items_are_stored_as_what_they_hold(encode: Any) -> None:
    given = Outputs({"b": Items.of([{1}]), "a": (1, 2)}, {"c": "skipped"})
    assert sorted(encode(Codec(), given, "it")) == sorted(b'{"b":[[1]],"a":[1,2]}')
    # With a codec for a type that is stored natively, values are walked.
    codec = Codec([TypeCodec(Money, lambda money: money.cents, Money), TypeCodec(tuple, list, tuple)])
    assert encode(codec, Outputs({"a": Money(3), "b": Items.of([Money(4)])}), "it") == b'{"a":3,"b":[4]}'
    for wrong, path in ((math.nan, r"\$\.a\[0\]"), (object(), r"\$\.a\[0\]")):
        with pytest.raises(NotSerializable, match=path):
            encode(Codec(), Outputs({"a": [wrong]}), "it")
