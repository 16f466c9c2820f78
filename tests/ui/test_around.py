"""What stands around the runs: schedules, queues, orchestrators, locks, health; and how times are shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

from playwright.sync_api import Page, expect

from tests.ui import shop
from tests.ui.conftest import Shop, noticed


def far_hour() -> int:
    """An hour of the day, in UTC, that is far from now: a schedule of it starts nothing during a test."""
    return (datetime.now(UTC).hour + 12) % 24


def test_a_schedule_shows_its_next_ticks_and_is_paused_triggered_and_deleted(page: Page, shop_server: Shop) -> None:
    shop_server.do(shop_server.engine.schedule("regular", shop.echo("tick"), cron=f"0 {far_hour()} * * *"))
    page.goto(f"{shop_server.url}schedules")
    expect(page.get_by_role("row", name=re.compile("^nightly"))).to_contain_text("every day at 02:30")
    page.get_by_role("link", name="regular").click()
    expect(page.get_by_text(re.compile(r"^\d{4}-\d\d-\d\d \d\d:00:00 UTC$"))).to_have_count(10)
    page.get_by_role("button", name="Start a run now").click()
    page.get_by_role("button", name="Start it").click()
    expect(page.get_by_role("table").get_by_role("link", name=re.compile("regular"))).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Pause it").click()
    expect(page.get_by_text("It is paused.")).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete it").click()
    expect(page.get_by_role("heading", name="Schedules")).to_be_visible()
    expect(page.get_by_role("link", name="regular")).to_have_count(0)


def test_a_schedule_is_filled_in_for_a_time_that_has_passed(page: Page, shop_server: Shop) -> None:
    shop_server.do(shop_server.engine.schedule("daily", shop.echo("day"), cron=f"0 {far_hour()} * * *"))
    page.goto(f"{shop_server.url}schedules/daily")
    page.get_by_role("button", name="Fill in…").click()
    dialog = page.get_by_role("dialog", name="Fill in: daily")
    dialog.get_by_label("From").fill("2026-01-10T00:00")
    dialog.get_by_label("Until before").fill("2026-01-13T00:00")
    dialog.get_by_role("button", name="Fill in", exact=True).click()
    noticed(page, "3 runs are started")
    expect(page.get_by_role("table").get_by_role("link", name=re.compile("daily"))).to_have_count(3)


def test_schedules_are_shown_in_one_zone_over_a_change_of_the_clocks(
    new_page: Callable[..., Page], shop_server: Shop
) -> None:
    # What is shown is what the store computes, in the zone of the person, in summer and in winter.
    handle = shop_server.do(shop_server.engine.schedule("summer", shop.echo("s"), every=86_400 * 30))
    page = new_page(zone="Europe/Berlin")
    page.goto(f"{shop_server.url}schedules/summer")
    shown = page.locator("dl.wide dt")
    expect(shown).to_have_count(10)
    texts = shown.all_inner_texts()
    assert len({text.rpartition(" ")[2] for text in texts}) == 2  # winter and summer
    ticks = shop_server.do(handle.next(10))
    script = "ms => new Date(ms).toLocaleString('sv', {timeZone: 'Europe/Berlin'})"
    expected = [page.evaluate(script, tick.timestamp() * 1000) for tick in ticks]
    assert [text[:19] for text in texts] == expected


def test_the_zone_is_a_setting_and_every_absolute_time_carries_it(page: Page, shop_server: Shop) -> None:
    page.goto(shop_server.page_of("order-18"))
    accepted = page.get_by_role("complementary").locator("time").first
    utc = accepted.get_attribute("title") or ""
    assert utc.endswith(" +00:00")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Time zone").select_option("Asia/Tokyo")
    page.get_by_label("Times as such").check()
    page.get_by_role("button", name="Close").click()
    expect(accepted).to_have_attribute("title", re.compile(r" \+09:00$"))
    there = accepted.get_attribute("title") or ""
    stamp = accepted.get_attribute("datetime")
    minutes = "t => { const at = /(\\d+):(\\d+):/.exec(t); return at[1] * 60 + +at[2] }"
    assert (page.evaluate(minutes, there) - page.evaluate(minutes, utc)) % 1440 == 540
    page.get_by_role("tab", name="Journal").click()
    first = page.get_by_role("region", name="Events").locator("time").first
    expect(first).to_have_attribute("title", there)
    assert first.get_attribute("datetime") is not None
    assert stamp is not None
    page.reload()
    expect(page.get_by_role("region", name="Events").locator("time").first).to_have_attribute("title", there)


def test_queues_show_what_waits_and_by_which_key(page: Page, still_shop: Shop) -> None:
    page.goto(f"{still_shop.url}queues")
    row = page.get_by_role("row", name=re.compile("^orders"))
    expect(row).to_contain_text("1 of 1")
    expect(row).to_contain_text("1 at once, 1 per key")
    row.get_by_role("link", name="orders").click()
    expect(page.get_by_role("row", name=re.compile("^k0 1"))).to_be_visible()
    expect(page.get_by_role("link", name=re.compile("queued-"))).to_have_count(2)


def test_orchestrators_and_programs_that_no_worker_has(page: Page, shop_server: Shop) -> None:
    page.goto(f"{shop_server.url}orchestrators")
    expect(page.get_by_role("row", name=re.compile("^berlin-3 alive"))).to_be_visible()
    lacking = page.get_by_role("region", name="No worker can run these")
    lacking.get_by_role("link", name="of_another_team").click()
    expect(page.get_by_role("row", name="stray")).to_contain_text("no worker has `of_another_team`")


def test_a_lock_is_taken_away_in_a_second_step(page: Page, shop_server: Shop) -> None:
    page.goto(f"{shop_server.url}locks")
    row = page.get_by_role("row", name=re.compile("^dock:north"))
    expect(row.get_by_role("link", name="guard-1")).to_be_visible()
    row.get_by_role("button", name="Release").click()
    expect(page.get_by_text("may be at work inside")).to_be_visible()
    page.get_by_role("button", name="Take it away").click()
    noticed(page, "dock:north is free")


def test_the_store_is_checked(page: Page, shop_server: Shop) -> None:
    page.goto(f"{shop_server.url}health")
    expect(page.get_by_role("row", name=re.compile("ok integrity"))).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("warn parked"))).to_contain_text("invoice-7")


def test_the_upgrade_check_groups_what_does_not_fit(page: Page, shop_server: Shop) -> None:
    page.goto(f"{shop_server.url}check")
    page.get_by_role("button", name="Check the open runs").click()
    expect(page.get_by_role("heading", name=re.compile("1 run of invoice .*: The step convert was"))).to_be_visible()
    expect(page.locator("span.added", has_text="if patched(")).to_be_visible()
