"""The component `http` reaches public addresses, and others only where it was allowed to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from perdure import UsageError
from perdure.authoring.flow import http as http_component
from perdure.authoring.flow.http import AddressRefused, HttpFailed, component, is_public


@asynccontextmanager
async def serving(answers: dict[str, bytes], seen: list[str] | None = None) -> AsyncIterator[int]:
    """A server on this machine that answers by path; the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        if seen is not None:
            seen.append(request.lower())
        path = request.split(" ")[1].partition("?")[0]
        writer.write(answers.get(path, b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\nConnection: close\r\n\r\nnone"))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def ok(body: bytes, kind: str = "application/json", more: str = "") -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{more}\r\n"
    return head.encode() + body


def moved(to: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()


async def local(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"]


async def test_json_is_decoded_and_what_is_no_success_fails() -> None:
    seen: list[str] = []
    async with serving({"/a": ok(b'{"n":1}'), "/t": ok(b"hi", "text/plain")}, seen) as port:
        http = component(["api.example"], local)
        found = await http(f"http://api.example:{port}/a", "POST", {"X-A": "b"}, {"q": "ä b"}, json={"x": 1})
        assert (found["status"], found["body"]) == (200, {"n": 1})
        assert seen[0].startswith("post /a?q=%c3%a4")
        assert f"host: api.example:{port}" in seen[0]
        assert "content-type: application/json" in seen[0]
        assert (await http(f"http://api.example:{port}/t"))["body"] == "hi"
        with pytest.raises(HttpFailed, match="answered with 404: none") as caught:
            await http(f"http://api.example:{port}/x")
        assert caught.value.status == 404
        assert (await http(f"http://api.example:{port}/x", expect=[404]))["body"] == "none"


async def test_what_is_too_large_is_not_read_to_its_end() -> None:
    async with serving({"/a": ok(b"x" * 100_000, "text/plain")}) as port:
        with pytest.raises(UsageError, match="larger than 1,000 bytes"):
            await component(["h"], local)(f"http://h:{port}/a", max_bytes=1000)


async def test_addresses_that_are_not_public_are_refused_also_behind_redirects_and_changing_names() -> None:
    for url in (
        "http://127.0.0.1/",
        "http://[::1]/",
        "http://169.254.169.254/latest",
        "http://0.0.0.0/",
        "http://[::ffff:10.0.0.1]/",
    ):
        with pytest.raises(AddressRefused):
            await component([])(url)
    async with serving({"/a": moved("http://169.254.169.254/"), "/b": moved("http://inner/")}) as port:
        calls: list[str] = []

        async def resolve(host: str, port: int) -> Sequence[str]:
            calls.append(host)
            return {"h": ["127.0.0.1"], "inner": ["10.0.0.1"]}.get(host, [host])

        for path in ("/a", "/b"):
            with pytest.raises(AddressRefused):
                await component(["h"], resolve)(f"http://h:{port}{path}")
        # The address that was checked is the one that is used: a name is resolved once for each request.
        assert calls == ["h", "169.254.169.254", "h", "inner"]


async def test_secrets_in_headers_are_not_sent_on_to_another_host() -> None:
    seen: list[str] = []
    async with (
        serving({"/end": ok(b"1")}, seen) as other,
        serving({"/a": moved(f"http://b:{other}/end")}, seen) as port,
    ):
        await component(["a", "b"], local)(f"http://a:{port}/a", headers={"Authorization": "s3cret", "X-B": "c"})
    assert "s3cret" in seen[0]
    assert "s3cret" not in seen[1]
    assert "x-b: c" in seen[1]


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://a/b", "http://", "//a", "http://me:pw@example.com/"])
async def test_what_is_no_address_of_the_web_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        await component([], local)(url)


async def test_a_server_that_says_nothing_does_not_hold_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_component, "SILENCE", 0.05)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    async def stuck(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        await silent(reader, writer)

    server = await asyncio.start_server(stuck, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionError, match=r"did not answer \(ReadTimeout"):
            await component(["h"], local)(f"http://h:{port}/")
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionError, match=rf"http://h:{port}/ did not answer \(ReadTimeout"):
            await component(["h"], local)(f"http://h:{port}/")
    with pytest.raises(ConnectionError, match=r"did not answer \(ConnectError"):
        await component(["h"], local)(f"http://h:{port}/")


async def test_redirects_end() -> None:
    async with serving({"/a": moved("/a")}) as port:
        with pytest.raises(UsageError, match="redirects more than 5 times"):
            await component(["h"], local)(f"http://h:{port}/a")


def test_addresses_in_disguise_are_seen_through() -> None:
    for one in ("10.0.0.1", "::ffff:127.0.0.1", "2002:7f00:1::", "fe80::1%eth0", "224.0.0.1", "100.64.0.1", "fd00::1"):
        assert not is_public(one), one
    for one in ("93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"):
        assert is_public(one), one
