"""`make pictures`: the pictures of the dashboard in docs/pictures, taken from a store with examples."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

import uvicorn
from playwright.async_api import Browser, async_playwright

from perdure import Engine
from tests.ui import shop
from tests.ui.store import at_work, seeded

FOLDER = Path(__file__).resolve().parents[2] / "docs/pictures"
WIDTH = 1240
# By name: the theme, the height, the address with the id of a run in braces, and a text that is there when the page is.
PICTURES: dict[str, tuple[Any, int, str, str]] = {
    "runs": ("light", 640, "", "broke"),
    "run": ("light", 640, "runs/{order-18}?op=charge%3A0", "backed off 36.0 s"),
    "source": ("dark", 720, "runs/{order-18}?tab=source&at=27", "waits for"),
    "parked": ("light", 840, "runs/{invoice-7}", "writes it into the file"),
}


async def take(browser: Browser, engine: Engine, base: str, name: str) -> None:
    """Take one of the pictures."""
    theme, height, address, text = PICTURES[name]
    before, _, rest = address.partition("{")
    id, _, after = rest.partition("}")
    if id:
        view = await engine.get(id)
        assert view is not None
        address = before + view.run_id + after
    page = await browser.new_page(viewport={"width": WIDTH, "height": height}, color_scheme=theme, timezone_id="UTC")
    await page.goto(base + address)
    await page.get_by_text(text).first.wait_for()
    await page.get_by_role("button", name="live").wait_for()
    await page.screenshot(path=FOLDER / f"{name}.png")
    await page.close()


async def main() -> None:
    """Take all of them."""
    chromium = shutil.which("chromium")
    assert chromium, "pictures take chromium: apt-get install --no-install-recommends chromium"
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/shop.db"
        await asyncio.to_thread(seeded, url, wide=10_000)
        programs = [*shop.PROGRAMS, shop.invoices(changed=True)]
        async with Engine(url, programs, queues=shop.QUEUES, steps=[shop.send_mail], name="berlin-3") as engine:
            await at_work(engine)
            server = uvicorn.Server(uvicorn.Config(engine.asgi(), port=0, log_level="error", lifespan="off"))
            serving = asyncio.create_task(server.serve())
            while not server.started:
                await asyncio.sleep(0.01)
            base = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
            FOLDER.mkdir(exist_ok=True)
            async with async_playwright() as playwright:
                browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                for name in PICTURES:
                    await take(browser, engine, base, name)
                await browser.close()
            server.should_exit = True
            await serving


if __name__ == "__main__":
    asyncio.run(main())
