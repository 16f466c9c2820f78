"""Schedule the background duties of an orchestrator. What a duty does is in a file of its own; only this one loops.

The next due moment is known ahead, and the change feed notices without a statement what other processes write; so an
idle engine sends one statement every few seconds, and most of those are heartbeats.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from perdure.engine.change_feed import Subscription, change_feed
from perdure.engine.duties import Duties, Duty, FunctionDuty, cancelled
from perdure.kernel.policies.queues import Queue
from perdure.orchestrator.admission import Admission, AdmissionConfig
from perdure.orchestrator.deadlines import Deadlines, DeadlinesConfig
from perdure.orchestrator.fit_check import FitCheck, FitCheckConfig
from perdure.orchestrator.heartbeat import Heartbeat, HeartbeatConfig
from perdure.orchestrator.membership import Membership, MembershipConfig
from perdure.orchestrator.orchestrator import Orchestrator
from perdure.orchestrator.orphans import Orphans, OrphansConfig
from perdure.orchestrator.session import OrchestratorConfig
from perdure.orchestrator.takeover import Takeover
from perdure.orchestrator.timers import Timers, TimersConfig
from perdure.ports.leases import ORCHESTRATOR, orchestrator_name


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """The configuration of every duty, and of how they are scheduled. Durations are in seconds."""

    membership: MembershipConfig = field(default_factory=MembershipConfig)
    heartbeat: HeartbeatConfig = field(default_factory=HeartbeatConfig)
    timers: TimersConfig = field(default_factory=TimersConfig)
    deadlines: DeadlinesConfig = field(default_factory=DeadlinesConfig)
    orphans: OrphansConfig = field(default_factory=OrphansConfig)
    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    orchestrator: OrchestratorConfig = field(default_factory=OrchestratorConfig)
    fit_check: FitCheckConfig = field(default_factory=FitCheckConfig)
    change_interval: float = 0.125
    """How often at most the store is queried because it has changed."""
    registration_wait: float = 0.5
    """How long opening an engine waits at most for its registration to be stored."""
    restart: float = 1.0
    """How long after an error in scheduling a duty it is scheduled again."""
    cancel_again: float = 3.0
    """How long after a cancellation that got lost the next one is sent."""


class Service:
    """The background of an orchestrator."""

    def __init__(
        self,
        orchestrator: Orchestrator,
        membership: Membership,
        queues: Mapping[str, Queue],
        capacity: int,
        config: ServiceConfig = ServiceConfig(),  # noqa: B008 - frozen
    ) -> None:
        self._orchestrator, self._membership, self._config = orchestrator, membership, config
        self._wake = orchestrator.wakeups.changed
        self.duties = Duties(f"orchestrator {orchestrator.name}", orchestrator.clock)
        session, enter = orchestrator.session, orchestrator.enter
        self.heartbeat = Heartbeat(
            session,
            membership,
            config.heartbeat,
            idle=lambda: orchestrator.idle,
            resume=orchestrator.resume,
            retire=orchestrator.retire,
        )
        self.timers = Timers(session, membership, enter, orchestrator.snapshots, orchestrator.catch_up, config.timers)
        self.deadlines = Deadlines(session, membership, orchestrator.loader.end_late, config.deadlines)
        self.admission = Admission(session, queues, capacity, enter, config.admission)
        self.takeover = Takeover(session, membership, orchestrator.parking, enter)
        # By its name: orchestrators that were started together search at different times, and tests are repeatable.
        self.orphans = Orphans(session, membership, self.takeover, Random(session.name), config.orphans)
        self.fit_check = FitCheck(orchestrator, membership, self.takeover, config.fit_check, self.deadlines.include)
        self._registration = FunctionDuty("registering its programs", membership.register)
        # Set when its programs are registered, or could not be.
        self._registered = asyncio.Event()
        # Whether the store has changed since it was last queried.
        self._changed = False
        self._changes = Subscription(
            change_feed(orchestrator.store),
            "noticing changes",
            self._notice,
            interval=config.change_interval,
            on_poll=self._read_clock,
            leases=ORCHESTRATOR if orchestrator.recovery.enabled else "",
            on_freed=self._lease_ended,
        )
        # Finds programs that were stored, and whose runs this orchestrator takes then. Returns whether there are runs
        # of programs that may be stored later: storing them may go unnoticed, as any change.
        self.find_programs: Callable[[], Awaitable[bool]] | None = None
        self._periodic: list[tuple[Duty[object], float, float]] = []
        self._heart: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    # --- from start to stop ---------------------------------------------------------------------------------------

    def repeat(self, duty: Duty[object], *, first: float, interval: float) -> None:
        """Have a duty performed every `interval` seconds, for the first time after `first`."""
        self._periodic.append((duty, first, interval))

    def start_heartbeat(self) -> None:
        """Start heartbeats, before anything that may take longer than a lease."""
        self._heart = self._schedule(self._beat)
        self.register()

    def register(self) -> None:
        """Register the orchestrator's programs, in the background."""
        self._orchestrator.spawn(self._register())

    async def _register(self) -> None:
        await self.duties.perform(self._registration)
        self._registered.set()

    async def registered(self) -> None:
        """Give a quick store the time for it: a client that comes next then knows what the programs take."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.registration_wait):
                await self._registered.wait()

    def start(self, *, search: bool = True) -> None:
        """Start the other duties. Without `search`, the store is not searched."""
        if search:
            self._changes.start()
            self._tasks += [self._schedule(self._watch_store), self._schedule(self._check_fit)]
        if search and self._orchestrator.recovery.enabled:
            self._tasks.append(self._schedule(self._take_over))
        self._tasks += [self._schedule(partial(self._repeat, *periodic)) for periodic in self._periodic]

    def _schedule(self, loop: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._keep_going(loop))

    async def _keep_going(self, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Restart a loop after an error: without it, runs would stall for no visible reason."""
        duty = FunctionDuty(loop.__qualname__ if hasattr(loop, "__qualname__") else "a periodic duty", loop)
        while await self.duties.perform(duty) is None:
            await asyncio.sleep(self._config.restart)

    async def stop_taking_runs(self) -> None:
        """Load no more runs. Heartbeats continue while steps run."""
        await self._changes.close()
        await cancelled(set(self._tasks), self._config.cancel_again)

    async def release_due(self) -> None:
        """While the engine closes: have other orchestrators load its runs that become due."""
        await self.duties.perform(FunctionDuty("releasing due runs", self.timers.release_due))

    async def stop(self) -> None:
        """End, and wait until no duty is being performed."""
        self._stopping = True
        await self._changes.close()
        tasks = {*self._tasks, *([self._heart] if self._heart is not None else [])}
        await cancelled(tasks, self._config.cancel_again)

    # --- when each duty is performed ------------------------------------------------------------------------------

    async def _repeat(self, duty: Duty[object], first: float, interval: float) -> None:
        await asyncio.sleep(max(0.01, first))
        while True:
            if self._orchestrator.session.at_work:
                await self.duties.perform(duty)
            await asyncio.sleep(interval)

    async def _beat(self) -> None:
        """Heartbeats, until another process has this name."""
        orchestrator = self._orchestrator
        try:
            while not orchestrator.session.retired.is_set():
                await self.heartbeat.wait()
                report = await self.duties.perform(self.heartbeat)
                if report is None or not report.renewed:
                    continue
                await self.duties.perform(self._registration)
                if report.resumed:
                    self._changes.notify()
                    again = FunctionDuty("resuming", partial(self.takeover.search, startup=True))
                    orchestrator.spawn(self.duties.perform(again))
                    self.fit_check.request()
        except asyncio.CancelledError:
            if not self._stopping and not orchestrator.session.closing:
                # The event loop ends without having closed the engine, and cancels every task. What steps make of
                # their cancellation is no outcome.
                orchestrator.abort()
            raise

    async def _take_over(self) -> None:
        while True:
            await self.orphans.wait()
            report = await self.duties.perform(self.orphans)
            if report is not None and report.owner_gone:
                self._changes.notify()
                self.fit_check.request()

    async def _check_fit(self) -> None:
        while True:
            await self.fit_check.wait()
            if self._orchestrator.session.at_work and await self.duties.perform(self.fit_check) is None:
                await asyncio.sleep(self._config.restart)
                self.fit_check.request()
            elif not self._orchestrator.session.at_work:
                await asyncio.sleep(self._config.restart)

    def _lease_ended(self, key: str) -> None:
        if orchestrator_name(key) != self._orchestrator.name:
            self.orphans.notify()

    def _read_clock(self) -> None:
        """The wall clock may jump, which no timer of the event loop notices."""
        upcoming, now = self._upcoming(), self._orchestrator.clock.now()
        if (upcoming is not None and upcoming <= now) or self.admission.due(now):
            self._wake.set()

    async def _notice(self) -> None:
        self._changed = True
        self._wake.set()

    async def _watch_store(self) -> None:
        """Perform the duties that follow from what the store holds: when it has changed, or when one of them is due."""
        orchestrator, clock, loop = self._orchestrator, self._orchestrator.clock, asyncio.get_running_loop()
        queried, programs_lack = -math.inf, True
        while True:
            if not orchestrator.session.at_work:
                self._wake.clear()
                await self._wake.wait()
                continue
            now, upcoming = clock.now(), self._upcoming()
            changed, self._changed = self._changed, False
            stale = loop.time() - queried >= orchestrator.recovery.check_interval
            if changed or stale:
                if self.find_programs is not None and (changed or programs_lack):
                    found = await self.duties.perform(FunctionDuty("finding definitions", self.find_programs))
                    programs_lack = found is None or found.result
                queried = loop.time()
                if orchestrator.active and await self.duties.perform(orchestrator.catch_up) is None:
                    self._changes.notify()
            if changed or stale or (upcoming is not None and upcoming <= now):
                # If the store has not changed, no orchestrator has left it; `orphans` knows which of them are alive.
                await self._load(peers_changed=changed or not orchestrator.recovery.enabled)
                continue
            if self.admission.due(now):
                await self.duties.perform(self.admission)
                continue
            moments = [at - now for at in (upcoming, self.admission.next_poll) if at is not None]
            wait = min(moments, default=math.inf)
            wait = max(0.001, min(wait, queried + orchestrator.recovery.check_interval - loop.time()))
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()

    def _upcoming(self) -> float | None:
        """When the next run or deadline is due."""
        moments = (self.timers.next_due, self.deadlines.next_poll)
        return min((at for at in moments if at is not None), default=None)

    async def _load(self, *, peers_changed: bool) -> None:
        """Load due runs, end late ones, and admit queued ones."""
        self.timers.peers_changed |= peers_changed
        self.deadlines.stale |= peers_changed
        report = await self.duties.perform(self.timers)
        if report is None or await self.duties.perform(self.deadlines) is None:
            self._changes.notify()
        self.admission.waiting = None if report is None else report.waiting
        await self.duties.perform(self.admission)
