"""Which owners made no progress with a run."""

from __future__ import annotations

import pytest
from msgspec import Raw

from perdure.kernel.claims import only_waits, owners_without_progress, poisoned
from perdure.kernel.events import (
    AnyEvent,
    AttemptFailed,
    Batch,
    CancelRequested,
    ChunkAppended,
    RunClaimed,
    RunReleased,
    RunResumed,
    RunStarted,
    SignalReceived,
    SnapshotTaken,
    StepProgressed,
    StepStarted,
    StepSucceeded,
    WaitOpened,
    WaitResolved,
)
from perdure.kernel.state import fold
from perdure.kernel.values.failures import Failure

NULL = Raw(b"null")
BEGUN: list[AnyEvent] = [RunStarted("it", "flow", "1", NULL), RunClaimed("a", 1, "s1"), StepStarted("work:0")]


def journal(*events: AnyEvent) -> list[Batch]:
    """A batch for each event."""
    return [Batch(seq, float(seq), [event]) for seq, event in enumerate([*BEGUN, *events])]


def takeover(number: int, owner: str = "b") -> list[AnyEvent]:
    """A new owner, which repeats the attempt that was running."""
    return [RunClaimed(owner, number, f"s{number}"), StepStarted("work:0", number)]


def test_an_owner_that_began_something_is_not_counted() -> None:
    assert owners_without_progress(journal()) == []


def test_each_takeover_that_only_tries_again_is_counted() -> None:
    assert owners_without_progress(journal(*takeover(2, "b"), *takeover(3, "a"), *takeover(4, "b"))) == ["b", "a", "b"]


@pytest.mark.parametrize(
    "event",
    [
        StepSucceeded("work:0", NULL, 2),
        AttemptFailed("work:0", 2, Failure("E", "m"), 9.0),
        WaitOpened("sleep:0", "timer", 9.0),
        StepStarted("other:0"),
        RunReleased("b"),
        RunResumed(),
        StepProgressed("work:0", 2, NULL),
    ],
    ids=lambda event: type(event).__name__,
)
def test_progress_and_good_order_clear_an_owner(event: AnyEvent) -> None:
    assert owners_without_progress(journal(*takeover(2), event)) == []
    assert owners_without_progress(journal(*takeover(2), event, *takeover(3, "c"))) == ["c"]


@pytest.mark.parametrize(
    "event",
    [
        SignalReceived("go"),
        CancelRequested("enough"),
        SnapshotTaken(1, "blob", 1),
        ChunkAppended("work:0", 2, 0, (NULL,)),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_comes_from_outside_and_what_a_step_shows_is_no_progress(event: AnyEvent) -> None:
    assert owners_without_progress(journal(*takeover(2), event, *takeover(3))) == ["b", "b"]


def test_an_owner_that_claimed_twice_has_lived_with_it() -> None:
    resting: list[AnyEvent] = [RunClaimed("b", 2, "s2"), RunClaimed("b", 3, "s2")]
    assert owners_without_progress(journal(*resting)) == []
    assert owners_without_progress(journal(*resting, *takeover(4, "c"), *takeover(5, "d"))) == ["c", "d"]


def test_an_attempt_that_an_owner_survived_is_not_blamed_for_later_deaths() -> None:
    lived = [*takeover(2), RunClaimed("b", 3, "s2")]
    assert owners_without_progress(journal(*lived)) == []
    again = [*takeover(4, "c"), *takeover(5, "d"), *takeover(6, "e")]
    assert owners_without_progress(journal(*lived, *again)) == []
    assert owners_without_progress(journal(*lived, *again, StepSucceeded("work:0", NULL, 6), *takeover(7, "f"))) == [
        "f"
    ]


@pytest.mark.parametrize("told", [SignalReceived("go"), CancelRequested("enough")])
def test_an_external_event_since_may_be_what_kills(told: AnyEvent) -> None:
    lived = [*takeover(2), RunClaimed("b", 3, "s2")]
    assert owners_without_progress(journal(*lived, told, *takeover(4, "c"), *takeover(5, "d"))) == ["c", "d"]


def test_an_owner_that_survived_an_earlier_attempt_proves_nothing_about_a_later_one() -> None:
    waited: list[AnyEvent] = [RunClaimed("b", 2, "s2"), RunClaimed("b", 3, "s2"), StepStarted("work:0", 2)]
    assert owners_without_progress(journal(*waited, *takeover(4, "c"))) == ["c"]


def test_two_that_live_and_take_it_from_each_other_are_not_lost() -> None:
    one, other = RunClaimed("a", 2, "x"), RunClaimed("b", 3, "y")
    assert owners_without_progress(journal(one, other, one, other)) == ["a", "b"]
    assert owners_without_progress(journal(one, other, one, other), "x") == ["b"]
    assert owners_without_progress(journal(one, other, one), "x") == ["b"]


def test_a_run_that_only_waits_for_a_lock_has_nothing_to_do() -> None:
    asked = WaitOpened("lock:0", "lock", 9.0, "door", ttl=30.0)
    waits: list[AnyEvent] = [StepSucceeded("work:0", NULL), asked, RunClaimed("b", 2, "s2")]
    assert only_waits(fold("r", journal(*waits)), 8.0)
    assert not only_waits(fold("r", journal(*waits)), 9.0), "its time is up"
    assert not only_waits(fold("r", journal(*waits, CancelRequested("enough"))), 8.0)
    assert not only_waits(fold("r", journal(*waits, StepStarted("other:0"))), 8.0)
    assert not only_waits(fold("r", journal(*waits, WaitResolved("lock:0", "lock", Raw(b"1")))), 8.0)
    assert not only_waits(fold("r", journal(StepSucceeded("work:0", NULL))), 8.0), "it waits for nothing"


@pytest.mark.parametrize("kind", ["timer", "signal", "approval"])
def test_one_that_waits_inside_a_lock_only_waits(kind: str) -> None:
    asked = WaitOpened("lock:0", "lock", None, "door", ttl=30.0)
    held: list[AnyEvent] = [StepSucceeded("work:0", NULL), asked, WaitResolved("lock:0", "lock", Raw(b"1"))]
    assert not only_waits(fold("r", journal(*held)), 8.0), "its body has something to do"
    waits = [*held, WaitOpened("it:0", kind, 9.0, name="go"), RunClaimed("b", 2, "s2")]
    assert only_waits(fold("r", journal(*waits)), 8.0)
    assert not only_waits(fold("r", journal(*waits)), 9.0), "its time is up"
    assert not only_waits(fold("r", journal(*waits, CancelRequested("enough"))), 8.0)
    if kind == "signal":
        assert not only_waits(fold("r", journal(*waits, SignalReceived("go"))), 8.0), "what it waits for has come"


def test_the_reason_names_the_lost_owners_and_the_running_steps() -> None:
    state = fold("r", journal(*takeover(2), *takeover(3), *takeover(4)))
    parked = poisoned(state, ["b", "c", "b"])
    assert parked.kind == "poisoned"
    for part in ("3 orchestrators", "b, c, b", "work:0, attempt 4", "perdure resolve it", "--fail"):
        assert part in parked.reason
    idle = fold("r", [Batch(0, 0.0, BEGUN[:2])])
    assert "look at the body" in poisoned(idle, ["b"]).reason
