"""One pass over what is due, for hosts without a process that stays: a cron job, a serverless function."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from perdure.kernel.events import RunStatus
from perdure.orchestrator.admission import Admission
from perdure.orchestrator.locks import RunLocks
from perdure.orchestrator.membership import Membership
from perdure.orchestrator.residency import LOADING, PARKING, REGAINING_LOCKS, STARTING, SUSPECT, Entered, EntryRequest
from perdure.orchestrator.session import Session

# Runs of this program are the ticks of schedules.
SCHEDULE = "perdure.schedule"


@dataclass(frozen=True, slots=True)
class SweepConfig:
    """Durations are in seconds."""

    poll_interval: float = 0.02
    """How often it is checked whether runs that stay in memory are at rest."""


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The counts of a sweep: due timers, ticks of schedules, new runs and orphans."""

    timers: int = 0
    schedules: int = 0
    runs: int = 0
    more: bool = False
    """Whether work may be left: a limit was reached, or the time was up."""


@dataclass(slots=True)
class Counts:
    """Counts of a sweep, and their limits."""

    limits: dict[str, int]
    taken: dict[str, int] = field(default_factory=lambda: {"timers": 0, "schedules": 0, "runs": 0})
    # Whether something was left because of a limit.
    held: bool = False
    # The runs of ticks: one that has to wait for the run before it is tried again, and is one tick.
    ticks: set[str] = field(default_factory=set)
    # Set when a run was started that the sweep has to load: a run in memory may wait for it.
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    def left(self, kind: str) -> int:
        """How many more of this kind are within the limit."""
        return self.limits[kind] - self.taken[kind]

    def count(self, kind: str) -> bool:
        """Whether one more of this kind is within its limit; it is counted then."""
        if self.left(kind) <= 0:
            self.held = True
            return False
        self.taken[kind] += 1
        return True

    def tick(self, run: str) -> bool:
        """Whether a tick that begins this run is within the limit; it is counted then, once."""
        if run in self.ticks:
            return True
        if not self.count("schedules"):
            return False
        self.ticks.add(run)
        return True


class Sweep:
    """One sweep.

    `alone`: nothing else advances runs here, so every run in memory was begun by the sweep. `is_held`: whether the step
    with this idempotency key waits for another sweep, or for an open run.
    """

    def __init__(
        self,
        session: Session,
        membership: Membership,
        admission: Admission,
        locks: RunLocks,
        enter: Callable[[EntryRequest], Awaitable[Entered]],
        counts: Counts,
        *,
        alone: bool,
        is_held: Callable[[str], Awaitable[bool]],
        config: SweepConfig = SweepConfig(),  # noqa: B008 - frozen
    ) -> None:
        self._session, self._membership, self._admission, self._locks = session, membership, admission, locks
        self._enter, self._counts, self._alone, self._is_held, self._config = enter, counts, alone, is_held, config
        # The runs that were brought into memory.
        self._seen: set[str] = set()

    async def run(self, until: float | None) -> SweepReport:
        """Do what is due and repeat, until nothing is due or `until` has come, in the time of the event loop."""
        session, counts = self._session, self._counts
        claimed: set[str] = set()
        session.claimed = claimed
        counted: list[tuple[str, str]] = []
        in_time = True
        while in_time:
            counts.begun.clear()
            await self._membership.refresh()
            dead = [owner for owner in await session.store.runs.owners() if owner not in self._membership.others]
            found = {**dict.fromkeys(await self._orphans(dead), "runs"), **await self._due()}
            counted += found.items()
            _ = await self._enter(EntryRequest(list(found), dead))
            began = {*found, *await self._queued()}
            # Runs that these have begun, such as the runs of ticks, are advanced too.
            others = [run_id for run_id in session.runs.drivers if run_id not in began] if self._alone else []
            began.update([run_id for run_id in others if not await self._rests(run_id)])
            if not began:
                break
            self._seen.update(began)
            in_time = await self._wait_idle(began, until)
        for run_id, kind in counted:
            # Another sweep was faster, or there was nothing to take up.
            if kind and run_id not in claimed:
                counts.taken[kind] -= 1
        # A lock may come free at any time.
        waiting = any(one.state.lock_waits for one in session.runs.drivers.values())
        locked = waiting or bool(session.runs.of(REGAINING_LOCKS))
        return SweepReport(**counts.taken, more=counts.held or not in_time or locked)

    # --- at rest --------------------------------------------------------------------------------------------------

    async def _rests(self, run_id: str) -> bool:
        """Whether a run was evicted, or is idle until something arrives that a sweep does not wait for."""
        driver = self._session.runs.drivers.get(run_id)
        if driver is None:
            residency = self._session.runs.state(run_id)
            if residency is REGAINING_LOCKS:
                return await self._locks.regain_blocked(run_id)
            return residency not in (STARTING, LOADING, PARKING, SUSPECT)
        if driver.stale or not driver.saved:
            return False
        running = [attempt.context.id for attempt in driver.attempts.running.values()]
        if running and all([await self._is_held(id) for id in running]):
            return not driver.attempts.calls
        state, due = driver.state, driver.state.wake_at
        if not driver.idle or (due is not None and due <= self._session.clock.now()):
            return False
        return not state.lock_waits or await self._locks.all_held_elsewhere(state)

    async def _wait_idle(self, run_ids: Collection[str], until: float | None) -> bool:
        """Wait until all these runs are at rest, or another has begun; False when `until` comes before that."""
        loop, settled = asyncio.get_running_loop(), self._session.runs.settled
        left = list(run_ids)
        while not self._counts.begun.is_set():
            settled.clear()
            left = [run_id for run_id in left if not await self._rests(run_id)]
            if not left:
                # A run at rest may have been sent a message by another, and gets it in a moment.
                for _ in range(5):
                    await asyncio.sleep(0)
                left = [run_id for run_id in run_ids if not await self._rests(run_id)]
                if not left:
                    return True
            if until is not None and loop.time() >= until:
                return False
            # A run that stays in memory may come to rest without a notification.
            again_at = loop.time() + self._config.poll_interval
            with suppress(TimeoutError):
                async with asyncio.timeout_at(again_at if until is None else min(again_at, until)):
                    await settled.wait()
            await asyncio.sleep(0)  # a run that has just regained its locks is about to be loaded
        return until is None or loop.time() < until

    # --- what there is to do --------------------------------------------------------------------------------------

    async def _orphans(self, dead: Sequence[str]) -> list[str]:
        """Orphans that were running."""
        if not dead:
            return []
        session, counts, active = self._session, self._counts, self._session.runs.drivers
        limit = counts.limits["runs"] + len(self._seen) + len(active) + 1
        programs = session.programs.taken()
        found = await session.store.runs.owned(dead, RunStatus.RUNNING, programs, limit, session.serves)
        return [r for r in found if r not in self._seen and r not in active and counts.count("runs")]

    async def _queued(self) -> list[str]:
        """Queued runs that are admitted."""
        counts, left = self._counts, self._counts.left("runs")
        # A run begins once: one that comes again could not be brought into memory.
        begun = [run_id for run_id in await self._admission.poll(most=left) if run_id not in self._seen]
        counts.taken["runs"] += len(begun)
        counts.held = counts.held or (self._admission.crowded and len(begun) >= left)
        return begun

    async def _due(self) -> dict[str, str]:
        """Due runs, each with the kind it counts as; a schedule counts its ticks."""
        session, counts, runs = self._session, self._counts, self._session.runs
        limit = sum(counts.limits.values()) + len(runs.drivers) + len(runs.unreadable) + 1
        programs, skip, now = session.programs.taken(), self._membership.others, session.clock.now()
        taken: dict[str, str] = {}
        for due in await session.store.timers.due(now, limit, programs, skip, session.serves):
            # A run that is due again after it has had its turn counts again; one in memory has an alarm of its own.
            if due.run_id in runs.drivers or due.run_id in runs.unreadable:
                continue
            if due.program == SCHEDULE:
                if counts.left("schedules") > 0:
                    taken[due.run_id] = ""
                else:
                    counts.held = True
                continue
            kind = "timers" if due.waiting else "runs"
            if counts.count(kind):
                taken[due.run_id] = kind
        return taken
