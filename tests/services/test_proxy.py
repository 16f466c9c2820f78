"""The proxy does each of its faults, to the byte, and heals. Before it: a server that says back what it hears."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator

import asyncpg  # type: ignore[import-untyped]
import pytest

from tests.services.proxy import Direction, Proxy
from tests.services.servers import free_port

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo:
    """Says back what it hears, and remembers it."""

    def __init__(self) -> None:
        self.heard = b""
        self.port = 0
        self.changed = asyncio.Event()
        self.gone = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                self.heard += data
                writer.write(data)
                await writer.drain()
                self.changed.set()
        except ConnectionError:
            pass
        finally:
            self.gone += 1
            self.changed.set()
            writer.close()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    echo.port = server.sockets[0].getsockname()[1]
    yield echo
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.port) as proxy:
        yield proxy


@pytest.mark.parametrize("gone", [True, False])
async def test_a_proxy_that_stops_closes_what_it_has_just_accepted(echo: Echo, gone: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(30):
            with Proxy(echo.port) as proxy, socket.create_connection(("127.0.0.1", proxy.port)) as client:
                if gone:
                    client.close()
                proxy.stop()
        # One search for all rounds: it goes through everything that the process has.
        gc.collect()
    assert [str(one.message) for one in caught] == []


async def connect(proxy: Proxy) -> Streams:
    return await asyncio.open_connection("127.0.0.1", proxy.port)


async def ask(streams: Streams, data: bytes) -> bytes:
    reader, writer = streams
    writer.write(data)
    await writer.drain()
    return await reader.readexactly(len(data))


async def is_reset(streams: Streams) -> bool:
    """Wait for the end of a connection, and say whether it was a reset."""
    try:
        await streams[0].read()
    except ConnectionResetError:
        return True
    return False


async def held(proxy: Proxy, direction: Direction) -> None:
    """Wait until bytes got stuck."""
    while not proxy.held[direction]:
        await asyncio.sleep(0)


async def test_bytes_pass_in_both_directions_and_the_end_of_each(proxy: Proxy, echo: Echo) -> None:
    reader, writer = streams = await connect(proxy)
    data = bytes(range(256)) * 4_000
    assert await ask(streams, data) == data
    writer.write_eof()
    assert await reader.read() == b""
    assert echo.heard == data
    assert (proxy.passed["up"], proxy.passed["down"], proxy.accepted) == (len(data), len(data), 1)
    writer.close()


async def test_a_delay_is_taken_in_each_direction(echo: Echo) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    with Proxy(echo.port, sleep=sleep) as proxy:
        streams = await connect(proxy)
        assert await ask(streams, b"quick") == b"quick"
        proxy.delay(0.25)
        assert await ask(streams, b"slow") == b"slow"
        assert slept == [0.25, 0.25]
        proxy.heal()
        assert await ask(streams, b"quick") == b"quick"
        assert slept == [0.25, 0.25]
        streams[1].close()


async def test_requests_get_stuck_on_the_way_up_and_arrive_after_healing(proxy: Proxy, echo: Echo) -> None:
    streams = await connect(proxy)
    proxy.blackhole("up")
    asked = asyncio.create_task(ask(streams, b"late"))
    await held(proxy, "up")
    assert echo.heard == b""
    proxy.heal()
    assert await asked == b"late"
    assert proxy.held["up"] == 0
    streams[1].close()


async def test_replies_get_stuck_on_the_way_down_although_the_request_was_heard(proxy: Proxy, echo: Echo) -> None:
    streams = await connect(proxy)
    proxy.blackhole("down")
    asked = asyncio.create_task(ask(streams, b"late"))
    await held(proxy, "down")
    assert echo.heard == b"late"
    assert not asked.done()
    proxy.heal()
    assert await asked == b"late"
    streams[1].close()


async def test_abandoned_connections_stay_open_and_new_ones_work(proxy: Proxy, echo: Echo) -> None:
    old_reader, old = await asyncio.open_connection("127.0.0.1", proxy.port)
    old.write(b"one")
    assert await old_reader.readexactly(3) == b"one"
    proxy.abandon()
    old.write(b"two")
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"new")
    assert await reader.readexactly(3) == b"new"
    assert echo.heard == b"onenew"
    proxy.heal()
    assert await old_reader.readexactly(3) == b"two"
    old.close()
    writer.close()


async def test_a_reply_is_lost_after_the_request_was_heard(proxy: Proxy, echo: Echo) -> None:
    streams = await connect(proxy)
    assert await ask(streams, b"one ") == b"one "
    proxy.lose_replies(1)
    streams[1].write(b"two ")
    assert await is_reset(streams)
    assert echo.heard == b"one two "
    again = await connect(proxy)
    assert await ask(again, b"three") == b"three"
    again[1].close()


@pytest.mark.parametrize("count", [0, 1, 5])
async def test_a_connection_is_reset_after_so_many_bytes_of_requests(proxy: Proxy, echo: Echo, count: int) -> None:
    streams = await connect(proxy)
    assert await ask(streams, b"ok") == b"ok"
    proxy.reset_after(count)
    streams[1].write(b"abcdef")
    assert await is_reset(streams)
    # The server hears a reset too, which may overtake what was sent before it.
    await echo.until(lambda: echo.gone == 1)
    assert proxy.passed["up"] == 2 + count
    assert b"okabcdef"[: 2 + count].startswith(echo.heard)


async def test_each_connection_is_reset_after_so_many_bytes_of_replies(proxy: Proxy, echo: Echo) -> None:
    proxy.reset_after(3, "down")
    for number in (1, 2):
        streams = await connect(proxy)
        streams[1].write(b"abcdef")
        assert await is_reset(streams)
        assert echo.heard == b"abcdef" * number
        assert proxy.passed["down"] == 3 * number


async def test_dropped_connections_are_reset_and_new_ones_refused_until_it_heals(proxy: Proxy, echo: Echo) -> None:
    streams = await connect(proxy)
    assert await ask(streams, b"ok") == b"ok"
    proxy.refuse()
    assert await is_reset(streams)
    try:
        refused = await connect(proxy)
        assert await is_reset(refused)
    except ConnectionResetError:
        pass
    proxy.heal()
    again = await connect(proxy)
    assert await ask(again, b"ok") == b"ok"
    assert echo.heard == b"okok"
    again[1].close()


async def test_a_cut_resets_what_is_open_and_lets_new_connections_in(proxy: Proxy) -> None:
    streams = [await connect(proxy) for _ in range(3)]
    assert [await ask(one, b"ok") for one in streams] == [b"ok"] * 3
    assert proxy.connections == 3
    proxy.cut()
    assert [await is_reset(one) for one in streams] == [True] * 3
    again = await connect(proxy)
    assert await ask(again, b"ok") == b"ok"
    assert proxy.connections == 1
    again[1].close()


async def test_a_server_that_is_not_there_is_a_reset() -> None:
    with Proxy(free_port()) as proxy:
        try:
            assert await is_reset(await connect(proxy))
        except ConnectionResetError:
            pass


def test_it_works_while_its_user_stands_still() -> None:
    # No event loop but its own; the server is a plain thread.
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            with listener.accept()[0] as accepted:
                accepted.sendall(b"hello")

        thread = threading.Thread(target=greet)
        thread.start()
        with Proxy(listener.getsockname()[1]) as proxy, socket.create_connection(("127.0.0.1", proxy.port)) as client:
            assert client.recv(5) == b"hello"
        thread.join()


def test_a_url_is_led_through_it() -> None:
    proxy = Proxy(5432)
    assert proxy.url("postgresql://a:b%40c@127.0.0.1:5432/db?pool=3") == (
        f"postgresql://a:b%40c@127.0.0.1:{proxy.port}/db?pool=3"
    )
    assert proxy.url("redis://127.0.0.1:6379/4") == f"redis://127.0.0.1:{proxy.port}/4"


async def test_a_commit_whose_reply_was_lost_is_a_commit(postgres_url: str) -> None:
    port = int(postgres_url.rpartition(":")[2].partition("/")[0])
    with Proxy(port) as proxy:
        connection = await asyncpg.connect(proxy.url(postgres_url))
        await connection.execute("create table kept (value int)")
        proxy.lose_replies(1)
        with pytest.raises((asyncpg.PostgresConnectionError, ConnectionError)):
            await connection.execute("insert into kept values (7)")
        again = await asyncpg.connect(proxy.url(postgres_url))
        assert await again.fetchval("select value from kept") == 7
        await again.close()
