"""Many timers due at once while their process is killed: each fires once, and none before its time."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from perdure import Engine, RunStatus, connect
from perdure.kernel.events import WaitOpened, WaitResolved
from tests.crash import programs
from tests.crash.harness import Child, Children, audit, until


async def queue(db: Path, runs: int) -> None:
    """Create the store and queue runs in it that sleep."""
    async with Engine(f"sqlite:///{db}"):
        pass
    async with connect(f"sqlite:///{db}") as client:
        for n in range(runs):
            _ = await client.start(programs.sleepy(1.0), id=f"run-{n}")


def storm(children: Children, folder: Path, *, runs: int, kills: int) -> None:
    """Let the process die again and again while timers fire."""
    db, log = folder / "runs.db", folder / "effects"
    asyncio.run(queue(db, runs))

    def work() -> Child:
        return children.start("work", folder, db=str(db), effects=str(log))

    def begun(count: int) -> bool:
        return log.exists() and log.read_bytes().count(b"\n") >= count

    worker = work()
    try:
        for kill in range(kills):
            # Two steps a run, one before its sleep and one after it.
            share = (kill + 1) * 2 * runs // (kills + 1)
            until(lambda share=share: begun(share), 600.0, what=f"for the work before kill {kill}")  # type: ignore[misc]
            worker.kill()
            time.sleep(0.2)  # timers that fall due meanwhile are late, and not lost
            worker = work()
        (folder / "drained").touch()
        assert worker.result(600.0) == "drained"
    finally:
        worker.kill()
    journals = audit(db)
    assert len(journals) == runs
    for journal in journals.values():
        assert [end.status for end in journal.finished] == [RunStatus.COMPLETED]
        events = [(batch.at, event) for batch in journal.batches for event in batch.events]
        [due] = [event.deadline for _, event in events if isinstance(event, WaitOpened)]
        [fired] = [at for at, event in events if isinstance(event, WaitResolved)]
        assert due is not None
        assert fired >= due, f"{journal.id} woke {due - fired} s early"


def test_timers_of_a_killed_process_fire_once_and_none_early(children: Children, tmp_path: Path) -> None:
    storm(children, tmp_path, runs=120, kills=3)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_twenty_thousand_timers_survive_ten_kills(children: Children, tmp_path: Path) -> None:
    storm(children, tmp_path, runs=20_000, kills=10)
