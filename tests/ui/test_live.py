"""What happens is on the page: over one stream for all tabs, and with no request from a tab that nobody sees."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect

from perdure import Engine, Program, call, sleep, step, step_context, workflow
from perdure.testing.simulation import Simulation
from tests.ui import shop
from tests.ui.conftest import BrowserThread, Complaints, Served, Shop, until

# Pages learn from the browser whether somebody sees them; in a test, they learn it from here.
VISIBILITY = """
    let hidden = false;
    Object.defineProperty(document, "hidden", { get: () => hidden });
    addEventListener("test-hidden", (event) => {
        hidden = event.detail;
        document.dispatchEvent(new Event("visibilitychange"));
    });
"""


class Lobby:
    """A server of a small store, whose application a test looks into, with a step that ends when a test lets it."""

    def __init__(self) -> None:
        self.app: Any = None
        self._door = asyncio.Event()
        self.visit = self._visit()
        self.served = Served(self._opened)

    async def open_the_door(self) -> None:
        """Let the step `enter` of `visit` end."""
        self._door.set()

    def _visit(self) -> Program:
        @step
        async def enter() -> None:
            step_context().emit("Somebody knocks. ")
            await self._door.wait()
            step_context().emit("The door is open.")

        @workflow
        async def visit() -> None:
            await enter()
            await sleep(timedelta(minutes=20))

        return visit

    async def _opened(self, served: Served) -> None:
        async with Engine("memory://", [*shop.PROGRAMS, self.visit], name="lobby") as engine:
            served.engine, self.app = engine, engine.asgi()
            await served.serve(self.app)


@pytest.fixture(scope="module")
def lobby() -> Iterator[Lobby]:
    """A server for all tests here."""
    found = Lobby()
    try:
        yield found
    finally:
        found.served.end()


def hide(page: Page, hidden: bool) -> None:
    """Put a tab in the background, or in front."""
    page.evaluate("hidden => dispatchEvent(new CustomEvent('test-hidden', {detail: hidden}))", hidden)


def test_ten_tabs_share_one_stream_and_another_tab_takes_it_over(
    browser: BrowserThread, new_page: Callable[..., Page], complaints: Complaints, lobby: Lobby
) -> None:
    first = new_page()
    context: BrowserContext = first.context
    tabs = [first, *(context.new_page() for _ in range(9))]
    for tab in tabs[1:]:
        complaints.watch(tab)
    for tab in tabs:
        tab.goto(f"{lobby.served.url}?tag=tabs%3Ayes")
        expect(tab.get_by_role("button", name="live")).to_be_visible()
    assert lobby.app.service.streams.open == 1
    shop_of = Shop(lobby.served)
    shop_of.start(shop.naps(shop.LONG), id="tabs-1", tags={"tabs": "yes"})
    for tab in tabs:
        expect(tab.get_by_role("row", name="tabs-1")).to_be_visible()
    # The first tab was the first to have the stream.
    first.close()
    shop_of.start(shop.naps(shop.LONG), id="tabs-2", tags={"tabs": "yes"})
    for tab in tabs[1:]:
        expect(tab.get_by_role("row", name="tabs-2")).to_be_visible()
    # The server learns in a moment that the first is gone.
    until(tabs[1], lambda: lobby.app.service.streams.open == 1)


def test_a_hidden_tab_asks_nothing_and_shows_all_of_it_when_it_is_seen_again(
    new_page: Callable[..., Page], lobby: Lobby
) -> None:
    page = new_page()
    page.clock.install()
    page.add_init_script(VISIBILITY)
    shop_of = Shop(lobby.served)
    shop_of.start(shop.forever(1), id="unseen")
    page.goto(shop_of.page_of("unseen"))
    expect(page.get_by_role("row", name=re.compile("^stop:0, signal, waiting"))).to_be_visible()
    expect(page.get_by_role("button", name="live")).to_be_visible()
    # The last part of what is read at first.
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    hide(page, True)
    until(page, lambda: not lobby.app.service.streams.open)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    shop_of.do(lobby.served.engine.signal("unseen", "stop", None))
    shop_of.start(shop.forever(2), id="unseen-2")
    # What a page does by the clock, it does in a minute.
    page.clock.run_for(60_000)
    assert asked == []
    assert lobby.app.service.streams.open == 0
    hide(page, False)
    expect(page.get_by_role("row", name=re.compile("^stop:0, signal, succeeded"))).to_be_visible()
    expect(page.get_by_role("main").get_by_text("completed", exact=True).first).to_be_visible()
    expect(page.get_by_role("button", name="live")).to_be_visible()


def test_steps_and_what_they_emit_are_on_the_page_as_they_run_and_end(page: Page, lobby: Lobby) -> None:
    shop_of = Shop(lobby.served)
    shop_of.start(call("visit"), id="watched")
    page.goto(f"{shop_of.page_of('watched')}?op=enter%3A0")
    expect(page.get_by_role("row", name=re.compile("^enter:0, step, running"))).to_be_visible()
    expect(page.locator("pre.stream")).to_have_text("Somebody knocks. ")
    expect(page.get_by_role("button", name="live")).to_be_visible()
    shop_of.do(lobby.open_the_door())
    expect(page.get_by_role("row", name=re.compile("^enter:0, step, succeeded"))).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("^sleep:0, timer, waiting"))).to_be_visible()
    expect(page.locator("pre.stream")).to_have_text("Somebody knocks. The door is open.")


def test_what_happens_before_a_page_listens_is_on_it(new_page: Callable[..., Page], lobby: Lobby) -> None:
    other, page = new_page(), new_page()
    # Somebody looks already: who comes now is told what happens from now on.
    other.goto(lobby.served.url)
    expect(other.get_by_role("button", name="live")).to_be_visible()
    shop_of = Shop(lobby.served)
    shop_of.start(shop.forever(1), id="early")
    held: list[Route] = []
    page.route("**/api/v1/events", lambda route: held.append(route))
    page.goto(shop_of.page_of("early"))
    expect(page.get_by_role("row", name=re.compile("^stop:0, signal, waiting"))).to_be_visible()
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    shop_of.do(lobby.served.engine.signal("early", "stop", None))
    expect(other.get_by_role("row", name="early").get_by_text("completed")).to_be_visible()
    until(page, lambda: held)
    held[0].continue_()
    expect(page.get_by_role("row", name=re.compile("^stop:0, signal, succeeded"))).to_be_visible()
    expect(page.get_by_role("main").get_by_text("completed", exact=True).first).to_be_visible()


def test_a_mounted_application_that_nobody_looks_at_costs_no_statement() -> None:
    def statements(mounted: bool) -> list[str]:
        sim, found = Simulation(seed=1), list[str]()

        async def day() -> None:
            async with sim.engine(shop.PROGRAMS) as engine:
                if mounted:
                    _ = engine.asgi()
                engine.store.trace(found.append)
                for number in range(5):
                    _ = await engine.run(shop.echo(number))
                await sim.advance(hours=24)
                engine.store.trace(None)

        sim.play(day())
        return found

    assert statements(True) == statements(False) != []
