"""The table of routes: what is served, who may ask for it, and what goes in and out. Serves nothing.

Routing, access checks, OpenAPI and tests are made of the same table.
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
    from perdure.server.found_run import FoundRun
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
    # Asks again who the caller is; raises a Problem if the caller may not do this any more.
    admit: Callable[[], Awaitable[Access]]

    async def run(self) -> FoundRun:
        """The run that its path and its query name."""
        return await self.service.run(self.access, self.path["run"], getattr(self.query, "child", ""))

    @property
    def last_event_id(self) -> str:
        """The id of the message of a stream that came last, if there was one."""
        return self.request.headers.get("last-event-id", "")[:100]


@dataclass(frozen=True, slots=True)
class Reply:
    """A result with more than its body: a status, headers, or an ETag by which 304 is answered."""

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
    # Of a stream: what the data of each kind of its events is.
    events: Mapping[str, type[Any]] = field(default_factory=dict)
    status: int = 200
    media: str = JSON
    # What the body is, where it is no JSON.
    takes: str = JSON
    limit: int = BODY_LIMIT
    # Whether a body may be left out.
    optional: bool = False
    # Whether a request has an effect: everything but GET, unless it only computes.
    unsafe: bool = True
    # Whether it is answered without asking who it is: health.
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
        """A name that no other route has."""
        return self.handler.__name__

    @property
    def summary(self) -> str:
        """What it does, in a line."""
        return (self.handler.__doc__ or "").strip().partition("\n")[0]

    @property
    def description(self) -> str:
        """The rest of what is said about it."""
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
        """The first route that fits, with what its path says; or the methods that this path has, none if none."""
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
