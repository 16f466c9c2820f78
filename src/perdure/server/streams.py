"""Server-sent events, sent: with comments, an end, and limits. Knows no run."""

from __future__ import annotations

import asyncio
import signal
import time
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
    """How long a browser waits before it connects again."""
    comment_every: float = 15.0
    """How often a comment shows that the stream is alive, and it is asked again whether the caller may see it."""
    longest: float = 600.0
    """After this the client connects again, perhaps to another server."""
    at_once: int = 256
    behind: int = 256
    """How many messages wait for a client that reads slowly, before the store is read no further."""
    exit_poll: float = 1.0
    """How often it is looked whether the process is about to exit: its server waits for open streams."""


@dataclass(frozen=True, slots=True)
class Message:
    """One event of a stream."""

    data: bytes
    id: str = ""
    event: str = ""

    def encoded(self) -> bytes:
        """As it is sent."""
        head = (f"id: {self.id}\n" if self.id else "") + (f"event: {self.event}\n" if self.event else "")
        lines = b"\n".join(b"data: " + line for line in self.data.split(b"\n"))
        return head.encode() + lines + b"\n\n"


class Streams:
    """The streams that are open, counted."""

    def __init__(self, limits: StreamLimits = StreamLimits()) -> None:  # noqa: B008 - frozen
        self.limits = limits
        self.open = 0

    def take(self) -> None:
        """Count one more; 503 when there are too many."""
        if self.open >= self.limits.at_once:
            raise Problem(
                503,
                "too_many_streams",
                f"{self.limits.at_once} streams are open, and that is the limit of this server",
                hint="close some, or try again in a moment",
                headers={"Retry-After": "5"},
            )
        self.open += 1


class EventStream:
    """An ASGI response that sends messages as they come, and ends when they end, or when its time is over.

    `admit` raises a Problem once the caller may no longer see it.
    """

    def __init__(
        self, streams: Streams, messages: AsyncIterator[Message], admit: Callable[[], Awaitable[object]]
    ) -> None:
        self._streams, self._messages, self._admit = streams, messages, admit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end, the limit, or the client's leaving."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            limits = self._streams.limits
            await _body(send, f"retry: {limits.retry_ms}\n\n".encode())
            if scope["method"] != "HEAD":
                await self._until_gone(receive, send, limits)
            with suppress(OSError):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._streams.open -= 1
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
            return  # the client has gone
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
    """Whether the server has been told to exit. It says so to no application, and waits for requests to end.

    The handler of its signal is a method of uvicorn's server; other servers end what is open by themselves.
    """
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True
