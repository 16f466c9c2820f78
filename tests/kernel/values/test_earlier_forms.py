"""Values as they were encoded before their types got fields with defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest

from perdure.kernel.values.codec import Codec
from perdure.kernel.values.earlier_forms import earlier_forms


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
