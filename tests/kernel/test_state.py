"""A run as the fold of its journal: any split gives the same state; status and wake-up follow from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from perdure.kernel.events import (
    AnyEvent,
    AttemptFailed,
    Batch,
    CancelRequested,
    RunClaimed,
    RunFinished,
    RunParked,
    RunReleased,
    RunResumed,
    RunStarted,
    RunStatus,
    SignalReceived,
    StepFailed,
    StepsHeld,
    StepStarted,
    StepSucceeded,
    ValueRecorded,
    WaitOpened,
    WaitResolved,
)
from perdure.kernel.state import RunState, fold
from tests.kernel.table import BOOM, Story, batches, facts, stories

STARTED = RunStarted("order-1", "checkout", "1", Raw(b"[]"))
CLAIMED = RunClaimed("host-1", 1, "s1")
AWAITS: list[AnyEvent] = [CLAIMED, WaitOpened("s:0", "signal", None, name="s")]


def after(*events: AnyEvent, started: RunStarted = STARTED) -> RunState:
    """The state after these events, at 100, 101, 102 and so on."""
    state = RunState("r1")
    for i, event in enumerate((started, *events)):
        state.fold(event, 100.0 + i)
    return state


@given(stories(), st.data())
def test_any_split_of_a_journal_into_batches_gives_the_same_state(story: Story, data: st.DataObject) -> None:
    journal = story.run().journal
    whole = facts(fold("r1", batches(journal)))
    cuts = data.draw(st.sets(st.integers(0, len(journal))))
    assert facts(fold("r1", batches(journal, cuts))) == whole
    assert facts(fold("r1", batches(journal, range(len(journal))))) == whole


@given(stories(), st.data())
def test_folding_a_journal_in_two_parts_is_folding_it_whole(story: Story, data: st.DataObject) -> None:
    journal = story.run().journal
    middle = data.draw(st.integers(1, len(journal)))
    state = fold("r1", batches(journal[:middle]))
    facts(state)  # asking changes nothing
    for event, at in journal[middle:]:
        state.fold(event, at)
    assert facts(state) == facts(fold("r1", batches(journal)))


@given(stories())
def test_the_state_that_was_lived_is_the_state_that_is_read(story: Story) -> None:
    machine = story.run()
    assert facts(fold("r1", batches(machine.journal))) == facts(machine.state)


@given(stories())
def test_attempts_under_way_are_counted_right(story: Story) -> None:
    state = story.run().state
    assert state.running == sum(op.running for op in state.ops.values())
    assert all(op.kind == "step" or not op.running for op in state.ops.values())


@given(stories())
def test_a_run_wakes_at_the_earliest_of_what_is_due(story: Story) -> None:
    state = story.run().state
    moments = [op.due for op in state.ops.values() if op.due is not None]
    if story.deadline is not None:
        moments.append(story.deadline)
    if state.finished is not None:
        assert state.wake_at is None
    elif state.owner is not None:
        assert state.wake_at == min(moments, default=None)


@given(stories())
def test_what_is_due_comes_in_the_order_of_its_moments(story: Story) -> None:
    state = story.run().state
    for now in (0.0, 1000.0, 1005.0, 1e9):
        due = state.due(now)
        moments = [state.ops[op].due for op in due]
        assert moments == sorted(moment for moment in moments if moment is not None)
        assert set(due) == {op for op, one in state.ops.items() if one.due is not None and one.due <= now}


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ([], RunStatus.QUEUED),
        ([CLAIMED], RunStatus.RUNNING),
        ([CLAIMED, StepStarted("a:0")], RunStatus.RUNNING),
        ([CLAIMED, StepStarted("a:0"), StepSucceeded("a:0", Raw(b"1"))], RunStatus.RUNNING),
        ([CLAIMED, StepStarted("a:0"), AttemptFailed("a:0", 1, BOOM, 200.0)], RunStatus.WAITING),
        ([CLAIMED, WaitOpened("sleep:0", "timer", 200.0)], RunStatus.WAITING),
        ([CLAIMED, WaitOpened("sleep:0", "timer", 200.0), StepStarted("a:0")], RunStatus.RUNNING),
        ([CLAIMED, WaitOpened("sleep:0", "timer", 200.0), WaitResolved("sleep:0", "timer")], RunStatus.RUNNING),
        ([CLAIMED, ValueRecorded("now:0", "now")], RunStatus.RUNNING),
        ([CLAIMED, StepStarted("a:0"), RunReleased("host-1")], RunStatus.RUNNING),
        ([CLAIMED, CancelRequested("stop")], RunStatus.RUNNING),
        ([CLAIMED, RunParked("changed")], RunStatus.PARKED),
        ([CLAIMED, RunParked("changed"), RunResumed()], RunStatus.RUNNING),
        ([CLAIMED, RunFinished(RunStatus.COMPLETED)], RunStatus.COMPLETED),
        ([CLAIMED, StepStarted("a:0"), RunFinished(RunStatus.BAILED)], RunStatus.BAILED),
        ([CLAIMED, RunParked("changed"), RunFinished(RunStatus.CANCELLED)], RunStatus.CANCELLED),
    ],
)
def test_the_status_follows_from_the_events(events: list[AnyEvent], status: RunStatus) -> None:
    assert after(*events).status is status


@pytest.mark.parametrize(
    ("events", "wake_at"),
    [
        ([], 100.0),  # queued: at once
        ([CLAIMED], None),  # its owner is about to say what comes next
        ([CLAIMED, StepStarted("a:0")], None),
        ([CLAIMED, WaitOpened("sleep:0", "timer", 300.0)], 300.0),
        ([CLAIMED, WaitOpened("sleep:0", "timer", 300.0), WaitOpened("sleep:1", "timer", 200.0)], 200.0),
        ([CLAIMED, WaitOpened("signal:0", "signal", None)], None),
        ([*AWAITS, SignalReceived("s")], 103.0),
        # An owner that has only taken it has not seen what came, and may be gone before it does.
        ([*AWAITS, SignalReceived("s"), RunClaimed("b", 2, early=True)], 104.0),
        ([*AWAITS, SignalReceived("s"), RunClaimed("b", 2)], None),
        ([CLAIMED, WaitOpened("sleep:0", "timer", 300.0), WaitResolved("sleep:0", "timer")], None),
        ([CLAIMED, StepStarted("a:0"), AttemptFailed("a:0", 1, BOOM, 150.0)], 150.0),
        ([CLAIMED, StepStarted("a:0"), AttemptFailed("a:0", 1, BOOM, 150.0), StepStarted("a:0", 2)], None),
        ([CLAIMED, StepStarted("a:0"), AttemptFailed("a:0", 1, BOOM, 150.0), StepFailed("a:0", 1, BOOM)], None),
        ([CLAIMED, StepStarted("a:0"), RunReleased("host-1")], 103.0),  # given up while at work: at once
        ([CLAIMED, RunReleased("host-1")], 102.0),
        ([CLAIMED, WaitOpened("sleep:0", "timer", 300.0), RunReleased("host-1")], 300.0),
        ([CLAIMED, WaitOpened("sleep:0", "timer", 300.0), RunParked("changed")], None),
        ([CLAIMED, WaitOpened("sleep:0", "timer", 300.0), RunParked("changed"), RunResumed()], 104.0),
        ([CLAIMED, WaitOpened("sleep:0", "timer", 300.0), RunFinished(RunStatus.CANCELLED)], None),
    ],
)
def test_a_row_says_when_its_run_is_due(events: list[AnyEvent], wake_at: float | None) -> None:
    assert after(*events).wake_at == wake_at


def test_a_delayed_run_wakes_when_it_may_begin() -> None:
    delayed = RunStarted("order-1", "checkout", "1", Raw(b"[]"), not_before=500.0)
    assert after(started=delayed).wake_at == 500.0


def test_a_deadline_wakes_a_run_that_nothing_else_wakes_earlier() -> None:
    bounded = RunStarted("order-1", "checkout", "1", Raw(b"[]"), deadline=250.0)
    assert after(CLAIMED, StepStarted("a:0"), started=bounded).wake_at == 250.0
    assert after(CLAIMED, WaitOpened("sleep:0", "timer", 300.0), started=bounded).wake_at == 250.0
    assert after(CLAIMED, WaitOpened("sleep:0", "timer", 200.0), started=bounded).wake_at == 200.0
    assert after(CLAIMED, RunFinished(RunStatus.COMPLETED), started=bounded).wake_at is None


def test_a_claim_names_the_owner_of_the_highest_epoch() -> None:
    state = after(CLAIMED, RunClaimed("host-2", 2, "s2"))
    assert (state.owner, state.epoch, state.session) == ("host-2", 2, "s2")
    state.fold(RunReleased("host-2"), 200.0)
    assert (state.owner, state.epoch) == (None, 2)


def test_attempts_and_failures_of_a_step_are_counted_apart() -> None:
    # An attempt that died with its process has a number and no failure.
    state = after(CLAIMED, StepStarted("a:0"), RunClaimed("host-2", 2), StepStarted("a:0", 2))
    assert (state.ops["a:0"].attempt, state.ops["a:0"].failures, state.running) == (2, 0, 1)
    state.fold(AttemptFailed("a:0", 2, BOOM, 300.0), 200.0)
    assert (state.ops["a:0"].attempt, state.ops["a:0"].failures, state.running) == (2, 1, 0)


def test_an_op_with_an_outcome_is_forgotten() -> None:
    state = after(CLAIMED, StepStarted("a:0"), StepStarted("b:0"), StepSucceeded("a:0", Raw(b"1")))
    assert list(state.ops) == ["b:0"]
    assert (state.steps, state.running) == (1, 1)


def test_a_run_knows_when_it_began_and_ended() -> None:
    state = after(CLAIMED, RunFinished(RunStatus.COMPLETED))
    assert (state.created_at, state.finished_at, state.at, state.next_seq) == (100.0, 102.0, 102.0, 3)


def test_events_of_one_batch_share_a_moment() -> None:
    state = fold("r1", [Batch(0, 7.0, [STARTED, CLAIMED]), Batch(2, 8.0, [RunFinished(RunStatus.COMPLETED)])])
    assert (state.created_at, state.finished_at, state.next_seq) == (7.0, 8.0, 3)


COUNTS = RunClaimed("host-2", 2, counts=True)
WAITS: list[AnyEvent] = [CLAIMED, WaitOpened("wait:0", "signal", None, name="go")]


@pytest.mark.parametrize(
    ("events", "held", "status"),
    [
        ([], 0, RunStatus.WAITING),
        ([StepsHeld(2)], 2, RunStatus.RUNNING),
        ([StepsHeld(2), StepsHeld()], 0, RunStatus.WAITING),
        ([StepsHeld(2), StepStarted("a:0")], 0, RunStatus.RUNNING),
        ([StepsHeld(2), StepStarted("a:0"), StepSucceeded("a:0", Raw(b"1"))], 0, RunStatus.WAITING),
        ([StepsHeld(2), RunClaimed("host-2", 2)], 2, RunStatus.RUNNING),
        ([COUNTS, StepsHeld(2), StepStarted("a:0")], 1, RunStatus.RUNNING),
        ([COUNTS, StepsHeld(1), StepStarted("a:0"), StepSucceeded("a:0", Raw(b"1"))], 0, RunStatus.WAITING),
        ([COUNTS, StepsHeld(2), StepStarted("a:0", 2)], 2, RunStatus.RUNNING),
        ([COUNTS, StepsHeld(2), RunClaimed("host-2", 3), StepStarted("a:0")], 0, RunStatus.RUNNING),
        ([StepsHeld(2), RunFinished(RunStatus.CANCELLED)], 0, RunStatus.CANCELLED),
    ],
)
def test_a_run_that_has_something_to_begin_does_not_only_wait(
    events: list[AnyEvent], held: int, status: RunStatus
) -> None:
    state = after(*WAITS, *events)
    assert (state.held, state.status) == (held, status)


def test_a_released_run_with_work_left_is_due_at_once() -> None:
    assert after(*WAITS, RunReleased("host-1")).wake_at is None
    assert after(*WAITS, StepsHeld(1), RunReleased("host-1")).wake_at == 104.0
