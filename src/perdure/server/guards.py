"""Who is admitted: callers known to the host application, this machine alone, or holders of tokens."""

from __future__ import annotations

import inspect
import ipaddress
from collections.abc import Collection
from typing import Protocol

from starlette.requests import Request

from perdure.server.access import EVERYTHING, Access, Who
from perdure.server.problems import Problem

SAFE = ("GET", "HEAD", "OPTIONS")
# Headers that proxies add. A request with one of them did not come from this machine, whatever its Host header is.
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
    """Identifies the caller of a request, or refuses it."""

    @property
    def signs_in(self) -> bool:
        """Whether browsers sign in here: then the page, which holds no data, is served to everyone."""

    def check(self, request: Request) -> None:
        """Check a request of any kind before anything else. Raises a Problem to refuse it."""

    async def admit(self, request: Request) -> Access:
        """The access of the caller. Raises a Problem to refuse the request."""


class AskTheHost:
    """Calls the `access` function of the host application."""

    def __init__(self, who: Who, *, signs_in: bool = False) -> None:
        self._who, self.signs_in = who, signs_in

    def check(self, request: Request) -> None:
        """Nothing: the host application has checked it."""

    async def admit(self, request: Request) -> Access:
        """What the host's function returns."""
        found = self._who(request)
        access = await found if inspect.isawaitable(found) else found
        if access is None:
            raise Problem(401, "unauthorized", "sign in first", headers={"WWW-Authenticate": "Bearer"})
        if not isinstance(access, Access):
            raise TypeError(f"access= gave {access!r:.80}, which is neither None nor an Access")
        return access


class ThisMachineOnly:
    """Serves requests that were sent from this machine, are addressed to it, and came through no proxy."""

    signs_in = False

    def check(self, request: Request) -> None:
        """Nothing beyond `admit`."""

    async def admit(self, request: Request) -> Access:
        """Full access, for requests from this machine."""
        if not _peer_is_here(request) or not is_loopback(host_of(request)) or _came_through_a_proxy(request):
            raise Problem(403, "no_access", "this server does not know who you are", hint=UNGUARDED)
        return EVERYTHING


class KnownHosts:
    """Serves requests whose Host header is a name of this server or an IP address, against DNS rebinding."""

    def __init__(self, guard: Guard, names: Collection[str]) -> None:
        self._guard, self._names = guard, frozenset(name.lower() for name in names)

    @property
    def signs_in(self) -> bool:
        """As the guard behind it."""
        return self._guard.signs_in

    def check(self, request: Request) -> None:
        """Refuse a request to another host."""
        host = host_of(request)
        if not (is_loopback(host) or host in self._names or _is_address(host)):
            raise Problem(
                421,
                "wrong_host",
                f"this server is not {host[:100]!r}" if host else "the request names no host, or several",
                hint="start it with --allow-host for each name that it is reached by",
            )
        self._guard.check(request)

    async def admit(self, request: Request) -> Access:
        """As the guard behind it."""
        return await self._guard.admit(request)


def _peer_is_here(request: Request) -> bool:
    """Whether the connection comes from this machine. A peer without an address, as behind a Unix socket, does not."""
    return request.client is not None and is_loopback(request.client.host)


def _came_through_a_proxy(request: Request) -> bool:
    """Whether a proxy has passed the request on: it says so, or it speaks HTTP/1.0, as nginx does if not told else."""
    if request.scope.get("http_version") == "1.0":
        return True
    return any(name.startswith("x-forwarded") or name in _OF_PROXIES for name in request.headers)


def host_of(request: Request) -> str:
    """The name in the Host header, in lower case and without its port; empty if there is none, or several."""
    given = request.headers.getlist("host")
    if len(given) != 1:
        return ""
    return without_port(given[0])


def without_port(host: str) -> str:
    """A host name without its port; empty if it is malformed."""
    host = host.strip().lower()
    if host.startswith("["):
        end = host.find("]")
        return host[1:end] if end > 0 and (host[end + 1 :] == "" or host[end + 1 : end + 2] == ":") else ""
    name, colon, port = host.partition(":")
    return name.rstrip(".") if not colon or port.isdecimal() else ""


def is_loopback(host: str) -> bool:
    """Whether a host name can only mean this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return False
    # A socket for both versions of IP has its IPv4 peers as ::ffff:127.0.0.1.
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback is True


def _is_address(host: str) -> bool:
    try:
        _ = ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def check_site(request: Request, *, anonymous: bool = False) -> None:
    """Refuse a request with an effect that a page of another site made a browser send (CSRF).

    Browsers name the site that a request comes from. Other clients do not, and have no cookies to be abused.
    `anonymous`: a form may hide its origin, as that of a page does which sends no referrer.
    """
    if request.method in SAFE:
        return
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        if site == "same-origin" or (site == "none" and has_bearer(request)):
            return
        raise _cross_site(f"it comes from another site (Sec-Fetch-Site: {site[:20]})")
    origins = request.headers.getlist("origin")
    origin = origins[0] if len(origins) == 1 else None if not origins else "several"
    if origin == "null" and anonymous:
        return
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
    """Whether the token is in a header, which no browser adds by itself."""
    return request.headers.get("authorization", "")[:7].lower() == "bearer "
