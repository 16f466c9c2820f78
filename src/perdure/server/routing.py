"""The table of routes: path, permission, request and response of each. Serves nothing.

Routing, access checks, OpenAPI and tests all read this table.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from starlette.requests import Request

from perdure.server.access import Access, Role

if TYPE_CHECKING:
    from perdure.server.requested_run import RequestedRun
    from perdure.server.service import Service

Q = TypeVar("Q")
B = TypeVar("B")

KIB, MIB = 1024, 1024 * 1024
BODY_LIMIT = 4 * MIB
CAPSULE_LIMIT = 64 * MIB

JSON = "application/json"
SSE = "text/event-stream"
NDJSON = "application/x-ndjson"
BYTES = "application/octet-stream"


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A route without query parameters."""


@dataclass(frozen=True, slots=True)
class Call(Generic[Q, B]):
    """One request, decoded. `key` is its Idempotency-Key, if it has one."""

    service: Service
    request: Request
    access: Access
    path: Mapping[str, str]
    query: Q
    body: B
    key: str
    # Identifies the caller again; raises a Problem if the caller may no longer do this.
    admit: Callable[[], Awaitable[Access]]

    async def run(self) -> RequestedRun:
        """The run that the path and the query identify."""
        return await self.service.run(self.access, self.path["run"], getattr(self.query, "child", ""))

    @property
    def last_event_id(self) -> str:
        """The id of the last message that the client of a stream has received; empty if there is none."""
        return self.request.headers.get("last-event-id", "")[:100]


@dataclass(frozen=True, slots=True)
class Reply:
    """A response with more than its body: a status, headers, or an ETag for 304 responses."""

    result: Any
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    etag: str = ""


Handler = Callable[[Call[Any, Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One line of the table. `path` is below `api/v1/`; `{name}` is a segment, `{name:path}` may have slashes."""

    method: str
    path: str
    role: Role
    handler: Handler
    query: type[Any] = NoQuery
    body: type[Any] | None = None
    result: Any = None
    # For a stream: the type of the data of each kind of event.
    events: Mapping[str, type[Any]] = field(default_factory=dict)
    status: int = 200
    media: str = JSON
    # The media type of the request body.
    takes: str = JSON
    limit: int = BODY_LIMIT
    # Whether the body is optional.
    optional: bool = False
    # Whether a request has an effect: everything but GET, unless it only computes.
    unsafe: bool = True
    # Whether it is public: health, for example.
    open: bool = False

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names in its path."""
        return tuple(name for name, _ in _PARAMETER.findall(self.path))

    @property
    def template(self) -> str:
        """Its path as OpenAPI writes it."""
        return "/" + _PARAMETER.sub(r"{\1}", self.path)

    @property
    def name(self) -> str:
        """The unique name of the route."""
        return self.handler.__name__

    @property
    def summary(self) -> str:
        """The first line of the handler's docstring."""
        return (self.handler.__doc__ or "").strip().partition("\n")[0]

    @property
    def description(self) -> str:
        """The rest of the handler's docstring."""
        rest = (self.handler.__doc__ or "").strip().partition("\n")[2]
        return " ".join(rest.split())


_PARAMETER = re.compile(r"\{(\w+)(:path)?\}")


def _pattern(path: str) -> re.Pattern[str]:
    parts, at = [], 0
    for found in _PARAMETER.finditer(path):
        parts.append(re.escape(path[at : found.start()]))
        parts.append(f"(?P<{found[1]}>{'.+' if found[2] else '[^/]+'})")
        at = found.end()
    parts.append(re.escape(path[at:]))
    return re.compile("".join(parts), re.DOTALL)


class Table:
    """Routes, found by method and path."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        self.routes = routes
        self._patterns = [(_pattern(route.path), route) for route in routes]

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]] | tuple[str, ...]:
        """The first route that matches, with its path parameters; else the methods that the path allows, if any."""
        wanted = "GET" if method == "HEAD" else method
        allowed: dict[str, None] = {}
        for pattern, route in self._patterns:
            found = pattern.fullmatch(path)
            if found is None:
                continue
            if route.method == wanted:
                return route, found.groupdict()
            allowed[route.method] = None
        if "GET" in allowed:
            allowed["HEAD"] = None
        return tuple(allowed)
