"""Turn values into JSON bytes and back, faithfully or not at all. Never pickles, imports or touches a store.

Stored natively: None, bool, int of any size, float, str, list, dict, tuple, set, frozenset, dataclasses,
msgspec Structs, TypedDict, NamedTuple, attrs classes without private attributes, pydantic models, datetime, date, time,
timedelta, UUID, Enum, Decimal, bytes (as base64) and any nesting of these. Other types need a `TypeCodec`.

A value comes back as its annotation says; without one (or with `Any`, `object` or `None`) it is plain JSON, in which a
tuple is a list and a date is text, and a type with a version has it under `$version`. What else JSON changes:

- Keys become text: `{1: "a"}` needs the annotation `dict[int, str]` to come back, and 1 must not stand beside "1".
- Zones become offsets, and `fold` is not kept: a datetime keeps its instant, not its zone's name. Offsets are whole
  minutes; the seconds that some zones had before 1930 are cut.
- The `__post_init__` of a dataclass runs again when it is decoded; attributes that are not fields are not stored.
- Subclasses of str, int, float, list and dict lose their class, unless it is in the annotation or has a codec.
- NaN, infinities, lone surrogates and values that contain themselves are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import inspect as msgspec_inspect

from perdure.errors import NotDecodable, NotSerializable
from perdure.kernel.divergence.model import LostField
from perdure.kernel.values.annotations import Annotations, is_json, is_plain, json_decoder
from perdure.kernel.values.items import PartReader
from perdure.kernel.values.limits import Limits
from perdure.kernel.values.lost_fields import Search, Searches, is_flat, may_find
from perdure.kernel.values.models import is_model, model_from, model_json, ordered_model
from perdure.kernel.values.raised import brief, pressed
from perdure.kernel.values.signatures import schema_of
from perdure.kernel.values.types import Shapes, TypeCodec, base_value, name_of
from perdure.kernel.values.value_versions import CannotMigrate, Versions

__all__ = ["Codec", "TypeCodec"]

_NULL, _NO_SCHEMA = msgspec.Raw(b"null"), msgspec.Raw(b"{}")
Decode = Callable[[bytes | msgspec.Raw], Any]


class OwnDecoder:
    """An annotation that decodes its values itself, part by part."""

    def decoder(self, codec: Codec) -> Decode:
        """The function that decodes them. It raises what a decoder of msgspec raises."""
        raise NotImplementedError


class Codec:
    """The codec of one engine: msgspec, plus registered types."""

    def __init__(self, codecs: Iterable[TypeCodec[Any]] = (), limit: int = Limits().payload) -> None:
        # The size limit of state and of approval requests, which are never offloaded.
        self.limit = limit
        self._shapes = Shapes(codecs)
        self._annotations = Annotations(self._shapes)
        self._decoders: dict[Any, Decode] = {}
        # Annotations with fields, and how to search their stored values for fields that are no longer read.
        self._searches = Searches(lambda cls: not self._shapes.codecs.keys().isdisjoint(cls.__mro__))
        self.fields: dict[Any, Search] = {}
        # Those of them whose fields have none themselves.
        self.flat: set[Any] = set()
        self._encode = msgspec.json.Encoder(enc_hook=self._plain_form).encode
        self._encode_sorted = msgspec.json.Encoder(enc_hook=self._sorted_form, order="deterministic").encode

    @property
    def own_types(self) -> frozenset[str]:
        """The classes that codecs of the user store, by module and name."""
        return frozenset(f"{cls.__module__}.{cls.__qualname__}" for cls in self._shapes.codecs)

    def read_items_with(self, reader: PartReader) -> None:
        """From now on, items that are kept in blobs are read there."""
        self._annotations.reader = reader

    # --- encoding ---------------------------------------------------------------------------------------------------

    def encode(self, value: object, what: str) -> bytes:
        """Encode a value as JSON, or raise NotSerializable with the path of what cannot be stored."""
        try:
            data = self._encode(
                self._shapes.plain(value, False) if self._annotations.native or Versions.anywhere else value
            )
            # msgspec writes NaN as null, so only data with a null needs the search for NaN.
            lost = b"null" in data and value is not None and self._shapes.has_nan(value)
        except BaseException as problem:
            if pressed(problem):
                raise
            raise self._refusal(value, what, problem) from problem
        if lost:
            raise self._refusal(value, what, None)
        return data

    def encode_inputs(self, value: object, what: str) -> bytes:
        """Encode a value so that equal values give equal bytes in every process: sets and keys are in order."""
        data, shapes = b"", self._shapes
        try:
            if type(value) in (tuple, list) and not (shapes.codecs or self._annotations.native or Versions.anywhere):
                # Most arguments have no second bracket, so that no set can be among them: see `_sorted`.
                try:
                    data = self._encode_sorted(value)
                except Exception:
                    data = b""
            if not data or data.find(b"[", 1) >= 0:
                data = self._sorted(value, data)
            lost = b"null" in data and value is not None and shapes.has_nan(value)
        except BaseException as problem:
            if pressed(problem):
                raise
            raise self._refusal(value, what, problem) from problem
        if lost:
            raise self._refusal(value, what, None)
        return data

    def _sorted(self, value: Any, data: bytes) -> bytes:
        """Encode a value in order; `data` is what msgspec makes of it, if that is known."""
        shapes = self._shapes
        if not (self._annotations.native or Versions.anywhere):
            try:
                data = data or self._encode_sorted(value)
            except Exception:
                pass  # keys that are not text, sets that cannot be sorted, unknown types: see below
            else:
                # msgspec sorts sets by `<`, which is a total order for text and numbers. Sets of tuples, sets or
                # objects appear as `[[` or `[{` and must be checked, as must types with a codec.
                if not shapes.codecs and not _may_nest_in_set(value, data):
                    return data
                if shapes.is_ordered(value):
                    return data
        return self._encode(shapes.plain(value, True))

    def _plain_form(self, value: Any) -> Any:
        """Plain data for a value of a type that msgspec does not know (its `enc_hook`)."""
        shape = self._shapes.of(type(value))
        if shape.codec is not None:
            return shape.codec.encode(value)
        if shape.kind == "model":
            return msgspec.Raw(model_json(value))
        if shape.kind == "scalar":
            return base_value(value)
        raise TypeError(f"{type(value).__qualname__} has no form in JSON")

    def _sorted_form(self, value: Any) -> Any:
        return ordered_model(value) if self._shapes.of(type(value)).kind == "model" else self._plain_form(value)

    def _refusal(self, value: object, what: str, problem: BaseException | None) -> NotSerializable:
        found = self._shapes.find(value)
        if found is not None:
            return NotSerializable(what, found.path, found.reason)
        if isinstance(problem, RecursionError):
            return NotSerializable(what, "$", "is nested too deeply")
        if problem is None:
            return NotSerializable(what, "$", "holds a NaN or an infinity, which JSON cannot hold")
        return NotSerializable(what, "$", f"cannot be encoded ({brief(problem)})")

    # --- decoding ---------------------------------------------------------------------------------------------------

    def decode(self, data: bytes | msgspec.Raw, type: Any, what: str) -> Any:
        """Decode JSON by an annotation, or raise NotDecodable with the reason."""
        try:
            decode = self._decoders[type]
        except (KeyError, TypeError):  # TypeError: an annotation that cannot be hashed
            decode = self.unchecked(type, what)
        try:
            return decode(data)
        except BaseException as problem:
            if pressed(problem):
                raise
            raise NotDecodable(what, name_of(type), _reason(problem)) from problem

    def decode_exact(self, data: bytes | msgspec.Raw, type: Any, what: str) -> Any:
        """As `decode`, for a value that was stored with the fields of its type and no others.

        Raises NotDecodable also where a stored field is not read, and another one takes its default.
        """
        try:
            value = self._decoders[type](data)
        except BaseException:
            value = self.decode(data, type, what)  # which says what is wrong
        if self.fields and (lost := self.lost_field(data, type)) is not None:
            error = NotDecodable(what, name_of(type), str(lost))
            error.lost = lost
            raise error
        return value

    def exact(self, data: bytes, value: object, type: Any, what: str) -> bytes:
        """The encoding to store of a value that was decoded by its type: with the fields of the type and no others."""
        return data if self.lost_field(data, type) is None else self.encode(value, what)

    def lost_field(self, data: bytes | msgspec.Raw, type: Any) -> LostField | None:
        """A stored field that the type does not read, beside one that takes its default."""
        try:
            search = self.fields.get(type)
        except TypeError:  # an annotation that cannot be hashed
            search = self._searches.of(type)
        return None if search is None else search(msgspec.json.decode(data), "$")

    def has_fields(self, type: Any) -> bool:
        """Whether values of the annotation may have fields."""
        return not is_plain(type) and self._searches.of(type) is not None

    def decoder(self, type: Any, what: str = "a stored value") -> Decode:
        """The function that decodes by an annotation; raises NotDecodable if the annotation is not supported."""
        decode, name = self.unchecked(type, what), name_of(type)

        def checked(data: bytes | msgspec.Raw) -> Any:
            try:
                return decode(data)
            except BaseException as problem:
                if pressed(problem):
                    raise
                raise NotDecodable(what, name, _reason(problem)) from problem

        return checked

    def schema(self, annotation: Any, *, described: bool = False) -> msgspec.Raw:
        """A JSON schema that every value decodable by the annotation fits; empty if none is known.

        `described`: with names, defaults and formats, for people and tools that make a value.
        """
        try:
            info = None if is_plain(annotation) else msgspec_inspect.type_info(self._annotations.rewrite(annotation))
        except Exception:  # the reason is reported when a value is decoded
            info = None
        return msgspec.Raw(b"{}" if info is None else msgspec.json.encode(schema_of(info, described)))

    def question_schema(self, type: Any) -> msgspec.Raw:
        """The JSON Schema of an answer or a signal of this type; null if none is known, and only the program checks."""
        of_model = getattr(type, "model_json_schema", None)
        if of_model is not None:
            return msgspec.Raw(msgspec.json.encode(of_model()))
        schema = _NULL if type is None else self.schema(type, described=True)
        return _NULL if schema == _NO_SCHEMA else schema

    def unchecked(self, type: Any, what: str) -> Decode:
        """As `decoder`; but the function raises whatever msgspec, or a type, raises for a value that does not fit."""
        try:
            if type in self._decoders:
                return self._decoders[type]
            decode = self._decoders[type] = self._new_decoder(type, what)
        except TypeError:
            return self._new_decoder(type, what)
        return decode

    def _new_decoder(self, annotation: Any, what: str) -> Decode:
        if is_plain(annotation):
            return msgspec.json.Decoder().decode
        if isinstance(annotation, OwnDecoder):
            return annotation.decoder(self)
        if not self._annotations.native and is_json(annotation):
            with suppress(TypeError):  # a union that msgspec cannot tell apart: reported below
                return json_decoder(annotation)
        reason = self._annotations.unfit(annotation)
        if reason is not None:
            raise NotDecodable(what, name_of(annotation), reason)
        search = self._searches.of(annotation)
        if search is not None and may_find(search) and isinstance(annotation, Hashable):
            self.fields[annotation] = search
            if is_flat(search):
                self.flat.add(annotation)
        if isinstance(annotation, type) and is_model(annotation) and self._shapes.codec_for(annotation) is None:
            return lambda data: model_from(annotation, bytes(data))
        return msgspec.json.Decoder(self._annotations.rewrite(annotation), dec_hook=self._annotations.make).decode


def _may_nest_in_set(value: object, data: bytes) -> bool:
    """Whether a set in the value may hold more than text and numbers, judged by the bytes. False is certain."""
    # The outer bracket is usually a list of arguments, not a set.
    if data.find(b"[[", 2) >= 0 or data.find(b"[{", 2) >= 0:
        return True
    if type(value) is list or type(value) is tuple:
        return bool(value) and isinstance(value[0], (set, frozenset))
    return data.startswith(b"[")


def _reason(problem: BaseException) -> str:
    if isinstance(problem, RecursionError):
        return "it is nested too deeply"
    if isinstance(problem, msgspec.MsgspecError | UnicodeDecodeError | CannotMigrate):
        return str(problem)[:500]
    return brief(problem, 500)
