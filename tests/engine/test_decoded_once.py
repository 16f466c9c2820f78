"""What a step takes and returns is decoded once each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from perdure import Engine, step, workflow
from perdure.kernel.values.codec import Codec


@dataclass
class Order:
    """A value with a type of its own."""

    id: str
    amount: int


@step
async def charge(order: Order) -> Order:
    """Charge an order."""
    return Order(order.id, order.amount + 1)


@workflow
async def shop(order: Order) -> Order:
    for _ in range(3):
        order = await charge(order)
    return order


async def test_a_typed_result_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    decode = Codec.decode

    def noted(codec: Codec, data: Any, type: Any, what: str) -> Any:
        decoded.append(what)
        return decode(codec, data, type, what)

    monkeypatch.setattr(Codec, "decode", noted)
    async with Engine("memory://", [shop]) as engine:
        assert (await engine.run(shop(Order("b", 1)))).output == Order("b", 4)

    of_step = [what for what in decoded if what.endswith("charge:2")]
    assert of_step == ["the arguments of charge:2", "the result of charge:2"]
