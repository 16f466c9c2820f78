"""Upkeep of files: what is removed from memory is removed from the disk too."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from perdure.kernel.projection import RunRow
from perdure.ports.upkeep import Collected
from perdure.stores.file.blobs import FileBlobs
from perdure.stores.file.folder import Folder
from perdure.stores.file.journal import FileJournal
from perdure.stores.file.lines import Change, Line, fields, sealed
from perdure.stores.memory.store import MemoryBlobs
from perdure.stores.memory.upkeep import MemoryUpkeep


class FileUpkeep(MemoryUpkeep):
    """The upkeep of a file store."""

    def __init__(self, folder: Folder, journal: FileJournal, blobs: FileBlobs) -> None:
        super().__init__(journal, MemoryBlobs())
        self._folder, self._files, self._stored = folder, journal, blobs

    async def remove(self, run_ids: Sequence[str]) -> Sequence[str]:
        """Remove runs that have ended, with everything that belongs to them."""
        with self._folder.writing():
            self._files.be_fresh()
            gone = await super().remove(run_ids)
            self._files.commit([Change(run_id, "remove") for run_id in gone])
        return gone

    async def collect(self, age: float, limit: int, *, dry_run: bool = False) -> Collected:
        """Remove blobs that no journal refers to and that were last put over `age` seconds ago."""
        with self._folder.writing():
            self._files.be_fresh()
            before = time.time() - age
            # A journal that cannot be read may refer to anything.
            if self._files.damaged:
                return Collected(0, 0)
            used = self.used() | self._stored.kept()
            gone = [(id, size) for id, at, size in self._stored.all() if at <= before and id not in used][:limit]
            if not dry_run:
                for id, _ in gone:
                    self._stored.remove(id)
        return Collected(len(gone), sum(size for _, size in gone))

    async def keep(self, blob_id: str) -> None:
        """Never collect this blob."""
        with self._folder.writing():
            self._stored.keep(blob_id)

    async def reproject(self, run_id: str, expected_next: int, rows: Sequence[RunRow]) -> bool:
        """Replace the rows of a journal's run and its children."""
        with self._folder.writing():
            self._files.be_fresh()
            if not await super().reproject(run_id, expected_next, rows):
                return False
            line = sealed(Line(rows={row.run_id: fields(row) for row in rows}, replaced=True))
            self._files.commit([Change(run_id, "append", self._files.offset(run_id), msgspec.Raw(line))])
        return True
