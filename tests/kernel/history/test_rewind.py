"""From which point a rewound run continues, and what it keeps. Pure functions of journals."""

from __future__ import annotations

import pytest
from msgspec import Raw

from perdure.errors import NoSuchOp, NotParked, UsageError
from perdure.kernel.events import (
    Batch,
    CancelRequested,
    ChildFinished,
    ChildStarted,
    RunFinished,
    RunForked,
    RunParked,
    RunStatus,
    SignalReceived,
    StepStarted,
    WaitOpened,
    WaitResolved,
)
from perdure.kernel.history import fork as forks
from perdure.kernel.history.rewind import end, forgotten, points, truncate
from perdure.kernel.inbound import Finished
from perdure.kernel.state import fold
from tests.kernel.history.test_fork import journal, kept, succeeded

PARKED = RunParked("it does not fit", "diverged")


def cut(batches: list[Batch], op: str) -> list[Batch]:
    started = forks.beginning(batches, "r0", 1000.0, incarnation=2)
    return truncate(batches, points(batches, op)[0], started, 1000.0)


def test_the_op_and_what_followed_from_it_are_forgotten() -> None:
    batches = journal(
        [StepStarted("a:0")],
        [succeeded("a:0"), StepStarted("b:0")],
        [succeeded("b:0"), StepStarted("c:0")],
        [succeeded("c:0"), PARKED],
    )
    past = cut(batches, "b:0")
    assert kept(past) == [StepStarted("a:0"), succeeded("a:0")]
    assert forgotten(batches, past) == ("b:0", "c:0")


def test_an_op_can_be_named_without_its_number() -> None:
    batches = journal([StepStarted("a:0")], [succeeded("a:0"), StepStarted("b:0"), PARKED])
    assert kept(cut(batches, "b")) == [StepStarted("a:0"), succeeded("a:0")]
    with pytest.raises(NoSuchOp):
        points(batches, "c")


def test_a_rewind_first_tries_to_keep_concurrent_ops_and_then_drops_them() -> None:
    batches = journal(
        [StepStarted("a:0"), StepStarted("b:0")], [succeeded("a:0")], [succeeded("b:0"), StepStarted("c:0"), PARKED]
    )
    most, least = points(batches, "b:0")
    assert (most.seq, most.anew) == (5, frozenset({"b:0"}))
    assert (least.seq, least.anew) == (3, frozenset())


def test_signals_come_again_also_those_that_were_taken() -> None:
    first, second, third = (SignalReceived(name, Raw(b"1"), f"id {name}") for name in ("go", "x", "y"))
    batches = journal(
        [WaitOpened("go:0", "signal", name="go")],
        [first],
        [WaitResolved("go:0", "signal"), StepStarted("a:0")],
        [second, succeeded("a:0"), WaitOpened("x:0", "signal", name="x")],
        [WaitResolved("x:0", "signal"), PARKED],
        [third],
    )
    state = fold("r1", cut(batches, "go:0"))
    assert {name: list(waiting) for name, waiting in state.inbox.items()} == {
        "go": [first],
        "x": [second],
        "y": [third],
    }
    assert {key.id for key in state.signal_ids} == {"id go", "id x", "id y"}
    state = fold("r1", cut(batches, "a:0"))
    assert {name: list(waiting) for name, waiting in state.inbox.items() if waiting} == {"x": [second], "y": [third]}


def test_signals_to_children_that_have_ended_in_the_past_do_not_come() -> None:
    lost, kept_one = SignalReceived("s", child="a:0"), SignalReceived("s", child="b:0")
    batches = journal(
        [ChildStarted("a:0", "part")],
        [ChildFinished("a:0", RunStatus.COMPLETED), StepStarted("x:0")],
        [succeeded("x:0"), ChildStarted("b:0", "part")],
        [lost, kept_one, PARKED],
    )
    past = cut(batches, "x:0")
    assert [event for batch in past for event in batch.events if isinstance(event, SignalReceived)] == [kept_one]


def test_a_rewind_keeps_a_cancellation_once() -> None:
    asked = CancelRequested("enough")
    batches = journal([StepStarted("a:0")], [succeeded("a:0"), StepStarted("b:0")], [asked, PARKED])
    for op in ("a:0", "b:0"):
        past = cut(batches, op)
        assert [event for batch in past for event in batch.events].count(asked) == 1
        assert fold("r1", past).cancel_requested == asked


def test_a_continued_journal_has_its_mark_and_no_gap() -> None:
    batches = journal([StepStarted("a:0")], [succeeded("a:0"), PARKED], [SignalReceived("go")])
    past = cut(batches, "a:0")
    assert [batch.seq for batch in past] == [sum(len(b.events) for b in past[:n]) for n in range(len(past))]
    assert sum(isinstance(event, RunForked) for batch in past for event in batch.events) == 1
    started = past[0].events[0]
    assert (started.incarnation, started.forked_from) == (2, "r0")  # type: ignore[union-attr]


def test_only_a_run_that_is_parked_ends_for_it() -> None:
    batches = journal([StepStarted("a:0")])
    with pytest.raises(NotParked):
        end(fold("r0", batches), "a:0", "r1")
    stands = fold("r0", journal([StepStarted("a:0"), PARKED]))
    assert end(stands, "a:0", "r1") == [
        RunFinished(RunStatus.CANCELLED, reason="it continues from before a:0", continued_as="r1")
    ]
    ended = fold("r0", journal([RunFinished(RunStatus.FAILED)]))
    assert end(ended, "a:0", "r1") == Finished(RunStatus.FAILED)
    with pytest.raises(UsageError, match="without some of its values"):
        end(fold("r0", journal([StepStarted("a:0"), RunParked("", "redacted")])), "a:0", "r1")
