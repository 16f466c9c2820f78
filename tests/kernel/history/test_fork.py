"""What a fork keeps of a journal, what it drops, and where a failed run continues. Pure functions of journals."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from perdure.errors import NoSuchOp, UsageError
from perdure.kernel.commands import RunStep, StartChild, StartTimer, StepSpec
from perdure.kernel.context import RunContext
from perdure.kernel.events import (
    AnyEvent,
    AttemptFailed,
    Batch,
    CancelRequested,
    ChildFinished,
    ChildStarted,
    ChunkAppended,
    InputReplaced,
    RunClaimed,
    RunFinished,
    RunForked,
    RunPaused,
    RunReleased,
    RunResumed,
    RunStarted,
    RunStatus,
    SignalReceived,
    StateSet,
    StepFailed,
    StepStarted,
    StepSucceeded,
    ValueRecorded,
    WaitOpened,
    WaitResolved,
)
from perdure.kernel.history import fork as forks
from perdure.kernel.history.edits import with_inputs
from perdure.kernel.history.fork import Point, Value
from perdure.kernel.history.ops import find, ops
from perdure.kernel.state import fold
from perdure.kernel.values.failures import Failure

BOOM = Failure("builtins.ValueError", "boom")
STARTED = RunStarted("original", "shop", "1", Raw(b"{}"))


def journal(*batches: list[AnyEvent], at: float = 100.0) -> list[Batch]:
    """Batches ten seconds apart, after a run was started and claimed."""
    found, seq = [], 0
    begun: list[AnyEvent] = [STARTED, RunClaimed("a", 1, "s")]
    for number, events in enumerate([begun, *batches]):
        found.append(Batch(seq, at + number * 10, events))
        seq += len(events)
    return found


def succeeded(op: str, value: Any = 1) -> StepSucceeded:
    return StepSucceeded(op, Raw(msgspec.json.encode(value)))


def fork(batches: list[Batch], point: Point, now: float = 1000.0, **edits: Any) -> list[Batch]:
    started = forks.beginning(batches, "r0", now, id="fork")
    made = forks.fork(batches, point, started, now, **edits)
    fold("r1", made)  # it is a journal
    assert [batch.seq for batch in made] == [sum(len(b.events) for b in made[:n]) for n in range(len(made))]
    assert [batch.at for batch in made] == sorted(batch.at for batch in made)
    return made


def kept(batches: list[Batch]) -> list[AnyEvent]:
    """The events of a fork between RunStarted and RunForked."""
    events = [event for batch in batches for event in batch.events]
    return [e for e in events if not isinstance(e, RunStarted | RunClaimed | RunReleased | RunForked)]


def test_the_point_before_an_op_keeps_what_went_on_beside_it() -> None:
    batches = journal(
        [StepStarted("a:0"), StepStarted("b:0")],
        [succeeded("a:0"), StepStarted("c:0")],
        [succeeded("c:0"), StepStarted("d:0")],
        [succeeded("b:0"), RunFinished(RunStatus.COMPLETED)],
    )
    made = fork(batches, forks.before(batches, "b:0"))
    assert kept(made) == [StepStarted("a:0"), succeeded("a:0"), StepStarted("c:0"), succeeded("c:0")]


def test_an_attempt_without_an_outcome_is_not_inherited() -> None:
    batches = journal(
        [StepStarted("a:0")],
        [AttemptFailed("a:0", 1, BOOM, 120.0), StepStarted("a:0", 2), ChunkAppended("a:0", 2, 0, (Raw(b"1"),))],
    )
    assert kept(fork(batches, forks.at_end(batches))) == []


def test_owners_pauses_and_the_end_are_the_originals_own() -> None:
    batches = journal(
        [InputReplaced(Raw(b'{"a":1}')), RunPaused("x"), RunResumed(), RunReleased("a"), RunClaimed("b", 2)],
        [StepStarted("a:0"), succeeded("a:0")],
        [StepFailed("b:0", 1, BOOM, cancelled=True), RunFinished(RunStatus.FAILED, error=BOOM)],
    )
    made = fork(batches, forks.at_end(batches))
    events = [event for batch in made for event in batch.events]
    assert [type(e).__name__ for e in events] == [
        "RunStarted",
        "RunClaimed",
        "StepStarted",
        "StepSucceeded",
        "RunReleased",
        "RunForked",
    ]
    state = fold("r1", made)
    assert (state.owner, state.epoch, state.created_at, state.wake_at) == (None, 1, 1000.0, 1000.0)


def test_times_are_moved_so_that_the_past_ends_now() -> None:
    batches = journal(
        [WaitOpened("go:0", "signal", 500.0, name="go"), WaitOpened("sleep:0", "timer", 115.0)],
        [WaitResolved("sleep:0", "timer"), ChildStarted("pack:0", "pack", deadline=200.0)],
    )
    made = fork(batches, forks.at_end(batches))
    assert [batch.at for batch in made] == [980.0, 990.0, 1000.0, 1000.0]
    state = fold("r1", made)
    assert (state.ops["go:0"].due, state.ops["pack:0"].due) == (1380.0, 1080.0)
    assert made[-1].events[-1] == RunForked("r0", 6, 880.0, run=RunContext("original", "r0", "shop", "1", "r0"))


def test_a_fork_gets_its_whole_deadline_again() -> None:
    started = msgspec.structs.replace(STARTED, deadline=150.0, queue="q", queue_key="k", parent="p", not_before=120.0)
    batches = [Batch(0, 100.0, [started])]
    made = forks.beginning(batches, "r0", 1000.0, id="fork")
    assert (made.deadline, made.queue, made.queue_key, made.parent, made.not_before) == (1050.0, "", "k", "", None)


def test_a_fork_drops_a_signal_that_arrived_during_the_wait_and_keeps_an_earlier_one() -> None:
    waits: list[AnyEvent] = [WaitOpened("go:0", "signal", name="go")]
    early = journal([SignalReceived("go", Raw(b"1"))], waits, [WaitResolved("go:0", "signal")])
    assert kept(fork(early, forks.before(early, "go:0"))) == [SignalReceived("go", Raw(b"1"))]
    late = journal(waits, [SignalReceived("go", Raw(b"1"))], [WaitResolved("go:0", "signal")])
    assert kept(fork(late, forks.before(late, "go:0"))) == []


def test_a_fork_before_a_child_drops_its_events_and_a_later_fork_keeps_them() -> None:
    batches = journal(
        [ChildStarted("pack:0", "pack"), StepStarted("pack:0/a:0"), StepStarted("b:0")],
        [succeeded("pack:0/a:0"), CancelRequested("x", "pack:0"), ChildFinished("pack:0", RunStatus.COMPLETED)],
        [succeeded("b:0")],
    )
    assert kept(fork(batches, forks.before(batches, "pack:0"))) == []
    assert len(kept(fork(batches, forks.before(batches, "b:0")))) == 5
    inside = kept(fork(batches, forks.before(batches, "pack:0/a:0")))
    assert inside == [ChildStarted("pack:0", "pack")]


def test_values_that_the_body_used_are_given_to_it_again() -> None:
    batches = journal(
        [ValueRecorded("now:0", "now", Raw(b'"x"')), ValueRecorded("checkpoint:0", "checkpoint")],
        [ValueRecorded("uuid:0", "uuid", Raw(b'"y"'))],
    )
    started = fork(batches, Point(4))[0].events[0]
    assert isinstance(started, RunStarted)
    assert started.recorded == {"now:0": Raw(b'"x"')}
    edited = fork(batches, forks.at_end(batches), values={"now:0": Value(Raw(b'"z"'))})[0].events[0]
    assert isinstance(edited, RunStarted)
    assert edited.recorded == {"now:0": Raw(b'"z"'), "uuid:0": Raw(b'"y"')}


def test_outcomes_are_edited_and_given() -> None:
    nine = Value(Raw(b"9"))
    batches = journal(
        [StepStarted("a:0"), StepStarted("b:0"), StateSet("state:0", "phase", Raw(b"1")), StepStarted("c:0")],
        [
            StepFailed("a:0", 1, BOOM),
            WaitOpened("go:0", "signal", name="go"),
            WaitOpened("ask:0", "approval", name="ask"),
        ],
        [WaitResolved("go:0", "timeout"), WaitResolved("ask:0", "rejected:ann", Raw(b'"no"'))],
        [WaitOpened("more:0", "signal", name="more")],
    )
    values = dict.fromkeys(("a:0", "b:0", "state:0", "go:0", "ask:0", "more:0"), nine)
    made = kept(fork(batches, forks.at_end(batches), values=values))
    assert succeeded("a:0", 9) in made
    assert succeeded("b:0", 9) in made
    assert StepStarted("c:0") not in made
    assert StateSet("state:0", "phase", Raw(b"9")) in made
    assert WaitResolved("ask:0", "answer:", Raw(b"9")) in made
    assert made[made.index(WaitResolved("go:0", "signal")) - 1] == SignalReceived("go", Raw(b"9"))
    assert made[-1] == SignalReceived("more", Raw(b"9"))
    blob = kept(fork(batches, forks.at_end(batches), values={"a:0": Value(Raw(b"9"), "hash")}))
    assert StepSucceeded("a:0", Raw(b"null"), 1, "hash") in blob


@pytest.mark.parametrize(
    ("op", "why"),
    [("sleep:0", "no value"), ("pack:0", "has not ended"), ("nope:0", "no op"), ("late:0", "begins before")],
)
def test_what_has_no_value_cannot_be_edited(op: str, why: str) -> None:
    batches = journal(
        [WaitOpened("sleep:0", "timer", 900.0), ChildStarted("pack:0", "pack")],
        [StepStarted("late:0"), succeeded("late:0")],
    )
    with pytest.raises(UsageError, match=why):
        fork(batches, Point(4), values={op: Value(Raw(b"1"))})


def test_a_name_stands_for_the_first_op_of_that_name() -> None:
    batches = journal([StepStarted("x:0/a:0"), StepStarted("a:0")], [succeeded("a:0"), succeeded("x:0/a:0")])
    assert find(ops(batches), "a").path == "x:0/a:0"
    with pytest.raises(NoSuchOp, match="x:0/a:0, a:0"):
        forks.before(batches, "b")


# --- where a failed run continues -----------------------------------------------------------------------------------


def ending(error: Failure | None, *events: AnyEvent, status: RunStatus = RunStatus.FAILED) -> list[AnyEvent]:
    return [*events, RunFinished(status, error=error)]


# --- other arguments ------------------------------------------------------------------------------------------------


def call(*types: str, inputs: bytes, positional: int, keywords: tuple[str, ...] = ()) -> RunStep:
    spec = StepSpec("a", lambda: None, types=tuple((name, Any) for name in types))
    return RunStep("a:0", spec, inputs, "hash", positional, keywords)


def test_arguments_are_changed_by_name_however_they_were_given() -> None:
    command = call("x", "y", "=z", "**more", inputs=b"[1,2]", positional=1, keywords=("y",))
    changed = with_inputs(command, {"x": Raw(b"7"), "y": Raw(b"8"), "z": Raw(b"9"), "w": Raw(b"0")})
    assert isinstance(changed, RunStep)
    assert (changed.inputs, changed.positional, changed.keywords) == (b"[7,8,9,0]", 1, ("y", "z", "w"))
    assert changed.inputs_hash != "hash"
    with pytest.raises(UsageError, match="no argument 'w'; it takes x"):
        with_inputs(call("x", inputs=b"[1]", positional=1), {"w": Raw(b"1")})
    with pytest.raises(UsageError, match="takes no arguments"):
        with_inputs(StartTimer("sleep:0", 1.0), {"w": Raw(b"1")})


def test_a_child_takes_other_arguments_too() -> None:
    child = StartChild("pack:0", "pack", "1", b'{"a":1,"b":2}', "hash")
    changed = with_inputs(child, {"b": Raw(b"3")})
    assert isinstance(changed, StartChild)
    assert changed.input == b'{"a":1,"b":3}'
    with pytest.raises(UsageError, match="by position"):
        with_inputs(msgspec.structs.replace(child, input=b"[1]"), {"b": Raw(b"3")})
