"""Identify callers by a token, or by the cookie that a browser got for one."""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie
from typing import Any, Literal

from starlette.requests import Request

from perdure.client.client import Client
from perdure.client.credentials import MAX_TEXT, SESSION_SECONDS, Credential, Credentials
from perdure.server import shapes
from perdure.server.access import Access
from perdure.server.guards import SAFE, is_loopback, without_port
from perdure.server.messages import audit
from perdure.server.problems import Problem
from perdure.server.routing import Call, Reply, Route

# With this prefix, browsers send the cookie over HTTPS only (or to this machine), to this host, for every path.
COOKIE = "__Host-perdure"
# At most how often the last use of a token is recorded.
NOTED_SECONDS = 60.0


class Tokens:
    """Looks up tokens in the store: `asgi(access=Tokens(engine))`, or called in your own access function.

    Tokens are created by `perdure token new`.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        # When the use of each token was last recorded, by its id, by the client's clock.
        self._noted: dict[str, float] = {}

    async def __call__(self, request: Request) -> Access | None:
        """The access of the caller; None without a valid token."""
        credentials = self._client._credentials
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        by: Literal["token", "cookie"] = "token" if scheme.lower() == "bearer" else "cookie"
        if by == "token":
            found = await credentials.check("token", text.strip())
        else:
            cookie = cookie_of(request)
            found = await credentials.check("session", cookie) if cookie else None
        if found is None:
            return None
        if request.method not in SAFE:  # a read must not write to the store
            await self._note(credentials, found)
        return Access(found.name, found.may, found.programs, found.redact, by=by, expires_at=found.expires_at)

    async def _note(self, credentials: Credentials, found: Credential) -> None:
        id, now = found.token or found.id, self._client.clock.now()
        if now - self._noted.get(id, float("-inf")) >= NOTED_SECONDS:
            self._noted[id] = now
            await credentials.note_use(found)


def cookie_of(request: Request) -> str:
    """The session in the cookie of a browser; empty if there is none."""
    found: SimpleCookie = SimpleCookie()
    try:
        found.load(request.headers.get("cookie", ""))
    except CookieError:
        return ""
    morsel = found.get(COOKIE)
    return "" if morsel is None or len(morsel.value) > MAX_TEXT else morsel.value


async def sign_in(call: Call[None, shapes.SessionBody]) -> Reply:
    """Exchange a token for a cookie, which lasts for 12 hours and no longer than the token."""
    credentials = await _credentials(call)
    origin = call.request.headers.get("origin", "")
    if origin.startswith("http://") and not is_loopback(without_port(origin.removeprefix("http://"))):
        raise Problem(
            409,
            "insecure_page",
            f"the browser would drop the session: it keeps one for HTTPS or this machine, and this is {origin}",
            hint="open the page over https, through a proxy with TLS; programs send the token in Authorization",
        )
    token = await credentials.check("token", call.body.token)
    if token is None:
        audit.warning("a token was refused")
        raise Problem(401, "unauthorized", "this token does not exist, has expired, or was revoked")
    left = SESSION_SECONDS if token.expires is None else token.expires - call.service.client.clock.now()
    ttl = max(1.0, min(SESSION_SECONDS, left))
    issued = await credentials.issue("session", token.name, ttl=ttl, token=token.id)
    await credentials.note_use(token)
    audit.info("%s: signed in", token.name)
    cookie = f"{COOKIE}={issued.text}; Path=/; Max-Age={int(ttl)}; HttpOnly; Secure; SameSite=Strict"
    return Reply(shapes.Session(token.name, issued.credential.expires_at), headers={"Set-Cookie": cookie})


async def sign_out(call: Call[None, None]) -> Reply:
    """End the session of this browser."""
    credentials = await _credentials(call)
    session = await credentials.check("session", cookie_of(call.request))
    if session is not None:
        _ = await credentials.revoke("session", session.id)
        audit.info("%s: signed out", session.name)
    cookie = f"{COOKIE}=; Path=/; Max-Age=0; HttpOnly; Secure; SameSite=Strict"
    return Reply(shapes.Done("accepted"), headers={"Set-Cookie": cookie})


async def _credentials(call: Call[Any, Any]) -> Credentials:
    if not call.service.signs_in:
        raise Problem(409, "no_sessions", "this server takes no tokens: it knows by other means who a request is from")
    await call.service.ready()
    return call.service.client._credentials


ROUTES = (
    Route(
        method="POST",
        path="session",
        role="any",
        handler=sign_in,
        body=shapes.SessionBody,
        result=shapes.Session,
        open=True,
    ),
    Route(method="DELETE", path="session", role="any", handler=sign_out, result=shapes.Done, open=True),
)
