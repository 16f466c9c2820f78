"""A TCP proxy that does to connections what networks do: delay, drop, reset, lose replies, lose one direction.

Runs in a thread of its own, so that it goes on when whoever uses it stands still. All of it can be told from anywhere;
what is told holds for bytes that arrive afterwards, and for those that are being held.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import urllib.parse
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Literal, Self

from tests.patience import PATIENCE
from tests.services.servers import free_port

# Towards the server, and back to the client.
Direction = Literal["up", "down"]
CHUNK = 65_536


class Cut(Exception):
    """This connection is to be reset now."""


@dataclass(frozen=True, slots=True)
class Faults:
    """What the network does now. The default is a network without faults."""

    delay: float = 0.0
    # Bytes of these directions get stuck until it heals, as TCP has it: sent again and again, and not heard of.
    stuck: frozenset[Direction] = frozenset()
    # New connections are reset at once.
    refuse: bool = False
    # Connections are reset when so many more bytes have passed in that direction.
    reset_after: int | None = None
    reset_direction: Direction = "up"
    # So many requests are forwarded, and the connection is reset when the server answers; the answer is lost.
    lose_replies: int = 0


@dataclass(slots=True, eq=False)
class Link:
    """One connection through the proxy."""

    client: socket.socket
    server: socket.socket
    # Whether something went up and nothing has come down since.
    asked: bool = False
    # What may still pass before a reset, once there is such an order; and the order it was counted for.
    left: int | None = None
    order: object = None
    # Whether nothing passes any more, whatever new connections do.
    dead: bool = False
    pumps: list[asyncio.Task[None]] = field(default_factory=list)


class Proxy:
    """Listens on `port` and forwards to `target` on the loopback. A context manager, or `start` and `stop`."""

    def __init__(self, target: int, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self.target, self.port = target, free_port()
        # Connections accepted so far, and bytes passed on and held, by direction.
        self.accepted = 0
        self.passed: Counter[Direction] = Counter()
        self.held: Counter[Direction] = Counter()
        self._sleep = sleep
        self._faults = Faults()
        self._links: set[Link] = set()
        self._loop: asyncio.AbstractEventLoop
        self._changed = asyncio.Event()
        self._thread: threading.Thread | None = None
        self._order: object = None

    # --- from anywhere ---

    def start(self) -> Self:
        """Listen."""
        ready: Future[None] = Future()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(ready,), name=f"proxy to {self.target}", daemon=True)
        self._thread.start()
        ready.result(PATIENCE)
        return self

    def stop(self) -> None:
        """Reset every connection and stop listening."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(PATIENCE)
            self._thread = None

    def url(self, url: str) -> str:
        """The URL of a server, led through this proxy."""
        parts = urllib.parse.urlsplit(url)
        user, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}").geturl()

    @property
    def connections(self) -> int:
        """Connections that are open now."""
        return len(self._links)

    def delay(self, seconds: float) -> None:
        """Let everything take so much longer, in each direction."""
        self._tell(lambda: self._set(delay=seconds))

    def blackhole(self, *directions: Direction) -> None:
        """Let nothing through in these directions, both if none is named; connections stay open."""
        self._tell(lambda: self._set(stuck=frozenset(directions or ("up", "down"))))

    def abandon(self) -> None:
        """Let nothing through on the connections there are, which stay open; new ones work."""
        self._tell(self._abandon_all)

    def refuse(self) -> None:
        """Drop all connections, and reset new ones at once."""
        self._tell(lambda: self._set(refuse=True))
        self._tell(self._cut_all)

    def reset_after(self, count: int, direction: Direction = "up") -> None:
        """Reset each connection when it has let `count` more bytes pass; what is beyond them is lost."""
        self._tell(lambda: self._set(reset_after=count, reset_direction=direction))

    def lose_replies(self, times: int = 1) -> None:
        """Forward the next request of a connection, then reset it when the server answers; so many times."""
        self._tell(lambda: self._set(lose_replies=times))

    def cut(self) -> None:
        """Reset the connections there are."""
        self._tell(self._cut_all)

    def heal(self) -> None:
        """Be a network without faults again. What got stuck goes on."""
        self._tell(self._heal_all)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    # --- in the thread ---

    def _tell(self, change: Callable[[], object]) -> None:
        done: Future[None] = Future()

        def apply() -> None:
            try:
                change()
            finally:
                done.set_result(None)

        self._loop.call_soon_threadsafe(apply)
        done.result(PATIENCE)

    def _set(self, **changes: object) -> None:
        self._replace(replace(self._faults, **changes))  # type: ignore[arg-type]

    def _replace(self, faults: Faults) -> None:
        self._faults, self._order = faults, object()
        self._changed.set()
        self._changed = asyncio.Event()

    def _run(self, ready: Future[None]) -> None:
        asyncio.set_event_loop(self._loop)
        listener = socket.socket()
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", self.port))
            listener.listen(256)
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            self._loop.close()
            ready.set_exception(error)
            return
        serving: set[asyncio.Task[None]] = set()
        # Not sock_accept: cancelled at the wrong moment, it loses the socket that it has accepted.
        self._loop.add_reader(listener, self._accept, listener, serving)
        ready.set_result(None)
        try:
            self._loop.run_forever()
        finally:
            self._loop.remove_reader(listener)
            self._loop.run_until_complete(asyncio.sleep(0))  # a task that has not begun would not close its socket
            for task in serving:
                task.cancel()
            tasks = asyncio.all_tasks(self._loop)
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            listener.close()
            self._loop.close()

    def _accept(self, listener: socket.socket, serving: set[asyncio.Task[None]]) -> None:
        try:
            client, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        self.accepted += 1
        task = self._loop.create_task(self._serve(client))
        serving.add(task)
        task.add_done_callback(serving.discard)

    async def _serve(self, client: socket.socket) -> None:
        server = socket.socket()
        link = Link(client, server)
        self._links.add(link)
        try:
            for one in (client, server):
                one.setblocking(False)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._faults.refuse:
                raise Cut
            await self._loop.sock_connect(server, ("127.0.0.1", self.target))
            link.pumps = [
                self._loop.create_task(self._pump(link, client, server, "up")),
                self._loop.create_task(self._pump(link, server, client, "down")),
            ]
            await asyncio.gather(*link.pumps)
        except (Cut, OSError, asyncio.CancelledError):
            for one in (client, server):
                _reset_on_close(one)
        finally:
            for pump in link.pumps:
                pump.cancel()
            try:
                await asyncio.gather(*link.pumps, return_exceptions=True)
            finally:
                self._links.discard(link)
                client.close()
                server.close()

    async def _pump(self, link: Link, source: socket.socket, sink: socket.socket, direction: Direction) -> None:
        while data := await self._loop.sock_recv(source, CHUNK):
            let = await self._let(link, direction, len(data))
            await self._loop.sock_sendall(sink, data[:let])
            self.passed[direction] += let
            if let < len(data):
                raise Cut
            link.asked = direction == "up"
        # One side says no more; the other may still.
        await self._let(link, direction, 0)
        sink.shutdown(socket.SHUT_WR)

    async def _let(self, link: Link, direction: Direction, size: int) -> int:
        """How many of these bytes may pass, when they may."""
        if self._faults.delay and size:
            await self._sleep(self._faults.delay)
        while link.dead or direction in self._faults.stuck:
            self.held[direction] += size
            try:
                await self._changed.wait()
            finally:
                self.held[direction] -= size
        faults = self._faults
        if direction == "down" and link.asked and size and faults.lose_replies > 0:
            self._faults = replace(faults, lose_replies=faults.lose_replies - 1)
            raise Cut
        if faults.reset_after is None or direction != faults.reset_direction:
            return size
        if link.order is not self._order:
            link.order, link.left = self._order, faults.reset_after
        assert link.left is not None
        let = min(size, link.left)
        link.left -= let
        return let

    def _heal_all(self) -> None:
        for link in self._links:
            link.dead = False
        self._replace(Faults())

    def _abandon_all(self) -> None:
        for link in self._links:
            link.dead = True

    def _cut_all(self) -> None:
        for link in self._links:
            for one in (link.client, link.server):
                _reset_on_close(one)
            for pump in link.pumps:
                pump.cancel()


def _reset_on_close(one: socket.socket) -> None:
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass
