"""Which outcomes the retry of a failed run withdraws, and which it keeps."""

from __future__ import annotations

import pytest

from perdure import UsageError
from perdure.kernel.events import (
    AnyEvent,
    Batch,
    CancelRequested,
    ChildFinished,
    ChildStarted,
    OutcomeKept,
    RunFinished,
    RunStatus,
    SignalReceived,
    StepFailed,
    StepStarted,
    WaitOpened,
    WaitResolved,
)
from perdure.kernel.history import fork as forks
from perdure.kernel.history.retry_points import Withdrawn, retried, withdrawals
from perdure.kernel.state import fold
from perdure.kernel.values.failures import Failure
from tests.kernel.history.test_fork import BOOM, ending, journal, succeeded

OTHER = Failure("x.Y", "z")


def withdrawn(batches: list[Batch]) -> set[str]:
    return set(withdrawals(batches)[0].ops)


def kept(batches: list[Batch], without: Withdrawn | None = None) -> list[tuple[str, str]]:
    made = retried(batches, without or withdrawals(batches)[0], forks.beginning(batches, "r0", 1000.0), 1000.0)
    fold("r1", made)  # it is a journal
    return [(e.op, e.kind) for batch in made for e in batch.events if isinstance(e, OutcomeKept)]


def test_an_unhandled_failure_runs_again_and_a_handled_one_does_not() -> None:
    batches = journal(
        [StepStarted("a:0")],
        [StepFailed("a:0", 1, BOOM), StepStarted("b:0")],  # caught
        [succeeded("b:0"), StepStarted("c:0")],
        ending(OTHER, StepFailed("c:0", 3, OTHER)),
    )
    assert withdrawn(batches) == {"c:0"}
    assert kept(batches) == [("a:0", "failed"), ("b:0", "succeeded"), ("c:0", "again")]


def test_a_loop_that_continues_after_a_failure_has_not_handled_it() -> None:
    batches = journal(
        [StepStarted("w:0/a:0")],
        [succeeded("w:0/a:0"), StepStarted("w:0/b:0")],
        [StepFailed("w:0/b:0", 1, BOOM), StepStarted("w:0/a:1")],
        ending(OTHER, succeeded("w:0/a:1")),
    )
    assert withdrawn(batches) == {"w:0/b:0"}


def test_what_failed_is_found_behind_the_error_that_it_became() -> None:
    other = Failure("shop.Refused", "no", cause=BOOM)
    group = Failure("builtins.ExceptionGroup", "two", errors=(Failure("x.Y", "z"), BOOM))
    for error in (other, group, Failure("shop.Gone", "without a trace")):
        batches = journal([StepStarted("a:0")], ending(error, StepFailed("a:0", 1, BOOM)))
        assert withdrawn(batches) == {"a:0"}


def test_after_an_error_of_the_body_all_is_kept_but_what_was_given_up() -> None:
    batches = journal(
        [StepStarted("a:0"), StepStarted("b:0")],
        [succeeded("a:0"), StepFailed("b:0", 1, BOOM, cancelled=True), RunFinished(RunStatus.FAILED, error=BOOM)],
    )
    assert withdrawals(batches) == [Withdrawn(5)]
    assert kept(batches) == [("a:0", "succeeded")]


def test_a_failure_in_a_child_runs_again_unless_the_parent_handled_it() -> None:
    inner: list[AnyEvent] = [
        StepFailed("pack:0/a:0", 1, BOOM),
        ChildFinished("pack:0", RunStatus.FAILED, error=BOOM),
    ]
    batches = journal([ChildStarted("pack:0", "pack"), StepStarted("pack:0/a:0")], ending(BOOM, *inner))
    assert withdrawn(batches) == {"pack:0", "pack:0/a:0"}
    batches = journal(
        [ChildStarted("pack:0", "pack"), StepStarted("pack:0/a:0")],
        [*inner, StepStarted("b:0")],
        ending(OTHER, StepFailed("b:0", 1, OTHER)),
    )
    assert kept(batches) == [("pack:0/a:0", "failed"), ("b:0", "again")]


def test_a_step_that_runs_at_most_once_is_not_called_again() -> None:
    batches = journal([StepStarted("a:0")], ending(BOOM, StepFailed("a:0", 1, BOOM, unknown=True)))
    with pytest.raises(UsageError, match="at most once"):
        withdrawals(batches)
    batches = journal(
        [StepStarted("a:0"), StepStarted("b:0")],
        [StepFailed("a:0", 1, BOOM, unknown=True)],
        ending(OTHER, StepFailed("b:0", 1, OTHER)),
    )
    assert [one.ops for one in withdrawals(batches)] == [{"b:0"}]


def test_a_retry_of_a_cancelled_run_keeps_everything_before_the_cancellation() -> None:
    batches = journal(
        [StepStarted("a:0"), succeeded("a:0")],
        [CancelRequested("x"), StepStarted("b:0")],
        ending(None, succeeded("b:0"), status=RunStatus.CANCELLED),
    )
    assert kept(batches) == [("a:0", "succeeded")]


def test_a_failed_compensation_runs_again_and_a_finished_one_forbids_a_retry() -> None:
    failed: list[AnyEvent] = [StepStarted("a:0"), StepFailed("a:0", 1, BOOM), StepStarted("compensate:0/undo:0")]
    batches = journal(failed, ending(BOOM, succeeded("compensate:0/undo:0")))
    with pytest.raises(UsageError, match="undone"):
        withdrawals(batches)
    both = Failure("perdure.errors.CompensationFailed", "1 of 1", cause=BOOM, errors=(OTHER,))
    batches = journal(failed, ending(both, StepFailed("compensate:0/undo:0", 1, OTHER)))
    assert withdrawn(batches) == {"compensate:0/undo:0"}


def test_a_retry_restarts_an_expired_timeout_and_keeps_a_finished_sleep() -> None:
    batches = journal(
        [WaitOpened("sleep:0", "timer", 10.0)],
        [WaitResolved("sleep:0", "timer"), WaitOpened("timer:0", "timer", 20.0), StepStarted("a:0")],
        [WaitResolved("timer:0", "timer"), StepFailed("a:0", 1, BOOM, cancelled=True), StepStarted("z:0")],
        ending(Failure("builtins.TimeoutError", ""), succeeded("z:0")),
    )
    assert [set(one.ops) for one in withdrawals(batches)] == [set(), {"timer:0"}]
    assert ("sleep:0", "waited") in kept(batches)


def test_a_retry_keeps_consumed_signals_with_their_waits_and_delivers_the_others() -> None:
    batches = journal(
        [WaitOpened("go:0", "signal", name="go"), SignalReceived("go", signal_id="1"), SignalReceived("go")],
        [WaitResolved("go:0", "signal"), StepStarted("a:0")],
        ending(BOOM, StepFailed("a:0", 1, BOOM)),
    )
    made = retried(batches, withdrawals(batches)[0], forks.beginning(batches, "r0", 1000.0), 1000.0)
    events = made[0].events
    assert [e for e in events if isinstance(e, SignalReceived)] == [SignalReceived("go")]
    assert kept(batches) == [("go:0", "waited"), ("a:0", "again")]
    assert getattr(events[0], "seen", ()) == ("1",)
