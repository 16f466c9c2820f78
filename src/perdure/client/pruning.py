"""Remove runs that ended long ago, and what only they needed. Only on request, and never a run that has not ended."""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from urllib.parse import quote

from perdure.client.base import StoreClient
from perdure.client.capsules import Capsules
from perdure.client.credentials import LINK_SECONDS, SESSION_SECONDS
from perdure.errors import Corrupt, PerdureError, UsageError
from perdure.kernel.chunks import MAP
from perdure.kernel.events import FINISHED, RunStatus
from perdure.kernel.history.capsule import encode_capsule
from perdure.kernel.ids import LINK, SESSION, STORED, TOKEN
from perdure.kernel.policies.durations import Duration
from perdure.kernel.policies.start_options import seconds
from perdure.ports.upkeep import Ended

# How many rows are read at a time.
PAGE = 500
# How many runs, and about how many bytes of journals, are removed in one commit.
BATCH, BATCH_BYTES = 100, 4 * 1024 * 1024
# How many blobs are.
BLOBS = 100
# How long a blob without references is kept: a writer may have put it for an event that it is about to append.
GRACE = 3600.0
# How long what is stored as a run stays at least: definitions, which any run may need, also one that is yet to come,
# and tokens for ever; sessions and links until they have expired.
KEPT = {STORED: math.inf, TOKEN: math.inf, SESSION: SESSION_SECONDS, LINK: LINK_SECONDS}
NOT_ARCHIVED = "it could not be archived"

Statuses = RunStatus | str | Sequence[RunStatus | str]


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A run that was to be pruned and was kept, and why."""

    id: str
    run_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What was removed; with `dry_run`, what would be.

    `bytes` is the size of the journals of `runs`, and `blob_bytes` that of `blobs`. A dry run cannot know which blobs
    would lose their last reference; it counts those that have none already.
    """

    runs: int = 0
    bytes: int = 0
    archived: int = 0
    blobs: int = 0
    blob_bytes: int = 0
    kept: list[KeptRun] = field(default_factory=list)
    dry_run: bool = False


class Pruner:
    """Prunes runs."""

    def __init__(self, base: StoreClient, capsules: Capsules) -> None:
        self._base, self._capsules = base, capsules

    async def prune(
        self,
        older_than: Duration,
        statuses: Statuses = RunStatus.COMPLETED,
        dry_run: bool = False,
        *,
        archive: str | os.PathLike[str] | None = None,
        grace: Duration = GRACE,
        items: bool = False,
    ) -> PruneReport:
        """Remove runs of these statuses that ended longer ago than that, with their children and large values.

        Runs that have not ended are never removed. The id of a pruned run is free again. With `archive` each run is
        first written into a capsule in that directory, and kept if that fails. A blob is collected when no run refers
        to it and it was not put again for `grace`; what was put with `blobs.put` stays. Works in small commits beside
        running engines; if it is interrupted, the rest is pruned next time.

        `items`: remove nothing but the journals of the items of long maps, chunk by chunk. The runs with these maps
        stay, with the results; without `items`, the journals of the items stay as long as the run.
        """
        self._base.check_open()
        before = self._base.clock.now() - seconds(older_than, "older_than")
        wanted, age = ended_statuses(statuses), seconds(grace, "grace")
        folder = None if archive is None or dry_run else _folder(archive)
        found = PruneReport(dry_run=dry_run)
        cursor, would_go = "", set[str]()
        while page := await self._base.store.upkeep.list_ended(before, sorted(FINISHED), PAGE, cursor):
            cursor = page[-1].run_id
            now = self._base.clock.now()
            page = [run for run in page if now - run.finished_at >= KEPT.get(run.program, 0.0)]
            chunks = [run for run in page if run.program.startswith(MAP)]
            if not items:
                for some in _portions([run for run in page if run.status in wanted and run not in chunks]):
                    found = await self._prune(some, folder, found)
                    would_go |= {run.run_id for run in some} if dry_run else set()
            # A chunk begins after its run, and so comes after it here.
            going = await self._spent(chunks, wanted) if items else await self._left_behind(chunks, would_go)
            for some in _portions(going):
                found = await self._prune(some, folder, found)
            await asyncio.sleep(0)  # others have their turn
        blobs, blob_bytes = await self._collected(age, dry_run)
        return replace(found, blobs=blobs, blob_bytes=blob_bytes)

    async def _prune(self, runs: Sequence[Ended], folder: str | None, found: PruneReport) -> PruneReport:
        """Prune some runs, in one commit, and return the report so far."""
        kept = list(found.kept)
        going = runs if folder is None else await self._archived(runs, folder, kept)
        gone = going if found.dry_run else await self._removed(going, kept)
        return replace(
            found,
            runs=found.runs + len(gone),
            bytes=found.bytes + sum(run.size for run in gone),
            archived=found.archived + (0 if folder is None else len(going)),
            kept=kept,
        )

    async def _left_behind(self, chunks: Sequence[Ended], would_go: Set[str]) -> list[Ended]:
        """The chunks of maps whose runs have gone, or would go."""
        there = await self._base.store.journal.heads(_parents(chunks)) if chunks else {}
        return [run for run in chunks if (of := _parent(run)) not in there or of in would_go]

    async def _spent(self, chunks: Sequence[Ended], statuses: Sequence[RunStatus]) -> list[Ended]:
        """The chunks that no run needs any more: one that failed would run their items again when it is retried."""
        rows = await self._base.store.runs.finished(_parents(chunks)) if chunks else ()
        stay = {row.run_id for row in rows if isinstance(row, Corrupt) or row.status in FINISHED.difference(statuses)}
        return [run for run in chunks if run.status in statuses and _parent(run) not in stay]

    async def _archived(self, runs: Sequence[Ended], folder: str, kept: list[KeptRun]) -> list[Ended]:
        """Write each run into a file, and return those for which that succeeded."""
        done = []
        for run in runs:
            try:
                data = encode_capsule(await self._capsules.capsule(run.run_id))
                await asyncio.to_thread(write_whole, os.path.join(folder, archive_name(run)), data)
                done.append(run)
            except (PerdureError, OSError) as error:
                kept.append(KeptRun(run.id, run.run_id, f"{NOT_ARCHIVED}: {error}"))
        return done

    async def _removed(self, runs: Sequence[Ended], kept: list[KeptRun]) -> list[Ended]:
        gone = set(await self._base.store.upkeep.remove([run.run_id for run in runs])) if runs else set()
        for run in runs:
            self._base.states.forget(run.run_id)
            # One that is not there any more was removed by another pruner.
            if run.run_id not in gone and await self._base.store.journal.head(run.run_id) is not None:
                why = f"an earlier run under the id {run.id!r} stays, and would become its latest"
                kept.append(KeptRun(run.id, run.run_id, why))
        return [run for run in runs if run.run_id in gone]

    async def _collected(self, age: float, dry_run: bool) -> tuple[int, int]:
        if dry_run:
            found = await self._base.store.upkeep.collect(age, 1_000_000, dry_run=True)
            return found.blobs, found.bytes
        blobs = size = 0
        while True:
            found = await self._base.store.upkeep.collect(age, BLOBS)
            blobs, size = blobs + found.blobs, size + found.bytes
            if found.blobs < BLOBS:
                return blobs, size
            await asyncio.sleep(0)


def ended_statuses(statuses: Statuses) -> list[RunStatus]:
    """The statuses, if runs in them have ended; or UsageError."""
    given = [statuses] if isinstance(statuses, str) else list(statuses)
    over = ", ".join(sorted(FINISHED))
    for status in given:
        if status not in FINISHED:
            raise UsageError(f"statuses={status!r}: only runs that have ended can be pruned; give some of {over}")
    if not given:
        raise UsageError(f"statuses is empty, so there is nothing to prune; give some of {over}")
    return sorted({RunStatus(status) for status in given})


def archive_name(run: Ended) -> str:
    """The name of the file of a run: its run_id, and as much of its id as a file name can bear."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", run.id)[:80]
    return f"{quote(run.run_id, safe='')}-{readable}.capsule"


def _parent(chunk: Ended) -> str:
    """The run that has the map: the id of the run of a chunk is the run_id of that, and an op in it."""
    return chunk.id.partition("/")[0]


def _parents(chunks: Sequence[Ended]) -> list[str]:
    return sorted({_parent(chunk) for chunk in chunks})


def _portions(runs: Sequence[Ended]) -> Iterator[list[Ended]]:
    """Portions to remove in one commit each: few runs, and few bytes."""
    some: list[Ended] = []
    size = 0
    for run in runs:
        if some and (len(some) == BATCH or size + run.size > BATCH_BYTES):
            yield some
            some, size = [], 0
        some.append(run)
        size += run.size
    if some:
        yield some


def _folder(archive: str | os.PathLike[str]) -> str:
    folder = os.fspath(archive)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UsageError(f"archive={folder!r} is not a directory that can be written to: {error.strerror}") from error
    return folder


def write_whole(path: str, data: bytes) -> None:
    """Write a file wholly and durably, or not at all: a pruned run is removed once it is in its file."""
    beside = f"{path}.part"
    with open(beside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
