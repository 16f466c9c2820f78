"""Scripts whose steps run in other processes: those import the script, and must not start its runs again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.amounts import some
from tests.crash.harness import PATIENCE

STEPS = """
import asyncio
import os

import perdure
from perdure import Engine, blocking, connect, step, workflow


@step(cpu=True)
def crunch(n: int) -> int:
    return n * 2


@workflow
async def flow(n: int) -> int:
    return await crunch(n)


def started() -> None:
    with open("started.txt", "a") as file:
        file.write(f"{os.getpid()}\\n")
"""

# Ways to start a run at the top of a script.
STARTS = {
    "perdure.run": "print(perdure.run(flow(4), store='sqlite:///x.db'))",
    "blocking": """
with blocking.Engine("sqlite:///x.db", [flow]) as engine:
    print(engine.start(flow(4)).result())
""",
    "async": """
async def main():
    async with Engine("sqlite:///x.db", [flow]) as engine:
        print(await (await engine.start(flow(4))).result())
asyncio.run(main())
""",
    "caught": """
try:
    print(perdure.run(flow(4), store="sqlite:///x.db"))
except ValueError:
    pass
""",
}


def script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(STEPS + text)
    return subprocess.run([sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.parametrize("how", STARTS)
def test_a_script_without_a_guard_is_told_to_write_one(how: str, tmp_path: Path) -> None:
    ended = script(tmp_path, STARTS[how])
    assert ended.returncode == 1
    assert 'if __name__ == "__main__":' in ended.stderr
    assert "crunch:0" in ended.stderr
    assert "Then retry the run: `perdure runs retry ID`" in ended.stderr
    assert ended.stderr.count("Traceback") == 1, ended.stderr


@pytest.mark.parametrize("how", some(STARTS, 1))
def test_with_the_guard_it_works(how: str, tmp_path: Path) -> None:
    guarded = 'if __name__ == "__main__":\n' + "\n".join("    " + line for line in STARTS[how].splitlines())
    ended = script(tmp_path, guarded)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("8\n", "", 0)


def test_a_pool_of_the_user_that_imports_such_a_script_is_told_too(tmp_path: Path) -> None:
    ended = script(
        tmp_path,
        """
from concurrent.futures import ProcessPoolExecutor
import multiprocessing

print(perdure.run(flow(4), store="memory://") if __name__ == "__mp_main__" else "parent")
if __name__ == "__main__":
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(print).result()
""",
    )
    assert "parent" in ended.stdout
    assert 'put what starts them under `if __name__ == "__main__":`' in ended.stderr


def test_a_module_that_cannot_be_imported_again_says_that_its_stderr_says_why(tmp_path: Path) -> None:
    ended = script(
        tmp_path,
        """
if __name__ != "__main__":
    raise ImportError("only as a script")
print(perdure.run(flow(4), store="memory://"))
""",
    )
    assert ended.returncode == 1
    assert "only as a script" in ended.stderr
    assert "exit code 1 while it imported" in ended.stderr
