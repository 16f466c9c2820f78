"""Questions that people answer by a link: without an account, without JavaScript, once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

import httpx2 as httpx
import pytest

from perdure import ApprovalRejected, Engine, approval, workflow
from perdure.client.credentials import LINK_SECONDS
from tests.server.conftest import client_of
from tests.server.test_access import At

ROOT = "https://flows.test/"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@dataclass
class Decision:
    """An answer with fields of every kind."""

    ship: bool
    parcels: int
    carrier: Literal["air", "sea"] = "air"
    note: str = ""
    places: list[str] | None = None


@workflow
async def decide(total: str) -> Any:
    return await approval("ship it?", request={"total": total}, schema=Decision, approvers=["ann", "bob"])


@dataclass
class Visit:
    """An answer that may leave things open."""

    room: str | None
    note: str | None = None
    seats: int | None = 4
    agreed: bool | None = None
    floor: Literal["ground", "first"] | None = None


@workflow
async def visit() -> Any:
    return await approval("visit", schema=Visit)


@workflow
async def plain() -> Any:
    try:
        return await approval("ok", request="<b>may I?</b>")
    except ApprovalRejected as error:
        return f"no: {error.reason}"


@pytest.fixture
async def engine() -> Any:
    async with Engine("memory://", [decide, plain, visit]) as engine:
        yield engine


@pytest.fixture
async def site(engine: Engine) -> Any:
    """The site as a person without an account has it."""
    async with client_of(engine.asgi(access=lambda request: None), ROOT) as http:
        yield http


async def link(engine: Engine, invocation: Any, person: str = "ann", **options: Any) -> tuple[str, str]:
    """The address of a new link, and the run_id."""
    run = await engine.run(invocation, until="rest")
    op = quote(run.interrupts[0].path)
    async with client_of(engine.asgi()) as http:
        made = await http.post(f"runs/{run.run_id}/approvals/{op}/links", json={"person": person, **options})
    assert made.status_code == 201, made.text
    path: str = made.json()["path"]
    return path, run.run_id


async def test_a_link_shows_the_question_and_only_a_post_answers_it(engine: Engine, site: httpx.AsyncClient) -> None:
    address, run_id = await link(engine, decide("<script>9</script>"))
    commits = engine.store.journal.commits  # type: ignore[attr-defined]
    shown = await site.get(address)
    assert (shown.status_code, (await site.head(address)).status_code) == (200, 200)
    assert engine.store.journal.commits == commits  # type: ignore[attr-defined]
    assert "&lt;script&gt;9&lt;/script&gt;" in shown.text
    assert "<script" not in shown.text
    assert "You answer as ann." in shown.text
    fields = set(re.findall(r'name="(field:\w+)"', shown.text))
    assert fields == {"field:ship", "field:parcels", "field:carrier", "field:note", "field:places"}
    form = {
        "decision": "approve",
        "field:ship": "true",
        "field:parcels": "9007199254740993",
        "field:carrier": "sea",
        "field:places": '["a", "b"]',
    }
    answered = await site.post(address, data=form)
    assert (answered.status_code, "Thank you" in answered.text) == (200, True)
    (waited,) = [e.event for e in await engine.journal(run_id) if getattr(e.event, "by", "").startswith("answer:")]
    assert waited.person == "ann"  # type: ignore[union-attr]
    assert await engine.handle(run_id).result() == {
        "ship": True,
        "parcels": 9007199254740993,
        "carrier": "sea",
        "places": ["a", "b"],
    }


async def test_a_link_answers_once(engine: Engine, site: httpx.AsyncClient) -> None:
    address, run_id = await link(engine, plain())
    assert (await site.post(address, data={"decision": "approve", "answer": "17"})).status_code == 200
    assert await engine.handle(run_id).result() == 17
    for again in (await site.get(address), await site.post(address, data={"decision": "reject"})):
        assert (again.status_code, "This link was used" in again.text) == (410, True)


async def test_a_link_says_no_with_a_reason(engine: Engine, site: httpx.AsyncClient) -> None:
    address, run_id = await link(engine, plain())
    assert (await site.post(address, data={"decision": "reject", "reason": "too dear"})).status_code == 200
    assert await engine.handle(run_id).result() == "no: too dear"


async def test_an_answer_that_does_not_fit_is_shown_again_with_what_was_given(
    engine: Engine, site: httpx.AsyncClient
) -> None:
    address, run_id = await link(engine, decide("9"))
    wrong = await site.post(address, data={"decision": "approve", "field:parcels": "many", "field:note": "<b>"})
    assert wrong.status_code == 422
    assert 'class="problem" role="alert"' in wrong.text
    assert 'value="many"' in wrong.text
    assert 'value="&lt;b&gt;"' in wrong.text
    assert (await site.post(address, data={"reason": ""})).status_code == 422
    view = await engine.get(run_id)
    assert view is not None
    assert view.status == "waiting"


async def test_a_link_expires(engine: Engine, site: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    address, _ = await link(engine, plain(), ttl=3600)
    far, _ = await link(engine, plain(), ttl=30_000_000)
    now = engine.clock.now()
    monkeypatch.setattr(engine._base, "clock", At(now + 3601))
    expired = await site.get(address)
    assert (expired.status_code, "This link has expired" in expired.text) == (410, True)
    assert (await site.post(address, data={"decision": "approve"})).status_code == 410
    monkeypatch.setattr(engine._base, "clock", At(now + LINK_SECONDS + 1))
    assert (await site.get(far)).status_code == 410


async def test_a_question_that_was_answered_elsewhere_is_closed(engine: Engine, site: httpx.AsyncClient) -> None:
    address, run_id = await link(engine, plain())
    _ = await engine.approve(run_id, "ok", 1)
    for late in (await site.get(address), await site.post(address, data={"decision": "approve", "answer": "2"})):
        assert (late.status_code, "This question is closed" in late.text) == (410, True)
    assert await engine.handle(run_id).result() == 1


async def test_a_link_is_only_for_a_person_who_may_answer_an_open_question(engine: Engine) -> None:
    run = await engine.run(decide("9"), until="rest")
    path = f"runs/{run.run_id}/approvals/{quote(run.interrupts[0].path)}/links"
    async with client_of(engine.asgi()) as http:
        refused = await http.post(path, json={"person": "eve"})
        assert (refused.status_code, refused.json()["code"]) == (422, "answer_rejected")
        missing = await http.post(f"runs/{run.run_id}/approvals/none:0/links", json={"person": "ann"})
        assert (missing.status_code, missing.json()["code"]) == (409, "not_asked")


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://evil.test"},
        {"Content-Type": "application/json"},
        {"Content-Type": "text/plain"},
    ],
)
async def test_only_the_form_of_the_page_itself_answers(
    engine: Engine, site: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    address, _ = await link(engine, plain())
    refused = await site.post(address, content=b"decision=approve", headers=FORM | headers)
    assert refused.status_code in (403, 415)
    assert (await site.get(address)).status_code == 200


async def test_every_page_has_the_strict_policy(engine: Engine, site: httpx.AsyncClient) -> None:
    address, _ = await link(engine, plain())
    pages = [await site.get(address), await site.get("answer/perdure_0_x"), await site.get("answer/")]
    pages.append(await site.post(address, data={"decision": "reject"}))
    pages.append(await site.get(address))
    assert [page.status_code for page in pages] == [200, 404, 404, 200, 410]
    for page in pages:
        assert page.headers["content-security-policy"].startswith("default-src 'none'")
        assert page.headers["referrer-policy"] == "no-referrer"
        assert page.headers["cache-control"] == "no-store"
        assert not re.search(r"<script|style=|\son\w+=", page.text)
    style = await site.get("answer/style.css")
    assert style.headers["content-type"].startswith("text/css")


async def test_a_form_that_is_too_long_is_refused(engine: Engine, site: httpx.AsyncClient) -> None:
    address, _ = await link(engine, plain())
    refused = await site.post(address, data={"decision": "approve", "answer": "x" * 300_000})
    assert refused.status_code == 413
    many = await site.post(address, data={f"f{number}": "" for number in range(2000)})
    assert many.status_code == 400


async def test_a_browser_that_names_no_site_hides_the_origin_of_a_page_without_a_referrer(
    engine: Engine, site: httpx.AsyncClient
) -> None:
    """Over plain HTTP, and in older browsers: the secret is in the address, and no cookie answers for anyone."""
    address, run_id = await link(engine, plain())
    page = await site.get(address)
    assert page.headers["referrer-policy"] == "no-referrer"
    answered = await site.post(address, content=b"decision=approve&answer=yes", headers={**FORM, "Origin": "null"})
    assert (answered.status_code, "Thank you" in answered.text) == (200, True)
    assert (await engine.get(run_id)).output == "yes"  # type: ignore[union-attr]


async def test_a_link_of_which_another_site_knows_is_answered_by_no_form_of_it(
    engine: Engine, site: httpx.AsyncClient
) -> None:
    address, _ = await link(engine, plain())
    hostile = {**FORM, "Origin": "null", "Sec-Fetch-Site": "cross-site"}
    assert (await site.post(address, content=b"decision=approve", headers=hostile)).status_code == 403


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ({}, {"room": None, "seats": None}),
        ({"room": "12", "note": "true", "seats": "3"}, {"room": "12", "note": "true", "seats": 3}),
        (
            {"seats": "4", "agreed": "false", "floor": "first"},
            {"room": None, "seats": 4, "agreed": False, "floor": "first"},
        ),
    ],
)
async def test_what_may_be_null_is_a_field_of_its_type_that_may_stay_empty(
    engine: Engine, site: httpx.AsyncClient, given: dict[str, str], answer: dict[str, Any]
) -> None:
    address, run_id = await link(engine, visit())
    shown = (await site.get(address)).text
    assert "null" not in shown
    assert "required" not in shown
    assert re.search(r'<input type="text" id="field:note" name="field:note" value="">', shown)
    form = {f"field:{name}": given.get(name, "") for name in ("room", "note", "seats", "agreed", "floor")}
    answered = await site.post(address, data={"decision": "approve", **form})
    assert answered.status_code == 200, answered.text
    assert await engine.handle(run_id).result() == answer
