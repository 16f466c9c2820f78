"""A server in a thread of its own, for clients that block."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from perdure import Engine
from tests.patience import PATIENCE


@contextmanager
def served(
    make: Callable[[], Engine], prepare: Callable[[Engine], Awaitable[Any]], **options: Any
) -> Iterator[tuple[str, Any]]:
    """The address of an engine's application, and what `prepare` has returned, while this is open."""
    listening = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    ready, prepared, failed = threading.Event(), list[Any](), list[BaseException]()
    server: uvicorn.Server | None = None

    async def serve() -> None:
        nonlocal server
        async with make() as engine:
            prepared.append(await prepare(engine))
            config = uvicorn.Config(engine.asgi(**options), log_level="error", lifespan="off")
            server = uvicorn.Server(config)
            ready.set()
            await server.serve([listening])

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failed.append(error)
            ready.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(PATIENCE)
    if failed:
        raise failed[0]
    try:
        yield address, prepared[0]
    finally:
        assert server is not None
        server.should_exit = True
        thread.join(PATIENCE)
        listening.close()
