"""The executor of documents sees what is wrong with one: otherwise a passing guide would prove nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FENCE = "`" * 3


def execute(folder: Path, *blocks: tuple[str, str]) -> subprocess.CompletedProcess[str]:
    document = folder / "guide.md"
    document.write_text("\n\n".join(f"{FENCE}{info}\n{text}\n{FENCE}" for info, text in blocks), encoding="utf-8")
    command = [sys.executable, str(Path(__file__).parent / "execute.py"), str(document)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


WAITS = "import sys, time\nprint('one')\nprint('two')\nsys.stdout.flush()\ntime.sleep(60)"


@pytest.mark.parametrize(
    "blocks",
    [
        [("python", "print(1)"), ("text", "1")],
        [("python", "one = 1"), ("python", "print(one)"), ("text", "1")],
        [("python", "int('x')  # raises ValueError"), ("text", "ValueError: invalid literal for int() ...: 'x'")],
        [("python one.py", "print(1)"), ("console", "$ python one.py\n1\n$ echo 2\n2")],
        [("python waits.py", WAITS), ("console", "$ python waits.py\none\ntwo\nKilled")],
    ],
    ids=["output", "one namespace", "an error that is shown", "a saved file", "a kill"],
)
def test_a_document_that_tells_the_truth_passes(tmp_path: Path, blocks: list[tuple[str, str]]) -> None:
    done = execute(tmp_path, *blocks)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "blocks",
    [
        [("python", "print(1)"), ("text", "2")],
        [("python", "print(1)")],
        [("python", "one = 1"), ("text", "1")],
        [("python", "1 / 0")],
        [("python", "int('1')  # raises ValueError")],
        [("python", "1 / 0  # raises ValueError")],
        [("console", "$ echo 1\n2")],
        [("console", "$ no-such-command")],
        [("python waits.py", WAITS), ("console", "$ python waits.py\none\nthree\nKilled")],
    ],
    ids=[
        "another output",
        "an output that is not shown",
        "an output that is not there",
        "an error that is not shown",
        "an error that is not there",
        "another error",
        "another output of a command",
        "no such command",
        "another output before a kill",
    ],
)
def test_a_document_that_does_not_tell_the_truth_fails(tmp_path: Path, blocks: list[tuple[str, str]]) -> None:
    assert execute(tmp_path, *blocks).returncode == 1
