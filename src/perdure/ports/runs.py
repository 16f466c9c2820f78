"""Reading the projection of runs. Written only through the journal."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Protocol

import msgspec

from perdure.errors import Corrupt
from perdure.kernel.events import RunStatus
from perdure.kernel.ids import BUILT_IN
from perdure.kernel.projection import RunRow
from perdure.ports.journal import Head


class RunFilter(msgspec.Struct, frozen=True):
    """Which runs to list, newest first. `cursor` is the last run_id of the page before.

    Created from `since` on and before `until`. `parent` and `root` are run_ids; a run without a parent is its own root.
    `id_prefix` is a literal prefix, not a pattern. `built_in`: include runs of perdure's own programs, whose names
    begin with `perdure.`.
    """

    status: Sequence[RunStatus] = ()
    program: str | None = None
    tags: dict[str, str] | None = None
    since: float | None = None
    limit: int = 100
    cursor: str | None = None
    # Only root runs with open approvals, those of their children included.
    asking: bool = False
    built_in: bool = True
    owner: str | None = None
    parent: str | None = None
    root: str | None = None
    queue: str | None = None
    until: float | None = None
    id_prefix: str | None = None

    def fits(self, row: RunRow) -> bool:
        """Whether a row matches, for stores that have no query language."""
        return (
            (self.cursor is None or row.run_id < self.cursor)
            and (not self.status or row.status in self.status)
            and (self.program is None or row.program == self.program)
            and (self.built_in or not row.program.startswith(BUILT_IN))
            and (self.since is None or row.created_at >= self.since)
            and (self.until is None or row.created_at < self.until)
            and (self.owner is None or row.owner == self.owner)
            and (self.parent is None or row.parent == self.parent)
            and (self.root is None or (row.root or row.run_id) == self.root)
            and (self.queue is None or row.queue == self.queue)
            and (self.id_prefix is None or row.id.startswith(self.id_prefix))
            and (not self.asking or (row.approvals > 0 and not row.root))
            and all(row.tags.get(key) == value for key, value in (self.tags or {}).items())
        )


def takes(programs: Container[str], program: str, version: str) -> bool:
    """Whether a caller asked for runs of this program and version.

    It names a program, for runs of any version, or a program and a version: `fulfil:2`, and `fulfil:` for runs that
    were started by name alone and have none yet. No name of a program has a colon.
    """
    return program in programs or f"{program}:{version}" in programs


class Runs(Protocol):
    """The rows of runs. What is said of `programs`: see `takes`."""

    async def get(self, run_id: str) -> RunRow | None:
        """One run, or None."""

    async def find(self, id: str) -> tuple[RunRow, Head] | None:
        """The latest incarnation under a caller's id, or None."""

    async def list(self, filter: RunFilter) -> Sequence[tuple[RunRow, Head]]:
        """The runs that match, newest first."""

    async def owned(
        self,
        owners: Sequence[str],
        status: RunStatus,
        programs: Sequence[str],
        limit: int,
        queues: Sequence[str] | None = None,
    ) -> Sequence[str]:
        """Ids of runs of these owners, programs and, unless it is None, `queues` in this status, oldest first."""

    async def owners(self) -> Sequence[str]:
        """Every orchestrator that owns a run which is not finished."""

    async def programs(self) -> Sequence[str]:
        """The names of the programs of all runs that are not finished."""

    async def finished(self, run_ids: Sequence[str]) -> Sequence[RunRow | Corrupt]:
        """The rows of those `run_ids` that have ended or are parked; a damaged row is returned as its Corrupt error."""
