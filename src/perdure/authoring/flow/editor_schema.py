"""The format of a flow as JSON Schema, for editors. The reader in format.py has the last word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from perdure.authoring.flow.definition import (
    CLEANUPS,
    FLOW_KEYS,
    JOB_KEYS,
    NAME,
    PROGRAM,
    RESERVED,
    SCHEDULE_KEYS,
    STATUSES,
    STEP_KEYS,
    TYPES,
    VERSION,
)
from perdure.kernel.schedules.schedule import Overlap


def schema() -> dict[str, Any]:
    """The format as JSON Schema, for editors."""
    text = {"type": "string"}
    spoken = {"type": "string", "pattern": r"^[0-9.]+ *(ms|s|m|min|h|d|w)$"}
    length = {"anyOf": [{"type": "number", "minimum": 0}, spoken]}
    name = {"type": "string", "pattern": f"^{NAME.pattern}$"}
    ids = {"anyOf": [text, {"type": "array", "items": text}]}
    value = _object({"value": {}}, ("value",))
    retry: dict[str, Any] = {
        "attempts": {"type": "integer", "minimum": 1},
        "initial": length,
        "factor": {"type": "number", "minimum": 1},
        "max": length,
        "backoff": {"enum": ["exponential", "linear", "none"]},
        "jitter": {"type": "boolean"},
    }
    mapped: dict[str, Any] = {
        "over": {},
        "as": name,
        "limit": {"type": "integer", "minimum": 1},
        "tolerate": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9.]+%$"}]},
        "on_error": {"enum": ["fail", "none", "skip"]},
    }
    held: dict[str, Any] = {"key": text, "ttl": length, "wait": length}
    lock = {"anyOf": [text, _object(held, ("key",))]}
    variable: dict[str, Any] = {"default": {}, "env": name, "secret": name, "description": text}
    variables: dict[str, Any] = {
        "type": "object",
        "propertyNames": name,
        "additionalProperties": {"if": {"type": "object"}, "then": _object(variable)},
    }
    said = {"type": "object", "anyOf": [{"required": ["env"]}, {"required": ["secret"]}]}
    resource = {
        "type": "object",
        "propertyNames": name,
        "additionalProperties": {"if": said, "then": _object(variable)},
    }
    resources = {"type": "object", "additionalProperties": resource}
    used: dict[str, Any] = {"type": "string", "minLength": 1}
    step: dict[str, Any] = {
        "id": {**name, "not": {"enum": sorted(RESERVED)}},
        "use": used,
        "with": {},
        "when": {},
        "needs": ids,
        "after": ids,
        "retry": {"anyOf": [{"type": "integer", "minimum": 1}, _object(retry)]},
        "timeout": length,
        "on_error": {"anyOf": [{"enum": ["fail", "skip"]}, value, _object({"use": used, "with": {}}, ("use",))]},
        "on_timeout": value,
        "map": _object(mapped, ("over",)),
        "lock": lock,
        "on_no_data": {"enum": ["skip_job"]},
        "must_run": {"type": "boolean"},
        "queue": {"type": "string", "minLength": 1},
        "repeat": _object({"until": {}, "max": {"type": "integer", "minimum": 1}}, ("until",)),
        "description": text,
    }
    steps = {"type": "array", "minItems": 1, "items": _object(step, ("id", "use"), STEP_KEYS)}
    job: dict[str, Any] = {
        "id": step["id"],
        "steps": steps,
        "in_order": {"type": "boolean"},
        "needs": ids,
        "after": ids,
        "when": {},
        "lock": lock,
        "description": text,
    }
    workspace: dict[str, Any] = {"root": {"type": "string", "minLength": 1}, "cleanup": {"enum": list(CLEANUPS)}}
    expect: dict[str, Any] = {"status": {"enum": list(STATUSES)}, "output": {}, "skipped": ids, "error": text}
    test: dict[str, Any] = {
        "name": text,
        "input": {"type": "object"},
        "mock": {"type": "object"},
        "fail": {"type": "object", "additionalProperties": text},
        "vars": {"type": "object"},
        "expect": _object(expect),
    }
    schedule: dict[str, Any] = {
        "id": name,
        "cron": text,
        "every": length,
        "timezone": text,
        "input": {"type": "object"},
        "overlap": {"enum": list(get_args(Overlap))},
        "catch_up": {"type": "string", "pattern": r"^(skip|one|all|all\([0-9]+\))$"},
        "jitter": length,
        "pause": {"type": "boolean"},
        "queue": text,
        "description": text,
    }
    when = {"oneOf": [{"required": ["cron"]}, {"required": ["every"]}]}
    flow: dict[str, Any] = {
        "perdure": {"const": VERSION},
        "name": {"type": "string", "pattern": rf"^(?!perdure\.){PROGRAM.pattern}$", "maxLength": 100},
        "version": text,
        "description": text,
        "inputs": {
            "type": "object",
            "propertyNames": name,
            "additionalProperties": {"anyOf": [{"enum": list(TYPES)}, {"type": "object"}]},
        },
        "variables": variables,
        "resources": {**resources, "propertyNames": name},
        "profiles": {
            "type": "object",
            "propertyNames": name,
            "additionalProperties": _object({"variables": variables, "resources": resources}),
        },
        "schemas": {"type": "object"},
        "steps": steps,
        "jobs": {"type": "array", "minItems": 1, "items": _object(job, ("id", "steps"), JOB_KEYS)},
        "output": {},
        "schedules": {"type": "array", "items": {**_object(schedule, (), SCHEDULE_KEYS), **when}},
        "tests": {"type": "array", "items": _object(test, ("name", "expect"))},
        "on_failure": {"enum": ["stop", "continue"]},
        "execution": {"enum": ["all", "lazy"]},
        "max_rounds": {"type": "integer", "minimum": 1},
        "finally": steps,
        "workspace": _object(workspace, ("root",)),
    }
    about = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:perdure:flow:{VERSION}",
        "title": "A flow of perdure",
    }
    either = {"oneOf": [{"required": ["steps"]}, {"required": ["jobs"]}]}
    return {**about, **_object(flow, ("perdure", "name"), FLOW_KEYS), **either}


def _object(
    keys: Mapping[str, dict[str, Any]], required: tuple[str, ...] = (), about: Mapping[str, str] | None = None
) -> dict[str, Any]:
    described = {key: {**one, "description": about[key]} if about else one for key, one in keys.items()}
    found = {"type": "object", "properties": described, "additionalProperties": False}
    return {**found, "required": list(required)} if required else found
