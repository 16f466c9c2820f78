"""Begin queued runs when it is their turn. Limits are decided where a claim is written; this only knows when to try.

A queue is looked at when a run is put into it here, when a run of a queue leaves memory here and others wait, when
somebody else wrote to the store, when a rate allows the next start, and when a delayed run may begin. Otherwise nothing
is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from perdure.kernel.policies.queues import Queue
from perdure.orchestrator.orchestrator import MOMENT, Orchestrator
from perdure.ports.journal import Full
from perdure.ports.queues import Waiting

# How many runs of a queue are begun at a look: others have their turn in between.
LOOK_LIMIT = 64
# A moment that has come and changed nothing is waited for again at least this long.
BREATH = 0.001


class Admission:
    """Takes runs out of queues, as many as limits and this process have room for."""

    def __init__(
        self, orchestrator: Orchestrator, queues: Mapping[str, Queue], capacity: int, wake: Callable[[], None]
    ) -> None:
        self._orchestrator, self._queues, self._capacity, self._wake = orchestrator, queues, capacity, wake
        # When to look even if nothing happens; None: when something does.
        self.next_look: float | None = None
        # Whether runs were left in their queues for want of room.
        self._backlog = False
        # Whether that was because so many were in memory already.
        self.crowded = False
        self._turn = 0
        orchestrator.on_queued = self.stir
        orchestrator.on_room = self._room_again

    def stir(self) -> None:
        """A run may be there to begin."""
        self._note(0.0)

    def _room_again(self) -> None:
        if self._backlog:
            self.stir()

    def _note(self, at: float) -> None:
        if self.next_look is None or at < self.next_look:
            self.next_look = at
            self._wake()

    def due(self, now: float) -> bool:
        """Whether the moment for a look has come."""
        return self.next_look is not None and self.next_look <= now

    async def look(self, most: int | None = None, waiting: Sequence[Waiting] | None = None) -> Sequence[str]:
        """Begin what may begin, a few of each queue and `most` of all, while there is room for them in memory here.

        `waiting` are the queues that have queued runs, where that is known. Says which runs it began; some of them may
        have ended meanwhile.
        """
        orchestrator = self._orchestrator
        if self.due(orchestrator.clock.now()):
            waiting = None  # something has come since that was asked
        self.next_look, self._backlog, self.crowded = None, False, False
        begun: list[str] = []
        try:
            if waiting is None:
                waiting = await orchestrator.store.queues.waiting(orchestrator.serves)
            # Where this process is the bottleneck, no queue is always the first.
            self._turn += 1
            at = self._turn % len(waiting) if waiting else 0
            for one in [*waiting[at:], *waiting[:at]]:
                if one.first > orchestrator.clock.now():
                    self._note(one.first)
                elif not orchestrator.closing:
                    left = LOOK_LIMIT if most is None else most - len(begun)
                    begun += await self._begin_some(self._queues.get(one.queue) or Queue(one.queue), left)
        except Exception:
            self._note(orchestrator.clock.now() + MOMENT)
            raise
        return begun

    async def _begin_some(self, queue: Queue, most: int) -> list[str]:
        orchestrator = self._orchestrator
        ours = sum(driver.queue != "" for driver in orchestrator.active.values())
        room = min(self._capacity - ours, most, LOOK_LIMIT)
        if room <= 0:
            self._backlog = self.crowded = True
            return []
        now = orchestrator.clock.now()
        picks = await orchestrator.store.queues.pick(queue, room, now, list(orchestrator.programs))
        if picks.until is not None:
            self._note(max(picks.until, now + BREATH))
        fresh = [run_id for run_id in picks.run_ids if run_id not in orchestrator.active]
        if not fresh:
            self._backlog = True
            return []
        outcomes = orchestrator.admissions.expect(fresh)
        try:
            await orchestrator.loading.load(fresh, admit=queue)
        finally:
            orchestrator.admissions.settle(*(run_id for run_id in fresh if run_id not in orchestrator.active))
        full = await _settled(outcomes)
        begun = [run_id for run_id, outcome in zip(fresh, outcomes, strict=True) if _begun(outcome)]
        for refused in full:
            if refused.until is not None:
                self._note(max(refused.until, now + BREATH))
        if full:
            self._backlog = True  # somebody else was faster
        else:
            self.stir()
        return begun


def _begun(outcome: asyncio.Future[Full | None]) -> bool:
    return outcome.done() and outcome.result() is None


async def _settled(outcomes: Iterable[asyncio.Future[Full | None]]) -> list[Full]:
    """The refusals among admissions, when all are known: what has begun must be seen to count before the next look."""
    done, _ = await asyncio.wait(list(outcomes), timeout=5 * MOMENT)
    return [full for outcome in done if (full := outcome.result()) is not None]
