"""The page of a run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.ui import shop
from tests.ui.conftest import Shop


def test_the_strip_says_where_the_time_went(page: Page, still_shop: Shop) -> None:
    page.goto(still_shop.page_of("order-18"))
    strip = page.get_by_role("img", name="waited 20 min")
    expect(strip).to_have_accessible_name(re.compile("^waited 20 min, backed off 52.0 s, worked 5.30 s"))
    # Its owner left while it slept, and it was due before another came.
    page.goto(still_shop.page_of("nap-1"))
    expect(page.get_by_role("img", name=re.compile("^waited 1 h 10 min, no worker 19 min"))).to_be_visible()
    page.goto(still_shop.page_of("big-2"))
    expect(page.get_by_role("img", name=re.compile(r"^(waited|paused) \d+ h"))).to_be_visible()
    # It was started with a delay, which is not over: no worker is missing.
    page.goto(still_shop.page_of("chat-2"))
    expect(page.get_by_role("img", name=re.compile(r"^waited \d+ h"))).to_have_accessible_name(re.compile("^[^,]*$"))


def test_a_part_of_the_strip_is_as_long_as_its_time(page: Page, still_shop: Shop) -> None:
    page.goto(still_shop.page_of("order-18"))
    strip = page.get_by_role("img", name=re.compile("^waited 20 min, backed off 52.0 s, worked 5.30 s"))
    box = strip.bounding_box()
    assert box is not None

    def widths(kind: str) -> list[float]:
        boxes = [one.bounding_box() for one in strip.locator(f".{kind}").all()]
        return [one["width"] for one in boxes if one is not None]

    assert sum(widths("waited")) / box["width"] > 0.9
    assert min(widths("worked")) >= 2


def test_a_reason_has_its_moment_once_and_in_the_zone_of_the_page(
    new_page: Callable[..., Page], still_shop: Shop
) -> None:
    page = new_page(zone="Asia/Kathmandu")
    why = still_shop.do(still_shop.engine.why("chat-2"))
    assert why is not None
    assert why.until is not None
    # Not by Python's names of months and its idea of this year: the browser has its own.
    script = """at => {
        const found = {}, year = {year: 'numeric'}, today = new Date().toLocaleString('en-GB', year);
        const format = {...year, day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit', hourCycle: 'h23'};
        for (const {type, value} of new Intl.DateTimeFormat('en-GB', format).formatToParts(at)) found[type] = value;
        const then = found.year === today ? '' : ` ${found.year}`;
        return `${found.day} ${found.month}${then} ${found.hour}:${found.minute}`;
    }"""
    there = page.evaluate(script, why.until.timestamp() * 1000)
    page.goto(still_shop.page_of("chat-2"))
    expect(page.get_by_text(f"delayed until {there}", exact=True)).to_be_visible()
    page.goto(f"{still_shop.url}?q=chat-2")
    expect(page.get_by_role("row", name="chat-2").get_by_text(there)).to_be_visible()


def test_idle_time_is_folded_and_back_off_is_told_from_work(page: Page, still_shop: Shop) -> None:
    page.goto(still_shop.page_of("order-18"))
    row = page.get_by_role("row", name="charge:0, step, succeeded, 4 attempts, 55.2 s")
    expect(row.locator("i.bar.work.failed")).to_have_count(3)
    expect(row.locator("i.bar.backoff")).to_have_count(3)
    expect(row.locator("i.bar.work.succeeded")).to_have_count(1)
    work, sleep = row.locator("i.bar.work.succeeded"), page.get_by_role("row", name="sleep:0").locator("i.bar")

    def width(bar: object) -> float:
        box = bar.bounding_box()  # type: ignore[attr-defined]
        assert box is not None
        return float(box["width"])

    assert width(sleep) < 2 * width(work)
    page.get_by_label("fold idle time").uncheck()
    expect(page.locator(".gap")).to_have_count(0)
    assert width(sleep) > 20 * width(work)


def test_the_timeline_is_walked_with_keys_and_its_op_is_in_the_address(page: Page, still_shop: Shop) -> None:
    page.goto(still_shop.page_of("order-18"))
    page.get_by_role("row", name="state:0").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"\?op=charge%3A0$"))
    expect(page.get_by_role("row", name="charge:0")).to_be_focused()
    panel = page.get_by_role("region", name="Op charge:0")
    expect(panel.get_by_text("9007199254740993")).to_be_visible()
    expect(panel.get_by_text("backed off 36.0 s")).to_be_visible()
    panel.get_by_text("ConnectionError: the bank closed the connection (2)", exact=True).click()
    expect(panel.get_by_role("region", name="Traceback of builtins.ConnectionError").first).to_contain_text("shop.py")
    page.get_by_role("row", name="pack:0").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("row", name="reserve:0")).to_have_count(0)
    page.reload()
    expect(panel).to_be_visible()


def test_ten_thousand_steps_are_one_row_until_they_are_opened(page: Page, still_shop: Shop) -> None:
    page.goto(still_shop.page_of("wide"))
    group = page.get_by_role("row", name="parse: 10,000 ops, succeeded")
    expect(group).to_be_visible()
    expect(group.locator("svg path.all")).to_have_attribute("d", re.compile("^M"))
    assert nodes(page) <= 500
    group.focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("row", name="parse:0, step")).to_be_visible()
    assert nodes(page) <= 500
    page.get_by_role("treegrid").press("End")
    expect(page.get_by_role("row", name="parse:9999, step")).to_be_focused()
    assert nodes(page) <= 500


def test_arguments_of_a_long_run_are_found_by_replay_when_they_are_asked_for(page: Page, still_shop: Shop) -> None:
    page.goto(f"{still_shop.page_of('wide')}?op=parse%3A5")
    panel = page.get_by_role("region", name="Op parse:5")
    expect(panel.get_by_text("The run is long: replaying it takes a while.")).to_be_visible()
    panel.get_by_role("button", name="Find them by replay").click()
    expect(panel.get_by_role("heading", name="Arguments by replay")).to_be_visible()
    expect(panel.get_by_role("region", name="Arguments")).to_contain_text(re.compile("line:?\\s*5"))


def nodes(page: Page) -> int:
    """How many elements a page has."""
    return page.locator("*").count()


def test_errors_show_their_causes_and_groups_as_text(page: Page, still_shop: Shop) -> None:
    page.goto(still_shop.page_of("books-18"))
    error = page.get_by_role("region", name="Error")
    expect(error.get_by_text(re.compile(r"\d exceptions? in this group"))).to_be_visible()
    expect(error.get_by_text("<script>alert(1)</script>").first).to_be_visible()
    expect(error.get_by_text("caused by").first).to_be_visible()
    assert page.locator("script").count() == 1  # its own


def test_hostile_values_are_text_and_long_ones_come_when_they_are_asked_for(page: Page, shop_server: Shop) -> None:
    page.goto(shop_server.page_of("hostile"))
    tree = page.get_by_role("region", name="the input")
    expect(tree.get_by_text("9007199254740993")).to_be_visible()
    expect(tree.get_by_text("<script>alert(1)</script>")).to_be_visible()
    assert page.locator("img[src=x]").count() == 0
    tree.get_by_role("button", name="list: [300]").click()
    tree.get_by_role("button", name="200 more").click()
    expect(tree.get_by_text("299", exact=True)).to_have_count(2)  # the key and the value
    shop_server.do(shop_server.engine.run(shop.echo("y" * 400_000), id="long-value"))
    page.goto(shop_server.page_of("long-value"))
    expect(page.get_by_text("391 KiB").first).to_be_visible()
    page.get_by_role("button", name="Show", exact=True).first.click()
    expect(page.get_by_role("button", name=re.compile("399,400 more|399,40"))).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").first.click()
    path = download.value.path()
    assert Path(path).stat().st_size > 400_000


def test_the_journal_is_filtered_and_its_events_are_linked(page: Page, still_shop: Shop) -> None:
    page.goto(f"{still_shop.page_of('order-18')}?tab=journal")
    expect(page.get_by_role("button", name=re.compile("RunStarted fulfil"))).to_be_visible()
    page.get_by_label("Kind of event").select_option("AttemptFailed")
    expect(page.get_by_role("button", name=re.compile("RunStarted fulfil"))).to_have_count(0)
    failed = page.get_by_role("button", name=re.compile(r"^\d+ .*AttemptFailed"))
    expect(failed).to_have_count(3)
    failed.first.click()
    page.get_by_role("link", name="link to this event").click()
    expect(page).to_have_url(re.compile(r"at=\d+$"))
    page.get_by_role("link", name="the op").first.click()
    expect(page.get_by_role("region", name="Op charge:0")).to_be_visible()


def test_the_source_has_counts_and_the_slider_the_variables_of_then(page: Page, still_shop: Shop) -> None:
    page.goto(f"{still_shop.page_of('order-18')}?tab=source")
    code = page.get_by_role("region", name="Source")
    line = code.locator("li", has_text="payment = await charge(")
    expect(line).to_contain_text("1×")
    expect(line).to_contain_text("55.2 s")
    expect(code.locator("li.dim", has_text="decision = await approval(")).to_have_count(1)
    expect(page.get_by_text("It has ended: nothing is under way.")).to_be_visible()
    # Right before the payment was recorded.
    slider = page.get_by_role("slider")
    slider.evaluate("(one, at) => { one.value = at; one.dispatchEvent(new Event('input', {bubbles: true})) }", "10")
    expect(page).to_have_url(re.compile("at=10$"))
    variables = page.get_by_role("region", name="Variables")
    expect(variables.get_by_text("waits for charge:0")).to_be_visible()
    expect(variables.get_by_text("Order(customer='dora'")).to_be_visible()
    expect(code.locator("li.here", has_text="payment = await charge(")).to_have_count(1)
    expect(code.locator("li.dim", has_text='set_state("phase", "shipping")')).to_have_count(1)
    slider.press("ArrowRight")
    expect(variables.get_by_text("'payment': 9007199254740993")).to_be_visible()
    line.get_by_role("button").click()
    expect(page.get_by_role("region", name="Op charge:0")).to_be_visible()


def test_a_graph_is_drawn_with_the_path_that_was_taken(page: Page, still_shop: Shop) -> None:
    page.goto(f"{still_shop.page_of('letter-6')}?tab=graph")
    expect(page.get_by_role("button", name="retrieve, step, succeeded")).to_be_visible()
    expect(page.get_by_label("apologise, step, skipped")).to_be_visible()
    expect(page.locator("path.edge.taken")).not_to_have_count(0)
    page.get_by_role("button", name="answer, step, succeeded").press("Enter")
    expect(page.get_by_role("region", name="Op answer:0")).to_be_visible()
    page.get_by_role("tab", name="Values").click()
    expect(page.get_by_role("region", name="reply").first).to_contain_text("See doc 0")


def test_a_parked_run_shows_both_sides_and_the_fix_that_was_tried(page: Page, still_shop: Shop) -> None:
    page.goto(still_shop.page_of("invoice-7"))
    parked = page.get_by_role("region", name="Why it is parked")
    expect(parked.get_by_text("step convert:0", exact=True)).to_be_visible()
    expect(parked.get_by_text("step fetch_rates:0", exact=True)).to_be_visible()
    expect(parked.locator("span.added", has_text="if patched(")).to_be_visible()
    page.get_by_role("button", name="Resolve…").click()
    page.get_by_label("let it go on from right before an op").check()
    expect(page.get_by_label("Op", exact=True)).to_have_value("convert:0")
    page.get_by_role("button", name="Not now").click()


def test_the_family_of_a_run_is_listed(page: Page, still_shop: Shop) -> None:
    page.goto(f"{still_shop.page_of('order-18')}?tab=family")
    tree = page.get_by_role("table", name="Tree")
    expect(tree.get_by_role("link", name="order-18")).to_be_visible()
    expect(tree.get_by_role("link", name="· pack:0")).to_be_visible()


def test_a_run_that_is_not_there_is_said_to_be_none(page: Page, still_shop: Shop, complaints: object) -> None:
    complaints.expected("runs/nothing", 404)  # type: ignore[attr-defined]
    page.goto(f"{still_shop.url}runs/nothing")
    expect(page.get_by_text("It may have been pruned")).to_be_visible()
    page.goto(f"{still_shop.url}no/such/page")
    expect(page.get_by_text("There is no such page")).to_be_visible()


def test_a_capsule_that_is_dropped_is_looked_at_and_not_imported(
    page: Page, still_shop: Shop, own_shop: Shop, tmp_path: Path
) -> None:
    file = tmp_path / "order.capsule"
    file.write_bytes(still_shop.do(still_shop.engine.export("order-12")))
    page.goto(f"{own_shop.url}capsule")
    page.get_by_label("Choose a file").set_input_files(file)
    expect(page.get_by_text("A capsule, looked at without importing it")).to_be_visible()
    expect(page).to_have_url(re.compile(r"/runs/~\w+$"))
    expect(page.get_by_role("row", name=re.compile("^charge:0, step, succeeded, 3 attempts"))).to_be_visible()
    page.get_by_role("tab", name="Source").click()
    page.get_by_role("slider").press("ArrowLeft")
    expect(page.get_by_role("region", name="Source").locator("li", has_text="return await ship(")).to_contain_text("1×")
    expect(page.get_by_role("button", name="Fork")).to_have_count(0)
    assert own_shop.do(own_shop.engine.list(values=False)) == []
