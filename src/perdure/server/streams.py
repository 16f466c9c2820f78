"""Send server-sent events: with keep-alive comments, a time limit, and a limit on open streams. Knows no run."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope, Send

from perdure.server.problems import Problem, problem_of
from perdure.server.routing import SSE


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Durations are in seconds."""

    retry_ms: int = 2000
    """How long a browser waits before it reconnects."""
    comment_every: float = 15.0
    """How often a comment is sent to keep the stream alive, and the caller's access is checked again."""
    longest: float = 600.0
    """The longest a stream stays open; then the client reconnects, perhaps to another server."""
    at_once: int = 256
    of_one: int = 64
    """How many of them one caller may have, where callers are told apart."""
    behind: int = 256
    """How many messages are buffered for a slow client before reading from the store pauses."""
    exit_poll: float = 1.0
    """How often to check whether the process is about to exit: its server waits for open streams."""


@dataclass(frozen=True, slots=True)
class Message:
    """One event of a stream."""

    data: bytes
    id: str = ""
    event: str = ""

    def encoded(self) -> bytes:
        """The message in the format of server-sent events."""
        head = (f"id: {self.id}\n" if self.id else "") + (f"event: {self.event}\n" if self.event else "")
        lines = b"\n".join(b"data: " + line for line in self.data.split(b"\n"))
        return head.encode() + lines + b"\n\n"


class Streams:
    """The number of open streams, and its limit."""

    def __init__(self, limits: StreamLimits = StreamLimits()) -> None:  # noqa: B008 - frozen
        self.limits = limits
        self.open = 0
        self._by_caller: Counter[str] = Counter()

    def take(self, caller: str = "") -> None:
        """Count one more, of a caller if they are told apart. Raises a Problem (503) when too many are open."""
        limits = self.limits
        if self.open >= limits.at_once:
            raise _too_many(f"{limits.at_once} streams are open, and that is the limit of this server")
        if caller and self._by_caller[caller] >= limits.of_one:
            raise _too_many(f"{caller} has {limits.of_one} open streams, and that is the limit for one caller")
        self.open += 1
        self._by_caller[caller] += 1

    def release(self, caller: str = "") -> None:
        """Count one less."""
        self.open -= 1
        self._by_caller[caller] -= 1
        if not self._by_caller[caller]:
            del self._by_caller[caller]


def _too_many(detail: str) -> Problem:
    hint = "close some, or try again in a moment"
    return Problem(503, "too_many_streams", detail, hint=hint, headers={"Retry-After": "5"})


class EventStream:
    """An ASGI response that sends messages as they come, until they end or the time limit is reached.

    `admit` raises a Problem once the caller may no longer see it. `caller` is whom it was counted for.
    """

    def __init__(
        self,
        streams: Streams,
        messages: AsyncIterator[Message],
        admit: Callable[[], Awaitable[object]],
        caller: str = "",
    ) -> None:
        self._streams, self._messages, self._admit, self._caller = streams, messages, admit, caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the messages end, the time is over, or the client disconnects."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            limits = self._streams.limits
            await _body(send, f"retry: {limits.retry_ms}\n\n".encode())
            if scope["method"] != "HEAD":
                await self._until_gone(receive, send, limits)
            with suppress(OSError):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._streams.release(self._caller)
            await self._close()

    async def _close(self) -> None:
        close: Any = getattr(self._messages, "aclose", None)
        if close is not None:
            with suppress(RuntimeError):
                await close()

    async def _until_gone(self, receive: Receive, send: Send, limits: StreamLimits) -> None:
        queue: asyncio.Queue[Message | None] = asyncio.Queue(limits.behind)
        pump = asyncio.create_task(self._pump(queue))
        gone = asyncio.create_task(_gone(receive))
        getting = asyncio.create_task(queue.get())
        try:
            now = time.monotonic()
            end, comment = now + limits.longest, now + limits.comment_every
            while now < end and not _is_exiting():
                until = min(end, comment, now + limits.exit_poll) - now
                done, _ = await asyncio.wait({getting, gone}, timeout=until, return_when=asyncio.FIRST_COMPLETED)
                now = time.monotonic()
                if gone in done:
                    return
                if getting in done:
                    message = getting.result()
                    if message is None:
                        return
                    getting = asyncio.create_task(queue.get())
                    await _body(send, message.encoded())
                if now >= comment:
                    comment = now + limits.comment_every
                    try:
                        await self._admit()
                    except Problem as problem:
                        await _body(send, Message(problem.body(""), event="problem").encoded())
                        return
                    if not done:
                        await _body(send, b": still here\n\n")
        except OSError:
            return  # the client has disconnected
        finally:
            for task in (pump, gone, getting):
                task.cancel()
            await asyncio.gather(pump, gone, getting, return_exceptions=True)

    async def _pump(self, queue: asyncio.Queue[Message | None]) -> None:
        try:
            async for message in self._messages:
                await queue.put(message)
        except Exception as error:
            problem = problem_of(error, "a stream")
            await queue.put(Message(problem.body(""), event="problem"))
        await queue.put(None)


_HEADERS = [
    (b"content-type", f"{SSE}; charset=utf-8".encode()),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]


async def _body(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _is_exiting() -> bool:
    """Whether the server is shutting down. It informs no application, and waits for open requests.

    uvicorn's signal handler is a method of its server, which has the flag. Other servers close open streams themselves.
    """
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True
