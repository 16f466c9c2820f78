"""Queues in memory: queued runs by priority and key, and what is under way."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from itertools import islice

from perdure.kernel.events import RunStatus
from perdure.kernel.policies.queues import Line, Queue, Rate
from perdure.kernel.projection import RunRow
from perdure.ports.journal import Full
from perdure.ports.queues import Picks, QueueStats, Waiting, picks
from perdure.ports.runs import takes

Place = tuple[float, str, str, str]


class _Queue:
    """One queue."""

    def __init__(self) -> None:
        self.rows: dict[str, RunRow] = {}
        # By priority and key: when each may begin, its run_id, its program and its version, in order.
        self.lines: dict[int, dict[str, list[Place]]] = {}
        self.queued = 0
        self.running: dict[str, int] = {}
        self.under_way = 0
        self.starts: list[float] = []
        self.served: dict[str, float] = {}

    def put(self, row: RunRow) -> None:
        before = self.rows.get(row.run_id)
        if before is not None:
            self._count(before, -1)
        if row.began_at is not None and (before is None or before.began_at is None):
            insort(self.starts, row.began_at)
            self.served[row.queue_key] = max(row.began_at, self.served.get(row.queue_key, 0.0))
        self.rows[row.run_id] = row
        self._count(row, 1)

    def remove(self, run_id: str) -> None:
        row = self.rows.pop(run_id)
        self._count(row, -1)
        if row.began_at is not None:
            del self.starts[bisect_left(self.starts, row.began_at)]

    def _count(self, row: RunRow, change: int) -> None:
        if row.status is RunStatus.QUEUED:
            self.queued += change
            keys = self.lines.setdefault(row.priority, {})
            line = keys.setdefault(row.queue_key, [])
            place = (_ready(row), row.run_id, row.program, row.version)
            if change > 0:
                insort(line, place)
            else:
                del line[bisect_left(line, place)]
            if not line:
                del keys[row.queue_key]
            if not keys:
                del self.lines[row.priority]
        elif row.began_at is not None and row.finished_at is None:
            self.under_way += change
            self.running[row.queue_key] = self.running.get(row.queue_key, 0) + change

    def started(self, now: float, per: float) -> list[float]:
        return self.starts[bisect_right(self.starts, now - per) : bisect_left(self.starts, now + per)]


class MemoryQueues:
    """Queued runs, in fair order."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}

    def put(self, row: RunRow) -> None:
        """The row of a run of a queue has changed."""
        self._queues.setdefault(row.queue, _Queue()).put(row)

    def remove(self, row: RunRow) -> None:
        """A run of a queue was removed from the store."""
        self._queues[row.queue].remove(row.run_id)

    def clear(self) -> None:
        """Forget all runs."""
        self._queues.clear()

    def refusal(self, queue: Queue, row: RunRow) -> Full | None:
        """Why a run may not begin now; None when it may."""
        found = self._queues.get(row.queue, _Queue())
        if queue.concurrency is not None and found.under_way >= queue.concurrency:
            return Full()
        if queue.per_key is not None and found.running.get(row.queue_key, 0) >= queue.per_key:
            return Full()
        if queue.rate is not None and row.began_at is not None:
            started = found.started(row.began_at, queue.rate.seconds)
            if len(started) >= queue.rate.count:
                return Full(started[-queue.rate.count] + queue.rate.seconds)
        return None

    async def waiting(self, names: Sequence[str] | None) -> Sequence[Waiting]:
        """The queues that have queued runs."""
        return [
            Waiting(name, min(line[0][0] for keys in queue.lines.values() for line in keys.values()))
            for name, queue in sorted(self._queues.items())
            if queue.queued and (names is None or name in names)
        ]

    async def pick(self, queue: Queue, room: int, now: float, programs: Sequence[str]) -> Picks:
        """The runs that may begin now, highest priority first and key by key."""
        reader = _Reader(self._queues.get(queue.name, _Queue()), now, programs)
        return await picks(reader, queue, room)

    async def stats(self) -> Sequence[QueueStats]:
        """Every queue that has queued or running runs, by name."""
        return [
            QueueStats(
                name,
                queue.queued,
                queue.under_way,
                min((row.created_at for row in queue.rows.values() if row.status is RunStatus.QUEUED), default=None),
            )
            for name, queue in sorted(self._queues.items())
            if queue.queued or queue.under_way
        ]


class _Reader:
    """One queue at one moment, for runs of some programs."""

    def __init__(self, queue: _Queue, now: float, programs: Sequence[str]) -> None:
        self._queue, self._now, self._programs = queue, now, programs

    async def running(self, limit: int) -> int:
        return self._queue.under_way

    async def started(self, rate: Rate) -> tuple[int, float | None]:
        started = self._queue.started(self._now, rate.seconds)
        return len(started), started[-rate.count] if len(started) >= rate.count else None

    async def next_priority(self, below: int | None) -> int | None:
        return max((one for one in self._queue.lines if below is None or one < below), default=None)

    async def lines(self, priority: int, left: int, served: int) -> Sequence[Line]:
        lines = []
        for key, places in self._queue.lines[priority].items():
            ready = islice(places, bisect_right(places, self._now, key=_moment))
            ours = (run_id for _, run_id, *program in ready if takes(self._programs, *program))
            runs = list(islice(ours, left))
            if runs:
                lines.append(Line(key, self._queue.served.get(key), runs, self._queue.running.get(key, 0)))
        return lines

    async def next_ready(self) -> float | None:
        lines = (line for keys in self._queue.lines.values() for line in keys.values())
        later = ((line, bisect_right(line, self._now, key=_moment)) for line in lines)
        return min((line[at][0] for line, at in later if at < len(line)), default=None)


def _moment(place: Place) -> float:
    return place[0]


def _ready(row: RunRow) -> float:
    return row.created_at if row.not_before is None else row.not_before
