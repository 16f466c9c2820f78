"""How much room events take, roughly: what limits are counted by."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.events import AnyEvent, Batch, ChunkAppended, OutcomeKept, SnapshotTaken

# A rough count of what an event adds to a journal besides its value.
EVENT_BYTES = 120


def weight(event: AnyEvent) -> int:
    """About how many bytes an event takes in a journal."""
    chunks = event.chunks if isinstance(event, ChunkAppended | OutcomeKept) else ()
    return EVENT_BYTES + len(getattr(event, "value", b"")) + sum(map(len, chunks))


def journal_size(batches: Sequence[Batch]) -> int:
    """About how many bytes a journal takes; what a snapshot leaves out of it is counted as well."""
    size = 0
    for event in (event for batch in batches for event in batch.events):
        size += weight(event)
        if isinstance(event, SnapshotTaken):
            size = max(size, event.size)
    return size
