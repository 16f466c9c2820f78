"""Faults that the searches have found, each with the smallest workflow that showed it, under many schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from perdure import every
from perdure.kernel.policies.durability import Durability
from perdure.testing.simulation import STORMY, Crash, Faults, Message, Sender, Simulation, every_crash
from tests.simulation.grammar import LIMITS, Tree, interpret, tellers
from tests.simulation.test_promises import LIMIT, LONG, check

SLOW = Faults(delays=(0.0, 0.002, 0.3), interference=0.2)
LOSSY = Faults(delays=(0.0, 0.002, 0.3), interference=0.2, lost_replies=0.1)
# How many schedules are tried; `make soak` tries more.
SCHEDULES, MORE_SCHEDULES = 40, 200


@pytest.fixture(autouse=True, params=[SCHEDULES, pytest.param(MORE_SCHEDULES, marks=pytest.mark.soak)])
def schedules(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.SCHEDULES", request.param)


def run_often(tree: Tree, faults: Faults, **options: Any) -> None:
    for seed in range(SCHEDULES):
        check(Simulation(seed, faults=faults).run(interpret(tree), **{"limit": LIMIT, **options}))


def test_a_claim_that_meets_a_foreign_event_is_made_again() -> None:
    run_often(["uncaught", 1], SLOW, crashes=[Crash(1, "during")])


def test_a_conflict_does_not_turn_a_timeout_into_an_error_of_the_step() -> None:
    run_often(["timeout", 5, ["plain", 1]], SLOW)
    run_often(["timeout", 1, ["retried", 1, 1]], STORMY, limit=LONG)


def test_a_run_whose_acceptance_got_no_reply_goes_on() -> None:
    run_often(["step", 1], Faults(lost_replies=0.5), limit=LONG)


def test_a_store_out_of_reach_after_a_conflict_parks_nothing() -> None:
    run_often(["loop", 3, ["step", 1]], Faults(refusals=0.3, interference=0.3), limit=LONG)


def test_what_happens_while_an_append_is_refused_is_written_after_it() -> None:
    run_often(["steps", [1, 2, 3]], Faults(refusals=0.4), limit=LONG)


def test_a_checkpoint_that_ends_a_race_does_not_start_what_lost_it() -> None:
    run_often(["race", [["gather", [["step", 1]]], ["timeout", 1, ["checkpoint"]]]], Faults())


LOST_RACE = ["race", [["finally", ["state", 1], ["checkpoint"]], ["step", 1]]]


@pytest.mark.parametrize(
    "tree",
    [
        ["queue", [["step", 1], LOST_RACE]],
        ["race", [["timeout", 1, ["step", 1]], ["saga", ["checkpoint"], 1], ["saga", ["uncaught", 1], 1]]],
    ],
    ids=["another step after it", "its compensation"],
)
def test_a_step_that_lost_a_race_to_a_checkpoint_is_not_missed(tree: Tree) -> None:
    for report in every_crash(interpret(tree), seed=0, faults=Faults(), limit=LIMIT):
        check(report)


@pytest.mark.parametrize("mode", ["sync", "async", "exit"])
def test_a_step_that_was_given_up_is_not_made_again_after_a_conflict(mode: str) -> None:
    run_often(["timeout", 2, ["gather", [["once", 1], ["step", 1]]]], LOSSY, durability=mode)
    run_often(["sequence", [["step", 1], ["left", ["once", 1]], ["step", 2]]], LOSSY, durability=mode)


def test_an_attempt_that_ends_between_two_conflicts_is_not_lost() -> None:
    loop = ["loop", 2, ["event", ["retried", 1, 1], ["step", 1]]]
    run_often(["gather", [["loop", 2, ["gather", [["once", 1], ["retried", 1, 1]]]], loop]], LOSSY, durability=every(1))


def test_a_body_that_starts_tasks_on_its_way_out_leaves_nothing_behind() -> None:
    run_often(["finally", ["step", 1], ["gather", [["sleep", 0], ["step", 1]]]], Faults(), crashes=[Crash(1)])
    run_often(["finally", ["step", 1], ["event", ["step", 2], ["step", 3]]], Faults(), crashes=[Crash(1)])


def test_a_child_that_is_asked_to_end_begins_nothing_in_the_same_breath() -> None:
    race = ["race", [["timeout", 1, ["step", 1]], ["child", ["loop", 2, ["timeout", 1, ["step", 1]]]]]]
    run_often(race, STORMY, limit=LONG)


# --- told from outside -----------------------------------------------------------------------------------------------


def tell(*senders: Sender) -> None:
    for seed in range(SCHEDULES):
        invocation = interpret(["steps", [1, 2]])
        Simulation(seed, faults=Faults(delays=(0.0, 0.01, 0.1))).run(invocation, senders=senders, limit=LIMIT)


def test_a_caller_in_the_engines_process_does_not_hear_of_an_end_that_somebody_elsewhere_can_still_prevent() -> None:
    wait = [Message("cancel", wait=n / 50) for n in range(6)]
    tell(Sender(wait, local=True), Sender([Message("cancel", wait=0.12)]))


def test_a_signal_sent_twice_in_the_engines_process_is_no_duplicate_before_it_is_in_the_store() -> None:
    sent = Message("signal", "nobody", wait=0.05)
    tell(*[Sender([sent], local=True, ids="same") for _ in range(2)], Sender([Message("signal", "nobody", wait=0.05)]))


def test_time_goes_by_while_a_caller_waits_for_a_journal_that_is_read_anew() -> None:
    sent = [Message("signal", "nobody") for _ in range(5)]
    for seed in range(SCHEDULES // 2):
        senders = [Sender(sent, local=True), Sender(sent)]
        Simulation(seed, faults=SLOW).run(interpret(["steps", [1, 2]]), senders=senders, limit=LIMIT)


def test_what_somebody_said_is_heard_although_the_store_was_out_of_reach_when_it_was_looked_for() -> None:
    messages = [Message("pause", wait=0.05), Message("resume", wait=1.0)]
    for seed in range(SCHEDULES):
        faults = Faults(durations=(0.1,), delays=(0.0, 0.1), refusals=0.3)
        Simulation(seed, faults=faults).run(interpret(["steps", [1, 2]]), senders=[Sender(messages)], limit=LIMIT)


def while_told(tree: Tree, mode: str | Durability, seeds: Sequence[int], refusals: float = 0.0) -> None:
    """Run a tree while people tell it things, on an engine that looks for that all the time."""
    for seed in seeds:
        shaky = Faults(delays=(0.0, 0.0, 0.002, 0.1, 0.3), interference=0.3, lost_replies=0.05, refusals=refusals)
        check(
            Simulation(f"{seed} told", faults=shaky).run(
                interpret(tree), senders=tellers(seed), limit=LONG, limits=LIMITS, watch=0.05, durability=mode
            )
        )


@pytest.mark.parametrize("mode", ["sync", "async", every(1)], ids=str)
def test_a_lock_that_was_taken_while_the_journal_was_read_is_not_waited_for(mode: str | Durability) -> None:
    while_told(["loop", 8, ["free", ["state", 1]]], mode, range(12))


@pytest.mark.parametrize("mode", ["relaxed", "async", every(1), every(3)], ids=str)
def test_a_large_result_that_was_stored_before_its_run_came_to_it_again_is_not_lost(mode: str | Durability) -> None:
    while_told(["loop", 3, ["gather", [["large", 1], ["large", 2], ["step", 3]]]], mode, range(8), refusals=0.1)


@pytest.mark.parametrize("mode", ["exit", "async", every(1)], ids=str)
def test_chunks_that_a_driver_could_not_write_are_written_by_the_next_in_their_order(mode: str | Durability) -> None:
    while_told(["loop", 3, ["gather", [["streamed", 7], ["once_large", 2], ["once", 3]]]], mode, range(8))
