"""Minutes of an engine that never ends, in virtual time: what it holds does not grow, and nothing is left of it."""

from __future__ import annotations

import asyncio
import gc
import os
import selectors
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any, TypeVar
from unittest import mock

import pytest

from perdure import Engine, Queue, Recovery, Retention, continue_as, sleep, step, wait_signal, workflow
from perdure.builtin import schedules
from perdure.client.client import Client
from perdure.engine.threads import Threads
from perdure.kernel.events import RunStatus
from perdure.ports.leases import ORCHESTRATOR
from perdure.ports.runs import RunFilter

T = TypeVar("T")

START = 1_900_000_000.0
# So long it takes at most to hear of what another thread has done.
BREATH = 0.0005
KEPT, EVERY = 30.0, 10.0
# A schedule goes on as another of itself after so many turns, and has so many events by then.
RENEWAL, LONGEST = 20, 300
# What is under way differs from moment to moment by less than this; whatever each run left behind would be more.
MORE = 600


class Leap(selectors.DefaultSelector):
    """Waits for nothing but other threads: when nothing is to be done until some time, it is that time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.elsewhere: set[Any] = set()

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(min(timeout, BREATH))
        while self.elsewhere and not ready:
            ready = super().select(BREATH)
        if not ready:
            self.now += timeout
        return ready

    def watch(self, submit: Callable[..., Any]) -> Callable[..., Any]:
        """What gives work to a thread, and lets no time go by until it is done."""

        def watched(*args: Any, **options: Any) -> Any:
            future = submit(*args, **options)
            self.elsewhere.add(future)
            future.add_done_callback(self.elsewhere.discard)
            return future

        return watched


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time goes by as fast as its work is done."""

    def __init__(self) -> None:
        self.leap = Leap()
        super().__init__(self.leap)

    def time(self) -> float:
        return self.leap.now

    def now(self) -> float:
        """As the clock of an engine."""
        return START + self.leap.now

    def timers(self) -> int:
        """How many are set."""
        return sum(not timer.cancelled() for timer in self._scheduled)  # type: ignore[attr-defined]


# --- what it does ---------------------------------------------------------------------------------------------------


@step
async def work(number: int) -> int:
    await asyncio.sleep(0.05)
    return number


@workflow
async def report(number: int) -> int:
    return await work(number) + await work(number)


@workflow
async def endless(number: int) -> None:
    """Goes on as another of itself, again and again."""
    await work(number)
    await sleep(1.5)
    continue_as(number + 1)


@workflow
async def mailbox(heard: int) -> None:
    """Hears five signals, and goes on as another of itself."""
    for _ in range(5):
        heard += await wait_signal("letter", type=int)
    continue_as(heard)


@workflow
async def patient(seconds: float) -> str:
    """Leaves memory while it waits."""
    await sleep(seconds)
    return "rested"


@dataclass
class Figures:
    """What there is at one moment, when what is not used has been collected."""

    objects: int
    # Of memory: texts and numbers are no objects to the collector.
    blocks: int
    kinds: Counter[str] = field(repr=False)
    tasks: int
    timers: int
    files: int
    runs: int
    longest: int
    largest: int


async def measure(engine: Engine, loop: VirtualLoop) -> Figures:
    """Count everything that could grow."""
    listed = await engine.store.runs.list(RunFilter(limit=10_000))
    longest, largest = max(head.next_seq for _, head in listed), max(head.size for _, head in listed)
    runs = len(listed)
    del listed
    # Twice: what has a finalizer goes the second time.
    gc.collect()
    gc.collect()
    blocks = sys.getallocatedblocks()
    every = gc.get_objects()
    kinds = Counter(type(one).__name__ for one in every)
    # Python notes what it has found about a class, once for each class: a weak reference, and what takes that away.
    noted = sum(type(one) is BuiltinFunctionType and one.__name__ == "_destroy" for one in every)
    del every
    for kind in ("ReferenceType", "builtin_function_or_method"):
        kinds[kind] -= noted
    # A run that continues as another of itself knows the signals of all of them, while it is in memory.
    del kinds["SignalKey"]
    files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    return Figures(kinds.total(), blocks, kinds, len(asyncio.all_tasks()), loop.timers(), files, runs, longest, largest)


async def traffic(client: Client, loop: VirtualLoop) -> None:
    """What comes from outside: signals, runs of a queue, runs that wait."""
    number = 0
    while True:
        await asyncio.sleep(0.5)
        number += 1
        await client.signal("mailbox", "letter", 1, signal_id=f"letter-{number}")
        _ = await client.start(report(number), id=f"queued-{number}", queue="narrow", key=f"k{number % 3}")
        if number % 4 == 0:
            _ = await client.start(patient(7.0), id=f"patient-{number}")


async def live(store: str, loop: VirtualLoop, moments: Sequence[float]) -> list[Figures]:
    """An engine that does all of it, and how it was at these moments."""
    engine = Engine(
        store,
        [report, endless, mailbox, patient],
        name="soak",
        clock=loop,
        queues=[Queue("narrow", concurrency=2, per_key=1)],
        # Virtual time does not wait for a commit of a busy machine, and a lease must not run out meanwhile.
        recovery=Recovery(lease=60.0, check_interval=5.0, grace=0),
        retention=Retention(older_than=KEPT, every=EVERY),
    )
    figures = []
    async with engine:
        for number in range(3):
            _ = await engine.start(endless(0), id=f"endless-{number}")
        _ = await engine.start(mailbox(0), id="mailbox")
        await engine.schedule("often", report(1), every=2)
        await engine.schedule("seldom", report(2), cron="* * * * *")
        outside = asyncio.ensure_future(traffic(engine, loop))
        for moment in moments:
            # Always the same way from the last tick: what is under way then is alike each time.
            await asyncio.sleep(moment - loop.time())
            assert not outside.done(), outside.result()
            found = await measure(engine, loop)
            # What is under way changes all the time, and more of it is where the machine is busy: the least counts.
            for _ in range(20):
                await asyncio.sleep(0.1)
                found.tasks, found.timers = min(found.tasks, len(asyncio.all_tasks())), min(found.timers, loop.timers())
            figures.append(found)
        outside.cancel()
        await asyncio.wait([outside])
        view = await engine.get("mailbox")
        assert view is not None
        assert view.input["heard"] > moments[-1]
        parked = await engine.list(status=[RunStatus.PARKED, RunStatus.FAILED])
        assert not list(parked)
        leases = engine.store.leases
        assert await leases.get(f"{ORCHESTRATOR}soak", loop.now()) is not None
    return figures


def played(scenario: Coroutine[Any, Any, T], loop: VirtualLoop) -> T:
    """Run it to its end, and check that nothing is left of it in the loop."""
    try:
        result = loop.run_until_complete(scenario)
        loop.run_until_complete(asyncio.sleep(0))
        assert asyncio.all_tasks(loop) == set()
        assert loop.timers() == 0
        return result
    finally:
        loop.close()


def soak(store: str, moments: Sequence[float]) -> None:
    """Nothing grows from the first moment, when all has come to its usual size, to the last."""
    files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    loop = VirtualLoop()
    watch = loop.leap.watch
    with (
        mock.patch.object(Threads, "submit", watch(Threads.submit)),
        mock.patch.object(ThreadPoolExecutor, "submit", watch(ThreadPoolExecutor.submit)),
    ):
        figures = played(live(store, loop, moments), loop)
    del loop
    gc.collect()
    if files:
        assert len(os.listdir("/proc/self/fd")) <= files, "a file or a connection is left open"
    first, *_, last = figures
    grown = {kind: n - first.kinds[kind] for kind, n in last.kinds.items() if n - first.kinds[kind] > 50}
    assert last.objects < first.objects + MORE, f"memory grows: {grown}\n{figures}"
    assert last.blocks < first.blocks + 5 * MORE, f"memory grows: {figures}"
    for what in ("tasks", "timers", "files"):
        assert getattr(last, what) <= getattr(first, what) + 3, f"{what} grow: {figures}"
    assert last.runs < first.runs * 1.1 + 20, f"runs are not pruned: {figures}"
    assert last.longest <= LONGEST, f"a journal grows: {figures}"
    assert last.largest <= first.largest * 1.5 + 1_000, f"a journal grows: {figures}"


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(schedules, "RENEWAL", RENEWAL)
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/soak.db"


def test_an_engine_that_never_ends_holds_no_more_than_at_first(store: str) -> None:
    soak(store, [80.0, 120.0])


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_twenty_minutes(store: str) -> None:
    soak(store, [120.0, 480.0, 840.0, 1200.0])
