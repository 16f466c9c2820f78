"""`/metrics` as an ASGI application of its own. Needs no server library; the host decides who may ask."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from perdure.telemetry.prometheus import CONTENT_TYPE

Message = MutableMapping[str, Any]


class MetricsApp:
    """Answers GET with the text of all metrics, at whatever path it is mounted."""

    def __init__(self, read: Callable[[], Awaitable[str]]) -> None:
        self._read = read

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        if scope["type"] != "http":
            return
        if scope["method"] not in ("GET", "HEAD"):
            await _answer(send, 405, b"this takes GET, HEAD\n", [(b"allow", b"GET, HEAD")])
            return
        text = (await self._read()).encode()
        await _answer(send, 200, b"" if scope["method"] == "HEAD" else text, [(b"content-type", CONTENT_TYPE.encode())])


async def _answer(
    send: Callable[[Message], Awaitable[None]], status: int, body: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    headers = [*headers, (b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
