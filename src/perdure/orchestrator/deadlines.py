"""End late runs whose program no orchestrator has: ending a run needs none of its code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from perdure.orchestrator.membership import Membership
from perdure.orchestrator.session import Session


@dataclass(frozen=True, slots=True)
class DeadlinesConfig:
    """Durations are in seconds."""

    interval: float = 0.5
    """How often at most the store is asked for its programs and who has them, and how long a late run that could not be
    ended is left alone."""
    batch: int = 100
    """How many late runs are ended at a time."""


@dataclass(frozen=True, slots=True)
class DeadlinesReport:
    """The report of a pass."""

    ended: int
    """How many late runs were ended."""
    next_poll: float | None
    """When to poll again even if the store does not change."""


class Deadlines:
    """Knows the next deadline of such runs. While there are none, it queries nothing.

    `end_late` ends those of some runs whose owners are not among the given ones, and returns how many.
    """

    name = "ending late runs"

    def __init__(
        self,
        session: Session,
        membership: Membership,
        end_late: Callable[[Sequence[str], Collection[str]], Awaitable[int]],
        config: DeadlinesConfig,
    ) -> None:
        self._session, self._membership, self._end_late, self._config = session, membership, end_late, config
        # When to poll even if the store does not change; None: when it does.
        self.next_poll: float | None = None
        # Whether programs, runs or orchestrators may have come or gone since the store was asked for them.
        self.stale = True
        self._programs: Sequence[str] = ()
        self._asked_at = 0.0
        # Programs that have runs of versions which this orchestrator lacks, and another may lack, too.
        self._versions_missing: frozenset[str] = frozenset()

    def include(self, programs: frozenset[str]) -> None:
        """Enforce deadlines of these programs too: they have runs of versions that this orchestrator lacks."""
        if programs != self._versions_missing:
            self._versions_missing, self.stale = programs, True
            self._poll_later(self._session.clock.now())
            self._session.wakeups.changed.set()

    async def run_once(self, now: float) -> DeadlinesReport:
        """End what is late."""
        due, ended = self.next_poll is not None and self.next_poll <= now, 0
        asks = self.stale and (due or abs(now - self._asked_at) >= self._config.interval)
        if asks:
            self.stale, self._asked_at = False, now
            self._programs = await self._without_orchestrator()
        if asks or due:
            self.next_poll = None
            while self._programs and self._session.at_work and (some := await self._end_some()):
                ended += some
        if self.stale:
            self._poll_later(self._session.clock.now())
        return DeadlinesReport(ended, self.next_poll)

    def _poll_later(self, now: float) -> None:
        at = now + self._config.interval
        self.next_poll = at if self.next_poll is None else min(self.next_poll, at)

    async def _end_some(self) -> int:
        """End some late runs, and return how many; 0 if none can be ended."""
        timers, now = self._session.store.timers, self._session.clock.now()
        late = await timers.late(now, self._config.batch, self._programs, self._membership.others)
        self.next_poll = late.next_deadline
        if not late.run_ids:
            return 0
        # One of their owners may have started just now.
        await self._membership.refresh()
        ended = await self._end_late(late.run_ids, self._membership.others)
        if ended == 0:
            self._poll_later(now)  # their owners end them, or the store is unreachable
        return ended

    async def _without_orchestrator(self) -> Sequence[str]:
        """The programs with unfinished runs that no live orchestrator serves completely."""
        session, more = self._session, self._versions_missing
        found = await session.store.runs.programs()
        ours = session.programs if session.serves is None else ()
        others = [name for name in found if name not in ours or name in more]
        if not others:
            return ()
        have = await self._membership.served_programs()
        return [name for name in others if name not in have or name in more]
