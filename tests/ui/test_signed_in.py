"""Who looks: signing in with a token, what a reader may do, and the page of a question for those without an account."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from perdure import Engine
from perdure.server import Tokens
from tests.ui import shop
from tests.ui.conftest import PATIENCE_MS, PLAIN_HOST, BrowserThread, Complaints, Served, Shop
from tests.ui.test_looks import violations


@dataclass
class Office(Shop):
    """A server that asks for a token."""

    reader: str = ""
    all: str = ""

    def link(self, id: str, op: str) -> str:
        """The address at which a person answers a question of a run."""

        async def made() -> str:
            issued = await self.engine._credentials.issue("link", id, run=run_id, op=op, person="ann", ttl=3600.0)
            return issued.text

        run_id = self.run_id(id)
        return f"{self.url}answer/{self.do(made())}"


@pytest.fixture(scope="module")
def office() -> Iterator[Office]:
    """A server that asks for a token, with a run that asks a question."""
    tokens: dict[str, str] = {}

    async def opened(served: Served) -> None:
        async with Engine("memory://", shop.PROGRAMS, name="office") as engine:
            served.engine = engine
            issue = engine._credentials.issue
            tokens["reader"] = (await issue("token", "ben", may=["read"])).text
            tokens["all"] = (await issue("token", "ann", may=["read", "run", "approve", "debug", "admin"])).text
            for number in (1, 2, 3):
                await engine.run(shop.hostile({"number": number}), id=f"asks-{number}", until="rest")
            await served.serve(engine.asgi(access=Tokens(engine)))

    served = Served(opened)
    try:
        yield Office(served, **tokens)
    finally:
        served.end()


def sign_in(page: Page, office: Office, token: str) -> None:
    """Sign in on the page."""
    page.goto(office.url)
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()


@pytest.fixture
def out(complaints: Complaints) -> None:
    """Who is not signed in is told so."""
    complaints.expected("/api/v1/", 401)


def test_signing_in_and_out_with_a_token(page: Page, office: Office, out: None) -> None:
    sign_in(page, office, "perdure_wrong")
    expect(page.get_by_text("this token does not exist, has expired, or was revoked")).to_be_visible()
    page.get_by_label("Token").fill(f" {office.all} ")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("link", name="asks-1")).to_be_visible()
    expect(page.get_by_role("navigation", name="Pages")).to_contain_text("ann")
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("button", name="Sign out ann").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_a_reader_sees_all_and_is_offered_nothing_that_changes_it(page: Page, office: Office, out: None) -> None:
    sign_in(page, office, office.reader)
    expect(page.get_by_role("link", name="asks-3")).to_be_visible()
    expect(page.get_by_role("link", name="Start a run")).to_have_count(0)
    expect(page.get_by_role("checkbox")).to_have_count(0)
    page.get_by_role("link", name="asks-3").click()
    expect(page.get_by_role("row", name=re.compile("^sure:0, approval, waiting"))).to_be_visible()
    for action in ("Pause", "Signal", "Cancel", "Fork", "Answer"):
        expect(page.get_by_role("button", name=action, exact=True)).to_have_count(0)
    page.keyboard.press("c")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.goto(f"{office.url}start")
    expect(page.get_by_text("ben may not start runs.")).to_be_visible()
    page.goto(f"{office.url}capsule")
    expect(page.get_by_text("takes the permission debug")).to_be_visible()
    page.goto(f"{office.url}approvals")
    expect(page.get_by_role("link", name="asks-3")).to_be_visible()
    expect(page.get_by_role("button", name="Answer")).to_have_count(0)


def test_over_plain_http_the_page_says_that_it_takes_https(browser: BrowserThread, office: Office) -> None:
    # Chromium complains of a header that counts for HTTPS alone, so nobody listens to the complaints here.
    page = browser.browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"http://{PLAIN_HOST}:{urlsplit(office.url).port}/")
    expect(page.get_by_text("Browsers keep a session over HTTPS alone")).to_be_visible()
    page.get_by_label("Token").fill(office.all)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("the browser would drop the session")).to_be_visible()
    page.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_of_signing_in_is_usable_by_all(
    new_page: Callable[..., Page],
    office: Office,
    out: None,
    picture: Callable[[Page, str], None],
    theme: str,
) -> None:
    page = new_page(theme=theme, width=390 if theme == "dark" else 1280)
    page.goto(office.url)
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    picture(page, f"signin-{theme}")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


# --- the page of a question, without JavaScript -----------------------------------------------------------------------


@pytest.fixture
def plain_page(browser: BrowserThread, complaints: Complaints, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page of a phone that executes no JavaScript."""

    def made() -> Page:
        context = browser.browser.new_context(java_script_enabled=False, viewport={"width": 390, "height": 844})
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        complaints.watch(page)
        return page

    page = browser.do(made)
    yield page
    browser.do(page.context.close)


def test_a_question_is_answered_by_a_link_without_javascript(
    plain_page: Page, office: Office, picture: Callable[[Page, str], None], complaints: Complaints
) -> None:
    page, link = plain_page, office.link("asks-1", "sure:0")
    page.goto(link)
    expect(page.get_by_role("heading", name="sure")).to_be_visible()
    expect(page.get_by_text("You answer as ann.")).to_be_visible()
    expect(page.get_by_text('"number": 1')).to_be_visible()
    picture(page, "answer-link")
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_role("heading")).to_be_visible()
    picture(page, "answered-link")
    office.do(asyncio.wait_for(result(office, "asks-1"), 60))
    complaints.expected("/answer/", 410)
    page.goto(link)
    expect(page.get_by_text("This link was used")).to_be_visible()


def test_a_question_is_rejected_by_a_link_without_javascript(plain_page: Page, office: Office) -> None:
    page = plain_page
    page.goto(office.link("asks-2", "sure:0"))
    page.get_by_text("Reject", exact=True).first.click()
    page.get_by_label("Reason").fill("<b>no</b>")
    page.get_by_role("button", name="Reject").click()
    expect(page.get_by_role("heading")).to_be_visible()
    view = office.do(asyncio.wait_for(result(office, "asks-2"), 60))
    assert "<b>no</b>" in str(view.error)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_of_a_question_is_usable_by_all(
    new_page: Callable[..., Page], office: Office, picture: Callable[[Page, str], None], theme: str
) -> None:
    page = new_page(theme=theme, width=390)
    page.goto(office.link("asks-3", "sure:0"))
    expect(page.get_by_role("button", name="Approve")).to_be_visible()
    picture(page, f"question-{theme}")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def result(office: Office, id: str) -> Any:
    """A run that has ended."""
    while True:
        view = await office.engine.get(id)
        if view is not None and view.finished_at is not None:
            return view
        await asyncio.sleep(0.01)
