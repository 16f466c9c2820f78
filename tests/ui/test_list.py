"""The list of runs."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.ui.conftest import Shop


def test_filters_stand_in_the_address_and_come_back_with_it(page: Page, shop_server: Shop) -> None:
    page.goto(shop_server.url)
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
