"""Upkeep in memory. References to blobs are searched for at each collection."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perdure.kernel.events import BLOB_MARK, RunStatus, decode_events, references
from perdure.kernel.projection import RunRow
from perdure.ports.upkeep import Collected, Ended, Load

if TYPE_CHECKING:
    from perdure.stores.memory.store import MemoryBlobs, MemoryJournal


class MemoryUpkeep:
    """The upkeep of a store in memory."""

    def __init__(self, journal: MemoryJournal, blobs: MemoryBlobs) -> None:
        self._journal, self._blobs = journal, blobs
        self._kept: set[str] = set()

    async def loads(self) -> Sequence[Load]:
        """How many unfinished root runs each owner has."""
        rows = [row for row in self._journal.rows.values() if row.finished_at is None and not row.root]
        count = Counter((row.owner, row.status is RunStatus.RUNNING) for row in rows)
        owners = sorted({owner for owner, _ in count}, key=lambda owner: (owner is not None, owner or ""))
        return [Load(owner, count[owner, True], count[owner, False]) for owner in owners]

    async def list_ended(
        self, before: float, statuses: Sequence[RunStatus], limit: int, after: str = ""
    ) -> Sequence[Ended]:
        """Root runs of these statuses that ended before that moment, by run_id."""
        found = [
            Ended(row.run_id, row.id, row.program, row.status, row.finished_at, self._journal.head_of[row.run_id].size)
            for row in self._journal.rows.values()
            if not row.root and row.finished_at is not None and row.finished_at < before
            if row.status in statuses and row.run_id > after
        ]
        return sorted(found, key=lambda ended: ended.run_id)[:limit]

    async def remove(self, run_ids: Sequence[str]) -> Sequence[str]:
        """Remove runs that have ended, with everything that belongs to them."""
        rows = self._journal.rows
        roots = [row for row in rows.values() if not row.root]
        gone = [row for row in roots if row.run_id in run_ids and row.finished_at is not None]
        gone = [
            row
            for row in gone
            if not any(o.id == row.id and o.incarnation < row.incarnation and o.run_id not in run_ids for o in roots)
        ]
        for row in gone:
            for child in self._children(row.run_id):
                self._journal.forget_row(child)
            self._journal.forget_row(row)
            del self._journal.batches[row.run_id], self._journal.head_of[row.run_id]
        self._journal.commits += bool(gone)
        return sorted(row.run_id for row in gone)

    def _children(self, run_id: str) -> list[RunRow]:
        return [row for row in self._journal.rows.values() if row.root == run_id]

    async def collect(self, age: float, limit: int, *, dry_run: bool = False) -> Collected:
        """Remove blobs that no journal refers to and that were last put over `age` seconds ago."""
        used = self.used() | self._kept
        before = time.time() - age
        gone = [blob for blob, at in self._blobs.put_at.items() if at <= before and blob not in used][:limit]
        collected = Collected(len(gone), sum(len(self._blobs.blobs[blob]) for blob in gone))
        if not dry_run:
            for blob in gone:
                del self._blobs.blobs[blob], self._blobs.put_at[blob]
        return collected

    def used(self) -> set[str]:
        """The blobs that journals refer to."""
        found: set[str] = set()
        for batches in self._journal.batches.values():
            for _, _, data in batches:
                if BLOB_MARK in data:
                    found.update(references(decode_events(data)))
        return found

    async def keep(self, blob_id: str) -> None:
        """Never collect this blob."""
        self._kept.add(blob_id)

    async def journals(self, after: str, limit: int) -> Sequence[str]:
        """The run_ids of all journals, in order."""
        return sorted(run_id for run_id in self._journal.head_of if run_id > after)[:limit]

    async def reproject(self, run_id: str, expected_next: int, rows: Sequence[RunRow]) -> bool:
        """Replace the rows of a journal's run and its children."""
        head = self._journal.head_of.get(run_id)
        if head is None or head.next_seq != expected_next:
            return False
        for row in (*self._children(run_id), self._journal.rows.get(run_id)):
            if row is not None:
                self._journal.forget_row(row)
        for row in rows:
            self._journal.put_row(row)
        self._journal.commits += 1
        return True
