"""Two engines, one run: whoever stood still while another took over cannot add one event."""

from __future__ import annotations

import pytest

from perdure.kernel.events import RunClaimed
from perdure.testing.simulation import STORMY, Crash, Faults, Pause, Report, Simulation
from perdure.testing.simulation.faults import Side
from tests.simulation.grammar import Tree, interpret

TREE: Tree = ["sequence", [["step", 1], ["steps", [2, 3]], ["sleep", 7], ["retried", 4, 1], ["step", 5]]]
SIDES: tuple[Side, ...] = ("before", "after")


def claims(report: Report) -> list[RunClaimed]:
    return [e for batch in report.journals["run-0"] for e in batch.events if isinstance(e, RunClaimed)]


def run(seed: int, pauses: list[Pause]) -> Report:
    # Whoever writes without owning the run is found by the monitor, at that very append.
    return Simulation(seed, faults=Faults()).run(interpret(TREE), engines=2, pauses=pauses, limit=600.0)


@pytest.mark.parametrize("side", SIDES)
def test_a_machine_that_pauses_at_an_append_is_replaced_and_adds_nothing_when_it_comes_back(side: Side) -> None:
    taken_over = 0
    appends = run(3, []).appends
    assert appends > 8
    for number in range(1, appends):
        report = run(3, [Pause(number, 60.0, side)])
        owners = [claim.owner for claim in claims(report)]
        assert [claim.epoch for claim in claims(report)] == list(range(1, len(owners) + 1))
        taken_over += "m1" in owners
    # At the last append there may be nothing left to take over.
    assert taken_over >= appends - 2


def test_a_zombie_learns_of_its_replacement_from_a_conflict() -> None:
    report = run(3, [Pause(2, 60.0, "before")])
    assert any("m0 append" in line and "conflict" in line for line in report.trace)
    assert claims(report)[-1].owner == "m1"


def test_a_pause_shorter_than_the_lease_changes_no_owner() -> None:
    report = run(3, [Pause(2, 1.0, "before")])
    assert [claim.owner for claim in claims(report)] == ["m0"]


def test_a_machine_whose_clock_runs_ahead_takes_over_too_early_and_nothing_breaks() -> None:
    takeovers = 0
    for seed in range(25):
        faults = Faults(clock_jumps=0.3, delays=(0.0, 0.01, 0.2))
        report = Simulation(seed, faults=faults).run(interpret(TREE), engines=3, limit=50_000.0)
        takeovers += len(claims(report)) > 1
    assert takeovers > 0


def test_machines_that_pause_and_die_in_turn_bring_the_run_to_its_end() -> None:
    for seed in range(15):
        pauses = [Pause(2, 20.0, "after"), Pause(7, 20.0, "before")]
        report = Simulation(seed, faults=STORMY).run(
            interpret(TREE), engines=2, pauses=pauses, crashes=[Crash(4, "during"), Crash(10)], limit=50_000.0
        )
        assert report.results["run-0"].status == "completed"
