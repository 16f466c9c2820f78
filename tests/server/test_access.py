"""Who may do what: every route for every permission, however the caller is known; and nobody else."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
import msgspec
import pytest

from perdure import Engine, UsageError, workflow
from perdure.client.credentials import SESSION_SECONDS
from perdure.server import Access, Tokens, app
from perdure.server.access import PERMISSIONS
from perdure.server.application import ROUTES
from perdure.server.problems import MEDIA_TYPE
from perdure.server.routing import BYTES, JSON, SSE, Route
from perdure.server.tokens import COOKIE
from tests.server.conftest import client_of
from tests.server.programs import PROGRAMS, order, quick

MODES = ("mounted", "token", "cookie")
BASE = "https://flows.test/api/v1/"
# The address that a connection comes from; None: a Unix socket, behind which anybody may be.
REMOTE = (
    "192.0.2.7",
    "10.0.0.7",
    "::2",
    "::ffff:192.0.2.7",
    "fe80::1%eth0",
    "testclient",
    "localhost.evil.test",
    "",
    None,
)


def path_of(route: Route) -> str:
    """A path of a route, with names of things that do not exist."""
    return re.sub(r"\{\w+(:path)?\}", "none:0", route.path)


@asynccontextmanager
async def caller(engine: Engine, mode: str, may: Sequence[str], **narrowed: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody with these permissions, on another machine."""
    if mode == "mounted":
        access = engine.asgi(access=lambda request: Access("ann", may, **narrowed))
        async with client_of(access, BASE, peer=REMOTE[0]) as http:
            yield http
        return
    issued = await engine._credentials.issue("token", "ann", may=may, **narrowed)
    async with client_of(app(engine, access=Tokens(engine), hosts=["flows.test"]), BASE, peer=REMOTE[0]) as http:
        if mode == "token":
            http.headers["Authorization"] = f"Bearer {issued.text}"
        else:
            signed = await http.post("session", json={"token": issued.text})
            assert signed.status_code == 200
            cookie = signed.headers["set-cookie"].partition(";")[0]
            http.cookies.clear()
            http.headers["Cookie"] = cookie
        yield http


async def send(http: httpx.AsyncClient, route: Route, **options: Any) -> httpx.Response:
    """A request that a route takes; its body may be none that the handler is content with."""
    if route.method not in ("GET", "DELETE") and "content" not in options:
        options |= {"content": b"{}"}
        options["headers"] = {"Content-Type": route.takes, **options.get("headers", {})}
    return await http.request(route.method, path_of(route), **options)


ENDLESS = ("events",)  # a stream that ends when the caller leaves


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("may", [(), *((one,) for one in PERMISSIONS), PERMISSIONS])
async def test_a_route_is_for_those_who_have_its_permission(engine: Engine, mode: str, may: Sequence[str]) -> None:
    async with caller(engine, mode, may) as http:
        for route in ROUTES:
            allowed = route.open or route.role == "any" or route.role in may
            if (route.path in ENDLESS and allowed) or route.path == "session":
                continue
            answer = await send(http, route)
            where = f"{route.method} {route.path}: {answer.status_code} {answer.text[:200]}"
            if allowed:
                assert answer.status_code not in (401, 403), where
                assert answer.status_code < 500 or route.path == "health/ready", where
            else:
                assert answer.status_code == 403, where
                assert answer.json()["code"] == "forbidden", where
                assert answer.headers["content-type"] == MEDIA_TYPE


@pytest.mark.parametrize("mode", MODES)
async def test_a_caller_that_is_not_known_gets_nothing(engine: Engine, mode: str) -> None:
    _ = await engine._credentials.issue("token", "ann", may=PERMISSIONS)
    mounted = engine.asgi(access=lambda request: None)
    application = mounted if mode == "mounted" else app(engine, access=Tokens(engine), hosts=["flows.test"])
    wrong = {"mounted": {}, "token": {"Authorization": "Bearer perdure_0_x"}, "cookie": {"Cookie": f"{COOKIE}=x"}}[mode]
    async with client_of(application, BASE, headers=wrong, peer="127.0.0.1") as http:
        for route in ROUTES:
            if not route.open:
                answer = await send(http, route)
                assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized"), route.path
        assert (await http.get("nothing")).status_code == 401
        assert (await http.post("session", json={"token": "perdure_0_x"})).status_code in (401, 409)


HOSTILE: list[dict[str, str]] = [
    {"Origin": "https://evil.test"},
    {"Origin": "null"},
    {"Origin": "https://flows.test.evil.test"},
    {"Origin": "https://flows.test@evil.test"},
    {"Origin": "https://flows.test:444"},
    {"Origin": "file://"},
    {"Origin": ""},
    {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.test"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "anything"},
    {"Host": "evil.test"},
    {"Host": "flows.test.evil.test"},
    {"Host": ""},
    {"Host": "127.0.0.1.evil.test"},
    {"Host": "flows.test, evil.test"},
    {"Content-Type": "application/x-www-form-urlencoded"},
    {"Content-Type": "multipart/form-data; boundary=x"},
    {"Content-Type": "text/plain"},
    {"Content-Type": ""},
]


async def test_no_page_of_another_site_has_an_effect(engine: Engine) -> None:
    """Wrong hosts, origins, sites and forms, on every route that has an effect, for callers who may do everything."""
    run = await engine.run(order(1), id="o", until="rest")
    passed, tried = [], 0
    before = engine.store.journal.commits  # type: ignore[attr-defined]
    for mode in MODES:
        async with caller(engine, mode, PERMISSIONS) as http:
            if mode != "mounted":
                before = engine.store.journal.commits  # type: ignore[attr-defined]
            for route in ROUTES:
                for headers in HOSTILE:
                    if route.method == "GET" and "Host" not in headers:
                        continue  # it has no effect
                    if "Host" in headers and mode == "mounted":
                        continue  # the host application's own business
                    if "Content-Type" in headers and (route.method == "DELETE" or route.takes != JSON):
                        continue  # a form cannot send these
                    bodies = (b"{}", b"", b"payload=1", b'{"reason":"x"}') if "Content-Type" in headers else (b"{}",)
                    path = path_of(route).replace("runs/none:0", f"runs/{run.run_id}").replace("/none:0", "/ship:0")
                    for body in bodies:
                        if not body and headers == {"Content-Type": ""}:
                            continue  # no form sends nothing of no type
                        tried += 1
                        sent = {"Content-Type": route.takes, **headers}
                        answer = await http.request(route.method, path, content=body, headers=sent)
                        if answer.status_code not in (401, 403, 415, 421):
                            passed.append((mode, route.method, path, headers, body, answer.status_code))
    assert passed == []
    assert tried >= 2000
    assert engine.store.journal.commits == before  # type: ignore[attr-defined]


@pytest.mark.parametrize("headers", [{"Host": "evil.test"}, {"Host": ""}, {"Host": "flows.test\x00"}])
async def test_a_server_of_its_own_reads_nothing_for_another_host(engine: Engine, headers: dict[str, str]) -> None:
    async with caller(engine, "token", PERMISSIONS) as http:
        for path in ("runs", "health/live", "openapi.json", "../../", "../../answer/x"):
            assert (await http.get(path, headers=headers)).status_code == 421, path


@pytest.mark.parametrize("host", ["flows.test", "FLOWS.test:8500", "localhost", "127.0.0.1:1", "[::1]:9", "10.0.0.7"])
async def test_a_server_of_its_own_knows_its_names_and_addresses(engine: Engine, host: str) -> None:
    async with caller(engine, "token", ["read"]) as http:
        assert (await http.get("runs", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost"}, 200),
        ({"Host": "app.localhost:8000"}, 200),
        ({"Host": "127.0.0.1"}, 200),
        ({"Host": "shop.example"}, 403),
        ({"Host": "localhost.evil.test"}, 403),
        ({"Host": "localhost", "X-Forwarded-For": "1.2.3.4"}, 403),
        ({"Host": "localhost", "X-Forwarded-Host": "shop.example"}, 403),
        ({"Host": "localhost", "Forwarded": "for=1.2.3.4"}, 403),
        ({"Host": "localhost", "Via": "1.1 proxy"}, 403),
        ({"Host": "[::ffff:127.0.0.1]:80"}, 200),
    ],
)
async def test_without_access_only_this_machine_is_served(engine: Engine, headers: dict[str, str], status: int) -> None:
    async with client_of(engine.asgi()) as http:
        answer = await http.get("runs", headers=headers)
        assert answer.status_code == status
        if status == 403:
            assert "access=who" in answer.json()["hint"]
            page = await http.get("../../", headers={**headers, "Accept": "text/html"})
            assert (page.status_code, "access=who" in page.text) == (403, True)
            assert page.headers["content-security-policy"].startswith("default-src 'none'")


@pytest.mark.parametrize("peer", REMOTE)
@pytest.mark.parametrize("names", [None, ["flows.test"]])
async def test_without_access_no_other_machine_is_served_whatever_host_it_names(
    engine: Engine, peer: str | None, names: list[str] | None
) -> None:
    application = app(engine, hosts=names)
    transport = httpx.ASGITransport(app=application, client=(peer, 4711) if peer is not None else None)  # type: ignore[arg-type]
    before = engine.store.journal.commits  # type: ignore[attr-defined]
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1/") as http:
        for host in ("localhost", "127.0.0.1:8500"):
            for route in ROUTES:
                if not route.open:
                    answer = await send(http, route, headers={"Host": host})
                    assert (answer.status_code, answer.json()["code"]) == (403, "no_access"), route.path
            for path in ("../../", "../../runs", "../../assets/app.js", "nothing"):
                assert (await http.get(path, headers={"Host": host})).status_code == 403, path
            assert (await http.get("health/live", headers={"Host": host})).status_code == 200
    assert engine.store.journal.commits == before  # type: ignore[attr-defined]


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"])
async def test_without_access_this_machine_is_served_by_whichever_of_its_addresses(engine: Engine, peer: str) -> None:
    transport = httpx.ASGITransport(app=engine.asgi(), client=(peer, 4711))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1/") as http:
        assert (await http.get("runs")).status_code == 200


async def test_a_request_of_http_1_0_is_taken_for_that_of_a_proxy(engine: Engine) -> None:
    """As nginx sends it if it is told nothing: with the host and the address of this machine, for anybody."""
    flows = engine.asgi()

    async def as_nginx(scope: Any, receive: Any, send: Any) -> None:
        await flows({**scope, "http_version": "1.0"}, receive, send)

    async with client_of(as_nginx) as http:
        assert (await http.get("runs")).status_code == 403


@pytest.mark.parametrize("mode", MODES)
async def test_programs_narrow_what_is_seen_and_told(engine: Engine, mode: str) -> None:
    hidden, shown = await engine.run(quick(1), id="hidden"), await engine.run(order(1), id="shown", until="rest")
    async with caller(engine, mode, PERMISSIONS, programs=["order"]) as http:
        assert [run["id"] for run in (await http.get("runs")).json()["runs"]] == ["shown"]
        assert (await http.get("runs", params={"program": "quick"})).json()["runs"] == []
        counts = (await http.get("runs/counts", params={"by": "program"})).json()["counts"]
        assert [one["program"] for one in counts] == ["order"]
        assert [one["name"] for one in (await http.get("programs")).json()["programs"]] == ["order"]
        for route in ROUTES:
            if "{run}" in route.path and route.path not in ENDLESS:
                path = path_of(route).replace("runs/none:0", f"runs/{hidden.run_id}")
                options: dict[str, Any] = {}
                if route.method == "POST":
                    options = {"json": {"step": "charge:0", "person": "ann"}} if route.takes == JSON else {}
                answer = await http.request(route.method, path, **options)
                assert answer.status_code in (404, 422), (route.path, answer.text)
                assert answer.json()["code"] in ("no_such_run", "invalid_request"), (route.path, answer.text)
        assert (await http.get("runs/by-id", params={"id": "hidden"})).status_code == 404
        assert (await http.post("runs", json={"program": "quick", "args": [1]})).status_code == 403
        other = await http.get(f"runs/{shown.run_id}/diff/{hidden.run_id}")
        assert other.status_code == 404


async def test_tokens_are_not_among_the_runs_that_anyone_sees(engine: Engine) -> None:
    async with caller(engine, "cookie", PERMISSIONS) as http:
        for program in ("perdure.token", "perdure.session"):
            assert (await http.get("runs", params={"program": program})).json()["runs"] == []
        rows = [row async for row in _rows(engine)]
        assert {row.program for row in rows} == {"perdure.token", "perdure.session"}
        for row in rows:
            assert (await http.get(f"runs/{row.run_id}")).status_code == 404
            assert (await http.get("runs/by-id", params={"id": row.id})).status_code == 404
        assert (await http.get("runs/counts")).json()["counts"] == []


async def _rows(engine: Engine) -> AsyncIterator[Any]:
    from perdure.ports.runs import RunFilter

    for row, _ in await engine.store.runs.list(RunFilter()):
        yield row


# --- tokens ----------------------------------------------------------------------------------------------------------


async def test_a_token_is_stored_as_its_hash_alone(engine: Engine) -> None:
    issued = await engine._credentials.issue("token", "ci", may=["read"])
    secret = issued.text.rpartition("_")[2] if issued.text.count("_") == 2 else issued.text.split("_", 2)[2]
    kept = [bytes(row.input) async for row in _rows(engine)]
    assert kept
    assert all(secret.encode() not in data for data in kept)


@pytest.mark.parametrize("mode", ["token", "cookie"])
async def test_a_token_that_is_revoked_ends_at_once_with_its_sessions(engine: Engine, mode: str) -> None:
    async with caller(engine, mode, ["read"]) as http:
        assert (await http.get("runs")).status_code == 200
        assert await engine._credentials.revoke("token", "ann") is True
        assert (await http.get("runs")).status_code == 401
        assert await engine._credentials.revoke("token", "ann") is False


class At:
    """A clock that stands still."""

    def __init__(self, at: float) -> None:
        self._at = at

    def now(self) -> float:
        return self._at


async def test_a_token_expires_and_so_does_a_session(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    now = engine.clock.now()
    token = await engine._credentials.issue("token", "ann", may=["read"], ttl=100)
    long = await engine._credentials.issue("token", "bob", may=["read"], ttl=10 * SESSION_SECONDS)
    async with client_of(app(engine, access=Tokens(engine)), BASE) as http:
        signed = await http.post("session", json={"token": long.text})
        cookie = {"Cookie": signed.headers["set-cookie"].partition(";")[0]}
        bearer = {"Authorization": f"Bearer {token.text}"}
        assert (await http.get("me", headers=bearer)).json()["signed_in"] == "token"
        assert (await http.get("me", headers=cookie)).json()["signed_in"] == "cookie"
        monkeypatch.setattr(engine._base, "clock", At(now + 101))
        assert (await http.get("me", headers=bearer)).status_code == 401
        assert (await http.get("me", headers=cookie)).status_code == 200
        assert (await http.post("session", json={"token": token.text})).status_code == 401
        monkeypatch.setattr(engine._base, "clock", At(now + SESSION_SECONDS + 1))
        assert (await http.get("me", headers=cookie)).status_code == 401


async def test_a_cookie_is_for_this_site_alone_and_ends_when_its_browser_signs_out(engine: Engine) -> None:
    issued = await engine._credentials.issue("token", "ann", may=["read"])
    async with client_of(app(engine, access=Tokens(engine)), BASE) as http:
        signed = await http.post("session", json={"token": issued.text})
        cookie = signed.headers["set-cookie"]
        assert cookie.startswith(f"{COOKIE}=perdure_")
        assert {"Path=/", "HttpOnly", "Secure", "SameSite=Strict"} <= set(cookie.split("; "))
        assert issued.text not in cookie
        sent = {"Cookie": cookie.partition(";")[0], "Sec-Fetch-Site": "same-origin"}
        assert (await http.delete("session", headers=sent)).status_code == 200
        assert (await http.get("runs", headers=sent)).status_code == 401


async def test_a_host_that_knows_its_users_signs_nobody_in(engine: Engine) -> None:
    async with client_of(engine.asgi(access=lambda request: Access("ann"))) as http:
        refused = await http.post("session", json={"token": "x"})
        assert (refused.status_code, refused.json()["code"]) == (409, "no_sessions")


async def test_the_last_use_of_a_token_is_noted_where_it_had_an_effect(engine: Engine) -> None:
    async with caller(engine, "token", ["read", "run"]) as http:
        (token,) = await engine._credentials.list("token")
        _ = await http.get("runs")
        assert await engine._credentials.last_used() == {}
        _ = await http.post("runs", json={"program": "quick", "args": [1]})
        assert set(await engine._credentials.last_used()) == {token.id}


async def test_a_token_and_the_users_of_a_host_can_be_known_side_by_side(engine: Engine) -> None:
    issued = await engine._credentials.issue("token", "ci", may=["read"])
    tokens = Tokens(engine)

    async def who(request: Any) -> Access | None:
        return Access(request.headers["x-user"]) if "x-user" in request.headers else await tokens(request)

    async with client_of(engine.asgi(access=who), BASE) as http:
        assert (await http.get("me", headers={"X-User": "ann"})).json()["name"] == "ann"
        assert (await http.get("me", headers={"Authorization": f"Bearer {issued.text}"})).json()["name"] == "ci"
        assert (await http.get("me")).status_code == 401


# --- what a host may say ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": ""}, "a name says who"),
        ({"name": "ann", "may": {"write"}}, "not a permission"),
        ({"name": "ann", "may": "read"}, "give a set"),
        ({"name": "ann", "programs": "order"}, "give a set"),
    ],
)
def test_an_access_that_means_nothing_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Access(**fields)


async def test_an_access_function_that_gives_something_else_is_a_bug_with_a_number(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    async with client_of(engine.asgi(access=lambda request: "ann")) as http:
        answer = await http.get("runs")
    assert (answer.status_code, answer.json()["code"]) == (500, "bug")
    number = re.search(r"under (\w+)", answer.json()["detail"])
    assert number is not None
    assert number[1] in caplog.text
    assert "Traceback" not in answer.text


def test_what_is_no_function_is_refused_when_the_application_is_made() -> None:
    with pytest.raises(UsageError, match="give a function"):
        Engine("memory://", PROGRAMS).asgi(access="ann")  # type: ignore[arg-type]


def test_every_stream_is_left_out_of_the_matrix_only_where_it_does_not_end() -> None:
    assert {route.path for route in ROUTES if route.media == SSE and "{run}" not in route.path} == set(ENDLESS)


# --- signing in over plain HTTP --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://flows.test", 409),
        ("http://10.0.0.7:8500", 409),
        ("https://flows.test", 200),
        ("http://localhost:8500", 200),
        ("http://127.0.0.1:8500", 200),
        ("http://[::1]:8500", 200),
        (None, 200),
    ],
)
async def test_a_browser_that_would_drop_the_cookie_is_told_why(
    engine: Engine, origin: str | None, status: int
) -> None:
    issued = await engine._credentials.issue("token", "ann", may=["read"])
    host = (origin or BASE).partition("://")[2].partition("/")[0]
    headers = {"Host": host, **({"Origin": origin} if origin else {})}
    async with client_of(app(engine, access=Tokens(engine)), BASE) as http:
        answer = await http.post("session", json={"token": issued.text}, headers=headers)
        assert answer.status_code == status
        assert ("set-cookie" in answer.headers) is (status == 200)
        if status == 409:
            assert (answer.json()["code"], "https" in answer.json()["hint"]) == ("insecure_page", True)
    assert len(await engine._credentials.list("session")) == (status == 200)


# --- credentials that nobody issued ----------------------------------------------------------------------------------


@workflow
async def anything(**fields: Any) -> Any:
    return fields


async def test_a_credential_is_issued_and_never_imported_or_started() -> None:
    """Whoever may import a run, or start one under an id of their choice, would give themselves any permission."""
    everything = tuple(PERMISSIONS)
    async with Engine("memory://", []) as elsewhere:
        forged = await elsewhere._credentials.issue("token", "eve", may=everything)
        (row,) = [row async for row in _rows(elsewhere)]
        capsule = await elsewhere.export(row.id)
    async with Engine("memory://", [anything]) as engine:
        issued = await engine._credentials.issue("token", "ann", may=["read", "run", "admin"])
        flows = app(engine, access=Tokens(engine))
        async with client_of(flows, BASE, headers={"Authorization": f"Bearer {issued.text}"}) as http:
            imported = await http.post("capsules", content=capsule, headers={"Content-Type": BYTES})
            assert (imported.status_code, imported.json()["code"]) == (422, "invalid_capsule")
            fields = msgspec.json.decode(row.input)
            for body in (
                {"program": "anything", "kwargs": fields, "id": row.id},
                {"program": "perdure.token", "kwargs": fields, "id": row.id},
            ):
                assert (await http.post("runs", json=body)).status_code in (403, 422)
            run = await engine.run(anything(), id="mine")
            for path, body in (("fork", {"new_id": row.id}), ("travel", {"step": "x", "new_id": row.id})):
                assert (await http.post(f"runs/{run.run_id}/{path}", json=body)).status_code == 422
        # Not even the code of the application makes one by accident.
        _ = await engine.run(anything(**fields), id=row.id)
        async with client_of(flows, BASE, headers={"Authorization": f"Bearer {forged.text}"}) as http:
            assert (await http.get("me")).status_code == 401


async def test_a_token_is_no_session_and_a_session_or_a_link_no_token(engine: Engine) -> None:
    token = await engine._credentials.issue("token", "ann", may=["read"])
    session = await engine._credentials.issue("session", "ann", token=token.credential.id)
    link = await engine._credentials.issue("link", "ann", ttl=100, run="r", op="o", person="ann")
    async with client_of(app(engine, access=Tokens(engine)), BASE) as http:
        for text in (
            session.text,
            link.text,
            token.credential.hash,
            token.credential.id,
            token.text[:-1],
            token.text + "x",
        ):
            assert (await http.get("me", headers={"Authorization": f"Bearer {text}"})).status_code == 401
            assert (await http.post("session", json={"token": text})).status_code == 401
        for text in (token.text, link.text):
            assert (await http.get("me", headers={"Cookie": f"{COOKIE}={text}"})).status_code == 401
            assert (await http.get("me", params={"token": text})).status_code == 401
            assert (await http.get(f"../../answer/{token.text}")).status_code == 404
        cookie = {"Cookie": f"{COOKIE}={session.text}"}
        assert (await http.get("me", headers=cookie)).status_code == 200
        # A bearer that is not valid is not made good by a cookie.
        assert (await http.get("me", headers={**cookie, "Authorization": "Bearer x"})).status_code == 401


@pytest.mark.parametrize("reuse", ["terminate_running", "allow_if_failed", "return_existing", None])
async def test_a_start_does_not_take_the_place_of_a_schedule(engine: Engine, reuse: str | None) -> None:
    async with caller(engine, "mounted", ["read", "admin"]) as http:
        body = {"program": "quick", "args": [1], "every": 3600}
        assert (await http.put("schedules/s", json=body)).status_code == 201
    (row,) = [row async for row in _rows(engine)]
    async with caller(engine, "mounted", ["read", "run"]) as http:
        refused = await http.post("runs", json={"program": "quick", "args": [1], "id": row.id, "reuse": reuse})
        assert (refused.status_code, refused.json()["code"]) == (409, "already_exists")
    assert (await (await engine.schedule("s")).view()).paused is False
