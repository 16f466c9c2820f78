"""What every page must be: usable by all people, in both themes, on a phone. Pictures are taken for a person to see."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import Shop

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")

# By name: the address, with the id of a run in braces, and a text that is there when the page is.
PAGES: dict[str, tuple[str, str]] = {
    "runs": ("", "broke"),
    "run": ("runs/{order-18}?op=charge%3A0", "backed off 36.0 s"),
    "wide": ("runs/{wide}", "parse"),
    "parked": ("runs/{invoice-7}", "Parked: The step convert was"),
    "error": ("runs/{books-18}", "exceptions in this group"),
    "hostile": ("runs/{hostile}", "Facts"),
    "source": ("runs/{order-18}?tab=source&at=10", "waits for"),
    "graph": ("runs/{letter-6}?tab=graph", "by_kind"),
    "journal": ("runs/{order-18}?tab=journal&at=5", "link to this event"),
    "family": ("runs/{order-18}?tab=family", "child runs in its journal"),
    "approvals": ("approvals", "big-0"),
    "answer": ("approvals?ask={big-0} ship:0", "Discount"),
    "schedules": ("schedules", "every day at 02:30"),
    "schedule": ("schedules/nightly", "it fires by Europe/Berlin"),
    "queues": ("queues", "emails"),
    "orchestrators": ("orchestrators", "berlin-3"),
    "locks": ("locks", "guard-1"),
    "start": ("start?program=fulfil", "Customer"),
    "compare": ("compare?a={order-18}&b={order-12}&op=result", "They part at"),
    "capsule": ("capsule", "Drop a capsule here"),
    "check": ("check", "Every open run is replayed"),
    "health": ("health", "integrity"),
}


def goto(page: Page, still_shop: Shop, name: str) -> None:
    """Open one of the pages."""
    address, text = PAGES[name]
    while "{" in address:
        before, _, rest = address.partition("{")
        id, _, after = rest.partition("}")
        address = before + still_shop.run_id(id) + after
    page.goto(still_shop.url + address)
    expect(page.get_by_text(text).first).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(
    new_page: Callable[..., Page], still_shop: Shop, picture: Callable[[Page, str], None], theme: str
) -> None:
    page = new_page(theme=theme, height=860)
    found: dict[str, Any] = {}
    for name in PAGES:
        goto(page, still_shop, name)
        picture(page, f"{name}-{theme}")
        page.evaluate(AXE)
        result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        if result["violations"]:
            found[name] = [
                (one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in result["violations"]
            ]
    assert found == {}


def test_no_page_is_wider_than_a_phone(
    new_page: Callable[..., Page], still_shop: Shop, picture: Callable[[Page, str], None]
) -> None:
    page = new_page(width=390, height=844)
    wide = []
    for name in PAGES:
        goto(page, still_shop, name)
        picture(page, f"{name}-phone")
        if page.evaluate(
            "[document.documentElement, document.querySelector('main')].some(one => one.scrollWidth > innerWidth)"
        ):
            wide.append(name)
    assert wide == []
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("link", name="Queues").click()
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()


def test_the_theme_is_a_setting_that_is_remembered(page: Page, still_shop: Shop) -> None:
    page.goto(still_shop.url)
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.keyboard.press("t")
    assert page.evaluate(background) != light
    dark = page.evaluate(background)
    page.reload()
    assert page.evaluate(background) == dark
