"""What is redacted leaves the server by no route, and a capsule by no byte: a canary in every place of a run."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx2 as httpx
import pytest

from perdure import Engine, approval, child, set_state, step, step_context, wait_signal, workflow
from perdure.graph import Graph, node
from perdure.kernel.history.capsule import HEAD_SIZE
from perdure.server import Access
from perdure.server.application import ROUTES
from perdure.server.routing import SSE, Route
from tests.patience import PATIENCE
from tests.server.conftest import client_of

CANARY = "canary"
NUMBER, PASSWORD, PIN = "canary-4111", "canary-hunter2", 314159265
SEEN = re.compile(rb"canary|314159265", re.IGNORECASE)
REDACT = ["$..card", "*password*", "pin"]


@dataclass
class Card:
    """What nobody should see."""

    number: str
    pin: int


@dataclass
class Order:
    """What anybody may see, but for the card."""

    name: str
    card: Card


class Declined(Exception):
    def __init__(self, card: str) -> None:
        super().__init__(f"the card {card} was declined, password={PASSWORD!r}")
        self.card = card


@step(record_inputs=True)
async def charge(order: Order, password: str) -> dict[str, Any]:
    step_context().emit({"card": order.card.number})
    step_context().heartbeat({"password": password})
    return {"id": 7, "card": {"number": order.card.number}}


@step
async def read_password() -> str:
    return PASSWORD


@step
async def long(order: Order) -> dict[str, Any]:
    return {"text": "x" * 300_000, "card": order.card.number}


@step
async def decline(order: Order) -> None:
    raise Declined(order.card.number)


@workflow
async def inner(order: Order) -> dict[str, Any]:
    set_state("card", order.card.number)
    return {"card": order.card.number}


@workflow
async def pay(order: Order, password: str) -> Any:
    paid = await charge(order, password)
    set_state("last_password", password)
    set_state("order", order)
    await read_password()
    await long(order)
    await child(inner(order))
    answer = await approval("ok", request={"card": order.card.number, "paid": paid})
    told = await wait_signal("go")
    return {"answer": answer, "told": told, "card": order.card.number}


@workflow
async def fail(order: Order, password: str) -> None:
    await decline(order)


@node
def total(order: dict[str, Any]) -> dict[str, Any]:
    return {"card": order["card"], "sum": 3}


shop = Graph([total], name="shop")
GIVEN = Order("ann", Card(NUMBER, PIN))


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine("memory://", [pay, fail, inner, shop], redact=REDACT) as engine:
        yield engine


async def ended(engine: Engine) -> dict[str, str]:
    """Runs with the canary in every place, by id."""
    tags = {"password": PASSWORD, "shop": "berlin"}
    asked = await engine.run(pay(GIVEN, PASSWORD), id="asks", tags=tags, until="rest")
    paid = await engine.run(pay(GIVEN, PASSWORD), id="paid", until="rest")
    _ = await engine.approve("paid", "ok", {"card": NUMBER}, by="ann")
    _ = await engine.signal("paid", "go", {"password": PASSWORD, "card": {"pin": PIN}})
    async with asyncio.timeout(PATIENCE):
        await engine.handle("paid").result()
    failed = await engine.run(fail(GIVEN, PASSWORD), id="failed")
    drawn = await engine.run(shop(order={"card": NUMBER}), id="drawn")
    forked = await engine.fork("paid", "charge:0", inputs={"password": PASSWORD}, state={"card": NUMBER}, new_id="fork")
    cancelled = await engine.run(pay(GIVEN, PASSWORD), id="cancelled", until="rest")
    _ = await engine.cancel("cancelled", f"password: {PASSWORD}")
    _ = await engine.schedule("nightly", pay(GIVEN, PASSWORD), cron="0 3 * * *", tags={"password": PASSWORD})
    runs = {"asks": asked, "paid": paid, "failed": failed, "drawn": drawn, "cancelled": cancelled}
    return {**{id: run.run_id for id, run in runs.items()}, "fork": forked.run_id}


async def everything(http: httpx.AsyncClient, runs: dict[str, str]) -> dict[str, bytes]:
    """The answers of every route that reads, about each of the runs, and of every address in them."""
    answers: dict[str, bytes] = {}
    pending = [path for run in runs.values() for route in ROUTES for path in addresses(route, run, runs)]
    pending += ["runs?why=true", "runs?status=failed", "approvals", "runs/by-id?id=paid", "doctor"]
    while pending:
        path = pending.pop()
        if path in answers:
            continue
        answer = await http.get(path)
        assert answer.status_code in (200, 404, 422), f"{path}: {answer.text}"
        answers[path] = answer.content
        pending += re.findall(r'"\$value":"([^"]+)"', answer.text) if answer.status_code == 200 else []
    return answers


def addresses(route: Route, run: str, runs: dict[str, str]) -> list[str]:
    if route.method != "GET" or route.path == "events" or "{id" in route.path or "{name}" in route.path:
        return []
    path = route.path.replace("{run}", run).replace("{other}", runs["asks"])
    if "{path:path}" in path:
        ops = ("charge:0", "read_password:0", "long:0", "inner:0", "ok:0", "go:0", "decline:0", "state:0", "total:0")
        return [path.replace("{path:path}", op) for op in ops]
    if "{seq}" in path:
        fields = ("value", "input", "payload", "request", "error", "reason", "progress", "chunk", "chunks", "tags")
        places = [path.replace("{seq}", str(seq)).replace("{field:path}", f) for seq in range(32) for f in fields]
        own = ("input", "output", "state:last_password", "state:order", "request:ok:0")
        return places + [path.replace("{seq}", "run").replace("{field:path}", field) for field in own]
    if route.media == SSE and run in (runs["asks"], runs["fork"]):
        return []  # it does not end
    if path.endswith("/source"):
        return [path, *(f"{path}?at={place}" for place in ("charge:0", "ok:0", "3", "decline:0"))]
    return [path, *([f"{path}?child=inner:0"] if path == f"runs/{run}" else [])]


async def test_nothing_that_is_redacted_leaves_the_server(engine: Engine) -> None:
    runs = await ended(engine)
    async with client_of(engine.asgi()) as http:
        answers = await everything(http, runs)
        leaks = {path: SEEN.findall(data) for path, data in answers.items() if SEEN.search(data)}
        assert leaks == {}
        # The same routes do show the rest.
        whole = b"".join(answers.values())
        for text in (b'"name":"ann"', b"berlin", b"was declined", b'"sum":3', b"[redacted]"):
            assert text in whole, text
        assert len(answers) > 1000


async def test_the_canary_is_seen_without_redaction() -> None:
    """Else the test above would pass for the wrong reason."""
    async with Engine("memory://", [pay, fail, inner, shop]) as engine:
        runs = await ended(engine)
        async with client_of(engine.asgi()) as http:
            answers = await everything(http, runs)
        seen = {re.sub(r"\d+|[a-z0-9]{16}", "*", path) for path, data in answers.items() if SEEN.search(data)}
    assert len(seen) > 30
    parts = ("runs", "schedules", "approvals", "/ops/", "/journal", "/values/", "/source", "/diff/", "/events")
    assert [part for part in parts if not any(part in path for path in seen)] == []


async def test_an_access_redacts_for_one_person(engine: Engine) -> None:
    async with Engine("memory://", [pay, fail, inner, shop]) as engine:
        runs = await ended(engine)
        access = Access("ann", {"read", "debug", "run", "metrics"}, redact=REDACT)
        async with client_of(engine.asgi(access=lambda request: access)) as http:
            answers = await everything(http, runs)
            assert {path for path, data in answers.items() if SEEN.search(data)} == set()
            assert (await http.get("me")).json()["redacted"] == REDACT
            capsule = await http.get(f"runs/{runs['paid']}/capsule")
            assert not SEEN.search(zlib.decompress(capsule.content[HEAD_SIZE:]))


async def test_a_search_finds_out_nothing_that_is_redacted(engine: Engine) -> None:
    _ = await ended(engine)
    async with client_of(engine.asgi()) as http:

        async def found(q: str) -> list[str]:
            runs = (await http.get("runs", params={"q": q, "root": "true"})).json()["runs"]
            return sorted(run["id"] for run in runs)

        assert await found("input.order.name=ann") == ["asks", "cancelled", "failed", "fork", "paid"]
        for q in (
            f"input.order.card.number={NUMBER}",
            f"input.password={PASSWORD}",
            f"output.card={NUMBER}",
            f"error={NUMBER}",
            "error=canary",
            f"error=password='{PASSWORD[:9]}",
        ):
            assert await found(q) == [], q
        assert await found("error=was declined") == ["failed"]


async def test_a_capsule_holds_nothing_that_is_redacted(engine: Engine) -> None:
    runs = await ended(engine)
    for id in runs:
        data = await engine.export(id)
        plain = zlib.decompress(data[HEAD_SIZE:])
        assert not SEEN.search(plain), (id, SEEN.findall(plain))
        assert b"ann" in plain or id == "drawn"
        async with Engine("memory://", [pay, fail, inner, shop]) as other:
            view = await other.import_run(data)
            assert view.run_id == runs[id]


async def test_a_page_for_answering_shows_nothing_that_is_redacted(engine: Engine) -> None:
    runs = await ended(engine)
    async with client_of(engine.asgi()) as http:
        made = await http.post(f"runs/{runs['asks']}/approvals/ok:0/links", json={"person": "ann"})
        page = await http.get(f"../../{made.json()['path']}")
    assert page.status_code == 200
    assert "[redacted]" in page.text
    assert not SEEN.search(page.content)


async def test_log_lines_show_nothing_that_is_redacted(caplog: pytest.LogCaptureFixture) -> None:
    async with Engine("memory://", [pay], redact=REDACT):
        for name in ("perdure", "perdure.server", "perdure.audit"):
            logging.getLogger(name).warning("run %s said %s", "r1", f"password={PASSWORD!r}, card: Card(pin={PIN})")
    assert "password=[redacted], card: [redacted]" in caplog.text
    assert not SEEN.search(caplog.text.encode())
    caplog.clear()
    logging.getLogger("perdure").warning("password=%s", PASSWORD)
    assert PASSWORD in caplog.text, "an engine that is closed has no say"


async def test_the_log_line_of_a_failed_attempt_does_not_repeat_an_argument(caplog: pytest.LogCaptureFixture) -> None:
    @step
    async def refuse(password: str, told: str) -> None:
        raise ValueError(f"{'x' * 150} refused {password}, as was {told}")

    @workflow
    async def refused(password: str) -> None:
        await refuse(password, password.upper())

    caplog.set_level(logging.INFO, "perdure")
    async with Engine("memory://", [refused], redact=REDACT) as engine:
        _ = await (await engine.start(refused(PASSWORD))).outcome()
    (line,) = [one for one in caplog.messages if "attempt 1 failed" in one]
    assert "refused [redacted], as was" in line
    assert PASSWORD not in line


async def test_settings_say_what_is_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure import InvalidSettings

    monkeypatch.setenv("PERDURE_REDACT", "$..card, *password*")
    async with Engine.from_config(programs=[inner], store="memory://") as engine:
        run = await engine.run(inner(GIVEN))
        async with client_of(engine.asgi()) as http:
            assert not SEEN.search((await http.get(f"runs/{run.run_id}")).content)
    monkeypatch.setenv("PERDURE_REDACT", "a.b")
    with pytest.raises(InvalidSettings, match="redact"):
        _ = Engine.from_config(programs=[inner])


GUESSES = [
    *(f"input.order.card.number={NUMBER}", f"input.password={PASSWORD}", f"output.card={NUMBER}", f"error={NUMBER}"),
    f"error=password='{PASSWORD[:9]}",
]


async def test_neither_a_cursor_nor_a_bulk_action_confirms_a_guess(engine: Engine) -> None:
    """Each would tell whether a hidden run matches: by its id, by the next page, or by how many runs there were."""
    runs = await ended(engine)
    _ = await engine.start(pay(GIVEN, PASSWORD), id="tagged", tags={"pin": CANARY, "shown": "yes"})
    tagged = {"tags": {"pin": CANARY}}
    filters: list[dict[str, Any]] = [*({"q": q} for q in GUESSES), tagged, {**tagged, "q": GUESSES[0]}]
    async with client_of(engine.asgi()) as http:
        for limit in (1, 2, 100):
            for guess in [*({"q": q} for q in GUESSES), {"tag": f"pin:{CANARY}"}]:
                page = (await http.get("runs", params={**guess, "limit": limit})).json()
                assert (page["runs"], page["next"]) == ([], None), guess
        for what in filters:
            for status in ([], ["completed"], ["failed"], ["waiting", "completed", "failed", "cancelled"]):
                asked = {"action": "cancel", "filter": {"status": status, **what}, "dry_run": True}
                tried = (await http.post("bulk", json=asked)).json()
                assert (tried["ids"], tried["more"], tried["failures"]) == ([], False, []), what
            begun = (await http.post("bulk", json={"action": "cancel", "filter": what})).json()
            _ = await engine.handle(begun["id"]).result()
            found = (await http.get(f"bulk/{begun['id']}")).json()
            assert (found["done"], found["skipped"], found["failed"]) == (0, 0, 0), what
        # What is shown is found, with pages that go on.
        (shown,) = (await http.get("runs", params={"tag": "shown:yes", "root": "true"})).json()["runs"]
        assert shown["tags"] == {"pin": "[redacted]", "shown": "yes"}
        query: dict[str, Any] = {"q": "input.order.name=ann", "root": "true", "limit": 2}
        ids: list[str] = []
        while True:
            page = (await http.get("runs", params=query)).json()
            ids += [run["id"] for run in page["runs"]]
            if page["next"] is None:
                break
            query["cursor"] = page["next"]
        assert ids == sorted(ids, key=ids.index)
        assert sorted(ids) == ["asks", "cancelled", "failed", "fork", "paid", "tagged"]
        asked = {"action": "cancel", "filter": {"q": "input.order.name=ann"}, "dry_run": True}
        assert runs["asks"] in (await http.post("bulk", json=asked)).json()["ids"]


async def test_the_difference_of_two_runs_confirms_no_guess() -> None:
    async with Engine("memory://", [inner], redact=REDACT) as engine:
        known = [
            await engine.run(inner(Order(name, Card(number, PIN))), id=f"{name} {number}")
            for name, number in (("ann", NUMBER), ("ann", "canary-guess"), ("bob", NUMBER))
        ]
        async with client_of(engine.asgi()) as http:
            same, other, name = [(await http.get(f"runs/{known[0].run_id}/diff/{run.run_id}")).json() for run in known]
    assert [op["changes"] for op in same["ops"]] == [op["changes"] for op in other["ops"]]
    assert (same["first"], other["first"], name["first"]) == (None, None, "input")


async def test_the_defaults_of_parameters_are_redacted() -> None:
    @dataclass
    class Settings:
        region: str = "eu"
        password: str = PASSWORD

    @workflow
    async def configured(
        amount: int = 3,
        db_password: str = PASSWORD,
        card: str = NUMBER,
        settings: Settings = Settings(),  # noqa: B008
    ) -> int:
        return amount

    async with Engine("memory://", [configured], redact=REDACT) as engine, client_of(engine.asgi()) as http:
        found = await http.get("programs/configured")
        described = {name: found.json()[name] for name in ("parameters", "signature")}
    assert described["parameters"]["properties"]["amount"]["default"] == 3
    assert "db_password" in described["parameters"]["properties"]
    assert SEEN.findall(json.dumps(described).encode()) == []
