"""The blocking classes are the async ones, waited for: same names, same parameters, no behaviour of their own."""

from __future__ import annotations

import inspect
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import NoSuchRun, RunStatus, UsageError, assembly, blocking, step, workflow
from perdure.client.client import Client
from perdure.client.handle import RunHandle
from perdure.client.locks import Locks
from perdure.client.schedules import ScheduleHandle
from perdure.ports.blobs import Blobs

PAIRS = [
    (blocking.Client, Client),
    (blocking.Engine, assembly.Engine),
    (blocking.RunHandle, RunHandle),
    (blocking.ScheduleHandle, ScheduleHandle),
    (blocking.Blobs, Blobs),
    (blocking.Locks, Locks),
]
# What has no meaning for blocking code.
INNER = {"asgi", "lifespan", "locker", "metrics", "watch"}
RETURNS = {
    "AsyncIterator[Entry]": "Iterator[Entry]",
    "AsyncIterator[Chunk]": "Iterator[Chunk]",
    "AsyncIterator[LockView]": "Iterator[LockView]",
}


@step
def double(number: int) -> int:
    return number * 2


@workflow
async def doubled(number: int) -> int:
    return await double(number)


@step
def refuse() -> None:
    raise ValueError("no")


@workflow
async def refused() -> None:
    await refuse()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


@pytest.fixture
def engine(url: str) -> Iterator[blocking.Engine]:
    with blocking.Engine(url, [doubled, refused]) as engine:
        yield engine


# --- the same names -------------------------------------------------------------------------------------------------


def public(cls: type[Any]) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")} - INNER


def parameters(function: Any) -> list[tuple[str, Any, Any, str]]:
    """Name, kind, default and annotation of each parameter, as it is written."""
    return [
        (p.name, p.kind, repr(p.default) if p.default is not p.empty else p.empty, str(p.annotation))
        for p in inspect.signature(function).parameters.values()
    ]


@pytest.mark.parametrize(("blocks", "awaits"), PAIRS)
def test_a_blocking_class_has_every_public_name_of_the_async_one(blocks: type[Any], awaits: type[Any]) -> None:
    assert public(blocks) == public(awaits)


@pytest.mark.parametrize(
    ("blocks", "awaits", "name"),
    [(blocks, awaits, name) for blocks, awaits in PAIRS for name in sorted(public(awaits))],
)
def test_a_blocking_method_takes_the_parameters_of_the_async_one(
    blocks: type[Any], awaits: type[Any], name: str
) -> None:
    ours, theirs = getattr(blocks, name), getattr(awaits, name)
    assert callable(ours) == callable(theirs)
    if callable(theirs):
        assert parameters(ours) == parameters(theirs)
        wanted = str(inspect.signature(theirs).return_annotation)
        assert str(inspect.signature(ours).return_annotation) == RETURNS.get(wanted, wanted)
        assert not inspect.iscoroutinefunction(ours)


def test_the_blocking_engine_and_connect_take_the_parameters_of_the_async_ones() -> None:
    assert parameters(blocking.Engine) == parameters(assembly.Engine)
    assert parameters(blocking.connect) == parameters(assembly.connect)
    assert blocking.run is perdure.run


# --- the same work --------------------------------------------------------------------------------------------------


def test_a_run_is_started_and_its_result_waited_for(engine: blocking.Engine) -> None:
    handle = engine.start(doubled(21), id="answer")
    assert (handle.id, handle.result(), handle.status()) == ("answer", 42, RunStatus.COMPLETED)


def test_an_exception_of_the_run_is_raised_where_its_result_is_asked_for(engine: blocking.Engine) -> None:
    handle = engine.start(refused())
    with pytest.raises(ValueError, match="no"):
        handle.result()
    assert isinstance(handle.outcome().error, ValueError)


def test_runs_can_be_read_through_a_client(engine: blocking.Engine, url: str) -> None:
    assert engine.run(doubled(1), id="one").output == 2
    with blocking.connect(url) as client:
        view = client.get("one")
        assert view is not None
        assert view.output == 2
        assert client.get("two") is None
        assert [run.id for run in client.list(status="completed")] == ["one"]
        assert [found.output for found in client.steps("one")] == [2]
        assert [entry.seq for entry in client.follow("one", 1)] == [e.seq for e in client.journal("one", 1)]


def test_following_an_unknown_run_raises_at_its_first_entry(engine: blocking.Engine) -> None:
    entries = engine.follow("nobody")
    with pytest.raises(NoSuchRun):
        next(entries)


def test_following_can_be_given_up(engine: blocking.Engine) -> None:
    engine.run(doubled(1), id="one")
    for entry in engine.follow("one"):
        assert entry.seq == 0
        break


def test_blobs_are_put_and_got(engine: blocking.Engine) -> None:
    assert engine.blobs.get(engine.blobs.put(b"large")) == b"large"


def test_one_engine_serves_many_threads(engine: blocking.Engine) -> None:
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda n: engine.start(doubled(n)).result(), range(50)))
    assert results == [2 * n for n in range(50)]


def test_a_step_in_a_thread_may_use_the_engine_that_runs_it(url: str) -> None:
    @step
    def nested() -> int:
        return own.start(doubled(4), id="inner").result()

    @workflow
    async def outer() -> int:
        return await nested()

    own = blocking.Engine(url, [outer, doubled])
    with own:
        assert own.start(outer()).result() == 8


def test_an_async_step_that_would_wait_for_its_own_loop_is_refused(url: str) -> None:
    @step
    async def nested() -> object:
        return own.get("anything")

    @workflow
    async def outer() -> object:
        return await nested()

    own = blocking.Engine(url, [outer])
    with own:
        error = own.run(outer()).error
    assert isinstance(error, UsageError)
    assert "own event loop" in str(error)


async def test_it_may_be_called_where_another_loop_runs(url: str) -> None:
    with blocking.Engine(url, [doubled]) as engine:
        assert engine.start(doubled(2)).result() == 4


# --- opening and leaving --------------------------------------------------------------------------------------------


def test_a_closed_engine_says_how_to_open_it(url: str) -> None:
    with pytest.raises(UsageError, match="with Engine"):
        blocking.Engine(url, [doubled]).get("x")
    with pytest.raises(UsageError, match="with connect"):
        blocking.connect(url).get("x")


def test_an_engine_cannot_be_opened_twice_at_once(engine: blocking.Engine) -> None:
    with pytest.raises(UsageError, match="already open"):
        engine.open()
    assert engine.run(doubled(1)).output == 2


def test_an_engine_that_cannot_open_leaves_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(perdure.PerdureError):
        blocking.Engine(f"sqlite:///{tmp_path}/missing/runs.db").open()
    assert set(threading.enumerate()) <= before


def test_an_engine_can_be_closed_twice_and_opened_again(url: str) -> None:
    engine = blocking.Engine(url, [doubled])
    before = set(threading.enumerate())
    for _ in range(2):
        with engine:
            assert engine.start(doubled(3), id="same").result() == 6
        engine.close()
    assert set(threading.enumerate()) <= before


def test_a_thread_that_waits_for_a_run_is_told_when_the_engine_is_closed(url: str) -> None:
    begun, leave = threading.Event(), threading.Event()

    @step
    def long() -> None:
        begun.set()
        leave.wait()

    @workflow
    async def endless() -> None:
        await long()

    engine = blocking.Engine(url, [endless], recovery=perdure.Recovery(grace=0))
    with ThreadPoolExecutor(1) as threads:
        with engine:
            waiting = threads.submit(engine.start(endless()).result)
            begun.wait()
        with pytest.raises(UsageError, match=r"engine was closed|was closed while"):
            waiting.result()
        leave.set()


INTERRUPTED = """
import asyncio, sys, threading
from perdure import Recovery, step, workflow
from perdure.blocking import Engine

def frame_of_main():
    return sys._current_frames()[threading.main_thread().ident]

@step
async def wait():
    # Until the main thread waits for the result, a Ctrl-C would interrupt another call.
    while frame_of_main().f_code is not threading.Condition.wait.__code__:
        await asyncio.sleep(0)
    print("waiting", flush=True)
    await asyncio.Event().wait()

@workflow
async def endless():
    await wait()

try:
    with Engine(sys.argv[1], [endless], recovery=Recovery(grace=0)) as engine:
        engine.start(endless(), id="it").result()
except KeyboardInterrupt:
    print("left", threading.active_count())
"""


def test_ctrl_c_leaves_cleanly_and_the_run_is_kept(url: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (out, err, process.returncode) == ("left 1\n", "", 0)
    with blocking.connect(url) as client:
        view = client.get("it")
    assert view is not None
    assert (view.status, view.owner) == (RunStatus.RUNNING, None)


AT_EXIT = """
import atexit
from perdure import blocking, step, workflow

@step
def double(number: int) -> int:
    return number * 2

@workflow
async def doubled(number: int) -> int:
    return await double(number)

engine = blocking.Engine({url!r}, [doubled], name="it").open()
atexit.register(engine.close)
print(engine.start(doubled(4)).result())
"""


def test_an_engine_can_be_closed_by_a_callback_at_exit(any_url: str) -> None:
    """By then the interpreter has ended all executors."""
    ended = subprocess.run([sys.executable, "-c", AT_EXIT.format(url=any_url)], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "8\n", "")
    if any_url != "memory://":
        with blocking.connect(any_url) as client:
            assert client.orchestrators() == []


LEFT_OPEN = """
import atexit
from perdure import blocking

# Called after the callback of the client, which is registered later.
atexit.register(lambda: loop.call_exception_handler({"message": "Task was destroyed but it is pending!"}))
client = blocking.connect("memory://").open()
loop = client._loop._loop
"""


def test_a_client_that_is_left_open_says_nothing_at_exit() -> None:
    ended = subprocess.run([sys.executable, "-c", LEFT_OPEN], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_schedule_is_looked_after_without_awaiting(engine: blocking.Engine) -> None:
    schedule = engine.schedule("nightly", doubled(2), cron="30 2 * * *", pause=True)
    assert isinstance(schedule, blocking.ScheduleHandle)
    assert [view.id for view in engine.schedules()] == ["nightly"]
    schedule.resume()
    schedule.pause("holidays")
    assert schedule.view().paused
    assert len(schedule.next(3)) == 3
    assert schedule.trigger().startswith("nightly@")
    schedule.delete()
    assert list(engine.schedules()) == []
