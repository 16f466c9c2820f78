"""Queues in Redis: whose turn it is. The append that begins a run checks the limits again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.kernel.policies.queues import Line, Queue, Rate
from perdure.ports.queues import Picks, QueueStats, Waiting, picks
from perdure.stores.redis.runs import waits
from perdure.stores.redis.scripts import LINES, ROOM, STATS, WAITING
from perdure.stores.redis.server import Server


class RedisQueues:
    """Queued runs on one server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def waiting(self, names: Sequence[str] | None) -> Sequence[Waiting]:
        """The queues that have queued runs."""
        return waits(await self._server.call(WAITING, (names,)))

    async def pick(self, queue: Queue, room: int, now: float, programs: Sequence[str]) -> Picks:
        """The runs that may begin now, highest priority first and key by key."""
        rate = queue.rate
        window = (rate.count, repr(now - rate.seconds), repr(now + rate.seconds)) if rate is not None else ()
        found = await self._server.call(ROOM, (queue.name, repr(now), *window))
        return await picks(_Reader(self._server, queue, now, programs, found), queue, room)

    async def stats(self) -> Sequence[QueueStats]:
        """Every queue that has queued or running runs, by name."""
        found = await self._server.call(STATS, ())
        stats = [
            QueueStats(name.decode(), queued, running, None if oldest is None else float(oldest))
            for name, queued, running, oldest in found
        ]
        return sorted(stats, key=lambda one: one.queue)


class _Reader:
    """One queue at one moment, for runs of some programs. One script answers all but the lines beforehand."""

    def __init__(self, server: Server, queue: Queue, now: float, programs: Sequence[str], found: Sequence[Any]) -> None:
        self._server, self._queue, self._now, self._programs = server, queue, now, programs
        self._running, self._started, self._nth, self._ready, self._priorities = found

    async def running(self, limit: int) -> int:
        return int(self._running)

    async def started(self, rate: Rate) -> tuple[int, float | None]:
        return self._started, float(self._nth) if self._started >= rate.count else None

    async def next_priority(self, below: int | None) -> int | None:
        return next((int(one) for one in self._priorities if below is None or int(one) < below), None)

    async def lines(self, priority: int, left: int, served: int) -> Sequence[Line]:
        queue = self._queue
        wanted = (queue.name, str(priority), queue.per_key, repr(self._now), self._programs, left, served)
        return [
            Line(key.decode(), float(at) or None, [run_id.decode() for run_id in runs], running)
            for key, at, running, runs in await self._server.call(LINES, wanted)
        ]

    async def next_ready(self) -> float | None:
        return None if self._ready is None else float(self._ready)
