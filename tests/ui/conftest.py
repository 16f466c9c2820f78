"""A server over a seeded store and a browser, one of each per process; and a page that tolerates no complaint."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urljoin

import pytest
import uvicorn
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request, Response, expect, sync_playwright

from perdure import Engine, Invocation, RunView
from tests.patience import PATIENCE
from tests.ui import shop
from tests.ui.store import at_work, seeded

T = TypeVar("T")

PLAIN_HOST = "flows.example"
# Chromium as it is in a container: no sandbox of its own, and nothing that looks for the network.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    # A name of this machine that browsers do not know as one: pages from it over plain HTTP are in no secure context.
    f"--host-resolver-rules=MAP {PLAIN_HOST} 127.0.0.1",
]
# Notices vanish by themselves: a page of a test remembers them.
NOTICES = """
    window.noticed = [];
    new MutationObserver((changes) => {
        for (const one of changes.flatMap((change) => [...change.addedNodes]))
            if (one.matches?.(".notice")) noticed.push(one.textContent);
    }).observe(document, { childList: true, subtree: true });
"""
# How long a page may take to get where a test waits for it.
PATIENCE_MS = PATIENCE * 1000
expect.set_options(timeout=PATIENCE_MS)


class Served:
    """An application on a free port of this machine, in a thread with a loop of its own."""

    def __init__(self, opened: Callable[[Served], Coroutine[Any, Any, None]]) -> None:
        self.url = ""
        self.engine: Engine
        self._loop = asyncio.new_event_loop()
        self._ready: Future[None] = Future()
        self._stop = asyncio.Event()
        self._serving: list[tuple[uvicorn.Server, asyncio.Task[None]]] = []
        self._thread = threading.Thread(target=self._run, args=(opened,), daemon=True)
        self._thread.start()
        self._ready.result(PATIENCE)

    def _run(self, opened: Callable[[Served], Coroutine[Any, Any, None]]) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(opened(self))
            except BaseException as error:
                if not self._ready.done():
                    self._ready.set_exception(error)
                raise

    async def serve(self, app: Any) -> None:
        """Serve an application until the test session is over."""
        self.url = await self.also(app)
        self._ready.set_result(None)
        await self._stop.wait()
        for server, _ in self._serving:
            server.should_exit = True
        await asyncio.gather(*(serving for _, serving in self._serving))

    async def also(self, app: Any) -> str:
        """Serve another application, and return where it is."""
        config = uvicorn.Config(
            app, host="127.0.0.1", port=0, log_level="error", lifespan="off", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        self._serving.append((server, asyncio.create_task(server.serve())))
        while not server.started:
            await asyncio.sleep(0.01)
        return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the loop of the engine."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def end(self) -> None:
        """Stop serving."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)


@dataclass
class Shop:
    """The server of the seeded store."""

    served: Served

    @property
    def url(self) -> str:
        """Where it is."""
        return self.served.url

    @property
    def engine(self) -> Engine:
        """The engine behind it. Its methods are called with `do`."""
        return self.served.engine

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the loop of the engine."""
        return self.served.do(work)

    def start(self, invocation: Invocation[Any], *, id: str, **options: Any) -> None:
        """Start a run."""

        async def started() -> None:
            _ = await self.engine.start(invocation, id=id, **options)

        self.do(started())

    def run_id(self, id: str) -> str:
        """The run_id of an id."""
        view = self.do(self.engine.get(id))
        assert view is not None
        return view.run_id

    def page_of(self, id: str) -> str:
        """The address of a run's page."""
        return f"{self.url}runs/{self.run_id(id)}"

    def reached(self, id: str, status: str) -> RunView:
        """A run as soon as it has a status: what a page shows of it may be older, or a part of it."""

        async def reached() -> RunView:
            while (view := await self.engine.get(id)) is None or view.status != status:
                await asyncio.sleep(0.01)
            return view

        return self.do(reached())


def until(page: Page, condition: Callable[[], object]) -> None:
    """Wait for what no locator sees."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        page.wait_for_timeout(10)


def noticed(page: Page, text: str) -> None:
    """Wait until a page has said something in a corner, for a moment."""
    until(page, lambda: any(text in one for one in page.evaluate("noticed")))


def copied(page: Page, button: Locator) -> str:
    """What a button copies, once it has: browsers write to the clipboard in their own time."""

    def clipboard() -> str:
        return str(page.evaluate("navigator.clipboard.readText()"))

    page.evaluate("navigator.clipboard.writeText('')")
    until(page, lambda: not clipboard())
    button.click()
    until(page, clipboard)
    return clipboard()


@pytest.fixture(scope="session")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The seeded store, to be copied."""
    path = tmp_path_factory.mktemp("ui") / "seed.db"
    seeded(f"sqlite:///{path}", wide=10_000)
    return path


def opened_shop(seed: Path, name: str) -> Served:
    """A server of a copy of the seeded store, with an engine that executes its runs."""
    url = f"sqlite:///{shutil.copy(seed, seed.with_name(f'{name}.db'))}"

    async def opened(served: Served) -> None:
        programs = [*shop.PROGRAMS, shop.invoices(changed=True)]
        async with Engine(url, programs, queues=shop.QUEUES, steps=[shop.send_mail], name="berlin-3") as engine:
            served.engine = engine
            await at_work(engine)
            await served.serve(engine.asgi())

    return Served(opened)


@pytest.fixture(scope="session")
def shop_server(seed: Path) -> Iterator[Shop]:
    """A server for tests that start runs and act on them."""
    served = opened_shop(seed, "shop")
    try:
        yield Shop(served)
    finally:
        served.end()


@pytest.fixture(scope="session")
def still_shop(seed: Path) -> Iterator[Shop]:
    """A server for tests that only look: what it shows is what was seeded."""
    served = opened_shop(seed, "still")
    try:
        yield Shop(served)
    finally:
        served.end()


@pytest.fixture
def after_pages() -> Iterator[ExitStack]:
    """What is done after the pages of a test are closed: they complain of a server that goes away."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def own_shop(after_pages: ExitStack) -> Shop:
    """A server of an empty store, for one test."""

    async def opened(served: Served) -> None:
        async with Engine("memory://", shop.PROGRAMS, name="own") as engine:
            served.engine = engine
            await served.serve(engine.asgi())

    served = Served(opened)
    after_pages.callback(served.end)
    return Shop(served)


class BrowserThread:
    """Debian's chromium, and the one thread that talks to it.

    Playwright keeps an event loop in its thread: in that of the tests, every other test of the process would find it.
    """

    def __init__(self) -> None:
        path = shutil.which("chromium")
        assert path, "the tests of the dashboard need chromium: apt-get install --no-install-recommends chromium"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="browser")
        self._playwright = self.do(lambda: sync_playwright().start())
        self.browser: Browser = self.do(
            lambda: self._playwright.chromium.launch(executable_path=path, args=FLAGS, timeout=PATIENCE_MS)
        )

    def do(self, work: Callable[[], T]) -> T:
        """Do something in the thread of the browser."""
        return self._thread.submit(work).result()

    def end(self) -> None:
        """Close the browser."""
        self.do(self.browser.close)
        self.do(self._playwright.stop)
        self._thread.shutdown()


@pytest.fixture(scope="session")
def browser() -> Iterator[BrowserThread]:
    """A browser for all tests of a process."""
    found = BrowserThread()
    try:
        yield found
    finally:
        found.end()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that uses the browser in the thread of the browser."""
    browser = pyfuncitem.funcargs.get("browser")
    if not isinstance(browser, BrowserThread):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    browser.do(lambda: pyfuncitem.obj(**given))
    return True


@dataclass
class Complaints:
    """What a page must not do: write to the console, break its policy, get an answer of 400 or more, leave its server.

    A test that provokes one says so: `complaints.expected("cancel", 409)`.
    """

    found: list[str] = field(default_factory=list)
    _expected: list[tuple[str, int]] = field(default_factory=list)

    def expected(self, part: str, status: int) -> None:
        """Requests with this in their address may have this answer."""
        self._expected.append((part, status))

    def watch(self, page: Page, base: str = "") -> None:
        """Note what a page does. It may ask for what is below `base`, or on the server that it asks first."""
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.found.append(f"error: {error}"))
        page.on("response", self._response)
        below = [base] if base else []
        page.on("request", lambda request: self._request(request, below))

    def _console(self, message: ConsoleMessage) -> None:
        # Chromium tells of failed requests in the console too.
        at = str(message.location.get("url", ""))
        if not any(part in at and f"status of {status}" in message.text for part, status in self._expected):
            self.found.append(f"console: {message.type}: {message.text} ({at})")

    def _response(self, response: Response) -> None:
        allowed = any(part in response.url and status == response.status for part, status in self._expected)
        if response.status >= 400 and not allowed:
            self.found.append(f"{response.status}: {response.request.method} {response.url}")

    def _request(self, request: Request, below: list[str]) -> None:
        if not below:
            below.append(urljoin(request.url, "/"))
        if not request.url.startswith((below[0], "data:", "blob:")):
            self.found.append(f"outside: {request.url}")


@pytest.fixture
def complaints() -> Iterator[Complaints]:
    """What pages have done that they must not do; there must be none at the end of a test."""
    found = Complaints()
    yield found
    assert found.found == []


@pytest.fixture
def new_page(browser: BrowserThread, complaints: Complaints, after_pages: ExitStack) -> Iterator[Callable[..., Page]]:
    """Makes pages, each in a context of its own: `new_page(width=390, theme="dark", zone="Europe/Berlin")`."""
    made = []

    def make(*, width: int = 1280, height: int = 800, theme: Any = "light", zone: str = "UTC", base: str = "") -> Page:
        size: Any = {"width": width, "height": height}
        context = browser.browser.new_context(
            viewport=size, color_scheme=theme, timezone_id=zone, reduced_motion="reduce"
        )
        context.set_default_timeout(PATIENCE_MS)
        made.append(context)
        context.add_init_script(NOTICES)
        page = context.new_page()
        complaints.watch(page, base)
        return page

    yield make
    for context in made:
        browser.do(context.close)


@pytest.fixture
def page(browser: BrowserThread, new_page: Callable[..., Page]) -> Page:
    """A page of 1280 by 800."""
    return browser.do(new_page)


@pytest.fixture
def picture() -> Callable[[Page, str], None]:
    """Takes pictures of pages for a person to look at, if PERDURE_PICTURES names a directory for them."""
    folder = os.environ.get("PERDURE_PICTURES")

    def take(page: Page, name: str) -> None:
        if folder:
            page.screenshot(path=Path(folder) / f"{name}.png")

    return take
