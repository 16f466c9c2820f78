"""`make demo-ui`: a store with living examples, and the dashboard over it, until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import sys
import tempfile
import webbrowser

import uvicorn

from perdure import Engine
from perdure.cli.dev import has_screen, listening
from perdure.cli.exits import Problem
from tests.ui import shop
from tests.ui.store import at_work, seeded


def port() -> socket.socket:
    """The usual port, or one that is free."""
    try:
        return listening("127.0.0.1", 8500)
    except Problem:
        return listening("127.0.0.1", 0)


async def living(engine: Engine) -> None:
    """Start something again and again, so that there is something to watch."""
    for number in itertools.count():
        customer = shop.CUSTOMERS[number % len(shop.CUSTOMERS)]
        tags = {"customer": customer, "demo": "living"}
        _ = await engine.start(shop.order(customer, 1500, number % 3), id=f"living-{number}", tags=tags)
        _ = await engine.start(shop.nightly(40 + number % 100), id=f"tiles-{number}")
        if number % 4 == 0:
            _ = await engine.start(shop.chat(f"number {number}"), id=f"chat-live-{number}")
        await asyncio.sleep(5)


async def main() -> None:
    """Serve until Ctrl-C."""
    with tempfile.TemporaryDirectory(prefix="perdure-demo-") as folder:
        url = f"sqlite:///{folder}/shop.db"
        await asyncio.to_thread(seeded, url, wide=10_000)
        programs = [*shop.PROGRAMS, shop.invoices(changed=True)]
        async with Engine(url, programs, queues=shop.QUEUES, steps=[shop.send_mail], name="berlin-3") as engine:
            await at_work(engine)
            at = port()
            page = f"http://127.0.0.1:{at.getsockname()[1]}/"
            print(f"the dashboard is at {page}; Ctrl-C stops it", file=sys.stderr)
            if has_screen():
                webbrowser.open(page)
            server = uvicorn.Server(uvicorn.Config(engine.asgi(), log_level="warning", lifespan="off"))
            life = asyncio.create_task(living(engine))
            await server.serve([at])
            life.cancel()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
