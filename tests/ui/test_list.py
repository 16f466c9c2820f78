"""The list of runs."""

from __future__ import annotations

import re

from playwright.sync_api import Page, Request, expect

from tests.ui import shop
from tests.ui.conftest import Shop, until


def test_filters_stand_in_the_address_and_come_back_with_it(page: Page, still_shop: Shop) -> None:
    page.goto(still_shop.url)
    expect(page.get_by_role("link", name="broke")).to_be_visible()
    page.get_by_label("Filter").fill("customer:ann program:fulfil")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"\?tag=customer%3Aann&program=fulfil$"))
    expect(page.get_by_role("link", name="order-0")).to_be_visible()
    expect(page.get_by_role("link", name="broke")).to_have_count(0)
    page.get_by_role("link", name="Without tag customer:ann").click()
    expect(page.get_by_role("link", name="broke")).to_be_visible()
    page.go_back()
    page.reload()
    expect(page.get_by_role("link", name="order-0")).to_be_visible()
    expect(page.get_by_role("link", name="broke")).to_have_count(0)


def test_runs_are_found_by_their_values_and_by_the_beginning_of_their_id(page: Page, still_shop: Shop) -> None:
    page.goto(still_shop.url)
    page.get_by_label("Filter").fill("input.order.customer=ida")
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="broke")).to_be_visible()
    expect(page.get_by_role("link", name="order-0")).to_have_count(0)
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.get_by_role("combobox", name="Search and commands").fill("forever/1")
    expect(page.get_by_role("listbox").get_by_role("option").first).to_contain_text("forever/1 ünïcödé 🧾")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="forever/1 ünïcödé 🧾")).to_be_visible()


def test_an_id_that_is_pasted_opens_its_run_and_not_a_child_of_it(page: Page, still_shop: Shop) -> None:
    view = still_shop.do(still_shop.engine.get("order-0"))
    assert view is not None
    # Its child is newer, and its id begins with that of the run.
    for pasted in ("order-0", view.run_id):
        page.goto(still_shop.url)
        page.keyboard.press("/")
        page.get_by_role("combobox", name="Search and commands").fill(pasted)
        expect(page.get_by_role("listbox").get_by_role("option").first).to_have_text(re.compile("order-0 *fulfil"))
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="order-0", exact=True)).to_be_visible()


def test_a_run_that_starts_is_in_the_list_and_in_the_counts_at_once(page: Page, own_shop: Shop) -> None:
    own_shop.start(shop.forever(1), id="there")
    _ = own_shop.reached("there", "waiting")
    page.goto(f"{own_shop.url}?tag=live%3Ayes")
    expect(page.get_by_text("No run fits these filters")).to_be_visible()
    expect(page.get_by_role("button", name="live")).to_be_visible()
    tabs = page.get_by_role("group", name="Status")
    expect(tabs.get_by_role("link", name="waiting 1", exact=True)).to_be_visible()
    expect(tabs.get_by_role("link", name="cancelled 0", exact=True)).to_be_visible()
    own_shop.start(shop.naps(shop.LONG), id="live-1", tags={"live": "yes"})
    expect(page.get_by_role("row", name="live-1").get_by_text("waiting")).to_be_visible()
    expect(tabs.get_by_role("link", name="waiting 2", exact=True)).to_be_visible()
    own_shop.do(own_shop.engine.cancel("live-1"))
    expect(page.get_by_role("row", name="live-1").get_by_text("cancelled")).to_be_visible()
    expect(tabs.get_by_role("link", name="cancelled 1", exact=True)).to_be_visible()
    expect(tabs.get_by_role("link", name="waiting 1", exact=True)).to_be_visible()
    page.get_by_role("button", name="Columns").click()
    page.get_by_label("Count the runs").uncheck()
    page.keyboard.press("Escape")
    expect(tabs.get_by_role("link", name="waiting", exact=True)).to_be_visible()


def test_the_live_view_can_be_paused(page: Page, own_shop: Shop) -> None:
    page.clock.install()
    asked: set[Request] = set()
    page.on("request", lambda request: asked.add(request))
    page.on("requestfinished", lambda request: asked.discard(request))
    page.on("requestfailed", lambda request: asked.discard(request))
    page.goto(f"{own_shop.url}?tag=paused%3Ayes")
    expect(page.get_by_role("button", name="live")).to_be_visible()
    page.keyboard.press("p")
    expect(page.get_by_role("button", name="paused")).to_be_visible()
    # What was heard before is still read.
    page.clock.run_for(10_000)
    until(page, lambda: all("/events" in request.url for request in asked))
    own_shop.start(shop.forever(1), id="unseen-1", tags={"paused": "yes"})
    expect(page.get_by_role("button", name=re.compile(r"paused · \d+ changes"))).to_be_visible()
    expect(page.get_by_text("No run fits these filters")).to_be_visible()
    page.keyboard.press("p")
    expect(page.get_by_role("row", name="unseen-1")).to_be_visible()


def test_children_are_folded_under_their_root(page: Page, still_shop: Shop) -> None:
    page.goto(f"{still_shop.url}?q=order-18")
    expect(page.get_by_role("row")).to_have_count(2)
    page.get_by_role("button", name="Children of order-18").click()
    expect(page.get_by_role("link", name="pack:0")).to_be_visible()
    page.get_by_role("link", name="pack:0").click()
    expect(page.get_by_role("heading", name="pack:0")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("reserve:0"))).to_be_visible()
    page.get_by_role("link", name="its parent").click()
    expect(page.get_by_role("heading", name="order-18")).to_be_visible()


def test_failures_are_grouped_by_their_kind(page: Page, still_shop: Shop) -> None:
    page.goto(f"{still_shop.url}?status=failed")
    kinds = page.get_by_role("group", name="Kinds of failures")
    expect(kinds.get_by_role("link")).to_have_text([re.compile("ExceptionGroup4"), re.compile("ConnectionError1")])
    kinds.get_by_role("link", name="ConnectionError").click()
    expect(page.get_by_role("link", name="broke")).to_be_visible()
    expect(page.get_by_role("link", name=re.compile("^books-"))).to_have_count(0)


def test_columns_and_views_are_remembered(page: Page, still_shop: Shop) -> None:
    page.goto(f"{still_shop.url}?program=fulfil&status=failed")
    page.get_by_role("button", name="Columns").click()
    page.get_by_label("Owner").check()
    page.get_by_label("Tag customer").check()
    page.keyboard.press("Escape")
    expect(page.get_by_role("columnheader", name="Owner")).to_be_visible()
    page.get_by_role("button", name="Views").click()
    page.get_by_label("Name of the view").fill("bad orders")
    page.keyboard.press("Enter")
    page.goto(still_shop.url)
    expect(page.get_by_role("columnheader", name="customer")).to_be_visible()
    page.get_by_role("button", name="Views").click()
    page.get_by_role("link", name="bad orders").click()
    expect(page).to_have_url(re.compile(r"\?program=fulfil&status=failed$"))
    expect(page.get_by_role("cell", name="ida", exact=True)).to_be_visible()


def test_long_lists_are_read_by_the_page_and_drawn_by_the_window(page: Page, own_shop: Shop) -> None:
    for number in range(240):
        own_shop.start(shop.echo(number), id=f"many-{number:03}", delay=shop.LONG)
    page.goto(own_shop.url)
    expect(page.get_by_role("link", name="many-239")).to_be_visible()
    assert page.locator("tbody tr").count() < 80
    rows = page.get_by_role("region", name="List of runs")
    first = page.get_by_role("link", name="many-000")

    def scrolled() -> int:
        rows.evaluate("one => one.scrollTop = one.scrollHeight")
        return first.count()

    until(page, scrolled)
    expect(first).to_be_visible()
    assert page.locator("tbody tr").count() < 80


def test_the_list_is_walked_with_keys(page: Page, still_shop: Shop) -> None:
    page.goto(f"{still_shop.url}?q=order-1&status=completed")
    expect(page.get_by_role("link", name="order-12")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="order-12")).to_be_visible()
    # One right after the other: what comes later is a shortcut of its own.
    page.evaluate(
        "for (const key of 'gq') document.body.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }))"
    )
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()


def test_empty_lists_teach(page: Page, own_shop: Shop) -> None:
    for path, text in (
        ("", "A workflow is a Python function whose steps are remembered"),
        ("approvals", "A run asks a person"),
        ("schedules", "A schedule starts a run at every tick"),
        ("queues", "A queue holds runs back"),
        ("locks", "A lock has one holder at a time"),
        ("compare", "Two runs are compared op by op"),
    ):
        page.goto(own_shop.url + path)
        expect(page.get_by_text(text)).to_be_visible()
