"""Queues under kill -9: a queue of concurrency 5 never runs 6, whoever dies.

What ran at once is told twice, and by nobody that decides it: by the order of commits in the store, and by the lines
that steps write straight to disk.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure import RunStatus, connect
from perdure.kernel.events import RunClaimed, RunFinished, decode_events
from tests.amounts import some
from tests.crash import programs
from tests.crash.harness import Child, Children, audit, check_executions, create, kill_at_random, read_effects

STEPS = 5
KEYS = "abc"


async def put(db: Path, runs: int, seconds: float) -> None:
    await create(f"sqlite:///{db}")
    async with connect(f"sqlite:///{db}") as client:
        for n in range(runs):
            invocation = programs.five(n, seconds)
            _ = await client.start(invocation, id=f"run-{n}", queue="q", key=KEYS[n % len(KEYS)], priority=n % 3)


def by_commits(db: Path) -> tuple[int, int]:
    """How many runs had begun and not ended at once, at most: in all, and of one key."""
    connection = apsw.Connection(str(db), flags=apsw.SQLITE_OPEN_READONLY)
    rows: list[Any] = connection.execute(
        "select run_id, queue_key, events from perdure_journal join perdure_runs using (run_id) order by position"
    ).fetchall()
    connection.close()
    under_way: Counter[str] = Counter()
    most = most_of_key = 0
    for _, key, events in rows:
        for event in decode_events(events.encode()):
            if isinstance(event, RunClaimed) and event.epoch == 1:
                under_way[key] += 1
            elif isinstance(event, RunFinished):
                under_way[key] -= 1
            most, most_of_key = max(most, under_way.total()), max(most_of_key, *under_way.values(), 0)
    return most, most_of_key


def by_effects(log: Path) -> int:
    """How many runs were between their first and their last step at once, at most."""
    active: set[str] = set()
    done: set[str] = set()
    most = 0
    for effect in read_effects(log):
        active.add(effect.run_id)
        most = max(most, len(active - done))
        if effect.op == f"add_slowly:{STEPS - 1}":
            done.add(effect.run_id)  # its last step has begun: from here on the lines do not tell
    return most


@pytest.mark.parametrize(("runs", "kills", "seed"), some([(60, 6, 1), *((600, 50, seed) for seed in range(4))], 1))
def test_a_queue_of_concurrency_five_never_runs_six_when_workers_are_killed(
    children: Children, tmp_path: Path, runs: int, kills: int, seed: int
) -> None:
    db, log = tmp_path / "runs.db", tmp_path / "effects"
    asyncio.run(put(db, runs, 0.02))

    def work() -> Child:
        limits = {"concurrency": 5, "per_key": 2}
        return children.start("work", tmp_path, db=str(db), effects=str(log), limits=limits)

    kill_at_random(work, log, workers=3, kills=kills, lines=runs * STEPS, seed=seed)
    journals, effects = audit(db), read_effects(log)
    assert len(journals) == runs
    for journal in journals.values():
        assert [event.status for event in journal.finished] == [RunStatus.COMPLETED]
        check_executions(journal, effects)
    assert by_commits(db) == (5, 2)
    assert by_effects(log) <= 5
