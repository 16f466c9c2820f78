"""Journals in files, one for each run. All of them are in memory too, which answers every read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from perdure.errors import Corrupt, StoreUnavailable
from perdure.kernel.events import Batch
from perdure.kernel.projection import RunRow
from perdure.logs import log
from perdure.ports.journal import Append, Appended, Head, Outcome
from perdure.stores.file.folder import Folder
from perdure.stores.file.lines import Change, Line, changed, fields, merged, read_line, sealed, written
from perdure.stores.memory.store import MemoryJournal, MemoryRuns

# Every process that opens the store reads all of it: beyond this size another backend does better.
MANY_RUNS, MANY_BYTES = 5_000, 64 * 1024 * 1024


class FileJournal(MemoryJournal):
    """A journal in memory that writes its commits to files, and reads those of other processes from them."""

    def __init__(self, folder: Folder) -> None:
        super().__init__()
        self._folder = folder
        self._stale = True
        # The length of each file once all commits are applied to it.
        self._sizes: dict[str, int] = {}
        self.damaged: dict[str, Corrupt] = {}
        # The appends that are being committed, each with its rows as they were before.
        self._done: list[tuple[Append, dict[str, RunRow | None]]] = []

    # --- the commits of other processes -----------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read the commits of other processes."""
        if not self._stale and self._learn():
            return
        with self._folder.writing():
            self._load()

    def _learn(self) -> bool:
        """Read the commits of other processes; False when everything must be read again."""
        changes = self._folder.read_commits()
        if changes is None:
            self._stale = True
            return False
        for change in changes:
            self._learn_of(change)
        self.commits += bool(changes)
        return True

    def _learn_of(self, change: Change) -> None:
        if change.kind != "append":
            self.forget(change.run)
        if change.kind != "remove":
            data = bytes(change.line)
            self._fold_line(change.run, read_line(data))
            self._sizes[change.run] = change.offset + len(data) + 1

    def _load(self) -> None:
        """Read everything. The caller holds the write lock."""
        for name in ("batches", "head_of", "rows", "latest", "children", "_sizes", "damaged"):
            getattr(self, name).clear()
        self.queues.clear()
        for run_id, data in self._folder.all():
            self._sizes[run_id] = self._load_run(run_id, data)
        self._stale = False
        self.commits += 1
        total = sum(self._sizes.values())
        if len(self._sizes) > MANY_RUNS or total > MANY_BYTES:
            log.warning(
                "%s holds %s runs in %s bytes, and every process reads all of it; for more than a prototype use "
                "'sqlite:///runs.db'",
                self._folder.url,
                f"{len(self._sizes):,}",
                f"{total:,}",
            )

    def _load_run(self, run_id: str, data: bytes) -> int:
        """Load the file of a run; returns its length without a torn line at the end."""
        whole = data.rfind(b"\n") + 1
        path = self._folder.run(run_id)
        if whole < len(data):
            self._folder.cut(run_id, whole)
            log.warning("%s ended in the middle of a line; these %d bytes were cut off", path, len(data) - whole)
        for number, line in enumerate(data[:whole].splitlines(), 1):
            try:
                self._fold_line(run_id, read_line(line))
            except ValueError as error:
                found = Corrupt(f"{path}, line {number},", str(error), run_id)
                if self.damaged.setdefault(run_id, found) is found:
                    log.error("%s", found)
                    self._fold_damaged(run_id, line)
        return whole

    def _fold_damaged(self, run_id: str, line: bytes) -> None:
        """Load the rows of a line whose events are damaged: the run cannot continue, and is still listed."""
        try:
            self._fold_line(run_id, read_line(line))
        except ValueError:
            pass

    def _fold_line(self, run_id: str, line: Line) -> None:
        """Load a line. Raises ValueError when it does not continue the journal."""
        head = self.head_of.get(run_id)
        if line.batches and head is not None and line.batches[0].seq != head.next_seq and run_id not in self.damaged:
            raise ValueError(f"it begins with number {line.batches[0].seq}, and should begin with {head.next_seq}")
        if line.replaced:
            self._forget_rows(run_id)
        if line.batches:
            last = line.batches[-1]
            encoded = [(batch.seq, batch.at, bytes(batch.events)) for batch in line.batches]
            size = sum(len(data) for _, _, data in encoded) + (head.size if head is not None else 0)
            count = len(msgspec.json.decode(last.events, type=list[msgspec.Raw]))
            self.batches.setdefault(run_id, []).extend(encoded)
            self.head_of[run_id] = Head(last.seq + count, last.at, size)
        for key, change in line.rows.items():
            self.put_row(merged(self.rows.get(key), change))

    def forget(self, run_id: str) -> None:
        """Remove a run, with its children."""
        self._forget_rows(run_id)
        for known in (self.batches, self.head_of, self._sizes, self.damaged):
            cast("dict[str, object]", known).pop(run_id, None)

    def _forget_rows(self, run_id: str) -> None:
        for row in [row for row in self.rows.values() if run_id in (row.run_id, row.root)]:
            self.forget_row(row)

    # --- writing ----------------------------------------------------------------------------------------------------

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """Write each append wholly or not at all, in one commit."""
        with self._folder.writing():
            self.be_fresh()
            self._done.clear()
            outcomes = super().append(appends)
            ends: dict[str, int] = {}
            changes = []
            for append, before in self._done:
                line = sealed(Line(written(append.batches), _row_changes(append, before)))
                offset = ends.get(append.run_id, self._sizes.get(append.run_id, 0))
                ends[append.run_id] = offset + len(line) + 1
                changes.append(Change(append.run_id, "append", offset, msgspec.Raw(line)))
            self.commit(changes, fsync=any(append.fsync for append in appends))
        return outcomes

    def _append(self, append: Append) -> Outcome:
        rows = ([append.row] if append.row is not None else []) + list(append.children)
        before = {row.run_id: self.rows.get(row.run_id) for row in rows}
        outcome = super()._append(append)
        if isinstance(outcome, Appended):
            self._done.append((append, before))
        return outcome

    async def rewrite(self, run_id: str, expected_next: int, batches: Sequence[Batch]) -> Outcome:
        """Replace a whole journal by these batches."""
        with self._folder.writing():
            self.be_fresh()
            outcome = await super().rewrite(run_id, expected_next, batches)
            if isinstance(outcome, Appended):
                rows = {row.run_id: fields(row) for row in self.rows.values() if run_id in (row.run_id, row.root)}
                self.commit([Change(run_id, "rewrite", 0, msgspec.Raw(sealed(Line(written(batches), rows))))])
                self.damaged.pop(run_id, None)
        return outcome

    def commit(self, changes: Sequence[Change], *, fsync: bool = True) -> None:
        """Write what memory already has, under the write lock. If that fails, memory is loaded again from the files."""
        if not changes:
            return
        try:
            self._folder.commit(changes, fsync=fsync)
        except StoreUnavailable:
            self._stale = True
            raise
        for change in changes:
            if change.kind == "remove":
                self._sizes.pop(change.run, None)
            else:
                self._sizes[change.run] = change.offset + len(bytes(change.line)) + 1

    def offset(self, run_id: str) -> int:
        """The position of the next line of a run."""
        return self._sizes.get(run_id, 0)

    def be_fresh(self) -> None:
        """Read the commits of other processes. The caller holds the write lock."""
        if self._stale or not self._learn():
            self._load()

    # --- reading ----------------------------------------------------------------------------------------------------

    async def read(self, run_id: str, start: int = 0, limit: int | None = None) -> list[Batch]:
        """The events from number `start` on, at most `limit` of them."""
        self.refresh()
        if run_id in self.damaged:
            raise self.damaged[run_id]
        return await super().read(run_id, start, limit)

    async def read_many(self, run_ids: Sequence[str]) -> dict[str, list[Batch] | Exception]:
        """Whole journals, or why they cannot be read."""
        self.refresh()
        sound = [run_id for run_id in run_ids if run_id not in self.damaged]
        found = await super().read_many(sound)
        return found | {run_id: self.damaged[run_id] for run_id in run_ids if run_id in self.damaged}

    async def heads(self, run_ids: Sequence[str]) -> dict[str, int]:
        """The next number of each of these journals that exists."""
        self.refresh()
        return await super().heads(run_ids)

    async def head(self, run_id: str) -> Head | None:
        """The end of the journal."""
        self.refresh()
        return await super().head(run_id)


class FileRuns(MemoryRuns):
    """The rows of runs. A run whose file is damaged from its beginning has no row, and raises its error."""

    def __init__(self, journal: FileJournal) -> None:
        super().__init__(journal)
        self._damaged = journal.damaged

    async def get(self, run_id: str) -> RunRow | None:
        """One run, or None."""
        found = await super().get(run_id)
        if found is None and run_id in self._damaged:
            raise self._damaged[run_id]
        return found

    async def finished(self, run_ids: Sequence[str]) -> Sequence[RunRow | Corrupt]:
        """Those of `run_ids` that have ended, are parked or cannot be read."""
        lost = [self._damaged[id] for id in run_ids if id in self._damaged and id not in self._journal.rows]
        return [*await super().finished(run_ids), *lost]


def _row_changes(append: Append, before: dict[str, RunRow | None]) -> dict[str, dict[str, msgspec.Raw]]:
    rows = ([append.row] if append.row is not None else []) + list(append.children)
    return {row.run_id: changed(before[row.run_id], row) for row in rows}
