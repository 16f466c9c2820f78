"""Fallbacks, skipped steps and sagas, with a crash at every append and in storms."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import RunStatus
from perdure.testing.simulation import STORMY, Faults, Simulation, every_crash
from tests.simulation.grammar import RULES, Tree, interpret, saved

TREES: dict[str, Tree] = {
    "a value": ["saved", 3],
    "another call": ["saved", 4],
    "another call that fails": ["saved", 5],
    "skipped": ["dispensable", 2],
    "side by side": ["gather", [["saved", 3], ["saved", 4], ["dispensable", 1]]],
    "given up": ["timeout", 2, ["saved", 4]],
    "undone": ["saga", ["uncaught", 1], 2],
    "undone in part": ["saga", ["uncaught", 1], 3],
    "undone in a race": ["race", [["slow", 1], ["saga", ["slow", 9], 2]]],
    "undone after a timeout": ["timeout", 2, ["saga", ["sequence", [["step", 1], ["slow", 9]]], 2]],
    "one in another": ["saga", ["saga", ["uncaught", 1], 2], 4],
}


@pytest.mark.parametrize("name", TREES)
def test_it_comes_to_an_end_that_its_journal_explains_wherever_it_is_killed(name: str) -> None:
    reports = list(every_crash(interpret(TREES[name]), seed=7, faults=Faults(), limit=600.0))
    assert len(reports) > 3


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("engines", [1, 2])
def test_it_survives_storms(name: str, engines: int) -> None:
    for seed in range(3):
        Simulation(seed, faults=STORMY).run(interpret(TREES[name]), engines=engines, limit=20_000.0)


def test_a_fallback_waits_for_the_last_attempt_and_no_longer() -> None:
    sim = Simulation(seed=1, faults=Faults(durations=(0.0,)))

    async def scenario() -> tuple[Any, list[float]]:
        async with sim.engine([interpret], rules=RULES) as engine:
            result = await engine.run(interpret(["saved", 3]), id="it")
            (view,) = await engine.steps("it")
            begun = [(attempt.started_at - view.started_at).total_seconds() for attempt in view.attempts]
            assert view.name == saved.name
            return result, begun

    result, begun = sim.play(scenario())
    assert result.status is RunStatus.COMPLETED
    assert result.output == [3, 3]
    assert 0.15 <= begun[1] <= 0.35, "the backoff of the rule, with jitter"
    assert begun[2] - begun[1] < 0.05, "at once"
