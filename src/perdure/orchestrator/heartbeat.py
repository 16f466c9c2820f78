"""Renew the orchestrator's lease before it ends: more often while there are runs that would have to stop without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from perdure.orchestrator.membership import Membership, Superseded
from perdure.orchestrator.session import Session


@dataclass(frozen=True, slots=True)
class HeartbeatConfig:
    """Durations are in seconds. How often heartbeats are due, `Recovery` says."""

    longest_retry: float = 1.0
    """The longest pause after a heartbeat that failed: there is time for several before work has to stop."""


@dataclass(frozen=True, slots=True)
class HeartbeatReport:
    """The report of a heartbeat."""

    renewed: bool = False
    """Whether the lease was renewed."""
    resumed: bool = False
    """Whether the orchestrator had stopped its runs, and resumes them now."""


class Heartbeat:
    """The heartbeats of one orchestrator.

    `idle` says whether nothing would have to stop if the lease ended; `resume` and `retire` are what follows from a
    heartbeat after a suspension, and from another process under the same name.
    """

    name = "the heartbeat"

    def __init__(
        self,
        session: Session,
        membership: Membership,
        config: HeartbeatConfig,
        *,
        idle: Callable[[], bool],
        resume: Callable[[], bool],
        retire: Callable[[], None],
    ) -> None:
        self._session, self._membership, self._config = session, membership, config
        self._idle, self._resume, self._retire = idle, resume, retire
        self._renewed = True
        # Set when a heartbeat is due now: another process may have this name, or runs are loaded.
        self._at_once = session.wakeups.heartbeat

    async def wait(self) -> None:
        """Wait until the next heartbeat is due."""
        wakeups, recovery = self._session.wakeups, self._session.recovery
        pause = recovery.heartbeat if self._renewed else min(self._config.longest_retry, recovery.ttl / 12)
        spare = recovery.idle_heartbeat - pause
        if await self._is_due_within(pause) or not self._renewed or spare <= 0 or not self._idle():
            return
        # Before the first run comes into memory the lease is renewed: the run's first step may block the event loop.
        wakeups.heartbeat_slowed = True
        try:
            await self._is_due_within(spare)
        finally:
            wakeups.heartbeat_slowed = False

    async def _is_due_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._at_once.wait()
        return self._at_once.is_set()

    async def run_once(self, now: float) -> HeartbeatReport:
        """Renew the lease. Stops the orchestrator permanently if another process has its name."""
        self._at_once.clear()
        self._renewed = False
        try:
            self._renewed = await self._membership.renew()
        except Superseded:
            self._retire()
        return HeartbeatReport(self._renewed, self._renewed and self._resume())
