"""The executor of documents sees what is wrong with one: otherwise a passing guide would prove nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.servers import servers_of
from tests.patience import PATIENCE
from tests.processes import is_alive
from tests.services.shared import Shared

FENCE = "`" * 3


def execute(folder: Path, *blocks: tuple[str, str]) -> subprocess.CompletedProcess[str]:
    document = folder / "guide.md"
    document.write_text("\n\n".join(f"{FENCE}{info}\n{text}\n{FENCE}" for info, text in blocks), encoding="utf-8")
    command = [sys.executable, str(Path(__file__).parent / "execute.py"), str(document)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_what_a_command_leaves_running_ends_with_the_document(tmp_path: Path) -> None:
    left = ("console", "$ sleep 1000 > log 2>&1 & echo $! > left.pid")
    done = execute(tmp_path, left)
    assert done.returncode == 0, done.stderr
    pid = int((tmp_path / "left.pid").read_text())
    # Whoever adopted it may not have buried it yet.
    assert not is_alive(pid)


def test_servers_that_a_document_names_are_empty_ones_of_the_tests(tmp_path: Path, services: Shared) -> None:
    document = tmp_path / "guide.md"
    code = """
import asyncio, asyncpg, json, os, redis
async def count():
    for url in ("postgresql://db.example/one", "postgresql://db.example/two"):
        connection = await asyncpg.connect(url)
        await connection.execute("create table note (id int)")
        await connection.close()
asyncio.run(count())
print(redis.Redis.from_url("redis://redis.example").dbsize())
print("postgresql://db.example/one", "etcd://etcd.example:2379/x")
"""
    shown = "0\npostgresql://db.example/one etcd://etcd.example:2379/x\n"
    document.write_text(f"{FENCE}python{code}{FENCE}\n\n{FENCE}text\n{shown}{FENCE}\n", encoding="utf-8")
    with servers_of(document, services) as environment:
        command = [sys.executable, str(Path(__file__).parent / "execute.py"), str(document)]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    assert done.returncode == 0, done.stderr


# As much of a process of its own as of an interpreter: no line of what forked it.
FAILURE = 'Traceback (most recent call last):\n  File "/...bad.py", line 1, in <module>\n...\nZeroDivisionError: ...'
OWN = "import os, sys\nprint(os.getpid() == os.getsid(0), *sys.argv)"
WAITS = "import sys, time\nprint('one')\nprint('two')\nsys.stdout.flush()\ntime.sleep(60)"


@pytest.mark.parametrize(
    "blocks",
    [
        [("python", "print(1)"), ("text", "1")],
        [("python", "one = 1"), ("python", "print(one)"), ("text", "1")],
        [("python", "int('x')  # raises ValueError"), ("text", "ValueError: invalid literal for int() ...: 'x'")],
        [("python one.py", "print(1)"), ("console", "$ python one.py\n1\n$ echo 2\n2")],
        [("python waits.py", WAITS), ("console", "$ python waits.py\none\ntwo\nKilled")],
        [("yaml one.yaml", "one: 1"), ("console", "$ cat one.yaml\none: 1")],
        [
            ("python bad.py", "1 / 0"),
            ("console", f"$ python bad.py\n{FAILURE}\n$ python bad.py; echo $?\n{FAILURE}\n1"),
        ],
        [
            ("python own.py", OWN),
            ("console", "$ python own.py a 'b c'\nTrue own.py a b c\n$ perdure runs sho 2>&1\n..."),
        ],
    ],
    ids=["output", "one namespace", "an error", "a saved file", "a kill", "settings", "a traceback", "a command line"],
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
