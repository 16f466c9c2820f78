"""etcd's JSON gateway: one call at a time, to the first member that answers. Knows nothing of perdure's leases.

A call is repeated with the next member when one does not answer. The first may have carried out a write all the same,
so every write is a transaction that compares first, and `Reply.repeated` says that it was sent twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec

from perdure.errors import StoreUnavailable
from perdure.stores.etcd.address import Address

# The gRPC codes that are used here.
DEADLINE, NOT_FOUND, DENIED, EXHAUSTED, UNAVAILABLE, UNAUTHENTICATED = 4, 5, 7, 8, 14, 16
# Errors of OpenSSL for a server that answers a TLS handshake with something else, or not at all.
NO_TLS = ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF", "RECORD_LAYER", "record layer failure", "reset by peer")


class Reply(msgspec.Struct, frozen=True):
    """An answer of etcd. `repeated`: an earlier try was sent, and its outcome is unknown."""

    body: dict[str, Any]
    repeated: bool = False


class Refused(Exception):
    """etcd refused the request."""

    def __init__(self, code: int, message: str) -> None:
        self.code, self.message = code, message
        super().__init__(message)


class _Silent(Exception):
    """A member did not answer. `begun`: it may have carried out the request all the same."""

    def __init__(self, reason: str, *, begun: bool, again: bool = False) -> None:
        self.reason, self.begun, self.again = reason, begun, again
        super().__init__(reason)


class Gateway:
    """The members of one cluster."""

    def __init__(self, address: Address, quiet: float) -> None:
        self.address, self._quiet = address, quiet
        self._context = address.context()
        self._base = [f"{'https' if address.tls else 'http'}://{endpoint}/v3/" for endpoint in address.endpoints]
        self._at = 0
        self._client: httpx2.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._token = ""
        self._entering: asyncio.Lock | None = None
        self.calls = 0

    async def call(self, path: str, body: dict[str, Any]) -> Reply:
        """Try one member after the other until one answers.

        Raises Refused when etcd refuses this request, StoreUnavailable when the cluster cannot be used.
        """
        repeated = False
        for _ in range(3):
            token = await self._enter()
            try:
                found, again = await self._call_members(path, body, token)
                return Reply(found, repeated or again)
            except Refused as error:
                # A token lives for some minutes, and ends when etcd is restarted or its users are changed.
                stale = error.code == UNAUTHENTICATED or "auth store is old" in error.message
                if not (token and stale):
                    raise self._explained(error) from error
                if self._token == token:
                    self._token = ""
        raise StoreUnavailable(self.address.url, f"etcd does not accept its own tokens for {self.address.user!r}")

    @asynccontextmanager
    async def stream(self, path: str, body: dict[str, Any]) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The answers of etcd, as they come."""
        token = await self._enter()
        endpoint, base = self.address.endpoints[self._at], self._base[self._at]
        timeout = httpx2.Timeout(self.address.timeout, read=self._quiet)
        try:
            async with self._http().stream(
                "POST", base + path, content=msgspec.json.encode(body), headers=_headers(token), timeout=timeout
            ) as response:
                if response.status_code != 200:
                    raise _refusal(response.status_code, await response.aread(), self.address.tls)
                yield _results(response)
        except httpx2.ReadTimeout:
            return
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            self._at = (self._at + 1) % len(self._base)
            raise StoreUnavailable(self.address.url, f"{endpoint} {self._reason(error)}") from error
        except _Silent as error:
            self._at = (self._at + 1) % len(self._base)
            raise StoreUnavailable(self.address.url, f"{endpoint} {error.reason}") from error
        except Refused as error:
            if self._token == token:
                self._token = ""
            raise StoreUnavailable(self.address.url, f"{endpoint}: {error.message}") from error

    async def close(self) -> None:
        """Close all connections; the next call opens new ones."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()

    # --- authentication -----------------------------------------------------------------------------------------

    async def _enter(self) -> str:
        """The token to call with; empty where none is needed."""
        if not self.address.user or self._token:
            return self._token
        self._http()
        assert self._entering is not None
        async with self._entering:
            if not self._token:
                who = {"name": self.address.user, "password": self.address.password}
                try:
                    found, _ = await self._call_members("auth/authenticate", who, "")
                except Refused as error:
                    if "not enabled" in error.message:
                        reason = "it has no authentication; leave user and password out of the URL"
                    else:
                        reason = (
                            f"it does not let {self.address.user!r} in ({error.message}); correct user and password in "
                            "etcd://user:password@host:2379"
                        )
                    raise StoreUnavailable(self.address.url, reason) from error
                self._token = str(found["token"])
        return self._token

    # --- one member after the other -------------------------------------------------------------------------------

    async def _call_members(self, path: str, body: dict[str, Any], token: str) -> tuple[dict[str, Any], bool]:
        tried: dict[str, str] = {}
        begun = False
        left = len(self._base) + 1
        while left:
            left -= 1
            endpoint = self.address.endpoints[self._at]
            try:
                return await self._post(self._base[self._at], path, body, token), begun
            except _Silent as error:
                begun = begun or error.begun
                # An idle connection may have been closed by a restart: try that member twice.
                if not (error.again and endpoint not in tried):
                    self._at = (self._at + 1) % len(self._base)
                tried[endpoint] = error.reason
                if self.address.endpoints[self._at] in tried and not error.again:
                    break
        said = "; ".join(f"{endpoint} {reason}" for endpoint, reason in tried.items())
        raise StoreUnavailable(self.address.url, f"no member of etcd responds: {said}")

    async def _post(self, base: str, path: str, body: dict[str, Any], token: str) -> dict[str, Any]:
        self.calls += 1
        try:
            async with asyncio.timeout(self.address.timeout):
                response = await self._http().post(
                    base + path, content=msgspec.json.encode(body), headers=_headers(token), timeout=None
                )
        except TimeoutError as error:
            raise _Silent(f"did not respond within {self.address.timeout:g} s", begun=True) from error
        except httpx2.ConnectError as error:
            raise _Silent(self._reason(error), begun=False) from error
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            raise _Silent(self._reason(error), begun=True, again=True) from error
        if response.status_code != 200:
            raise _refusal(response.status_code, response.content, self.address.tls)
        try:
            found = msgspec.json.decode(response.content, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise _Silent("responds, but not as etcd does; check host and port", begun=True) from error
        return found

    def _http(self) -> httpx2.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._loop, self._entering = loop, asyncio.Lock()
            self._client = httpx2.AsyncClient(
                # Ignore the proxies of the environment: etcd is in the same network.
                verify=self._context or False,
                trust_env=False,
                limits=httpx2.Limits(max_connections=20, keepalive_expiry=120.0),
            )
        return self._client

    # --- what went wrong ------------------------------------------------------------------------------------------

    def _reason(self, error: BaseException) -> str:
        said = _said(error)
        if "CERTIFICATE_VERIFY_FAILED" in said:
            return f"shows a certificate that cannot be trusted ({said}); name its authority with ?ca=FILE"
        if self.address.tls and any(sign in said for sign in NO_TLS):
            return f"does not seem to speak TLS ({said}); if so, write etcd:// and leave ca, cert and key out"
        if "certificate required" in said.lower() or "bad certificate" in said.lower():
            return "requires a client certificate that it trusts; give ?cert=FILE&key=FILE"
        if isinstance(error, httpx2.ConnectError):
            return f"cannot be reached ({said}); start it, or correct host and port"
        if not self.address.tls:
            return f"broke the connection off ({said}); it may be starting, or speak TLS: etcds://host:2379?ca=FILE"
        if not self.address.cert:
            return f"broke the connection off ({said}); it may require a client certificate: ?cert=FILE&key=FILE"
        return f"broke the connection off ({said})"

    def _explained(self, error: Refused) -> Exception:
        url, said = self.address.url, error.message
        if error.code == EXHAUSTED and "space" in said:
            return StoreUnavailable(url, f"{said}; compact and defragment it, then `etcdctl alarm disarm`")
        if error.code == DENIED:
            cure = f"`etcdctl role grant-permission ROLE --prefix=true readwrite {self.address.prefix}/`"
            who = f"{self.address.user!r} may not read and write under {self.address.prefix!r}"
            return StoreUnavailable(url, f"{who} ({said}); allow it: {cure}")
        if not self.address.user and (error.code == UNAUTHENTICATED or "user name is empty" in said):
            return StoreUnavailable(url, f"it requires authentication ({said}); write etcd://user:password@host:2379")
        if error.code in (DEADLINE, EXHAUSTED, UNAVAILABLE):
            return StoreUnavailable(url, said)
        return error


def _said(error: BaseException | None) -> str:
    """The message of an error, or of its cause when it has none."""
    name = type(error).__name__
    while error is not None and not str(error):
        error = error.__cause__ or error.__context__
    return str(error) if error is not None else name


def _headers(token: str) -> dict[str, str]:
    return {"Authorization": token} if token else {}


def _refusal(status: int, content: bytes, tls: bool) -> Exception:
    """The error for an answer that is not 200."""
    try:
        body = msgspec.json.decode(content, type=dict[str, Any])
        code, message = int(body.get("code", 0)), str(body.get("message") or body.get("error") or "")
    except (msgspec.DecodeError, ValueError):
        if not tls and b"HTTPS server" in content:
            return _Silent("speaks TLS; write etcds://, and name its authority with ?ca=FILE", begun=False)
        if status == 404:
            return _Silent("responds, but not as etcd 3.4 or newer does; check host and port", begun=False)
        return _Silent(f"responds with HTTP {status}, which etcd does not; check host and port", begun=True)
    # A member without a leader, or one that is stopping: try another.
    if code in (UNAVAILABLE, DEADLINE):
        return _Silent(f"says: {message}", begun=True)
    return Refused(code, message)


async def _results(response: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if not line.strip():
            continue
        try:
            found = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise _Silent("responds, but not as etcd does", begun=True) from error
        if "error" in found:
            said = found["error"]
            raise Refused(0, str(said.get("message", said) if isinstance(said, dict) else said))
        yield found.get("result", {})
