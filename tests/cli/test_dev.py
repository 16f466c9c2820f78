"""`perdure dev`: every edit is taken at once, unless it would park an open run."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from perdure import Engine
from perdure.cli.dev import listening
from perdure.cli.dev_process import served
from perdure.cli.exits import Problem
from tests.cli.conftest import Cli
from tests.patience import PATIENCE
from tests.processes import is_alive

FLOWS = """
from perdure import step, wait_signal, workflow


@step
async def charge(order: str) -> int:
    return 1


@workflow
async def fulfil(order: str) -> int:
    cents = await charge(order)
    await wait_signal("go")
    return cents
"""
# A second call of the step before the first one, which no open run has made.
INSERTED = FLOWS.replace("    cents =", "    await charge(order)\n    cents =")


class Developed:
    """A session of `perdure dev` over `flows.py` in a directory."""

    def __init__(self, process: subprocess.Popen[str], directory: Path) -> None:
        self.process, self.module = process, directory / "flows.py"
        assert process.stderr is not None
        self.said: list[str] = []
        while "dashboard at" not in (line := process.stderr.readline()):
            assert line, "".join(self.said)
            self.said.append(line)
        found = re.search(r"http://\S+/", line)
        assert found
        self.url = found[0]

    def ask(self, path: str, body: Any = None) -> Any:
        """The answer of the API; GET without a body, POST with one."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}api/v1/{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the state of the code is as wanted. The server may be away for a moment."""
        end = time.monotonic() + PATIENCE
        state: dict[str, Any] = {}
        while time.monotonic() < end:
            try:
                state = self.ask("dev")
            except (urllib.error.URLError, ConnectionError):
                continue
            if wanted(state):
                return state
            time.sleep(0.02)
        raise AssertionError(f"it did not come to that: {state}")

    def edit(self, text: str, at: int | None = None) -> None:
        """Save the module; as if it were `at` this time, in nanoseconds."""
        saved = self.module.with_suffix(".saved")
        saved.write_text(text)
        if at is not None:
            os.utime(saved, ns=(at, at))
        saved.replace(self.module)

    def edit_within_the_second(self, text: str) -> None:
        """Save the module so that its time differs from before by less than a second."""
        before = self.module.stat()
        draft = self.module.with_suffix(".draft")
        draft.write_text(text)
        second, fraction = divmod(before.st_mtime_ns, 10**9)
        os.utime(draft, ns=(before.st_atime_ns, second * 10**9 + (fraction + 1) % 10**9))
        draft.replace(self.module)

    def result(self, id: str) -> Any:
        """What a run of the code of now returns."""
        self.ask("runs", {"program": "fulfil", "args": [id], "id": id})
        self.ask(f"runs/{self.ask(f'runs/by-id?id={id}')['run_id']}/signals/go", {})
        return self.ended(id, "completed")["output"]

    def ended(self, id: str, status: str) -> Any:
        """A run, once it has this status."""
        end = time.monotonic() + PATIENCE
        while (run := self.ask(f"runs/by-id?id={id}"))["status"] != status:
            assert time.monotonic() < end, run
        return run


@contextmanager
def developing(directory: Path, text: str = FLOWS) -> Iterator[Developed]:
    """Develop a module until the end of the block."""
    (directory / "flows.py").write_text(text)
    command = [sys.executable, "-m", "perdure", "dev", "flows.py", "--port", "0", "--store", "sqlite:///dev.db"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # as most people have it
    with subprocess.Popen(
        [*command, "--no-open"], cwd=directory, env=env, stderr=subprocess.PIPE, text=True
    ) as process:
        yield Developed(process, directory)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0


def test_an_edit_of_the_same_length_within_a_second_of_the_last_is_live(tmp_path: Path) -> None:
    with developing(tmp_path) as dev:
        since = dev.until(lambda state: state["status"] == "live")["since"]
        assert dev.result("first") == 1
        dev.edit_within_the_second(FLOWS.replace("return 1", "return 2"))
        dev.until(lambda state: state["status"] == "live" and state["since"] != since)
        assert dev.result("second") == 2


def test_an_edit_is_live_at_once_and_held_back_when_it_would_park_a_run(tmp_path: Path) -> None:
    with developing(tmp_path) as dev:
        assert dev.result("first") == 1
        dev.ask("runs", {"program": "fulfil", "args": ["open"], "id": "open"})
        since = dev.until(lambda state: state["status"] == "live")["since"]

        dev.edit(FLOWS.replace("return 1", "return 2"))
        state = dev.until(lambda state: state["status"] == "live" and state["since"] != since)
        assert (state["checked"], dev.result("second")) == (1, 2)

        dev.edit(INSERTED.replace("return 1", "return 3"))
        held = dev.until(lambda state: state["status"] == "held")
        assert [(run["id"], run["fit"], run["source"]) for run in held["runs"]] == [("open", "patch", "flows.py:12")]
        assert "+    if patched(" in held["runs"][0]["reason"]
        # The code from before continues.
        assert (dev.result("third"), dev.ask("runs/by-id?id=open")["status"]) == (2, "waiting")

        dev.edit("1 +\n")
        assert "SyntaxError" in dev.until(lambda state: state["status"] == "broken")["problem"]
        assert dev.result("fourth") == 2

        dev.edit(INSERTED.replace("return 1", "return 5"))
        dev.until(lambda state: state["status"] == "held")
        dev.ask("dev/take", {})
        dev.until(lambda state: state["status"] == "live")
        assert dev.result("fifth") == 5
        assert dev.ended("open", "parked")["parked"] == "diverged"

        # A run that is parked already holds no edit back.
        since = dev.ask("dev")["since"]
        dev.edit(INSERTED.replace("return 1", "return 6"))
        dev.until(lambda state: state["status"] == "live" and state["since"] != since)
        assert dev.result("sixth") == 6


def test_edits_within_one_second_are_all_taken(tmp_path: Path) -> None:
    """Compiled modules are told apart by whole seconds and sizes: those of an edit may look like those of the next."""
    with developing(tmp_path) as dev:
        for number in range(2, 5):
            since = dev.ask("dev")["since"]
            dev.edit(FLOWS.replace("return 1", f"return {number}"), at=1_600_000_000_000_000_000 + number)
            dev.until(lambda state, before=since: state["status"] == "live" and state["since"] != before)  # type: ignore[misc]
            assert dev.result(f"run-{number}") == number


def test_a_module_that_is_broken_from_the_start_is_shown_and_then_executed(tmp_path: Path) -> None:
    with developing(tmp_path, "from nowhere import nothing\n") as dev:
        assert "No module named 'nowhere'" in dev.ask("dev")["problem"]
        dev.edit(FLOWS)
        dev.until(lambda state: state["status"] == "live")
        assert dev.result("first") == 1


def test_nothing_is_left_when_it_is_killed(tmp_path: Path) -> None:
    with developing(tmp_path) as dev:
        children = Path(f"/proc/{dev.process.pid}/task/{dev.process.pid}/children").read_text().split()
        assert len(children) == 2
        dev.process.kill()
        dev.process.wait()
        end = time.monotonic() + PATIENCE
        while any(is_alive(int(pid)) for pid in children):
            assert time.monotonic() < end
            time.sleep(0.02)
        dev.process.returncode = 0  # as after Ctrl-C, for the end of the block


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--store", "memory://"], "would not survive an edit"),
        (["--host", "192.0.2.1"], "make a token first: perdure token new"),
        (["--host", "0.0.0.0"], "make a token first: perdure token new"),
        (["--host", "::"], "make a token first: perdure token new"),
        (["--store", "sqlite:///no/such/folder/dev.db"], "no/such/folder"),
    ],
)
def test_what_cannot_be_developed_is_refused(cli: Cli, options: list[str], said: str) -> None:
    port = [] if "--host" in options else ["--port", "0"]
    ended = cli("dev", "flows.py", "--no-open", *options, *port)
    assert (ended.code, said in ended.err) == (2, True), ended.err


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Problem, match=f"cannot listen on 127.0.0.1:{port}"):
            listening("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "named", "status"),
    [("127.0.0.1", "localhost", 200), ("0.0.0.0", "localhost", 401), ("::", "10.0.0.7", 401)],
)
async def test_callers_need_a_token_where_other_machines_reach_the_server(host: str, named: str, status: int) -> None:
    async with Engine("memory://", []) as engine:
        token = (await engine._credentials.issue("token", "ann", may=["read"])).text
        transport = httpx.ASGITransport(served(engine, host))
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{named}/api/v1/") as http:
            assert (await http.get("runs")).status_code == status
            assert (await http.get("runs", headers={"Authorization": f"Bearer {token}"})).status_code == 200
            elsewhere = await http.get("runs", headers={"Host": "evil.test", "Authorization": f"Bearer {token}"})
            assert elsewhere.status_code in (403, 421)


IMPORTED = """
import asyncio, socket, sys
from datetime import UTC, datetime
from perdure.cli import dev_process
from perdure.cli.dev_messages import Channel, Go, Load, Loaded, Prepare, Serving, Stop
from perdure.server.shapes import DevState

async def main():
    ours, control = socket.socketpair()
    process = asyncio.create_task(dev_process.main(control))
    channel = await Channel.over(ours)
    listener = socket.create_server(("127.0.0.1", 0))
    channel.send(Prepare("sqlite:///dev.db"))
    while "uvicorn.lifespan.off" not in sys.modules:
        await asyncio.sleep(0)
    before = set(sys.modules)
    channel.send(Load("flows.py", "sqlite:///dev.db"))
    assert isinstance(await channel.receive(), Loaded)
    channel.send(Go(listener.detach(), "127.0.0.1", DevState("flows.py", "live", datetime.now(UTC))))
    assert isinstance(await channel.receive(), Serving)
    late = {name for name in set(sys.modules) - before if name.startswith(("perdure", "uvicorn", "h11", "flows"))}
    assert late == {"flows"}, late
    channel.send(Stop())
    await process

asyncio.run(main())
"""


def test_an_edit_imports_nothing_but_the_code_of_the_user(tmp_path: Path) -> None:
    """The rest of what it takes is imported before there is an edit: the process waits with it."""
    (tmp_path / "flows.py").write_text(FLOWS)
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTED], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert ended.returncode == 0, ended.stderr
