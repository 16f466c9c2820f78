"""Take over the runs of orchestrators that are gone: now and then, and as soon as the lease of one ends."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from perdure.orchestrator.membership import Membership
from perdure.orchestrator.session import Session
from perdure.orchestrator.takeover import Takeover


@dataclass(frozen=True, slots=True)
class OrphansConfig:
    """Durations are in seconds. How often orphans are searched for is `Recovery.check_interval`."""

    jitter: float = 0.25
    """The largest deviation from that interval, as a part of it: orchestrators that were started together search at
    different times."""
    late: float = 0.2
    """How long after the end of an awaited lease it counts as ended: a heartbeat may be under way."""
    shortest: float = 1.0
    """How long an orchestrator waits at least for the end of such a lease: reading the leases may fail."""
    longest_delay: float = 0.2
    """How long an orchestrator waits at most, by chance, after the lease of another has ended: one takeover will do."""
    lease_checks: int = 4
    """How many searches in a row may read the leases alone, while the store has not changed since one that found
    nothing."""


@dataclass(frozen=True, slots=True)
class OrphansReport:
    """The report of a search."""

    loaded: int = 0
    """How many runs were taken over."""
    owner_gone: bool = False
    """Whether an orchestrator is gone: what it left asleep may be due."""


class Orphans:
    """Searches for runs whose owner is gone."""

    name = "taking over orphaned runs"

    def __init__(
        self, session: Session, membership: Membership, takeover: Takeover, random: Random, config: OrphansConfig
    ) -> None:
        self._session, self._membership, self._takeover = session, membership, takeover
        self._random, self._config = random, config
        # The store's version at the last search that found nothing, and how many lease checks came since.
        self._searched: object = object()
        self._lease_checks = 0
        self._lease_ended = asyncio.Event()

    def notify(self) -> None:
        """The lease of an orchestrator has ended."""
        self._lease_ended.set()

    async def wait(self) -> None:
        """Wait until the next search is due."""
        interval = self._session.recovery.check_interval
        interval = max(0.01, interval * (1 + self._config.jitter * self._random.uniform(-1, 1)))
        ends = self._membership.next_end()
        if ends is not None:
            interval = min(interval, max(self._config.shortest, ends + self._config.late))
        with suppress(TimeoutError):
            async with asyncio.timeout(interval):
                await self._lease_ended.wait()
        if self._lease_ended.is_set():
            await asyncio.sleep(self._random.uniform(0, self._config.longest_delay))

    async def run_once(self, now: float) -> OrphansReport:
        """Take over what can be.

        If the store has not changed since a search found no orphans, only a dead orchestrator can create one: then the
        leases alone are read.
        """
        if not self._session.at_work:
            return OrphansReport()
        lease_ended = self._lease_ended.is_set()
        self._lease_ended.clear()
        known, version = set(self._membership.others), self._session.store.version()
        unchanged = self._lease_checks < self._config.lease_checks and version == self._searched
        if unchanged and not lease_ended:
            await self._membership.refresh()
            if known.issubset(self._membership.others):
                self._lease_checks += 1
                return OrphansReport()
        self._searched, self._lease_checks = object(), 0
        loaded = await self._takeover.search(startup=False)
        if not loaded:
            self._searched = version
        return OrphansReport(loaded, lease_ended or not known.issubset(self._membership.others))
