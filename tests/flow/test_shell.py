"""The component `shell` runs one command, keeps little of it, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure import UsageError
from perdure.authoring.flow.shell import CommandFailed, shell
from tests.flow.writing import flow_of, problems_of, run
from tests.processes import is_alive


async def test_arguments_are_given_as_they_are(tmp_path: Path) -> None:
    text = """
inputs: {name: string}
steps: [{id: a, use: shell, with: {argv: [printf, "%s|", "${{ input.name }}", 3, "$HOME"]}}]
output: ${{ steps.a.stdout }}
"""
    name = "x; touch hacked $(id) `id` && '\""
    assert (await run(flow_of(tmp_path, text), name=name)).output == f"{name}|3|$HOME|"
    found = problems_of(tmp_path, text, shell=False)
    assert "flows may not run commands here" in found[0]


async def test_success_is_more_than_an_exit_code(tmp_path: Path) -> None:
    there = await shell(
        ["sh", "-c", "cat > made.txt; exit 3"], cwd=str(tmp_path), input="in", success={"exit_codes": [3]}
    )
    assert there == {"exit_code": 3, "stdout": "", "stderr": "", "truncated": False}
    assert (tmp_path / "made.txt").read_text() == "in"
    for success, reason in (
        ({}, "it ends with one of"),
        ({"exit_codes": [4], "required_files": ["none"]}, "there is no file none"),
        ({"exit_codes": [4], "required_globs": ["*.csv"]}, "no file fits"),
        ({"exit_codes": [4], "forbidden_files": ["made.txt"]}, "there is a file made.txt"),
    ):
        with pytest.raises(CommandFailed, match=reason) as caught:
            await shell(["sh", "-c", "echo oh >&2; exit 4"], cwd=str(tmp_path), success=success)
        assert caught.value.stderr == "oh\n"


@pytest.mark.parametrize("argv", ["ls -l", [], [["a"]], [None], ["a\0b"], [True]])
async def test_what_is_no_command_is_refused(argv: Any) -> None:
    with pytest.raises(UsageError):
        await shell(argv)
    with pytest.raises(UsageError, match="success has no 'exit'"):
        await shell(["true"], success={"exit": 1})


async def test_output_is_kept_up_to_a_limit_and_the_environment_is_not_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FLOW_HIDDEN", "hidden")
    found = await shell("yes | head -c 300000; env", shell=True, env={"GIVEN": 1}, max_output=1000)
    assert (len(found["stdout"]), found["truncated"]) == (1000, True)
    found = await shell(["env"], env={"GIVEN": 1})
    assert "GIVEN=1" in found["stdout"]
    assert "hidden" not in found["stdout"]


@pytest.mark.parametrize("begun", [True, False])
async def test_what_ends_the_step_ends_the_command_and_what_it_started(tmp_path: Path, begun: bool) -> None:
    pids = tmp_path / "pids"
    code = f"""
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(pids)!r} + ".new", "w").write(f"{{os.getpid()}} {{child.pid}}")
os.rename({str(pids)!r} + ".new", {str(pids)!r})
time.sleep(600)
"""
    task = asyncio.ensure_future(shell([sys.executable, "-c", code], grace=0.05))
    for _ in range(2):
        await asyncio.sleep(0)
    while not pids.exists():
        assert not task.done()
        if begun:  # else the event loop has not come to know that the command has begun
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for pid in map(int, pids.read_text().split()):
        while is_alive(pid):
            await asyncio.sleep(0.01)


async def test_a_process_in_the_background_does_not_hold_the_step() -> None:
    found = await shell("sleep 600 & echo $!", shell=True)
    pid = int(found["stdout"])
    while is_alive(pid):
        await asyncio.sleep(0.01)
