"""Earlier forms of a value, before its types were changed: without fields that have their defaults, or reordered.

A type that gets a field with a default reads older values, and writes them with the field. An op that was recorded with
such a value was recorded without the field, and is the same op. So is one whose fields have changed places.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import islice, permutations, product, takewhile
from typing import Any

import msgspec

from perdure.kernel.values.models import is_model

# How many forms of a value are tried at most.
_MOST = 64
# How many orders of fields are tried at most, and of how many fields of one type every order.
_ORDERS = 2000
_ALL_ORDERS = 5


def earlier_forms(value: Any, plain: Any) -> Iterator[Any]:
    """The plain data of a value without fields of its types that have their defaults everywhere in it.

    Without one field, or without the last ones, of each type. `plain` is the value as plain data.
    """
    spare: dict[type, set[str]] = {}
    _visit(value, plain, spare)
    choices = [[(cls, names) for names in _choices(cls, names)] for cls, names in spare.items() if names]
    for chosen in islice(product(*choices), 1, _MOST):
        yield _without(value, plain, dict(chosen))


def other_orders(value: Any, plain: Any) -> Iterator[Any]:
    """The plain data of a value with the fields of its types in other orders; the same one in all values of a type."""
    spare: dict[type, set[str]] = {}
    _visit(value, plain, spare)
    fields = {cls: [name for name, _ in _defaults(cls) or ()] for cls in spare if not issubclass(cls, tuple)}
    choices = [[(cls, order) for order in _orders_of(names)] for cls, names in fields.items()]
    for chosen in islice(product(*choices), 1, _ORDERS):
        yield _ordered(value, plain, dict(chosen))


def _orders_of(names: list[str]) -> Iterator[list[str]]:
    """Orders of fields, the present one first: all, or of many fields those with one field in another place."""
    if len(names) <= _ALL_ORDERS:
        yield from map(list, permutations(names))
        return
    yield names
    for name in names:
        others = [one for one in names if one != name]
        for place in range(len(names)):
            if names[place] != name:
                yield [*others[:place], name, *others[place:]]


def _ordered(value: Any, plain: Any, orders: dict[type, list[str]]) -> Any:
    parts = {key: _ordered(inner, data, orders) for key, inner, data in _parts(value, plain)}
    if isinstance(plain, dict):
        names = [name for name in orders.get(type(value), ()) if name in plain]
        return {key: parts.get(key, plain[key]) for key in dict.fromkeys((*names, *plain))}
    if isinstance(plain, list):
        return [parts.get(index, data) for index, data in enumerate(plain)]
    return plain


def _choices(cls: type, spare: set[str]) -> list[set[str]]:
    """The sets of fields of a type that may be new; the empty set comes first."""
    names = [name for name, _ in _defaults(cls) or ()]
    last = [*takewhile(lambda name: name in spare, reversed(names))]
    ends = [set(last[: count + 1]) for count in range(len(last))]
    # The fields of a tuple are known by their position, so that only the last ones can be new.
    return [set(), *ends, *([] if issubclass(cls, tuple) else [{name} for name in names if name in spare])]


def _visit(value: Any, plain: Any, spare: dict[type, set[str]]) -> None:
    """Find the fields of each type that have their defaults in all of its values."""
    cls = type(value)
    defaults = _defaults(cls)
    if defaults is not None:
        found = {name for name, default in defaults if _is_default(getattr(value, name, _REQUIRED), default)}
        spare[cls] = spare.get(cls, found) & found
    for _, inner, data in _parts(value, plain):
        _visit(inner, data, spare)


def _without(value: Any, plain: Any, left_out: dict[type, set[str]]) -> Any:
    gone = left_out.get(type(value), set())
    parts = {key: _without(inner, data, left_out) for key, inner, data in _parts(value, plain)}
    if isinstance(plain, dict):
        return {key: parts.get(key, data) for key, data in plain.items() if key not in gone}
    if isinstance(plain, list):
        return [parts.get(index, data) for index, data in enumerate(plain)][: len(plain) - len(gone)]
    return plain


def _parts(value: Any, plain: Any) -> Iterator[tuple[Any, Any, Any]]:
    """The parts of a value, each with its key and its plain data."""
    if isinstance(plain, dict):
        for key, data in plain.items():
            inner = value.get(key, _REQUIRED) if isinstance(value, dict) else getattr(value, key, _REQUIRED)
            if inner is not _REQUIRED and isinstance(data, dict | list):
                yield key, inner, data
    elif isinstance(plain, list) and isinstance(value, list | tuple) and len(value) == len(plain):
        for index, (inner, data) in enumerate(zip(value, plain, strict=True)):
            if isinstance(data, dict | list):
                yield index, inner, data


_REQUIRED: Any = object()


def _defaults(cls: type) -> list[tuple[str, Any]] | None:
    """The fields of a type in order, each with its default, or with a function that makes it; None without fields."""
    if dataclasses.is_dataclass(cls):
        return [(f.name, _either(f.default, f.default_factory, dataclasses.MISSING)) for f in dataclasses.fields(cls)]
    if issubclass(cls, msgspec.Struct):
        return [(f.encode_name, _either(f.default, f.default_factory, msgspec.NODEFAULT)) for f in _fields(cls)]
    if issubclass(cls, tuple) and hasattr(cls, "_field_defaults"):
        return [(name, cls._field_defaults.get(name, _REQUIRED)) for name in cls._fields]  # type: ignore[attr-defined]
    if is_model(cls):
        fields = cls.model_fields  # type: ignore[attr-defined]
        optional = {name: _either(f.default, f.default_factory, _REQUIRED) for name, f in fields.items()}
        return [(name, _REQUIRED if f.is_required() else optional[name]) for name, f in fields.items()]
    return None


def _fields(cls: type[msgspec.Struct]) -> tuple[Any, ...]:
    return msgspec.structs.fields(cls)


class _Made:
    """A default that is made for each value."""

    def __init__(self, make: Any) -> None:
        self.make = make


def _either(default: Any, factory: Any, missing: Any) -> Any:
    if factory is not None and factory is not missing:
        return _Made(factory)
    return _REQUIRED if default is missing else default


def _is_default(value: Any, default: Any) -> bool:
    if default is _REQUIRED:
        return False
    try:
        return bool(value == (default.make() if isinstance(default, _Made) else default))
    except Exception:  # of the user's __eq__, or a factory that needs arguments
        return False
