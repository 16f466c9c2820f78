"""How many runs there are. One count serves all callers for two seconds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from perdure.client.client import Client
from perdure.client.views import RunCount
from perdure.server import shapes
from perdure.server.access import Access

KEPT_SECONDS = 2.0


class RunCounts:
    """The number of runs by status and program, counted at most once in KEPT_SECONDS."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._counting = asyncio.Lock()
        # The last counts, with their time in the time of the loop.
        self._kept: tuple[float, Sequence[RunCount]] | None = None

    async def counts(self, access: Access, by: Sequence[str]) -> shapes.Counts:
        """Counts of the runs that the caller may see, by status, program, or both."""
        at, counted = await self._counted()
        found: Counter[tuple[str | None, str | None]] = Counter()
        bounded: set[tuple[str | None, str | None]] = set()
        for one in counted:
            if access.sees(one.program):
                key = one.status.value if "status" in by else None, one.program if "program" in by else None
                found[key] += one.count
                if one.bounded:
                    bounded.add(key)
        return shapes.Counts(
            [
                shapes.CountItem(status, program, count, (status, program) in bounded)
                for (status, program), count in sorted(found.items(), key=str)
            ],
            datetime.fromtimestamp(at, UTC),
        )

    async def _counted(self) -> tuple[float, Sequence[RunCount]]:
        async with self._counting:
            now, clock = asyncio.get_running_loop().time(), self._client.clock
            if self._kept is None or now - self._kept[0] >= KEPT_SECONDS:
                self._kept = now, await self._client.counts()
            return clock.now() - (now - self._kept[0]), self._kept[1]
