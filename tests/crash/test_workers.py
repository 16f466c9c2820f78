"""`perdure worker` as a process: it serves, it stops in good order, and what it leaves behind is taken up by others."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure import call, connect
from tests.crash.harness import PATIENCE, Child, Children, audit, create, until, whole_lines

FLOWS = """
import asyncio
from pathlib import Path

from perdure import Queue, step, workflow

emails = Queue("emails", concurrency=2)


@step
async def send(to: str, seconds: float) -> str:
    await asyncio.sleep(seconds)
    while seconds and Path("held").exists():
        await asyncio.sleep(0.02)
    with Path("sent.txt").open("a") as file:
        file.write(to + "\\n")
    return to


@workflow
async def mail(to: str, seconds: float = 0.0) -> str:
    return await send(to, seconds)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> None:
    """A store, and what the workers serve."""
    (tmp_path / "flows.py").write_text(FLOWS)
    asyncio.run(create(url(tmp_path)))


@contextmanager
def worker(children: Children, folder: Path, *options: str) -> Iterator[Child]:
    child = children.python(folder, "-m", "perdure.cli", "worker", "flows.py", "--store", url(folder), *options)
    try:
        yield child
    finally:
        child.kill()


def url(folder: Path) -> str:
    return f"sqlite:///{folder}/q.db"


async def put(folder: Path, *runs: tuple[str, float], **options: Any) -> None:
    async with connect(url(folder)) as client:
        for id, seconds in runs:
            _ = await client.start(call("mail", id, seconds), id=id, **options)


async def results(folder: Path, *ids: str) -> list[Any]:
    async with connect(url(folder)) as client:
        handles = [await client.start(call("mail"), id=id) for id in ids]
        return [await handle.result(PATIENCE) for handle in handles]


def test_a_worker_serves_its_queues_and_stops_in_good_order(children: Children, tmp_path: Path) -> None:
    with worker(children, tmp_path, "--queues", "emails", "--name", "w1", "--max-concurrency", "3") as process:
        until(lambda: process.log.count("\n") >= 2)
        said = process.log.splitlines()
        assert "w1 serves the queue emails of mail in " in said[0]
        assert said[1].strip() == "queue emails: 2 at once"
        asyncio.run(put(tmp_path, *((f"m{n}", 0.01) for n in range(5)), queue="emails", key="k"))
        asyncio.run(put(tmp_path, ("other", 0.0)))
        assert asyncio.run(results(tmp_path, *(f"m{n}" for n in range(5)))) == [f"m{n}" for n in range(5)]
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        assert "stopping" in process.log
    assert sorted((tmp_path / "sent.txt").read_text().split()) == [f"m{n}" for n in range(5)]


def test_a_worker_that_is_told_to_stop_hands_over_what_is_under_way(children: Children, tmp_path: Path) -> None:
    asyncio.run(put(tmp_path, ("long", 30.0), queue="emails"))

    async def owner() -> str | None:
        async with connect(url(tmp_path)) as client:
            view = await client.get("long")
            assert view is not None
            return view.owner

    with worker(children, tmp_path, "--name", "w1", "--grace", "0s") as process:
        until(lambda: asyncio.run(owner()) == "w1")
        process.signal(signal.SIGINT)
        assert process.wait() == 0
    assert asyncio.run(owner()) is None
    with worker(children, tmp_path, "--name", "w2"):
        until(lambda: asyncio.run(owner()) == "w2")


def test_what_a_killed_worker_left_is_taken_up_by_another(children: Children, tmp_path: Path) -> None:
    # Both are seen and killed while they run, however long that takes.
    held = tmp_path / "held"
    held.touch()
    asyncio.run(put(tmp_path, ("a", 0.01), ("b", 0.01), ("c", 0.0), queue="emails"))

    async def running() -> int:
        async with connect(url(tmp_path)) as client:
            return len(await client.list(status="running"))

    with worker(children, tmp_path) as first:
        until(lambda: asyncio.run(running()) == 2)
        first.kill()
    held.unlink()
    with worker(children, tmp_path):
        assert asyncio.run(results(tmp_path, "a", "b", "c")) == ["a", "b", "c"]


EXITS = """
import asyncio
import sys

from perdure import step, workflow


async def exits() -> None:
    sys.exit(3)


@step
async def gathers() -> None:
    await asyncio.gather(exits())


@step
async def one() -> int:
    return 1


@workflow
async def mail(to: str, seconds: float = 0.0) -> str:
    try:
        await gathers()
    except Exception as error:
        return f"{error} {await one()}"
    return ""
"""


def test_a_worker_outlives_a_task_of_a_step_that_exits(children: Children, tmp_path: Path) -> None:
    (tmp_path / "flows.py").write_text(EXITS)
    asyncio.run(put(tmp_path, ("a", 0.0), ("b", 0.0)))
    with worker(children, tmp_path) as process:
        assert asyncio.run(results(tmp_path, "a", "b")) == ["builtins.SystemExit: 3 1"] * 2
        process.signal(signal.SIGTERM)
        assert process.wait() == 0


# --- remote steps ---------------------------------------------------------------------------------------------------

FILMS = """
import asyncio
import os
from pathlib import Path

from perdure import step, workflow


def note(line: str) -> None:
    with Path("log.txt").open("a") as file:
        file.write(line + "\\n")


@step(queue="gpu")
async def render(frame: int, seconds: float) -> int:
    note(f"begin {frame} {os.getpid()}")
    await asyncio.sleep(seconds)
    while Path("held").exists():
        await asyncio.sleep(0.02)
    note(f"end {frame}")
    return frame * 2


@workflow
async def film(frames: int, seconds: float) -> list[int]:
    return await asyncio.gather(*(render(n, seconds) for n in range(frames)))
"""


def films(children: Children, folder: Path, queue: str) -> AbstractContextManager[Child]:
    return worker(children, folder, "--queues", queue)


def lines(folder: Path) -> list[str]:
    return whole_lines(folder / "log.txt")


@pytest.mark.parametrize("victims", [("gpu",), ("films",), ("gpu", "films")], ids="+".join)
def test_a_remote_step_survives_the_death_of_its_worker_and_of_its_parent(
    children: Children, tmp_path: Path, victims: tuple[str, ...]
) -> None:
    (tmp_path / "flows.py").write_text(FILMS)

    async def start() -> None:
        async with connect(url(tmp_path)) as client:
            _ = await client.start(call("film", 3, 0.01), id="film", queue="films")

    async def result() -> Any:
        async with connect(url(tmp_path)) as client:
            return await (await client.start(call("film"), id="film")).result(PATIENCE)

    asyncio.run(start())
    # No frame is ready before the kill, however late that is.
    held = tmp_path / "held"
    held.touch()
    with ExitStack() as stack:
        processes = {queue: stack.enter_context(films(children, tmp_path, queue)) for queue in ("gpu", "films")}
        until(lambda: sum(line.startswith("begin") for line in lines(tmp_path)) == 3)
        for queue in victims:
            processes[queue].kill()
        held.unlink()
        for queue in victims:
            stack.enter_context(films(children, tmp_path, queue))
        assert asyncio.run(result()) == [0, 2, 4]
    journal = audit(tmp_path / "q.db")["film"]
    assert sorted(journal.outcomes) == ["render:0", "render:1", "render:2"]
    begun = [line for line in lines(tmp_path) if line.startswith("begin")]
    assert len(begun) == (6 if "gpu" in victims else 3)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_remote_steps_survive_a_storm_of_kills(children: Children, tmp_path: Path, seed: int) -> None:
    (tmp_path / "flows.py").write_text(FILMS)
    chance = random.Random(seed)

    async def start() -> None:
        async with connect(url(tmp_path)) as client:
            for n in range(20):
                _ = await client.start(call("film", 5, 0.05), id=f"film-{n}", queue="films")

    async def finished() -> int:
        async with connect(url(tmp_path)) as client:
            return len(await client.list(status="completed"))

    asyncio.run(start())
    with ExitStack() as stack:
        running = [
            (queue, stack.enter_context(films(children, tmp_path, queue))) for queue in ("gpu", "gpu", "films", "films")
        ]
        while asyncio.run(finished()) < 20:
            time.sleep(chance.random())
            victim = chance.randrange(len(running))
            queue, process = running[victim]
            process.kill()
            running[victim] = queue, stack.enter_context(films(children, tmp_path, queue))
    journals = audit(tmp_path / "q.db")
    for n in range(20):
        assert sorted(journals[f"film-{n}"].outcomes) == [f"render:{i}" for i in range(5)]


FAILING = """
from perdure import Retry, step, workflow


@step(retry=Retry(attempts=2, initial=0.01, jitter=False))
async def send(to: str, seconds: float) -> str:
    raise ConnectionError("the line is dead")


@workflow
async def mail(to: str, seconds: float = 0.0) -> str:
    return await send(to, seconds)
"""


@pytest.mark.parametrize(("options", "lines"), [((), 2), (("--log-level", "warning"), 0)])
def test_a_worker_logs_each_attempt_that_fails_unless_it_is_told_not_to(
    children: Children, tmp_path: Path, options: Sequence[str], lines: int
) -> None:
    (tmp_path / "flows.py").write_text(FAILING)
    asyncio.run(put(tmp_path, ("m1", 0.0)))

    async def status() -> str:
        async with connect(url(tmp_path)) as client:
            view = await client.get("m1")
            assert view is not None
            return view.status

    with worker(children, tmp_path, *options) as process:
        until(lambda: asyncio.run(status()) == "failed")
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        said = [line for line in process.log.splitlines() if "run m1: step send:0: attempt" in line]
    assert len(said) == lines
    if lines:
        assert said[0].endswith("attempt 1 of 2 failed: ConnectionError: the line is dead; next attempt in 0.0 s")
        assert " INFO " in said[0]


def test_a_level_that_there_is_not_is_explained(children: Children, tmp_path: Path) -> None:
    with worker(children, tmp_path, "--log-level", "loud") as process:
        assert process.wait() == 2
        assert "debug" in process.log


def test_a_worker_serves_a_changed_flow_as_a_new_version(children: Children, tmp_path: Path) -> None:
    flow = "perdure: 1\nname: greet\nsteps: [{id: a, use: value, with: TEXT}]\n"
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "greet.yaml").write_text(flow.replace("TEXT", "hello"))

    async def greeting() -> Any:
        async with connect(url(tmp_path)) as client:
            return await (await client.start(call("greet"))).result()

    arguments = ("-m", "perdure.cli", "worker", "flows", "--store", url(tmp_path))
    with ExitStack() as stack:
        process = children.python(tmp_path, *arguments)
        stack.callback(process.kill)
        assert asyncio.run(greeting()) == {"a": "hello"}
        (tmp_path / "flows" / "greet.yaml").write_text(flow.replace("TEXT", "good morning"))
        until(lambda: asyncio.run(greeting()) == {"a": "good morning"})
