"""How many runs there are. The runs are counted once in two seconds at most, for all who ask meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from perdure.client.client import Client
from perdure.client.views import RunCount
from perdure.server import shapes
from perdure.server.access import Access

APART_SECONDS = 2.0


class RunCounts:
    """The number of runs by status and program, counted at most once in APART_SECONDS."""

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
        loop = asyncio.get_running_loop()
        asked = loop.time()
        async with self._counting:
            # A page asks because something has changed, and may not ask again: an older count is no answer to it.
            if self._kept is None or self._kept[0] < asked:
                if self._kept is not None:
                    await asyncio.sleep(self._kept[0] + APART_SECONDS - loop.time())
                self._kept = loop.time(), await self._client.counts()
            return self._client.clock.now() - (loop.time() - self._kept[0]), self._kept[1]
