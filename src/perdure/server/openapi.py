"""The OpenAPI 3.1 description of the routes, generated from their table; msgspec writes the schemas."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure import __version__
from perdure.server.problems import MEDIA_TYPE, ProblemBody
from perdure.server.routing import JSON, NoQuery, Route

REF = "#/components/schemas/{name}"

_HEADERS = {
    "Idempotency-Key": "A text that names this request: sent again, it has one effect.",
    "If-Match": "The ETag of the run that was looked at: 412 if it has moved on.",
    "If-None-Match": "The ETag of an earlier answer: 304 if nothing has changed.",
    "Last-Event-ID": "The id of the last event that was received; the stream goes on after it.",
}


def openapi(routes: tuple[Route, ...]) -> dict[str, Any]:
    """The description of these routes, as plain data."""
    types: list[Any] = [ProblemBody]
    for route in routes:
        types += [one for one in (route.result, route.body, *route.events.values()) if one is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    by_type = dict(zip(map(repr, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.template, {})[route.method.lower()] = _operation(route, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "perdure",
            "version": __version__,
            "description": "Runs of perdure over HTTP. Paths are relative to the mount, below `api/v1`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "."}],
        "security": [{"token": []}, {"cookie": []}, {}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "__Host-perdure"},
            },
        },
    }


def _operation(route: Route, by_type: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"operationId": route.name, "summary": route.summary, "tags": [route.path.split("/")[0]]}
    if route.description:
        found["description"] = route.description
    found["x-perdure-role"] = route.role
    found["parameters"] = [
        *(
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in route.parameters
        ),
        *_query(route),
        *({"name": n, "in": "header", "description": _HEADERS[n], "schema": {"type": "string"}} for n in _taken(route)),
    ]
    if route.takes != JSON:
        content: dict[str, Any] = {route.takes: {"schema": {"type": "string", "format": "binary"}}}
        found["requestBody"] = {"required": True, "content": content}
    elif route.body is not None:
        found["requestBody"] = {
            "required": not route.optional,
            "content": {JSON: {"schema": by_type[repr(route.body)]}},
        }
    schema = {"type": "string"} if route.result is None else by_type[repr(route.result)]
    if route.events:
        schema = _event(route, by_type)
    done: dict[str, Any] = {"description": "Done.", "content": {route.media: {"schema": schema}}}
    found["responses"] = {str(route.status): done}
    if route.status != 200 and route.method == "POST":
        found["responses"]["200"] = {**done, "description": "It had been done before."}
    if "If-None-Match" in _taken(route):
        found["responses"]["304"] = {"description": "Nothing has changed."}
    found["responses"]["default"] = {
        "description": "A problem.",
        "content": {MEDIA_TYPE: {"schema": REF_OF_PROBLEM}},
    }
    return found


def _event(route: Route, by_type: dict[str, Any]) -> dict[str, Any]:
    """The schema of one event of a stream, whose `data` is JSON."""
    kinds = [
        {
            "properties": {
                "event": {"const": kind},
                "data": {"type": "string", "contentMediaType": JSON, "contentSchema": by_type[repr(of)]},
            }
        }
        for kind, of in route.events.items()
    ]
    return {"type": "object", "required": ["data"], "properties": {"id": {"type": "string"}}, "anyOf": kinds}


REF_OF_PROBLEM = {"$ref": REF.format(name=ProblemBody.__name__)}


def _taken(route: Route) -> list[str]:
    """The request headers that a route reads."""
    if route.media == "text/event-stream":
        return ["Last-Event-ID"]
    if route.method == "GET":
        return ["If-None-Match"] if route.path == "runs/{run}" else []
    names = ["Idempotency-Key"] if route.method == "POST" and route.unsafe else []
    if "run" in route.parameters and route.unsafe:
        names.append("If-Match")
    return names


def _query(route: Route) -> list[dict[str, Any]]:
    if route.query is NoQuery:
        return []
    (schema,), components = msgspec.json.schema_components([route.query])
    schema = components[route.query.__name__]
    required = set(schema.get("required", ()))
    found = []
    for name, of in schema["properties"].items():
        one = {"name": name, "in": "query", "required": name in required, "schema": _nonnull(of)}
        if "description" in one["schema"]:
            one["description"] = one["schema"].pop("description")
        found.append(one)
    return found


def _nonnull(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an optional parameter: when it is given, it is not null."""
    schema = dict(schema)
    options = schema.pop("anyOf", None)
    default = schema.pop("default", None)
    if options is not None:
        rest = [one for one in options if one.get("type") != "null"]
        schema |= rest[0] if len(rest) == 1 else {"anyOf": rest}
    if default is not None and default != []:
        schema["default"] = default
    return schema
