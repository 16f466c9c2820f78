"""`/metrics` on its own address, for a process without an HTTP server. Supports only the HTTP that a scrape needs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from perdure.errors import UsageError
from perdure.kernel.values.raised import contained
from perdure.logs import log
from perdure.telemetry.prometheus import CONTENT_TYPE

# A scrape sends a few hundred bytes, at once, on few connections.
REQUEST_BYTES, REQUEST_SECONDS, CONNECTIONS = 16 * 1024, 10.0, 32


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address_of(text: str) -> Address:
    """The address in `127.0.0.1:9464` or `[::1]:9464`. Raises UsageError."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not host or (":" in host) != text.startswith("[") or not port.isascii() or not port.isdecimal():
        raise UsageError("an address is a host and a port, such as 127.0.0.1:9464 or [::1]:9464")
    if int(port) > 65535:
        raise UsageError(f"the port {port[:20]} is too large; the highest is 65535")
    return Address(host, int(port))


class MetricsListener:
    """Answers GET /metrics. Every process that reaches the address may read."""

    def __init__(self, read: Callable[[], Awaitable[str]]) -> None:
        self._read = read
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.address = Address("", 0)

    async def open(self, address: Address) -> None:
        """Listen. Raises OSError."""
        self._server = await asyncio.start_server(self._accept, address.host, address.port, limit=REQUEST_BYTES)
        self.address = Address(address.host, self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening, and end the open connections."""
        if self._server is not None:
            self._server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) <= CONNECTIONS:
                async with asyncio.timeout(REQUEST_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(await self._answer(head))
                    await writer.drain()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass  # gone, too slow, or no request
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if path not in (b"/metrics", b"/"):
            return _response("404 Not Found", b"the metrics are at /metrics\n")
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", b"this takes GET, HEAD\n", "Allow: GET, HEAD\r\n")
        try:
            text = (await self._read()).encode()
        except Exception as error:
            log.error(
                "telemetry: a scrape failed: the metrics could not be read; runs are not affected",
                exc_info=contained(error),
            )
            return _response("500 Internal Server Error", b"the metrics could not be read; see the log\n")
        answer = _response("200 OK", text, f"Content-Type: {CONTENT_TYPE}\r\n")
        return answer[: -len(text)] if method == b"HEAD" else answer


def _response(status: str, body: bytes, headers: str = "Content-Type: text/plain\r\n") -> bytes:
    head = f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body
