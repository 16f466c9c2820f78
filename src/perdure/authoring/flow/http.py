"""The component `http`: one request, to addresses that a flow may reach, with a limit on what comes back.

A name is resolved once, its addresses are checked, and the connection goes to the address that was checked: a name that
resolves otherwise a moment later makes no difference. Redirects are followed here, and checked likewise.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec

from perdure.errors import PerdureError, UsageError

MOST_BYTES, MOST_REDIRECTS = 5 * 1024 * 1024, 5
# How many seconds may pass without a connection, or without a byte. The `timeout` of a step is for the whole of it.
SILENCE = 60.0
# Addresses that a gateway translates to those of IPv4.
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# What is not sent on to another host.
_OWN = frozenset({"authorization", "cookie", "proxy-authorization", "host"})
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class HttpFailed(PerdureError):
    """A request had an answer that is no success. `status` is that of the answer."""

    def __init__(self, url: str, status: int, body: str) -> None:
        self.url, self.status, self.body = url, status, body
        super().__init__(f"{url} answered with {status}: {body[:500]}")


class AddressRefused(UsageError):
    """A flow may not reach an address."""

    def __init__(self, host: str, address: str) -> None:
        self.host, self.address = host, address
        super().__init__(
            f"{host} is {address}, which is no public address; if flows may reach it, allow it in the settings, as in "
            f"`flows: {{http: [{host}]}}`"
        )


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(one[4][0]) for one in found]


def component(private: Sequence[str], resolve: Resolve = resolve) -> Callable[..., Any]:
    """The component. `private`: hosts, with a port or without, that may be reached though they are not public."""
    allowed = {one.lower() for one in private}

    async def http(
        url: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        body: str | None = None,
        expect: Sequence[int] | None = None,
        max_bytes: int = MOST_BYTES,
    ) -> dict[str, Any]:
        """Make a request, and return `status`, `headers` and `body`: what JSON says, or text.

        `expect`: the statuses that are a success, otherwise 200 to 299. What has more than `max_bytes` is refused.
        """
        httpx = _library()
        if json is not None and body is not None:
            raise UsageError("http takes `json` or `body`, and not both")
        content = msgspec.json.encode(json) if json is not None else body.encode() if body is not None else None
        sent = {name.lower(): value for name, value in (headers or {}).items()}
        if json is not None:
            sent.setdefault("content-type", "application/json")
        target = str(httpx.URL(url, params=params)) if params else url
        # Without proxies and certificates of the environment, which a flow was not told about.
        async with httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=SILENCE) as client:
            for _ in range(MOST_REDIRECTS + 1):
                request, host = await _request(client, method, target, sent, content, allowed, resolve)
                with _answering(target):
                    answer = await client.send(request, stream=True)
                try:
                    if answer.status_code not in _REDIRECTS or "location" not in answer.headers:
                        with _answering(target):
                            data = await _read(answer, max_bytes)
                        return _result(answer, data, target, expect)
                finally:
                    await answer.aclose()
                target = urljoin(target, answer.headers["location"])
                if answer.status_code == 303 or (answer.status_code in (301, 302) and method == "POST"):
                    method, content = "GET", None
                if urlsplit(target).netloc.lower() != host:
                    sent = {name: value for name, value in sent.items() if name not in _OWN}
        raise UsageError(f"{url} redirects more than {MOST_REDIRECTS} times")

    return http


@contextmanager
def _answering(url: str) -> Iterator[None]:
    """Raises ConnectionError where there is no answer, or no end of it, and says to which request."""
    try:
        yield
    except _library().TransportError as error:
        why = f"{type(error).__name__}: {error}".rstrip(": ")
        raise ConnectionError(f"{url} did not answer ({why})") from error


def _library() -> Any:
    try:
        import httpx2
    except ImportError as error:
        raise UsageError("the component http needs a library: pip install 'perdure[flow]'") from error
    return httpx2


async def _request(
    client: Any,
    method: str,
    url: str,
    headers: Mapping[str, str],
    content: bytes | None,
    allowed: set[str],
    resolve: Resolve,
) -> tuple[Any, str]:
    """A request to an address that was checked, and the host that it is for."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url[:80]} is no address of the web; it begins with https:// or http://")
    if parts.username is not None:
        raise UsageError("a URL with a password in it would be kept; give it as a header, from a secret")
    host = parts.hostname
    port = parts.port or (443 if parts.scheme == "https" else 80)
    addresses = await resolve(host, port)
    if not {host.lower(), f"{host.lower()}:{port}"} & allowed:
        for one in addresses:
            if not is_public(one):
                raise AddressRefused(host, one)
    address = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
    pinned = parts._replace(netloc=f"{address}:{port}", fragment="").geturl()
    request = client.build_request(method, pinned, headers={**headers, "host": parts.netloc}, content=content)
    request.extensions["sni_hostname"] = host
    return request, parts.netloc.lower()


def is_public(address: str) -> bool:
    """Whether an address is of the public internet, also one that is written as another kind."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if inner is not None and not is_public(str(inner)):
            return False
        if found in _TRANSLATED:
            return is_public(str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)))
        if found.is_site_local or (found.is_reserved and found.ipv4_mapped is None):
            return False
    return found.is_global and not found.is_multicast


async def _read(answer: Any, most: int) -> bytes:
    found = bytearray()
    async for part in answer.aiter_bytes():
        found += part
        if len(found) > most:
            raise UsageError(
                f"the answer is larger than {most:,} bytes; raise max_bytes, or fetch it in a step of your own"
            )
    return bytes(found)


def _result(answer: Any, data: bytes, url: str, expect: Sequence[int] | None) -> dict[str, Any]:
    text = data.decode(answer.charset_encoding or "utf-8", errors="replace")
    status: int = answer.status_code
    if not (200 <= status < 300 if expect is None else status in expect):
        raise HttpFailed(url, status, text)
    body: Any = text
    if "json" in answer.headers.get("content-type", ""):
        try:
            body = msgspec.json.decode(data)
        except msgspec.DecodeError:
            body = text
    return {"status": status, "headers": dict(answer.headers), "body": body}
