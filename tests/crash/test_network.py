"""Workers whose network fails: nothing is lost or done twice, and work goes on soon after it heals.

Each worker reaches the server through a proxy of its own, so that one of them can be cut off while others work.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from perdure import RunStatus, connect
from tests.amounts import some
from tests.crash import programs
from tests.crash.harness import Children, check_executions, effects_by_run, queue, until
from tests.crash.network import audit
from tests.services.proxy import Proxy

RUNS, STEPS = 40, 5
# As many as a worker executes at a time.
AT_ONCE = 8
LEASE = 1.0

Fault = Callable[[Proxy], None]
FAULTS: dict[str, Fault] = {
    "delay": lambda proxy: proxy.delay(0.3),
    "refused": lambda proxy: proxy.refuse(),
    "requests stuck": lambda proxy: proxy.blackhole("up"),
    "replies stuck": lambda proxy: proxy.blackhole("down"),
    "replies lost": lambda proxy: proxy.lose_replies(1_000_000),
    "reset amid requests": lambda proxy: proxy.reset_after(700, "up"),
    "reset amid replies": lambda proxy: proxy.reset_after(300, "down"),
}


class Place:
    """A store behind proxies, one for each of its workers, and what these do."""

    def __init__(self, url: str, children: Children, folder: Path, workers: int, runs: int, seconds: float) -> None:
        self.url, self.folder, self.runs = url, folder, runs
        self.log, self.held = folder / "effects", folder / "held"
        self.held.touch()
        # Most of the work waits until the network fails, however late that is.
        held = ["" if n < AT_ONCE else str(self.held) for n in range(runs)]
        asyncio.run(queue(url, {f"run-{n}": programs.five(n, seconds, held[n]) for n in range(runs)}))
        port = urlsplit(url).port
        assert port is not None
        self._stack = ExitStack()
        self.proxies = [self._stack.enter_context(Proxy(port)) for _ in range(workers)]
        drained = str(folder / "drained")
        self.workers = [
            children.start(
                "tests.crash.network:labour",
                folder,
                url=proxy.url(url),
                effects=str(self.log),
                drained=drained,
                name=f"worker-{i}",
                lease=LEASE,
            )
            for i, proxy in enumerate(self.proxies)
        ]

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()
        self._stack.close()

    @property
    def effects(self) -> int:
        """How many steps have begun."""
        return self.log.read_bytes().count(b'"begin"') if self.log.exists() else 0

    def wait_for_work(self) -> int:
        """Return when all workers are ready and at least one works: which one that is."""
        ready = [self.folder / f"drained.worker-{i}" for i in range(len(self.workers))]
        until(lambda: all(path.exists() for path in ready) and self.effects >= AT_ONCE, what="for the work to begin")
        first = json.loads(self.log.read_bytes().split(b"\n")[0])["pid"]
        return [worker.pid for worker in self.workers].index(first)

    def finish(self) -> None:
        """Wait for the end of all work, and check everything."""
        (self.folder / "drained").touch()
        for worker in self.workers:
            assert worker.result() == "drained"
        self.check()

    def check(self) -> None:
        """Nothing is lost, nothing is recorded twice, and every execution of a step has its reason."""
        by_run = effects_by_run(self.log)
        journals = asyncio.run(audit(self.url))
        stops = sum(worker.log.count("no heartbeat succeeded in time; stopped") for worker in self.workers)
        assert set(journals) == {f"run-{n}" for n in range(self.runs)}, "a run was lost"
        for id, journal in journals.items():
            n = int(id.removeprefix("run-"))
            assert [end.status for end in journal.finished] == [RunStatus.COMPLETED]
            assert bytes(journal.finished[0].value) == str(n + sum(range(STEPS))).encode()
            assert journal.outcomes == [f"add_slowly:{i}" for i in range(STEPS)]
            executed = check_executions(journal, by_run[journal.run_id])
            # Each change of hands makes one more attempt of what was under way. So does an owner who stopped in time,
            # as it could not show that it lives, and went on when nobody else had come. Nothing else does.
            assert sum(journal.started.values()) - STEPS <= journal.claims - 1 + stops
            assert all(executed[op] <= times for op, times in journal.started.items())


BACKENDS = ["postgres_url", "redis_url"]


def by_turns(faults: Iterable[str]) -> list[Any]:
    """Each fault with one kind of store, by turns; `make soak` has each with both."""
    rows = [(fault, BACKENDS[(n + other) % 2]) for other in (0, 1) for n, fault in enumerate(faults)]
    return some(rows, len(rows) // 2)


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """A store that is reached by a network."""
    url: str = request.getfixturevalue(request.param)
    return url


@pytest.mark.parametrize(("fault", "url"), by_turns(FAULTS), indirect=["url"])
def test_work_goes_on_soon_after_the_network_of_all_workers_heals(
    fault: str, url: str, children: Children, tmp_path: Path
) -> None:
    with Place(url, children, tmp_path, workers=2, runs=RUNS, seconds=0.2) as place:
        place.wait_for_work()
        for proxy in place.proxies:
            FAULTS[fault](proxy)
        place.held.unlink()
        time.sleep(1.5 * LEASE)
        for proxy in place.proxies:
            proxy.heal()
        before = place.effects
        assert before < RUNS * STEPS, "nothing was left to do"
        until(lambda: place.effects > before, what="for the work to go on")
        place.finish()


@pytest.mark.parametrize(("fault", "url"), by_turns(["requests stuck", "replies stuck", "refused"]), indirect=["url"])
def test_a_worker_that_is_cut_off_loses_its_runs_to_the_other_and_writes_nothing_late(
    fault: str, url: str, children: Children, tmp_path: Path
) -> None:
    with Place(url, children, tmp_path, workers=2, runs=RUNS, seconds=0.2) as place:
        busy = place.wait_for_work()
        cut_off, returning = place.proxies[busy], place.workers[busy]
        FAULTS[fault](cut_off)
        place.held.unlink()
        # The other takes over what the first one has, and ends all of it.
        until(lambda: finished(url) == RUNS, what="for the other to end everything")
        cut_off.heal()
        # What it still wanted to say is said by now, if it ever is.
        until(lambda: "heartbeat succeeded again" in returning.log, what="for the first to return")
        place.finish()


def finished(url: str) -> int:
    """How many runs have ended."""

    async def count() -> int:
        async with connect(url) as client:
            return len(await client.list(status=RunStatus.COMPLETED, limit=1000))

    return asyncio.run(count())
