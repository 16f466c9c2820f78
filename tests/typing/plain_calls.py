"""Code that calls steps outside of workflows, checked with `mypy --strict` and the plugin `perdure.mypy_plugin`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_type

from perdure import step, workflow
from perdure.graph import node


@step
def pack(item: str) -> str:
    return f"box of {item}"


@step(timeout=5)
def weigh(item: str) -> float:
    return 1.0


@step
async def ship(item: str) -> str:
    return item


@step
def parts(item: str) -> Iterator[str]:
    yield item


@node
def price(item: str) -> int:
    return 1


@node(outputs="tax", timeout=5)
def taxed(price: int) -> float:
    return 0.2


@workflow
async def send(item: str) -> str:
    return await pack(item) + str(await weigh.options(timeout=1)(item))


def in_plain_code() -> None:
    assert_type(pack("lamp"), str)
    assert_type(weigh("lamp"), float)
    assert_type(weigh.options(timeout=1)("lamp"), float)
    assert_type([pack(item) for item in ("lamp", "vase")], list[str])
    assert_type(price("lamp"), int)
    assert_type(taxed(1), float)
    pack(7)  # type: ignore[arg-type]


boxed = pack("lamp")
assert_type(boxed, str)


async def in_async_code() -> None:
    assert_type(await ship("lamp"), str)
    assert_type(await pack("lamp"), str)
