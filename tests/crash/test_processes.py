"""Several processes on one file: they share the work, take over from the dead, and shut out the late."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from perdure import RunStatus, connect
from perdure.kernel.invocation import Invocation
from tests.crash import programs
from tests.crash.fleet import freeze
from tests.crash.harness import Child, Children, Journal, audit, check_executions, create, peek, read_effects, until
from tests.patience import PATIENCE
from tests.processes import is_alive

CHECK_INTERVAL = 0.3
# No test lives to see the end of such a lease, nor such an interval: what happens, something else makes happen.
NEVER = 36_000.0


class Workers:
    """Workers on one file, and a client that queues runs for them."""

    def __init__(self, children: Children, folder: Path) -> None:
        self._children, self._folder = children, folder
        self.db, self.log, self.held = folder / "runs.db", folder / "effects", folder / "held"
        asyncio.run(create(f"sqlite:///{self.db}"))

    def start(self, **options: Any) -> Child:
        """One more worker."""
        options = {"check_interval": CHECK_INTERVAL, **options}
        return self._children.start("work", self._folder, db=str(self.db), effects=str(self.log), **options)

    def queue(self, runs: int, seconds: float, pause: float = 0.0, first: int = 0) -> None:
        """Queue runs, as a client does that executes nothing itself."""

        async def start_all() -> None:
            async with connect(f"sqlite:///{self.db}") as client:
                for n in range(first, first + runs):
                    _ = await client.start(self.call(n, seconds), id=f"run-{n}")
                    await asyncio.sleep(pause)

        asyncio.run(start_all())

    def call(self, n: int, seconds: float = 0.0) -> Invocation[int]:
        """What a run executes."""
        return programs.five(n, seconds, str(self.held))

    def hold(self) -> None:
        """Let no step end, however late the test does what it does meanwhile."""
        self.held.touch()

    def let_go(self) -> None:
        """Let steps end."""
        self.held.unlink()

    def begun(self, worker: Child | None = None) -> int:
        """How many steps have begun, by one worker or all."""
        return sum(worker is None or effect.pid == worker.pid for effect in read_effects(self.log))

    def drain(self, *workers: Child) -> dict[str, Journal]:
        """Say that no more will come, wait for the workers, and check what they did."""
        (self._folder / "drained").touch()
        for worker in workers:
            assert worker.result() == "drained"
        journals = audit(self.db)
        effects = read_effects(self.log)
        for journal in journals.values():
            n = int(journal.id.removeprefix("run-"))
            assert [e.status for e in journal.finished] == [RunStatus.COMPLETED]
            assert bytes(journal.finished[0].value) == str(n + 10).encode()
            assert journal.outcomes == [f"add_slowly:{i}" for i in range(5)]
            check_executions(journal, effects)
        return journals


@pytest.fixture
def workers(children: Children, tmp_path: Path) -> Workers:
    """Workers on a file of their own."""
    return Workers(children, tmp_path)


def test_two_workers_share_what_a_client_queues_and_do_nothing_twice(workers: Workers) -> None:
    both = [workers.start(), workers.start()]
    queued = 0

    def shared() -> bool:
        nonlocal queued
        workers.queue(runs=40, seconds=0.01, pause=0.005, first=queued)
        queued += 40
        return all(workers.begun(worker) >= 50 for worker in both)

    # Who takes what is chance: there is more to take until both have taken something.
    until(shared)
    assert len(workers.drain(*both)) == queued
    assert workers.begun() == 5 * queued, "each step was executed once"
    assert {effect.pid for effect in read_effects(workers.log)} == {worker.pid for worker in both}


def test_runs_queued_before_any_worker_lives_are_done_once_by_whoever_comes(workers: Workers) -> None:
    workers.queue(runs=100, seconds=0.005)
    journals = workers.drain(workers.start(), workers.start(), workers.start())
    assert len(journals) == 100
    assert workers.begun() == 500, "each step was executed once"


def test_the_runs_of_a_killed_worker_are_taken_over_by_the_one_that_lives(workers: Workers) -> None:
    workers.hold()
    first = workers.start(lease=NEVER)
    workers.queue(runs=10, seconds=0.1)
    until(lambda: workers.begun(first) >= 10)
    second = workers.start(lease=NEVER)
    time.sleep(2 * CHECK_INTERVAL)
    assert workers.begun(second) == 0, "the first one lives, and its runs are its own"
    first.kill()
    until(lambda: workers.begun(second) >= 10)
    workers.let_go()
    journals = workers.drain(second)
    assert {journal.claims for journal in journals.values()} == {2}


def test_a_worker_started_again_under_its_name_takes_its_runs_up_at_once(workers: Workers) -> None:
    workers.hold()
    first = workers.start(name="worker", lease=NEVER)
    workers.queue(runs=10, seconds=0.1)
    until(lambda: workers.begun(first) >= 10)
    first.kill()
    second = workers.start(name="worker", lease=NEVER, check_interval=NEVER)
    until(lambda: workers.begun(second) >= 10)
    workers.let_go()
    workers.drain(second)


def test_a_worker_that_was_stopped_past_its_lease_can_no_longer_write(workers: Workers) -> None:
    # Renewed three times in that time, which a busy machine allows for; and waited for once, in full.
    lease = 5.0
    sleeper = workers.start(lease=lease)
    # No step of it ends before it stands still, however late that is.
    workers.hold()
    workers.queue(runs=5, seconds=0.0)
    until(lambda: workers.begun(sleeper) >= 5)
    freeze(sleeper, f"sqlite:///{workers.db}")
    workers.let_go()
    try:
        other = workers.start(lease=lease)
        until(lambda: workers.begun(other) >= 10)
    finally:
        os.kill(sleeper.pid, signal.SIGCONT)
    # Its steps end now, and their outcomes come too late.
    journals = workers.drain(sleeper, other)
    for journal in journals.values():
        assert journal.claims == 2
        # Nothing was written under the old epoch after the new owner's claim: every attempt has one story.
        assert sum(journal.started.values()) == 6, "five steps, and the one that was under way again"


def test_a_worker_that_leaves_in_good_order_hands_its_runs_over_at_once(workers: Workers) -> None:
    workers.hold()
    first = workers.start(lease=NEVER)
    workers.queue(runs=5, seconds=0.4)
    until(lambda: workers.begun(first) >= 5)
    second = workers.start(lease=NEVER, check_interval=NEVER)
    os.kill(first.pid, signal.SIGINT)
    workers.let_go()
    assert first.wait() != 0, "interrupted"
    until(lambda: workers.begun(second) >= 1)
    workers.drain(second)


def test_a_client_sees_the_end_of_a_run_that_was_taken_over(workers: Workers) -> None:
    workers.hold()
    first = workers.start()
    workers.queue(runs=1, seconds=0.2)
    until(lambda: workers.begun(first) >= 1)

    async def wait() -> int:
        async with connect(f"sqlite:///{workers.db}") as client:
            run = await client.start(workers.call(0, 0.2), id="run-0")
            waiting = asyncio.ensure_future(run.result(PATIENCE))
            await asyncio.sleep(0.1)
            await asyncio.to_thread(first.kill)
            second = await asyncio.to_thread(workers.start)
            workers.let_go()
            result = await waiting
            await asyncio.to_thread(workers.drain, second)
            return result

    assert asyncio.run(wait()) == 10
    journal = peek(workers.db, "run-0")
    assert journal is not None
    assert journal.claims == 2


def test_a_killed_engine_leaves_no_process_of_its_steps_behind(children: Children, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command: dict[str, Any] = {"db": str(tmp_path / "runs.db"), "effects": str(tmp_path / "effects")}
    command |= {"program": "crunching", "arguments": [str(pids), 0.3]}
    child = children.start("run", tmp_path, **command)
    until(lambda: pids.exists() and pids.read_text().endswith("\n"))
    child.kill()
    pid = int(pids.read_text())
    try:
        until(lambda: not is_alive(pid))
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)
    # And the step runs again, in another one.
    assert children.start("run", tmp_path, **command).result() == int(pids.read_text().split()[1])
