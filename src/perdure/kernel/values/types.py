"""The shapes of types: how a value is converted to plain data, and what in it cannot be stored.

Walks values in Python, so it serves the slow paths of the codec only: the search for NaN, error paths, unordered sets
and codecs for types that msgspec would otherwise encode natively. Never encodes bytes on the hot path.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from types import CoroutineType
from typing import Any, Generic, Literal, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from perdure.errors import NOT_AWAITED
from perdure.kernel.values.models import is_model, keeps_nan, model_items, model_json, ordered_model
from perdure.kernel.values.raised import brief, is_a, pressed
from perdure.kernel.values.value_versions import VERSION, Versions, versions_of

T = TypeVar("T")

# Deeper values are refused by Python 3.11's recursion limit; later versions allow a little more.
DEPTH = 1000

LEAVES: frozenset[type] = frozenset(
    {str, int, bool, type(None), bytes, bytearray, memoryview, dt.datetime, dt.date, dt.time, dt.timedelta}
    | {UUID, Decimal, msgspec.Raw, msgspec.UnsetType}
)
# Sets of these have one sorted order. Frozensets do not: `<` means inclusion.
_ORDERED = LEAVES | {float}

# The tag on values in a codec's output that JSON would return as text or a list.
TAG = "$perdure"
_TAGGED: dict[type, type] = {
    **{cls: cls for cls in (bytes, bytearray, dt.datetime, dt.date, dt.time, dt.timedelta, UUID, Decimal)},
    memoryview: bytes,
}
_BY_NAME = {cls.__name__: made for cls, made in _TAGGED.items()}

Kind = Literal["leaf", "float", "items", "set", "map", "record", "enum", "model", "scalar", "codec", "alien"]


@dataclass(frozen=True, slots=True)
class TypeCodec(Generic[T]):
    """How to store a type that JSON does not know: to plain data and back.

    Engine(codecs=[TypeCodec(Money, encode=str, decode=Money.parse)])

    `encode` returns JSON, optionally with bytes, dates and times, Decimal, UUID, sets, and dicts with such keys; and
    `decode` gets the same. Tuples come back as lists; other types (dataclasses, Enums, types with a codec) as their
    stored form. A subclass without its own codec uses that of its nearest base, and comes back as what `decode`
    returns. A codec also replaces the built-in form of a dataclass, an Enum or any other type that needs none.
    """

    type: type[T]
    encode: Callable[[T], Any]
    decode: Callable[[Any], T]


class PlainForm:
    """A class whose values are stored as the list or the dict that they give."""

    __slots__ = ()

    @property
    def plain(self) -> Any:
        """The list or dict that is stored."""
        raise NotImplementedError

    @classmethod
    def made(cls, plain: Any, convert: Callable[[Any, Any], Any]) -> Any:
        """A value of this class from what was stored; `convert` decodes a part of it by an annotation."""
        raise NotImplementedError


class Shape(NamedTuple):
    """How values of one type are converted to plain data."""

    kind: Kind
    names: tuple[tuple[str, str], ...] = ()  # of a record: (stored name, attribute)
    children: Callable[[Any], Iterable[Any]] = lambda value: ()
    codec: TypeCodec[Any] | None = None


class Found(NamedTuple):
    """What in a value cannot be stored: its path and the reason."""

    path: str
    reason: str


def _in_one_order(item: Any) -> bytes:
    try:
        return msgspec.json.encode(item, order="deterministic")
    except TypeError:  # encoded by its own codec, so there is no known order
        return repr(item).encode()


def _untagged(stored: Any) -> Any:
    """The output of a codec's `encode`, from its stored form."""
    if type(stored) is list:
        return [_untagged(item) for item in stored]
    if type(stored) is not dict:
        return stored
    tag = stored.get(TAG)
    if tag is None or len(stored) != 2 or "value" not in stored:
        return {key: _untagged(item) for key, item in stored.items()}
    value = stored["value"]
    if tag == "dict":
        return {_untagged(key): _untagged(item) for key, item in value}
    if tag in ("set", "frozenset"):
        items = map(_untagged, value)
        return set(items) if tag == "set" else frozenset(items)
    if tag in _BY_NAME:
        return msgspec.convert(value, _BY_NAME[tag])
    raise ValueError(f"it was stored as a {tag!r:.40}, which this version of perdure does not know")


def name_of(annotation: object) -> str:
    """The name of a type for messages, close to how its author wrote it."""
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return annotation.__qualname__ if annotation.__module__ == "builtins" else _full_name(annotation)
    return repr(annotation).replace("typing.", "")


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def record_fields(cls: type) -> tuple[tuple[str, str], ...] | None:
    """(stored name, attribute) of the fields of a Struct, dataclass or attrs class; None for any other class."""
    if issubclass(cls, msgspec.Struct):
        return tuple(zip(cls.__struct_encode_fields__, cls.__struct_fields__, strict=True))
    if dataclasses.is_dataclass(cls):
        return tuple((field.name, field.name) for field in dataclasses.fields(cls))
    attributes = getattr(cls, "__attrs_attrs__", None)
    if attributes is not None:
        return tuple((attribute.name, attribute.name) for attribute in attributes)
    return None


class Shapes:
    """The shape of every type met so far, registered codecs first."""

    def __init__(self, codecs: Iterable[TypeCodec[Any]] = ()) -> None:
        self.codecs: dict[type, TypeCodec[Any]] = {codec.type: self._exact(codec) for codec in codecs}
        # Codecs for types with a version; `make_record` is set by `Annotations`.
        self._versioned: dict[type, TypeCodec[Any]] = {}
        self.make_record: Callable[[type, Any], Any] = lambda cls, value: value
        self._shapes: dict[type, Shape] = {}
        # Whether basic types need no lookup, because no codec is registered for one of them.
        self._basic = not any(self.codec_for(cls) for cls in (*LEAVES, float, list, tuple, dict))

    def _exact(self, codec: TypeCodec[Any]) -> TypeCodec[Any]:
        """Wrap a codec so that `decode` gets exactly what `encode` returned, also types that JSON does not have."""
        return TypeCodec(
            codec.type,
            lambda value: self._tagged(codec.encode(value)),
            lambda stored: codec.decode(_untagged(stored)),
        )

    def _tagged(self, value: Any) -> Any:
        """The output of a codec, with tags on what JSON would return as text or a list."""
        cls = type(value)
        if cls is str or value is None or cls is bool or cls is int or cls is float:
            return value
        if self.codec_for(cls) is not None:
            return value  # encoded by its own codec
        if issubclass(cls, list | tuple):
            return [self._tagged(item) for item in value]
        if issubclass(cls, dict):
            if all(type(key) is str for key in value) and TAG not in value:
                return {key: self._tagged(item) for key, item in value.items()}
            pairs = [[self._tagged(key), self._tagged(item)] for key, item in value.items()]
            return {TAG: "dict", "value": pairs}
        if cls is set or cls is frozenset:
            return {TAG: cls.__name__, "value": sorted((self._tagged(item) for item in value), key=_in_one_order)}
        if cls in _TAGGED:
            return {TAG: cls.__name__, "value": bytes(value) if cls in (bytearray, memoryview) else value}
        return value

    def codec_for(self, cls: type) -> TypeCodec[Any] | None:
        """The codec of the class or of its nearest base."""
        if self.codecs:
            for base in cls.__mro__:
                if base in self.codecs:
                    return self.codecs[base]
        versions = versions_of(cls) if Versions.anywhere else None
        if versions is None:
            return None
        if cls not in self._versioned:
            self._versioned[cls] = self._with_version(cls, versions)
        return self._versioned[cls]

    def _with_version(self, cls: type, versions: Versions) -> TypeCodec[Any]:
        """The codec of a type with a version: its fields, with the version beside them."""
        names = record_fields(cls)
        config = getattr(cls, "__struct_config__", None)
        without_fields = (names is None and not is_model(cls)) or (config is not None and config.array_like)

        def encode(value: Any) -> dict[str, Any]:
            if without_fields:
                raise TypeError(
                    f"{_full_name(cls)} has a version, and only what is stored as an object with fields can have one: "
                    "dataclasses, Structs, attrs classes and pydantic models"
                )
            if names is None:
                return {VERSION: versions.version, **ordered_model(value)}
            tag = {config.tag_field: config.tag} if config is not None and config.tag is not None else {}
            given = ((stored, getattr(value, attribute, msgspec.UNSET)) for stored, attribute in names)
            fields = {stored: item for stored, item in given if item is not msgspec.UNSET}
            return {VERSION: versions.version, **tag, **fields}

        def decode(value: Any) -> Any:
            today = versions.current_form(cls, value)
            return today if isinstance(today, cls) else self.make_record(cls, today)

        return TypeCodec(cls, encode, decode)

    def of(self, cls: type) -> Shape:
        shape = self._shapes.get(cls)
        if shape is None:
            shape = self._shapes[cls] = self._shape(cls)
        return shape

    def _shape(self, cls: type) -> Shape:
        codec = self.codec_for(cls)
        if codec is None and issubclass(cls, PlainForm):
            codec = TypeCodec(cls, lambda value: value.plain, lambda stored: stored)
        if codec is not None:
            return Shape("codec", children=lambda value: self._encoded(value, codec), codec=codec)
        if cls in LEAVES:
            return Shape("leaf")
        if cls is float:
            return Shape("float")
        if issubclass(cls, Enum):
            return Shape("enum", children=lambda value: (value.value,))
        names = record_fields(cls)
        if names is not None:
            return Shape("record", names=names, children=_getter(names))
        if issubclass(cls, dict):
            return Shape("map", children=dict.values)
        if issubclass(cls, (set, frozenset)):
            return Shape("set", children=iter)
        if issubclass(cls, (list, tuple)):
            return Shape("items", children=iter)
        if is_model(cls):
            return Shape("model", children=lambda value: (child for _, child in model_items(value)))
        if issubclass(cls, (str, int, float)):
            return Shape("scalar", children=lambda value: (base_value(value),))
        return Shape("alien")

    def _encoded(self, value: object, codec: TypeCodec[Any]) -> tuple[object, ...]:
        """The output of a codec; nothing if it has the same type again, which is then plain."""
        made = codec.encode(value)
        return () if self.codec_for(type(made)) is codec else (made,)

    # --- searches ---------------------------------------------------------------------------------------------------

    def has_nan(self, value: object) -> bool:
        """Whether a value that msgspec has encoded, and so is finite, holds a NaN or an infinity."""
        basic, shapes = self._basic, self._shapes
        queue: list[Any] = [value]
        for item in queue:  # grows while it is walked
            cls = type(item)
            if basic:
                if cls in LEAVES:
                    continue
                if cls is float:
                    if item - item != 0.0:  # true only of NaN and the infinities
                        return True
                    continue
                if cls is list or cls is tuple:
                    queue.extend(item)
                    continue
                if cls is dict:
                    queue.extend(item.values())
                    continue
            shape = shapes.get(cls) or self.of(cls)
            if shape.kind == "record":
                queue.extend(shape.children(item))
            elif shape.kind == "float":
                if item - item != 0.0:
                    return True
            elif shape.kind != "model" or not keeps_nan(cls):
                queue.extend(shape.children(item))
        return False

    def is_ordered(self, value: object) -> bool:
        """Whether sorting by `<` gives the sets in a value, which msgspec has encoded, a unique order."""
        queue: list[Any] = [value]
        for item in queue:
            cls = type(item)
            if cls in _ORDERED:
                continue
            shape = self.of(cls)
            if shape.kind == "set" and not all(type(element) in _ORDERED for element in item):
                return False
            queue.extend(shape.children(item))
        return True

    def find(self, value: object) -> Found | None:
        """The first part of a value that cannot be stored, in the order of encoding."""
        # `trusted` parts are inside a value that encodes itself: only a NaN can be wrong there.
        stack: list[tuple[object, _Place, bool]] = [(value, _Place(None, "", None, 0), False)]
        while stack:
            item, place, trusted = stack.pop()
            shape = self.of(type(item))
            if shape.kind in ("leaf", "float", "scalar", "alien"):
                reason = _nan_trouble(item) if trusted else _trouble(item)
                if reason:
                    return Found(place.path(), reason)
                continue
            if place.depth >= DEPTH:
                return Found(place.path(), f"is nested more than {DEPTH} levels deep")
            if place.holds(item):
                return Found(place.path(), "refers back to something it is in, so it has no end")
            try:
                steps = list(self._steps(item, shape))
            except BaseException as problem:
                if pressed(problem):
                    raise
                return Found(place.path(), f"cannot be encoded ({brief(problem)})")
            if isinstance(item, dict) and not trusted:
                for reason in map(self._key_trouble, item):
                    if reason:
                        return Found(place.path(), reason)
            trusted = trusted or shape.kind == "model"
            stack.extend((child, _Place(place, step, item, place.depth + 1), trusted) for step, child in steps[::-1])
        return None

    def _steps(self, item: Any, shape: Shape) -> Iterator[tuple[str, object]]:
        """The children of a value, each with its path segment."""
        if shape.kind == "record":
            for stored, attribute in shape.names:
                if hasattr(item, attribute):
                    yield _member(stored), getattr(item, attribute)
        elif shape.kind == "map":
            for key, child in item.items():
                yield _member(key), child
        elif shape.kind == "model":
            model_json(item)  # pydantic reports what is wrong with it
            if not keeps_nan(type(item)):
                for key, child in model_items(item):
                    yield _member(key), child
        elif shape.kind in ("items", "set"):
            for index, child in enumerate(item):
                yield f"[{index}]", child
        else:
            for child in shape.children(item):
                yield "", child

    def _key_trouble(self, key: object) -> str | None:
        try:
            msgspec.json.encode({self._plain_key(key): 0})
        except UnicodeEncodeError:
            return f"has the key {str(key)[:60]!r} with a lone surrogate, which UTF-8 cannot hold"
        except BaseException as problem:
            if pressed(problem):
                raise
            return f"has a key of type {_full_name(type(key))}, and keys in JSON are texts or numbers"
        return None

    # --- plain data -------------------------------------------------------------------------------------------------

    def plain(self, value: Any, ordered: bool) -> Any:
        """Convert a value to dicts, lists and leaves, with every codec applied.

        `ordered` sorts sets and keys by their encoded bytes, which is one order for all values and all processes.
        """
        shape = self.of(type(value))
        match shape.kind:
            case "codec":
                assert shape.codec is not None
                made = shape.codec.encode(value)
                return made if self.codec_for(type(made)) is shape.codec else self.plain(made, ordered)
            case "items":
                return [self.plain(item, ordered) for item in value]
            case "set":
                items = [self.plain(item, ordered) for item in value]
                return sorted(items, key=msgspec.json.encode) if ordered else items
            case "map":
                pairs = [(self._plain_key(key), self.plain(item, ordered)) for key, item in value.items()]
                return dict(sorted(pairs, key=_encoded_key) if ordered else pairs)
            case "record":
                return self._plain_record(value, shape, ordered)
            case "enum":
                return self.plain(value.value, ordered)
            case "scalar":
                return base_value(value)
            case "model":
                return ordered_model(value) if ordered else msgspec.Raw(model_json(value))
            case _:
                return value

    def _plain_key(self, key: object) -> Any:
        return key if type(key) is str and self._basic else self.plain(key, False)

    def _plain_record(self, value: Any, shape: Shape, ordered: bool) -> Any:
        fields = {
            stored: self.plain(getattr(value, attribute), ordered)
            for stored, attribute in shape.names
            if getattr(value, attribute, msgspec.UNSET) is not msgspec.UNSET and not _is_left_out(value, attribute)
        }
        if isinstance(value, msgspec.Struct):
            config = value.__struct_config__
            if config.tag is not None and config.tag_field is not None:
                fields = {config.tag_field: config.tag, **fields}
            if config.array_like:
                return list(fields.values())
        return fields


_STORED = (msgspec.NODEFAULT, None)


@lru_cache(maxsize=1024)
def _left_out(cls: type[msgspec.Struct]) -> dict[str, tuple[Any, Any]]:
    """The defaults that a Struct does not store, by attribute, each with its factory."""
    config = cls.__struct_config__
    if not config.omit_defaults or config.array_like:
        return {}
    return {one.name: (one.default, one.default_factory) for one in msgspec.structs.fields(cls)}


def _is_left_out(value: object, attribute: str) -> bool:
    """Whether msgspec stores nothing for a field: its Struct leaves out defaults, or only its class has the value.

    `Shapes.plain` leaves it out too, so that what is stored does not depend on a type with a version elsewhere.
    """
    if isinstance(value, msgspec.Struct):
        default, factory = _left_out(type(value)).get(attribute, _STORED)
        item = getattr(value, attribute)
        # As msgspec compares them: by identity, and the empty collections of a factory.
        return item is default or (type(item) is factory and factory in (list, dict, set) and not item)
    return (
        attribute not in getattr(value, "__dict__", (attribute,))
        and dataclasses.is_dataclass(value)
        and not inspect.isdatadescriptor(inspect.getattr_static(type(value), attribute, None))
    )


class _Place(NamedTuple):
    """A step of a walk through a value; `owner` is the container it was reached from."""

    parent: _Place | None
    step: str
    owner: object
    depth: int

    def path(self) -> str:
        steps: list[str] = []
        place: _Place | None = self
        while place is not None:
            steps.append(place.step)
            place = place.parent
        steps.reverse()
        if len(steps) > 40:  # shorten paths of deeply nested values
            steps[20:-20] = ["…"]
        return "$" + "".join(steps)

    def holds(self, item: object) -> bool:
        place: _Place | None = self
        while place is not None:
            if place.owner is item:
                return True
            place = place.parent
        return False


def base_value(value: Any) -> Any:
    """Strip the subclass from a str, int or float."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bool):
        return value
    return int.__int__(value) if isinstance(value, int) else float.__float__(value)


def _getter(names: tuple[tuple[str, str], ...]) -> Callable[[Any], Iterable[Any]]:
    if not names:
        return lambda value: ()
    attributes = [attribute for _, attribute in names]
    get = attrgetter(*attributes)

    def children(value: Any) -> Iterable[Any]:
        try:
            return get(value) if len(attributes) > 1 else (get(value),)
        except AttributeError:  # a field that was never set is not stored either
            return [getattr(value, attribute) for attribute in attributes if hasattr(value, attribute)]

    return children


def _encoded_key(pair: tuple[Any, Any]) -> bytes:
    return msgspec.json.encode({pair[0]: 0})


def _member(key: object) -> str:
    if isinstance(key, str) and key.isidentifier():
        return f".{key}"
    return f"[{(key if isinstance(key, str) else repr(key))[:60]!r}]"


def _nan_trouble(value: object) -> str | None:
    if is_a(value, float) and value - value != 0.0:
        return f"is {float.__repr__(value)}, which JSON cannot hold"
    return None


def _trouble(value: object) -> str | None:
    """Why a single value cannot be stored, or None when it can."""
    if reason := _nan_trouble(value):
        return reason
    try:
        msgspec.json.encode(base_value(value) if is_a(value, (str, int, float)) else value)
    except UnicodeEncodeError as problem:
        return f"holds a lone surrogate at character {problem.start}, which UTF-8 cannot hold"
    except TypeError:
        if is_a(value, CoroutineType):
            return f"is the coroutine {value.__name__}(...), {NOT_AWAITED}"
        return f"is of type {_full_name(type(value))}, which has no form in JSON"
    except BaseException as problem:
        if pressed(problem):
            raise
        return f"cannot be encoded ({brief(problem)})"
    return None
