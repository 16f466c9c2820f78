"""How many runs there are: counted once for all who ask, and kept for a moment."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime

from perdure.client.client import Client
from perdure.ports.runs import RunFilter
from perdure.server import shapes
from perdure.server.access import Access

KEPT_SECONDS = 2.0


class Counting:
    """Counts runs."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._kept: dict[tuple[float | None, float | None], tuple[float, Counter[tuple[str, str]]]] = {}

    async def counts(
        self, access: Access, by: tuple[str, ...], since: float | None, until: float | None
    ) -> shapes.Counts:
        """The counts of what may be seen, by status, program, or both."""
        at, counted = await self._counted(since, until)
        found: Counter[tuple[str | None, str | None]] = Counter()
        for (status, program), count in counted.items():
            if access.sees(program):
                found[status if "status" in by else None, program if "program" in by else None] += count
        counts = [shapes.Count1(status, program, n) for (status, program), n in sorted(found.items(), key=str)]
        return shapes.Counts(counts, datetime.fromtimestamp(at, UTC))

    async def _counted(self, since: float | None, until: float | None) -> tuple[float, Counter[tuple[str, str]]]:
        now = asyncio.get_running_loop().time()
        kept = self._kept.get((since, until))
        if kept is not None and now - kept[0] < KEPT_SECONDS:
            return self._client.clock.now() - (now - kept[0]), kept[1]
        counted: Counter[tuple[str, str]] = Counter()
        cursor = None
        while True:
            filter = RunFilter(since=since, until=until, cursor=cursor, limit=1000, built_in=False)
            page = await self._client.store.runs.list(filter)
            counted.update((row.status.value, row.program) for row, _ in page)
            if len(page) < filter.limit:
                break
            cursor = page[-1][0].run_id
        self._kept = {(since, until): (now, counted)}
        return self._client.clock.now(), counted
