"""The dashboard under every prefix: nothing that it asks for, and nothing that it links to, is outside of it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.server.hosts import HOSTS
from tests.ui.conftest import BrowserThread, Shop

# Every way to the application is gone through in tests/server; here with a browser, which resolves addresses itself.
SOME = [
    "nested",
    "alone behind a proxy that strips",
    "fastapi that was told of the prefix",
    "litestar behind a proxy that strips",
    "django",
    "starlette behind a proxy that does not",
]
ADDRESSES = """() => [...document.querySelectorAll('[href]:not(base), [src]')]
    .map(one => one.href?.baseVal ?? one.href ?? one.src).filter(one => one && !one.startsWith('data:'))"""


@pytest.mark.parametrize("name", SOME)
def test_a_crawl_finds_nothing_outside_of_the_prefix(
    browser: BrowserThread, new_page: Callable[..., Page], still_shop: Shop, name: str
) -> None:
    host, prefix = HOSTS[name]
    base = still_shop.do(still_shop.served.also(host(still_shop.engine.asgi()))).rstrip("/") + prefix
    page = new_page(base=base)
    page.goto(base)
    expect(page.get_by_role("link", name="broke")).to_be_visible()
    seen = set(page.evaluate(ADDRESSES))
    page.get_by_role("link", name="broke").click()
    expect(page.get_by_role("row", name=re.compile("^charge:0"))).to_be_visible()
    page.reload()
    expect(page.get_by_role("row", name=re.compile("^charge:0"))).to_be_visible()
    expect(page.get_by_role("button", name="live")).to_be_visible()
    seen |= set(page.evaluate(ADDRESSES))
    page.goto(f"{base}schedules/nightly?x=1")
    expect(page.get_by_role("heading", name="nightly")).to_be_visible()
    seen |= set(page.evaluate(ADDRESSES))
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Orchestrators").click()
    expect(page.get_by_role("row", name=re.compile("^berlin-3"))).to_be_visible()
    seen |= set(page.evaluate(ADDRESSES))
    assert [address for address in seen if not address.startswith(base)] == []
    assert len(seen) > 40
