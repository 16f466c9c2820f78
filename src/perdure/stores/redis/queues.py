"""Queues in Redis: whose turn it is. Whether there is room, the append that begins a run finds out again."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.policies.queues import Line, Queue, Turns
from perdure.ports.queues import Picks, QueueStats, Waiting
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
        running, began, nth, later, priorities = await self._server.call(ROOM, (queue.name, repr(now), *window))
        if queue.concurrency is not None:
            room = min(room, queue.concurrency - running)
        if rate is not None and room > 0:
            room = min(room, rate.count - began)
            if room <= 0:
                return Picks((), float(nth) + rate.seconds)
        if room <= 0:
            return Picks(())
        turns = Turns(room, queue.per_key)
        for priority in priorities:
            wanted = (queue.name, priority.decode(), queue.per_key, repr(now), programs, turns.left, turns.keys)
            turns.serve(
                [
                    Line(key.decode(), float(served) or None, [run_id.decode() for run_id in runs], running_of_key)
                    for key, served, running_of_key, runs in await self._server.call(LINES, wanted)
                ]
            )
            if turns.left == 0:
                break
        return Picks(turns.picked, None if later is None else float(later))

    async def stats(self) -> Sequence[QueueStats]:
        """Every queue that has queued or running runs, by name."""
        found = await self._server.call(STATS, ())
        stats = [
            QueueStats(name.decode(), queued, running, None if oldest is None else float(oldest))
            for name, queued, running, oldest in found
        ]
        return sorted(stats, key=lambda one: one.queue)
