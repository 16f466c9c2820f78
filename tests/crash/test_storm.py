"""A storm: many runs, two workers on one file, one of them killed at random again and again.

Every run must end, once; every journal must be whole; and every execution of a step beyond the first must be explained
by a kill that hit it.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from functools import partial
from pathlib import Path

import pytest

from perdure import Engine, RunStatus, connect
from perdure.kernel.events import RunClaimed, RunFinished, StepFailed, StepStarted, StepSucceeded
from tests.crash import programs
from tests.crash.harness import Child, Children, Effect, Journal, audit, check_executions, read_effects, until

STEPS = 5


async def queue(db: Path, runs: int, seconds: float) -> None:
    """Create the store and queue runs in it, as a client does that executes nothing itself."""
    async with Engine(f"sqlite:///{db}"):
        pass
    async with connect(f"sqlite:///{db}") as client:
        for n in range(runs):
            _ = await client.start(programs.five(n, seconds), id=f"run-{n}")


def check_run(journal: Journal, effects: list[Effect], kills: int) -> int:
    """One run of the storm, whole and explained. Says how many attempts died."""
    n = int(journal.id.removeprefix("run-"))
    assert [e.status for e in journal.finished] == [RunStatus.COMPLETED]
    assert bytes(journal.finished[0].value) == str(n + sum(range(STEPS))).encode()
    assert journal.outcomes == [f"add_slowly:{i}" for i in range(STEPS)]
    executed = check_executions(journal, effects)
    # Each takeover makes one more attempt of what was under way, and there is no other reason for one.
    takeovers = journal.claims - 1
    assert takeovers <= kills
    died = sum(times - 1 for times in journal.started.values())
    assert died <= takeovers
    for op, times in journal.started.items():
        assert 1 <= executed[op] <= times, f"{op} of {journal.id} was executed {executed[op]} times"
    # The value that counts is that of an attempt which was executed to its end.
    open_since: dict[str, int] = {}
    for event in journal.events:
        if isinstance(event, StepStarted):
            assert event.attempt == open_since.get(event.op, 0) + 1
            open_since[event.op] = event.attempt
        elif isinstance(event, StepSucceeded):
            assert event.attempt == open_since[event.op]
        else:
            assert isinstance(event, RunClaimed | RunFinished) or event is journal.events[0]
            assert not isinstance(event, StepFailed)
    return died


def storm(children: Children, folder: Path, *, runs: int, kills: int, seed: int, seconds: float) -> None:
    """Let it happen, and check what is left."""
    db, log = folder / "runs.db", folder / "effects"
    asyncio.run(queue(db, runs, seconds))
    chance = random.Random(seed)

    def work() -> Child:
        return children.start("work", folder, db=str(db), effects=str(log), max_concurrency=16)

    workers = [work(), work()]
    try:
        for kill in range(kills):
            # Spread over the whole of the work: the log grows by one line a step.
            share = (kill + chance.random()) / (kills + 1)
            until(partial(has_lines, log, share * runs * STEPS), what=f"for the work before kill {kill}")
            victim = chance.randrange(2)
            assert workers[victim].alive, workers[victim].log
            workers[victim].kill()
            workers[victim] = work()
        (folder / "drained").touch()
        for worker in workers:
            assert worker.result() == "drained"
    finally:
        for worker in workers:
            worker.kill()
    by_run: dict[str, list[Effect]] = defaultdict(list)
    for effect in read_effects(log):
        by_run[effect.run_id].append(effect)
    journals = audit(db)
    assert set(journals) == {f"run-{n}" for n in range(runs)}, "a run was lost"
    died = sum(check_run(journal, by_run[journal.run_id], kills) for journal in journals.values())
    assert died >= kills // 2, "the kills hit nothing"


def has_lines(path: Path, count: float) -> bool:
    """Whether a file has so many lines by now."""
    return path.exists() and path.read_bytes().count(b"\n") >= count


def test_no_run_is_lost_or_ends_twice_when_workers_are_killed_at_random(children: Children, tmp_path: Path) -> None:
    storm(children, tmp_path, runs=60, kills=6, seed=1, seconds=0.02)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
def test_a_thousand_runs_survive_sixty_kills(children: Children, tmp_path: Path, seed: int) -> None:
    storm(children, tmp_path, runs=1000, kills=60, seed=seed, seconds=0.03)
