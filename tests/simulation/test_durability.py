"""What each durability mode may lose in a crash, and what it may not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import every
from perdure.kernel.events import WaitOpened
from perdure.kernel.policies.durability import Durability
from perdure.testing.simulation import Crash, Faults, Report, Simulation, every_crash
from tests.simulation.grammar import Tree, interpret, trees
from tests.simulation.test_promises import LIMIT, search, seeds

STEPS: Tree = ["loop", 12, ["step", 1]]
MODES: list[str | Durability] = ["sync", "relaxed", "async", "exit", "manual", every(3)]
# Each step takes some time, so that there is a time to die in.
FAULTS = Faults(durations=(0.01, 0.03))


def crashes_of(tree: Tree, mode: str | Durability, seed: int = 5) -> list[Report]:
    reports = every_crash(interpret(tree), seed=seed, faults=FAULTS, durability=mode, limit=LIMIT)
    return [report for report in reports if report.crashes]


@pytest.mark.parametrize("mode", ["sync", "relaxed"])
def test_a_mode_that_waits_loses_at_most_the_outcome_whose_append_was_under_way(mode: str) -> None:
    for report in crashes_of(STEPS, mode):
        assert len(report.lost) <= 1
        assert len(report.executions) <= 12 + 1


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_the_append_that_a_crash_follows_is_lost_by_no_mode(mode: str | Durability) -> None:
    for report in crashes_of(STEPS, mode):
        crashed = next(index for index, line in enumerate(report.trace) if " crash " in line)
        if " crash after " in report.trace[crashed]:
            stored = "".join(line for line in report.trace[:crashed] if " append " in line)
            assert not [lost.op for lost in report.lost if f'"StepSucceeded","op":"{lost.op}"' in stored]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_what_a_crash_loses_is_the_end_of_what_happened_and_never_its_middle(mode: str | Durability) -> None:
    lost_some = 0
    for report in crashes_of(STEPS, mode):
        # The body calls one step after another: the results that survived are the first ones.
        lost = sorted(int(lost.op.rpartition(":")[2]) for lost in report.lost)
        returned = len({e.op for e in report.executions if e.at <= report.lost[0].lost_at}) if lost else 0
        assert lost == list(range(returned - len(lost), returned))
        lost_some += bool(lost)
    assert lost_some > 0


def test_async_is_never_further_behind_than_its_lag() -> None:
    lag = Durability("async").lag
    reports = crashes_of(["loop", 40, ["step", 1]], "async")
    assert any(report.lost for report in reports)
    for report in reports:
        assert all(lost.lost_at - lost.returned_at <= lag + 1e-6 for lost in report.lost)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_every_n_loses_at_most_n_outcomes(n: int) -> None:
    for report in crashes_of(STEPS, every(n)):
        assert len(report.lost) <= n


def test_exit_keeps_everything_before_a_wait() -> None:
    tree: Tree = ["sequence", [["step", 1], ["step", 2], ["sleep", 31], ["step", 3], ["step", 4]]]
    for report in crashes_of(tree, "exit"):
        waits = [i for i, line in enumerate(report.trace) if '"WaitOpened"' in line]
        # Nothing of the first two steps is executed again once the wait is in the store.
        later = [line for line in report.trace[waits[0] :] if " execute " in line]
        assert not any("work:0" in line or "work:1" in line for line in later)


def test_manual_keeps_everything_before_a_checkpoint() -> None:
    tree: Tree = ["sequence", [["step", 1], ["step", 2], ["checkpoint"], ["step", 3], ["step", 4]]]
    for report in crashes_of(tree, "manual"):
        third = next(i for i, line in enumerate(report.trace) if " execute " in line and "work:2" in line)
        stored = "".join(line for line in report.trace[:third] if " append " in line)
        assert '"StepSucceeded","op":"work:0"' in stored
        assert '"StepSucceeded","op":"work:1"' in stored


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_wait_is_in_the_store_before_its_time_begins_to_count(mode: str | Durability) -> None:
    tree: Tree = ["sequence", [["step", 1], ["sleep", 31], ["step", 2]]]
    for report in crashes_of(tree, mode):
        events = [event for batch in report.journals["run-0"] for event in batch.events]
        assert sum(isinstance(event, WaitOpened) for event in events) == 1


@pytest.mark.parametrize("mode", MODES, ids=str)
@search(5)
@given(tree=trees, seed=seeds, number=st.integers(0, 5))
def test_every_mode_brings_any_workflow_to_its_end(mode: str | Durability, tree: Tree, seed: int, number: int) -> None:
    faults = Faults(delays=(0.0, 0.01), lost_replies=0.1, interference=0.1)
    for side in ("before", "after", "during"):
        simulation = Simulation(seed, faults=faults)
        simulation.run(interpret(tree), durability=mode, crashes=[Crash(number, side)], limit=LIMIT)
