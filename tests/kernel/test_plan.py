"""What happens next: planned, not performed. Each op gets one outcome, whatever happens in one round."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from perdure.kernel.commands import FINISH, CancelOp, Checkpoint, Finish, RecordValue, RunStep, StartTimer, StepSpec
from perdure.kernel.events import (
    AnyEvent,
    AttemptFailed,
    ChildFinished,
    ChildStarted,
    RunClaimed,
    RunFinished,
    RunParked,
    RunStarted,
    RunStatus,
    StepFailed,
    StepSkipped,
    StepStarted,
    StepSucceeded,
    ValueRecorded,
    WaitOpened,
    WaitResolved,
)
from perdure.kernel.plan import Call, Plan, adopt, begin_step, failed, plan, wake
from perdure.kernel.policies.retry import Retry, backoff
from perdure.kernel.state import RunState
from perdure.kernel.values.failures import Failure
from tests.kernel.table import BOOM, Machine, Story, Table, step_row, stories, timer_row, total

STARTED = RunStarted("order-1", "checkout", "1", Raw(b"[]"))
MANY = 1 << 30


def after(*events: AnyEvent, started: RunStarted = STARTED) -> RunState:
    """The state of a run that was claimed and then saw these events."""
    state = RunState("r1")
    for event in (started, RunClaimed("host-1", 1), *events):
        state.fold(event, 100.0)
    return state


def run_step(op: str, **policy: object) -> RunStep:
    return RunStep(op, StepSpec(op, total, **policy), b"[]", "hash", 0, (), f"shop.py:{len(op)}")  # type: ignore[arg-type]


DONE = Finish(RunStatus.COMPLETED, b'"done"')


# --- commands -------------------------------------------------------------------------------------------------------


def test_commands_are_recorded_in_their_order() -> None:
    charge = run_step("charge:0")
    made = plan(
        after(),
        [RecordValue("now:0", "now", Raw(b"7")), charge, StartTimer("sleep:0", 160.0, "shop.py:9")],
        100.0,
    )
    assert made.events == [
        ValueRecorded("now:0", "now", Raw(b"7")),
        StepStarted("charge:0", 1, "hash", charge.source),
        WaitOpened("sleep:0", "timer", 160.0, "shop.py:9"),
    ]
    assert (made.calls, made.cancels, made.barrier) == ([Call(charge, 1)], [], False)


def test_without_commands_there_is_nothing_to_do() -> None:
    made = plan(after(), [], 100.0)
    assert (made.events, made.calls, made.cancels) == ([], [], [])


def test_a_checkpoint_is_a_barrier() -> None:
    made = plan(after(), [Checkpoint("checkpoint:0")], 100.0)
    assert made.events == [ValueRecorded("checkpoint:0", "checkpoint")]
    assert made.barrier


def test_the_end_of_a_run_is_recorded() -> None:
    made = plan(after(), [Finish(RunStatus.BAILED, b"1", None, "enough")], 100.0)
    assert made.events == [RunFinished(RunStatus.BAILED, Raw(b"1"), reason="enough")]


def test_a_step_that_is_given_up_has_failed_and_is_stopped() -> None:
    made = plan(after(StepStarted("charge:0", 3)), [CancelOp("charge:0")], 100.0)
    [event] = made.events
    assert isinstance(event, StepFailed)
    assert (event.op, event.attempt, event.unknown) == ("charge:0", 3, False)
    assert event.error.type == "perdure.errors.StepCancelled"
    assert made.cancels == ["charge:0"]


def test_a_timer_that_is_given_up_is_resolved() -> None:
    made = plan(after(WaitOpened("sleep:0", "timer", 160.0)), [CancelOp("sleep:0")], 100.0)
    assert (made.events, made.cancels) == ([WaitResolved("sleep:0", "cancelled")], [])


def test_giving_up_what_has_an_outcome_does_nothing() -> None:
    state = after(StepStarted("charge:0"), StepSucceeded("charge:0", Raw(b"1")))
    assert plan(state, [CancelOp("charge:0"), CancelOp("never:0")], 100.0).events == []


def test_a_step_asked_for_together_with_the_end_is_never_started() -> None:
    late = run_step("late:0")
    for made in (plan(after(), [late, DONE], 100.0), plan(after(), [DONE, late], 100.0)):
        assert made.events == [RunFinished(RunStatus.COMPLETED, Raw(b'"done"'))]
        assert made.calls == []


def test_a_timer_asked_for_together_with_the_end_is_never_opened() -> None:
    made = plan(after(), [StartTimer("sleep:0", 160.0), DONE], 100.0)
    assert made.events == [RunFinished(RunStatus.COMPLETED, Raw(b'"done"'))]


def test_a_value_recorded_together_with_the_end_is_kept() -> None:
    made = plan(after(), [RecordValue("now:0", "now"), DONE], 100.0)
    assert [type(event) for event in made.events] == [ValueRecorded, RunFinished]


def test_what_is_under_way_when_the_run_ends_is_given_up() -> None:
    state = after(StepStarted("charge:0"), WaitOpened("sleep:0", "timer", 160.0), StepStarted("mail:0"))
    made = plan(state, [DONE], 100.0)
    assert [(type(event), getattr(event, "op", None)) for event in made.events] == [
        (StepFailed, "charge:0"),
        (WaitResolved, "sleep:0"),
        (StepFailed, "mail:0"),
        (RunFinished, None),
    ]
    assert made.cancels == ["charge:0", "mail:0"]


def test_giving_up_and_ending_in_one_round_records_each_outcome_once() -> None:
    state = after(StepStarted("charge:0"), WaitOpened("sleep:0", "timer", 160.0), StepStarted("mail:0"))
    made = plan(state, [CancelOp("charge:0"), DONE, CancelOp("sleep:0")], 100.0)
    ops = Counter(event.op for event in made.events if isinstance(event, StepFailed | WaitResolved))
    assert ops == {"charge:0": 1, "sleep:0": 1, "mail:0": 1}
    assert isinstance(made.events[-1], RunFinished)
    assert Counter(made.cancels) == {"charge:0": 1, "mail:0": 1}


# --- what is due ----------------------------------------------------------------------------------------------------


def test_what_is_due_happens_in_the_order_of_its_moments() -> None:
    retried = run_step("charge:0", retry=Retry())
    state = after(
        WaitOpened("sleep:0", "timer", 130.0),
        StepStarted("charge:0", 1, "hash", "shop.py:3"),
        AttemptFailed("charge:0", 1, BOOM, 120.0),
        WaitOpened("sleep:1", "timer", 110.0),
        WaitOpened("sleep:2", "timer", 140.0),
    )
    made = wake(state, {"charge:0": retried}, 130.0, MANY)
    assert made.events == [
        WaitResolved("sleep:1", "timer"),
        StepStarted("charge:0", 2, source="shop.py:3"),
        WaitResolved("sleep:0", "timer"),
    ]
    assert made.calls == [Call(retried, 2)]
    assert not made.held


def test_before_anything_is_due_nothing_happens() -> None:
    state = after(WaitOpened("sleep:0", "timer", 130.0))
    assert wake(state, {}, 129.999, MANY).events == []


def test_a_retry_waits_for_room_and_a_timer_does_not() -> None:
    state = after(
        StepStarted("a:0"),
        AttemptFailed("a:0", 1, BOOM, 110.0),
        StepStarted("b:0"),
        AttemptFailed("b:0", 1, BOOM, 120.0),
        WaitOpened("sleep:0", "timer", 130.0),
    )
    steps = {op: run_step(op) for op in ("a:0", "b:0")}
    made = wake(state, steps, 130.0, 1)
    assert made.events == [StepStarted("a:0", 2), WaitResolved("sleep:0", "timer")]
    assert made.held
    made = wake(state, steps, 130.0, 0)
    assert (made.calls, made.held) == ([], True)


def test_a_deadline_ends_the_run_and_cancels_its_open_ops() -> None:
    bounded = RunStarted("order-1", "checkout", "1", Raw(b"[]"), deadline=150.0)
    state = after(StepStarted("charge:0"), WaitOpened("sleep:0", "timer", 120.0), started=bounded)
    assert wake(state, {}, 119.0, MANY).events == []
    made = wake(state, {}, 150.0, MANY)
    assert [type(event) for event in made.events] == [StepFailed, WaitResolved, RunFinished]
    end = made.events[-1]
    assert isinstance(end, RunFinished)
    assert end.status is RunStatus.FAILED
    assert end.error is not None
    assert end.error.type == "perdure.errors.DeadlineExceeded"
    assert made.cancels == ["charge:0"]


@pytest.mark.parametrize(
    "end",
    [
        DONE,
        Finish(RunStatus.BAILED, reason="enough"),
        Finish(RunStatus.CANCELLED, reason="stop"),
        Finish(RunStatus.FAILED, error=BOOM),
        Finish(RunStatus.COMPLETED, continue_with=b"[]"),
    ],
    ids=["completed", "bailed", "cancelled", "failed", "continued"],
)
def test_a_body_that_ends_when_its_deadline_has_come_loses_to_it(end: Finish) -> None:
    bounded = RunStarted("order-1", "checkout", "1", Raw(b"[]"), deadline=150.0)
    [in_time] = plan(after(started=bounded), [end], 149.0).events
    assert isinstance(in_time, RunFinished)
    assert in_time.status is end.status
    for now in (150.0, 151.0):
        made = plan(after(started=bounded), [end], now)
        assert (made.events, made.starts) == (wake(after(started=bounded), {}, now, MANY).events, [])
        [late] = made.events
        assert isinstance(late, RunFinished)
        assert late.error is not None
        assert late.error.type == "perdure.errors.DeadlineExceeded"


def test_a_child_that_ends_when_its_deadline_has_come_loses_to_it() -> None:
    begun = ChildStarted("pack:0", "pack", "1", Raw(b"[]"), deadline=150.0)
    end = Finish(RunStatus.COMPLETED, b'"packed"', op="pack:0/" + FINISH)
    [in_time] = plan(after(begun), [end], 149.0).events
    assert in_time == ChildFinished("pack:0", RunStatus.COMPLETED, Raw(b'"packed"'))
    made = plan(after(begun), [end], 150.0)
    assert made.events == wake(after(begun), {}, 150.0, MANY).events
    [late] = made.events
    assert isinstance(late, ChildFinished)
    assert late.error is not None
    assert late.error.type == "perdure.errors.DeadlineExceeded"


def test_a_run_that_has_ended_or_is_parked_does_not_wake() -> None:
    bounded = RunStarted("order-1", "checkout", "1", Raw(b"[]"), deadline=150.0)
    opened = WaitOpened("sleep:0", "timer", 120.0)
    assert wake(after(opened, RunParked("changed"), started=bounded), {}, 999.0, MANY).events == []
    assert wake(after(opened, RunFinished(RunStatus.FAILED), started=bounded), {}, 999.0, MANY).events == []


# --- another owner --------------------------------------------------------------------------------------------------


def test_an_attempt_whose_owner_died_is_counted_and_made_again() -> None:
    command = run_step("charge:0")
    state = after(StepStarted("charge:0", 2, "hash", "shop.py:3"))
    made = adopt(state, {"charge:0": command})
    assert made.events == [StepStarted("charge:0", 3, source="shop.py:3")]
    assert made.calls == [Call(command, 3)]


def test_an_attempt_that_must_not_run_twice_is_declared_unknown() -> None:
    state = after(StepStarted("charge:0", 1))
    made = adopt(state, {"charge:0": run_step("charge:0", at_most_once=True)})
    [event] = made.events
    assert isinstance(event, StepFailed)
    assert (event.op, event.attempt, event.unknown) == ("charge:0", 1, True)
    assert event.error.type == "perdure.errors.OutcomeUnknown"
    assert "r1/charge:0" in event.error.message
    assert made.calls == []


def test_a_step_that_waits_for_its_next_attempt_is_left_waiting() -> None:
    state = after(
        StepStarted("charge:0"), AttemptFailed("charge:0", 1, BOOM, 120.0), WaitOpened("sleep:0", "timer", 130.0)
    )
    steps = {"charge:0": run_step("charge:0", at_most_once=True)}
    made = adopt(state, steps)
    assert (made.events, made.calls) == ([], [])


# --- failed attempts ------------------------------------------------------------------------------------------------


def test_a_failed_attempt_is_followed_by_another_after_the_backoff() -> None:
    retry = Retry(attempts=3, initial=4.0)
    call = Call(run_step("charge:0", retry=retry), 1)
    event = failed(after(StepStarted("charge:0")), call, BOOM, True, 200.0)
    assert event == AttemptFailed("charge:0", 1, BOOM, 200.0 + backoff(retry, 1, "r1/charge:0"), of=3)


def test_when_its_attempts_are_used_up_a_step_has_failed() -> None:
    call = Call(run_step("charge:0", retry=Retry(attempts=2)), 2)
    state = after(StepStarted("charge:0"), AttemptFailed("charge:0", 1, BOOM, 120.0), StepStarted("charge:0", 2))
    assert failed(state, call, BOOM, True, 200.0) == StepFailed("charge:0", 2, BOOM)


def test_an_error_that_is_not_retried_ends_the_step_at_once() -> None:
    call = Call(run_step("charge:0", retry=Retry(attempts=9)), 1)
    assert failed(after(StepStarted("charge:0")), call, BOOM, False, 200.0) == StepFailed("charge:0", 1, BOOM)


def test_attempts_whose_process_died_do_not_count_as_failures() -> None:
    retry = Retry(attempts=2, jitter=False)
    state = after(*(StepStarted("charge:0", n) for n in range(1, 6)))  # five attempts, no failure
    event = failed(state, Call(run_step("charge:0", retry=retry), 5), BOOM, True, 200.0)
    assert event == AttemptFailed("charge:0", 5, BOOM, 201.0, of=2)


@given(st.integers(1, 6), st.lists(st.booleans(), max_size=12))
def test_a_step_is_tried_as_often_as_its_policy_allows(attempts: int, crashes: list[bool]) -> None:
    machine = Machine(Table((step_row("work:0", retry=Retry(attempts=attempts)),)))
    machine.begin()
    failures = 0
    for crash in [*crashes, *[False] * attempts]:
        if machine.state.finished is not None:
            break
        if not machine.calls:
            machine.wait()
        if crash:
            machine.crash()
        else:
            machine.fail("work:0")
            failures += 1
    assert failures == attempts
    assert machine.state.status is RunStatus.FAILED
    numbers = [event.attempt for event, _ in machine.journal if isinstance(event, StepStarted)]
    assert numbers == list(range(1, len(numbers) + 1))


# --- skipping and falling back --------------------------------------------------------------------------------------


def fall_back(failed: object) -> None: ...


FALLING = AttemptFailed("charge:0", 1, BOOM, 200.0, fallback=True)
WORSE = Failure("builtins.KeyError", "worse")


def test_a_skippable_step_is_skipped_after_its_last_attempt() -> None:
    command = run_step("charge:0", retry=Retry(attempts=2, jitter=False), on_failure="skip")
    state = after(StepStarted("charge:0"))
    assert failed(state, Call(command, 1), BOOM, True, 200.0) == AttemptFailed("charge:0", 1, BOOM, 201.0, of=2)
    assert failed(state, Call(command, 1), BOOM, False, 200.0) == StepSkipped("charge:0", 1, BOOM)


def test_after_the_last_attempt_the_fallback_has_its_turn_at_once() -> None:
    command = run_step("charge:0", fallback=fall_back)
    state = after(StepStarted("charge:0", source="shop.py:3"))
    assert failed(state, Call(command, 1), BOOM, True, 200.0) == FALLING
    state.fold(FALLING, 200.0)
    assert state.wake_at == 200.0
    made = wake(state, {"charge:0": command}, 200.0, MANY)
    assert made.events == [StepStarted("charge:0", 2, source="shop.py:3")]
    assert made.calls == [Call(command, 2, BOOM)]


def test_an_error_that_is_not_retried_goes_to_the_fallback_too() -> None:
    command = run_step("charge:0", retry=Retry(attempts=9), fallback=fall_back)
    assert failed(after(StepStarted("charge:0")), Call(command, 1), BOOM, False, 200.0) == FALLING


@pytest.mark.parametrize(("on_failure", "end"), [("halt", StepFailed), ("skip", StepSkipped)])
def test_a_fallback_has_one_attempt_and_its_failure_ends_the_step(on_failure: Any, end: type[Any]) -> None:
    command = run_step("charge:0", retry=Retry(attempts=9), fallback=fall_back, on_failure=on_failure)
    state = after(StepStarted("charge:0"), FALLING, StepStarted("charge:0", 2))
    assert failed(state, Call(command, 2, BOOM), WORSE, True, 300.0) == end("charge:0", 2, WORSE)


def test_a_fallback_whose_process_died_is_made_again_as_a_fallback() -> None:
    command = run_step("charge:0", fallback=fall_back)
    state = after(StepStarted("charge:0"), FALLING, StepStarted("charge:0", 2), StepStarted("charge:0", 3))
    made = adopt(state, {"charge:0": command})
    assert made.calls == [Call(command, 4, BOOM)]


def test_an_at_most_once_fallback_is_unknown_when_its_process_dies() -> None:
    command = run_step("charge:0", fallback=fall_back, at_most_once=True)
    state = after(StepStarted("charge:0"), FALLING, StepStarted("charge:0", 2))
    [event] = adopt(state, {"charge:0": command}).events
    assert isinstance(event, StepFailed)
    assert event.unknown


@pytest.mark.parametrize(("on_failure", "end"), [("halt", StepFailed), ("skip", StepSkipped)])
def test_without_its_fallback_rule_the_step_ends_with_its_failure(on_failure: Any, end: type[Any]) -> None:
    steps = {"charge:0": run_step("charge:0", on_failure=on_failure)}
    made = wake(after(StepStarted("charge:0"), FALLING), steps, 200.0, MANY)
    assert (made.events, made.calls) == ([end("charge:0", 1, BOOM)], [])
    made = adopt(after(StepStarted("charge:0"), FALLING, StepStarted("charge:0", 2)), steps)
    assert (made.events, made.calls) == ([end("charge:0", 2, BOOM)], [])


@given(st.integers(1, 4), st.booleans(), st.lists(st.booleans(), max_size=10))
def test_a_fallback_comes_after_as_many_failures_as_the_policy_allows(
    attempts: int, skip: bool, crashes: list[bool]
) -> None:
    policy: dict[str, Any] = {"retry": Retry(attempts=attempts), "fallback": fall_back}
    machine = Machine(Table((step_row("work:0", on_failure="skip" if skip else "halt", **policy),)))
    machine.begin()
    told: list[bool] = []
    for crash in [*crashes, *[False] * (attempts + 1)]:
        if machine.state.finished is not None:
            break
        if not machine.calls:
            machine.wait()
        if crash:
            machine.crash()
        else:
            told.append(machine.calls["work:0"].failed is not None)
            machine.fail("work:0")
    assert told == [False] * attempts + [True]
    assert machine.state.status is (RunStatus.COMPLETED if skip else RunStatus.FAILED)


# --- any run --------------------------------------------------------------------------------------------------------


def outcomes(machine: Machine) -> Counter[str]:
    """How many outcomes each op has."""
    ends = (StepSucceeded, StepFailed, StepSkipped, WaitResolved)
    return Counter(event.op for event, _ in machine.journal if isinstance(event, ends))


@given(stories(), st.data())
def test_however_a_run_is_interrupted_each_op_has_one_outcome(story: Story, data: st.DataObject) -> None:
    machine = story.run()
    machine.crash(data.draw(st.integers(1, len(machine.journal))))
    machine.finish()
    begun = {event.op for event, _ in machine.journal if isinstance(event, StepStarted | WaitOpened)}
    assert outcomes(machine) == dict.fromkeys(begun, 1)
    assert sum(isinstance(event, RunFinished) for event, _ in machine.journal) == 1
    assert isinstance(machine.journal[-1][0], RunFinished)
    assert not machine.state.ops


@given(stories())
def test_a_step_is_under_way_only_after_its_start_was_recorded(story: Story) -> None:
    machine = story.run()
    for op, call in machine.calls.items():
        assert machine.state.ops[op].running
        assert machine.state.ops[op].attempt == call.attempt


@given(stories())
def test_an_at_most_once_step_is_never_started_twice_without_a_failure(story: Story) -> None:
    machine = story.run()
    once = {row.op for row in story.table.rows if isinstance(row.spec, StepSpec) and row.spec.at_most_once}
    running: set[str] = set()
    for event, _ in machine.journal:
        if isinstance(event, StepStarted) and event.op in once:
            assert event.op not in running
            running.add(event.op)
        elif isinstance(event, AttemptFailed | StepFailed | StepSkipped | StepSucceeded):
            running.discard(event.op)


def test_timers_that_are_due_together_with_the_deadline_lose_to_it() -> None:
    machine = Machine(Table((timer_row("sleep:0", 5.0),)), deadline=1005.0)
    machine.begin()
    machine.wait()
    assert machine.state.status is RunStatus.FAILED


SAMPLES: dict[str, Any] = {
    "name": "other",
    "retry": Retry(attempts=3),
    "on_failure": "skip",
    "prefixes": ("", "a"),
    "types": (("a", int),),
    "returns": int,
    "errors": {"Boom": ValueError},
    "stream": None,
    "sent": (("timeout", 1.0),),
    "secrets": (("a", ()),),
}


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(StepSpec)])
def test_a_step_that_is_the_only_command_begins_as_it_would_among_others(field: str) -> None:
    value = SAMPLES.get(field)
    if value is None:
        default = next(one for one in dataclasses.fields(StepSpec) if one.name == field).default
        value = {bool: True, str: "given"}.get(type(default), len if field in ("fn", "fallback") else 5.0)
    changed: dict[str, Any] = {field: value}
    spec = dataclasses.replace(StepSpec("charge", len), **changed)
    state = RunState("r1")
    state.fold(STARTED, 1.0)
    for refused in (None, BOOM):
        command = RunStep("charge:0", spec, b"[]", "i[]", source="shop.py:1", refused=refused)
        whole, begun = plan(state, [command], 2.0), begin_step(command)
        if begun is not None:
            assert whole == Plan([begun], [Call(command, 1)], [])
        else:
            assert field in ("queue", "version", "function", "record_inputs", "at_most_once") or refused is not None
