"""Queued runs, read from the projection. The append that admits a run decides whether the limits allow it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from perdure.kernel.policies.queues import Queue, QueueReader, pick


class Waiting(msgspec.Struct, frozen=True):
    """A queue with queued runs, and the earliest time at which one of them may begin."""

    queue: str
    first: float


class Picks(msgspec.Struct, frozen=True):
    """The runs to admit next, in order, and when to poll again even if nothing changes."""

    run_ids: Sequence[str]
    until: float | None = None


class QueueStats(msgspec.Struct, frozen=True):
    """Counts for one queue. `oldest` is when its longest waiting run was queued."""

    queue: str
    queued: int
    running: int
    oldest: float | None


async def picks(reader: QueueReader, queue: Queue, room: int) -> Picks:
    """The runs that `pick` picks, from a store's answers."""
    picking, answer = pick(reader, queue, room), None
    while True:
        try:
            question = picking.send(answer)
        except StopIteration as done:
            return Picks(*done.value)
        answer = await question


class Queues(Protocol):
    """Queued runs, in fair order."""

    async def waiting(self, names: Sequence[str] | None) -> Sequence[Waiting]:
        """The queues that have queued runs, limited to `names` unless it is None."""

    async def pick(self, queue: Queue, room: int, now: float, programs: Sequence[str]) -> Picks:
        """At most `room` runs of these programs (see `ports.runs.takes`) that the limits let begin at `now`.

        Higher priorities first; within a priority, keys take turns, the least recently served key first.
        """

    async def stats(self) -> Sequence[QueueStats]:
        """Every queue that has queued or running runs, by name."""
