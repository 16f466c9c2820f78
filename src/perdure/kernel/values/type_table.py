"""What stored values mean by a type: which field a position is, which member a value is, what a missing field is.

Decoding does not notice when that changes: `[700, 50]` fits both `(cents, tip)` and `(tip, cents)`. The types of a
program are kept as a table beside its source, and a stored value is compared by the table of then and the one of now.
Decodes no value by its type.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import inspect as types

from perdure.kernel.values.models import is_model
from perdure.kernel.values.value_versions import versions_of

# A type in one place, as plain data: a word; or `["list", of]`, `["set", of]`, `["dict", key, value]`,
# `["tuple", *parts]`, `["union", *members]`, `["type", name]`.
Form = Any
ANY = "any"
_WORDS: dict[type, str] = {
    types.NoneType: "None",
    types.BoolType: "bool",
    types.IntType: "int",
    types.FloatType: "float",
    types.StrType: "str",
    types.BytesType: "bytes",
    types.ByteArrayType: "bytes",
    types.MemoryViewType: "bytes",
    types.DateTimeType: "datetime",
    types.DateType: "date",
    types.TimeType: "time",
    types.TimeDeltaType: "timedelta",
    types.UUIDType: "UUID",
    types.DecimalType: "Decimal",
}
# How the words are stored, where it is not as text.
_STORED: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "Decimal": (str, int, float),
}
# Texts that fit both, and are not the same in both.
_OTHER_TEXT = {("str", "bytes"), ("bytes", "str")}


class StoredField(msgspec.Struct, frozen=True, omit_defaults=True):
    """A field as it is stored: its name there, that of its attribute if that is another, its form and its default."""

    name: str
    form: Form
    attribute: str = ""
    # As JSON; empty if there is none.
    default: str = ""


class StoredType(msgspec.Struct, frozen=True, omit_defaults=True):
    """A class: an Enum with its members by name, or one with fields, stored by name or by position."""

    members: dict[str, Any] | None = None
    fields: tuple[StoredField, ...] = ()
    by_position: bool = False
    # Whether a field that has its default is left out.
    omits: bool = False
    # Whether the class writes and reads its values itself.
    model: bool = False
    tag: str | int | None = None
    tag_field: str = ""
    version: str = ""


class TypeTable(msgspec.Struct, frozen=True, omit_defaults=True):
    """The types of what a program has stored, by what it is, as in `the result of the step charge`; and the classes."""

    uses: dict[str, Form] = {}
    classes: dict[str, StoredType] = {}

    def encode(self) -> str:
        """As it is kept beside a source; empty if no use has a type that could change its meaning."""
        return msgspec.json.encode(self, order="deterministic").decode() if self.uses else ""


@lru_cache(maxsize=256)
def decode_table(data: str) -> TypeTable:
    """A stored table; an empty one if another version of perdure wrote it differently."""
    try:
        return msgspec.json.decode(data, type=TypeTable) if data else TypeTable()
    except msgspec.MsgspecError:
        return TypeTable()


class ChangedMeaning(msgspec.Struct, frozen=True):
    """A stored value that would be read as another one: the type, why, where in the value, and what to do."""

    type: str
    reason: str
    path: str
    fix: str


# --- making a table -------------------------------------------------------------------------------------------------


class TableMaker:
    """Makes the table of a program, use by use."""

    def __init__(self) -> None:
        self._uses: dict[str, Form] = {}
        self._classes: dict[str, StoredType] = {}
        # Names by the identity of msgspec's description, which is kept: types may be recursive.
        self._names: dict[int, tuple[str, object]] = {}
        self._doubtful: set[str] = set()

    def add(self, use: str, annotation: Any) -> None:
        """Add the type of a use. One that has several types has none."""
        form = self._of_annotation(annotation)
        if form != ANY and self._uses.setdefault(use, form) != form:
            self._doubtful.add(use)

    def table(self) -> TypeTable:
        """What was added."""
        return TypeTable({use: form for use, form in self._uses.items() if use not in self._doubtful}, self._classes)

    def _of_annotation(self, annotation: Any) -> Form:
        try:
            return self._form(types.type_info(annotation))
        except Exception:  # the reason is reported when a value is decoded
            return ANY

    def _form(self, info: Any) -> Form:
        match info:
            case types.Metadata():
                return self._form(info.type)
            case types.ListType() | types.VarTupleType():
                return ["list", self._form(info.item_type)]
            case types.SetType() | types.FrozenSetType():
                return ["set", self._form(info.item_type)]
            case types.TupleType():
                return ["tuple", *map(self._form, info.item_types)]
            case types.DictType():
                return ["dict", self._form(info.key_type), self._form(info.value_type)]
            case types.UnionType():
                return ["union", *map(self._form, info.types)]
        if isinstance(info, types.EnumType) or hasattr(info, "fields"):
            return ["type", self._class(info, self._stored)]
        if isinstance(info, types.CustomType) and isinstance(info.cls, type) and is_model(info.cls):
            return ["type", self._class(info, self._model)]
        return _WORDS.get(type(info), ANY)

    def _class(self, info: Any, stored: Callable[[Any], StoredType]) -> str:
        if id(info) in self._names:
            return self._names[id(info)][0]
        name = first = f"{info.cls.__module__}.{info.cls.__qualname__}"
        if is_model(info.cls) and name in self._classes:
            return name  # described anew each time, also where it is recursive
        known = self._classes.get(name)
        self._names[id(info)] = name, info
        self._classes.setdefault(name, StoredType())
        made = stored(info)
        number = 2
        while known is not None and known != made:  # the same class with other parameters
            name, number = f"{first}#{number}", number + 1
            known = self._classes.get(name)
        self._names[id(info)] = name, info
        self._classes[name] = made
        return name

    def _stored(self, info: Any) -> StoredType:
        cls = info.cls
        if isinstance(info, types.EnumType):
            return StoredType({name: member.value for name, member in cls.__members__.items()})
        config = getattr(cls, "__struct_config__", None)
        versions = versions_of(cls)
        tag = getattr(info, "tag", None)
        return StoredType(
            fields=tuple(map(self._field, info.fields)),
            by_position=isinstance(info, types.NamedTupleType) or bool(getattr(info, "array_like", False)),
            omits=config is not None and config.omit_defaults,
            tag=tag,
            tag_field="" if tag is None else info.tag_field,
            version="" if versions is None else versions.version,
        )

    def _field(self, field: types.Field) -> StoredField:
        attribute = "" if field.name == field.encode_name else field.name
        return StoredField(field.encode_name, self._form(field.type), attribute, _default(field))

    def _model(self, info: Any) -> StoredType:
        fields = getattr(info.cls, "model_fields", {})
        versions = versions_of(info.cls)
        return StoredType(
            fields=tuple(StoredField(name, self._of_annotation(one.annotation)) for name, one in fields.items()),
            model=True,
            version="" if versions is None else versions.version,
        )


def _default(field: types.Field) -> str:
    value = field.default
    if value is msgspec.NODEFAULT:
        factory = field.default_factory
        if factory is msgspec.NODEFAULT:
            return ""
        if factory not in (list, dict, set, tuple):
            return f"made by {getattr(factory, '__qualname__', 'a function')}()"
        value = factory()
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    try:
        return msgspec.json.encode(value, order="deterministic").decode()
    except Exception:  # a value that only its class can store
        return "an object"


# --- comparing ------------------------------------------------------------------------------------------------------


def changed_uses(old: TypeTable, new: TypeTable) -> frozenset[str]:
    """The uses that both have, and whose types are not the same in both."""
    before, now = _Closures(old), _Closures(new)
    return frozenset(
        use for use in old.uses.keys() & new.uses.keys() if before.of(old.uses[use]) != now.of(new.uses[use])
    )


class _Closures:
    """Forms with all that they refer to, by the classes' names."""

    def __init__(self, table: TypeTable) -> None:
        self._table = table

    def of(self, form: Form) -> bytes:
        found: dict[str, Any] = {}
        queue = [form]
        for one in queue:
            for name in _names(one):
                if name not in found:
                    known = self._table.classes.get(name, StoredType())
                    found[name] = known
                    queue.extend(field.form for field in known.fields)
        return msgspec.json.encode([form, found], order="deterministic")


def _names(form: Form) -> Iterator[str]:
    if isinstance(form, list):
        if form[0] == "type":
            yield form[1]
        else:
            for part in form[1:]:
                yield from _names(part)


def changed_meaning(
    use: str, value: Any, old: TypeTable, new: TypeTable, opaque: Collection[str] = ()
) -> ChangedMeaning | None:
    """Where a stored value, as plain data, means something else now; `opaque` are classes with a codec of their own."""
    if use not in old.uses or use not in new.uses:
        return None
    return _Comparison(old.classes, new.classes, opaque).of(old.uses[use], new.uses[use], value, "$")


class _Comparison:
    def __init__(self, old: Mapping[str, StoredType], new: Mapping[str, StoredType], opaque: Collection[str]) -> None:
        self._old, self._new, self._opaque = old, new, opaque

    def of(self, old: Form, new: Form, value: Any, path: str, *, model: bool = False) -> ChangedMeaning | None:
        """What is wrong with a value of the form `old` that is read as `new`."""
        if value is None or ANY in (old, new):
            return None
        was = next((one for one in _members(old) if self._fits(one, value, self._old)), ANY)
        now = self._counterpart(was, new, value)
        if ANY in (was, now):
            return None
        if isinstance(was, str) or isinstance(now, str):
            if isinstance(was, str) and isinstance(now, str) and (was, now) in _OTHER_TEXT and not model:
                reason = f"it was stored as {was}, and every text is read as {now}"
                return ChangedMeaning(now, reason, path, f"Read it as {was}, as it was, and convert it in the code.")
            return None
        if was[0] == now[0] == "type":
            return self._classes(was[1], now[1], new, value, path)
        if was[0] == now[0] == "dict":
            return self._dict(was, now, value, path, model)
        if not isinstance(value, list):
            return None
        if now[0] == "set" and was[0] != "set" and len(value) > 1:
            reason = "what was stored as a list would lose its order and its repetitions"
            return ChangedMeaning(
                "set", reason, path, "Read it as a list, as it was, and make a set of it in the code."
            )
        return self._items(was, now, value, path, model)

    def _items(self, was: Form, now: Form, value: list[Any], path: str, model: bool) -> ChangedMeaning | None:
        for index, item in enumerate(value):
            parts = self._part(was, index, self._old), self._part(now, index, self._new)
            if (found := self.of(*parts, item, f"{path}[{index}]", model=model)) is not None:
                return found
        return None

    def _dict(self, was: Form, now: Form, value: dict[str, Any], path: str, model: bool) -> ChangedMeaning | None:
        for key, item in value.items():
            place = f"{path}[{key!r}]"
            for plain in (key, int(key) if key.lstrip("-").isdecimal() else None):
                if (found := self.of(was[1], now[1], plain, place, model=model)) is not None:
                    return found
            if (found := self.of(was[2], now[2], item, place, model=model)) is not None:
                return found
        return None

    def _classes(self, was: str, now: str, new: Form, value: Any, path: str) -> ChangedMeaning | None:
        old, today = self._old[was], self._new[now]
        if was in self._opaque or now in self._opaque or old.version != today.version:
            return None
        if old.members is not None and today.members is not None:
            return _of_members(_short(now), old.members, today.members, value, path)
        if old.tag is not None and _short(was) != _short(now):
            tagged = {_short(one[1]): self._new[one[1]].tag for one in _members(new) if one[0] == "type"}
            if tagged.get(_short(was), old.tag) != old.tag:
                reason = f"the tag {old.tag!r} stood for {_short(was)}, and stands for {_short(now)}"
                return ChangedMeaning(_short(now), reason, path, "Give each class the tag that it had.")
        if isinstance(value, list) and old.by_position and today.by_position:
            tag = int(old.tag is not None)
            return self._by_position(_short(now), old, today, value[tag:], path)
        if isinstance(value, dict) and not old.by_position and not today.by_position:
            return self._by_name(_short(now), old, today, value, path)
        return None

    def _by_position(
        self, name: str, old: StoredType, new: StoredType, value: list[Any], path: str
    ) -> ChangedMeaning | None:
        before, after = [one.name for one in old.fields], [one.name for one in new.fields]
        fix = f"Put the fields of {name} in the order that they had, and new ones last, with defaults."
        for number, (field, item) in enumerate(zip(old.fields, value, strict=False)):
            if field.name in after:
                place = after.index(field.name)
                if place != number:
                    reason = (
                        f"its fields are stored by position, and `{field.name}` was number {number + 1} and is number "
                        f"{place + 1}"
                    )
                    return ChangedMeaning(name, reason, path, fix)
            elif number < len(after) and after[number] not in before and len(after) != len(before):
                reason = f"its fields are stored by position, and number {number + 1} was `{field.name}` and is "
                return ChangedMeaning(name, f"{reason}`{after[number]}`", path, fix)
            if number < len(new.fields):
                found = self.of(field.form, new.fields[number].form, item, f"{path}[{number}]")
                if found is not None:
                    return found
        return None

    def _by_name(
        self, name: str, old: StoredType, new: StoredType, value: dict[str, Any], path: str
    ) -> ChangedMeaning | None:
        before = {one.name: one for one in old.fields}
        attributes = {one.attribute or one.name: one.name for one in new.fields}
        for field in new.fields:
            was = before.get(field.name)
            if was is None:
                continue
            if field.name not in value:
                if old.omits and was.default and field.default and was.default != field.default:
                    reason = (
                        f"its field `{field.name}` is not stored where it has its default, which was {was.default} and "
                        f"is {field.default}"
                    )
                    fix = f"Keep the default of `{field.name}`, and give the new one where {name} is made."
                    return ChangedMeaning(name, reason, path, fix)
                continue
            attribute = was.attribute or was.name
            if attributes.get(attribute, field.name) != field.name:
                reason = (
                    f"what is stored as `{field.name}` was its field `{attribute}`, which is stored under another name"
                )
                return ChangedMeaning(name, reason, path, "Give each field the name that it was stored under.")
            found = self.of(was.form, field.form, value[field.name], f"{path}.{field.name}", model=old.model)
            if found is not None:
                return found
        return None

    def _counterpart(self, was: Form, new: Form, value: Any) -> Form:
        """The form among those of now by which a value is read that had the form `was`."""
        fitting = [one for one in _members(new) if self._fits(one, value, self._new)]
        same = (one for one in fitting if one == was or (isinstance(one, list) and one[0] == was[0]))
        return next(same, fitting[0] if fitting else ANY)

    def _part(self, form: Form, index: int, classes: Mapping[str, StoredType]) -> Form:
        """The form of an item at a place."""
        if form[0] == "type":
            fields = classes[form[1]].fields
            return fields[index].form if index < len(fields) and classes[form[1]].by_position else ANY
        if form[0] == "tuple":
            return form[index + 1] if index + 1 < len(form) else ANY
        return form[1]

    def _fits(self, form: Form, value: Any, classes: Mapping[str, StoredType]) -> bool:
        """Whether a stored value may have a form, by its kind in JSON."""
        if isinstance(form, str):
            if form == ANY:
                return True
            kinds = _STORED.get(form, (str,))
            return isinstance(value, kinds) and (bool in kinds) == isinstance(value, bool)
        if form[0] != "type":
            return isinstance(value, dict if form[0] == "dict" else list)
        one = classes.get(form[1], StoredType())
        if one.members is not None:
            return any(type(value) is type(known) and value == known for known in one.members.values())
        if one.by_position:
            return isinstance(value, list) and (one.tag is None or value[:1] == [one.tag])
        return isinstance(value, dict) and (one.tag is None or value.get(one.tag_field) == one.tag)


def _of_members(
    name: str, old: Mapping[str, Any], new: Mapping[str, Any], value: Any, path: str
) -> ChangedMeaning | None:
    was = [member for member, known in old.items() if known == value]
    now = [member for member, known in new.items() if known == value]
    if not was or not now or set(was) & set(now):
        return None
    # A member that is gone, with another one in its place, has another name; unless there are more of them.
    if not set(was) & new.keys() and (isinstance(value, str) or len(old) == len(new)):
        return None
    reason = f"the stored {value!r} was {name}.{was[0]}, and is {name}.{now[0]}"
    fix = f"Give each member of {name} the value that it had, as in `{was[0]} = {value!r}`."
    return ChangedMeaning(name, reason, path, fix)


def _members(form: Form) -> list[Form]:
    if isinstance(form, list) and form[0] == "union":
        return [one for part in form[1:] for one in _members(part)]
    return [form]


def _short(name: str) -> str:
    return name.partition("#")[0].rpartition(".")[2]
