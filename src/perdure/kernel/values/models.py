"""Encode and decode pydantic models. Never imports pydantic.

Pydantic itself writes and reads a model: by field names, whatever its aliases are, and in JSON mode, so that its own
serializers and validators apply. Computed fields and private attributes are not stored.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec


def is_model(cls: type) -> bool:
    """Whether a class is a pydantic model, found by its attributes so that pydantic need not be imported."""
    return hasattr(cls, "__pydantic_validator__") and not dataclasses.is_dataclass(cls)


def model_items(model: Any) -> Iterator[tuple[str, object]]:
    """The fields of a pydantic model, and the extra ones it was given."""
    yield from model.__dict__.items()
    yield from (getattr(model, "__pydantic_extra__", None) or {}).items()


def keeps_nan(model: type) -> bool:
    """Whether a pydantic model writes NaN as text that it can read again."""
    config = getattr(model, "model_config", None) or {}
    return config.get("ser_json_inf_nan") == "strings"


def model_json(model: Any) -> bytes:
    """Write a pydantic model the way `model_from` reads it."""
    data: bytes = model.__pydantic_serializer__.to_json(model, **_model_options()[0])
    if b"NaN" in data or b"Infinity" in data:
        msgspec.json.decode(data)  # ser_json_inf_nan="constants" writes what is not JSON
    return data


def model_from(cls: Any, data: bytes) -> Any:
    """Read a pydantic model from JSON: in this mode strict models, too, take dates and sets from text and lists."""
    return cls.__pydantic_validator__.validate_json(data, **_model_options()[1])


def ordered_model(model: Any) -> Any:
    """Write a pydantic model as plain data in which sets and keys have one order."""
    return _in_order(msgspec.json.decode(model_json(model)), model)


def _in_order(written: Any, value: Any) -> Any:
    """Sort the lists that were written for sets, found by walking the value in parallel."""
    if isinstance(written, list) and isinstance(value, (list, tuple, set, frozenset)) and len(written) == len(value):
        items = [_in_order(*pair) for pair in zip(written, value, strict=True)]
        return sorted(items, key=msgspec.json.encode) if isinstance(value, (set, frozenset)) else items
    if not isinstance(written, dict):
        return written
    if isinstance(value, dict):
        beside = dict(zip(written, value.values(), strict=False))
    else:
        beside = dict(model_items(value)) if hasattr(value, "__dict__") else {}
    return {key: _in_order(written[key], beside.get(key)) for key in sorted(written)}


@cache
def _model_options() -> tuple[dict[str, bool], dict[str, bool]]:
    """Pydantic's options to write and to read models without aliases."""
    pydantic = sys.modules.get("pydantic")
    version = tuple(int(part) for part in getattr(pydantic, "VERSION", "2.0").split(".")[:2])
    if version >= (2, 11):
        return {"by_alias": False, "round_trip": True}, {"by_alias": False, "by_name": True}
    return {"by_alias": True, "round_trip": True}, {}
