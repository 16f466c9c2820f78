"""The progress line: what it says, and that it says nothing where nobody watches."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pytest
from msgspec import Raw

from perdure.kernel.events import (
    AnyEvent,
    AttemptFailed,
    Batch,
    Entry,
    StepSkipped,
    StepStarted,
    StepSucceeded,
    ValueRecorded,
    WaitOpened,
    entries,
)
from perdure.kernel.values.failures import Failure
from perdure.ports.journal import Append
from perdure.progress import Progress, progress_line

NOON = datetime(2025, 6, 1, 12).astimezone().timestamp()


def append(events: Sequence[AnyEvent]) -> Append:
    return Append("r", 0, [Batch(0, 0.0, events)])


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([], "order: starting"),
        ([StepStarted("charge:0")], "order id: 0 steps done, now charge:0"),
        ([StepSucceeded("a:0", Raw(b"1")), StepStarted("b:0")], "order id: 1 step done, now b:0"),
        ([StepStarted("charge:0", 3)], "order id: 0 steps done, now charge:0, attempt 3"),
        (
            [AttemptFailed("charge:0", 1, Failure("E", "no"), NOON)],
            "order id: 0 steps done, charge:0 failed, next attempt at 12:00:00",
        ),
        ([WaitOpened("sleep:0", "timer", NOON)], "order id: 0 steps done, sleep:0 until 12:00:00"),
        ([WaitOpened("ship:0", "signal")], "order id: 0 steps done, waiting for ship:0"),
        ([ValueRecorded("now:0", "now")], "order: starting"),
    ],
)
def test_the_line_tells_of_the_last_thing_begun(events: list[AnyEvent], text: str) -> None:
    progress = Progress("order")
    progress.observe("id", append(events))
    assert progress.text == text


def test_steps_of_different_runs_are_counted_apart() -> None:
    progress = Progress("order")
    progress.observe("one", append([StepSucceeded("a:0", Raw(b"1"))]))
    progress.observe("two", append([StepStarted("a:0")]))
    assert progress.text == "order two: 0 steps done, now a:0"


def entries_of(*events: AnyEvent) -> list[Entry]:
    return entries("r", [Batch(0, 0.0, events)])


def test_a_run_that_is_resumed_is_counted_from_its_beginning() -> None:
    progress = Progress("order")
    before: list[AnyEvent] = [
        StepStarted("a:0"),
        StepSucceeded("a:0", Raw(b"1")),
        StepStarted("b:0"),
        StepSkipped("b:0", 1, Failure("E", "no")),
    ]
    progress.observe("id", Append("r", 4, [Batch(4, 0.0, [StepStarted("c:0")])]))
    # How far it was is not known yet, and nothing is claimed.
    assert progress.text == "order id: now c:0"
    after: list[AnyEvent] = [StepStarted("c:0"), StepSucceeded("c:0", Raw(b"1"))]
    progress.observe("id", Append("r", 5, [Batch(5, 0.0, after[1:])]))
    progress.recall("id", entries_of(*before, *after))
    assert progress.text == "order id: 3 steps done, now c:0"
    progress.observe("id", Append("r", 6, [Batch(6, 0.0, [StepStarted("d:0")])]))
    assert progress.text == "order id: 3 steps done, now d:0"


def test_a_run_whose_past_is_read_before_it_goes_on_is_counted_once() -> None:
    progress = Progress("order")
    progress.recall("id", entries_of(StepStarted("a:0"), StepSucceeded("a:0", Raw(b"1"))))
    progress.observe("id", Append("r", 2, [Batch(2, 0.0, [StepStarted("b:0")])]))
    assert progress.text == "order id: 1 step done, now b:0"
    progress.recall("other", [])
    assert progress.text == "order id: 1 step done, now b:0"


@pytest.mark.parametrize("wanted", [False, None])
def test_where_nobody_watches_nothing_is_observed(wanted: bool | None, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_line("order", wanted) as line:
        assert line is None
    assert capsys.readouterr() == ("", "")


def test_an_id_is_shown_as_it_is_and_not_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_line("order", True) as line:
        assert line is not None
        line("[/red] [bold]", append([StepStarted("a:0")]))
