"""Make the journals of finished runs smaller. Only on request, and only by what no reader can need any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perdure.client.base import StoreClient
from perdure.errors import UsageError
from perdure.kernel.events import Batch, encode_events
from perdure.kernel.snapshot import audited
from perdure.ports.journal import Appended


@dataclass(frozen=True, slots=True)
class CompactReport:
    """The size of a journal before and after. With `dry_run`, what it would be after."""

    id: str
    events_before: int
    events_after: int
    bytes_before: int
    bytes_after: int


async def compact(base: StoreClient, id: str, *, dry_run: bool = False) -> CompactReport:
    """Leave out of a finished run's journal what its steps emitted before they ended: chunks and progress."""
    run, _ = await base.require(id)
    root = run.root or run.run_id
    row = run if not run.root else await base.store.runs.get(run.root)
    if row is None or not row.status.finished:
        raise UsageError(f"run {id!r} has not finished; compact it when it has")
    batches = await base.store.journal.read(root)
    kept = audited(batches)
    before, after = _count(batches), _count(kept)
    if not dry_run and after != before:
        outcome = await base.store.journal.rewrite(root, before, kept)
        # Nothing is appended to a finished run: another caller has compacted it.
        assert isinstance(outcome, Appended) or _count(await base.store.journal.read(root)) == after
        base.states.forget(root)
    return CompactReport(row.id, before, after, _size(batches), _size(kept))


def _count(batches: Sequence[Batch]) -> int:
    return sum(len(batch.events) for batch in batches)


def _size(batches: Sequence[Batch]) -> int:
    return sum(len(encode_events(batch.events)) for batch in batches)
