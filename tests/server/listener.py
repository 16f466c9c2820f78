"""A client of a stream, in this process: what has come so far, and a way to leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Self

from tests.patience import PATIENCE


class Listener:
    """Listens to a stream of an application until it is left: `async with Listener(app, "events") as heard`."""

    def __init__(self, app: Any, path: str, query: str = "", **headers: str) -> None:
        self._app, self._path, self._query = app, path, query
        self._headers = {"host": "localhost", **headers}
        self._left = asyncio.Event()
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.ended = False
        # Set to let the server wait with what it sends.
        self.reads = asyncio.Event()
        self.reads.set()

    async def __aenter__(self) -> Self:
        path = f"/api/v1/{self._path}"
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": self._query.encode(),
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in self._headers.items()],
            "server": ("localhost", 80),
            "client": ("127.0.0.1", 4711),
        }
        self._task = asyncio.create_task(self._app(scope, self._receive, self._send))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._left.set()
        self.reads.set()
        assert self._task is not None
        async with asyncio.timeout(PATIENCE):
            await self._task

    async def _receive(self) -> dict[str, Any]:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.reads.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message.get("body", b"")
            self.ended = not message.get("more_body", False)
        self._arrived.set()

    async def until(self, condition: Callable[[Self], bool]) -> None:
        """Wait until what has come fulfils a condition."""
        async with asyncio.timeout(PATIENCE):
            while not condition(self):
                self._arrived.clear()
                await self._arrived.wait()

    @property
    def events(self) -> list[tuple[str, str, Any]]:
        """The events so far: id, kind and data."""
        found = []
        for block in self.body.decode().split("\n\n"):
            fields = dict(line.partition(": ")[::2] for line in block.splitlines() if not line.startswith(":"))
            if "data" in fields:
                found.append((fields.get("id", ""), fields.get("event", ""), json.loads(fields["data"])))
        return found

    def kinds(self) -> list[str]:
        """The kinds of the events so far."""
        return [kind for _, kind, _ in self.events]
