"""Runs that may take down whoever advances them: tried few at a time, and parked when that is as good as certain.

An orchestrator that dies takes all its runs with it, and the next owner cannot tell which of them it died of. So runs
that have lost owners in a row and got no further are taken up after the others, a part of them at a time. Those that
go down together are tried in smaller parts; one that goes down alone is the one. The journal remembers with how many
others a run was tried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from perdure.errors import StoreUnavailable
from perdure.kernel.events import Batch, RunClaimed
from perdure.kernel.quarantine import fruitless, is_progress, last_claim, only_waits, poisoned
from perdure.kernel.state import RunState, fold
from perdure.ports.journal import Append

if TYPE_CHECKING:
    from perdure.orchestrator.orchestrator import Orchestrator

# How long a store that is out of reach is left alone before the next try.
AGAIN_SECONDS = 1.0
# In how many parts suspects are tried. More would be longer until all are at work, fewer would cost more orchestrators.
PARTS = 8


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
                    await self._acquit_last()
                    group = self._next_group()
                    self._proven.clear()
                    self._unproven = set(group)
                    await self._load(group, tried=len(group))
                except StoreUnavailable:
                    await asyncio.sleep(AGAIN_SECONDS)
                    continue
                self._unproven.intersection_update(orchestrator.active)
                if self._unproven:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(orchestrator.recovery.lease):
                            await self._proven.wait()
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
            if only_waits(state, now) and await orchestrator.locks.kept_out(state):
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

    async def _acquit_last(self) -> None:
        """Before the next are tried, say of the last, if they still get no further, that we have lived with them."""
        accepted: list[asyncio.Future[None]] = []

        def acquit() -> None:
            orchestrator = self._orchestrator
            for driver in [orchestrator.active[run_id] for run_id in self._unproven if run_id in orchestrator.active]:
                if not driver.stale and driver.state.finished is None:
                    claim = RunClaimed(orchestrator.name, driver.state.epoch + 1, orchestrator.session)
                    accepted.append(driver.accept(claim))

        if self._unproven:
            await self._orchestrator.in_callback(acquit)
            self._unproven.clear()
        if accepted:
            await asyncio.wait(accepted)
            for one in accepted:
                one.exception()  # it has left memory: then it is nobody's concern here

    def committed(self, run_id: str, append: Append) -> None:
        """Something of a run is in the journal."""
        if run_id in self._unproven and any(is_progress(event) for batch in append.batches for event in batch.events):
            self.left(run_id)

    def left(self, run_id: str) -> None:
        """A run has left memory."""
        self._unproven.discard(run_id)
        if not self._unproven:
            self._proven.set()
