"""A storm: many runs, two workers on one file, one of them killed at random again and again.

Every run must end, once; every journal must be whole; and every execution of a step beyond the first must be explained
by a kill that hit it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure import RunStatus
from perdure.kernel.events import RunClaimed, RunFinished, StepFailed, StepsHeld, StepStarted, StepSucceeded
from tests.amounts import some
from tests.crash import programs
from tests.crash.harness import (
    Child,
    Children,
    Effect,
    Journal,
    audit,
    check_executions,
    effects_by_run,
    kill_at_random,
    queue,
)

STEPS = 5


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
            assert isinstance(event, RunClaimed | RunFinished | StepsHeld) or event is journal.events[0]
            assert not isinstance(event, StepFailed)
    return died


@pytest.mark.parametrize(
    ("runs", "kills", "seed", "seconds"), some([(60, 6, 1, 0.02), (1000, 60, 1, 0.03), (1000, 60, 2, 0.03)], 1)
)
def test_no_run_is_lost_or_ends_twice_when_workers_are_killed_at_random(
    children: Children, tmp_path: Path, runs: int, kills: int, seed: int, seconds: float
) -> None:
    db, log = tmp_path / "runs.db", tmp_path / "effects"
    asyncio.run(queue(f"sqlite:///{db}", {f"run-{n}": programs.five(n, seconds) for n in range(runs)}))

    def work() -> Child:
        return children.start("work", tmp_path, db=str(db), effects=str(log), max_concurrency=16)

    kill_at_random(work, log, workers=2, kills=kills, lines=runs * STEPS, seed=seed)
    effects, journals = effects_by_run(log), audit(db)
    assert set(journals) == {f"run-{n}" for n in range(runs)}, "a run was lost"
    died = sum(check_run(journal, effects[journal.run_id], kills) for journal in journals.values())
    assert died >= kills // 2, "the kills hit nothing"
