"""Queues under kill -9: a queue of concurrency 5 never runs 6, whoever dies.

What ran at once is told twice, and by nobody that decides it: by the order of commits in the store, and by the lines
that steps write straight to disk.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure import Engine, RunStatus, connect
from perdure.kernel.events import RunClaimed, RunFinished, decode_events
from tests.crash import programs
from tests.crash.harness import Child, Children, audit, check_executions, read_effects, until
from tests.crash.test_storm import has_lines

STEPS = 5
KEYS = "abc"


async def put(db: Path, runs: int, seconds: float) -> None:
    async with Engine(f"sqlite:///{db}"):
        pass
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


def storm(children: Children, folder: Path, *, runs: int, kills: int, seed: int, seconds: float) -> None:
    db, log = folder / "runs.db", folder / "effects"
    asyncio.run(put(db, runs, seconds))
    chance = random.Random(seed)

    def work() -> Child:
        limits = {"concurrency": 5, "per_key": 2}
        return children.start("work", folder, db=str(db), effects=str(log), limits=limits)

    workers = [work(), work(), work()]
    try:
        for kill in range(kills):
            share = (kill + chance.random()) / (kills + 1)
            until(partial(has_lines, log, share * runs * STEPS), what=f"for the work before kill {kill}")
            victim = chance.randrange(len(workers))
            assert workers[victim].alive, workers[victim].log
            workers[victim].kill()
            workers[victim] = work()
        (folder / "drained").touch()
        for worker in workers:
            assert worker.result() == "drained"
    finally:
        for worker in workers:
            worker.kill()
    journals = audit(db)
    effects = read_effects(log)
    assert len(journals) == runs
    for journal in journals.values():
        assert [event.status for event in journal.finished] == [RunStatus.COMPLETED]
        check_executions(journal, effects)
    most, most_of_key = by_commits(db)
    assert (most, most_of_key) == (5, 2)
    assert by_effects(log) <= 5


def test_a_queue_of_concurrency_five_never_runs_six_when_workers_are_killed(children: Children, tmp_path: Path) -> None:
    storm(children, tmp_path, runs=60, kills=6, seed=1, seconds=0.02)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_a_queue_keeps_its_limits_through_a_long_storm(children: Children, tmp_path: Path, seed: int) -> None:
    storm(children, tmp_path, runs=600, kills=50, seed=seed, seconds=0.02)
