"""What comes over the wire: requests that no HTTP library writes, to a server in a process."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from contextlib import suppress

import pytest

from perdure import Engine
from perdure.server import bodies
from perdure.server.routing import BODY_LIMIT
from tests.patience import PATIENCE
from tests.server.programs import PROGRAMS, quick
from tests.server.served import served

CANARY = "canary-id"


async def prepared(engine: Engine) -> None:
    _ = await engine.run(quick(1), id=CANARY)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(lambda: Engine("memory://", PROGRAMS), prepared) as (address, _):
        yield address


def connected(address: str) -> socket.socket:
    host, _, port = address.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), PATIENCE)


def sent(address: str, data: bytes) -> bytes:
    """What the server answers until it closes the connection, or has answered and reads no more."""
    with connected(address) as connection:
        found = b""
        with suppress(OSError):  # it may close while there is more to read
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            while part := connection.recv(65_536):
                found += part
        return found


LIST, START = b"GET /api/v1/runs HTTP/1.1\r\n", b"POST /api/v1/runs HTTP/1.1\r\n"
HOSTILE: dict[str, bytes] = {
    "HTTP/1.0": b"GET /api/v1/runs HTTP/1.0\r\nHost: localhost\r\n\r\n",
    "HTTP/1.0 without a host": b"GET /api/v1/runs HTTP/1.0\r\n\r\n",
    "HTTP/0.9": b"GET /api/v1/runs\r\n\r\n",
    "no host": LIST + b"\r\n",
    "two hosts": LIST + b"Host: localhost\r\nHost: evil.test\r\n\r\n",
    "two hosts, the other way": LIST + b"Host: evil.test\r\nHost: localhost\r\n\r\n",
    "another host": LIST + b"Host: evil.test\r\n\r\n",
    "a host with a user": LIST + b"Host: localhost@evil.test\r\n\r\n",
    "a host with a user and a port": LIST + b"Host: localhost:80@evil.test\r\n\r\n",
    "a host with a path": LIST + b"Host: localhost/evil.test\r\n\r\n",
    "a host with a fragment": LIST + b"Host: localhost#evil.test\r\n\r\n",
    "a list of hosts": LIST + b"Host: localhost, evil.test\r\n\r\n",
    "a host that begins right": LIST + b"Host: 127.0.0.1.evil.test\r\n\r\n",
    "a host in brackets": LIST + b"Host: [::1].evil.test\r\n\r\n",
    "an absolute address": b"GET http://localhost/api/v1/runs HTTP/1.1\r\nHost: evil.test\r\n\r\n",
    "an authority": b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a folded header": LIST + b"Host: localhost\r\nX: a\r\n X-Forwarded-For: b\r\nVia: 1.1 x\r\n\r\n",
    "a length and chunks": START
    + b"Host: evil.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": START + b"Host: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
    "a negative length": START + b"Host: localhost\r\nContent-Length: -1\r\n\r\n",
    "a chunk of no size": START + b"Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a header without end": LIST + b"Host: localhost\r\nX: " + b"x" * 200_000,
    "a thousand headers": LIST + b"Host: evil.test\r\n" + b"".join(b"X-%d: x\r\n" % n for n in range(1000)) + b"\r\n",
    "a request in a body": b"POST /api/v1/health/live HTTP/1.1\r\nHost: evil.test\r\nContent-Length: 0\r\n\r\n"
    + LIST
    + b"Host: evil.test\r\n\r\n",
    "nothing": b"\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
    "no text": b"\xff\xfe\x00\x01" * 100 + b"\r\n\r\n",
    "a websocket": b"GET /api/v1/events HTTP/1.1\r\nHost: evil.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_no_request_of_a_stranger_is_answered_with_data(address: str, what: str) -> None:
    answer = sent(address, HOSTILE[what])
    assert CANARY.encode() not in answer
    assert not answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 5")), answer[:200]
    assert b"Traceback" not in answer
    with urllib.request.urlopen(f"{address}/api/v1/runs", timeout=PATIENCE) as usual:
        assert CANARY in usual.read().decode()


def test_a_body_that_is_announced_too_large_is_not_waited_for(address: str) -> None:
    head = (
        b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
    )
    with connected(address) as connection:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % (BODY_LIMIT + 1))
        assert connection.recv(65_536).startswith(b"HTTP/1.1 413")


def test_a_body_that_never_ends_holds_up_no_other(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.2)
    head = START + b"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    slow = [connected(address) for _ in range(50)]
    try:
        for connection in slow:
            connection.sendall(head)
        with urllib.request.urlopen(f"{address}/api/v1/runs", timeout=PATIENCE) as usual:
            assert usual.status == 200
        for connection in slow:
            assert connection.recv(65_536).startswith(b"HTTP/1.1 408")
    finally:
        for connection in slow:
            connection.close()
