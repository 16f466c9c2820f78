"""What every page must be: usable by all people, in both themes, on a phone. Pictures are taken for a person to see."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from perdure.server.development import Development
from perdure.server.shapes import CheckedRun, DevState
from tests.ui.conftest import Shop, until

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")

# By name: the address, with the id of a run in braces, and a text that is there when the page is.
PAGES: dict[str, tuple[str, str]] = {
    "runs": ("", "broke"),
    "run": ("runs/{order-18}?op=charge%3A0", "backed off 36.0 s"),
    "wide": ("runs/{wide}", "parse"),
    "parked": ("runs/{invoice-7}", "Parked: The step convert was"),
    "error": ("runs/{books-18}", "in this group"),
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


def opened_palette(page: Page) -> None:
    """The box over every page, with what it offers."""
    page.keyboard.press("/")
    page.get_by_role("combobox", name="Search and commands").fill("order-1")
    expect(page.get_by_role("option").filter(has_text="order-18").first).to_be_visible()


def opened_settings(page: Page) -> None:
    """Themes, zones and shortcuts."""
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_role("dialog", name="Settings").get_by_label("Time zone")).to_be_visible()


def opened_bulk(page: Page) -> None:
    """What many runs are told at once."""
    expect(page.get_by_label("Choose all that are shown")).to_be_attached()
    page.keyboard.press("j")
    page.keyboard.press("x")
    region = page.get_by_role("region", name="Chosen runs")
    region.get_by_role("button", name="cancel…").click()
    expect(page.get_by_role("dialog").get_by_text("it would be")).to_be_visible()


# What opens over a page.
OVER: dict[str, Callable[[Page], None]] = {
    "palette": opened_palette,
    "settings": opened_settings,
    "bulk": opened_bulk,
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


def violations(page: Page) -> list[Any]:
    """What axe finds on a page: the rule, and the first elements that break it."""
    page.evaluate(AXE)
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [(one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in result["violations"]]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(
    new_page: Callable[..., Page], still_shop: Shop, picture: Callable[[Page, str], None], theme: str
) -> None:
    page = new_page(theme=theme, height=860)
    found: dict[str, Any] = {}
    for name in PAGES:
        goto(page, still_shop, name)
        picture(page, f"{name}-{theme}")
        if wrong := violations(page):
            found[name] = wrong
    for name, open_it in OVER.items():
        page.goto(still_shop.url)
        expect(page.get_by_role("link", name="broke")).to_be_visible()
        open_it(page)
        picture(page, f"{name}-{theme}")
        if wrong := violations(page):
            found[name] = wrong
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
    for name, open_it in OVER.items():
        page.goto(still_shop.url)
        expect(page.get_by_role("link", name="broke")).to_be_visible()
        open_it(page)
        picture(page, f"{name}-phone")
        if page.evaluate("[...document.querySelectorAll('dialog')].some(one => one.scrollWidth > one.clientWidth)"):
            wide.append(name)
    assert wide == []
    page.goto(still_shop.url)
    # A cell that is cut off counts as visible.
    link = page.get_by_role("link", name="broke")
    assert link.evaluate("one => one.getBoundingClientRect().right <= one.closest('td').getBoundingClientRect().right")
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("link", name="Queues").click()
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()


def test_the_theme_is_a_setting_that_is_remembered(page: Page, still_shop: Shop) -> None:
    page.goto(still_shop.url)
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.keyboard.press("t")
    expect(page.locator("body")).not_to_have_css("background-color", light)
    dark = page.evaluate(background)
    page.reload()
    expect(page.locator("body")).to_have_css("background-color", dark)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_an_edit_that_is_held_back_is_shown_with_the_runs_that_it_would_park(
    new_page: Callable[..., Page], still_shop: Shop, picture: Callable[[Page, str], None], theme: str
) -> None:
    taken: list[bool] = []
    why = "The step convert was renamed"
    reason = f"{why}\n\n--- flows.py\n+++ flows.py\n@@ -1,1 +1,2 @@\n+from perdure import patched\n     workflow,"
    runs = [
        CheckedRun(one.id, one.run_id, one.program, "1", one.status, "patch", reason, "renamed", why, "")
        for one in still_shop.do(still_shop.engine.list(status="waiting", limit=3, values=False))
    ]

    async def serve() -> str:
        app = still_shop.engine.asgi()
        state = DevState("flows", "held", datetime.now(UTC), checked=9, runs=runs, folder="/src/app")
        app.service.development = Development(state, app.service.changes, lambda: taken.append(True))
        return await still_shop.served.also(app)

    url = still_shop.do(serve())
    page = new_page(theme=theme, width=390 if theme == "dark" else 1280)
    page.goto(url)
    page.get_by_role("link", name="edit held back").click()
    expect(page.get_by_text(re.compile("The edit is held back: it would park [0-9]+ open runs"))).to_be_visible()
    picture(page, f"held-{theme}")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("button", name="Take it anyway").click()
    until(page, lambda: taken)
    expect(page.get_by_role("button", name="Take it anyway")).to_be_enabled()
    assert taken == [True]
    page.goto(f"{url}runs/{still_shop.run_id('order-18')}?op=ship%3A0")
    editor = page.get_by_role("link", name="open the line")
    expect(editor).to_have_attribute("href", re.compile(r"^vscode://file/src/app/tests/ui/shop\.py:\d+$"))
