"""SIGTERM while steps work: the process keeps what it does until its grace is over, and reports nothing after that."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure import StepStatus, call, connect
from perdure.kernel.events import RunReleased, StepStarted, StepSucceeded
from tests.crash.harness import PATIENCE, Child, Children, create, until, whole_lines

FLOWS = """
import asyncio
import os
import time
from pathlib import Path

from perdure import blocking, sleep, step, step_context, wait_signal, workflow


def note(what):
    with Path("log.txt").open("a") as file:
        file.write(f"{what} {step_context().attempt} {os.getpid()}\\n")


def held():
    note("begin")
    while not Path("go").exists():
        time.sleep(0.01)
    note("end")
    return os.getpid()


@step
def thread():
    return held()


@step(cpu=True)
def cpu():
    return held()


@step
async def loop():
    note("begin")
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    note("end")
    return os.getpid()


@step
def generator():
    yield held()


@step
async def elsewhere():
    return await asyncio.to_thread(held)


@step
async def blocks_the_loop():
    return held()


KINDS = {s.name: s for s in (thread, cpu, loop, generator, elsewhere, blocks_the_loop)}


@step
async def after():
    note("after")


@workflow
async def flow(kind: str) -> int:
    came = await KINDS[kind]()
    await after()
    return came[0] if isinstance(came, list) else came


@workflow
async def waiting() -> str:
    return await wait_signal("go", type=str)
"""

SETTINGS = """
recovery:
  check_interval: 0.3
"""


class Place:
    """A store and a directory in which workers work."""

    def __init__(self, children: Children, folder: Path, url: str) -> None:
        self._children, self.folder, self.url = children, folder, url
        (folder / "flows.py").write_text(FLOWS)
        (folder / "perdure.yaml").write_text(SETTINGS)
        asyncio.run(create(url))

    @contextmanager
    def python(self, *argv: str) -> Iterator[Child]:
        process = self._children.python(self.folder, *argv)
        try:
            yield process
        finally:
            process.kill()

    def worker(self, name: str, *options: str) -> AbstractContextManager[Child]:
        return self.python("-m", "perdure.cli", "worker", "flows.py", "--store", self.url, "--name", name, *options)

    def script(self, text: str) -> AbstractContextManager[Child]:
        """A script that calls perdure.run."""
        (self.folder / "script.py").write_text(text)
        return self.python("script.py", self.url)

    def start(self, program: str, *args: Any, id: str) -> None:
        async def put() -> None:
            async with connect(self.url) as client:
                _ = await client.start(call(program, *args), id=id)

        asyncio.run(put())

    def result(self, id: str) -> Any:
        async def get() -> Any:
            async with connect(self.url) as client:
                return await client.handle(id).result(PATIENCE)

        return asyncio.run(get())

    def owner(self, id: str) -> str | None:
        async def get() -> str | None:
            async with connect(self.url) as client:
                view = await client.get(id)
                assert view is not None
                return view.owner

        return asyncio.run(get())

    def events(self, id: str) -> Sequence[Any]:
        async def get() -> Sequence[Any]:
            async with connect(self.url) as client:
                return [entry.event for entry in await client.journal(id)]

        return asyncio.run(get())

    def log(self, what: str = "") -> list[str]:
        return [line for line in whole_lines(self.folder / "log.txt") if line.startswith(what)]

    def let_go(self) -> None:
        (self.folder / "go").touch()


def says(process: Child, *words: str) -> None:
    """Wait until the process has said all of this in one line."""

    def said() -> bool:
        return any(all(word in line for word in words) for line in process.log.splitlines())

    until(lambda: said() or not process.alive, every=0.02)
    assert said(), f"it ended without having said {words}\n{process.log}"


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def place(children: Children, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """On each store that has more than one process on a machine."""
    url = f"sqlite:///{tmp_path}/q.db" if request.param == "sqlite" else request.getfixturevalue(f"{request.param}_url")
    return Place(children, tmp_path, url)


@pytest.fixture
def on_sqlite(children: Children, tmp_path: Path) -> Place:
    return Place(children, tmp_path, f"sqlite:///{tmp_path}/q.db")


def keeps_its_step(place: Place, kind: str, number: signal.Signals) -> None:
    """A worker that is told to stop keeps the run until its step has ended; another does what follows."""
    place.start("flow", kind, id="it")
    with place.worker("first") as first, place.worker("second") as second:
        until(lambda: place.log("begin"))
        begun = int(place.log("begin")[0].split()[2])
        owner = place.owner("it")
        process, heir = (first, second) if owner == "first" else (second, first)
        process.signal(number)
        says(process, "waits up to", f"{kind}:0 of run 'it'")
        # The other one has looked for runs without an owner meanwhile.
        time.sleep(1.5)
        assert process.alive
        assert place.owner("it") == owner
        assert len(place.log("begin")) == 1
        place.let_go()
        assert process.wait() == 0
        assert place.result("it") == begun
        assert [line.split()[:2] for line in place.log()] == [["begin", "1"], ["end", "1"], ["after", "1"]]
        assert int(place.log("after")[0].split()[2]) == heir.pid
    events = place.events("it")
    [succeeded] = [event for event in events if isinstance(event, StepSucceeded) and event.op.startswith(kind)]
    assert succeeded.attempt == 1
    released = next(n for n, event in enumerate(events) if isinstance(event, RunReleased))
    assert events.index(succeeded) < released


@pytest.mark.parametrize("kind", ["cpu", "loop", "generator", "elsewhere"])
def test_a_step_that_ends_within_the_grace_is_not_begun_again(kind: str, on_sqlite: Place) -> None:
    keeps_its_step(on_sqlite, kind, signal.SIGTERM)


def test_a_step_in_a_thread_keeps_its_run_on_every_store(place: Place) -> None:
    keeps_its_step(place, "thread", signal.SIGTERM)


def test_ctrl_c_has_the_same_grace(on_sqlite: Place) -> None:
    keeps_its_step(on_sqlite, "thread", signal.SIGINT)


@pytest.mark.parametrize("kind", ["thread", "cpu", "loop", "generator", "elsewhere"])
def test_what_hangs_is_given_up_after_the_grace_and_the_process_ends(kind: str, on_sqlite: Place) -> None:
    place = on_sqlite
    place.start("flow", kind, id="it")
    with place.worker("first", "--grace", "2s") as first:
        until(lambda: place.log("begin"))
        first.signal(signal.SIGTERM)
        assert first.wait() == 0
    assert f"s for 1 step: {kind}:0 of run 'it'" in first.log
    assert place.owner("it") is None
    with place.worker("second"):
        until(lambda: len(place.log("begin")) == 2)
        place.let_go()
        assert place.result("it") == int(place.log("begin")[1].split()[2])
    outcomes = [event for event in place.events("it") if isinstance(event, StepSucceeded)]
    assert [(event.op, event.attempt) for event in outcomes] == [(f"{kind}:0", 2), ("after:0", 1)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_leaves_at_once(number: signal.Signals, place: Place) -> None:
    place.start("flow", "thread", id="it")
    with place.worker("first", "--grace", "10m") as first:
        until(lambda: place.log("begin"))
        first.signal(number)
        says(first, "waits up to")
        first.signal(number)
        assert first.wait() == 0
    assert place.owner("it") is None


def test_a_step_that_blocks_the_loop_does_not_keep_the_process_for_ever(on_sqlite: Place) -> None:
    on_sqlite.start("flow", "blocks_the_loop", id="it")
    with on_sqlite.worker("first", "--grace", "10m") as first:
        until(lambda: on_sqlite.log("begin"))
        first.signal(signal.SIGTERM)
        first.signal(signal.SIGINT)
        assert first.wait() == 143


def test_what_only_waits_is_handed_over_while_steps_go_on(place: Place) -> None:
    place.start("waiting", id="asleep")
    place.start("flow", "thread", id="it")

    async def signal_it() -> None:
        async with connect(place.url) as client:
            await client.signal("asleep", "go", "morning")

    with place.worker("first") as first:
        until(lambda: place.log("begin"))
        until(lambda: place.owner("asleep") == "first")
        first.signal(signal.SIGTERM)
        says(first, "waits up to")
        with place.worker("second"):
            asyncio.run(signal_it())
            assert place.result("asleep") == "morning"
            assert first.alive
            assert place.owner("it") == "first"
            place.let_go()
            assert first.wait() == 0
            place.result("it")


def test_steps_that_have_not_begun_are_left_to_the_next_owner(on_sqlite: Place) -> None:
    place = on_sqlite
    for n in range(4):
        place.start("flow", "thread", id=f"r{n}")

    def started() -> int:
        return sum(isinstance(event, StepStarted) for n in range(4) for event in place.events(f"r{n}"))

    with place.worker("first", "--threads", "1") as first:
        until(lambda: started() == 4)
        first.signal(signal.SIGTERM)
        until(lambda: sum(place.owner(f"r{n}") is None for n in range(4)) == 3)
        place.let_go()
        assert first.wait() == 0
    assert len(place.log("begin")) == 1


SCRIPT = """
import signal
import sys
import perdure
from flows import flow

if __name__ == "__main__":
    perdure.run(flow("thread"), id="it", store=sys.argv[1])
"""


def test_a_script_that_is_interrupted_twice_leaves_its_run_to_the_next_command(on_sqlite: Place) -> None:
    place = on_sqlite
    with place.script(SCRIPT) as process:
        until(lambda: place.log("begin"))
        process.signal(signal.SIGINT)
        says(process, "waits up to")
        process.signal(signal.SIGINT)
        process.wait()
    assert place.owner("it") is None
    place.let_go()
    with place.script(SCRIPT) as process:
        assert process.wait() == 0
    assert [line.split()[:2] for line in place.log()] == [["begin", "1"], ["begin", "2"], ["end", "2"], ["after", "1"]]

    async def steps() -> list[tuple[str, StepStatus]]:
        async with connect(place.url) as client:
            return [(step.name, step.status) for step in await client.steps("it")]

    assert asyncio.run(steps()) == [("thread", StepStatus.SUCCEEDED), ("after", StepStatus.SUCCEEDED)]


def test_a_script_that_gets_sigterm_ends_its_step_and_hands_over_its_run(place: Place) -> None:
    with place.script(SCRIPT) as process:
        until(lambda: place.log("begin"))
        process.signal(signal.SIGTERM)
        says(process, "waits up to", "thread:0 of run 'it'")
        assert place.owner("it") is not None
        place.let_go()
        assert process.wait() == -signal.SIGTERM
    assert place.owner("it") is None
    assert any(isinstance(event, RunReleased) for event in place.events("it"))
    with place.script(SCRIPT) as process:
        assert process.wait() == 0
    assert [line.split()[:2] for line in place.log()] == [["begin", "1"], ["end", "1"], ["after", "1"]]


@pytest.mark.parametrize("kind", ["thread", "elsewhere", "cpu"])
def test_a_second_sigterm_ends_the_grace_of_a_script(kind: str, on_sqlite: Place) -> None:
    place = on_sqlite
    with place.script(SCRIPT.replace('"thread"', repr(kind))) as process:
        until(lambda: place.log("begin"))
        process.signal(signal.SIGTERM)
        says(process, "waits up to")
        process.signal(signal.SIGTERM)
        assert process.wait() in (-signal.SIGTERM, 143)
    assert place.owner("it") is None
    place.let_go()
    with place.script(SCRIPT.replace('"thread"', repr(kind))) as process:
        assert process.wait() == 0
    assert len(place.log("after")) == 1


# Signals of its own: two that another process sends may arrive as one.
BLOCKED = """
import signal
import sys
import time
import perdure.termination
from perdure import step, workflow


@step
async def blocks_the_loop() -> None:
    for _ in range(2):
        signal.raise_signal(signal.SIGTERM)
    time.sleep(3600)


@workflow
async def stuck() -> None:
    await blocks_the_loop()


if __name__ == "__main__":
    perdure.termination.LEAVE_SECONDS = 0.5
    perdure.run(stuck(), store=sys.argv[1])
"""


def test_a_script_whose_step_blocks_the_loop_ends_after_two_signals(on_sqlite: Place) -> None:
    with on_sqlite.script(BLOCKED) as process:
        assert process.wait() == 143


IGNORED = SCRIPT.replace("    perdure", "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    perdure")


def test_a_script_that_was_started_with_sigterm_ignored_goes_on(on_sqlite: Place) -> None:
    place = on_sqlite
    with place.script(IGNORED) as process:
        until(lambda: place.log("begin"))
        process.signal(signal.SIGTERM)
        place.let_go()
        assert process.wait() == 0
    assert len(place.log("after")) == 1


OWN_HANDLER = IGNORED.replace("signal.SIG_IGN", "lambda number, frame: open('go', 'w').close()")

IN_A_THREAD = """
import sys
import threading
import perdure
from flows import flow

if __name__ == "__main__":
    work = threading.Thread(target=lambda: perdure.run(flow("thread"), id="it", store=sys.argv[1]))
    work.start()
    work.join()
"""


def test_the_handler_of_the_application_is_left_alone(on_sqlite: Place) -> None:
    with on_sqlite.script(OWN_HANDLER) as process:
        until(lambda: on_sqlite.log("begin"))
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    assert len(on_sqlite.log("after")) == 1


def test_a_run_in_another_thread_leaves_sigterm_as_it_is(on_sqlite: Place) -> None:
    with on_sqlite.script(IN_A_THREAD) as process:
        until(lambda: on_sqlite.log("begin"))
        process.signal(signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM


def test_a_script_has_the_default_disposition_again_after_its_run(on_sqlite: Place) -> None:
    place = on_sqlite
    text = SCRIPT + "    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
    place.let_go()
    with place.script(text) as process:
        assert process.wait() == 0


def test_a_forked_child_of_a_step_ends_by_sigterm(on_sqlite: Place) -> None:
    text = """
import os
import signal
import sys
import perdure
from perdure import step, workflow


@step
async def fork() -> int:
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@workflow
async def family() -> int:
    return await fork()


if __name__ == "__main__":
    assert perdure.run(family(), store=sys.argv[1]) == -signal.SIGTERM
"""
    with on_sqlite.script(text) as process:
        assert process.wait() == 0


@pytest.mark.parametrize("times", [1, 2])
def test_perdure_run_of_a_file_has_the_same_grace(times: int, on_sqlite: Place) -> None:
    place = on_sqlite
    command = ["-m", "perdure.cli", "run", "flows.py:flow", "--id", "it", "--input", '["thread"]', "--store", place.url]
    with place.python(*command) as process:
        until(lambda: place.log("begin"))
        process.signal(signal.SIGTERM)
        says(process, "waits up to")
        if times == 2:
            process.signal(signal.SIGTERM)
        else:
            place.let_go()
        assert process.wait() == 143
    assert place.owner("it") is None
    place.let_go()
    with place.python(*command) as process:
        assert process.wait() == 0
    assert len(place.log("begin")) == times
    assert len(place.log("after")) == 1
