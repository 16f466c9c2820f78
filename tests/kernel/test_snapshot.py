"""A snapshot drops finished ops, and nothing that can be observed of the run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from perdure import Corrupt
from perdure.kernel.events import (
    AnyEvent,
    AttemptFailed,
    Batch,
    ChunkAppended,
    RunClaimed,
    RunFinished,
    RunReleased,
    RunStarted,
    RunStatus,
    SnapshotTaken,
    StepProgressed,
    StepsHeld,
    StepStarted,
    StepSucceeded,
)
from perdure.kernel.projection import row
from perdure.kernel.snapshot import audited, decode_snapshot, encode_snapshot, needed, newest
from perdure.kernel.state import RunState, fold
from perdure.kernel.step_records import steps
from perdure.kernel.values.failures import Failure
from tests.kernel.table import Story, batches, stories


def told(state: RunState) -> dict[str, Any]:
    """Everything that can be observed of a state."""
    ops = {
        path: (
            op.kind,
            op.attempt,
            op.failures,
            op.running,
            op.due,
            op.name,
            op.source,
            op.emitted and op.emitted.chunks,
        )
        for path, op in state.ops.items()
    }
    plain = (
        "next_seq owner epoch session began_at created_at running steps parked paused cancel_requested inbox waits "
        "signal_ids answers approvals held locks lock_waits values ended child_ids at wake_at status"
    )
    return {"ops": ops, "row": row(state), **{name: getattr(state, name) for name in plain.split()}}


@given(stories(), st.data())
@settings(max_examples=100)
def test_a_run_from_a_snapshot_is_the_run_from_its_journal(story: Story, data: st.DataObject) -> None:
    journal = story.run().journal
    cut = data.draw(st.integers(1, len(journal)))
    seq, encoded = encode_snapshot("r1", batches(journal[:cut]))
    assert seq == cut
    taken = SnapshotTaken(seq, "b" * 64)
    at = journal[cut - 1][1]
    tail = [Batch(cut, at, [taken])]
    whole = fold("r1", [*batches(journal[:cut]), *tail])
    assert told(fold("r1", [*decode_snapshot(encoded, "r1", seq), *tail])) == told(whole)


def test_what_ended_steps_left_behind_is_left_out() -> None:
    failure = Failure("E", "no")
    events: list[AnyEvent] = [
        RunStarted("a", "p", "1", Raw(b"[]")),
        RunClaimed("m1", 1),
        StepStarted("a:0"),
        ChunkAppended("a:0", 1, 0, (Raw(b"1"),)),
        AttemptFailed("a:0", 1, failure, 3.0),
        StepStarted("a:0", 2),
        StepProgressed("a:0", 2, Raw(b"1")),
        StepSucceeded("a:0", Raw(b"1"), 2),
        RunReleased("m1"),
        RunClaimed("m2", 2),
        RunClaimed("m3", 3),
        SnapshotTaken(5, "x"),
        StepStarted("b:0"),
        ChunkAppended("b:0", 1, 0, (Raw(b"1"),)),
        AttemptFailed("b:0", 1, failure, 3.0),
    ]
    kept = needed([Batch(0, 1.0, events)])
    assert [(b.seq, [type(e).__name__ for e in b.events]) for b in kept] == [
        (0, ["RunStarted", "RunClaimed", "StepStarted"]),
        (7, ["StepSucceeded"]),
        (10, ["RunClaimed"]),
        (12, ["StepStarted", "ChunkAppended", "AttemptFailed"]),
    ]
    state = fold("r1", [Batch(0, 1.0, events[:11])])
    assert state.spent == 6
    assert newest([Batch(0, 1.0, events)]) == events[11]


def test_a_compacted_journal_has_everything_but_what_steps_showed() -> None:
    events: list[AnyEvent] = [
        RunStarted("a", "p", "1", Raw(b"[]")),
        RunClaimed("m1", 1),
        StepStarted("a:0"),
        ChunkAppended("a:0", 1, 0, (Raw(b"1"),)),
        AttemptFailed("a:0", 1, Failure("E", "no"), 3.0),
        StepStarted("a:0", 2),
        StepProgressed("a:0", 2, Raw(b"1")),
        StepSucceeded("a:0", Raw(b"1"), 2),
        RunFinished(RunStatus.COMPLETED, Raw(b"1")),
    ]
    journal = [Batch(n, float(n), [event]) for n, event in enumerate(events)]
    made = audited(journal)
    assert [b.seq for b in made] == list(range(7))
    assert row(fold("r1", made)) == row(fold("r1", journal))
    assert [len(step.attempts) for step in steps(made)] == [2]
    assert audited(made) == made


@pytest.mark.parametrize("data", [b"", b"{}", b"[" * 100_000, b'{"run_id":"r2","seq":1,"batches":[]}', b"\xff"])
def test_anything_but_a_snapshot_of_the_run_is_refused(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_snapshot(data, "r1", 1)


def test_what_could_not_begin_is_kept_only_while_it_could_not() -> None:
    begin: list[AnyEvent] = [RunStarted("a", "p", "1", Raw(b"[]")), RunClaimed("m1", 1), StepStarted("a:0")]
    failed = AttemptFailed("a:0", 1, Failure("E", "no"), 3.0)
    again: list[AnyEvent] = [failed, StepsHeld(1), StepStarted("a:0", 2), StepSucceeded("a:0", Raw(b"1"))]
    counts = RunClaimed("m1", 2, counts=True)
    counted: list[AnyEvent] = [*begin, counts, StepsHeld(9), StepsHeld(3), StepStarted("b:0")]
    counted += [StepSucceeded("b:0", Raw(b"1")), failed, StepStarted("a:0", 2)]
    for events in ([*begin, failed, StepsHeld(1)], [*begin, *again], [*begin, *again, StepsHeld(3)], counted):
        journal = [Batch(0, 1.0, events)]
        assert fold("r1", needed(journal)).held == fold("r1", journal).held
