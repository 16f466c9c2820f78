"""Requests of an attacker: a stranger, and a person who sees one program only. None shows or changes a hidden run."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
import pytest

from perdure import Engine, approval, lock, step, workflow
from perdure.server import Access, Tokens, app
from perdure.server.routing import JSON
from perdure.server.tokens import COOKIE
from tests.patience import PATIENCE
from tests.server.conftest import client_of
from tests.server.hosts import django_host, fastapi_host
from tests.server.programs import quick, waits

CANARY = "canary"
MODES = ("fastapi", "django", "token", "cookie")
INSIDER: dict[str, Any] = {"may": ["read", "run", "approve", "debug", "admin"], "programs": ["waits", "quick"]}


@step
async def keep(secret: str) -> str:
    return secret


@workflow
async def hidden(secret: str) -> Any:
    await keep(secret)
    async with lock(f"lock-{secret}"):
        return await approval("canary question", request=secret)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine("memory://", [hidden, waits, quick]) as engine:
        yield engine


class Scene:
    """What there is: a hidden run with everything that one can have, and a run of the attacker's own."""

    def __init__(self, victim: str, path: str, own: str, bulk: str) -> None:
        self.victim, self.path, self.own, self.bulk = victim, path, own, bulk


async def scene(engine: Engine) -> Scene:
    async with client_of(engine.asgi()) as http:
        begun = {"program": "hidden", "args": [CANARY], "id": "victims-id", "queue": "victims-queue", "key": CANARY}
        key = {"Idempotency-Key": "known"}
        started = await http.post("runs", json={**begun, "tags": {"t": CANARY}}, headers=key)
        assert started.status_code == 201
        _ = await http.post("runs", json={"program": "hidden", "args": [CANARY]}, headers=key)
        body = {"program": "hidden", "args": [CANARY], "every": 3600}
        assert (await http.put("schedules/victims-schedule", json=body)).status_code == 201
        bulk = {"action": "pause", "ids": ["victims-none"]}
        acted = await http.post("bulk", json=bulk, headers=key)
        assert acted.status_code == 202
    await engine.handle(acted.json()["id"]).result()
    view = await engine.run(hidden(f"{CANARY} rests"), id="rests", until="rest")
    assert view.status == "running"
    own = await engine.run(waits(), id="own", until="rest")
    async with asyncio.timeout(PATIENCE):
        while [run for run in await engine.list(program="perdure.schedule") if run.status != "waiting"]:
            await asyncio.sleep(0)
    return Scene(view.run_id, view.interrupts[0].path, own.run_id, acted.json()["id"])


@asynccontextmanager
async def attacker(engine: Engine, mode: str, access: dict[str, Any] | None) -> AsyncIterator[httpx.AsyncClient]:
    """A client on another machine: a stranger without an access, or an insider with one."""
    base, headers = "https://shop.example/flows/api/v1/", {}
    if mode in ("fastapi", "django"):
        mount = fastapi_host if mode == "fastapi" else django_host

        def who(request: Any) -> Access | None:
            return Access("eve", **access) if access and request.headers.get("x-user") == "eve" else None

        flows = mount(engine.asgi(access=who, metrics=True))
        headers = {"X-User": "eve"} if access else {}
    else:
        base = "https://shop.example/api/v1/"
        flows = app(engine, access=Tokens(engine), hosts=["shop.example"], metrics=True)
        if access:
            issued = await engine._credentials.issue("token", "eve", **access)
            headers = {"Authorization": f"Bearer {issued.text}"}
            if mode == "cookie":
                session = await engine._credentials.issue("session", "eve", token=issued.credential.id)
                headers = {"Cookie": f"{COOKIE}={session.text}", "Sec-Fetch-Site": "same-origin"}
    async with client_of(flows, base, peer="192.0.2.66", headers=headers) as http:
        yield http


async def heads(engine: Engine, at: Scene) -> list[Any]:
    """What an attack must not change."""
    ids = [at.victim, *(run.run_id for run in await engine.list(program="perdure.schedule"))]
    locks = sorted(one.key for one in await engine.locks.list())
    return [[await engine.store.journal.head(id) for id in ids], locks, len(await engine.list(program="hidden"))]


Attack = tuple[str, str, dict[str, str], bytes | None]


def strange(at: Scene) -> list[Attack]:
    """What a stranger sends: method, address from `api/v1/`, headers, body."""
    get = [
        *(
            "runs",
            f"runs/{at.victim}",
            f"runs/{at.victim}/journal",
            "me",
            "openapi.json",
            "metrics",
            "events",
            "doctor",
        ),
        *(
            "../../API/V1/RUNS",
            "../../api%2fv1%2fruns",
            "../../api/v1//runs",
            "../../api/v1/%2e/runs",
            "runs%00",
            "runs/",
        ),
        *("health/live/%2e%2e/%2e%2e/runs", "health%2f..%2fruns", "runs;/health/live", "../../index.html/api/v1/runs"),
        *(
            "../../assets/%2e%2e/%2e%2e/application.py",
            "../../assets/..%5c..%5capplication.py",
            "../../%2e%2e/%2e%2e/etc/passwd",
        ),
        *("../../answer/" + "x" * 3000, "../../answer/%2e%2e/api/v1/runs", f"../../answer/perdure_{at.victim}_x"),
        *("runs?token=x", "runs?access_token=null", "runs?_method=DELETE", "dev", "capsules/view", "session"),
    ]
    headers = [
        *(
            {"Host": "localhost"},
            {"Host": "127.0.0.1"},
            {"X-Forwarded-For": "127.0.0.1"},
            {"Forwarded": "for=127.0.0.1"},
        ),
        *({"X-Real-IP": "::1"}, {"X-Original-URL": "/flows/api/v1/health/live"}, {"X-Forwarded-Host": "localhost"}),
        *({"Authorization": "Bearer null"}, {"Authorization": "Bearer "}, {"Authorization": "Basic ZXZlOng="}),
        *({"Cookie": f"{COOKIE}="}, {"Cookie": f"{COOKIE}=perdure_0_0"}, {"X-HTTP-Method-Override": "DELETE"}),
        *({"Origin": "https://shop.example", "Sec-Fetch-Site": "same-origin"}, {"Origin": "null"}),
    ]
    start = json.dumps({"program": "waits", "id": "planted"}).encode()
    posts = [
        ("runs", start),
        (f"runs/{at.victim}/cancel", b"{}"),
        ("session", b'{"token":"perdure_0_x"}'),
        ("bulk", start),
    ]
    return [
        *(("GET", path, {}, None) for path in get),
        *(("GET", f"runs/{at.victim}", one, None) for one in headers),
        *(
            ("POST", path, {"Content-Type": JSON, **one}, body)
            for path, body in posts
            for one in ({}, headers[0], headers[-2])
        ),
        *((method, "runs", {}, None) for method in ("HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "PATCH")),
    ]


@pytest.mark.parametrize("mode", MODES)
async def test_a_stranger_gets_nothing(engine: Engine, mode: str) -> None:
    at = await scene(engine)
    before = await heads(engine, at)
    async with attacker(engine, mode, None) as http:
        attacks = strange(at)
        assert len(attacks) >= 60
        for method, path, headers, body in attacks:
            answer = await http.request(method, path, headers=headers, content=body)
            where = f"{method} {path[:100]} {headers}: {answer.status_code} {answer.text[:200]}"
            assert CANARY not in answer.text, where
            assert answer.status_code < 500, where
            assert not [name for name in answer.headers if name.startswith("access-control") or name == "set-cookie"], (
                where
            )
            if answer.status_code == 200:
                # The page, which holds no data, and which signs in.
                assert mode in ("token", "cookie"), where
                assert answer.headers["content-type"].startswith("text/html"), where
            assert "Traceback" not in answer.text, where
    assert await heads(engine, at) == before
    assert await engine.get("planted") is None


def inside(at: Scene) -> list[tuple[str, str, Any, dict[str, str]]]:
    """What an insider sends: method, address, body as JSON, headers."""
    victim, own, path = at.victim, at.own, at.path.replace("?", "%3F")
    reading = (
        "",
        "/journal",
        "/ops",
        "/events",
        "/stream",
        "/source",
        "/graph",
        "/items",
        "/capsule",
        "/values/run/input",
    )
    telling = ("cancel", "pause", "resume", "retry", "fork", "resolve", "signals/go", f"approvals/{path}/approve")
    gets = [
        *(f"runs/{victim}{one}" for one in reading),
        *(
            f"runs/{own}/diff/{victim}",
            f"runs/{victim}/diff/{own}",
            f"runs/{own}?child=../{victim}",
            f"runs/{own}%2F..%2F{victim}",
        ),
        *(
            "runs/by-id?id=victims-id",
            "runs?q=canary",
            "runs?program=hidden",
            "runs?tag=t:canary",
            "runs?queue=victims-queue",
        ),
        *(
            f"runs?root={victim}",
            "runs?q=input=canary",
            "runs?program=perdure.schedule",
            "runs?status=running",
            "runs/counts?by=program",
        ),
        *(
            "runs/histogram?program=hidden",
            "queues",
            "queues/victims-queue",
            "locks",
            "orchestrators",
            "programs",
            "programs/hidden",
        ),
        *(
            "schedules",
            "schedules/victims-schedule",
            "schedules/victims-schedule/next",
            "approvals",
            "doctor",
            "metrics",
        ),
        *(f"bulk/{at.bulk}", "approvals?program=hidden", f"runs/{own}/source?child={victim}", f"runs?parent={victim}"),
    ]
    starts = [
        *(
            {"program": name, "args": [CANARY]}
            for name in ("hidden", "hidden[]", "HIDDEN", "hidden\u200b", " hidden", "hidden ")
        ),
        *(
            {"program": "waits", "id": "victims-id", "reuse": reuse}
            for reuse in ("terminate_running", "return_existing", None)
        ),
        *({"program": name} for name in ("perdure.bulk", "perdure.schedule", "perdure.token", "perdure.step.keep")),
        {"program": "waits", "id": "perdure.token:abc"},
    ]
    posts: list[tuple[str, Any, dict[str, str]]] = [
        *((f"runs/{victim}/{one}", {}, {}) for one in telling),
        (f"runs/{victim}/travel", {"step": "keep:0"}, {}),
        (f"runs/{victim}/approvals/{path}/links", {"person": "eve"}, {}),
        (f"runs/{own}/fork", {"new_id": "perdure.token:abc"}, {}),
        *(("runs", one, {}) for one in starts),
        ("runs", {"program": "waits"}, {"Idempotency-Key": "known"}),
        ("bulk", {"action": "cancel", "ids": ["x"]}, {"Idempotency-Key": "known"}),
        ("bulk", {"action": "cancel", "ids": [victim, "victims-id"], "dry_run": True}, {}),
        ("bulk", {"action": "cancel", "ids": [victim, "victims-id"]}, {}),
        *(
            ("bulk", {"action": "cancel", "filter": one}, {})
            for one in ({"program": "hidden"}, {"tags": {"t": CANARY}})
        ),
        *(
            ("bulk", {"action": "signal", "filter": {"q": q}, "options": {"name": "go"}}, {})
            for q in ("canary", "input=canary")
        ),
        (f"bulk/{at.bulk}/abort", {}, {}),
        *((f"schedules/victims-schedule/{one}", {}, {}) for one in ("pause", "resume", "trigger")),
        ("upgrade-check", {}, {}),
    ]
    return [
        *(("GET", one, None, {}) for one in gets),
        *(("POST", one, body, headers) for one, body, headers in posts),
        ("PUT", "schedules/victims-schedule", {"program": "waits", "every": 1}, {}),
        ("PUT", "schedules/new", {"program": "hidden", "args": [CANARY], "every": 1}, {}),
        ("DELETE", "schedules/victims-schedule", None, {}),
        ("DELETE", "locks/lock-canary", None, {}),
    ]


def said(answer: httpx.Response) -> str:
    """An answer without the names that a problem repeats of the request."""
    return answer.text if answer.status_code < 400 else re.sub(r"'[^']*'|api/v1/\S*", "", answer.text)


@pytest.mark.parametrize("mode", MODES)
async def test_an_insider_learns_and_changes_nothing_of_what_is_hidden(engine: Engine, mode: str) -> None:
    at = await scene(engine)
    before = await heads(engine, at)
    async with attacker(engine, mode, INSIDER) as http:
        attacks = inside(at)
        assert len(attacks) >= 80
        begun: list[str] = []
        for method, path, body, headers in attacks:
            answer = await http.request(method, path, json=body, headers=headers)
            where = f"{method} {path} {body}: {answer.status_code} {answer.text[:300]}"
            assert answer.status_code < 500, where
            assert CANARY not in said(answer), where
            assert at.victim not in answer.text or answer.status_code >= 400 or path == "bulk", where
            if answer.status_code == 202:
                begun.append(answer.json()["id"])
        for id in begun:
            await engine.handle(id).result()
            assert (await http.get(f"bulk/{id}")).json()["done"] == 0
        # A body that names a program twice is read once.
        twice = b'{"program":"waits","program":"hidden","args":["canary"]}'
        answer = await http.post("runs", content=twice, headers={"Content-Type": JSON})
        assert answer.status_code == 403
        assert (await http.get(f"runs/{at.own}")).json()["status"] in ("waiting", "cancelled")
    assert await heads(engine, at) == before


async def test_the_attacks_would_show_something_to_one_who_may_see_it(engine: Engine) -> None:
    """Else the test above would pass for the wrong reason."""
    at = await scene(engine)
    everything = {**INSIDER, "programs": None}
    shown = 0
    async with attacker(engine, "token", everything) as http:
        for method, path, _, _ in inside(at):
            if method == "GET" and not path.endswith(("/events", "/stream")):
                shown += CANARY in (await http.get(path)).text
    assert shown >= 15
