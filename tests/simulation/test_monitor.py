"""The checks bite: a simulation of an engine that breaks a promise says so."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from perdure import step, workflow
from perdure.kernel.events import (
    AnyEvent,
    Batch,
    RunClaimed,
    RunFinished,
    RunStarted,
    RunStatus,
    StepStarted,
    StepSucceeded,
    WaitOpened,
)
from perdure.kernel.policies.durability import Durability
from perdure.kernel.projection import row
from perdure.kernel.state import RunState
from perdure.orchestrator.loader import Loader
from perdure.orchestrator.orchestrator import Orchestrator
from perdure.ports.journal import Append, Appended, Outcome
from perdure.stores.memory.store import MemoryJournal
from perdure.testing.simulation import Crash, Faults, Pause, PromiseBroken, Simulation, every_crash
from perdure.testing.simulation.monitor import Monitor
from perdure.testing.simulation.world import Machine, World
from tests.simulation.grammar import interpret

STARTED = RunStarted("r", "p", "1", Raw(b"{}"))
DONE = StepSucceeded("x:0", Raw(b"1"))


class Desk:
    """A monitor and the appends it is shown."""

    def __init__(self) -> None:
        world = World(1, 0.0)
        self.monitor = Monitor(world)
        self.machines = [Machine(world, "m0"), Machine(world, "m1")]
        self.state = RunState("run")
        self.at = 1.0

    def append(self, machine: int, *events: AnyEvent, seq: int | None = None, right: bool = True) -> list[str]:
        """Show an append; the violations so far."""
        start = self.state.next_seq
        for event in events:
            self.state.fold(event, self.at)
        stored = row(self.state)
        if not right:
            stored = msgspec.structs.replace(stored, owner="somebody else")
        batch = Batch(start if seq is None else seq, self.at, events)
        append = Append("run", start, [batch], stored)
        self.monitor.answered(self.machines[machine], [append], [Appended()], {"run": stored})
        return self.monitor.violations

    def close(self) -> None:
        for machine in self.machines:
            machine.loop.dispose()


@pytest.fixture
def desk() -> Any:
    desk = Desk()
    assert desk.append(0, STARTED, RunClaimed("m0", 1, "a"), StepStarted("x:0")) == []
    yield desk
    desk.close()


def test_the_monitor_is_silent_about_a_run_as_it_should_be(desk: Desk) -> None:
    assert desk.append(0, DONE, RunFinished(RunStatus.COMPLETED)) == []


def test_the_monitor_sees_an_event_of_an_owner_that_was_replaced(desk: Desk) -> None:
    assert desk.append(1, RunClaimed("m1", 2, "b")) == []
    assert "not the owner" in desk.append(0, DONE)[0]


def test_the_monitor_sees_a_wrong_epoch(desk: Desk) -> None:
    assert "epoch 3 follows 1" in desk.append(1, RunClaimed("m1", 3, "b"))[0]


def test_the_monitor_sees_a_second_outcome(desk: Desk) -> None:
    desk.append(0, DONE)
    assert "has an outcome already" in desk.append(0, DONE)[0]


def test_the_monitor_sees_a_step_that_begins_again_after_its_outcome(desk: Desk) -> None:
    desk.append(0, DONE)
    assert "started again" in desk.append(0, StepStarted("x:0", 2))[0]


def test_the_monitor_sees_an_outcome_of_an_attempt_that_never_began(desk: Desk) -> None:
    assert "never started" in desk.append(0, StepSucceeded("y:0", Raw(b"1")))[0]


def test_the_monitor_sees_an_attempt_that_was_left_out(desk: Desk) -> None:
    assert "attempt 3 of x:0 follows 1" in desk.append(0, StepStarted("x:0", 3))[0]


def test_the_monitor_sees_an_event_after_the_end(desk: Desk) -> None:
    desk.append(0, RunFinished(RunStatus.COMPLETED))
    assert "follows the end" in desk.append(0, WaitOpened("sleep:0", "timer", 1.0))[0]


def test_the_monitor_sees_a_gap(desk: Desk) -> None:
    assert "gap" in desk.append(0, DONE, seq=5)[0]


def test_the_monitor_sees_time_that_runs_backwards(desk: Desk) -> None:
    desk.at = 0.5
    assert "backwards" in desk.append(0, DONE)[0]


def test_the_monitor_sees_a_row_that_the_journal_does_not_imply(desk: Desk) -> None:
    assert "not what its journal implies" in desk.append(0, DONE, right=False)[0]


def test_the_monitor_sees_a_call_of_a_step_whose_outcome_is_recorded(desk: Desk) -> None:
    desk.append(0, DONE)
    desk.monitor.launching(desk.machines[0], "run", "x:0", 1)
    assert "although its outcome is recorded" in desk.monitor.violations[0]


def test_the_monitor_sees_a_call_before_its_start_is_stored(desk: Desk) -> None:
    desk.monitor.launching(desk.machines[0], "run", "y:0", 1)
    assert "before its start is in the store" in desk.monitor.violations[0]


# --- engines that are broken on purpose -----------------------------------------------------------------------------


def test_a_store_that_takes_appends_at_any_place_is_found_out_by_a_zombie(monkeypatch: pytest.MonkeyPatch) -> None:
    careful = MemoryJournal._append

    def careless(self: MemoryJournal, append: Append) -> Outcome:
        head = self.head_of.get(append.run_id)
        if head is None or head.next_seq == append.expected_next:
            return careful(self, append)
        moved = head.next_seq - append.expected_next
        batches = [Batch(batch.seq + moved, max(batch.at, head.at), batch.events) for batch in append.batches]
        return careful(self, Append(append.run_id, head.next_seq, batches, append.row))

    monkeypatch.setattr(MemoryJournal, "_append", careless)
    with pytest.raises(PromiseBroken, match=r"not the owner|accepted at"):
        for number in range(1, 8):
            Simulation(3, faults=Faults()).run(
                interpret(["loop", 4, ["step", 1]]), engines=2, pauses=[Pause(number)], limit=600.0
            )


def test_an_engine_that_calls_steps_before_their_start_is_stored_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Durability, "waits", False)
    with pytest.raises(PromiseBroken, match="before its start is in the store"):
        Simulation(1, faults=Faults(delays=(0.1,))).run(interpret(["loop", 3, ["step", 1]]))


def test_an_engine_that_accepts_what_is_not_stored_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Orchestrator.start

    async def hasty(self: Orchestrator, *run: Any) -> None:
        self.spawn(start(self, *run))

    monkeypatch.setattr(Orchestrator, "start", hasty)
    with pytest.raises(PromiseBroken, match="was accepted and is not in the store"):
        Simulation(1).run(interpret(["step", 1]), crashes=[Crash(0)])


def test_an_error_in_the_engine_that_nobody_notices_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Loader._begin

    def failing(self: Loader, *args: Any) -> None:
        async def fail() -> None:
            raise ZeroDivisionError

        self._session.spawn(fail())
        begin(self, *args)

    monkeypatch.setattr(Loader, "_begin", failing)
    with pytest.raises(PromiseBroken, match="ZeroDivisionError"):
        Simulation(1).run(interpret(["step", 1]), limit=60.0)


calls = 0


@step
async def add(n: int) -> int:
    return n + 1


@workflow
async def moody() -> int:
    """Does something else each time it is read: what a workflow must not do."""
    global calls
    calls += 1
    return await add(calls)


@workflow
async def idle() -> int:
    await asyncio.Event().wait()
    return 1


def test_a_workflow_that_is_not_deterministic_is_found_out_without_a_crash() -> None:
    with pytest.raises(PromiseBroken, match="cannot be replayed"):
        Simulation(1).run(moody())


def test_a_workflow_that_is_not_deterministic_is_found_out_by_a_crash() -> None:
    with pytest.raises(PromiseBroken, match=r"Diverged|parked"):
        for _ in every_crash(moody(), seed=1):
            pass


def test_a_run_that_never_ends_is_found_out() -> None:
    with pytest.raises(PromiseBroken, match="not every run has ended"):
        Simulation(1).run(interpret(["sleep", 30]), limit=1.0)


def test_a_broken_promise_names_its_seed_and_shows_the_trace() -> None:
    with pytest.raises(PromiseBroken) as caught:
        Simulation("a seed").run(moody())
    assert caught.value.seed == "a seed"
    assert "'a seed'" in str(caught.value)
    assert any("execute" in line for line in caught.value.trace)


def test_a_run_that_fails_is_a_result_and_no_broken_promise() -> None:
    report = Simulation(1).run(idle())
    assert report.results["run-0"].status is RunStatus.FAILED
