"""Signatures as plain data: nothing is refused that the program would accept."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar
from uuid import UUID

import attrs
import msgspec
import pytest
from msgspec import Meta
from pydantic import BaseModel, Field

from perdure import TypeCodec, workflow
from perdure.errors import NotDecodable
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.signatures import Signature

T = TypeVar("T")


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


class Name(str):
    pass


@dataclass
class Item:
    name: str
    cents: int = 0


@dataclass
class Tree:
    value: int
    children: list[Tree] = field(default_factory=list)
    parent: Tree | None = None


@dataclass
class Late:
    a: int
    b: int = field(init=False)
    c: int = field(init=False, default=3)


@dataclass
class Priced:
    price: Money


@attrs.define
class Attrs:
    a: int
    b: str = ""


class Plain(msgspec.Struct):
    my_a: int
    b: int | msgspec.UnsetType = msgspec.UNSET


class Camel(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    my_a: int


class Circle(msgspec.Struct, tag=True):
    r: float


class Square(msgspec.Struct, tag="sq", tag_field="kind"):
    side: float


class Row(msgspec.Struct, array_like=True):
    a: int
    b: str = ""


class Box(msgspec.Struct, Generic[T]):
    inside: T


class Pair(NamedTuple):
    a: int
    b: str = ""


class Options(TypedDict):
    a: int
    b: NotRequired[str]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Lenient(enum.Enum):
    A = "a"

    @classmethod
    def _missing_(cls, value: object) -> Lenient:
        return cls.A


class Bits(enum.Flag):
    A = 1
    B = 2


class Model(BaseModel):
    a: int
    b: str = Field(default="", alias="bee")


UserId = NewType("UserId", int)

TYPES: list[Any] = [
    *(int, float, str, bool, bytes, None, Any, object, list, dict, tuple, set),
    *(datetime, date, time, timedelta, UUID, Decimal, Money, Name, UserId),
    *(Item, Tree, Late, Attrs, Plain, Camel, Circle, Square, Row, Pair, Options, Model, Priced),
    *(Colour, Level, Lenient, Bits),
    *(Box[int], Box[Item], list[Box[str]], dict[str, Box[Box[int]]]),
    *(
        list[int],
        list[Item],
        dict[str, int],
        dict[int, str],
        set[int],
        frozenset[str],
        tuple[int, ...],
        tuple[int, str],
    ),
    *(Sequence[int], Mapping[str, Item], list[Any], list[object], dict[str, Money], list[Priced]),
    *(int | None, Item | None, int | str, Item | int | None, Circle | None, list[int] | dict[str, int], Money | None),
    *(Literal[1, "a"], Literal["a", None], list[Literal[2]]),
    Annotated[int, Meta(ge=1, le=10)],
    Annotated[int, Meta(gt=1, lt=10, multiple_of=2)],
    Annotated[float, Meta(ge=1.5)],
    Annotated[str, Meta(min_length=1, max_length=2)],
    Annotated[str, Meta(pattern="^(?P<x>a)$")],
    Annotated[list[int], Meta(min_length=1, max_length=2)],
    Annotated[set[int], Meta(max_length=1)],
    Annotated[dict[str, int], Meta(max_length=1)],
    Annotated[int, Meta(extra_json_schema={"type": "string"})],
]

SCALARS: list[Any] = [
    *(None, True, False, 0, 1, 2, 3, 7, -1, 10, 2**70, 1.0, 1.5, 1e300, "", "a", "aa", "aaa", "red", "1", "sq", "😀😀"),
    *("2020-01-01", "2020-01-01T00:00:00Z", "12:00:00", "PT5S", "YQ==", "3fa85f64-5717-4562-b3fc-2c963f66afa6", "1.5"),
]
OBJECTS: list[Any] = [
    *({}, {"a": 1}, {"a": "1"}, {"a": 1, "b": "x"}, {"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, {"bee": "x", "a": 1}),
    *({"name": "tea"}, {"name": "tea", "cents": 3}, {"name": "tea", "cents": "3"}, {"name": "tea", "more": 1}),
    *({"value": 1}, {"value": 1, "children": [{"value": 2, "parent": {"value": 3}}]}, {"value": 1, "children": [1]}),
    *({"my_a": 1}, {"myA": 1}, {"myA": 1, "z": 1}, {"r": 1}, {"type": "Circle", "r": 1}, {"type": "x", "r": 1}),
    *({"side": 1.5}, {"kind": "sq", "side": 1}, {"kind": "Square", "side": 1}, {"1": "a"}, {"price": 5}),
    *({"inside": 1}, {"inside": "x"}, {"inside": {"name": "x"}}, {"x": {"inside": {"inside": 1}}}),
]
VALUES = [*SCALARS, *OBJECTS, [], *([value] for value in SCALARS + OBJECTS), [1, 1], [1, "a"], [1, 2, 3], [1, "a", 2]]

CODECS = [TypeCodec(Money, lambda m: m.cents, lambda v: Money(int(v)))]


def taking(annotation: Any) -> Signature:
    async def taker(x: Any) -> None: ...

    taker.__annotations__["x"] = annotation
    return workflow(taker).call_signature(Codec(CODECS))


@pytest.mark.parametrize("annotation", TYPES, ids=str)
def test_what_can_be_decoded_is_never_refused(annotation: Any) -> None:
    codec, signature = Codec(CODECS), taking(annotation)
    for value in VALUES:
        data = msgspec.json.encode(value)
        try:
            codec.decode(data, annotation, "x")
        except NotDecodable:
            continue
        assert signature.misfit(b"[" + data + b"]") is None, data
        assert signature.misfit(b'{"x":' + data + b"}") is None, data


@pytest.mark.parametrize(
    ("annotation", "value", "reason"),
    [
        (int, "7", '"7" is not of type "integer"'),
        (float, "7", '"7" is not of type "number"'),
        (str, 7, '7 is not of type "string"'),
        (bool, 1, '1 is not of type "boolean"'),
        (datetime, 7, '7 is not of type "string"'),
        (Decimal, True, 'true is not of types "number", "string"'),
        (Item, 7, '7 is not of type "object"'),
        (Item, {}, '"name" is a required property'),
        (Item, {"name": "tea", "cents": "3"}, '"3" is not of type "integer" - at `$.cents`'),
        (Item | None, {"name": 3}, '3 is not of type "string" - at `$.name`'),
        (list[Item], [{"name": "tea"}, {}], '"name" is a required property - at `$[1]`'),
        (dict[str, Item], {"a": {"name": 1}}, '1 is not of type "string" - at `$.a.name`'),
        (Tree, {"value": 1, "children": [{"value": 2, "parent": {"value": ""}}]}, "- at `$.children[0].parent.value`"),
        (Box[Item], {"inside": {"name": 1}}, '1 is not of type "string" - at `$.inside.name`'),
        (Camel, {"myA": 1, "z": 1}, "'z' was unexpected"),
        (Options, {"b": "x"}, '"a" is a required property'),
        (Attrs, {"a": "x"}, '"x" is not of type "integer" - at `$.a`'),
        (Colour, "green", '"green" is not one of'),
        (Level, 5, "5 is not one of"),
        (Literal["a", "b"], "c", '"c" is not one of'),
        (tuple[int, str], [1], "has less than 2 items"),
        (Pair, [1, "a", 2], "has more than 2 items"),
        (Circle, {"type": "x", "r": 1}, "at `$.type`"),
        (int | str, [], "is not valid under any of the schemas"),
        (Annotated[int, Meta(ge=1)], 0, "0 is less than the minimum of 1"),
        (Annotated[str, Meta(max_length=2)], "aaa", "is longer than 2 characters"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_with_its_place(annotation: Any, value: Any, reason: str) -> None:
    with pytest.raises(NotDecodable):
        Codec().decode(msgspec.json.encode(value), annotation, "x")
    misfit = taking(annotation).misfit(msgspec.json.encode([value]))
    assert misfit is not None
    assert misfit.argument == "x"
    assert reason in misfit.reason


@workflow
async def every(a: int, /, b: int, c: int = 3, *rest: float, d: bool, e: bool = True, **more: str) -> None: ...


@workflow
async def none() -> None: ...


@pytest.mark.parametrize("program", [every, none])
@pytest.mark.parametrize(
    "input",
    [
        *([], [1], [1, 2], [1, 2, 3], [1, 2, 3, 4.5], {}, {"a": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 2, "d": True}),
        *({"a": 1, "b": 2, "d": True, "x": "y"}, {"a": 1, "b": 2, "d": True, "rest": [1, 2]}, {"z": 1}),
        *({"a": 1, "b": 2, "d": True, "rest": ["x"]}, {"a": 1, "b": 2, "d": True, "more": {"x": "y"}}),
        *({"a": 1, "b": 2, "d": True, "more": {"x": 1}}, {"a": "", "b": 2, "d": True}, {"a": 1, "b": 2, "d": 1}),
    ],
    ids=str,
)
def test_calls_are_bound_as_the_program_binds_them(program: Any, input: Any) -> None:
    codec, data = Codec(), msgspec.json.encode(input)
    try:
        program.check_input(msgspec.Raw(data), codec)
    except NotDecodable:
        assert program.call_signature(codec).misfit(data) is not None
    else:
        assert program.call_signature(codec).misfit(data) is None


def test_what_cannot_be_compared_fits() -> None:
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    assert taking(str).misfit(msgspec.json.encode([deep])) is None


def test_a_signature_is_shown_without_its_default_values() -> None:
    shown = "(a: int, /, b: int, c: int = ..., *rest: float, d: bool, e: bool = ..., **more: str)"
    assert str(every.call_signature(Codec())) == shown


def test_long_values_are_cut_in_the_reason() -> None:
    misfit = taking(int).misfit(msgspec.json.encode(["x" * 100_000]))
    assert misfit is not None
    assert len(misfit.reason) < 300
    assert 'is not of type "integer"' in misfit.reason
