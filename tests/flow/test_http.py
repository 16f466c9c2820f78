"""The component `http` reaches public addresses, and others only where it was allowed to."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure import UsageError
from perdure.authoring.flow import http as http_component
from perdure.authoring.flow.http import AddressRefused, HttpFailed, component, is_public
from tests.flow.writing import problems_of


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


SECRET = "s3cret-of-a"
SENDING = {
    "authorization": SECRET,
    "cookie": f"id={SECRET}",
    "x-api-key": SECRET,
    "private-token": SECRET,
    "proxy-authorization": SECRET,
    "accept": "text/csv",
    "user-agent": "flow",
}


async def test_another_origin_gets_no_header_that_may_be_a_credential() -> None:
    """Another scheme, another host and another port are another origin; another path, or the default port, is not."""
    seen: list[str] = []
    async with (
        serving({"/end": ok(b"1")}, seen) as other,
        serving({"/end": ok(b"1"), "/back": moved("/end")}, seen) as port,
    ):
        answers = {
            "/host": moved(f"http://b:{port}/end"),
            "/port": moved(f"http://a:{other}/end"),
            "/twice": moved(f"http://b:{port}/back"),
        }
        async with serving(answers, seen) as first:
            http = component(["a", "b"], local)
            for path, last in (("host", False), ("port", False), ("twice", False)):
                seen.clear()
                await http(f"http://a:{first}/{path}", headers=SENDING)
                assert SECRET in seen[0]
                assert (SECRET in "".join(seen[1:])) is last
                assert "accept: text/csv" in seen[-1]
                assert "user-agent: flow" in seen[-1]
    seen.clear()
    async with serving({"/end": ok(b"1"), "/a": moved("/end")}, seen) as port:
        await component(["a"], local)(f"http://a:{port}/a", headers=SENDING)
        assert SECRET in seen[1]


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ("https://a/", "http://a/", False),
        ("https://a:8443/", "http://a:8443/", False),
        ("https://a/", "https://a:8443/", False),
        ("https://a/", "https://a.b/", False),
        ("https://a/", "https://A:443/other?x=1", True),
        ("http://a:80/", "http://a/", True),
    ],
)
async def test_what_is_the_same_origin(monkeypatch: pytest.MonkeyPatch, first: str, second: str, kept: bool) -> None:
    sent: list[Any] = []

    class Answer:
        charset_encoding = None

        def __init__(self, location: str) -> None:
            self.status_code = 302 if location else 200
            self.headers = {"location": location} if location else {}

        async def aiter_raw(self) -> AsyncIterator[bytes]:
            yield b"done"

        async def aclose(self) -> None:
            pass

    async def answer(client: Any, method: str, url: str, headers: Any, *rest: Any) -> Answer:
        sent.append(headers)
        return Answer(second if len(sent) == 1 else "")

    monkeypatch.setattr(http_component, "_answer", answer)
    await component([])(first, headers={"Authorization": SECRET})
    assert ("authorization" in sent[1]) is kept


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["POST", "PUT", "post"])
async def test_another_origin_gets_no_body(status: int, method: str) -> None:
    seen: list[str] = []
    async with serving({"/end": ok(b"1")}, seen) as other:
        away = moved(f"http://a:{other}/end").replace(b"302", str(status).encode())
        async with serving({"/a": away}) as port:
            sending = component(["a"], local)(f"http://a:{port}/a", method, json={"password": SECRET})
            if status == 303 or (status in (301, 302) and method.upper() == "POST"):
                assert (await sending)["body"] == 1
                assert seen[0].startswith("get /end")
                assert "content-type" not in seen[0]
            else:
                with pytest.raises(UsageError, match="is not sent the body"):
                    await sending
                assert seen == []


def packed(body: bytes, encoding: str) -> bytes:
    return ok(body, "text/plain", f"Content-Encoding: {encoding}\r\n")


async def test_what_is_compressed_is_unpacked_up_to_the_limit_and_no_further() -> None:
    bomb = gzip.compress(bytes(8_000_000))
    twice = gzip.compress(b"one ") + gzip.compress(b"two")
    answers = {
        "/bomb": packed(bomb, "gzip"),
        "/deflated": packed(zlib.compress(bytes(8_000_000)), "deflate"),
        "/twice": packed(twice, "gzip"),
        "/empty": packed(b"", "gzip"),
        "/cut": packed(gzip.compress(b"x" * 1000)[:-9], "gzip"),
        "/none": packed(b"plain", "gzip"),
        "/br": packed(b"plain", "br"),
        "/both": packed(gzip.compress(gzip.compress(b"x")), "gzip, gzip"),
    }
    async with serving(answers) as port:
        http = component(["h"], local)

        async def body(path: str, **more: int) -> Any:
            return (await http(f"http://h:{port}/{path}", **more))["body"]

        tracemalloc.start()
        try:
            for path in ("bomb", "deflated"):
                with pytest.raises(UsageError, match="larger than 100,000 bytes"):
                    await body(path, max_bytes=100_000)
            assert tracemalloc.get_traced_memory()[1] < 2_000_000
        finally:
            tracemalloc.stop()
        assert await body("twice") == "one two"
        assert await body("twice", max_bytes=len(twice)) == "one two"
        assert await body("empty") == ""
        for path, why in (("cut", "in the middle"), ("none", "cannot be unpacked")):
            with pytest.raises(ConnectionError, match=why):
                await body(path)
        for path in ("br", "both"):
            with pytest.raises(UsageError, match="is not read"):
                await body(path)


async def test_every_address_of_a_host_is_tried_until_one_takes_a_connection() -> None:
    async def several(host: str, port: int) -> Sequence[str]:
        return {"h": ["127.0.0.2", "::1", "127.0.0.1"], "none": []}.get(host, ["127.0.0.2", "127.0.0.3"])

    seen: list[str] = []
    async with serving({"/a": ok(b"1")}, seen) as port:
        http = component(["h", "closed", "none"], several)
        assert (await http(f"http://h:{port}/a"))["body"] == 1
        # What was sent once is not sent again to another address, whatever comes back.
        with pytest.raises(HttpFailed):
            await http(f"http://h:{port}/none")
        assert len(seen) == 2
        for host in ("closed", "none"):
            with pytest.raises(ConnectionError):
                await http(f"http://{host}:{port}/a")


@pytest.mark.parametrize("url", ["http://h:99999/", "http://h:port/", "http://[::1/", "http://h:-1/"])
async def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is no address of the web"):
        await component(["h"], local)(url)


@pytest.mark.parametrize("given", ["method: 'GET /x'", "max_bytes: -1", "expect: [ok]", "expect: [99]", "headers: [a]"])
def test_arguments_of_a_request_are_checked_before_it_is_made(tmp_path: Path, given: str) -> None:
    found = problems_of(tmp_path, f"steps: [{{id: a, use: http, with: {{url: 'https://h/', {given}}}}}]")
    assert len(found) == 1
    assert "error F022" in found[0]
