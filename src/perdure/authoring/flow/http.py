"""The component `http`: one request, to addresses that a flow may reach, with a limited answer.

A name is resolved once, its addresses are checked, and the connection goes to a checked address: it does not matter if
the name resolves to another address a moment later. Redirects are followed here, with the same checks.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any
from urllib.parse import SplitResult, urljoin, urlsplit

import msgspec

from perdure.errors import PerdureError, UsageError
from perdure.kernel.values.masking import has_secret, shortened

MOST_BYTES, MOST_REDIRECTS = 5 * 1024 * 1024, 5
# How many seconds may pass without a byte, and, for each address of a host, without a connection. The `timeout` of a
# step limits the whole request.
SILENCE, CONNECTING = 60.0, 15.0
# How much of the answer's body an error message shows.
_SHOWN = 500
# IPv6 addresses that a gateway translates to IPv4.
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}
# The headers that a redirect to another origin keeps. Any other header may be a credential.
_SENT_ON = frozenset({"accept", "accept-language", "content-type", "user-agent"})
_OF_BODY = frozenset({"content-type", "content-encoding", "content-language", "content-length"})
# The encodings of an answer, with their window bits for zlib.
_ENCODINGS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class HttpFailed(PerdureError):
    """The answer to a request is not a success. `status` is its status code."""

    def __init__(self, url: str, status: int, body: str) -> None:
        self.url, self.status, self.body = url, status, body
        super().__init__(f"{url} answered with {status}: {shortened(body, _SHOWN)}")


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
    """The component. `private`: non-public hosts, with or without a port, that may be reached."""
    allowed = {one.lower() for one in private}

    async def http(
        url: str,
        method: Annotated[str, msgspec.Meta(pattern="^[A-Za-z]+$")] = "GET",
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        body: str | None = None,
        expect: Sequence[Annotated[int, msgspec.Meta(ge=100, le=599)]] | None = None,
        max_bytes: Annotated[int, msgspec.Meta(ge=0)] = MOST_BYTES,
    ) -> dict[str, Any]:
        """Make a request, and return `status`, `headers` and `body`: decoded JSON, or text.

        `expect`: the statuses that are a success, otherwise 200 to 299. What has more than `max_bytes` is refused.
        """
        httpx = _library()
        if json is not None and body is not None:
            raise UsageError("http takes `json` or `body`, and not both")
        content = msgspec.json.encode(json) if json is not None else body.encode() if body is not None else None
        # Compressed answers are decompressed here, up to the limit and no further.
        sent = {"accept-encoding": "gzip", **{name.lower(): value for name, value in (headers or {}).items()}}
        if json is not None:
            sent.setdefault("content-type", "application/json")
        target = str(httpx.URL(url, params=params)) if params else url
        # Ignores proxies and certificates of the environment, which the flow does not mention.
        times = httpx.Timeout(SILENCE, connect=CONNECTING)
        async with httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=times) as client:
            for _ in range(MOST_REDIRECTS + 1):
                answer = await _answer(client, method, target, sent, content, allowed, resolve)
                try:
                    if answer.status_code not in _REDIRECTS or "location" not in answer.headers:
                        with _answering(target):
                            data = await _read(answer, max_bytes)
                        return _result(answer, data, target, expect)
                finally:
                    await answer.aclose()
                former, target = target, urljoin(target, answer.headers["location"])
                if _becomes_get(answer.status_code, method):
                    method, content = "GET", None
                    sent = {name: value for name, value in sent.items() if name not in _OF_BODY}
                if _origin(target) != _origin(former):
                    if content is not None:
                        raise UsageError(
                            f"{former} redirects to {shortened(target, _SHOWN)}, which is not sent the body of the "
                            "request; give that address, if it is to have it"
                        )
                    sent = {name: value for name, value in sent.items() if name in _SENT_ON and not has_secret(value)}
        raise UsageError(f"{url} redirects more than {MOST_REDIRECTS} times")

    return http


def _becomes_get(status: int, method: str) -> bool:
    """Whether a redirect is followed by a GET without a body, as in browsers."""
    return (status == 303 and method.upper() != "HEAD") or (status in (301, 302) and method.upper() == "POST")


@contextmanager
def _answering(url: str) -> Iterator[None]:
    """Raises ConnectionError, with the request, if there is no answer or it does not end."""
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


def _parts(url: str) -> tuple[SplitResult, str, int]:
    """The parts of a URL, its host and its port. Raises UsageError if it is no http or https URL."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError as error:
        raise UsageError(f"{shortened(url, 80)} is no address of the web: {error}") from None
    if parts.scheme not in _PORTS or not host:
        raise UsageError(f"{shortened(url, 80)} is no address of the web; it begins with https:// or http://")
    if parts.username is not None:
        raise UsageError("a URL with a password in it would be kept; give it as a header, from a secret")
    return parts, host, port


def _origin(url: str) -> tuple[str, str, int]:
    parts, host, port = _parts(url)
    return parts.scheme, host, port


async def _answer(
    client: Any,
    method: str,
    url: str,
    headers: Mapping[str, str],
    content: bytes | None,
    allowed: set[str],
    resolve: Resolve,
) -> Any:
    """The answer to a request, from the first checked address that accepts a connection."""
    parts, host, port = _parts(url)
    try:
        addresses = await resolve(host, port)
    except OSError as error:
        raise ConnectionError(f"{host} has no address ({error})") from error
    if not {host, f"{host}:{port}"} & allowed:
        for one in addresses:
            if not is_public(one):
                raise AddressRefused(host, one)
    httpx = _library()
    for number, one in enumerate(addresses, start=1):
        pinned = parts._replace(netloc=f"{f'[{one}]' if ':' in one else one}:{port}", fragment="").geturl()
        request = client.build_request(method, pinned, headers={**headers, "host": parts.netloc}, content=content)
        request.extensions["sni_hostname"] = host
        try:
            with _answering(url):
                return await client.send(request, stream=True)
        except ConnectionError as error:
            if number == len(addresses) or not isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout):
                raise
    raise ConnectionError(f"{host} has no address")


def is_public(address: str) -> bool:
    """Whether an address is public. An IPv4 address in the form of an IPv6 address is checked as IPv4."""
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
    """The body of an answer, decompressed up to the limit."""
    encoding = answer.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity", *_ENCODINGS):
        raise UsageError(
            f"the answer is encoded as {encoding[:40]}, which is not read; ask for it without that encoding"
        )
    unpacking = _Unpacking(_ENCODINGS[encoding]) if encoding in _ENCODINGS else None
    found, packed = bytearray(), 0
    async for part in answer.aiter_raw():
        packed += len(part)
        found += part if unpacking is None else unpacking.more(part, most + 1 - len(found))
        if max(len(found), packed) > most:
            raise UsageError(
                f"the answer is larger than {most:,} bytes; raise max_bytes, or fetch it in a step of your own"
            )
    if unpacking is not None and packed and not unpacking.ended:
        raise ConnectionError("the answer ends in the middle of what is compressed")
    return bytes(found)


class _Unpacking:
    """Decompresses a body, as far as it is asked to."""

    def __init__(self, kind: int) -> None:
        self._kind, self._inner = kind, zlib.decompressobj(kind)
        self.ended = False

    def more(self, data: bytes, most: int) -> bytes:
        """At most so many bytes from this and earlier input. Raises ConnectionError if the input is invalid."""
        found = bytearray()
        while data and len(found) < most:
            try:
                found += self._inner.decompress(data, most - len(found))
            except zlib.error as error:
                raise ConnectionError(f"the answer cannot be unpacked: {error}") from None
            self.ended = self._inner.eof
            # Several compressed files may follow each other.
            data = self._inner.unused_data
            if self.ended and data:
                self._inner = zlib.decompressobj(self._kind)
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
