"""JSON Schemas in flows: checks them, and values against them. Fetches nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.errors import UsageError


def whole_schema(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with the schemas that it may refer to."""
    return {**schema, "schemas": dict(schemas)} if schemas else dict(schema)


def validator(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
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
    for error in validator(schema, schemas).iter_errors(value):
        at = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path).lstrip(".")
        message: str = error.message
        return f"{at}: {message}" if at else message
    return None
