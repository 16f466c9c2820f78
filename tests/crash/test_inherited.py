"""What a child process inherits: an engine that does not work there says so at once, and locks die with their owner."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from perdure import RunStatus, blocking
from tests.crash.harness import Children, until

FLOWS = """
import time
from pathlib import Path

from perdure import step, workflow


@step
def hold() -> str:
    with Path("begun.txt").open("a") as file:
        file.write("begun\\n")
    while not Path("go").exists():
        time.sleep(0.01)
    return "done"


@workflow
async def flow() -> str:
    return await hold()


@workflow
async def quick(n: int) -> int:
    return n + 1
"""

# Uses, in a child, what its parent has opened; and says what it was told.
USED_IN_A_CHILD = """
import asyncio, json, multiprocessing, os, sys
from flows import quick
from perdure import Engine, blocking, connect


def told(use):
    try:
        return f"worked: {use()!r}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"


def uses(engine):
    return {
        "start": told(lambda: engine.start(quick(1))),
        "get": told(lambda: engine.get("x")),
        "list": told(lambda: engine.list()),
        "open": told(lambda: engine.open()),
        "close": told(lambda: engine.close()),
    }


def in_child(found):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, json.dumps(found()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        print(answer.read(), flush=True)
    os.waitpid(pid, 0)


url, kind = sys.argv[1:]
if kind == "engine":
    with blocking.Engine(url, [quick]) as engine:
        assert engine.start(quick(1)).result() == 2
        in_child(lambda: uses(engine))
        assert engine.start(quick(2)).result() == 3
elif kind == "client":
    with blocking.Engine(url, [quick]), blocking.connect(url) as client:
        in_child(lambda: uses(client))
        assert client.get("x") is None
elif kind == "handle":
    with blocking.Engine(url, [quick]) as engine:
        handle = engine.start(quick(1))
        in_child(lambda: {"result": told(handle.result), "status": told(handle.status)})
elif kind == "process":
    with blocking.Engine(url, [quick]) as engine:
        queue = multiprocessing.get_context("fork").SimpleQueue()
        child = multiprocessing.get_context("fork").Process(target=lambda: queue.put(uses(engine)))
        child.start()
        print(json.dumps(queue.get()), flush=True)
        child.join()
elif kind == "async":

    async def main():
        async with Engine(url, [quick]) as engine:
            assert (await engine.run(quick(1))).output == 2

            def used():
                asyncio._set_running_loop(None)
                return {
                    "start": told(lambda: asyncio.run(engine.start(quick(1)))),
                    "get": told(lambda: asyncio.run(engine.get("x"))),
                    "list": told(lambda: asyncio.run(engine.list())),
                }

            in_child(used)

    asyncio.run(main())
elif kind == "reopened":
    with blocking.Engine(url, [quick]) as engine:
        in_child(lambda: {"open": told(lambda: blocking.Engine(url, [quick]).open())})
elif kind == "another file":

    def other():
        with blocking.Engine(url + f"-{os.getpid()}", [quick]) as engine:
            return engine.start(quick(2)).result()

    with blocking.Engine(url, [quick]) as engine:
        for _ in range(10):
            engine.start(quick(1))
            in_child(lambda: told(other))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "flows.py").write_text(FLOWS)
    (tmp_path / "used.py").write_text(USED_IN_A_CHILD)
    return tmp_path


@pytest.fixture(params=["sqlite", "postgres", "redis", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param in ("sqlite", "file"):
        return f"{request.param}:///{tmp_path}/{request.param}.db"
    made: str = request.getfixturevalue(f"{request.param}_url")
    return made


def used(children: Children, folder: Path, url: str, kind: str) -> dict[str, str]:
    ended = children.python(folder, "used.py", url, kind)
    assert ended.wait() == 0, ended.log
    said: dict[str, str] = json.loads(ended.log)
    return said


@pytest.mark.parametrize("kind", ["engine", "client", "process"])
def test_what_blocks_says_at_once_what_to_do_in_a_forked_child(
    children: Children, kind: str, url: str, folder: Path
) -> None:
    said = used(children, folder, url, kind)
    assert said.pop("close") == "worked: None"
    for what, answer in said.items():
        assert answer.startswith("UsageError"), what
        assert "after the fork" in answer, what
        assert "post_fork" in answer, what


def test_so_does_a_handle(children: Children, folder: Path, tmp_path: Path) -> None:
    said = used(children, folder, f"sqlite:///{tmp_path}/x.db", "handle")
    assert all("after the fork" in answer for answer in said.values())


def test_so_does_an_engine_that_is_awaited(children: Children, url: str, folder: Path) -> None:
    said = used(children, folder, url, "async")
    assert all("after the fork" in answer for answer in said.values()), said


def test_a_file_of_sqlite_that_the_parent_has_open_is_not_opened_in_a_fork(
    children: Children, folder: Path, tmp_path: Path
) -> None:
    [answer] = used(children, folder, f"sqlite:///{tmp_path}/x.db", "reopened").values()
    assert answer.startswith("UsageError")
    assert "before it forks" in answer


def test_another_file_of_sqlite_is_used_in_a_fork(children: Children, folder: Path, tmp_path: Path) -> None:
    """The threads of the parent are in SQLite at any moment, and may hold a mutex of the library."""
    ended = children.python(folder, "used.py", f"sqlite:///{tmp_path}/x.db", "another file")
    assert ended.wait() == 0, ended.log
    assert ended.log.splitlines() == ['"worked: 3"'] * 10


# --- locks -----------------------------------------------------------------------------------------------------------

PARENT = """
import os, subprocess, sys, time
from flows import flow
from perdure import Recovery, blocking

url, how = sys.argv[1:]
with blocking.Engine(url, [flow], name="parent", recovery=Recovery(lease=600)) as engine:
    engine.start(flow(), id="it")
    # Its line, and not the file alone: this process is killed next.
    while not (os.path.exists("begun.txt") and os.path.getsize("begun.txt")):
        time.sleep(0.01)
    if how == "fork":
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
    elif how == "popen":
        child = subprocess.Popen(["sleep", "600"]).pid
    elif how == "open fds":
        child = subprocess.Popen(["sleep", "600"], close_fds=False).pid
    else:
        import multiprocessing

        process = multiprocessing.get_context(how).Process(target=time.sleep, args=(600,), daemon=True)
        process.start()
        child = process.pid
    print(child, flush=True)
    time.sleep(600)
"""

HEIR = """
import sys
from flows import flow
from perdure import Recovery, blocking

with blocking.Engine(sys.argv[1], [flow], name="heir", recovery=Recovery(lease=600, check_interval=0.2)) as engine:
    print(engine.start(flow(), id="it").result(), flush=True)
"""


@pytest.mark.parametrize("how", ["fork", "popen", "open fds", "multiprocessing fork", "multiprocessing forkserver"])
def test_a_child_that_lives_on_does_not_delay_the_takeover_of_its_parents_runs(
    children: Children, how: str, folder: Path
) -> None:
    url = f"sqlite:///{folder}/x.db"
    (folder / "parent.py").write_text(PARENT.replace("get_context(how)", "get_context(how.split()[1])"))
    (folder / "heir.py").write_text(HEIR)
    parent = children.python(folder, "parent.py", url, how)
    child = int(until(lambda: parent.log.strip() or not parent.alive))
    try:
        parent.kill()
        os.kill(child, 0)
        # A lease lasts for ten minutes: without the lock of a dead process as a witness, this would be in vain.
        heir = children.python(folder, "heir.py", url)
        until(lambda: (folder / "begun.txt").read_text().count("begun") == 2)
        os.kill(child, 0)
        (folder / "go").touch()
        assert (heir.wait(), heir.log) == (0, "done\n")
    finally:
        os.kill(child, signal.SIGKILL)
    with blocking.connect(url) as client:
        view = client.get("it")
    assert view is not None
    assert view.status is RunStatus.COMPLETED
