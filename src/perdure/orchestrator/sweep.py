"""One pass over what is due, for hosts without a process that stays: a cron job, a serverless function."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from perdure.kernel.events import RunStatus
from perdure.orchestrator.orchestrator import MOMENT, Orchestrator
from perdure.orchestrator.ownership import Ownership
from perdure.orchestrator.queues import Admission

# Runs of this program are the ticks of schedules.
SCHEDULE = "perdure.schedule"


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What a sweep took up: timers that were due, ticks of schedules, runs that were new or had lost their owner."""

    timers: int = 0
    schedules: int = 0
    runs: int = 0
    more: bool = False
    """Whether something may be left to do: a limit was met, or the time was up."""


@dataclass(slots=True)
class _Count:
    """How much of each kind may still be taken up."""

    limits: dict[str, int]
    taken: dict[str, int] = field(default_factory=lambda: {"timers": 0, "schedules": 0, "runs": 0})
    held: bool = False

    def take(self, kind: str) -> bool:
        """Whether one more of this kind is within its limit; it is counted then."""
        if self.taken[kind] >= self.limits[kind]:
            self.held = True
            return False
        self.taken[kind] += 1
        return True


async def sweep(
    orchestrator: Orchestrator,
    ownership: Ownership,
    admission: Admission,
    *,
    max_timers: int,
    max_schedules: int,
    max_runs: int,
    until: float | None,
) -> SweepReport:
    """Take up what is due, let it go as far as it gets, and look again, until nothing is due or `until` has come.

    `until` is in the time of the event loop.
    """
    count = _Count({"timers": max_timers, "schedules": max_schedules, "runs": max_runs})
    seen: set[str] = set()
    # Runs that were here before the sweep are not its own: an open engine goes on with them.
    before = set(orchestrator.active)
    in_time = True
    while in_time:
        await ownership.look_around()
        dead = [owner for owner in await orchestrator.store.runs.owners() if owner not in ownership.others]
        found = await _orphans(orchestrator, dead, count, seen) + await _due(orchestrator, ownership, count)
        await orchestrator.loading.load(found, dead)
        found += await _queued(orchestrator, admission, count, seen)
        # What these have begun in their turn, such as the runs of ticks, goes as far as it gets, too.
        found += [r for r in orchestrator.active if r not in before and r not in found and not at_rest(orchestrator, r)]
        if not found:
            break
        seen.update(found)
        in_time = await _settled(orchestrator, found, until)
    return SweepReport(**count.taken, more=count.held or not in_time)


def at_rest(orchestrator: Orchestrator, run_id: str) -> bool:
    """Whether a run has left memory, or waits for longer than a moment and stays only for the lock it holds."""
    driver = orchestrator.active.get(run_id)
    if driver is None:
        return run_id not in orchestrator.loading.under_way and run_id not in orchestrator.locks.regaining
    state, due = driver.state, driver.state.wake_at
    waits = driver.idle and not driver.stale and state.locks and not state.lock_waits
    return bool(waits) and (due is None or due > orchestrator.clock.now() + MOMENT)


async def _settled(orchestrator: Orchestrator, run_ids: Collection[str], until: float | None) -> bool:
    """Wait until all these runs are at rest; False when `until`, in the time of the loop, comes first."""
    while not all(at_rest(orchestrator, run_id) for run_id in run_ids):
        orchestrator.left.clear()
        try:
            async with asyncio.timeout_at(until):
                await orchestrator.left.wait()
        except TimeoutError:
            return False
        await asyncio.sleep(0)  # one that has just got its locks back is on its way into memory
    return True


async def _orphans(orchestrator: Orchestrator, dead: Sequence[str], count: _Count, seen: Collection[str]) -> list[str]:
    """Runs that were under way when their owner went away."""
    if not dead:
        return []
    limit = count.limits["runs"] + len(seen) + len(orchestrator.active) + 1
    programs, queues = list(orchestrator.programs), orchestrator.serves
    found = await orchestrator.store.runs.owned(dead, RunStatus.RUNNING, programs, limit, queues)
    return [r for r in found if r not in seen and r not in orchestrator.active and count.take("runs")]


async def _queued(orchestrator: Orchestrator, admission: Admission, count: _Count, seen: Collection[str]) -> list[str]:
    """Runs that their queues let begin."""
    left = count.limits["runs"] - count.taken["runs"]
    ours = sum(driver.queue != "" for driver in orchestrator.active.values())
    # A run begins once: one that comes again could not be brought into memory.
    begun = [run_id for run_id in await admission.look(ours + left) if run_id not in seen]
    count.taken["runs"] += len(begun)
    count.held = count.held or (admission.crowded and len(begun) >= left)
    return begun


async def _due(orchestrator: Orchestrator, ownership: Ownership, count: _Count) -> list[str]:
    """Runs whose moment has come, each under the kind of thing that it waited for."""
    limit = sum(count.limits.values()) + len(orchestrator.active) + 1
    programs, now = list(orchestrator.programs), orchestrator.clock.now()
    found = await orchestrator.store.timers.due(now, limit, programs, ownership.others, orchestrator.serves)
    taken = []
    for due in found:
        # A run that is due again after it has had its turn counts again; one in memory has an alarm of its own.
        if due.run_id in orchestrator.active or due.run_id in orchestrator.unreadable:
            continue
        if due.program == SCHEDULE:
            kind = "schedules"
        else:
            kind = "timers" if due.waiting else "runs"
        if count.take(kind):
            taken.append(due.run_id)
    return taken
