"""Many timers due at once while their process is killed: each fires once, and none before its time."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

import pytest

from perdure import RunStatus
from perdure.kernel.events import WaitOpened, WaitResolved
from tests.amounts import some
from tests.crash import programs
from tests.crash.harness import Child, Children, audit, has_lines, queue, until


@pytest.mark.parametrize(("runs", "kills"), some([(120, 3), (20_000, 10)], 1))
def test_timers_of_a_killed_process_fire_once_and_none_early(
    children: Children, tmp_path: Path, runs: int, kills: int
) -> None:
    db, log = tmp_path / "runs.db", tmp_path / "effects"
    asyncio.run(queue(f"sqlite:///{db}", {f"run-{n}": programs.sleepy(1.0) for n in range(runs)}))

    def work() -> Child:
        return children.start("work", tmp_path, db=str(db), effects=str(log))

    worker = work()
    try:
        for kill in range(kills):
            # Two steps a run, one before its sleep and one after it.
            share = (kill + 1) * 2 * runs // (kills + 1)
            until(partial(has_lines, log, share), 600.0, what=f"for the work before kill {kill}")
            worker.kill()
            time.sleep(0.2)  # timers that fall due meanwhile are late, and not lost
            worker = work()
        (tmp_path / "drained").touch()
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
