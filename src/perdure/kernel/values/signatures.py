"""The signature of a program as plain data, for callers that do not have it. Refuses only what the program would.

A schema here is JSON Schema, and looser than the type it is of: what a type says beyond it (patterns, codecs, models
and hooks of the user's) is left to the worker that has the type.
"""

from __future__ import annotations

import datetime as dt
import inspect
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from inspect import Parameter
from types import NoneType
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Raw
from msgspec import inspect as types

from perdure.kernel.values.items import KEY

_TEXTS = (
    *(types.BytesType, types.ByteArrayType, types.MemoryViewType, types.DateTimeType, types.DateType),
    *(types.TimeType, types.TimeDeltaType, types.UUIDType),
)
_OBJECTS = (types.StructType, types.DataclassType, types.TypedDictType)
_KINDS = (
    *(Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.VAR_POSITIONAL),
    *(Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD),
)


# What a default is shown as if it is of one of these types: the text of any other is code of the user's.
_SHOWN = frozenset({int, float, bool, str, bytes, NoneType, dt.datetime, dt.date, dt.time, dt.timedelta, Decimal, UUID})


class _Default:
    """A default that is not shown."""

    def __repr__(self) -> str:
        return "..."


class Taken(msgspec.Struct, frozen=True, omit_defaults=True):
    """A parameter of a program: its type as the author wrote it, its kind as `inspect` numbers it, and its schema."""

    name: str
    type: str
    kind: int = int(Parameter.POSITIONAL_OR_KEYWORD)
    required: bool = True
    schema: Raw = Raw(b"{}")


def shown(signature: inspect.Signature) -> str:
    """How a function is called, for messages."""
    parameters = [
        one if one.default is one.empty or type(one.default) in _SHOWN else one.replace(default=_Default())
        for one in signature.parameters.values()
    ]
    return str(signature.replace(parameters=parameters)).replace("'", "")


class Misfit(msgspec.Struct, frozen=True):
    """Why input does not fit: the argument (empty when the call as a whole is wrong), its type, and the reason."""

    argument: str
    type: str
    reason: str


class Signature(msgspec.Struct, frozen=True):
    """The parameters of a program, without its result type and the values of its defaults."""

    parameters: tuple[Taken, ...]

    def __str__(self) -> str:
        """How it is called, for messages."""
        return str(inspect.Signature(list(self._plain()))).replace("'", "").replace("= Ellipsis", "= ...")

    def misfit(self, input: bytes) -> Misfit | None:
        """Why a program cannot be called with stored input; None if there is no known reason."""
        values = msgspec.json.decode(input)
        try:
            given = self._given(values)
        except TypeError as error:
            return Misfit("", "", str(error))
        for taken in self.parameters:
            if taken.name in given and not _is_reference(given[taken.name]):
                for value in _values(taken, given[taken.name]):
                    reason = _unfit(bytes(taken.schema), value)
                    if reason is not None:
                        return Misfit(taken.name, taken.type, reason)
        return None

    def named(self, input: bytes) -> bytes:
        """Input that fits as an object by parameter name, also where it was given by position."""
        values = msgspec.json.decode(input, type=dict[str, Raw] | list[Raw])
        if isinstance(values, dict):
            return input
        return msgspec.json.encode(inspect.Signature(list(self._plain())).bind(*values).arguments)

    def _given(self, values: Any) -> dict[str, Any]:
        """The arguments by name, from an object or a list. Raises TypeError if they do not fit the parameters."""
        if isinstance(values, list):
            return dict(inspect.Signature(list(self._plain())).bind(*values).arguments)
        missing = [taken.name for taken in self.parameters if taken.required and taken.name not in values]
        if missing:
            raise TypeError(f"missing a required argument: {missing[0]!r}")
        unknown = sorted(values.keys() - {taken.name for taken in self.parameters})
        more = next((taken.name for taken in self.parameters if taken.kind == Parameter.VAR_KEYWORD), "")
        if unknown and not more:
            raise TypeError(f"got an unexpected keyword argument {unknown[0]!r}")
        given = {name: value for name, value in values.items() if name not in unknown}
        return (
            {**given, more: {**given.get(more, {}), **{name: values[name] for name in unknown}}} if unknown else given
        )

    def _plain(self) -> Iterator[Parameter]:
        for taken in self.parameters:
            kind = _KINDS[taken.kind]
            variable = kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
            default = Parameter.empty if taken.required or variable else ...
            yield Parameter(taken.name, kind, default=default, annotation=taken.type)


def packed(signatures: Mapping[str, Signature], size: int) -> tuple[str, list[str]]:
    """Encode signatures by program name as texts of at most `size` characters, with their digest."""
    if not signatures:
        return "", []
    text = b64encode(zlib.compress(msgspec.json.encode(signatures, order="deterministic"))).decode()
    return _digest(text), [text[start : start + size] for start in range(0, len(text), size)]


def unpacked(digest: str, parts: Sequence[str]) -> dict[str, Signature] | None:
    """The inverse of `pack`; None if parts are missing or a later version wrote them."""
    text = "".join(parts)
    if _digest(text) != digest:
        return None
    try:
        return msgspec.json.decode(zlib.decompress(b64decode(text)), type=dict[str, Signature])
    except (msgspec.MsgspecError, ValueError, zlib.error):
        return None


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=12).hexdigest()


def schema_of(info: types.Type, described: bool = False) -> dict[str, Any]:
    """A schema that every value decodable as this type fits; empty if none is known.

    `described`: with the names of types, defaults, formats and every limit.
    """
    defined: dict[str, dict[str, Any]] = {}
    schema = (_Described if described else _Schemas)(defined).of(info)
    return {**schema, "$defs": defined} if defined else schema


class _Schemas:
    """Builds the schema of a type, with `$defs` for types that may be recursive."""

    def __init__(self, defined: dict[str, dict[str, Any]]) -> None:
        self._defined = defined
        self._names: dict[int, str] = {}

    def of(self, info: Any) -> dict[str, Any]:
        match info:
            case types.Metadata():
                return self.of(info.type)
            case types.NoneType():
                return {"type": "null"}
            case types.BoolType():
                return {"type": "boolean"}
            case types.IntType():
                limits = ("minimum", info.ge), ("maximum", info.le)
                strict = ("exclusiveMinimum", info.gt), ("exclusiveMaximum", info.lt)
                return {"type": "integer"} | {word: limit for word, limit in (*limits, *strict) if limit is not None}
            case types.FloatType():
                return {"type": "number"}
            case types.DecimalType():
                return {"type": ["string", "number"]}
            case types.StrType():
                return {"type": "string"} | _lengths(info, "minLength", "maxLength")
            case types.LiteralType():
                return {"enum": list(info.values)}
            case types.EnumType():
                return _enum(info.cls)
            case types.UnionType():
                return self._union(info.types)
            case types.DictType():
                return {"type": "object"} | _unless_empty("additionalProperties", self.of(info.value_type))
            case types.ListType() | types.VarTupleType():
                lengths = _lengths(info, "minItems", "maxItems")
                return {"type": "array"} | lengths | _unless_empty("items", self.of(info.item_type))
            case types.SetType() | types.FrozenSetType():
                return {"type": "array"} | _unless_empty("items", self.of(info.item_type))
            case types.TupleType():
                count = len(info.item_types)
                items = [self.of(item) for item in info.item_types]
                return {"type": "array", "prefixItems": items, "minItems": count, "maxItems": count}
            case types.NamedTupleType():
                return {"type": "array", "maxItems": len(info.fields)}
            case types.StructType(array_like=True):
                return {"type": "array"}
        if isinstance(info, _TEXTS):
            return {"type": "string"}
        return self._object(info) if isinstance(info, _OBJECTS) else {}

    def _union(self, members: tuple[types.Type, ...]) -> dict[str, Any]:
        others = [member for member in members if not isinstance(member, types.NoneType)]
        schemas = [self.of(member) for member in others]
        if not all(schemas):
            return {}
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        if len(others) == len(members):
            return schema
        # Not one more `anyOf`: this way the error says what is wrong with a value that is not null.
        return {"if": {"not": {"type": "null"}}, "then": schema}

    def _object(self, info: Any) -> dict[str, Any]:
        # msgspec describes each type by one object, also where it is recursive.
        key = id(info)
        if key not in self._names:
            name = self._names[key] = self._name(info)
            self._defined[name] = {}
            self._defined[name] = self._fields(info)
        return {"$ref": f"#/$defs/{self._names[key]}"}

    def _name(self, info: Any) -> str:
        return str(len(self._names))

    def _field(self, field: types.Field) -> dict[str, Any]:
        return self.of(field.type)

    def _fields(self, info: Any) -> dict[str, Any]:
        properties = {field.encode_name: self._field(field) for field in info.fields}
        # Fields with init=False may be given, and are not required.
        late = {name for name, f in getattr(info.cls, "__dataclass_fields__", {}).items() if not f.init}
        required = [field.encode_name for field in info.fields if field.required and field.name not in late]
        schema: dict[str, Any] = {"type": "object"}
        if getattr(info, "tag", None) is not None:
            properties[info.tag_field] = {"enum": [info.tag]}
        if properties:
            schema["properties"] = properties
        if required:
            schema["required"] = required
        if getattr(info, "forbid_unknown_fields", False):
            schema["additionalProperties"] = False
        return schema


class _Described(_Schemas):
    """Builds a schema for people and tools that make a value."""

    def of(self, info: Any) -> dict[str, Any]:
        schema = super().of(info)
        if isinstance(info, types.Metadata):
            return {**schema, **(info.extra_json_schema or {})}
        if not schema:
            return schema
        for word, name in _LIMITS:
            if (limit := getattr(info, name, None)) is not None:
                schema[word] = limit
        if (form := _FORMATS.get(type(info))) is not None:
            schema["format"] = form
        return schema

    def _union(self, members: tuple[types.Type, ...]) -> dict[str, Any]:
        schemas = [self.of(member) for member in members]
        return {"anyOf": schemas} if all(schemas) else {}

    def _name(self, info: Any) -> str:
        name: str = info.cls.__name__
        return name if name not in self._defined else f"{name}_{len(self._names)}"

    def _field(self, field: types.Field) -> dict[str, Any]:
        schema = self.of(field.type)
        if field.default is msgspec.NODEFAULT:
            return schema
        try:
            return {**schema, "default": msgspec.to_builtins(field.default)}
        except TypeError:
            return schema

    def _fields(self, info: Any) -> dict[str, Any]:
        return {"title": info.cls.__name__, **super()._fields(info)}


_LIMITS = (
    *(("pattern", "pattern"), ("multipleOf", "multiple_of"), ("minimum", "ge"), ("maximum", "le")),
    *(("exclusiveMinimum", "gt"), ("exclusiveMaximum", "lt")),
)
_FORMATS: dict[type, str] = {
    types.DateTimeType: "date-time",
    types.DateType: "date",
    types.TimeType: "time",
    types.TimeDeltaType: "duration",
    types.UUIDType: "uuid",
    types.DecimalType: "decimal",
}


def _enum(cls: type[Enum]) -> dict[str, Any]:
    if cls._missing_.__func__ is not Enum._missing_.__func__:  # type: ignore[attr-defined]
        # It accepts values beyond its members, of their kind.
        kinds = {type(value) for value in cls._value2member_map_}
        return {"type": "string"} if kinds == {str} else {"type": "integer"} if kinds == {int} else {}
    return {"enum": list(cls._value2member_map_)}


def _lengths(info: Any, least: str, most: str) -> dict[str, Any]:
    found = ((least, info.min_length), (most, info.max_length))
    return {word: length for word, length in found if length is not None}


def _unless_empty(word: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {word: schema} if schema else {}


def _values(taken: Taken, given: Any) -> Any:
    """The values of a parameter: several for `*args` and `**kwargs`."""
    if taken.kind == Parameter.VAR_POSITIONAL:
        return given if isinstance(given, list | tuple) else ()
    if taken.kind == Parameter.VAR_KEYWORD:
        return given.values() if isinstance(given, dict) else ()
    return (given,)


def _unfit(schema: bytes, value: Any) -> str | None:
    """Why a value does not fit, and where; None if it fits or cannot be validated."""
    # Types have no formats here: those in a signature are of a flow, which checks them.
    found = misfit(schema, value, formats=True)
    if found is None:
        return None
    path, text = found
    return text if path == "$" else f"{text} - at `{path}`"


def _is_reference(value: Any) -> bool:
    """Whether a value is a reference to items, which are checked where they are read."""
    return isinstance(value, dict) and KEY in value


def misfit(schema: bytes, value: Any, *, formats: bool = False) -> tuple[str, str] | None:
    """Where a value does not fit a schema, and why; None if it fits or cannot be validated.

    `formats`: also by `format`, of which types in Python have their own idea: many take a time without an offset.
    """
    try:
        for error in _validator(schema, formats).iter_errors(value):
            path = "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
            text = error.message if len(error.message) <= 240 else f"{error.message[:120]} … {error.message[-100:]}"
            return path, text
    except ValueError:
        pass  # nested too deeply for the validator, or a schema of a later version
    return None


def misfit_in(schema: Any, value: Any) -> tuple[str, str] | None:
    """As `misfit`, for a schema as plain data."""
    return misfit(msgspec.json.encode(schema), value)


@lru_cache(maxsize=1000)
def _validator(schema: bytes, formats: bool) -> Any:
    import jsonschema_rs

    return jsonschema_rs.validator_for(msgspec.json.decode(schema), validate_formats=formats)
