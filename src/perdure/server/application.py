"""The ASGI application: lets a request in, finds its route, decodes it, calls the handler, encodes what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from functools import partial
from html import escape
from typing import Any, get_origin, get_type_hints

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from perdure.client.client import Client
from perdure.errors import UsageError
from perdure.logs import Log
from perdure.server import (
    answer_page,
    approvals,
    bulk,
    capsules,
    code,
    development,
    journals,
    live,
    messages,
    ops,
    runs,
    schedules,
    system,
    tokens,
)
from perdure.server.access import Access, Who
from perdure.server.bodies import read_body
from perdure.server.guards import SAFE, AskTheHost, Guard, KnownHosts, ThisMachineOnly, check_site
from perdure.server.mount import depth, inner_path, last_part
from perdure.server.openapi import openapi
from perdure.server.pages import SECURITY, page, static
from perdure.server.problems import MEDIA_TYPE, FieldError, Problem, of_validation, problem_of
from perdure.server.routing import JSON, Call, Reply, Route, Table
from perdure.server.service import Service, metrics_of
from perdure.server.streams import EventStream
from perdure.server.tokens import Tokens

log = Log("perdure.server")

API = "api/v1/"
ROUTES: tuple[Route, ...] = (
    *system.ROUTES,
    *runs.ROUTES,
    *ops.ROUTES,
    *journals.ROUTES,
    *live.ROUTES,
    *code.ROUTES,
    *messages.ROUTES,
    *approvals.ROUTES,
    *answer_page.ROUTES,
    *tokens.ROUTES,
    *bulk.ROUTES,
    *capsules.ROUTES,
    *schedules.ROUTES,
    *development.ROUTES,
)
# How long a query may be.
QUERY_LIMIT = 32 * 1024
# The longest Idempotency-Key.
MAX_KEY = 255

# How many items of a list are encoded in one turn of the event loop.
SLICE = 2000

_encode = msgspec.json.Encoder(enc_hook=repr).encode


class Server:
    """The application: `app.mount("/flows", engine.asgi())`."""

    def __init__(self, client: Client, guard: Guard, *, trace_url: str | None = None, metrics: bool = False) -> None:
        self.service = Service(client, trace_url)
        self.service.metrics = metrics_of(client) if metrics else None
        self.service.openapi = openapi(ROUTES)
        self.guard = guard
        self.service.signs_in = guard.signs_in
        self.table = Table(ROUTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            return
        request = Request(scope, receive)
        inner = inner_path(scope)
        try:
            response = await self._answer(request, inner)
        except ClientDisconnect:
            return
        except Exception as error:
            response = _refused(request, inner, problem_of(error, f"{request.method} {scope['path'][:200]}"))
        await response(scope, receive, send)

    async def _answer(self, request: Request, inner: str) -> Any:
        path = inner.removeprefix("/")
        self.guard.check(request)
        if len(request.url.query) > QUERY_LIMIT or len(path) > QUERY_LIMIT:
            raise Problem(414, "address_too_long", f"the address is longer than {QUERY_LIMIT:,} characters")
        if not path.startswith(API):
            return await self._page(request, inner, path)
        found = self.table.find(request.method, path.removeprefix(API))
        if not isinstance(found[0] if found else None, Route):
            raise await self._not_found(request, found)
        route, parameters = found
        assert isinstance(route, Route)
        assert isinstance(parameters, dict)
        admit = partial(self._admitted, request, route)
        access = await admit()
        check_site(request)
        for name, value in parameters.items():
            _check_text(name, value)
        query = _query(route, request.query_params)
        key = _key(request)
        body = await _body(route, request)
        if not route.open:
            await self.service.ready()
        call: Call[Any, Any] = Call(self.service, request, access, parameters, query, body, key, admit)
        return await _response(request, route, await route.handler(call))

    async def _admitted(self, request: Request, route: Route) -> Access:
        if route.open:
            return Access("public", ())
        access = await self._admit(request)
        if not access.allows(route.role):
            raise Problem(
                403,
                "forbidden",
                f"{access.name} may not do this: it takes the permission {route.role!r}",
                hint=f"{access.name} may: {', '.join(sorted(access.may)) or 'nothing'}",
            )
        return access

    async def _admit(self, request: Request) -> Access:
        if self.guard.signs_in:
            await self.service.ready()  # tokens are read from the store
        return await self.guard.admit(request)

    async def _not_found(self, request: Request, methods: Any) -> Problem:
        _ = await self._admit(request)  # the list of routes is not public
        if methods:
            allowed = ", ".join(methods)
            return Problem(405, "method_not_allowed", f"this takes {allowed}", headers={"Allow": allowed})
        return Problem(404, "no_such_route", "there is nothing at this address", hint="see openapi.json")

    async def _page(self, request: Request, inner: str, path: str) -> Response:
        """A file of the dashboard, or its page, whose script reads what the address means."""
        if path.startswith(answer_page.PATH):
            await self.service.ready()
            return await answer_page.page(self.service, request, path)
        if request.method not in ("GET", "HEAD"):
            raise Problem(405, "method_not_allowed", "this takes GET, HEAD", headers={"Allow": "GET, HEAD"})
        if not self.guard.signs_in:
            await self.guard.admit(request)
        if not inner:
            # Without the trailing slash, the browser would resolve relative addresses against the parent path.
            return Response(status_code=307, headers={"Location": f"{last_part(request.scope)}/", **SECURITY})
        return static(request, path) or page(depth(request.scope, inner))


async def _lifespan(receive: Receive, send: Send) -> None:
    """The ASGI lifespan protocol, for a server that is not mounted: acknowledge, and do nothing."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


# --- what comes in ---------------------------------------------------------------------------------------------------


def _query(route: Route, given: QueryParams) -> Any:
    hints = get_type_hints(route.query)
    values: dict[str, Any] = {}
    for name in given:
        if name not in hints:
            known = ", ".join(hints) or "none"
            raise Problem(
                422,
                "invalid_request",
                f"there is no query parameter {name[:40]!r}; there are: {known}",
                fields=[FieldError(f"/{name[:40]}", "it is not known")],
            )
        for one in given.getlist(name):
            _check_text(name, one)
        values[name] = given.getlist(name) if get_origin(hints[name]) is list else given[name]
    try:
        return msgspec.convert(values, route.query, strict=False)
    except msgspec.ValidationError as error:
        raise of_validation(error, "the query") from None


def _check_text(name: str, text: str) -> None:
    """Refuse what no id and no name holds, and PostgreSQL does not even compare."""
    if "\0" in text:
        detail = "it holds a null character"
        raise Problem(422, "invalid_request", f"{name}: {detail}", fields=[FieldError(f"/{name}", detail)])


def _key(request: Request) -> str:
    key = request.headers.get("idempotency-key", "")
    if len(key) > MAX_KEY or not key.isascii() or not key.isprintable():
        raise Problem(422, "invalid_request", f"Idempotency-Key: give at most {MAX_KEY} printable ASCII characters")
    return key


async def _body(route: Route, request: Request) -> Any:
    if route.method in SAFE or (route.body is None and route.takes == JSON):
        return None
    data = await read_body(request, route.limit)
    if route.takes != JSON:
        return data
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not data and route.optional and media in ("", JSON):
        data = b"{}"
    elif media != JSON:
        raise Problem(415, "not_json", f"the body is {media[:60] or 'of no type'}; send Content-Type: {JSON}")
    assert route.body is not None
    try:
        return msgspec.json.decode(data, type=route.body)
    except msgspec.ValidationError as error:
        raise of_validation(error, "the body") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Problem(400, "malformed_json", f"the body is not JSON: {reason}") from None


# --- what goes out ---------------------------------------------------------------------------------------------------

_NO_STORE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


async def _response(request: Request, route: Route, result: Any) -> Any:
    if isinstance(result, Reply):
        headers: Mapping[str, str] = {**result.headers, **({"ETag": result.etag} if result.etag else {})}
        status, result = result.status or route.status, result.result
    elif isinstance(result, Response | EventStream):
        if isinstance(result, Response):
            result.headers.update({name: value for name, value in _NO_STORE.items() if name not in result.headers})
        return result
    else:
        headers, status = {}, route.status
    if status == 304:
        return Response(status_code=304, headers={**_NO_STORE, "Cache-Control": "no-cache", **headers})
    body = await encoded(result)
    return Response(body, status, headers={**_NO_STORE, **headers, "Content-Type": JSON})


async def encoded(result: Any) -> bytes:
    """A response as JSON, encoded in slices, between which other tasks of the event loop run."""
    if not isinstance(result, msgspec.Struct):
        return _encode(result)
    parts: list[bytes] = []
    for name in result.__struct_fields__:
        value = getattr(result, name)
        parts.append(b',"%b":' % name.encode())
        if not isinstance(value, list) or len(value) <= SLICE:
            parts.append(_encode(value))
            continue
        for start in range(0, len(value), SLICE):
            parts += [b"," if start else b"[", _encode(value[start : start + SLICE])[1:-1]]
            await asyncio.sleep(0)
        parts.append(b"]")
    return b"{" + b"".join(parts)[1:] + b"}"


def _refused(request: Request, inner: str, problem: Problem) -> Response:
    headers = {**_NO_STORE, **problem.headers}
    if not inner.startswith(f"/{API}") and "text/html" in request.headers.get("accept", ""):
        text = f"<!doctype html><title>perdure</title><h1>{problem.status}</h1><p>{escape(problem.detail)}</p>"
        if problem.hint:
            text += f"<pre>{escape(problem.hint)}</pre>"
        return Response(text, problem.status, headers={**SECURITY, **headers}, media_type="text/html")
    # The address in the body is relative, as all of them are: only the proxy knows the prefix that it removed.
    body = problem.body(inner.removeprefix("/"))
    return Response(body, problem.status, headers={**headers, "Content-Type": MEDIA_TYPE})


def app(
    client: Client,
    *,
    access: Who | None = None,
    trace_url: str | None = None,
    hosts: Collection[str] | None = None,
    metrics: bool = False,
) -> Server:
    """An ASGI application over an engine or a client, to be mounted: `app.mount("/flows", app(engine))`.

    `access` is asked who each request is from; without it only requests from this machine are served. `hosts` are the
    names that the server is reached by, where it is no part of another application. `metrics`: whether it serves the
    metrics to callers with that permission.
    """
    if not isinstance(metrics, bool):
        raise UsageError(f"asgi(metrics={metrics!r:.80}) must be True or False")
    if access is not None and not callable(access):
        raise UsageError(f"asgi(access={access!r:.80}): give a function of the request that returns an Access or None")
    guard: Guard = ThisMachineOnly()
    if access is not None:
        guard = AskTheHost(access, signs_in=isinstance(access, Tokens))
    guard = guard if hosts is None else KnownHosts(guard, hosts)
    return Server(client, guard, trace_url=trace_url, metrics=metrics)
