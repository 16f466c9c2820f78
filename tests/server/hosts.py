"""Applications that have perdure mounted in them, and the proxies before them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from litestar import Litestar
from litestar.handlers import asgi as litestar_mount
from starlette.applications import Starlette
from starlette.routing import Mount

Application = Callable[..., Any]


def django_host(flows: Application) -> Application:
    """A project of Django that gives the prefix away in its `asgi.py`."""
    import django  # type: ignore[import-untyped]
    from django.conf import settings  # type: ignore[import-untyped]
    from django.core.asgi import get_asgi_application  # type: ignore[import-untyped]

    if not settings.configured:
        settings.configure(ROOT_URLCONF="tests.server.urls", ALLOWED_HOSTS=["*"], SECRET_KEY="x")
        django.setup()
    site = get_asgi_application()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/flows"):
            await flows({**scope, "root_path": scope.get("root_path", "") + "/flows"}, receive, send)
        else:
            await site(scope, receive, send)

    return application


def fastapi_host(flows: Application) -> Application:
    host = FastAPI()
    host.mount("/flows", flows)
    return host


def stripped(host: Application, prefix: str) -> Application:
    """A proxy that takes a prefix off the path, and says nothing."""

    async def proxy(scope: Any, receive: Any, send: Any) -> None:
        assert scope["path"].startswith(prefix), scope["path"]
        raw = scope["raw_path"][len(prefix) :]
        await host({**scope, "path": scope["path"][len(prefix) :], "raw_path": raw}, receive, send)

    return proxy


def told(host: Application, prefix: str, *, whole: bool = False) -> Application:
    """A server with `--root-path`; with `whole` it puts the prefix before the path, as uvicorn does."""

    async def server(scope: Any, receive: Any, send: Any) -> None:
        more = {"path": prefix + scope["path"], "raw_path": prefix.encode() + scope["raw_path"]} if whole else {}
        await host({**scope, "root_path": prefix, **more}, receive, send)

    return server


# By name: the host with the application in it, and the address that it has for browsers.
HOSTS: dict[str, tuple[Callable[[Application], Application], str]] = {
    "alone": (lambda flows: flows, "/"),
    "starlette": (lambda flows: Starlette(routes=[Mount("/flows", flows)]), "/flows/"),
    "nested": (lambda flows: Starlette(routes=[Mount("/a", Starlette(routes=[Mount("/b", flows)]))]), "/a/b/"),
    "fastapi": (fastapi_host, "/flows/"),
    "litestar": (
        lambda flows: Litestar(route_handlers=[litestar_mount("/flows", is_mount=True, copy_scope=True)(flows)]),
        "/flows/",
    ),
    "django": (django_host, "/flows/"),
    "alone behind a proxy that strips": (lambda flows: stripped(flows, "/corp/tools"), "/corp/tools/"),
    "starlette behind a proxy that strips": (
        lambda flows: stripped(Starlette(routes=[Mount("/flows", flows)]), "/corp"),
        "/corp/flows/",
    ),
    "fastapi behind a proxy that strips": (lambda flows: stripped(fastapi_host(flows), "/corp"), "/corp/flows/"),
    "fastapi that was told of the prefix": (
        lambda flows: stripped(told(fastapi_host(flows), "/corp"), "/corp"),
        "/corp/flows/",
    ),
    "fastapi whose server puts the prefix back": (
        lambda flows: stripped(told(fastapi_host(flows), "/corp", whole=True), "/corp"),
        "/corp/flows/",
    ),
    "litestar behind a proxy that strips": (
        lambda flows: stripped(
            Litestar(route_handlers=[litestar_mount("/flows", is_mount=True, copy_scope=True)(flows)]), "/corp"
        ),
        "/corp/flows/",
    ),
    "django behind a proxy that strips": (lambda flows: stripped(django_host(flows), "/corp"), "/corp/flows/"),
    "starlette behind a proxy that does not": (
        lambda flows: Starlette(routes=[Mount("/corp", Starlette(routes=[Mount("/flows", flows)]))]),
        "/corp/flows/",
    ),
    "fastapi behind a proxy that does not": (
        lambda flows: Starlette(routes=[Mount("/corp", fastapi_host(flows))]),
        "/corp/flows/",
    ),
}
