"""Schedule the background duties of an orchestrator. What a duty does is in a file of its own; only this one loops.

The next due moment is known ahead, and writes of other processes change the store's version, which is read without a
statement; so an idle engine sends one statement every few seconds, and most of those are heartbeats.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from perdure.engine.duties import Duties, Duty, FunctionDuty
from perdure.kernel.policies.queues import Queue
from perdure.orchestrator.admission import Admission
from perdure.orchestrator.deadlines import Deadlines, DeadlinesConfig
from perdure.orchestrator.heartbeat import Heartbeat, HeartbeatConfig
from perdure.orchestrator.membership import Membership, MembershipConfig
from perdure.orchestrator.orchestrator import Orchestrator
from perdure.orchestrator.orphans import Orphans, OrphansConfig
from perdure.orchestrator.recovery import recover
from perdure.orchestrator.timers import Timers, TimersConfig, TimersReport
from perdure.ports.leases import ORCHESTRATOR, Leases, orchestrator_name

log = logging.getLogger("perdure")


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """The configuration of every duty, and of how they are scheduled. Durations are in seconds."""

    membership: MembershipConfig = field(default_factory=MembershipConfig)
    heartbeat: HeartbeatConfig = field(default_factory=HeartbeatConfig)
    timers: TimersConfig = field(default_factory=TimersConfig)
    deadlines: DeadlinesConfig = field(default_factory=DeadlinesConfig)
    orphans: OrphansConfig = field(default_factory=OrphansConfig)
    poll_interval: float = 0.05
    """How often the store's version is read."""
    change_interval: float = 0.1
    """How often at most the store is queried because it has changed."""
    registration_wait: float = 0.5
    """How long opening an engine waits at most for its registration to be stored."""
    restart: float = 1.0
    """How long after an error in scheduling a duty it is scheduled again."""
    lease_watch_retry: float = 5.0
    """How long after leases could not be watched they are watched again."""
    cancel_again: float = 3.0
    """Libraries lose a cancellation now and then: a task that goes on for so long after one is cancelled again."""


class Service:
    """The background of an orchestrator."""

    def __init__(
        self,
        orchestrator: Orchestrator,
        membership: Membership,
        leases: Leases,
        queues: Mapping[str, Queue],
        capacity: int,
        config: ServiceConfig = ServiceConfig(),  # noqa: B008 - frozen
    ) -> None:
        self._orchestrator, self._membership, self._leases, self._config = orchestrator, membership, leases, config
        self._wake = orchestrator.wakeups.changed
        self.duties = Duties(orchestrator.name, orchestrator.clock)
        self.heartbeat = Heartbeat(orchestrator, membership, config.heartbeat)
        self.timers = Timers(orchestrator, membership, config.timers)
        self.deadlines = Deadlines(orchestrator, membership, config.deadlines)
        self.admission = Admission(
            orchestrator.runs,
            orchestrator.lifecycle,
            orchestrator.wakeups,
            orchestrator.store.queues,
            orchestrator.clock,
            orchestrator.programs,
            orchestrator.serves,
            queues,
            capacity,
            orchestrator.enter,
        )
        # By its name: orchestrators that were started together search at different times, and tests are repeatable.
        self.orphans = Orphans(orchestrator, membership, Random(orchestrator.name), config.orphans)
        self._registration = FunctionDuty("registering its programs", membership.register)
        # Set when its programs are registered, or could not be.
        self._registered = asyncio.Event()
        self._version: object = object()
        self._periodic: list[tuple[Duty[object], float, float]] = []
        self._heart: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    # --- from start to stop ---------------------------------------------------------------------------------------

    def repeat(self, duty: Duty[object], *, first: float, interval: float) -> None:
        """Have a duty performed every `interval` seconds, for the first time after `first`."""
        self._periodic.append((duty, first, interval))

    def start_heartbeat(self) -> None:
        """Begin with heartbeats, before anything that may take longer than a lease lasts."""
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

    def start(self, *, look: bool = True) -> None:
        """Begin with the rest. Without `look`, nothing is searched for in the store."""
        if look:
            self._tasks.append(self._schedule(self._watch_store))
        if look and self._orchestrator.recovery.enabled:
            self._tasks += [self._schedule(self._take_over), self._schedule(self._watch_leases)]
        self._tasks += [self._schedule(partial(self._repeat, *periodic)) for periodic in self._periodic]

    def _schedule(self, loop: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._keep_going(loop))

    async def _keep_going(self, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a loop again after an error: without it, runs would stand still for no visible reason."""
        duty = FunctionDuty(loop.__qualname__ if hasattr(loop, "__qualname__") else "a periodic duty", loop)
        while await self.duties.perform(duty) is None:
            await asyncio.sleep(self._config.restart)

    async def stop_taking_runs(self) -> None:
        """Load no more runs. Heartbeats go on, for as long as steps do."""
        await self._cancel(set(self._tasks))

    async def release_due(self) -> None:
        """While the engine closes: have other orchestrators load its runs that become due."""
        await self.duties.perform(FunctionDuty("releasing due runs", self.timers.release_due))

    async def stop(self) -> None:
        """End, and wait until no duty is being performed."""
        self._stopping = True
        await self._cancel({*self._tasks, *([self._heart] if self._heart is not None else [])})

    async def _cancel(self, pending: set[asyncio.Task[None]]) -> None:
        while pending:
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=self._config.cancel_again)

    # --- when each duty is performed ------------------------------------------------------------------------------

    async def _repeat(self, duty: Duty[object], first: float, interval: float) -> None:
        await asyncio.sleep(max(0.01, first))
        while True:
            if self._orchestrator.at_work:
                await self.duties.perform(duty)
            await asyncio.sleep(interval)

    async def _beat(self) -> None:
        """Heartbeats, until another process has this name."""
        orchestrator = self._orchestrator
        try:
            while not orchestrator.retired.is_set():
                await self.heartbeat.wait()
                report = await self.duties.perform(self.heartbeat)
                if report is None or not report.renewed:
                    continue
                await self.duties.perform(self._registration)
                if report.resumed:
                    self._version = object()
                    again = FunctionDuty("resuming", partial(recover, orchestrator, self._membership, startup=True))
                    orchestrator.spawn(self.duties.perform(again))
        except asyncio.CancelledError:
            if not self._stopping and not orchestrator.closing:
                # The event loop ends without having closed the engine, and cancels every task. What steps make of
                # their cancellation is no outcome.
                orchestrator.abort()
            raise

    async def _take_over(self) -> None:
        while True:
            await self.orphans.wait()
            report = await self.duties.perform(self.orphans)
            if report is not None and report.owner_gone:
                self._store_changed()

    async def _watch_leases(self) -> None:
        """Search for orphans as soon as a lease ends, where the backend notifies of that."""
        watching = FunctionDuty("watching leases", self._notify_orphans)
        while True:
            await self.duties.perform(watching)
            await asyncio.sleep(self._config.lease_watch_retry)

    async def _notify_orphans(self) -> None:
        async for key in self._leases.watch(ORCHESTRATOR):
            if orchestrator_name(key) != self._orchestrator.name:
                self.orphans.notify()

    def wake(self) -> None:
        """Look at once whether a duty is due."""
        self._wake.set()

    def _store_changed(self) -> None:
        """The store may hold something new, whatever its version says."""
        self._version = object()
        self._wake.set()

    async def _watch_store(self) -> None:
        """Perform the duties that follow from what the store holds: when it has changed, or when one of them is due."""
        orchestrator, config = self._orchestrator, self._config
        store, clock = orchestrator.store, orchestrator.clock
        catching_up = FunctionDuty("reading what other processes wrote", orchestrator.catch_up.poll)
        loop = asyncio.get_running_loop()
        looked = -config.change_interval
        while True:
            if not orchestrator.at_work:
                await asyncio.sleep(config.poll_interval)
                continue
            now, current = clock.now(), store.version()
            changed = current != self._version and loop.time() - looked >= config.change_interval
            stale = loop.time() - looked >= orchestrator.recovery.check_interval
            upcoming = self._upcoming()
            if changed or stale:
                # Only here: a change that is noticed while a run is due concerns the runs in memory as well.
                self._version, looked = current, loop.time()
                if orchestrator.active and await self.duties.perform(catching_up) is None:
                    self._version = object()
            if changed or stale or (upcoming is not None and upcoming <= now):
                # If the store has not changed, no orchestrator has left it; `orphans` knows which of them are alive.
                await self._load(peers_changed=changed or not orchestrator.recovery.enabled)
                continue
            if self.admission.due(now):
                await self.duties.perform(self._admit(None))
                continue
            moments = [at for at in (upcoming, self.admission.next_poll) if at is not None]
            wait = min(config.poll_interval, max(0.001, min(moments, default=now + config.poll_interval) - now))
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()

    def _upcoming(self) -> float | None:
        """The next moment at which a run or a deadline is due."""
        moments = (self.timers.next_due, self.deadlines.next_look)
        return min((at for at in moments if at is not None), default=None)

    async def _load(self, *, peers_changed: bool) -> None:
        """Load due runs, end late ones, and begin queued ones."""
        self.timers.peers_changed |= peers_changed
        self.deadlines.stale |= peers_changed
        report = await self.duties.perform(self.timers)
        if report is None or await self.duties.perform(self.deadlines) is None:
            self._version = object()
        await self.duties.perform(self._admit(report))

    def _admit(self, report: TimersReport | None) -> Duty[object]:
        """Beginning queued runs. The queues that have some are known where `timers` has just asked for them."""
        waiting = None if report is None else report.waiting
        return FunctionDuty("beginning queued runs", partial(self.admission.poll, waiting=waiting))
