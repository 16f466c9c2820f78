"""When runs want to be looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from perdure.ports.queues import Waiting


class Due(msgspec.Struct, frozen=True):
    """A run whose moment has come."""

    run_id: str
    program: str
    owner: str | None
    wake_at: float
    waiting: bool


class Ahead(msgspec.Struct, frozen=True):
    """What an orchestrator has to look after: the next moment at which a run is due, and queues with queued runs."""

    next_due: float | None
    waiting: Sequence[Waiting] = ()


class Late(msgspec.Struct, frozen=True):
    """Runs whose deadline has passed, earliest first, and the next deadline after that moment."""

    run_ids: Sequence[str]
    next_deadline: float | None


class Timers(Protocol):
    """Due runs, read from the projection."""

    async def due(
        self,
        now: float,
        limit: int,
        programs: Sequence[str],
        skip: Sequence[str],
        queues: Sequence[str] | None = None,
    ) -> Sequence[Due]:
        """Runs of these programs due at `now`, earliest first, without those that owners in `skip` look after.

        Only runs of these queues, unless `queues` is None.
        """
        ...

    async def ahead(self, programs: Sequence[str], skip: Sequence[str], queues: Sequence[str] | None = None) -> Ahead:
        """The earliest moment at which such a run is due, and what `Queues.waiting` says.

        Asked at once: whoever is idle asks for little.
        """
        ...

    async def late(self, now: float, limit: int, programs: Sequence[str], skip: Sequence[str]) -> Late:
        """Runs of these programs that have not ended and whose deadline is `now` or before, in whatever status.

        Without those of owners in `skip`, and those that were imported to be looked at. The next deadline may be that
        of a run which an owner in `skip` looks after, or which has ended.
        """
        ...
