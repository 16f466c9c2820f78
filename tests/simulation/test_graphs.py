"""Graphs in the storm: by themselves, and run by code that races, times out and gives them up."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import RunStatus
from perdure.testing.simulation import STORMY, Crash, Faults, Pause, Report, Simulation
from perdure.testing.simulation.faults import Side
from tests.simulation.grammar import GRAPH, LIMITS, Tree, interpret

TREE: Tree = [
    "gather",
    [
        ["graph", 3],
        ["child", ["graph", 4]],
        ["race", [["graph", 2], ["sleep", 3]]],
        ["timeout", 2, ["graph", 6]],
        ["saga", ["graph", 5], 1],
    ],
]
SIDES: tuple[Side, ...] = ("before", "after")


def run(seed: int, faults: Faults | None = None, **options: Any) -> Report:
    """Both at once; every append is checked by the monitor, also those of an owner that has been replaced."""
    report = Simulation(seed, faults=faults or Faults()).run(
        interpret(TREE), GRAPH(n=7), programs=[interpret, GRAPH], limit=50_000.0, limits=LIMITS, **options
    )
    assert {result.status for result in report.results.values()} == {RunStatus.COMPLETED}
    values: Any = report.results["run-1"].output
    assert (values["base"] // 10_000, [one // 10_000 for one in values["each"]]) == (7, [7, 7])
    return report


@pytest.mark.parametrize("side", SIDES)
def test_a_zombie_adds_nothing_to_a_graph(side: Side) -> None:
    appends = run(3, engines=2).appends
    assert appends > 20
    for number in range(1, appends, 5):
        run(3, engines=2, pauses=[Pause(number, 60.0, side)])


def test_a_crash_at_any_append_loses_nothing_of_a_graph() -> None:
    appends = run(5).appends
    for number in range(0, appends, 4):
        run(5, crashes=[Crash(number, ("before", "during", "after")[number % 3])])


def test_lost_replies_conflicts_and_machines_that_die_in_turn() -> None:
    for seed in range(6):
        pauses = [Pause(2, 20.0, "after"), Pause(9, 20.0, "before")]
        run(seed, STORMY, engines=2, pauses=pauses, crashes=[Crash(5, "during"), Crash(14)])
