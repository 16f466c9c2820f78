"""Stored fields that a type no longer reads, while another field takes its default: renames that lose the value.

Decoding alone does not notice: unknown fields are ignored, and a new field has its default. Each of the two is safe by
itself; together they are most often one field under a new name. Never decodes a type itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import inspect as types

from perdure.kernel.divergence.model import LostField
from perdure.kernel.values.models import is_model
from perdure.kernel.values.value_versions import FIRST, VERSION, versions_of

# Finds a lost field in plain data at a path.
Search: TypeAlias = Callable[[Any, str], LostField | None]


class Searches:
    """Builds searches. `has_codec`: whether a codec of the user determines how a type is stored."""

    def __init__(self, has_codec: Callable[[type], bool]) -> None:
        self._has_codec = has_codec

    def of(self, annotation: Any) -> Search | None:
        """The search for values of an annotation; None if they have no fields."""
        try:
            return _Builder(self._has_codec).build(types.type_info(annotation))
        except Exception:  # the reason is reported when a value is decoded
            return None


class _Builder:
    def __init__(self, has_codec: Callable[[type], bool]) -> None:
        self._has_codec = has_codec
        # By the identity of msgspec's description, which is one object also where a type is recursive.
        self._records: dict[int, _Record] = {}

    def build(self, info: Any) -> Search | None:
        match info:
            case types.Metadata():
                return self.build(info.type)
            case types.ListType() | types.VarTupleType() | types.SetType() | types.FrozenSetType():
                return _items(self.build(info.item_type))
            case types.TupleType():
                return _positions([self.build(item) for item in info.item_types])
            case types.NamedTupleType():
                return _positions([self.build(field.type) for field in info.fields])
            case types.DictType():
                return _values(self.build(info.value_type))
            case types.UnionType():
                return _union([found for member in info.types if (found := self.build(member)) is not None])
            case types.StructType(array_like=True):
                return None
            case types.StructType() | types.DataclassType() | types.TypedDictType():
                return self._record(info)
            case types.CustomType() if is_model(info.cls) and not self._has_codec(info.cls):
                return self._model(info)
        return None

    def _record(self, info: Any) -> Search | None:
        if self._has_codec(info.cls):
            return None
        if id(info) in self._records:
            return self._records[id(info)]
        tag = getattr(info, "tag_field", None) if getattr(info, "tag", None) is not None else None
        record = self._records[id(info)] = _Record(info.cls, tag, info)
        for field in info.fields:
            # UNSET is not a default: it is not stored.
            record.add(field.encode_name, field.required or field.default is msgspec.UNSET, self.build(field.type))
        return record

    def _model(self, info: Any) -> Search | None:
        if id(info.cls) in self._records:
            return self._records[id(info.cls)]
        record = self._records[id(info.cls)] = _Record(info.cls, None, info)
        for name, field in info.cls.model_fields.items():
            try:
                inner = self.build(types.type_info(field.annotation))
            except Exception:  # a type of pydantic's own
                inner = None
            record.add(name, field.is_required(), inner)
        # Extra fields are kept, so all are read.
        record.reads_all = (getattr(info.cls, "model_config", None) or {}).get("extra") == "allow"
        return record


class _Record:
    """The search in an object with fields."""

    def __init__(self, cls: type, tag: str | None, info: object) -> None:
        self._cls, self._info = cls, info
        self.tag, self.tagged = tag, getattr(info, "tag", None)
        self._known = {VERSION} if tag is None else {VERSION, tag}
        self._versions = versions_of(cls)
        self._version = "" if isinstance(info, types.TypedDictType) else FIRST
        self.optional: list[str] = []
        self.inner: list[tuple[str, Search]] = []
        self.reads_all = False

    def add(self, name: str, required: bool, inner: Search | None) -> None:
        """Add a field by the name it is stored under."""
        self._known.add(name)
        if not required:
            self.optional.append(name)
        if inner is not None:
            self.inner.append((name, inner))

    def __call__(self, value: Any, path: str) -> LostField | None:
        if not isinstance(value, dict):
            return None
        if self._versions is not None:
            self._version = self._versions.version
            if value.get(VERSION, FIRST) != self._version:
                return None  # a migration says what becomes of its fields
        if self.optional and not self.reads_all and not value.keys() <= self._known:
            absent = [name for name in self.optional if name not in value]
            if absent:
                stored = next(name for name in value if name not in self._known)
                return LostField(stored, absent[0], self._cls.__qualname__, path, self._version)
        for name, inner in self.inner:
            if name in value and (found := inner(value[name], f"{path}.{name}")) is not None:
                return found
        return None


def may_find(search: Search) -> bool:
    """Whether a search can find anything: not where all fields are required, and none has fields itself."""
    return not isinstance(search, _Record) or bool(search.inner or search.optional)


def is_flat(search: Search) -> bool:
    """Whether a search is in an object whose fields have no fields."""
    return isinstance(search, _Record) and not search.inner


def _items(inner: Search | None) -> Search | None:
    if inner is None:
        return None

    def search(value: Any, path: str) -> LostField | None:
        found = (inner(item, f"{path}[{index}]") for index, item in enumerate(value)) if type(value) is list else ()
        return next((one for one in found if one is not None), None)

    return search


def _values(inner: Search | None) -> Search | None:
    if inner is None:
        return None

    def search(value: Any, path: str) -> LostField | None:
        found = (inner(item, f"{path}[{key!r}]") for key, item in value.items()) if type(value) is dict else ()
        return next((one for one in found if one is not None), None)

    return search


def _positions(inner: Sequence[Search | None]) -> Search | None:
    if not any(inner):
        return None

    def search(value: Any, path: str) -> LostField | None:
        for index, (one, item) in enumerate(zip(inner, value if type(value) is list else (), strict=False)):
            if one is not None and (found := one(item, f"{path}[{index}]")) is not None:
                return found
        return None

    return search


def _union(members: Sequence[Search]) -> Search | None:
    if len(members) <= 1:
        return members[0] if members else None
    tagged: Mapping[Any, Search] = {one.tagged: one for one in members if isinstance(one, _Record) and one.tag}
    tags = {one.tag for one in members if isinstance(one, _Record) and one.tag}
    records = [one for one in members if isinstance(one, _Record)]

    def search(value: Any, path: str) -> LostField | None:
        if type(value) is dict and records:
            chosen = next((tagged[value[tag]] for tag in tags if value.get(tag) in tagged), None)
            chosen = chosen or (records[0] if len(records) == 1 else None)
            return None if chosen is None else chosen(value, path)
        found = (one(value, path) for one in members if not isinstance(one, _Record))
        return next((one for one in found if one is not None), None)

    return search
