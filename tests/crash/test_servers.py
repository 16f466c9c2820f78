"""Servers that are killed while they are followed, and servers that are told to exit while streams are open."""

from __future__ import annotations

import http.client
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.harness import ROOT, Child, Children, until
from tests.patience import PATIENCE
from tests.services.servers import free_port

TICKING = """
import asyncio
import sys

from perdure import Engine, step, workflow


@step
async def tick(number: int) -> int:
    await asyncio.sleep(0.005)
    return number


@workflow
async def ticking(count: int) -> int:
    for number in range(count):
        await tick(number)
    return count


async def main(url: str, count: int) -> None:
    async with Engine(url, [ticking]) as engine:
        await engine.run(ticking(count), id="ticking")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""

MOUNTED = """
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

import perdure

client = perdure.connect(sys.argv[1])
app = Starlette(routes=[Mount("/flows", client.asgi())])
uvicorn.run(app, port=int(sys.argv[2]), log_level="error")
"""


class Server:
    """`perdure serve` on one port, as often as it is killed."""

    def __init__(self, children: Children, folder: Path, url: str) -> None:
        self._children, self._folder, self._url = children, folder, url
        self.port = free_port()
        self.child: Child | None = None

    def start(self) -> None:
        command = ("-m", "perdure.cli", "serve", "--store", self._url, "--port", str(self.port))
        self.child = self._children.python(self._folder, *command, cwd=ROOT)
        until(self._answers)

    def _answers(self) -> bool:
        assert self.child is not None
        assert self.child.alive, self.child.log
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        assert self.child is not None
        self.child.kill()


def lines_of(port: int, path: str, last: str) -> Iterator[str]:
    """The lines of a stream, until it ends or its server dies."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path, headers={"Last-Event-ID": last} if last else {})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        while line := answer.readline():
            yield line.decode().rstrip("\n")
    except (OSError, http.client.HTTPException):
        return
    finally:
        connection.close()


def followed_through(children: Children, folder: Path, *, steps: int, kills: int) -> None:
    """Follow a run while its server is killed so often; every event comes, in order, once."""
    url = f"sqlite:///{folder}/runs.db"
    (folder / "ticking.py").write_text(TICKING)
    worker = children.python(folder, "ticking.py", url, str(steps))
    until(lambda: (folder / "runs.db").exists())
    server = Server(children, folder, url)
    server.start()
    run = ""
    while not run:
        run = "".join(line for line in lines_of(server.port, "/api/v1/runs/by-id?id=ticking", "") if "run_id" in line)
        run = run.partition('"run_id":"')[2].partition('"')[0] if run else ""
    seen: list[int] = []
    died, ended, kind = 0, False, ""
    while not ended:
        fresh = 0
        for line in lines_of(server.port, f"/api/v1/runs/{run}/events", str(seen[-1]) if seen else ""):
            name, _, value = line.partition(": ")
            if name == "id":
                seen.append(int(value))
                fresh += 1
            elif name == "event":
                kind = value
            elif name == "data" and kind == "end":
                ended = True
            if died < kills and fresh >= 1 + steps // (2 * kills):
                died += 1
                server.kill()
        if not ended:
            server.start()
    assert (worker.wait(), died) == (0, kills)
    assert seen == list(range(seen[-1] + 1)), "nothing is lost, and nothing comes twice"
    assert seen[-1] >= 2 * steps


def test_a_follower_of_a_server_that_dies_misses_nothing(children: Children, tmp_path: Path) -> None:
    followed_through(children, tmp_path, steps=60, kills=4)


@pytest.mark.soak
def test_a_follower_of_a_server_that_dies_fifty_times_misses_nothing(children: Children, tmp_path: Path) -> None:
    followed_through(children, tmp_path, steps=3000, kills=50)


@pytest.mark.parametrize("mounted", [False, True], ids=["served", "mounted"])
def test_open_streams_do_not_keep_a_server_from_exiting(children: Children, tmp_path: Path, mounted: bool) -> None:
    """Servers of ASGI tell no application that they exit, and wait for what is open."""
    url, port = f"sqlite:///{tmp_path}/runs.db", free_port()
    (tmp_path / "ticking.py").write_text(TICKING)
    (tmp_path / "mounted.py").write_text(MOUNTED)
    assert children.python(tmp_path, "ticking.py", url, "1").wait() == 0
    command = ("mounted.py", url, str(port)) if mounted else ("-m", "perdure.cli", "serve", "--store", url)
    server = children.python(tmp_path, *command, *(() if mounted else ("--port", str(port))))
    prefix = "/flows" if mounted else ""
    lines: Iterator[str] = iter(())

    def opened() -> bool:
        nonlocal lines
        lines = lines_of(port, f"{prefix}/api/v1/events", "")
        return next(lines, None) is not None

    until(opened)
    server.signal(signal.SIGTERM)
    assert list(lines) is not None
    assert server.wait() in (0, -signal.SIGTERM), server.log
