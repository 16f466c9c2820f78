"""Runs that may take down whoever advances them: tried few at a time, and parked when that is as good as certain.

An orchestrator that dies takes all its runs with it, and the next owner cannot tell which of them it died of. So runs
that have lost owners in a row and got no further are taken up after the others, a part of them at a time. Those that
go down together are tried in smaller parts; one that goes down alone is the one. The journal remembers with how many
others a run was tried.

Processes die for other reasons as well. A run that waits, gives a heartbeat, or has a step that goes on for a while
without the process swelling has not killed its owner: the owner acquits it by a second claim.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from perdure.errors import StoreUnavailable
from perdure.kernel.events import Batch, RunClaimed
from perdure.kernel.policies.quarantine import fruitless, is_progress, last_claim, only_waits, poisoned
from perdure.kernel.state import RunState, fold
from perdure.kernel.values.raised import contained
from perdure.ports.journal import Append

try:
    import resource
except ImportError:  # Windows: what a process takes is not looked at
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from perdure.engine.driver import Driver
    from perdure.orchestrator.orchestrator import Orchestrator

# How long a store that is out of reach is left alone before the next try.
AGAIN_SECONDS = 1.0
# In how many parts suspects are tried. More would be longer until all are at work, fewer would cost more orchestrators.
PARTS = 8
# A run that only waits may lose so many times as many owners. Each acquits it at once: with other code, its replay may
# be what they all died of.
PATIENT = 4
# How long an owner has to live with the steps of a suspect before it acquits it, and how often it looks meanwhile.
LIVED_SECONDS = 1.0
LOOK_SECONDS = 0.1
# A process that swells by more than this while a suspect is tried may be about to die of it. It is little, because a
# busy machine lets a process swell slowly.
SWELLING_BYTES = 16 << 20


class Suspect(msgspec.Struct):
    """A run that is to be tried."""

    state: RunState
    owners: Sequence[str]
    # With how many others it was tried last, itself included; 0: it was not.
    tried: int

    @property
    def most(self) -> int | None:
        """With how many it may be tried next; None: with any number."""
        return max(1, self.tried // PARTS) if self.tried else None


class Quarantine:
    """Keeps suspects from the others, and parks those that went down alone."""

    def __init__(self, orchestrator: Orchestrator) -> None:
        self._orchestrator = orchestrator
        self._limit = orchestrator.recovery.quarantine
        self.waiting: dict[str, Suspect] = {}
        self._trying = False
        # How many have waited at once since the first of them came.
        self._crowd = 0
        # Those that are being tried, and of them those that got no further yet.
        self._unproven: set[str] = set()
        self._proven = asyncio.Event()

    def keeps(self, run_id: str, batches: Sequence[Batch], *, on_trial: bool) -> bool:
        """Whether a run that has lost its owner has to wait until it can be tried."""
        claim = last_claim(batches)
        if on_trial:
            # Somebody else may have tried it meanwhile, and be alive.
            return claim is None or self.waiting[run_id].state.epoch != claim.epoch
        owners = fruitless(batches, self._orchestrator.session)
        # Two trials find one of up to PARTS * PARTS by the time that the limit is reached.
        if not self._limit or claim is None or len(owners) < max(1, self._limit - 2):
            return False
        self.waiting[run_id] = Suspect(fold(run_id, batches), owners, claim.tried)
        return True

    def begin(self) -> None:
        """Try those that wait, unless that is under way."""
        if self.waiting and not self._trying and self._orchestrator.at_work:
            self._trying = True
            self._orchestrator.spawn(self._try_all())

    async def _try_all(self) -> None:
        orchestrator = self._orchestrator
        try:
            while self.waiting and orchestrator.at_work:
                try:
                    await self._judge()
                    group = self._next_group()
                    self._proven.clear()
                    self._unproven = set(group)
                    await self._load(group, tried=len(group))
                except StoreUnavailable:
                    await asyncio.sleep(AGAIN_SECONDS)
                    continue
                await self._live_with_them()
        finally:
            self._trying, self._crowd = False, 0

    async def _load(self, run_ids: Sequence[str], tried: int) -> None:
        if run_ids:
            owners = [self.waiting[run_id].owners[-1] for run_id in run_ids]
            await self._orchestrator.loading.load(run_ids, owners, tried=tried)
            for run_id in run_ids:
                del self.waiting[run_id]

    async def _judge(self) -> None:
        """Park those that went down alone, and let go on those that nobody can have died of."""
        orchestrator = self._orchestrator
        blameless: list[str] = []
        for run_id, suspect in list(self.waiting.items()):
            state, now = suspect.state, orchestrator.clock.now()
            trusted = len(suspect.owners) < self._limit * PATIENT
            if trusted and only_waits(state, now) and await orchestrator.locks.kept_out(state):
                blameless.append(run_id)
            elif suspect.tried == 1 and len(suspect.owners) >= self._limit:
                await orchestrator.parking.put_away(state, poisoned(state, suspect.owners))
                del self.waiting[run_id]
        await self._load(blameless, tried=0)

    def _next_group(self) -> list[str]:
        """As many as may be tried at once."""
        # A part of all there were, not of those that are left: otherwise the parts get smaller and smaller.
        self._crowd = max(self._crowd, len(self.waiting))
        size = -(-self._crowd // PARTS)
        group: list[str] = []
        # Those first that went down with the fewest others: they keep the rest waiting least if one of them is it.
        for run_id, suspect in sorted(self.waiting.items(), key=lambda one: one[1].most or self._crowd):
            most = size if suspect.most is None else min(size, suspect.most)
            if len(group) < most:
                group.append(run_id)
                size = most
        return group

    async def _live_with_them(self) -> None:
        """Wait until those that are tried got further, or until we have lived with them for long enough."""
        orchestrator = self._orchestrator
        loop, lease = orchestrator.loop, orchestrator.recovery.ttl
        end, most, swelled = loop.time() + lease, memory(), -LIVED_SECONDS
        # Since when all its steps are under way, and the heartbeats of each, by run.
        since: dict[str, float] = {}
        beats: dict[str, list[float]] = {}
        away: set[str] = set()
        while self._unproven and orchestrator.at_work:
            now = loop.time()
            if (taken := memory()) - most > SWELLING_BYTES:
                most, swelled = taken, now
                since.clear()
            harmless: list[Driver] = []
            for run_id in list(self._unproven):
                driver = orchestrator.active.get(run_id)
                if driver is None:
                    self._miss(run_id, away, now >= end)
                elif driver.attempts.calls or any(one.task is None for one in driver.attempts.running.values()):
                    since.pop(run_id, None)  # not all its steps have begun
                else:
                    felt = [one.context.beat for one in driver.attempts.running.values()]
                    lived = now - since.setdefault(run_id, now) >= min(LIVED_SECONDS, lease)
                    if driver.idle or lived or beats.setdefault(run_id, felt) != felt:
                        harmless.append(driver)
            if now >= end:
                # The next do not wait any longer, and these are acquitted, unless the process is still swelling.
                others = [orchestrator.active[run_id] for run_id in self._unproven if run_id in orchestrator.active]
                harmless = others if now - swelled >= LIVED_SECONDS else harmless
            await self._acquit(harmless)
            if now >= end:
                self._unproven.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._proven.wait()

    def _miss(self, run_id: str, away: set[str], late: bool) -> None:
        """A run that is tried is not in memory: it is on its way there again, or has left."""
        orchestrator = self._orchestrator
        if run_id in orchestrator.locks.regaining or run_id in orchestrator.loading.under_way:
            away.discard(run_id)
            if late:
                self.left(run_id)
        elif run_id in away:
            self.left(run_id)
        else:
            away.add(run_id)  # it may be between the two

    async def _acquit(self, drivers: Sequence[Driver]) -> None:
        """Say in the journals of runs that got no further yet that we have lived with them."""
        accepted: list[asyncio.Future[None]] = []

        def acquit() -> None:
            orchestrator = self._orchestrator
            for driver in drivers:
                if not driver.closed and not driver.stale and driver.state.finished is None:
                    claim = RunClaimed(orchestrator.name, driver.state.epoch + 1, orchestrator.session)
                    try:
                        accepted.append(driver.accept(claim))
                    except BaseException as error:
                        orchestrator.broke(driver, contained(error))

        if drivers:
            await self._orchestrator.in_callback(acquit)
        if accepted:
            await asyncio.wait(accepted)
            for one in accepted:
                one.exception()  # it has left memory: then it is not ours to judge
        for driver in drivers:
            self.left(driver.run_id)

    def committed(self, run_id: str, append: Append) -> None:
        """Something of a run is in the journal."""
        if run_id in self._unproven and any(is_progress(event) for batch in append.batches for event in batch.events):
            self.left(run_id)

    def left(self, run_id: str) -> None:
        """A run has left memory."""
        self._unproven.discard(run_id)
        if not self._unproven:
            self._proven.set()


def memory() -> int:
    """How much memory this process takes, in bytes; the most that it has taken where the system does not say."""
    try:
        with open("/proc/self/status", "rb") as status:
            sizes = [int(line.split()[1]) for line in status if line.startswith((b"VmRSS:", b"VmSwap:"))]
        if sizes:
            return sum(sizes) * 1024
    except OSError:
        pass
    if resource is None:
        return 0
    # Not on Linux, where it begins with what the process took that started this one. In kilobytes, but for macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
