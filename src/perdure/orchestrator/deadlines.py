"""Hold the deadlines of runs whose program no orchestrator has: ending a late run needs none of its code."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.orchestrator.heartbeat import Ownership
from perdure.orchestrator.orchestrator import Orchestrator

# How often at most it is asked which programs there are and who has them, and how long what could not be ended waits.
ASK_SECONDS = 0.5
# How many late runs are ended at a time.
LIMIT = 100


class Deadlines:
    """Knows the next deadline of such a run. Asks nothing while there are none."""

    def __init__(self, orchestrator: Orchestrator, ownership: Ownership) -> None:
        self._orchestrator, self._ownership = orchestrator, ownership
        # When to look even if nothing happens; None: when something does.
        self.next_look: float | None = None
        self._programs: Sequence[str] = ()
        # Whether programs, runs or orchestrators may have come or gone since they were asked for, and when that was.
        self._stale = True
        self._asked = 0.0

    async def look(self, *, changed: bool) -> None:
        """End what is late. `changed`: something was written since the last look, or an orchestrator is gone."""
        orchestrator = self._orchestrator
        now = orchestrator.clock.now()
        self._stale |= changed
        due = self.next_look is not None and self.next_look <= now
        asks = self._stale and (due or abs(now - self._asked) >= ASK_SECONDS)
        if asks:
            self._stale, self._asked = False, now
            self._programs = await self._without_orchestrator()
        if asks or due:
            self.next_look = None
            while self._programs and orchestrator.at_work and await self._end_some():
                pass
        if self._stale:
            again = orchestrator.clock.now() + ASK_SECONDS
            self.next_look = again if self.next_look is None else min(self.next_look, again)

    async def _end_some(self) -> bool:
        """End some runs that are late; whether there may be more."""
        orchestrator, timers = self._orchestrator, self._orchestrator.store.timers
        now = orchestrator.clock.now()
        late = await timers.late(now, LIMIT, self._programs, self._ownership.others)
        self.next_look = late.next_deadline
        if not late.run_ids:
            return False
        # One of their owners may have come just now.
        await self._ownership.look_around()
        ended = await orchestrator.loading.end_late(late.run_ids, self._ownership.others)
        if ended == 0:
            # Their owners see to them, or the store does not let us.
            again = now + ASK_SECONDS
            self.next_look = again if self.next_look is None else min(self.next_look, again)
        return ended > 0

    async def _without_orchestrator(self) -> Sequence[str]:
        """The programs with unfinished runs of which no orchestrator that lives takes every run."""
        orchestrator = self._orchestrator
        found = await orchestrator.store.runs.programs()
        ours = orchestrator.programs if orchestrator.serves is None else ()
        others = [name for name in found if name not in ours]
        if not others:
            return ()
        have = await self._ownership.have()
        return [name for name in others if name not in have]
