"""Recompute the rows of runs from their journals, and mend those that say something else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Raw

from perdure.client.base import StoreClient
from perdure.errors import Corrupt, PerdureError
from perdure.kernel.events import Batch
from perdure.kernel.projection import RunRow, child_rows, row
from perdure.kernel.state import fold

# How many journals are read at a time.
PAGE = 50
# How often a run that advances meanwhile is read again.
TRIES = 5


@dataclass(frozen=True, slots=True)
class Difference:
    """A column of a run that differs from its journal. A row that is missing or damaged has the column `row`."""

    id: str
    run_id: str
    column: str
    stored: Any
    computed: Any


@dataclass(frozen=True, slots=True)
class DamagedJournal:
    """A journal that cannot be read; the row of its run is left as it is."""

    run_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """The report of a rebuild of all `journals`. `busy` runs changed while they were compared.

    `mended` is how many rows were replaced; with `dry_run`, would be.
    """

    journals: int = 0
    mended: int = 0
    differences: list[Difference] = field(default_factory=list)
    damaged: list[DamagedJournal] = field(default_factory=list)
    busy: list[str] = field(default_factory=list)
    dry_run: bool = False


class Rebuilder:
    """Rebuilds projections."""

    def __init__(self, base: StoreClient) -> None:
        self._base = base

    async def rebuild(self, *, dry_run: bool = False) -> RebuildReport:
        """Recompute the row of every run from its journal, report where the stored row differs, and replace it.

        Safe beside running engines: a row is replaced only if its journal has not changed meanwhile. A damaged journal
        is reported, and the others are rebuilt.
        """
        self._base.check_open()
        count = mended = 0
        report = RebuildReport(dry_run=dry_run)
        cursor = ""
        while page := await self._base.store.upkeep.journals(cursor, PAGE):
            cursor, count = page[-1], count + len(page)
            journals = await self._base.store.journal.read_many(page)
            for run_id in page:
                try:
                    found = await self._rebuilt(run_id, journals.get(run_id, []), dry_run, report)
                    report.differences.extend(found)
                    mended += bool(found)
                except PerdureError as error:
                    report.damaged.append(DamagedJournal(run_id, getattr(error, "reason", None) or str(error)))
            await asyncio.sleep(0)  # others have their turn
        return RebuildReport(count, mended, report.differences, report.damaged, report.busy, dry_run)

    async def _rebuilt(
        self, run_id: str, batches: Sequence[Batch] | Exception, dry_run: bool, report: RebuildReport
    ) -> list[Difference]:
        """The differences between a journal and its rows, which are mended unless `dry_run`."""
        for _ in range(TRIES):
            if isinstance(batches, Exception):
                raise batches
            if not batches:
                head = await self._base.store.journal.head(run_id)
                if head is None:
                    return []  # pruned meanwhile
                raise Corrupt(f"the journal of run_id {run_id}", "it has a head and no entries", run_id)
            rows, next_seq = _computed(run_id, batches)
            found = [difference for one in rows for difference in await self._differences(one)]
            if not found:
                return []
            if dry_run:
                # The row was read after the journal: if that has not grown since, the two belong together.
                if (await self._base.store.journal.heads([run_id])).get(run_id) == next_seq:
                    return found
            elif await self._base.store.upkeep.reproject(run_id, next_seq, rows):
                self._base.states.forget(run_id)
                return found
            batches = await self._base.store.journal.read(run_id)
        report.busy.append(run_id)
        return []

    async def _differences(self, computed: RunRow) -> list[Difference]:
        try:
            stored = await self._base.store.runs.get(computed.run_id)
        except Corrupt as damage:
            return [Difference(computed.id, computed.run_id, "row", f"damaged: {damage.reason}", "present")]
        if stored is None:
            return [Difference(computed.id, computed.run_id, "row", "missing", "present")]
        found = []
        for column in computed.__struct_fields__:
            mine, theirs = getattr(computed, column), getattr(stored, column)
            if mine != theirs:
                found.append(Difference(computed.id, computed.run_id, column, _shown(theirs), _shown(mine)))
        return found


def _computed(run_id: str, batches: Sequence[Batch]) -> tuple[list[RunRow], int]:
    """The rows that a journal implies, the root's first, and its next number."""
    try:
        state = fold(run_id, batches)
        return [row(state), *child_rows(state)], state.next_seq
    except PerdureError:
        raise
    except Exception as error:  # whatever a journal trips over that no engine has written
        reason = f"it is none that an engine could have written ({type(error).__name__}: {error})"
        raise Corrupt(f"the journal of run_id {run_id}", reason, run_id) from error


def _shown(value: Any) -> Any:
    if isinstance(value, Raw):
        return msgspec.json.decode(value)
    return msgspec.to_builtins(value)
