"""What lets a request in: the host application's own authentication, this machine alone, or tokens."""

from __future__ import annotations

import inspect
import ipaddress
from typing import Protocol

from starlette.requests import Request

from perdure.server.access import EVERYTHING, Access, Who
from perdure.server.problems import Problem

SAFE = ("GET", "HEAD", "OPTIONS")
# What a proxy adds. A request that carries one did not come from this machine, whatever its Host says.
_OF_PROXIES = ("forwarded", "x-real-ip", "via")

UNGUARDED = """\
This application has mounted perdure without saying who may use it, so only requests from this machine are served.
Say who may do what:

    async def who(request):                    # None is 401
        user = request.user                    # the host's own authentication
        return Access(user.name, may={"read", "run", "approve"})

    app.mount("/flows", engine.asgi(access=who))
"""


class Guard(Protocol):
    """Decides who a request is from."""

    async def admit(self, request: Request) -> Access:
        """Who it is. Raises a Problem for a request that is refused."""


class AskTheHost:
    """Asks the function that the host application gave."""

    def __init__(self, who: Who) -> None:
        self._who = who

    async def admit(self, request: Request) -> Access:
        """What the host says."""
        found = self._who(request)
        access = await found if inspect.isawaitable(found) else found
        if access is None:
            raise Problem(401, "unauthorized", "sign in first", headers={"WWW-Authenticate": "Bearer"})
        if not isinstance(access, Access):
            raise TypeError(f"access= gave {access!r:.80}, which is neither None nor an Access")
        return access


class ThisMachineOnly:
    """Serves requests that are addressed to this machine and came through no proxy."""

    async def admit(self, request: Request) -> Access:
        """Everything, to a request from here."""
        if not is_loopback(host_of(request)) or _came_through_a_proxy(request):
            raise Problem(403, "no_access", "this server does not know who you are", hint=UNGUARDED)
        return EVERYTHING


def _came_through_a_proxy(request: Request) -> bool:
    return any(name.startswith("x-forwarded") or name in _OF_PROXIES for name in request.headers)


def host_of(request: Request) -> str:
    """The name in the Host header, in lower case and without its port; empty if there is none, or several."""
    given = request.headers.getlist("host")
    if len(given) != 1:
        return ""
    return without_port(given[0])


def without_port(host: str) -> str:
    """A host without its port."""
    host = host.strip().lower()
    if host.startswith("["):
        end = host.find("]")
        return host[1:end] if end > 0 and (host[end + 1 :] == "" or host[end + 1 : end + 2] == ":") else ""
    name, colon, port = host.partition(":")
    return name.rstrip(".") if not colon or port.isdecimal() else ""


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its name alone."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_site(request: Request) -> None:
    """Refuse a request with an effect that a page of another site has a browser send.

    Browsers say where a request comes from; other clients say nothing, and have no cookies to be abused.
    """
    if request.method in SAFE:
        return
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        if site == "same-origin" or (site == "none" and has_bearer(request)):
            return
        raise _cross_site(f"it comes from another site (Sec-Fetch-Site: {site[:20]})")
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != request.headers.get("host", "").lower():
        raise _cross_site(f"its Origin is {origin[:100]!r}, and this is {request.headers.get('host', '')[:100]!r}")


def _cross_site(why: str) -> Problem:
    return Problem(
        403,
        "cross_site",
        f"the request was refused: {why}",
        hint="requests with an effect are sent by pages of this server, or by programs that send no Origin",
    )


def has_bearer(request: Request) -> bool:
    """Whether a token comes in a header, which no browser adds by itself."""
    return request.headers.get("authorization", "")[:7].lower() == "bearer "
