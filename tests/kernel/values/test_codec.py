"""The codec: values round-trip by their annotation, or are refused with the path of what cannot be stored."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import math
import os
import subprocess
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from inspect import Signature
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NoReturn, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import NotDecodable, NotSerializable
from perdure.kernel.values.codec import Codec, TypeCodec
from perdure.kernel.values.value_versions import Versions

CODEC = Codec()
WHAT = "the result of charge:0"
T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(enum.Enum):
    A = 1
    B = "b"


@dataclasses.dataclass
class Item:
    name: str
    price: float = 1.0
    tags: set[str] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    id: UUID
    at: dt.datetime
    items: list[Item]
    total: Decimal
    colour: Colour | None = None
    extra: Any = None


@dataclasses.dataclass
class Box(Generic[T]):
    inside: T
    next: Box[T] | None = None


class Point(NamedTuple):
    x: int
    y: int = 0


class Movie(TypedDict):
    title: str
    year: int


class Cat(msgspec.Struct, tag=True, frozen=True):
    lives: int


class Dog(msgspec.Struct, tag=True, frozen=True):
    good: bool


class User(pydantic.BaseModel):
    name: str
    born: dt.date | None = None
    scores: set[int] = set()
    ratio: float = 0.5


@dataclasses.dataclass
class Team:
    lead: User
    members: dict[str, User]


class Money:
    def __init__(self, amount: Decimal, currency: str) -> None:
        self.amount, self.currency = amount, currency

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return f"{self.amount} {self.currency}"

    @classmethod
    def parse(cls, text: str) -> Money:
        amount, currency = text.split()
        return cls(Decimal(amount), currency)


class Tip(Money):
    pass


@dataclasses.dataclass
class Bill:
    total: Money
    parts: list[Money]
    by_name: dict[str, Money | None]


MONEY = TypeCodec(Money, encode=str, decode=Money.parse)


def there_and_back(value: object, annotation: Any, codec: Codec = CODEC) -> Any:
    return codec.decode(codec.encode(value, WHAT), annotation, WHAT)


# --- round trips ----------------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]))
floats = st.floats(allow_nan=False, allow_infinity=False)
zones = st.one_of(
    st.none(), st.integers(-23 * 60, 23 * 60).map(lambda minutes: dt.timezone(dt.timedelta(minutes=minutes)))
)
datetimes = st.datetimes(timezones=zones, allow_imaginary=True).map(lambda at: at.replace(fold=0))
items = st.builds(Item, name=texts, price=floats, tags=st.sets(texts))

LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (type(None), st.none()),
    (bool, st.booleans()),
    (int, st.integers() | st.integers(-(2**200), 2**200)),
    (float, floats),
    (str, texts),
    (bytes, st.binary()),
    (bytearray, st.binary().map(bytearray)),
    (dt.datetime, datetimes),
    (dt.date, st.dates()),
    (dt.time, st.times().map(lambda at: at.replace(fold=0))),
    (dt.timedelta, st.timedeltas()),
    (UUID, st.uuids()),
    (Decimal, st.decimals(allow_nan=False)),
    (Colour, st.sampled_from(Colour)),
    (Level, st.sampled_from(Level)),
    (Point, st.builds(Point, x=st.integers(), y=st.integers())),
    (Cat, st.builds(Cat, lives=st.integers())),
    (Item, items),
    (Movie, st.fixed_dictionaries({"title": texts, "year": st.integers()})),
    (Order, st.builds(Order, st.uuids(), datetimes, st.lists(items), st.decimals(allow_nan=False))),
    (User, st.builds(User, name=texts, born=st.none() | st.dates(), scores=st.sets(st.integers()), ratio=floats)),
]
HASHABLE = (bool, int, str, bytes, dt.datetime, dt.date, UUID, Colour, Point, Cat)


def _hashables() -> st.SearchStrategy[tuple[Any, st.SearchStrategy[Any]]]:
    return st.sampled_from([leaf for leaf in LEAVES if leaf[0] in HASHABLE])


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def many(make: Any, collect: Callable[..., Any]) -> st.SearchStrategy[Any]:
        return inner.map(lambda x: (make(x[0]), collect(x[1])))

    return st.one_of(
        many(lambda t: _of(list, t), lambda v: st.lists(v, max_size=4)),
        many(lambda t: _of(tuple, t, ...), lambda v: st.lists(v, max_size=4).map(tuple)),
        many(lambda t: _of(tuple, t, int, t), lambda v: st.tuples(v, st.integers(), v)),
        many(lambda t: _of(dict, str, t), lambda v: st.dictionaries(texts, v, max_size=4)),
        many(lambda t: _of(dict, int, t), lambda v: st.dictionaries(st.integers(), v, max_size=4)),
        many(lambda t: t | None, lambda v: st.none() | v),
        many(lambda t: _of(Box, t), lambda v: st.builds(Box, v)),
        _hashables().map(lambda x: (_of(set, x[0]), st.sets(x[1], max_size=4))),
        _hashables().map(lambda x: (_of(frozenset, x[0]), st.frozensets(x[1], max_size=4))),
    )


def _of(generic: Any, *args: Any) -> Any:
    return generic[args if len(args) > 1 else args[0]]


annotated = st.recursive(st.sampled_from(LEAVES), _containers, max_leaves=4)


@settings(max_examples=200)
@given(annotated.flatmap(lambda pair: st.tuples(st.just(pair[0]), pair[1])))
def test_every_supported_value_comes_back_equal_and_of_its_type(pair: tuple[Any, Any]) -> None:
    annotation, value = pair
    back = there_and_back(value, annotation)
    assert back == value
    assert type(back) is type(value)
    assert repr(back) == repr(value) or _has_set(value)
    assert CODEC.decode(CODEC.encode_inputs(value, WHAT), annotation, WHAT) == value


def _has_set(value: object) -> bool:
    return "{" in repr(value)  # sets and dicts of sets print in any order


@pytest.mark.parametrize(("annotation", "strategy"), LEAVES, ids=lambda part: getattr(part, "__name__", ""))
def test_each_kind_of_value_comes_back(annotation: Any, strategy: st.SearchStrategy[Any]) -> None:
    @settings(max_examples=30)
    @given(strategy)
    def check(value: Any) -> None:
        back = there_and_back(value, annotation)
        assert (back, type(back)) == (value, type(value))

    check()


plain_json = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(plain_json)
@pytest.mark.parametrize("annotation", [Any, object, None, Signature.empty, NoReturn])
def test_annotations_without_information_give_plain_json(annotation: Any, value: object) -> None:
    assert there_and_back(value, annotation) == value


def test_a_nested_order_comes_back_whole() -> None:
    at = dt.datetime(2024, 2, 29, 23, 59, 59, 1, tzinfo=dt.UTC)
    order = Order(UUID(int=5), at, [Item("a", 2.5, {"x", "y"})], Decimal("1.50"), Colour.RED, {"k": [1, None]})
    assert there_and_back({"o": [(order, None)]}, dict[str, list[tuple[Order, None]]]) == {"o": [(order, None)]}


def test_tagged_structs_in_a_union_come_back_as_themselves() -> None:
    assert there_and_back([Cat(9), Dog(True)], list[Cat | Dog]) == [Cat(9), Dog(True)]


def test_integers_above_64_bits_are_exact() -> None:
    for big in (2**64, -(2**63) - 1, 10**4000):
        assert there_and_back({"n": [big]}, Any) == {"n": [big]}


def test_dict_keys_come_back_by_annotation_and_as_text_without() -> None:
    assert there_and_back({1: "a"}, dict[int, str]) == {1: "a"}
    assert there_and_back({1: "a"}, Any) == {"1": "a"}


def test_abstract_literal_new_and_annotated_types_decode() -> None:
    assert there_and_back([1], Sequence[int]) == [1]
    assert there_and_back({"a": 1}, Mapping[str, int]) == {"a": 1}
    assert there_and_back("on", Literal["on", "off"]) == "on"
    assert there_and_back("u1", NewType("UserId", str)) == "u1"
    assert there_and_back(5, Annotated[int, msgspec.Meta(ge=1)]) == 5
    assert there_and_back(5, Annotated[int, {"unhashable": []}]) == 5


class Slug(str):
    pass


def test_subclasses_of_text_and_numbers_come_back_by_annotation() -> None:
    assert CODEC.encode([Slug("a")], WHAT) == b'["a"]'
    back = there_and_back(Slug("a"), Slug)
    assert (back, type(back)) == ("a", Slug)
    with pytest.raises(NotDecodable):
        CODEC.decode(b"[1]", Slug, WHAT)


def test_raw_json_is_decoded_like_bytes_and_encoded_as_it_is() -> None:
    assert CODEC.decode(msgspec.Raw(b'{"name":"a"}'), Item, WHAT) == Item("a")
    assert CODEC.decode(msgspec.Raw(b'{"name":"a"}'), User, WHAT) == User(name="a")
    assert CODEC.encode({"a": msgspec.Raw(b"[1]")}, WHAT) == b'{"a":[1]}'


# --- pydantic -------------------------------------------------------------------------------------------------------


def test_pydantic_models_come_back_alone_and_nested() -> None:
    ann, bob = User(name="ann", born=dt.date(2000, 1, 2), scores={3, 1}), User(name="bob")
    assert there_and_back(ann, User) == ann
    assert there_and_back([ann, None], list[User | None]) == [ann, None]
    assert there_and_back(Team(ann, {"b": bob}), Team) == Team(ann, {"b": bob})


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    user_name: str = pydantic.Field(validation_alias="userName", serialization_alias="USER")
    at: dt.datetime
    pair: tuple[int, str]
    inner: User | None = None

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def shout(self) -> str:
        return self.user_name.upper()


def test_strict_models_with_aliases_and_computed_fields_come_back() -> None:
    at = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    model = Strict.model_validate({"userName": "x", "at": at, "pair": (1, "a"), "inner": User(name="u")})
    assert there_and_back(model, Strict) == model
    assert there_and_back({"m": [model]}, dict[str, list[Strict]]) == {"m": [model]}


class Response(pydantic.BaseModel, Generic[T]):
    body: T


def test_generic_and_root_models_come_back() -> None:
    assert there_and_back(Response[int](body=1), Response[int]) == Response[int](body=1)
    root = pydantic.RootModel[list[int]]
    assert there_and_back(root([1, 2]), root) == root([1, 2])


@pydantic.dataclasses.dataclass
class Parcel:
    weight: int
    owner: User


def test_pydantic_dataclasses_come_back() -> None:
    assert there_and_back(Parcel(1, User(name="a")), Parcel) == Parcel(1, User(name="a"))


def test_a_model_that_does_not_fit_says_why() -> None:
    for annotation, data in ((User, b'{"name":5}'), (list[User], b'[{"name":5}]')):
        with pytest.raises(NotDecodable, match="valid string"):
            CODEC.decode(data, annotation, WHAT)


def test_a_nan_in_a_pydantic_model_is_refused() -> None:
    with pytest.raises(NotSerializable) as refused:
        CODEC.encode({"u": [User(name="a", ratio=math.nan)]}, WHAT)
    assert refused.value.path == "$.u[0].ratio"


def test_a_model_that_writes_nan_as_text_may_hold_it() -> None:
    class Loose(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(ser_json_inf_nan="strings")
        x: float
        y: int | None = None

    assert math.isnan(there_and_back(Loose(x=math.nan), Loose).x)


def test_a_model_that_would_write_nan_as_no_json_is_refused() -> None:
    class Constant(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(ser_json_inf_nan="constants")
        x: float

    assert there_and_back(Constant(x=1), Constant) == Constant(x=1)
    assert _refusal([Constant(x=math.inf)]).path == "$[0]"


def test_what_pydantic_cannot_write_is_refused_at_its_path() -> None:
    class Odd(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
        thing: Any

    with pytest.raises(NotSerializable) as refused:
        CODEC.encode([1, Odd(thing=object())], WHAT)
    assert refused.value.path == "$[1]"
    assert "serialize unknown type" in refused.value.reason


# --- registered codecs ----------------------------------------------------------------------------------------------


def test_a_registered_type_comes_back_everywhere_in_a_value() -> None:
    codec = Codec([MONEY])
    five = Money(Decimal("5.00"), "EUR")
    bill = Bill(five, [five], {"a": None, "b": five})
    assert codec.encode(five, WHAT) == b'"5.00 EUR"'
    assert there_and_back(five, Money, codec) == five
    assert there_and_back(bill, Bill, codec) == bill
    assert there_and_back({five: {five}}, dict[Money, set[Money]], codec) == {five: {five}}


def test_a_subclass_is_stored_by_the_codec_of_its_nearest_base() -> None:
    codec = Codec([MONEY])
    assert codec.encode([Tip(Decimal(1), "EUR")], WHAT) == b'["1 EUR"]'
    nearer = Codec([MONEY, TypeCodec(Tip, encode=lambda tip: {"tip": str(tip)}, decode=lambda data: data["tip"])])
    assert nearer.encode([Tip(Decimal(1), "EUR"), Money(Decimal(1), "EUR")], WHAT) == b'[{"tip":"1 EUR"},"1 EUR"]'


def test_a_codec_may_return_what_needs_a_codec_itself() -> None:
    wrap = TypeCodec(complex, encode=lambda z: Money(Decimal(z.real), "R"), decode=lambda t: complex(t.split()[0]))
    assert there_and_back([2 + 0j], list[complex], Codec([MONEY, wrap])) == [2 + 0j]


@dataclasses.dataclass(frozen=True)
class Length:
    metres: float


@dataclasses.dataclass
class Trip:
    legs: list[Length]
    longest: Length | None = None
    at: dt.date | None = None
    back: Trip | None = None
    count: int = dataclasses.field(init=False, default=0)


class Track(msgspec.Struct, tag="track", rename="camel", frozen=True):
    full_length: Length
    maker: str | msgspec.UnsetType = msgspec.UNSET


class Row(msgspec.Struct, array_like=True):
    a: Length
    b: int = 3


class Leg(NamedTuple):
    length: Length
    number: int = 1


class Plan(TypedDict):
    goal: Length


LENGTH = TypeCodec(Length, encode=lambda x: f"{x.metres} m", decode=lambda text: Length(float(text.split()[0])))


@pytest.mark.parametrize(
    ("value", "annotation", "stored"),
    [
        (Length(1), Length, b'"1 m"'),
        ([Length(1.5)], list[Length], b'["1.5 m"]'),
        ({"a": (Length(2), None)}, dict[str, tuple[Length, Length | None]], b'{"a":["2 m",null]}'),
        (Box(Length(2)), Box[Length], b'{"inside":"2 m","next":null}'),
        (Track(Length(2)), Track, b'{"type":"track","fullLength":"2 m"}'),
        (Row(Length(2)), Row, b'["2 m",3]'),
        (Leg(Length(2)), Leg, b'["2 m",1]'),
        ({"goal": Length(2)}, Plan, b'{"goal":"2 m"}'),
        ({Length(2): 1}, dict[Length, int], b'{"2 m":1}'),
        (Length(3), Annotated[Length, "doc"], b'"3 m"'),
        (Item("unrelated"), Item, b'{"name":"unrelated","price":1.0,"tags":[]}'),
    ],
)
def test_a_codec_replaces_the_built_in_form_of_a_dataclass(value: object, annotation: Any, stored: bytes) -> None:
    codec = Codec([LENGTH])
    assert codec.encode(value, WHAT) == stored
    assert codec.decode(stored, annotation, WHAT) == value
    assert codec.decode(codec.encode_inputs(value, WHAT), annotation, WHAT) == value


def test_a_codec_reaches_into_classes_that_refer_to_themselves() -> None:
    codec = Codec([LENGTH])
    trip = Trip([Length(1)], Length(2), dt.date(2024, 1, 1), Trip([Length(3)]))
    trip.count = 7
    assert there_and_back(trip, Trip, codec) == trip
    with pytest.raises(NotDecodable, match="legs"):
        codec.decode(b"{}", Trip, WHAT)
    with pytest.raises(NotDecodable, match="Expected"):
        codec.decode(b"5", Trip, WHAT)


def test_a_codec_makes_a_mixed_enum_and_a_nan_storable() -> None:
    codec = Codec(
        [
            TypeCodec(Mixed, encode=lambda member: member.name, decode=Mixed.__getitem__),
            TypeCodec(float, encode=lambda x: x if math.isfinite(x) else str(x), decode=float),
        ]
    )
    assert there_and_back([Mixed.A, Mixed.B], list[Mixed], codec) == [Mixed.A, Mixed.B]
    assert there_and_back([1.5, math.inf, None], list[float | None], codec) == [1.5, math.inf, None]


def test_a_codec_that_fails_is_named_with_the_path() -> None:
    broken = Codec([TypeCodec(Money, encode=lambda m: 1 / 0, decode=lambda data: Mixed["no"])])
    with pytest.raises(NotSerializable) as refused:
        broken.encode({"a": [Money(Decimal(1), "EUR")]}, WHAT)
    assert refused.value.path == "$.a[0]"
    assert "ZeroDivisionError" in refused.value.reason
    with pytest.raises(NotDecodable, match="KeyError"):
        broken.decode(b'"x"', Money, WHAT)


def test_a_codec_that_never_becomes_plain_is_refused() -> None:
    for codec in (
        Codec([TypeCodec(Money, encode=lambda m: m, decode=lambda m: m)]),
        Codec([TypeCodec(Money, encode=lambda m: [m], decode=lambda m: m)]),
        Codec([TypeCodec(Length, encode=lambda m: [m], decode=lambda m: m)]),
    ):
        for value in (Money(Decimal(1), "EUR"), Length(1)):
            if codec._shapes.codec_for(type(value)):
                with pytest.raises(NotSerializable):
                    codec.encode([value], WHAT)


# --- what cannot be stored ------------------------------------------------------------------------------------------


class Opaque:
    pass


@dataclasses.dataclass
class Holder:
    x: Any = None


class Held(msgspec.Struct):
    x: Any = None


def _refusal(value: object) -> NotSerializable:
    with pytest.raises(NotSerializable) as refused:
        CODEC.encode(value, WHAT)
    with pytest.raises(NotSerializable) as again:
        CODEC.encode_inputs(value, WHAT)
    assert (again.value.path, again.value.reason) == (refused.value.path, refused.value.reason)
    assert refused.value.what == WHAT
    return refused.value


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda x: x, "$"),
        (lambda x: {"items": [1, 2, 3, Item("a", x)]}, "$.items[3].price"),
        (lambda x: {"a b": (None, x)}, "$['a b'][1]"),
        (lambda x: Holder(Held([{"k": x}])), "$.x.x[0].k"),
        (lambda x: [{x}], "$[0][0]"),
        (lambda x: [None, frozenset({x})], "$[1][0]"),
        (lambda x: Box(Point(1, x)), "$.inside[1]"),
    ],
)
def test_nan_and_infinities_are_refused_with_their_path(wrap: Callable[[float], object], path: str, bad: float) -> None:
    refusal = _refusal(wrap(bad))
    assert refusal.path == path
    assert repr(bad) in refusal.reason


def test_nulls_without_a_nan_are_stored() -> None:
    for value in (None, [None], {"null": 1.5}, "null", Holder(), Held(), User(name="n"), [Cat(1), None]):
        CODEC.encode(value, WHAT)


@pytest.mark.parametrize(
    ("value", "path"),
    [("\ud800", "$"), ({"a": ["ok", "x\udfff"]}, "$.a[1]"), ({"\ud800": 1}, "$"), (Holder("\ud800"), "$.x")],
)
def test_lone_surrogates_are_refused_with_their_path(value: object, path: str) -> None:
    refusal = _refusal(value)
    assert refusal.path == path
    assert "surrogate" in refusal.reason


@pytest.mark.parametrize(
    ("value", "path", "word"),
    [
        (Opaque(), "$", "test_codec.Opaque"),
        ({"a": [1, Opaque()]}, "$.a[1]", "Opaque"),
        (Holder((Held(Opaque()),)), "$.x[0].x", "Opaque"),
        ([1j], "$[0]", "complex"),
        (lambda: 1, "$", "function"),
        (Opaque, "$", "type"),
        (deque([1]), "$", "deque"),
        (ValueError("x"), "$", "ValueError"),
        ({"a": {(1, 2): 3}}, "$.a", "tuple"),
        ({None: 1}, "$", "NoneType"),
        ([{True: 1}], "$[0]", "bool"),
        ([10**5000], "$[0]", "4300 digits"),
    ],
)
def test_what_has_no_form_is_refused_with_its_path_and_type(value: object, path: str, word: str) -> None:
    refusal = _refusal(value)
    assert refusal.path == path
    assert word in refusal.reason
    assert "register a codec" in str(refusal)


def test_what_contains_itself_is_refused() -> None:
    a: list[Any] = [1]
    a.append({"again": a})
    b = Holder()
    b.x = [b]
    assert _refusal(a).path == "$[1].again"
    assert _refusal(b).path == "$.x[0]"
    assert "no end" in _refusal(a).reason


def test_a_set_with_a_decimal_nan_is_stored_in_order() -> None:
    value = {Decimal("NaN"), Decimal(1), Decimal(2)}
    assert CODEC.encode_inputs(value, WHAT) == b'["1","2","NaN"]'


def test_the_same_object_twice_is_not_a_circle() -> None:
    item = Item("a")
    assert there_and_back([item, item, {"k": item}], Any) == [{"name": "a", "price": 1.0, "tags": []}] * 2 + [
        {"k": {"name": "a", "price": 1.0, "tags": []}}
    ]


@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: {"a": x}, lambda x: Holder(x), lambda x: (x,)])
def test_absurd_depth_is_refused(wrap: Callable[[object], object]) -> None:
    value: object = 1
    for _ in range(100_000):
        value = wrap(value)
    refusal = _refusal(value)
    assert "nested more than" in refusal.reason
    assert len(refusal.path) < 1000


# --- what cannot be decoded -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("annotation", [Any, list, Item, Holder, User, list[User], Box[Any], dict[str, Any]])
@pytest.mark.parametrize(
    "data",
    [
        b"[" * 200_000,
        b'{"x":' * 200_000,
        b'{"inside":' * 200_000,
        b'{"name":"a","unknown":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'[{"name":"a","unknown":' + b"[" * 200_000 + b"]" * 200_000 + b"}]",
        b"",
        b"{",
        b'"\xff"',
        b'"\\ud800"',
        b"nul",
        b"NaN",
        b"1e999",
        b"9" * 5000,
        b'{"a":1,}',
        b"\x00",
    ],
    ids=range(15),
)
def test_hostile_bytes_are_refused_and_nothing_worse(annotation: Any, data: bytes) -> None:
    with pytest.raises(NotDecodable):
        CODEC.decode(data, annotation, WHAT)
    with pytest.raises(NotDecodable):
        CODEC.decoder(annotation)(data)


@given(st.binary(max_size=50))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    for annotation in (Any, Order, User, dict[int, bytes], list[dt.datetime]):
        try:
            CODEC.decode(data, annotation, WHAT)
        except NotDecodable:
            pass


def test_a_value_that_does_not_fit_names_what_the_type_and_the_place() -> None:
    with pytest.raises(NotDecodable) as refused:
        CODEC.decode(b'[{"name":"a","price":"x"}]', list[Item], WHAT)
    assert refused.value.what == WHAT
    assert "Item" in refused.value.type
    assert "$[0].price" in refused.value.reason


@dataclasses.dataclass
class Apple:
    a: int


@dataclasses.dataclass
class Pear:
    b: int


class Secret:
    pass


def test_an_ambiguous_union_is_refused_with_the_cure() -> None:
    for annotation in (Apple | Pear, list[Apple | Pear], str | bytes, User | int):
        with pytest.raises(NotDecodable) as refused:
            CODEC.decoder(annotation, "the result of pick")
        assert refused.value.type.replace("typing.", "") == repr(annotation).replace("typing.", "")
        assert "the result of pick" in str(refused.value)
        assert "tag=True" in str(refused.value)


@pytest.mark.parametrize(
    "annotation",
    [
        complex,
        Secret,
        list[Secret],
        dict[str, Secret | None],
        Box[Secret],
        Callable[[int], int],
        type[int],
        deque[int],
        OrderedDict[str, int],
        defaultdict[str, int],
        Mixed,
        "Unknown",
        list["Unknown"],  # type: ignore[name-defined]  # noqa: F821
    ],
    ids=str,
)
def test_an_unsupported_annotation_is_refused_with_the_cure(annotation: Any) -> None:
    for ask in (lambda: CODEC.decoder(annotation), lambda: CODEC.decode(b"null", annotation, WHAT)):
        with pytest.raises(NotDecodable, match="register a codec"):
            ask()


def test_an_annotation_that_cannot_be_resolved_is_refused_at_once() -> None:
    @dataclasses.dataclass
    class Lost:
        x: Missing  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(NotDecodable, match="Missing"):
        CODEC.decoder(Lost)


def test_attrs_classes_work_and_private_attributes_are_refused() -> None:
    attrs = pytest.importorskip("attrs")
    public = attrs.make_class("Public", {"x": attrs.field(type=int)})
    private = attrs.make_class("Private", {"_x": attrs.field(type=int, default=1)})
    assert there_and_back(public(x=1), public) == public(x=1)
    with pytest.raises(NotDecodable, match="private attribute _x"):
        CODEC.decoder(private)


def test_decoders_are_made_once() -> None:
    codec = Codec()
    codec.decode(b"[1]", list[int], WHAT)
    first = codec._decoders[list[int]]
    codec.decode(b"[1]", list[int], WHAT)
    codec.decoder(list[int])
    assert codec._decoders[list[int]] is first


# --- one order in every process -------------------------------------------------------------------------------------

SCRIPT = """
import sys
sys.path.insert(0, {src!r})
import dataclasses, datetime, enum, uuid, decimal
import msgspec, pydantic
from perdure.kernel.values.codec import Codec, TypeCodec
from perdure.kernel.values.value_versions import Versions

class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"

@dataclasses.dataclass(frozen=True)
class Tag:
    name: str

@dataclasses.dataclass(frozen=True)
class Rank:
    place: int
    name: str
    def __lt__(self, other): return self.place < other.place

class User(pydantic.BaseModel):
    tags: set[str]
    inner: dict[str, frozenset[str]]

class Row(msgspec.Struct, array_like=True):
    first: frozenset

class Plain:
    def __init__(self, name): self.name = name
    def __lt__(self, other): return False

words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
pairs = set(zip(words, reversed(words)))
values = [
    set(words),
    [frozenset(words)],
    ([set(words)], {{"k": set(words)}}),
    {{"z": 1, "a": set(words)}},
    {{frozenset(words[:3]), frozenset(words[3:5]), frozenset(words[5:])}},
    [{{frozenset(words[:3]), frozenset(words[3:5]), frozenset(words[5:])}}],
    ([], {{"a": {{frozenset([w]) for w in words}}}}),
    {{(w, frozenset(words)) for w in words}},
    pairs,
    {{1, 2.5, *words, None, b"x"}},
    {{Tag(w) for w in words}},
    [1, {{Rank(1, w) for w in words}}],
    set(Colour),
    {{Colour.RED: 1, Colour.BLUE: set(words)}},
    {{2: set(words), 1: 1, "1x": 2}},
    User(tags=set(words), inner={{w: frozenset(words) for w in set(words)}}),
    [[User(tags=set(words), inner={{}})], Tag("x")],
    Row(frozenset(frozenset([w]) for w in words)),
    {{uuid.UUID(int=i) for i in range(9)}},
    {{w: 1 for w in set(words)}},
]
codec = Codec()
for value in values:
    sys.stdout.buffer.write(codec.encode_inputs(value, "x") + b"\\n")
codec = Codec([TypeCodec(Plain, lambda p: p.name, Plain), TypeCodec(Tag, lambda t: t.name, Tag)])
for value in [[{{Plain(w) for w in words}}], {{"a": {{Tag(w) for w in words}}}}, *values]:
    sys.stdout.buffer.write(codec.encode_inputs(value, "x") + b"\\n")
"""


def test_inputs_have_the_same_bytes_in_every_process() -> None:
    source = os.path.dirname(os.path.dirname(os.path.dirname(sys.modules[Codec.__module__].__file__ or "")))
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT.format(src=source)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("0", "1", "2", "12345")
    }
    assert len(outputs) == 1
    assert len(outputs.pop().splitlines()) == 42


@given(st.dictionaries(texts | st.integers(), plain_json, max_size=5), st.randoms())
def test_inputs_do_not_depend_on_the_order_of_keys(value: dict[Any, Any], random: Any) -> None:
    keys = list(value)
    random.shuffle(keys)
    if len({str(key) for key in keys}) == len(keys):
        shuffled = {key: value[key] for key in keys}
        assert CODEC.encode_inputs(shuffled, WHAT) == CODEC.encode_inputs(value, WHAT)


@dataclasses.dataclass
class Crate:
    weight: int
    note: str = ""


@dataclasses.dataclass
class LabelledCrate(Crate):
    label: str = "none"
    places: list[str] = dataclasses.field(default_factory=list)


class Sized:
    __slots__ = ("size",)


@dataclasses.dataclass
class SizedCrate(Sized):
    size: int
    colour: str = "red"


@pytest.mark.parametrize(
    ("cls", "data"),
    [(Crate, b'{"weight":1}'), (LabelledCrate, b'{"weight":1,"note":"a"}'), (SizedCrate, b'{"size":1}')],
)
@pytest.mark.parametrize("encode", [Codec.encode, Codec.encode_inputs])
def test_a_type_with_a_version_elsewhere_changes_no_other_value(
    cls: type, data: bytes, encode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = {"it": [CODEC.decode(msgspec.Raw(data), cls, WHAT)]}
    monkeypatch.setattr(Versions, "anywhere", False)
    without = encode(Codec(), value, WHAT)
    monkeypatch.setattr(Versions, "anywhere", True)
    assert encode(Codec(), value, WHAT) == without


class Pair(NamedTuple):
    data: bytes
    at: dt.date


@pytest.mark.parametrize(
    ("encoded", "got"),
    [
        (OrderedDict(data=b"\xff"), {"data": b"\xff"}),
        (defaultdict(list, data=[b"\xff"]), {"data": [b"\xff"]}),
        (Pair(b"\xff", dt.date(2026, 1, 2)), [b"\xff", dt.date(2026, 1, 2)]),
        ([OrderedDict({1: (b"\xff",)})], [{1: [b"\xff"]}]),
    ],
)
def test_a_codec_gets_back_what_stands_in_dicts_and_lists_of_any_class(encoded: object, got: object) -> None:
    decoded: list[object] = []

    def decode(stored: object) -> Money:
        decoded.append(stored)
        return Money(Decimal(1), "EUR")

    codec = Codec([TypeCodec(Money, encode=lambda money: encoded, decode=decode)])
    codec.decode(msgspec.Raw(codec.encode(Money(Decimal(1), "EUR"), WHAT)), Money, WHAT)
    assert decoded == [got]


class Sparse(msgspec.Struct, omit_defaults=True, rename="camel", tag="sparse"):
    first_one: int = 1
    currency: str = "EUR"
    places: list[str] = []
    more: dict[str, int] = msgspec.field(default_factory=dict)
    share: float | None = None


class SparseRow(msgspec.Struct, omit_defaults=True, array_like=True):
    cents: int
    currency: str = "EUR"


@pytest.mark.parametrize(
    "value",
    [Sparse(), Sparse(2, "CHF", ["a"], {"b": 1}, 0.5), Sparse(currency="".join(["EU", "R"])), SparseRow(5)],
    ids=["defaults", "others", "an equal text", "by position"],
)
@pytest.mark.parametrize("encode", [Codec.encode, Codec.encode_inputs])
def test_nor_does_it_store_what_a_struct_leaves_out(
    value: object, encode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Versions, "anywhere", False)
    without = encode(Codec(), [value], WHAT)
    monkeypatch.setattr(Versions, "anywhere", True)
    assert encode(Codec(), [value], WHAT) == without
