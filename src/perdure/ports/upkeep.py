"""Maintenance of a store: the load of each owner, pruning, blob collection, and rebuilding rows from journals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from perdure.kernel.events import RunStatus
from perdure.kernel.projection import RunRow


class Load(msgspec.Struct, frozen=True):
    """The unfinished root runs of one owner. Runs without an owner, such as queued ones, count under None.

    `running` counts the runs in that status, `waiting` all others.
    """

    owner: str | None
    running: int
    waiting: int


class Ended(msgspec.Struct, frozen=True):
    """A root run that has ended. `size` is the size of its journal in bytes."""

    run_id: str
    id: str
    program: str
    status: RunStatus
    finished_at: float
    size: int


class Collected(msgspec.Struct, frozen=True):
    """How many blobs were removed, or would be, and their total size."""

    blobs: int
    bytes: int


class Upkeep(Protocol):
    """Maintenance, for operators and for services of the engine. A store does none of it on its own."""

    async def loads(self) -> Sequence[Load]:
        """How many unfinished root runs each owner has, by name; None comes first."""

    async def list_ended(
        self, before: float, statuses: Sequence[RunStatus], limit: int, after: str = ""
    ) -> Sequence[Ended]:
        """Root runs in these statuses that ended before `before`, ordered by run_id, those after `after`.

        Runs whose row is damaged are left out.
        """

    async def remove(self, run_ids: Sequence[str]) -> Sequence[str]:
        """Remove runs that have ended, with their children, journals, heads and references to blobs, in one commit.

        Returns the run_ids that were removed. A run that has not ended stays. So does a run whose earlier incarnation
        stays: the earlier one would become the latest under the id.
        """

    async def collect(self, age: float, limit: int, *, dry_run: bool = False) -> Collected:
        """Remove at most `limit` blobs that no journal refers to and that were last put over `age` seconds ago.

        `age` leaves time for the event that refers to a blob, which is appended after the blob is put. It is measured
        by the store's own clock. A blob whose age is unknown stays.
        """

    async def keep(self, blob_id: str) -> None:
        """Never collect this blob: a user put it, and the store cannot see what refers to it."""

    async def journals(self, after: str, limit: int) -> Sequence[str]:
        """The run_ids of all journals, in order, those after `after`."""

    async def reproject(self, run_id: str, expected_next: int, rows: Sequence[RunRow]) -> bool:
        """Replace the rows of a journal's run and its children by `rows`.

        Returns False, and changes nothing, unless the next number of the journal is `expected_next`.
        """
