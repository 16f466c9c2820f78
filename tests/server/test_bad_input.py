"""What no client should send: it is taken whole or gets a clear problem, and the host application answers meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from perdure import Engine
from perdure.server import Tokens, app, bodies
from perdure.server.problems import MEDIA_TYPE
from perdure.server.routing import BODY_LIMIT, CAPSULE_LIMIT, JSON, MIB
from tests.patience import PATIENCE
from tests.server.conftest import client_of
from tests.server.hosts import django_host, fastapi_host
from tests.server.listener import Listener
from tests.server.programs import order, quick, waits
from tests.server.test_access import At

HEADERS = {"Content-Type": JSON}


async def hello(request: Any) -> PlainTextResponse:
    return PlainTextResponse("hello")


def starlette_host(flows: Any) -> Any:
    return Starlette(routes=[Route("/hello", hello), Mount("/flows", flows)])


@asynccontextmanager
async def host(engine: Engine, flows: Any = None) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application with a route of its own, and perdure mounted in it."""
    async with client_of(starlette_host(flows or engine.asgi()), "http://localhost/flows/api/v1/") as http:
        yield http
        assert (await http.get("http://localhost/hello")).text == "hello"


def nested(depth: int, pair: str = "[]") -> bytes:
    return pair[0].encode() * depth + b"1" + pair[1].encode() * depth


def with_keys(count: int) -> bytes:
    return b"{" + b",".join(b'"k%d":%d' % (number, number) for number in range(count)) + b"}"


MANY = with_keys(100_000)
# The body of a signal, and how it ends: `None` where it is taken, else the code of the problem.
PAYLOADS: dict[str, tuple[Callable[[], bytes], str | None]] = {
    "10 MB": (lambda: b'{"payload":"' + b"x" * (10 * MIB) + b'"}', "body_too_large"),
    "as much as a body may have": (lambda: b'{"payload":"' + b"x" * (BODY_LIMIT - 14) + b'"}', "payload_too_large"),
    "100 deep": (lambda: b'{"payload":' + nested(100) + b"}", None),
    "100 objects deep": (lambda: b'{"payload":' + b'{"a":' * 100 + b"1" + b"}" * 100 + b"}", None),
    "100,000 deep": (lambda: b'{"payload":' + nested(100_000) + b"}", "malformed_json"),
    "100,000 deep, unclosed": (lambda: b'{"payload":' + b"[" * 100_000, "malformed_json"),
    "100,000 keys": (lambda: b'{"payload":' + MANY + b"}", None),
    "10,000 keys": (lambda: b'{"payload":' + with_keys(10_000) + b"}", None),
    "100,000 fields": (lambda: MANY, "invalid_request"),
    "the same key a hundred thousand times": (lambda: b"{" + b'"payload":1,' * 100_000 + b'"payload":2}', None),
    "a number with 100,000 digits": (lambda: b'{"payload":' + b"9" * 100_000 + b"}", "invalid_request"),
    "a large exponent": (lambda: b'{"payload":1e999999}', "invalid_request"),
    "no number": (lambda: b'{"payload":NaN}', "malformed_json"),
    "a lone surrogate": (lambda: b'{"payload":"\\ud800"}', "malformed_json"),
    "no UTF-8": (lambda: b'{"payload":"\xff\xfe"}', "malformed_json"),
    "UTF-16": (lambda: '{"payload":1}'.encode("utf-16"), "malformed_json"),
    "a byte order mark": (lambda: b'\xef\xbb\xbf{"payload":1}', "malformed_json"),
    "a null character": (lambda: b'{"payload":"\\u0000"}', None),
    "nothing": (lambda: b"", None),
    "white space": (lambda: b" \n ", "malformed_json"),
    "two objects": (lambda: b"{}{}", "malformed_json"),
    "a list": (lambda: b"[]", "invalid_request"),
    "a comment": (lambda: b"{/* */}", "malformed_json"),
}


@pytest.mark.parametrize("what", PAYLOADS)
async def test_a_payload_is_taken_whole_or_refused(engine: Engine, what: str) -> None:
    make, code = PAYLOADS[what]
    run = await engine.run(waits(), id="w", until="rest")
    async with host(engine) as http:
        answer = await http.post(f"runs/{run.run_id}/signals/go", content=make(), headers=HEADERS)
        if code is None:
            assert answer.status_code == 200, answer.text
            assert (await engine.handle("w").result()) == json.loads(make() or b"{}").get("payload")
        else:
            assert answer.headers["content-type"] == MEDIA_TYPE
            assert (answer.json()["code"], answer.status_code // 100) == (code, 4), answer.text
            assert len(answer.content) < 4096
            assert (await engine.get("w")).status == "waiting"  # type: ignore[union-attr]
        for path in ("", "/journal", "/ops"):
            assert (await http.get(f"runs/{run.run_id}{path}")).status_code == 200, path


@pytest.mark.parametrize(
    "path", ["runs", "bulk", "schedules/x", "session", "capsules/view", "capsules", "upgrade-check"]
)
@pytest.mark.parametrize("said", [True, False])
async def test_a_body_that_is_too_large_is_not_read(engine: Engine, path: str, said: bool) -> None:
    read = 0
    limit = CAPSULE_LIMIT if path.startswith("capsules") else BODY_LIMIT

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += MIB
            yield b"x" * MIB

    async with host(engine, app(engine, access=Tokens(engine)) if path == "session" else None) as http:
        headers = {**HEADERS, **({"Content-Length": str(limit + 1)} if said else {})}
        method = "PUT" if path.startswith("schedules") else "POST"
        answer = await http.request(method, path, content=body(), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert read <= (MIB if said else limit + 2 * MIB)


def posted(path: str, media: str) -> dict[str, Any]:
    """The scope of a POST from this machine."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", media.encode())],
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
    }


@pytest.mark.parametrize("mounted", [starlette_host, fastapi_host, django_host])
@pytest.mark.parametrize("path", ["runs", "answer"])
async def test_a_body_that_never_ends_is_given_up(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, mounted: Any, path: str
) -> None:
    """It arrives a byte at a time, and then not at all; other requests are answered meanwhile."""
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.05)
    flows = engine.asgi()
    address, media = "/flows/api/v1/runs", JSON
    if path == "answer":
        run = await engine.run(order(1), until="rest")
        async with client_of(flows) as http:
            op = run.interrupts[0].path
            made = await http.post(f"runs/{run.run_id}/approvals/{op}/links", json={"person": "ann"})
        address, media = f"/flows/{made.json()['path']}", "application/x-www-form-urlencoded"
    began, never = asyncio.Event(), asyncio.Event()
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if began.is_set():
            await never.wait()
        began.set()
        return {"type": "http.request", "body": b"{", "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = posted(address, media)
    host_app = mounted(flows)
    task = asyncio.create_task(host_app(scope, receive, send))
    async with asyncio.timeout(PATIENCE):
        await began.wait()
        async with client_of(host_app, "http://localhost/flows/api/v1/") as http:
            assert (await http.get("runs")).status_code == 200
        await task
    assert sent[0]["status"] == 408
    assert b"too_slow" in sent[1]["body"]


async def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_nothing_behind(engine: Engine) -> None:
    flows, messages = engine.asgi(), [{"type": "http.request", "body": b'{"program":', "more_body": True}]

    async def receive() -> dict[str, Any]:
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise AssertionError(f"nobody hears it: {message}")

    scope = posted("/api/v1/runs", JSON)
    tasks = len(asyncio.all_tasks())
    await flows(scope, receive, send)
    assert len(asyncio.all_tasks()) == tasks
    assert await engine.list() == []


IDS = [
    *(
        "a/b",
        "/",
        "//",
        "..",
        "../..",
        "a/../b",
        ".",
        "😀",
        "é/ü",
        "a b",
        "a?b=c&d",
        "a#b",
        "100%",
        "%2F",
        "%00",
        "%",
        "+",
    ),
    *(
        "'; drop table runs; --",
        "<script>alert(1)</script>",
        "a" * 255,
        "日本" * 60,
        "a\u202eb",
        "~abc",
        "*",
        '"',
        "\\",
    ),
]


@pytest.mark.parametrize("id", IDS)
async def test_ids_are_free_text_everywhere(engine: Engine, id: str) -> None:
    async with host(engine) as http:
        asked = {"program": "waits", "id": id, "queue": "q", "key": id, "tags": {"t": id}}
        started = await http.post("runs", json=asked)
        assert started.status_code == 201, started.text
        found = await http.get("runs/by-id", params={"id": id})
        assert (found.status_code, found.json()["id"], found.json()["key"]) == (200, id, id)
        run_id = found.json()["run_id"]
        for query in ({"q": id}, {"tag": f"t:{id}"}):
            assert [run["id"] for run in (await http.get("runs", params=query)).json()["runs"]] == [id], query
        async with asyncio.timeout(PATIENCE):
            while (await http.get(f"runs/{run_id}")).json()["status"] != "waiting":
                await asyncio.sleep(0)
        # Names that stand in a path are sent as browsers do: with every character encoded.
        part = "".join(f"%{byte:02X}" for byte in id.encode())
        assert [one["key"] for one in (await http.get("queues/q")).json()["keys"]] == [id]
        made = await http.put(f"schedules/{part}", json={"program": "quick", "args": [1], "every": 3600})
        if len(id) < 150:  # ticks add to it
            assert made.json()["id"] == id
            assert (await http.get(f"schedules/{part}/next")).status_code == 200
            assert (await http.delete(f"schedules/{part}")).status_code == 200
        else:
            assert made.json()["code"] == "invalid_request"
        assert (await http.get("runs/by-id", params={"id": id})).json()["run_id"] == run_id
        for path in (part, f"{part}/journal", f"{run_id}/ops/{part}", f"{run_id}/values/{part}/{part}"):
            answer = await http.get(f"runs/{path}")
            assert answer.status_code in (404, 405), (path, answer.text)
            assert answer.headers["content-type"] == MEDIA_TYPE
        assert (await http.post(f"runs/{run_id}/signals/go", json={"payload": id})).status_code == 200
        assert await engine.handle(id).result() == id


@pytest.mark.parametrize("id", ["", "a\n", "a\x00b", "\ud800", "a" * 256, "日本" * 200])
async def test_an_id_that_cannot_be_is_refused(engine: Engine, id: str) -> None:
    async with host(engine) as http:
        body = json.dumps({"program": "quick", "args": [1], "id": id}).encode()
        refused = await http.post("runs", content=body, headers=HEADERS)
        assert refused.status_code in (400, 422), refused.text
        assert refused.headers["content-type"] == MEDIA_TYPE
    assert await engine.list() == []


CURSORS = ["", "x", "!!!!", "AAAA", "🙂", "/" * 10, "A" * 20_000, "bm90aGluZw", "%00", "null", "-1"]


@pytest.mark.parametrize("path", ["runs", "approvals"])
async def test_a_cursor_of_another_filter_or_of_none_is_refused(engine: Engine, path: str) -> None:
    for number in range(3):
        _ = await engine.run(order(number), id=str(number), until="rest")
    async with host(engine) as http:
        page = (await http.get(path, params={"limit": 1})).json()
        cursor = page["next"]
        assert (await http.get(path, params={"limit": 2, "cursor": cursor})).status_code == 200
        other = {"program": "order"}
        refused = await http.get(path, params={**other, "cursor": cursor})
        assert (refused.status_code, refused.json()["code"]) == (400, "cursor_of_another_filter")
        elsewhere = "approvals" if path == "runs" else "runs"
        assert (await http.get(elsewhere, params={"cursor": cursor})).status_code == 400
        for wrong in [*CURSORS, cursor[:-1], cursor + "A", cursor.swapcase(), cursor[:8] + "\u00e9"]:
            answer = await http.get(path, params={"cursor": wrong})
            assert answer.status_code in (400, 422), (wrong, answer.text)


async def test_a_token_that_expires_between_two_pages_ends_the_reading_and_the_stream(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perdure.server.streams import StreamLimits

    for number in range(3):
        _ = await engine.run(quick(number))
    issued = await engine._credentials.issue("token", "ann", may=["read", "run"], ttl=100)
    flows = app(engine, access=Tokens(engine))
    flows.service.streams.limits = StreamLimits(comment_every=0.01)
    bearer = {"Authorization": f"Bearer {issued.text}"}
    now = engine.clock.now()
    async with host(engine, flows) as http:
        first = await http.get("runs", params={"limit": 1}, headers=bearer)
        async with Listener(flows, "events", authorization=bearer["Authorization"]) as heard:
            await heard.until(lambda heard: "hello" in heard.kinds())
            monkeypatch.setattr(engine._base, "clock", At(now + 101))
            next_page = await http.get("runs", params={"limit": 1, "cursor": first.json()["next"]}, headers=bearer)
            assert (next_page.status_code, next_page.json()["code"]) == (401, "unauthorized")
            acted = await http.post("runs", json={"program": "quick", "args": [1]}, headers=bearer)
            assert acted.status_code == 401
            await heard.until(lambda heard: heard.ended)
        assert heard.events[-1][2]["code"] == "unauthorized"


ADDRESSES = [
    *(
        "runs?limit=0",
        "runs?limit=1001",
        "runs?limit=x",
        "runs?limit=1e3",
        "runs?limit=99999999999999999999",
        "runs?x=1",
    ),
    *(
        "runs?status=%00",
        "runs?tag=x",
        "runs?tag=%ff:%fe",
        "runs?since=x",
        "runs?since=2026-01-01T00:00:00",
        "runs?q=" + "x" * 40_000,
    ),
    *(
        "runs?" + "&".join(f"p{n}={n}" for n in range(3000)),
        "runs?" + "tag=a:b&" * 3000,
        "runs?since=9999-12-31T23:59:59Z",
    ),
    *("runs/histogram?bucket=second", "runs/histogram?since=1970-01-01T00:00:00Z&bucket=minute", "runs/counts?by=x"),
    *(
        "runs/%00",
        "runs/%F0%9F%98%80",
        "runs/" + "x" * 9000,
        "runs/..%2F..%2Fetc%2Fpasswd",
        "runs/%2e%2e/%2e%2e",
        "runs/a;b",
    ),
    *(
        "%2e%2e/%2e%2e/",
        "runs//",
        "//runs",
        "runs/~0",
        "runs/~/journal",
        "runs/x/values/-1/input",
        "runs/x/values/1e9/input",
    ),
    *("queues/%00", "programs/%00", "programs/..", "schedules/%00", "locks/%00", "bulk/%00", "approvals?limit=-1"),
    *(
        "runs/by-id",
        "runs/by-id?id=%00",
        "runs/by-id?id=" + "x" * 300,
        "runs/x/ops?after=-1",
        "runs/x/diff/y",
        "runs/x/journal?limit=0",
    ),
]


async def test_no_address_is_a_bug(engine: Engine) -> None:
    async with host(engine) as http:
        for address in ADDRESSES:
            for method in ("GET", "HEAD", "OPTIONS", "PATCH", "TRACE", "PROPFIND", "GE T"):
                try:
                    answer = await http.request(method, address)
                except httpx.InvalidURL:
                    continue
                assert answer.status_code < 500, (method, address[:80], answer.text)
                if answer.status_code >= 400 and answer.content:
                    assert answer.headers["content-type"] == MEDIA_TYPE, (method, address[:80], answer.text[:200])
                    assert len(answer.content) < 8192, address[:80]


ODD_HEADERS: list[dict[str, bytes]] = [
    {"If-None-Match": b"\xff"},
    {"If-Match": b"," * 5000},
    {"If-Match": b""},
    {"Last-Event-ID": b"\x80" * 100},
    {"Idempotency-Key": b"x" * 256},
    {"Idempotency-Key": b"\xff"},
    {"Authorization": b"Bearer"},
    {"Authorization": b"Bearer \xff\xfe"},
    {"Authorization": b"Bearer " + b"perdure_" * 2000},
    {"Authorization": b"Basic eDp5"},
    {"Cookie": b"__Host-perdure=\xff; =; ;;; a=" + b"b" * 5000},
    {"Content-Type": b"application/json; charset=utf-16"},
    {"Content-Type": b"\xff"},
    {"Content-Length": b"-1"},
    {"Content-Length": b"\xb2"},
    {"traceparent": b"\xff" * 55},
    {"Accept": b"\xff" * 5000},
    {"Sec-Fetch-Site": b"\xff"},
    {"Origin": b"\xff"},
]


@pytest.mark.parametrize("guarded", [False, True])
async def test_no_header_is_a_bug(engine: Engine, guarded: bool) -> None:
    run = await engine.run(waits(), until="rest")
    flows = app(engine, access=Tokens(engine), hosts=["localhost"]) if guarded else engine.asgi()
    async with host(engine, flows) as http:
        for headers in ODD_HEADERS:
            sent = [(name.encode(), value) for name, value in {"Content-Type": JSON.encode(), **headers}.items()]
            for method, path in (
                *(
                    ("GET", f"runs/{run.run_id}"),
                    ("GET", "../../"),
                    ("GET", "../../answer/x"),
                    ("POST", "../../answer/x"),
                ),
                *(("POST", f"runs/{run.run_id}/signals/other"), ("POST", "session"), ("DELETE", "session")),
            ):
                answer = await http.request(method, path, content=b"{}" if method == "POST" else None, headers=sent)
                assert answer.status_code < 500, (method, path, headers, answer.text)
