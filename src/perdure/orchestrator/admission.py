"""Begin queued runs when it is their turn. Limits are decided where a claim is written; this only knows when to try.

A queue is polled when a run is put into it here, when a run of a queue is evicted here and others wait, when another
process wrote to the store, when a rate allows the next start, and when a delayed run may begin. Otherwise nothing is
read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from perdure.kernel.policies.queues import Queue
from perdure.kernel.state import RunState
from perdure.orchestrator.residency import MAY_ENTER, Entered, EntryRequest
from perdure.orchestrator.session import Session
from perdure.ports.journal import Full
from perdure.ports.queues import Waiting


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    """Durations are in seconds."""

    limit: int = 64
    """How many runs of a queue are begun per poll: other queues have their turn in between."""
    retry: float = 1.0
    """How long a failed poll is put off."""
    claim_wait: float = 5.0
    """How long a poll waits at most for claims to become durable."""
    min_wait: float = 0.001
    """A moment that has come and changed nothing is waited for again at least this long."""


class Turn(Enum):
    """When a run that has not begun may begin."""

    NOW = "now"
    # When its queue has room for it, or it is resumed.
    IN_QUEUE = "in queue"
    # At its not_before.
    LATER = "later"
    # When it waits for its turn again: it was parked before it could begin.
    AFTER_PARKING = "after parking"


def turn_of(state: RunState, admit: Queue | None, now: float) -> Turn:
    """When a run may be advanced. `admit`: its queue, if it may begin within the limits of the queue."""
    started = state.started
    if state.epoch > 0 or started is None:
        return Turn.NOW
    early = started.not_before is not None and started.not_before > now
    if (started.queue or early) and state.parked is not None:
        return Turn.AFTER_PARKING
    if started.queue and (admit is None or state.paused is not None or early):
        return Turn.IN_QUEUE
    return Turn.LATER if early else Turn.NOW


class Admission:
    """Admits runs from queues, as many as limits and this process have room for. `enter` brings runs into memory."""

    name = "beginning queued runs"

    def __init__(
        self,
        session: Session,
        queues: Mapping[str, Queue],
        capacity: int,
        enter: Callable[[EntryRequest], Awaitable[Entered]],
        config: AdmissionConfig = AdmissionConfig(),  # noqa: B008 - frozen
    ) -> None:
        self._session, self._runs, self._wakeups = session, session.runs, session.wakeups
        self._store, self._clock = session.store.queues, session.clock
        self._queues, self._capacity, self._enter, self._config = queues, capacity, enter, config
        # When to poll even if nothing happens; None: only when something does.
        self.next_poll: float | None = None
        # Whether runs were left in their queues because so many were in memory already.
        self.crowded = False
        self._turn = 0
        # The queues that have queued runs, if the timers have just read that.
        self.waiting: Sequence[Waiting] | None = None

    def _note(self, at: float) -> None:
        if self.next_poll is None or at < self.next_poll:
            self.next_poll = at

    def due(self, now: float) -> bool:
        """Whether it is time to poll."""
        return self._wakeups.queue_changed or (self.next_poll is not None and self.next_poll <= now)

    async def run_once(self, now: float) -> Sequence[str]:
        """Begin what may begin, a few runs of each queue. Returns their run_ids."""
        return await self.poll()

    async def poll(self, most: int | None = None) -> Sequence[str]:
        """Begin what may begin, a few runs of each queue and `most` of all, while there is room in memory here.

        Returns the runs that it began; some of them may have ended since.
        """
        waiting, self.waiting = self.waiting, None
        if self.due(self._clock.now()):
            waiting = None  # runs were queued since that was read
        self.next_poll, self.crowded = None, False
        self._wakeups.queue_changed = self._wakeups.backlog = False
        begun: list[str] = []
        try:
            if waiting is None:
                waiting = await self._store.waiting(self._session.serves)
            # Where this process is the bottleneck, no queue is always the first.
            self._turn += 1
            at = self._turn % len(waiting) if waiting else 0
            for one in [*waiting[at:], *waiting[:at]]:
                if one.first > self._clock.now():
                    self._note(one.first)
                elif not self._session.closing:
                    left = self._config.limit if most is None else most - len(begun)
                    begun += await self._admit_some(self._queues.get(one.queue) or Queue(one.queue), left)
        except Exception:
            self._note(self._clock.now() + self._config.retry)
            raise
        return begun

    async def _admit_some(self, queue: Queue, most: int) -> list[str]:
        ours = sum(driver.queue != "" for driver in self._runs.drivers.values())
        room = min(self._capacity - ours, most, self._config.limit)
        if room <= 0:
            self._wakeups.backlog = self.crowded = True
            return []
        now = self._clock.now()
        picks = await self._store.pick(queue, room, now, self._session.programs.taken())
        if picks.until is not None:
            self._note(max(picks.until, now + self._config.min_wait))
        # A run that is being loaded for another reason is polled for again when that finds it in its queue.
        fresh = [run_id for run_id in picks.run_ids if self._runs.state(run_id) in MAY_ENTER]
        admitted = (await self._enter(EntryRequest(fresh, admit=queue))).admitted if fresh else {}
        if not admitted:
            self._wakeups.backlog = True
            return []
        full = await self._refusals(admitted.values())
        for refused in full:
            if refused.until is not None:
                self._note(max(refused.until, now + self._config.min_wait))
        if full:
            self._wakeups.backlog = True  # another process was faster
        else:
            self._wakeups.queued()
        return [run_id for run_id, one in admitted.items() if one.done() and one.result() is None]

    async def _refusals(self, admitted: Iterable[asyncio.Future[Full | None]]) -> list[Full]:
        """Wait for the claims, and return the refusals: the next poll must count the runs that have begun."""
        done, _ = await asyncio.wait(list(admitted), timeout=self._config.claim_wait)
        return [full for one in done if (full := one.result()) is not None]
