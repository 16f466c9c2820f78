"""`perdure demo`: a run survives the kill of its process. Only the time of the kill is staged."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from perdure.assembly import connect
from perdure.cli.demo_process import HELD, IDS
from perdure.cli.exits import Exit, Problem
from perdure.cli.options import AsJson
from perdure.cli.output import value_text, write_json
from perdure.client.views import RunView

# What is shown first, by what is run.
TOLD = {
    "order": "An order of three steps: reserve, charge, ship. Its process is killed half-way.",
    "flow": "A flow of three jobs: extract, transform, load. Its process is killed in the second one.",
}


@dataclass
class Part:
    """What one process did."""

    ran: list[str] = field(default_factory=list)
    not_run_again: list[str] = field(default_factory=list)
    exit_code: int = 0


def demo(
    *,
    flow: Annotated[bool, Parameter(negative="", help="A flow with jobs, in place of an order.")] = False,
    json: AsJson = False,
) -> int:
    """Watch a run survive the death of its process.

    Starts an order in a process of its own, kills that process with SIGKILL
    between two steps, and starts it again: finished steps are not executed
    again. It uses a store in a temporary directory, and no network.
    """
    say = (lambda *_: None) if json else print
    what = "flow" if flow else "order"
    id = IDS[what]
    with tempfile.TemporaryDirectory(prefix="perdure-demo-") as folder:
        url = f"sqlite:///{folder}/demo.db"
        say(f"{TOLD[what]}\n")
        first = _first(what, url, say)
        second = _second(what, url, say, first.ran)
        view = asyncio.run(_finished(id, url))
    if json:
        write_json({"id": id, "status": view.status, "result": view.output, "processes": [first, second]})
    else:
        say(f"\nRun {id} {view.status}: {value_text(view.output, 200)}")
        say("Each step ran once. Its result was on disk before the next one began.")
    return Exit.OK if view.status == "completed" else Exit.FAILED


def _first(what: str, url: str, say: Any) -> Part:
    part = Part()
    with _process(what, url, "hold") as process:
        say(f"Process 1 (pid {process.pid})")
        for line in _lines(process):
            if line == HELD:
                process.kill()
                break
            part.ran.append(_told(line, say))
        part.exit_code = process.wait()
    if part.exit_code >= 0 and os.name == "posix":
        raise Problem(f"the first process of the demo ended by itself (exit code {part.exit_code})", Exit.FAILED)
    say(f"  {'':<8} killed with SIGKILL\n")
    return part


def _second(what: str, url: str, say: Any, before: list[str]) -> Part:
    part = Part(not_run_again=before.copy())
    with _process(what, url) as process:
        say(f"Process 2 (pid {process.pid}): the same command again")
        lines = list(_lines(process))
        part.exit_code = process.wait()
    ran = [line.partition(": ")[0] for line in lines]
    for name in part.not_run_again:
        if name in ran:
            raise Problem(f"{name} ran twice, which must never happen; please report it", Exit.FAILED)
        say(f"  {name:<8} not run again: its result is in the journal")
    part.ran = [_told(line, say) for line in lines]
    if part.exit_code != 0:
        raise Problem(f"the second process of the demo ended with exit code {part.exit_code}", Exit.FAILED)
    return part


@contextmanager
def _process(*words: str) -> Iterator[subprocess.Popen[str]]:
    # The child imports the same perdure, not one in the current directory.
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "perdure.cli.demo_process", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    for line in process.stdout:
        yield line.rstrip("\n")


def _told(line: str, say: Any) -> str:
    name, _, what = line.partition(": ")
    say(f"  {name:<8} {what}")
    return name


async def _finished(id: str, url: str) -> RunView:
    async with connect(url) as client:
        view = await client.get(id)
    if view is None:
        raise Problem(f"the demo's run {id} is not in its store", Exit.FAILED)
    return view
