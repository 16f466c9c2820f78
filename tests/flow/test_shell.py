"""The component `shell` runs one command, keeps little of it, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure import UsageError
from perdure.authoring.flow.shell import CommandFailed, Success, shell
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
        ["sh", "-c", "cat > made.txt; exit 3"], cwd=str(tmp_path), input="in", success=Success(exit_codes=(3,))
    )
    assert there == {"exit_code": 3, "stdout": "", "stderr": "", "truncated": False}
    assert (tmp_path / "made.txt").read_text() == "in"
    for success, reason in (
        (Success(), "it ends with one of"),
        (Success((4,), required_files=("none",)), "there is no file none"),
        (Success((4,), required_globs=("*.csv",)), "no file fits"),
        (Success((4,), forbidden_files=("made.txt",)), "there is a file made.txt"),
    ):
        with pytest.raises(CommandFailed, match=reason) as caught:
            await shell(["sh", "-c", "echo oh >&2; exit 4"], cwd=str(tmp_path), success=success)
        assert caught.value.stderr == "oh\n"


@pytest.mark.parametrize("argv", ["ls -l", [], [["a"]], [None], ["a\0b"], [True]])
async def test_what_is_no_command_is_refused(argv: Any) -> None:
    with pytest.raises(UsageError):
        await shell(argv)


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


WRONG = [
    ("argv: ls -l", "argv is a list"),
    ("argv: []", "argv is a list"),
    ("argv: [ls, [a]]", "not an object or a list"),
    ("argv: [ls, {a: 1}, '${{ input.x }}']", "not an object or a list"),
    ("argv: [ls, null]", "not null"),
    ("argv: [ls, true, '${{ input.x }}']", "not true or false"),
    ("argv: {a: 1}", "Expected `str | array`"),
    ("argv: 3", "Expected `str | array`"),
    ("argv: [ls], shell: true", "argv is one text"),
    ("argv: ['${{ input.x }}'], shell: true", "argv is one text"),
    ("argv: [ls], shell: 1", "Expected `bool`"),
    ("argv: [ls], success: {exit_codes: 0, required_files: out.txt}", "exit_codes"),
    ("argv: [ls], success: {required_files: out.txt}", "required_files"),
    ("argv: [ls], success: {exit_code: [0]}", "exit_code"),
    ("argv: [ls], success: [0]", "Expected `object`"),
    ("argv: [ls], success: {required_globs: [1]}", "required_globs"),
    ("argv: [ls], env: [A]", "Expected `object"),
    ("argv: [ls], env: {A: [1]}", "Expected"),
    ("argv: [ls], env: {A: null}", "Expected"),
    ("argv: [ls], grace: -1", ">= 0"),
    ("argv: [ls], grace: 5s", "Expected `float`"),
    ("argv: [ls], max_output: -5", ">= 0"),
    ("argv: [ls], max_output: many", "Expected `int`"),
    ("argv: [ls], cwd: 3", "Expected `str"),
    ("argv: [ls], input: {a: 1}", "Expected `str`"),
    ("argv: [ls], timeout: 3", "no argument 'timeout'"),
]


@pytest.mark.parametrize(("given", "why"), WRONG)
def test_arguments_of_a_command_are_checked_before_it_runs(tmp_path: Path, given: str, why: str) -> None:
    found = problems_of(tmp_path, f"inputs: {{x: string}}\nsteps: [{{id: a, use: shell, with: {{{given}}}}}]")
    assert len(found) == 1
    assert "error F022" in found[0]
    assert why in found[0]


@pytest.mark.parametrize("given", ["a", 3, ["a", None], ["a", ["b"]], [], [True], {"a": 1}])
async def test_arguments_that_are_known_only_then_are_checked_when_it_runs(tmp_path: Path, given: Any) -> None:
    text = "inputs: {x: {}}\nsteps: [{id: a, use: shell, with: {argv: '${{ input.x }}'}}]"
    result = (await run(flow_of(tmp_path, text), x=given)).result
    assert result.status == "failed"
    assert "arg" in str(result.error)


async def test_a_form_in_place_of_an_argument_is_one(tmp_path: Path) -> None:
    text = """
inputs: {x: string}
steps:
  - {id: a, use: shell, with: {argv: [printf, "%s%s", {$input: x}, {$if: {$input: x}, then: {$literal: b}}]}}
  - {id: b, use: shell, with: {argv: {$coalesce: [null, [printf, c]]}}}
output: ${{ steps.a.stdout ~ steps.b.stdout }}
"""
    assert (await run(flow_of(tmp_path, text), x="a")).output == "abc"


async def test_input_that_nobody_reads_holds_nothing_up() -> None:
    much = "x" * 1_000_000
    assert (await shell(["true"], input=much))["exit_code"] == 0
    # What is left running has the input open, and reads nothing of it.
    found = await shell("sleep 600 <&0 & echo $!", shell=True, input=much)
    pid = int(found["stdout"])
    while is_alive(pid):
        await asyncio.sleep(0.01)
    assert (await shell(["wc", "-c"], input=much))["stdout"].strip() == "1000000"
    assert (await shell(["sh", "-c", "exec <&-; echo done"], input=much))["stdout"] == "done\n"


async def test_a_step_that_ends_while_its_input_is_read_leaves_no_file_open() -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(5):
        task = asyncio.ensure_future(shell(["sleep", "600"], input="x" * 1_000_000, grace=0.05))
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before + 1
