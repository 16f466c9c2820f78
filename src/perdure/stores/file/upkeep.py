"""Upkeep of files: what is removed from memory is removed from the disk too."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from perdure.kernel.events import RunStatus
from perdure.kernel.projection import RunRow
from perdure.ports.upkeep import Collected, Ended, Load
from perdure.stores.file.blobs import FileBlobs
from perdure.stores.file.folder import Folder
from perdure.stores.file.journal import FileJournal
from perdure.stores.file.lines import Change, Line, fields, sealed
from perdure.stores.memory.upkeep import MemoryUpkeep


class FileUpkeep:
    """The upkeep of a file store."""

    def __init__(self, folder: Folder, journal: FileJournal, blobs: FileBlobs, memory: MemoryUpkeep) -> None:
        self._folder, self._journal, self._blobs, self._memory = folder, journal, blobs, memory

    async def loads(self) -> Sequence[Load]:
        """How many unfinished root runs each owner has."""
        self._journal.refresh()
        return await self._memory.loads()

    async def ended(self, before: float, statuses: Sequence[RunStatus], limit: int, after: str = "") -> Sequence[Ended]:
        """Root runs of these statuses that ended before that moment, by run_id."""
        self._journal.refresh()
        return await self._memory.ended(before, statuses, limit, after)

    async def remove(self, run_ids: Sequence[str]) -> Sequence[str]:
        """Remove runs that have ended, with everything that belongs to them."""
        with self._folder.writing():
            self._journal.be_fresh()
            gone = await self._memory.remove(run_ids)
            self._journal.commit([Change(run_id, "remove") for run_id in gone])
        return gone

    async def collect(self, age: float, limit: int, *, dry_run: bool = False) -> Collected:
        """Remove blobs that no journal refers to and that were last put over `age` seconds ago."""
        with self._folder.writing():
            self._journal.be_fresh()
            before = time.time() - age
            # A journal that cannot be read may refer to anything.
            if self._journal.damaged:
                return Collected(0, 0)
            used = self._memory.used() | self._blobs.kept()
            gone = [(id, size) for id, at, size in self._blobs.all() if at <= before and id not in used][:limit]
            if not dry_run:
                for id, _ in gone:
                    self._blobs.remove(id)
        return Collected(len(gone), sum(size for _, size in gone))

    async def keep(self, blob_id: str) -> None:
        """Never collect this blob."""
        with self._folder.writing():
            self._blobs.keep(blob_id)

    async def journals(self, after: str, limit: int) -> Sequence[str]:
        """The run_ids of all journals, in order."""
        self._journal.refresh()
        return await self._memory.journals(after, limit)

    async def reproject(self, run_id: str, expected_next: int, rows: Sequence[RunRow]) -> bool:
        """Replace the rows of a journal's run and its children."""
        with self._folder.writing():
            self._journal.be_fresh()
            if not await self._memory.reproject(run_id, expected_next, rows):
                return False
            line = sealed(Line(rows={row.run_id: fields(row) for row in rows}, replaced=True))
            self._journal.commit([Change(run_id, "append", self._journal.offset(run_id), msgspec.Raw(line))])
        return True
