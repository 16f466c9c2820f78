"""Load runs when they are due. The next due time is known between polls, so nothing is queried until then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from perdure.kernel.events import RunReleased
from perdure.kernel.state import fold
from perdure.orchestrator.catch_up import CatchUp
from perdure.orchestrator.membership import Membership
from perdure.orchestrator.residency import Entered, EntryRequest
from perdure.orchestrator.session import Session
from perdure.orchestrator.snapshots import SnapshotReader
from perdure.ports.appends import extend
from perdure.ports.journal import Append, append_all
from perdure.ports.queues import Waiting


@dataclass(frozen=True, slots=True)
class TimersConfig:
    """Durations are in seconds."""

    batch: int = 1_000
    """How many due runs are loaded at a time."""
    retry: float = 0.1
    """The first pause after a poll that found due runs and could load none; it doubles each time."""
    longest_retry: float = 0.5
    """The longest such pause while another orchestrator may be about to claim the runs."""
    unreadable_retry: float = 5.0
    """The longest such pause if none of them can be read."""


@dataclass(frozen=True, slots=True)
class TimersReport:
    """The report of a poll."""

    loaded: int
    """How many due runs were loaded."""
    next_due: float | None
    """When the next run is due; None if none is."""
    waiting: Sequence[Waiting] | None
    """The queues that have queued runs, if the poll read them."""


class Timers:
    """Knows when the next run is due, and loads those that are."""

    name = "loading due runs"

    def __init__(
        self,
        session: Session,
        membership: Membership,
        enter: Callable[[EntryRequest], Awaitable[Entered]],
        snapshots: SnapshotReader,
        catch_up: CatchUp,
        config: TimersConfig,
    ) -> None:
        self._session, self._membership, self._config = session, membership, config
        self._enter, self._snapshots, self._catch_up = enter, snapshots, catch_up
        # Whether other orchestrators may have come or gone since they were last read.
        self.peers_changed = False
        # The next due time by the last poll; `wakeups` has that of runs evicted since.
        self._next_due: float | None = None
        # How many polls in a row found due runs and could load none.
        self._fruitless = 0

    @property
    def next_due(self) -> float | None:
        """When the next run is due, if that is known."""
        moments = (self._next_due, self._session.wakeups.due_at)
        return min((at for at in moments if at is not None), default=None)

    async def run_once(self, now: float) -> TimersReport:
        """Load due runs, and query the next due time."""
        if self.peers_changed and self._membership.others:
            # One of them may have died; then its runs may be claimed.
            await self._membership.refresh()
        self.peers_changed = False
        session, skip = self._session, self._membership.others
        programs, queues = session.programs.taken(), session.serves
        loaded, waiting = 0, None
        while session.at_work:
            # A due time noted from now on may be missing in the result.
            self._next_due = session.wakeups.due_at = None
            ahead = await session.store.timers.ahead(programs, skip, queues)
            self._next_due, waiting = ahead.next_due, ahead.waiting
            now = session.clock.now()
            if self._next_due is None or self._next_due > now:
                break
            # Due runs that are already here must not fill the result.
            limit = self._config.batch + len(session.runs.known())
            found = await session.store.timers.due(now, limit, programs, skip, queues)
            if any(due.owner not in (None, session.name, *skip) for due in found):
                # An unknown owner is either new or dead: find out before claiming its runs.
                await self._membership.refresh()
                known_before, skip = skip, self._membership.others
                if any(due.owner in skip and due.owner not in known_before for due in found):
                    continue  # ask again, without the runs of that live orchestrator
            free = [due.run_id for due in found if due.owner not in skip]
            dead = {due.owner for due in found if due.owner not in skip}
            known = session.runs.known()
            fresh = [run_id for run_id in free if run_id not in known][: self._config.batch]
            if not fresh:
                self._retry(now, free)
                break
            self._fruitless = 0
            loaded += len(fresh)
            await self._enter(EntryRequest(fresh, dead))
            await asyncio.sleep(0)
        return TimersReport(loaded, self.next_due, waiting)

    def _retry(self, now: float, free: Sequence[str]) -> None:
        """All due runs are in memory and have their own alarm, or another orchestrator is about to claim them.

        Poll again when they have had time for that: the answer does not say what is due later.
        """
        readable = any(run_id not in self._session.runs.unreadable for run_id in free)
        self._fruitless = 0 if readable else min(self._fruitless + 1, 10)
        longest = self._config.unreadable_retry if free and not readable else self._config.longest_retry
        self._next_due = now + min(self._config.retry * 2**self._fruitless, longest)

    async def release_due(self) -> int:
        """While the engine closes: release its due runs that are not in memory, so that other orchestrators load them.

        Returns how many runs it released.
        """
        session = self._session
        _ = await self._catch_up.run_once(session.clock.now())
        programs, now = session.programs.taken(), session.clock.now()
        skip, limit = self._membership.others, self._config.batch
        due = await session.store.timers.due(now, limit, programs, skip, session.serves)
        ours = [one.run_id for one in due if one.owner == session.name and one.run_id not in session.runs.drivers]
        appends: list[Append] = []
        for run_id, batches in (await self._snapshots.read_many(ours)).items() if ours else ():
            if isinstance(batches, Exception):
                continue  # the next owner parks it
            state = fold(run_id, batches)
            if state.owner == session.name and state.finished is None:
                appends.append(extend(state, [RunReleased(session.name)], session.clock.now()))
        if appends:
            await append_all(session.store.journal, appends)
        return len(appends)
