"""Types with versions: how they are stored, and how old values are migrated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from perdure import NotDecodable, NotSerializable, UsageError, migrates, versioned
from perdure.kernel.values.arguments import same_record
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.value_versions import versions_in


@versioned("3")
@dataclass(frozen=True, slots=True)
class Order:
    id: str
    cents: int
    tags: list[str] = field(default_factory=list)


@migrates(Order, from_="1")
def with_text_ids(old: dict[str, Any]) -> dict[str, Any]:
    return {"id": str(old["number"]), "price": old["price"]}


@migrates(Order, from_="2")
def with_cents(old: dict[str, Any]) -> dict[str, Any]:
    return {"id": old["id"], "cents": round(old["price"] * 100)}


@versioned("2")
class Customer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str


@migrates(Customer, from_="1")
def with_one_name(old: dict[str, Any]) -> dict[str, Any]:
    return {"name": f"{old['first']} {old['last']}"}


class Parcel(msgspec.Struct, tag="parcel"):
    grams: int


# Without @versioned it is one further than its last migration.
@migrates(Parcel, from_="1")
def with_grams(old: dict[str, Any]) -> dict[str, Any]:
    return {"type": old["type"], "grams": old["kilos"] * 1000}


@dataclass
class Shipment:
    order: Order
    customer: Customer
    parcels: dict[str, list[Parcel]]


codec = Codec()


@given(st.text(), st.integers(-(2**60), 2**60), st.lists(st.text()), st.integers(0, 100))
def test_values_of_today_come_back_as_they_were(id: str, cents: int, tags: list[str], grams: int) -> None:
    for value in (Order(id, cents, tags), Customer(name=id), Parcel(grams)):
        assert codec.decode(codec.encode(value, "it"), type(value), "it") == value
    shipment = Shipment(Order(id, cents, tags), Customer(name=id), {"a": [Parcel(grams)]})
    assert codec.decode(codec.encode(shipment, "it"), Shipment, "it") == shipment
    assert codec.encode_inputs([shipment], "it") == codec.encode_inputs([shipment], "it")


def test_the_version_is_stored_beside_the_fields() -> None:
    assert codec.encode(Order("a", 1), "it") == b'{"$version":"3","id":"a","cents":1,"tags":[]}'
    assert codec.encode(Customer(name="Ann"), "it") == b'{"$version":"2","name":"Ann"}'
    assert codec.encode({"p": Parcel(1)}, "it") == b'{"p":{"$version":"2","type":"parcel","grams":1}}'


@pytest.mark.parametrize(
    ("stored", "type", "today"),
    [
        (b'{"number":7,"price":1.5}', Order, Order("7", 150)),
        (b'{"$version":"2","id":"a","price":2}', Order, Order("a", 200)),
        (b'{"$version":"3","id":"a","cents":2}', Order, Order("a", 2)),
        (b'[{"number":7,"price":1}]', list[Order], [Order("7", 100)]),
        (b'{"x":{"number":7,"price":1}}', dict[str, Order | None], {"x": Order("7", 100)}),
        (b'{"first":"Ann","last":"Lee"}', Customer, Customer(name="Ann Lee")),
        (b'{"type":"parcel","kilos":2}', Parcel, Parcel(2000)),
        (
            b'{"order":{"number":7,"price":1},"customer":{"first":"A","last":"B"},"parcels":{"a":[]}}',
            Shipment,
            Shipment(Order("7", 100), Customer(name="A B"), {"a": []}),
        ),
    ],
)
def test_old_values_become_values_of_today_one_version_at_a_time(stored: bytes, type: Any, today: Any) -> None:
    assert codec.decode(stored, type, "it") == today


@pytest.mark.parametrize(
    ("stored", "complaint"),
    [
        (b'{"price":1}', r"the migration with_text_ids, from version 1 of Order, failed: KeyError: 'number'"),
        (b'{"$version":"9"}', r"it is version 9 of Order, and nothing leads to 3; deploy the code that wrote it"),
        (b'{"$version":"0"}', r"nothing leads to 3; write one: @migrates\(Order, from_='0'\)"),
        (b"3", "Expected `object`"),
        (b'{"$version":"2","id":5,"price":1}', "Expected `str`, got `int`"),
    ],
)
def test_a_value_that_cannot_be_migrated_says_why(stored: bytes, complaint: str) -> None:
    with pytest.raises(NotDecodable, match=complaint):
        codec.decode(stored, Order, "the result of charge:0")
    with pytest.raises(NotDecodable, match=complaint):
        codec.decode(b"[" + stored + b"]", list[Order], "the result of charge:0")


def test_what_cannot_have_a_version_is_refused() -> None:
    @versioned("2")
    class Bare:
        pass

    with pytest.raises(NotSerializable, match="only what is stored as an object with fields"):
        codec.encode(Bare(), "it")

    class Outer(BaseModel):
        customer: Customer

    with pytest.raises(NotDecodable, match=r"inside the pydantic model .*Outer, which writes it without"):
        codec.decode(b'{"customer":{"name":"Ann"}}', Outer, "it")


def test_declarations_that_make_no_sense_are_refused_at_once() -> None:
    @dataclass
    class New:
        x: int

    with pytest.raises(UsageError, match="not a whole number"):
        migrates(New, from_="a")
    with pytest.raises(UsageError, match="Order is version 3 now"):
        migrates(Order, from_="3")
    with pytest.raises(UsageError, match="two functions migrate Order from version 1: with_text_ids and"):
        migrates(Order, from_="1")(lambda old: old)
    with pytest.raises(UsageError, match="is empty"):
        versioned("")
    with pytest.raises(UsageError, match="goes above a class"):
        versioned("2")(3)  # type: ignore[arg-type]


def test_a_subclass_has_no_version_of_its_base() -> None:
    @dataclass(frozen=True)
    class Large(Order):
        pass

    assert b"$version" not in codec.encode(Large("a", 1), "it")


def test_inputs_are_compared_where_their_versions_are_the_same() -> None:
    old = codec.encode_inputs(["plain"], "it")
    assert versions_in(old) == ""
    new = versions_in(codec.encode_inputs([Order("a", 1)], "it"))
    assert same_record("abc", "abc")
    assert not same_record("abc", "abd")
    assert not same_record("abc" + new, "abd" + new)
    assert same_record("abc", "abd" + new)
    # Text that looks like a version is none.
    assert versions_in(codec.encode_inputs(['{"$version":"3"}'], "it")) == ""
