"""JSON Schemas in flows: checks them, and values against them. Fetches nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from perdure.errors import UsageError

# How many parts a schema may have: validation may visit each of them for each part of a value.
MOST_PARTS = 10_000
# How long a regular expression in a schema may be: one with thousands of groups takes all memory and ends the process.
MOST_PATTERN = 1000
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# The keywords with which a reference may have a target outside of `#/schemas/NAME`.
_NAMED = ("$id", "$anchor", "$dynamicAnchor")
# The keywords that hold definitions, and those that hold schemas by the names of properties.
_DEFINITIONS = ("$defs", "definitions", "schemas")
_PLAIN = re.compile(r"#/schemas/([A-Za-z0-9_.-]+)(?:/|$)")
_BY_NAME = frozenset({"properties", "patternProperties", "dependentSchemas"})


def whole_schema(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with the schemas that it may refer to."""
    needed = _needed(schema, schemas) if schemas else schemas
    return {**schema, "schemas": dict(needed)} if needed else dict(schema)


def _needed(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schemas of `#/schemas/NAME` that a schema refers to; all of them if it refers to something else."""
    found: dict[str, Any] = {}
    work: list[Any] = [schema]
    while work:
        for part in _parts(work.pop(), ()):
            if any(key in part for key in _NAMED):
                return schemas
            for reference in [part[key] for key in _REFERENCES if isinstance(part.get(key), str)]:
                name = _PLAIN.match(reference)
                if name is None or name[1] not in schemas:
                    return schemas
                if name[1] not in found:
                    found[name[1]] = schemas[name[1]]
                    work.append(schemas[name[1]])
    return found


def check_schema(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> None:
    """Raise UsageError for an invalid schema, or for one that takes too much to compile or to follow."""
    whole = whole_schema(schema, schemas)
    for part in _parts(whole, ()):
        by_pattern = part.get("patternProperties")
        for pattern in (part.get("pattern"), *(by_pattern if isinstance(by_pattern, dict) else ())):
            if isinstance(pattern, str) and len(pattern) > MOST_PATTERN:
                raise UsageError(f"a pattern of this JSON Schema has more than {MOST_PATTERN:,} characters")
    if _size(whole, schema) > MOST_PARTS:
        raise UsageError(
            f"with what it refers to, this JSON Schema has more than {MOST_PARTS:,} parts; refer to less, or less often"
        )
    _validator(schema, schemas)


def _size(whole: Mapping[str, Any], schema: Mapping[str, Any]) -> int:
    """How many parts a schema has, with the parts of its targets for each reference; a recursive one counts as one."""
    bases: list[Mapping[str, Any]] = [whole]
    anchors: dict[str, list[Any]] = {}
    for one in _parts(whole, ()):
        if "$id" in one:
            bases.append(one)
        for key in ("$anchor", "$dynamicAnchor"):
            anchors.setdefault(f"#{one.get(key)}", []).append(one)

    def targets(reference: str) -> list[Any]:
        found = [_at(base, reference) for base in bases] if reference[:2] in ("#", "#/") else anchors.get(reference, [])
        return [one for one in found if one is not None]

    sizes: dict[str, int] = {}
    inside = {"": _inside([schema])}
    path = [""]
    while path:
        own, references = inside[path[-1]]
        following = next((one for one in references if one not in inside), None)
        if following is not None:
            inside[following] = _inside(targets(following))
            path.append(following)
            continue
        # A target without a size is on the path: it is recursive, and the value decides how often it is followed.
        sizes[path.pop()] = own + sum(sizes.get(one, 1) for one in references)
    return sizes[""]


def _inside(schemas: Sequence[Any]) -> tuple[int, list[str]]:
    """The number of parts of schemas, and their references."""
    parts = [part for one in schemas for part in _parts(one)]
    named = [part.get(key) for part in parts for key in _REFERENCES]
    return len(parts), [one for one in named if isinstance(one, str)]


def _parts(schema: Any, left: tuple[str, ...] = _DEFINITIONS) -> list[Mapping[str, Any]]:
    """All objects in a schema, but for its definitions, which count where they are referred to."""
    found: list[Mapping[str, Any]] = []
    work = [(schema, False)]
    while work:
        one, named = work.pop()
        if isinstance(one, dict):
            found.append(one)
            # A property may have the name of a keyword.
            work += [(value, key in _BY_NAME and not named) for key, value in one.items() if named or key not in left]
        elif isinstance(one, list):
            work += [(inner, False) for inner in one]
    return found


def _at(schema: Any, reference: str) -> Any:
    """The target of a reference such as `#/schemas/Order`; None if it has none."""
    for key in unquote(reference).split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, dict):
            schema = schema.get(key)
        elif isinstance(schema, list) and key.isdecimal() and int(key) < len(schema):
            schema = schema[int(key)]
        else:
            return None
    return schema


def _validator(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    """The validator of a schema. Raises UsageError for an invalid schema. Fetches nothing."""
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(whole_schema(schema, schemas), retriever=_refuse, validate_formats=True)
    except ValueError as error:
        raise UsageError(f"this is no JSON Schema: {str(error).partition(chr(10))[0]}") from None


def _refuse(address: str) -> Any:
    raise ValueError(f"{address} is not in the file")


def flaw(schema: Mapping[str, Any], schemas: Mapping[str, Any], value: Any) -> str | None:
    """Why a value does not fit a schema; None if it does."""
    for error in _validator(schema, schemas).iter_errors(value):
        at = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path).lstrip(".")
        message: str = error.message
        return f"{at}: {message}" if at else message
    return None
