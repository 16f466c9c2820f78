"""The rows of a journal: written incrementally or rebuilt from the whole journal, they are the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from perdure.kernel.events import (
    Batch,
    RunClaimed,
    RunFinished,
    RunParked,
    RunPaused,
    RunResumed,
    RunStarted,
    RunStatus,
)
from perdure.kernel.projection import RunRow, project, row, row_key
from perdure.kernel.state import RunState
from perdure.kernel.values.failures import Failure
from tests.kernel.table import Story, batches, stories


@given(stories(), st.data())
def test_incremental_rows_equal_rows_rebuilt_from_the_journal(story: Story, data: st.DataObject) -> None:
    journal = story.run().journal
    state, written, key, running = RunState("r1"), None, None, False
    # An owner writes a row when its key has changed since the last append, wherever its appends end. It does not look
    # at the key if steps were under way then and are now, and nothing has moved the row.
    ends = sorted({*data.draw(st.sets(st.integers(1, len(journal)))), len(journal)})
    for seq, (event, at) in enumerate(journal, 1):
        state.fold(event, at)
        if seq in ends:
            before, running = running, state.running > 0 and state.owner is not None
            if not (before and running) or state.row_moved:
                if row_key(state) != key:
                    key, written = row_key(state), row(state)
                state.row_moved = False
            assert written == project("r1", batches(journal[:seq]))


@given(stories())
def test_a_row_does_not_depend_on_how_the_journal_was_batched(story: Story) -> None:
    journal = story.run().journal
    assert project("r1", batches(journal)) == project("r1", batches(journal, range(len(journal))))


def test_the_row_of_a_run_paused_twice_in_one_append_has_the_last_reason() -> None:
    state = RunState("r1")
    for event in (RunStarted("r", "w", "1", Raw(b"[]")), RunClaimed("a", 1), RunPaused("first")):
        state.fold(event, 1.0)
    key = row_key(state)
    for again in (RunResumed(), RunPaused("second")):
        state.fold(again, 2.0)
    assert row_key(state) != key


def test_a_row_holds_what_lists_and_orchestrators_need() -> None:
    failure = Failure("builtins.ValueError", "no")
    started = RunStarted("order-1", "checkout", "3", Raw(b"[1]"), "a" * 64, 2, {"team": "a"})
    finished = RunFinished(RunStatus.FAILED, Raw(b"null"), "b" * 64, failure, "because")
    journal = [Batch(0, 10.0, [started, RunClaimed("host-1", 4)]), Batch(2, 20.0, [finished])]
    assert project("r1", journal) == RunRow(
        run_id="r1",
        id="order-1",
        incarnation=2,
        program="checkout",
        version="3",
        status=RunStatus.FAILED,
        owner="host-1",
        epoch=4,
        wake_at=None,
        created_at=10.0,
        finished_at=20.0,
        tags={"team": "a"},
        input=Raw(b"[1]"),
        input_blob="a" * 64,
        output=Raw(b"null"),
        output_blob="b" * 64,
        error=failure,
        reason="because",
    )


def test_a_parked_run_has_its_reason_until_it_is_resolved() -> None:
    started = RunStarted("order-1", "checkout", "1", Raw(b"[]"))
    journal = [Batch(0, 1.0, [started, RunClaimed("host-1", 1), RunParked("the code changed")])]
    assert project("r1", journal).reason == "the code changed"
    resumed = [*journal, Batch(3, 2.0, [RunResumed()])]
    assert project("r1", resumed).reason == ""
