"""Runs that wait for their turn, read from the projection. Whether one may begin, the journal decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from perdure.kernel.policies.queues import Queue


class Waiting(msgspec.Struct, frozen=True):
    """A queue with queued runs, and the earliest moment at which one of them may begin."""

    queue: str
    first: float


class Picks(msgspec.Struct, frozen=True):
    """The runs whose turn it is, in their order; and when to look again even if nothing happens."""

    run_ids: Sequence[str]
    until: float | None = None


class QueueStats(msgspec.Struct, frozen=True):
    """A queue in numbers. `oldest`: since when the longest waiting of its queued runs waits."""

    queue: str
    queued: int
    running: int
    oldest: float | None


class Queues(Protocol):
    """Queued runs, in fair order."""

    async def waiting(self, names: Sequence[str] | None) -> Sequence[Waiting]:
        """The queues that have queued runs; only those of `names`, unless it is None."""
        ...

    async def pick(self, queue: Queue, room: int, now: float, programs: Sequence[str]) -> Picks:
        """At most `room` runs of these programs that the limits of the queue let begin at `now`.

        Higher priorities first; within one, keys take turns, and the one served least recently is first.
        """
        ...

    async def stats(self) -> Sequence[QueueStats]:
        """Every queue that has queued or running runs, by name."""
        ...
