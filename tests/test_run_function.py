"""`perdure.run`: a script that is killed and run again goes on, quietly."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec import Raw

import perdure
from perdure.kernel.events import AnyEvent, RunClaimed, RunStarted
from perdure.kernel.state import RunState
from perdure.ports.appends import extend
from perdure.ports.journal import Appended, append_all
from perdure.ports.leases import ORCHESTRATOR, holder
from perdure.stores.memory.store import MemoryStore

SCRIPT = """
import os, sys, perdure
@perdure.step
def reserve():
    print("reserve", flush=True)
    return "shelf"
@perdure.step
def charge():
    print("charge", flush=True)
    if not os.path.exists("marker"):
        open("marker", "x").close()
        os.kill(os.getpid(), 9)
@perdure.step
def ship(shelf):
    print("ship", flush=True)
    return f"parcel from {shelf}"
@perdure.workflow
async def fulfil():
    shelf = await reserve()
    await charge()
    return await ship(shelf)
if __name__ == "__main__":
    print(perdure.run(fulfil(), id="order-1"))
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_a_killed_script_goes_on_and_repeats_no_finished_step(script: Path) -> None:
    first = run(script.parent, script.name)
    assert (first.returncode, first.stdout.split()) == (-signal.SIGKILL, ["reserve", "charge"])
    second = run(script.parent, script.name)
    # The step that was under way has no outcome and runs again; the one before it does not.
    assert (second.returncode, second.stdout.splitlines()) == (0, ["charge", "ship", "parcel from shelf"])


def test_a_finished_script_gives_its_result_again_without_running_anything(script: Path) -> None:
    (script.parent / "marker").touch()
    run(script.parent, script.name)
    assert run(script.parent, script.name).stdout == "parcel from shelf\n"


def test_nothing_is_written_to_stderr_where_nobody_watches(script: Path) -> None:
    first, second = run(script.parent, script.name), run(script.parent, script.name)
    assert (first.stderr, second.stderr) == ("", "")


FAILING = """
import perdure
@perdure.step
def refuse():
    raise LookupError("nothing there")
@perdure.workflow
async def fails():
    await refuse()
perdure.run(fails(), id="f", store="memory://")
"""


def test_what_the_run_raised_is_raised_with_the_lines_of_the_script(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    ended = run(tmp_path, "failing.py")
    assert ended.returncode == 1
    assert "LookupError: nothing there" in ended.stderr
    assert "failing.py" in ended.stderr


SHARED = """
import sys, perdure
@perdure.step
def once():
    print("inside", flush=True)
    return sys.stdin.readline().strip()
@perdure.workflow
async def shared():
    return await once()
if __name__ == "__main__":
    print(perdure.run(shared(), id="shared"))
"""

# The same command, on a store that tells when somebody begins to wait for the run.
ATTACHING = """
import perdure
from perdure.stores.sqlite.store import SqliteStore
from shared import shared
store = SqliteStore("perdure.db")
finished = store.runs.finished
async def waited_for(run_ids):
    store.runs.finished = finished
    rows = await finished(run_ids)
    print("attached", flush=True)
    return rows
store.runs.finished = waited_for
print(perdure.run(shared(), id="shared", store=store))
"""


def start(folder: Path, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, name],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_second_process_with_the_same_id_waits_for_the_first_and_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "shared.py").write_text(SHARED)
    (tmp_path / "attaching.py").write_text(ATTACHING)
    with start(tmp_path, "shared.py") as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "inside\n"
        with start(tmp_path, "attaching.py") as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "attached\n"
            assert owner.communicate("the only answer\n") == ("the only answer\n", "")
            out, told = other.communicate()
            assert out == "the only answer\n"
            assert "run 'shared' belongs to orchestrator" in told
    assert (owner.returncode, other.returncode) == (0, 0)


def test_a_run_that_another_orchestrator_has_says_for_how_long_it_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one may be gone: then silence for as long as a lease lasts would look like a hang."""
    defaults = perdure.Engine.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "recovery", perdure.Recovery(check_interval=0.5))
    store, now = MemoryStore(), time.time()
    events: list[AnyEvent] = [RunStarted("it", "nothing", "1", Raw(b"{}")), RunClaimed("w1", 1, "s")]

    async def fill() -> None:
        _ = await store.leases.acquire(ORCHESTRATOR + "w1", holder("w1", "s"), 2.0, now)
        assert await append_all(store.journal, [extend(RunState("r1"), events, now)]) == [Appended()]

    @perdure.workflow
    async def nothing() -> str:
        return "done"

    asyncio.run(fill())
    with caplog.at_level(logging.INFO, "perdure"):
        assert perdure.run(nothing(), id="it", store=store) == "done"
    told = [record.getMessage() for record in caplog.records]
    assert any("run 'it' belongs to orchestrator w1" in line and "at most" in line for line in told)
    assert any("orchestrator w1 has unfinished runs" in line for line in told)


BREAKS = """
import perdure
@perdure.step
def charge():
    if BROKEN:
        raise ValueError("typo")
    return 7
@perdure.workflow
async def pay():
    return await charge()
if __name__ == "__main__":
    print(perdure.run(pay(), id="order 1"))
"""


def test_a_script_that_shows_the_error_of_an_earlier_run_says_so_and_how_to_go_on(tmp_path: Path) -> None:
    path, told = tmp_path / "pay.py", "Run 'order 1' had already failed"
    path.write_text(BREAKS.replace("BROKEN", "True"))
    first = run(tmp_path, "pay.py")
    assert "ValueError: typo" in first.stderr
    assert told not in first.stderr
    path.write_text(BREAKS.replace("BROKEN", "False"))
    again = run(tmp_path, "pay.py")
    assert "ValueError: typo" in again.stderr
    assert told in again.stderr
    assert "perdure runs retry 'order 1', and then the same command again" in again.stderr
    assert run(tmp_path, "-m", "perdure", "runs", "retry", "order 1").returncode == 0
    assert run(tmp_path, "pay.py").stdout == "7\n"
    path.write_text(BREAKS.replace("BROKEN", "True"))
    assert run(tmp_path, "pay.py").stdout == "7\n"


def test_the_command_line_says_that_a_run_had_failed_before(tmp_path: Path) -> None:
    (tmp_path / "pay.py").write_text(BREAKS.replace("BROKEN", "True"))
    command = ("-m", "perdure", "run", "pay.py", "--id", "order 1")
    first, again = run(tmp_path, *command), run(tmp_path, *command)
    assert "before this command" not in first.stderr
    assert "It had already ended; this command executed nothing." in again.stderr
    assert "To retry it: perdure runs retry 'order 1', and then this command again" in again.stderr
