"""Runs that may kill their owner: tried few at a time, and parked when that is as good as certain.

An orchestrator that dies takes all its runs with it, and the next owner cannot tell which of them killed it. So runs
that have lost several owners in a row without progress are suspects: they are loaded after the others, a group at a
time. If the process dies again, the group is tried in smaller groups; a run that was tried alone is parked. The journal
records how many runs were tried together.

Processes die for other reasons as well. A run that waits, sends a heartbeat, or has a step that works for a while
without the process growing has not killed its owner: the owner clears it by a second claim.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec

from perdure.engine.driver import Driver
from perdure.errors import StoreUnavailable
from perdure.kernel.claims import is_progress, only_waits, owners_without_progress, poisoned
from perdure.kernel.events import Batch, RunClaimed, events_in
from perdure.kernel.state import RunState, fold
from perdure.kernel.values.raised import contained
from perdure.orchestrator.locks import RunLocks
from perdure.orchestrator.parking import Parking
from perdure.orchestrator.residency import (
    LOADING,
    PARKING,
    REGAINING_LOCKS,
    SUSPECT,
    Entered,
    EntryRequest,
    RunSlot,
)
from perdure.orchestrator.session import Session
from perdure.ports.journal import Append

try:
    import resource
except ImportError:  # Windows: the memory of a process is not looked at
    resource = None  # type: ignore[assignment]

# In how many parts suspects are tried. More would be longer until all are at work, fewer would cost more orchestrators.
PARTS = 8
# A run that only waits may lose so many times as many owners. Each clears it at once: with other code, its replay may
# be what they all died of.
PATIENT = 4
# A process that grows by more than this while a suspect is tried may be about to die of it. It is little, because a
# busy machine lets a process grow slowly.
GROWTH_BYTES = 16 << 20


class Suspect(msgspec.Struct):
    """The evidence against a run."""

    state: RunState
    owners: Sequence[str]
    # With how many others it was tried last, itself included; 0: it was not.
    tried: int

    @property
    def most(self) -> int | None:
        """With how many it may be tried next; None: with any number."""
        return max(1, self.tried // PARTS) if self.tried else None


class Quarantine:
    """Keeps suspects apart, and parks those that went down alone.

    `enter` brings runs into memory, `broke` parks a run that an error of the engine stopped.
    """

    def __init__(
        self,
        session: Session,
        parking: Parking,
        locks: RunLocks,
        *,
        enter: Callable[[EntryRequest], Awaitable[Entered]],
        broke: Callable[[Driver, Exception], None],
    ) -> None:
        self._session, self._runs, self._config = session, session.runs, session.config
        self._limit, self._lease = session.recovery.quarantine, session.recovery.ttl
        self._parking, self._locks, self._enter, self._broke = parking, locks, enter, broke
        self._suspects = session.runs.of(SUSPECT)
        self._trying = False
        # How many were suspects at once since the first of them came.
        self._most = 0
        # The runs on trial that made no progress yet.
        self.on_trial: set[str] = set()
        self._cleared = asyncio.Event()

    def keeps(self, slot: RunSlot, batches: Sequence[Batch], claim: RunClaimed | None, *, on_trial: bool) -> bool:
        """Whether a run that has lost its owner is not to be claimed now; it may become a suspect by this."""
        if on_trial:
            # Another process may have tried it in the meantime, and be alive.
            suspect = slot.suspect
            return claim is None or not isinstance(suspect, Suspect) or suspect.state.epoch != claim.epoch
        owners = owners_without_progress(batches, self._session.id)
        # Two trials find one of up to PARTS * PARTS by the time that the limit is reached.
        if not self._limit or claim is None or len(owners) < max(1, self._limit - 2):
            return False
        slot.suspect = Suspect(fold(slot.run_id, batches), owners, claim.tried)
        self._runs.move(slot, SUSPECT)
        return True

    def begin(self) -> None:
        """Try the suspects, unless that is under way."""
        if self._suspects and not self._trying and self._session.at_work:
            self._trying = True
            self._session.spawn(self._try_all())

    async def _try_all(self) -> None:
        try:
            while self._suspects and self._session.at_work:
                try:
                    await self._sort_out()
                    group = self._next_group()
                    self._cleared.clear()
                    self.on_trial = {slot.run_id for slot in group}
                    await self._load(group, tried=len(group))
                except StoreUnavailable:
                    await asyncio.sleep(self._config.store_retry)
                    continue
                await self._observe_trial()
        finally:
            self._trying, self._most = False, 0

    async def _load(self, slots: Sequence[RunSlot], tried: int) -> None:
        if slots:
            owners = [slot.suspect.owners[-1] for slot in slots]
            await self._enter(EntryRequest([slot.run_id for slot in slots], owners, trial=tried))

    async def _sort_out(self) -> None:
        """Park suspects that were tried alone, and load those that cannot have killed an owner."""
        harmless: list[RunSlot] = []
        for slot in list(self._suspects.values()):
            suspect: Suspect = slot.suspect
            trusted = len(suspect.owners) < self._limit * PATIENT
            waits = trusted and only_waits(suspect.state, self._session.clock.now())
            if waits and await self._locks.all_held_elsewhere(suspect.state):
                harmless.append(slot)
            elif suspect.tried == 1 and len(suspect.owners) >= self._limit:
                self._runs.mark_parked(slot.run_id)
                if await self._parking.park_as(suspect.state, poisoned(suspect.state, suspect.owners)) is False:
                    # Another append came first: it is a suspect again when that has been read.
                    await self._enter(EntryRequest((slot.run_id,), suspect.owners))
        await self._load(harmless, tried=0)

    def _next_group(self) -> list[RunSlot]:
        """As many as may be tried at once."""
        # A part of all there were, not of those that are left: otherwise the parts get smaller and smaller.
        self._most = max(self._most, len(self._suspects))
        size = -(-self._most // PARTS)
        group: list[RunSlot] = []
        # First those that went down with the fewest others: they delay the rest least if one of them is to blame.
        for slot in sorted(self._suspects.values(), key=lambda slot: slot.suspect.most or self._most):
            most = size if slot.suspect.most is None else min(size, slot.suspect.most)
            if len(group) < most:
                group.append(slot)
                size = most
        return group

    async def _observe_trial(self) -> None:
        """Wait until the runs on trial make progress, or until this process has lived with them for long enough."""
        loop, drivers = self._session.loop, self._runs.drivers
        end, most, grew = loop.time() + self._lease, memory(), -self._config.trial
        # Since when all its steps are under way, and the heartbeats of each, by run.
        since: dict[str, float] = {}
        beats: dict[str, list[float]] = {}
        away: set[str] = set()
        while self.on_trial and self._session.at_work:
            now = loop.time()
            if (taken := memory()) - most > GROWTH_BYTES:
                most, grew = taken, now
                since.clear()
            harmless: list[Driver] = []
            for run_id in list(self.on_trial):
                driver = drivers.get(run_id)
                if driver is None:
                    self._note_absent(run_id, away, now >= end)
                elif driver.attempts.calls or any(one.task is None for one in driver.attempts.running.values()):
                    since.pop(run_id, None)  # not all its steps have begun
                else:
                    felt = [one.context.last_heartbeat for one in driver.attempts.running.values()]
                    lived = now - since.setdefault(run_id, now) >= min(self._config.trial, self._lease)
                    if driver.idle or lived or beats.setdefault(run_id, felt) != felt:
                        harmless.append(driver)
            if now >= end:
                # The next group does not wait any longer, and this one is cleared, unless the process is still growing.
                others = [drivers[run_id] for run_id in self.on_trial if run_id in drivers]
                harmless = others if now - grew >= self._config.trial else harmless
            await self._clear(harmless)
            if now >= end:
                self.on_trial.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.trial_poll):
                    await self._cleared.wait()

    def _note_absent(self, run_id: str, away: set[str], late: bool) -> None:
        """A run on trial is not in memory: it is being loaded again, or was evicted."""
        if self._runs.state(run_id) in (REGAINING_LOCKS, LOADING, PARKING):
            away.discard(run_id)
            if late:
                self.acquit(run_id)
        elif run_id in away:
            self.acquit(run_id)
        else:
            away.add(run_id)  # it may be between the two

    async def _clear(self, drivers: Sequence[Driver]) -> None:
        """Re-claim runs without progress, so that their journals show that this session survived them."""
        accepted: list[asyncio.Future[None]] = []

        def claim() -> None:
            for driver in drivers:
                if not driver.closed and not driver.stale and driver.state.finished is None:
                    try:
                        accepted.append(driver.accept(self._session.claim(driver.state)))
                    except BaseException as error:
                        self._broke(driver, contained(error))

        if drivers:
            await self._session.in_callback(claim)
        if accepted:
            await asyncio.wait(accepted)
            for one in accepted:
                one.exception()  # it was evicted: then it is not ours to judge
        for driver in drivers:
            self.acquit(driver.run_id)

    def committed(self, run_id: str, append: Append) -> None:
        """Something of a run on trial is in the journal."""
        if run_id in self.on_trial and any(is_progress(event) for event in events_in(append.batches)):
            self.acquit(run_id)

    def acquit(self, run_id: str) -> None:
        """The trial of a run is over: it made progress, its owner survived it, or it was evicted."""
        self.on_trial.discard(run_id)
        if not self.on_trial:
            self._cleared.set()


def memory() -> int:
    """How much memory this process uses, in bytes; if the system does not tell, the most that it has used."""
    try:
        with open("/proc/self/status", "rb") as status:
            sizes = [int(line.split()[1]) for line in status if line.startswith((b"VmRSS:", b"VmSwap:"))]
        if sizes:
            return sum(sizes) * 1024
    except OSError:
        pass
    if resource is None:
        return 0
    # Not used on Linux, where it includes the peak of the parent process. In kilobytes, except on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
