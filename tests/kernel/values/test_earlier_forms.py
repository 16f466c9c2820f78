"""Values as they were encoded before their types got fields with defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest

from perdure.kernel.values.codec import Codec
from perdure.kernel.values.earlier_forms import earlier_forms, other_orders


@dataclass
class Item:
    name: str
    note: str | None = None
    tags: list[str] = field(default_factory=list)


class Struct(msgspec.Struct):
    note: str = ""
    id: str = "x"
    gift: bool = False


class Pair(NamedTuple):
    id: str
    note: str = ""
    gift: bool = False


class Model(pydantic.BaseModel):
    id: str
    note: str | None = None
    tags: list[str] = []


class Order(msgspec.Struct):
    id: str
    items: list[Item]
    pair: Pair


EARLIER: list[tuple[Any, list[Any]]] = [
    (Item("a"), [{"name": "a"}, {"name": "a", "note": None}, {"name": "a", "tags": []}]),
    (Item("a", "n"), [{"name": "a", "note": "n"}]),
    (Struct(id="7"), [{"note": "", "id": "7"}, {"id": "7", "gift": False}]),
    (Pair("a"), [["a"], ["a", ""]]),
    (Pair("a", gift=True), []),
    (Model(id="a"), [{"id": "a"}, {"id": "a", "note": None}]),
    ([Item("a"), Item("b", tags=["x"])], [[{"name": "a", "tags": []}, {"name": "b", "tags": ["x"]}]]),
    (
        Order("o", [Item("a", "n")], Pair("p")),
        [{"id": "o", "items": [{"name": "a", "note": "n"}], "pair": ["p"]}],
    ),
    ({"by": Item("a")}, [{"by": {"name": "a"}}]),
    (7, []),
    (["a"], []),
]


@pytest.mark.parametrize(("value", "earlier"), EARLIER, ids=str)
def test_fields_with_their_defaults_may_be_new(value: Any, earlier: list[Any]) -> None:
    plain = msgspec.json.decode(Codec().encode_inputs(value, "it"))
    found = list(earlier_forms(value, plain))
    assert all(form in found for form in earlier), found
    assert bool(found) == bool(earlier)


def test_a_field_that_has_another_value_is_not_left_out() -> None:
    plain = msgspec.json.decode(Codec().encode_inputs(Item("a", "n", ["t"]), "it"))
    assert list(earlier_forms(Item("a", "n", ["t"]), plain)) == []


def test_a_large_value_has_a_limited_number_of_forms() -> None:
    many: Any = msgspec.defstruct("Many", [(f"f{n}", int, n) for n in range(200)])
    assert len(list(earlier_forms(many(), msgspec.to_builtins(many())))) < 64


def test_the_fields_of_each_type_may_have_been_in_another_order() -> None:
    value = Order("o", [Item("a", "n"), Item("b")], Pair("p"))
    found = [msgspec.json.encode(form) for form in other_orders(value, msgspec.to_builtins(value))]
    assert len(found) == len(set(found)) == 3 * 2 * 1 * 3 * 2 * 1 - 1
    items = [{"tags": [], "name": "a", "note": "n"}, {"tags": [], "name": "b", "note": None}]
    assert msgspec.json.encode({"pair": ["p", "", False], "items": items, "id": "o"}) in found


def test_a_value_with_many_fields_has_a_limited_number_of_orders() -> None:
    many: Any = msgspec.defstruct("Many", [(f"f{n}", int, n) for n in range(60)])
    found = [list(form) for form in other_orders(many(), msgspec.to_builtins(many()))]
    assert ["f1", "f0", *(f"f{n}" for n in range(2, 60))] in found
    assert len(found) < 2000
