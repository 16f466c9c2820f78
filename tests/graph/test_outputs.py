"""`Outputs` where values are stored or printed: as an object of its values."""

from __future__ import annotations

import math
from typing import Any

import pytest

from perdure import Engine, NotSerializable, TypeCodec, workflow
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
