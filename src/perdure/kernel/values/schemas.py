"""Compare JSON Schemas of the kind that perdure makes: whether every value of one fits another. Validates no value."""

from __future__ import annotations

from typing import Any

from perdure.kernel.values.signatures import misfit_in

# Limits that grow stricter with the number, and those that grow looser.
_LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_MOST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_SAME = ("pattern", "multipleOf")


def covers(new: Any, old: Any) -> bool:
    """Whether everything that fits `old` fits `new`, and no field of it is lost to another one's default."""
    return _Comparison(new, old).covers(new, old)


def narrowed_at(new: Any, old: Any) -> tuple[str, Any, Any]:
    """The innermost part of `new` that does not cover its counterpart in `old`: its path, and both, the old one first.

    The path is empty for the whole.
    """
    path: list[str] = []
    while True:
        fields, before = _fields_of(new), _fields_of(old)
        parts = ((name, fields[name], before[name]) for name in fields if name in before)
        narrower = next((part for part in parts if not covers(*part[1:])), None)
        if narrower is None:
            return ".".join(path), old, new
        name, new, old = narrower
        path.append(name)


def _fields_of(schema: Any) -> dict[str, Any]:
    """The schemas of the fields of an object, each whole."""
    defined = _definitions(schema)
    fields = _resolved(schema, defined).get("properties", {})
    return {name: {**field, "$defs": defined} for name, field in fields.items()}


class _Comparison:
    def __init__(self, new: Any, old: Any) -> None:
        self._new, self._old = _definitions(new), _definitions(old)
        # Pairs that are being compared: types may be recursive.
        self._under_way: set[tuple[str, str]] = set()

    def covers(self, new: Any, old: Any) -> bool:
        pair = str(new.get("$ref", "")), str(old.get("$ref", ""))
        if all(pair):
            if pair in self._under_way:
                return True
            self._under_way.add(pair)
        new, old = _resolved(new, self._new), _resolved(old, self._old)
        if not _constraints(new):
            return True
        if (parts := _parts(old)) is not None:
            return all(self.covers(new, part) for part in parts)
        if (parts := _parts(new)) is not None:
            return any(self.covers(part, old) for part in parts)
        if "enum" in old:
            return all(misfit_in({**new, "$defs": self._new}, value) is None for value in old["enum"])
        if "enum" in new or not _types(old) <= _types(new):
            return False
        return self._within(new, old) and self._fields(new, old) and self._items(new, old)

    def _within(self, new: Any, old: Any) -> bool:
        """Whether the limits of `new` are no stricter."""
        least = all(old.get(word, float("-inf")) >= new[word] for word in _LEAST if word in new)
        most = all(old.get(word, float("inf")) <= new[word] for word in _MOST if word in new)
        return least and most and all(old.get(word) == new[word] for word in _SAME if word in new)

    def _fields(self, new: Any, old: Any) -> bool:
        fields, before = new.get("properties", {}), old.get("properties", {})
        required = set(new.get("required", ()))
        if not required <= set(old.get("required", ())):
            return False
        gone, added = before.keys() - fields.keys(), fields.keys() - before.keys() - required
        if gone and (added or new.get("additionalProperties") is False):
            return False
        values, were = new.get("additionalProperties"), old.get("additionalProperties")
        if isinstance(values, dict) and not (isinstance(were, dict) and self.covers(values, were)):
            return False
        return all(self.covers(fields[name], before[name]) for name in fields.keys() & before.keys())

    def _items(self, new: Any, old: Any) -> bool:
        first, before = new.get("prefixItems", []), old.get("prefixItems", [])
        if not all(self.covers(*pair) for pair in zip(first, before, strict=False)):
            return False
        items, were = new.get("items"), old.get("items")
        return not isinstance(items, dict) or (isinstance(were, dict) and self.covers(items, were))


_NOTES = frozenset({"title", "description", "default", "examples", "format", "$defs", "contentEncoding"})


def _constraints(schema: dict[str, Any]) -> bool:
    return bool(schema.keys() - _NOTES)


def _definitions(schema: Any) -> dict[str, Any]:
    found = schema.get("$defs", {}) if isinstance(schema, dict) else {}
    return found if isinstance(found, dict) else {}


def _resolved(schema: dict[str, Any], defined: dict[str, Any]) -> dict[str, Any]:
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    return defined.get(name, {}) if name else schema


def _parts(schema: dict[str, Any]) -> list[Any] | None:
    """The members of a union."""
    parts = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(parts, list):
        return parts
    kind = schema.get("type")
    return [{**schema, "type": one} for one in kind] if isinstance(kind, list) else None


def _types(schema: dict[str, Any]) -> set[str]:
    kind = schema.get("type")
    return {"integer", "number"} if kind == "number" else {kind} if isinstance(kind, str) else set()
