"""Servers are killed while clients follow a run: each client, come back with `Last-Event-ID`, has every event once."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from pathlib import Path

import httpx2 as httpx
import pytest

from perdure import Engine, wait_signal, workflow
from tests.amounts import some
from tests.crash.harness import PATIENCE, Child, Children


@workflow
async def listens() -> int:
    """Counts signals until one says that it is over."""
    count = 0
    while await wait_signal("tick", type=str) != "over":
        count += 1
    return count


class Follower:
    """A client of `runs/{run}/events` that does what a browser does when the connection is lost."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.ids: list[int] = []
        self.connections = 0
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self.ended.is_set():
            headers = {"Last-Event-ID": str(self.ids[-1])} if self.ids else {}
            try:
                with httpx.stream("GET", self._address, headers=headers, timeout=PATIENCE) as answer:
                    answer.raise_for_status()
                    self.connections += 1
                    self._hear(answer)
            except httpx.HTTPError:
                time.sleep(0.01)

    def _hear(self, answer: httpx.Response) -> None:
        fields: dict[str, str] = {}
        for line in answer.iter_lines():
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
                continue
            # An event counts once the empty line after it has come.
            if fields.get("event") == "entry":
                assert json.loads(fields["data"])["seq"] == int(fields["id"])
                self.ids.append(int(fields["id"]))
            elif fields.get("event") == "end":
                self.ended.set()
                return
            fields = {}


@pytest.mark.parametrize("kills", some([3, 50], 1))
def test_who_follows_a_server_that_is_killed_has_every_event_once(
    children: Children, tmp_path: Path, kills: int
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def serve() -> Child:
        return children.python(tmp_path, "-m", "perdure.cli", "serve", "--store", url, "--port", str(port))

    async def killed() -> int:
        async with Engine(url, [listens]) as engine:
            run = await engine.start(listens(), id="listens")
            address = f"http://127.0.0.1:{port}/api/v1/runs/{run.run_id}/events"
            followers = [Follower(address) for _ in range(3)]
            for number in range(kills):
                server = serve()
                heard = [len(one.ids) for one in followers]
                async with asyncio.timeout(PATIENCE):
                    while any(len(one.ids) < before + 4 for one, before in zip(followers, heard, strict=True)):
                        assert server.alive, server.log
                        _ = await run.signal("tick", str(number))
                        await asyncio.sleep(0.01)
                # It dies with events on their way, and others come while there is no server.
                for _ in range(3):
                    _ = await run.signal("tick", "on the way")
                server.kill()
                _ = server.wait()
                _ = await run.signal("tick", "nobody there")
            server = serve()
            _ = await run.signal("tick", "over")
            _ = await run.result()
            for one in followers:
                assert await asyncio.to_thread(one.ended.wait, PATIENCE), server.log
                assert one.connections > kills
            server.kill()
            written = len(await engine.journal("listens"))
        assert [one.ids for one in followers] == [list(range(written))] * len(followers)
        return written

    assert asyncio.run(killed()) > 4 * kills
