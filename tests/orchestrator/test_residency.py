"""The table of runs: every walk over it keeps one state and at most one driver per run, and answers every waiter."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from perdure.engine.driver import Driver
from perdure.errors import Corrupt
from perdure.kernel.events import NULL, RunStarted
from perdure.kernel.policies.queues import Queue
from perdure.kernel.state import RunState
from perdure.orchestrator.admission import Turn, turn_of
from perdure.orchestrator.residency import (
    ABSENT,
    ACTIVE,
    CATCHING_UP,
    LOADING,
    MAY_ENTER,
    PARKED_HERE,
    PARKING,
    STARTING,
    SUSPECT,
    TRANSITIONS,
    UNREADABLE,
    WARM,
    IllegalTransition,
    Residency,
    RunSlot,
    RunTable,
)
from perdure.ports.journal import Full

RUNS = ["a", "b", "c"]
WITH_DRIVER = {ACTIVE, WARM, CATCHING_UP}


class NotAccepted(Exception):
    pass


def driver_of(run_id: str) -> Driver:
    return cast(Driver, SimpleNamespace(run_id=run_id))


class Walk(RuleBasedStateMachine):
    """Random moves of a few runs, beside the simplest model of where each of them is."""

    @initialize()
    def open(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.runs = RunTable(self.loop, NotAccepted)
        self.model: dict[str, Residency] = dict.fromkeys(RUNS, ABSENT)
        self.drivers: dict[str, Driver] = {}
        self.left: list[RunSlot] = []
        # Every waiter, with the run and the states in which its answer may still come.
        self.waiters: list[tuple[asyncio.Future[Any], str, set[Residency]]] = []

    def slot(self, run_id: str) -> RunSlot:
        return self.runs.slot(run_id)

    @rule(run_id=st.sampled_from(RUNS), state=st.sampled_from(list(Residency)), new=st.booleans())
    def move(self, run_id: str, state: Residency, new: bool) -> None:
        slot, old = self.slot(run_id), self.model[run_id]
        driver = driver_of(run_id) if new else None
        legal = state in TRANSITIONS[old] and (driver is None or state is ACTIVE)
        if state in WITH_DRIVER and driver is None and run_id not in self.drivers:
            legal = False
        if not legal:
            before = (slot.state, slot.driver, slot.accepted, slot.caught_up, slot.admitted)
            with pytest.raises(IllegalTransition, match=f"{run_id} cannot move from {old.value} to {state.value}"):
                self.runs.move(slot, state, driver)
            assert (slot.state, slot.driver, slot.accepted, slot.caught_up, slot.admitted) == before
            return
        self.runs.move(slot, state, driver)
        self.model[run_id] = state
        if driver is not None:
            self.drivers[run_id] = driver
        elif state not in WITH_DRIVER:
            self.drivers.pop(run_id, None)
        if state is STARTING:
            assert slot.accepted is not None
            self.waiters.append((slot.accepted, run_id, {STARTING, PARKING}))
        if state is CATCHING_UP:
            assert slot.caught_up is not None
            self.waiters.append((slot.caught_up, run_id, {CATCHING_UP}))
        if state is ABSENT:
            self.left.append(slot)

    @precondition(lambda self: any(s is STARTING and r not in self.drivers for r, s in self.model.items()))
    @rule()
    def open_a_body(self) -> None:
        run_id = next(r for r, s in self.model.items() if s is STARTING and r not in self.drivers)
        self.drivers[run_id] = driver_of(run_id)
        self.runs.begin(self.slot(run_id), self.drivers[run_id])
        with pytest.raises(IllegalTransition):
            self.runs.begin(self.slot(run_id), driver_of(run_id))

    @precondition(lambda self: LOADING in self.model.values())
    @rule()
    def expect_an_admission(self) -> None:
        slot = self.slot(next(r for r, s in self.model.items() if s is LOADING))
        if slot.admitted is None:
            slot.admitted = self.loop.create_future()
            self.waiters.append((slot.admitted, slot.run_id, {LOADING, ACTIVE, CATCHING_UP}))

    @rule(run_id=st.sampled_from(RUNS), full=st.sampled_from([None, Full()]))
    def admit(self, run_id: str, full: Full | None) -> None:
        admitted = self.slot(run_id).admitted
        self.runs.admit(self.slot(run_id), full)
        assert admitted is None or admitted.result() is full

    @rule(run_id=st.sampled_from(RUNS))
    def refuse(self, run_id: str) -> None:
        accepted = self.slot(run_id).accepted
        assert self.runs.refuse(self.slot(run_id), NotAccepted()) is (accepted is not None)
        assert accepted is None or isinstance(accepted.exception(), NotAccepted)

    @rule(run_id=st.sampled_from(RUNS))
    def damage(self, run_id: str) -> None:
        legal = UNREADABLE in TRANSITIONS[self.model[run_id]]
        self.runs.mark_unreadable(run_id, Corrupt("it", "damaged", run_id))
        if legal:
            self.model[run_id] = UNREADABLE
            assert run_id in self.runs.unreadable

    @precondition(lambda self: self.left)
    @rule(state=st.sampled_from([STARTING, LOADING, PARKING]))
    def move_a_slot_that_was_left(self, state: Residency) -> None:
        slot = self.left[-1]
        if slot.state is ABSENT and self.model[slot.run_id] is not ABSENT:
            with pytest.raises(IllegalTransition):
                self.runs.move(slot, state)

    @invariant()
    def each_run_has_one_state(self) -> None:
        for run_id, state in self.model.items():
            assert self.runs.state(run_id) is state
            assert [s for s in Residency if run_id in self.runs.of(s)] == ([] if state is ABSENT else [state])
            assert {s for s in Residency if self.runs.may(run_id, s)} == TRANSITIONS[state]
        assert self.runs.known() == {r for r, state in self.model.items() if state not in MAY_ENTER}

    @invariant()
    def each_run_has_at_most_one_driver(self) -> None:
        assert self.runs.drivers == self.drivers
        for run_id, state in self.model.items():
            driver = self.slot(run_id).driver
            assert driver is self.drivers.get(run_id)
            assert driver is None or self.runs.has(driver)
            assert driver is not None or state not in WITH_DRIVER
        assert not self.runs.has(driver_of("a"))
        assert self.runs.empty is not (self.drivers != {} or STARTING in self.model.values())

    @invariant()
    def every_waiter_is_answered_or_may_be(self) -> None:
        for waiter, run_id, states in self.waiters:
            assert waiter.done() or self.model[run_id] in states
            if waiter.done():
                waiter.exception()

    def teardown(self) -> None:
        self.loop.close()


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


async def test_the_caller_of_a_start_is_answered_wherever_the_run_goes() -> None:
    for states, accepted in [
        ((ACTIVE,), True),
        ((ABSENT,), False),
        ((PARKING, PARKED_HERE), True),
        ((PARKING, UNREADABLE), False),
    ]:
        runs = RunTable(asyncio.get_running_loop(), NotAccepted)
        slot = RunSlot("a")
        runs.move(slot, STARTING)
        waiter = slot.accepted
        assert waiter is not None
        runs.begin(slot, driver_of("a"))
        for state in states:
            assert not waiter.done()
            runs.move(slot, state)
        assert (waiter.exception() is None) is accepted
        assert ("a" in runs.drivers) is (states == (ACTIVE,))


async def test_a_warm_run_that_is_kept_again_is_the_last_to_be_evicted() -> None:
    runs = RunTable(asyncio.get_running_loop(), NotAccepted)
    for run_id in ("a", "b"):
        runs.move(runs.slot(run_id), LOADING)
        runs.move(runs.slot(run_id), ACTIVE, driver_of(run_id))
        runs.move(runs.slot(run_id), WARM)
    runs.move(runs.slot("a"), ACTIVE)
    runs.move(runs.slot("a"), WARM)
    assert list(runs.of(WARM)) == ["b", "a"]


async def test_a_suspect_is_loaded_only_on_trial_and_stays_known_until_then() -> None:
    runs = RunTable(asyncio.get_running_loop(), NotAccepted)
    runs.move(runs.slot("a"), LOADING)
    runs.move(runs.slot("a"), SUSPECT)
    assert SUSPECT not in MAY_ENTER
    assert runs.known() == {"a"}
    runs.move(runs.slot("a"), LOADING)
    runs.move(runs.slot("a"), ABSENT)
    assert runs.known() == set()


@pytest.mark.parametrize(
    ("options", "admitted", "turn"),
    [
        ({}, False, Turn.NOW),
        ({"not_before": 9.0}, False, Turn.NOW),
        ({"not_before": 11.0}, False, Turn.LATER),
        ({"queue": "q"}, False, Turn.IN_QUEUE),
        ({"queue": "q"}, True, Turn.NOW),
        ({"queue": "q", "not_before": 11.0}, True, Turn.IN_QUEUE),
    ],
)
def test_when_a_run_may_begin_is_a_question_of_its_start(options: dict[str, Any], admitted: bool, turn: Turn) -> None:
    state = RunState("r")
    state.fold(RunStarted("id", "flow", "1", NULL, **options), 1.0)
    assert turn_of(state, Queue("q") if admitted else None, 10.0) is turn
