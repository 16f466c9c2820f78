"""Runs that may take down whoever advances them: tried one at a time, and parked when that is as good as certain.

An orchestrator that dies takes all its runs with it, and the next owner cannot tell which of them it died of. So a run
that has lost several owners in a row and got no further is taken up alone. If it is the one, it goes down alone the
next time, and the others are not counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from perdure.errors import StoreUnavailable
from perdure.kernel.events import Batch, RunClaimed
from perdure.kernel.quarantine import fruitless, is_progress, poisoned
from perdure.kernel.state import fold
from perdure.ports.journal import Append

if TYPE_CHECKING:
    from perdure.orchestrator.orchestrator import Orchestrator

# How long a store that is out of reach is left alone before the next try.
AGAIN_SECONDS = 1.0


class Quarantine:
    """Keeps suspects from the others, and parks those that were tried often enough."""

    def __init__(self, orchestrator: Orchestrator) -> None:
        self._orchestrator = orchestrator
        self._limit = orchestrator.recovery.quarantine
        # Runs that are to be tried, each with its last owner and how often it had been claimed.
        self.waiting: dict[str, tuple[str, int]] = {}
        self._trying = False
        self._on_trial = ""
        self._proven = asyncio.Event()

    def keeps(self, run_id: str, batches: Sequence[Batch], on_trial: bool) -> bool:
        """Whether a run that has lost its owner is parked, or has to wait until it can be tried."""
        owners = fruitless(batches, self._orchestrator.session)
        epoch = sum(1 for batch in batches for event in batch.events if isinstance(event, RunClaimed))
        if on_trial and self.waiting[run_id][1] != epoch:
            return True  # somebody else has tried it meanwhile, and may be alive
        if not self._limit or len(owners) < max(1, self._limit - 1):
            return False
        orchestrator = self._orchestrator
        if len(owners) >= self._limit:
            state = fold(run_id, batches)
            orchestrator.spawn(orchestrator.parking.put_away(state, poisoned(state, owners)))
            return True
        if not on_trial:
            self.waiting[run_id] = owners[-1], epoch
        return not on_trial

    def begin(self) -> None:
        """Try those that wait, unless that is under way."""
        if self.waiting and not self._trying and self._orchestrator.at_work:
            self._trying = True
            self._orchestrator.spawn(self._try_each())

    async def _try_each(self) -> None:
        orchestrator = self._orchestrator
        try:
            while self.waiting and orchestrator.at_work:
                await self._acquit_last()
                run_id, (owner, _) = next(iter(self.waiting.items()))
                self._proven.clear()
                self._on_trial = run_id
                try:
                    await orchestrator.loading.load([run_id], [owner], on_trial=True)
                except StoreUnavailable:
                    await asyncio.sleep(AGAIN_SECONDS)
                    continue
                del self.waiting[run_id]
                if run_id in orchestrator.active:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(orchestrator.recovery.lease):
                            await self._proven.wait()
        finally:
            self._trying = False

    async def _acquit_last(self) -> None:
        """Before the next one is tried, say of the last, if it still gets no further, that we have lived with it."""
        accepted: list[asyncio.Future[None]] = []

        def acquit() -> None:
            orchestrator = self._orchestrator
            driver = orchestrator.active.get(self._on_trial)
            if driver is not None and not driver.stale and driver.state.finished is None:
                claim = RunClaimed(orchestrator.name, driver.state.epoch + 1, orchestrator.session)
                accepted.append(driver.accept(claim))

        if self._on_trial and not self._proven.is_set():
            await self._orchestrator.in_callback(acquit)
            if accepted:
                await asyncio.wait(accepted)
                accepted[0].exception()  # it has left memory: then it is nobody's concern here

    def committed(self, run_id: str, append: Append) -> None:
        """Something of a run is in the journal."""
        if run_id == self._on_trial and any(is_progress(event) for batch in append.batches for event in batch.events):
            self._proven.set()

    def left(self, run_id: str) -> None:
        """A run has left memory."""
        if run_id == self._on_trial:
            self._proven.set()
