"""Make appends from events, for every writer that adds events to a run. Writes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.events import (
    NULL,
    AnyEvent,
    Batch,
    ChildFinished,
    ChildStarted,
    OutcomeKept,
    StepSucceeded,
    blob_of,
    with_value,
)
from perdure.kernel.projection import child_rows, row
from perdure.kernel.state import RunState, fold
from perdure.ports.journal import Append

# Events whose value the program gets whole, and that the journal may have offloaded.
OFFLOADABLE = frozenset({ChildStarted, ChildFinished, StepSucceeded, OutcomeKept})


def extend(state: RunState, events: Sequence[AnyEvent], now: float) -> Append:
    """The append that adds events to a run from outside; the state is then as it will be."""
    state.changed.clear()
    seq, at = state.next_seq, max(now, state.at)
    for event in events:
        state.fold(event, at)
    kept = [as_kept(event) for event in events]
    return Append(state.run_id, seq, [Batch(seq, at, kept)], row(state), children=child_rows(state), outside=True)


def create(run_id: str, batches: Sequence[Batch]) -> Append:
    """The append that brings a run into being with a past."""
    state = fold(run_id, batches)
    return Append(run_id, 0, batches, row(state), children=child_rows(state))


def as_kept(event: AnyEvent) -> AnyEvent:
    """An event as the journal keeps it: without a value that is offloaded."""
    if not blob_of(event):
        return event
    return with_value(event, NULL)
