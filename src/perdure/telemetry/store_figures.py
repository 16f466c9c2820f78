"""Figures that are the same for all processes of a store, read from it on demand. Writes nothing."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping

import msgspec

from perdure.errors import PerdureError
from perdure.kernel.events import RunStatus
from perdure.kernel.ids import BUILT_IN
from perdure.kernel.projection import RunRow
from perdure.ports.clock import Clock
from perdure.ports.leases import ORCHESTRATOR, Leases, orchestrator_name
from perdure.ports.runs import RunFilter
from perdure.ports.store import Store
from perdure.telemetry.catalogue import OVERDUE_SECONDS
from perdure.telemetry.metrics import Labels, Metrics
from perdure.telemetry.prometheus import Stored

CACHE_SECONDS = 5.0
# How many runs are counted of a kind, and listed; the oldest of more than these is searched for by time.
BOUND = 10_000
# How many runs with open approvals are read, and how exact the age of the oldest run is where it is searched for.
MOST_ASKING, PRECISION = 100_000, 0.001
PAGE = 1000
OPEN = tuple(status for status in RunStatus if not status.finished)


class StoreFigures:
    """Reads the figures, at most once in five seconds, however often they are scraped."""

    def __init__(self, store: Callable[[], Store], leases: Callable[[], Leases], clock: Clock) -> None:
        self._store, self._leases, self._clock = store, leases, clock
        self._reading = asyncio.Lock()
        self._read_at = -CACHE_SECONDS
        self.last: Stored = {}

    async def read(self) -> Stored:
        """The figures, at most a few seconds old. If the store cannot be reached, the last ones."""
        loop = asyncio.get_running_loop()
        async with self._reading:
            if loop.time() - self._read_at >= CACHE_SECONDS:
                try:
                    self.last = await self._figures()
                except PerdureError:
                    self.last = {}  # old figures would look as if all were well
                self._read_at = loop.time()
        return self.last

    async def _figures(self) -> Stored:
        store, now, names = self._store(), self._clock.now(), Metrics()

        def bounded(kind: str, counts: Mapping[Labels, int]) -> list[tuple[tuple[str, ...], float]]:
            found: Counter[Labels] = Counter()
            for (name, *rest), count in sorted(counts.items()):
                found[(names.bounded(kind, name), *rest)] += count
            return [(labels, float(count)) for labels, count in found.items()]

        stored: Stored = {}
        depth: Counter[Labels] = Counter()
        oldest: dict[str, float] = {}
        for one in await store.queues.stats():
            depth[one.queue, "queued"] += one.queued
            depth[one.queue, "running"] += one.running
            name = names.bounded("queue", one.queue)
            oldest[name] = max(oldest.get(name, 0.0), 0.0 if one.oldest is None else now - one.oldest)
        stored["perdure.queue.depth"] = bounded("queue", depth)
        stored["perdure.queue.oldest_age"] = [((name,), age) for name, age in oldest.items()]
        tallies = [tally for tally in await store.runs.counts(BOUND) if not tally.program.startswith(BUILT_IN)]
        open_runs: dict[Labels, int] = {
            (tally.program, str(tally.status)): tally.count for tally in tallies if not tally.status.finished
        }
        stored["perdure.runs.open"] = bounded("program", open_runs)
        programs = [name for name in await store.runs.programs() if not name.startswith(BUILT_IN)]
        late = await store.timers.due(now - OVERDUE_SECONDS, BOUND, programs, ()) if programs else ()
        overdue: Counter[Labels] = Counter({labels[:1]: 0 for labels in open_runs})
        overdue.update((due.program,) for due in late)
        stored["perdure.runs.overdue"] = bounded("program", overdue)
        ages: dict[tuple[str, ...], float] = {}
        counted: Counter[str] = Counter()
        for (program, _), count in open_runs.items():
            counted[program] += count
        for program, since in (await self._oldest(store, counted, now)).items():
            label = (names.bounded("program", program),)
            ages[label] = max(ages.get(label, 0.0), now - since)
        stored["perdure.runs.oldest_age"] = [*ages.items()]
        approvals, asked = await self._approvals(store)
        stored["perdure.approvals.open"] = [((), float(approvals))]
        stored["perdure.approvals.oldest_age"] = [((), 0.0 if asked is None else max(0.0, now - asked))]
        live = {orchestrator_name(lease.key) for lease in await self._leases().live(ORCHESTRATOR, now)}
        owners = set(await store.runs.owners())
        stored["perdure.orchestrators"] = [(("alive",), float(len(live))), (("gone",), float(len(owners - live)))]
        if (size := _size(store.url)) is not None:
            stored["perdure.store.bytes"] = [((), float(size))]
        return stored

    async def _approvals(self, store: Store) -> tuple[int, float | None]:
        """How many approvals are open, and when the oldest run that has one was created."""
        count, oldest = 0, None
        async for row in _pages(store, RunFilter(asking=True, values=False, limit=PAGE), MOST_ASKING):
            count, oldest = count + row.approvals, row.created_at
        return count, oldest

    async def _oldest(self, store: Store, counted: Mapping[str, int], now: float) -> dict[str, float]:
        """When the oldest open run of each program was created."""
        found: dict[str, float] = {}
        if sum(counted.values()) <= BOUND:
            open_runs = RunFilter(status=OPEN, roots=True, built_in=False, values=False, limit=PAGE)
            async for row in _pages(store, open_runs, 2 * BOUND):
                found[row.program] = row.created_at  # newest first
            return found
        for program in sorted(counted):
            if (oldest := await _oldest_of(store, program, now)) is not None:
                found[program] = oldest
        return found


async def _pages(store: Store, wanted: RunFilter, most: int) -> AsyncIterator[RunRow]:
    """The rows of a filter, newest first, `most` of them."""
    for _ in range(most // PAGE):
        rows = await store.runs.list(wanted)
        for row, _head in rows:
            yield row
        if len(rows) < PAGE:
            return
        wanted = msgspec.structs.replace(wanted, cursor=rows[-1][0].run_id)


async def _oldest_of(store: Store, program: str, now: float) -> float | None:
    """When the oldest open run of a program was created, found with few short queries however many runs there are."""

    async def before(until: float) -> float | None:
        """When the newest open run before a time was created."""
        wanted = RunFilter(status=OPEN, program=program, roots=True, values=False, limit=1, until=until)
        return next((row.created_at for row, _ in await store.runs.list(wanted)), None)

    oldest = await before(now + 1.0)
    if oldest is None:
        return None
    step = 60.0
    while (older := await before(oldest - step)) is not None:
        oldest, step = older, 2 * step
    while step > PRECISION * (now - oldest) + 1.0:
        step /= 2
        oldest = await before(oldest - step) or oldest
    return await before(oldest) or oldest


def _size(url: str) -> int | None:
    """The size of an embedded store with its write-ahead log; None where that is not one file."""
    if not url.startswith("sqlite:///"):
        return None
    path = url.removeprefix("sqlite:///").partition("?")[0]
    sizes = [os.path.getsize(one) for one in (path, f"{path}-wal") if os.path.isfile(one)]
    return sum(sizes) if sizes else None
