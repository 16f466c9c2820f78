"""When runs are due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from perdure.ports.queues import Waiting


class Due(msgspec.Struct, frozen=True):
    """A run that is due."""

    run_id: str
    program: str
    owner: str | None
    wake_at: float
    waiting: bool


class Ahead(msgspec.Struct, frozen=True):
    """The next work of an orchestrator: when a run is due, and which queues have queued runs."""

    next_due: float | None
    waiting: Sequence[Waiting] = ()


class Late(msgspec.Struct, frozen=True):
    """Runs whose deadline has passed, earliest first, and the next deadline."""

    run_ids: Sequence[str]
    next_deadline: float | None


class Timers(Protocol):
    """Due runs, read from the projection. `programs` may name versions too: see `ports.runs.takes`."""

    async def due(
        self,
        now: float,
        limit: int,
        programs: Sequence[str],
        skip: Sequence[str],
        queues: Sequence[str] | None = None,
    ) -> Sequence[Due]:
        """Runs of these programs due at `now`, earliest first, without those of owners in `skip`.

        Only runs of these queues, unless `queues` is None.
        """

    async def ahead(self, programs: Sequence[str], skip: Sequence[str], queues: Sequence[str] | None = None) -> Ahead:
        """When the first such run is due, and the result of `Queues.waiting`.

        One call for both, because every idle orchestrator makes it.
        """

    async def late(self, now: float, limit: int, programs: Sequence[str], skip: Sequence[str]) -> Late:
        """Runs of these programs that have not ended and whose deadline is `now` or before, in any status.

        Without runs of owners in `skip` and imported runs. The next deadline may be that of a run that has ended or
        whose owner is in `skip`.
        """
