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
