"""Looking after a store: who has how much to do, what may go, and whether the projection says what the journal says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from perdure.kernel.events import RunStatus
from perdure.kernel.projection import RunRow


class Load(msgspec.Struct, frozen=True):
    """The unfinished root runs of one owner; those that nobody owns, such as queued ones, have the owner None.

    `running` are those in that status; `waiting` are all others: for a timer, an answer, their turn, or a person.
    """

    owner: str | None
    running: int
    waiting: int


class Ended(msgspec.Struct, frozen=True):
    """A root run that has ended. `size` is that of its journal, in bytes."""

    run_id: str
    id: str
    program: str
    status: RunStatus
    finished_at: float
    size: int


class Collected(msgspec.Struct, frozen=True):
    """Blobs that are gone, or would be, and their bytes in all."""

    blobs: int
    bytes: int


class Upkeep(Protocol):
    """What operators and the engine's own housekeeping ask of a store. None of it happens by itself."""

    async def loads(self) -> Sequence[Load]:
        """How many unfinished root runs each owner has, by name; None comes first."""
        ...

    async def ended(self, before: float, statuses: Sequence[RunStatus], limit: int, after: str = "") -> Sequence[Ended]:
        """Root runs of these statuses that ended before that moment, by run_id, from behind `after` on.

        One whose row is damaged is left out.
        """
        ...

    async def remove(self, run_ids: Sequence[str]) -> Sequence[str]:
        """Remove runs that have ended, with their children, journals, heads and references to blobs, in one commit.

        Returns the run_ids of those that were removed. A run that has not ended stays, and so does one under whose id
        an earlier incarnation stays: that would become the latest.
        """
        ...

    async def collect(self, age: float, limit: int, *, dry_run: bool = False) -> Collected:
        """Remove at most `limit` blobs that no journal refers to and that nobody has put for `age` seconds.

        The seconds are those of the store's own clock: a value is put some moments before the event that refers to it,
        by whatever machine. A blob about which the store does not know enough stays.
        """
        ...

    async def keep(self, blob_id: str) -> None:
        """Never collect this blob: somebody put it by hand, and what refers to it is not for the store to know."""
        ...

    async def journals(self, after: str, limit: int) -> Sequence[str]:
        """The run_ids of the journals there are, in order, from behind `after` on."""
        ...

    async def reproject(self, run_id: str, expected_next: int, rows: Sequence[RunRow]) -> bool:
        """Put `rows` in the place of the rows of a journal, those of its children included.

        False, and nothing is changed, unless the next number of the journal is `expected_next`.
        """
        ...
