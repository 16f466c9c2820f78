"""What others have appended to journals of runs that are in memory here: found, read and taken in."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from perdure.engine.driver import Driver
from perdure.errors import PerdureError, StoreUnavailable
from perdure.kernel.events import FROM_OUTSIDE, Batch
from perdure.kernel.values.raised import contained

if TYPE_CHECKING:
    from perdure.orchestrator.orchestrator import Orchestrator

# How long a store that is out of reach is left alone before the next try.
AGAIN_SECONDS = 1.0


class Tails:
    """Reads the ends of journals, or all of one where its end is not enough."""

    def __init__(self, orchestrator: Orchestrator) -> None:
        self._orchestrator = orchestrator
        # Runs whose journals are being read; resolved when that is over.
        self.reading: dict[str, asyncio.Future[None]] = {}

    async def look(self, run_ids: Collection[str] | None = None) -> None:
        """Take in what others appended to runs that are in memory here, all of them or some."""
        active = self._orchestrator.active
        wanted = active.values() if run_ids is None else [active[run_id] for run_id in run_ids if run_id in active]
        quiet = [driver for driver in wanted if driver.quiet]
        journal = self._orchestrator.store.journal
        heads = await journal.heads([driver.run_id for driver in quiet]) if quiet else {}
        for driver in quiet:
            # Meanwhile it may have written itself; then its own append met what is news here.
            news = heads.get(driver.run_id, 0) > driver.outbox.committed and driver.quiet
            if news and active.get(driver.run_id) is driver:
                self.read(driver)

    def read(self, driver: Driver) -> None:
        """Somebody else has appended: nothing more is written until that has been taken in."""
        if driver.stale:
            return
        driver.stale = True
        reading = self.reading[driver.run_id] = self._orchestrator.loop.create_future()
        self._orchestrator.spawn(self._read(driver, reading))

    def end(self) -> None:
        """Nobody needs to wait any more."""
        for run_id, reading in list(self.reading.items()):
            self._over(run_id, reading)

    def _over(self, run_id: str, reading: asyncio.Future[None]) -> None:
        if not reading.done():
            reading.set_result(None)
        # The next one may have begun already.
        if self.reading.get(run_id) is reading:
            del self.reading[run_id]

    async def _read(self, driver: Driver, reading: asyncio.Future[None]) -> None:
        try:
            while not await self._try_to_read(driver):
                await asyncio.sleep(AGAIN_SECONDS)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            self._orchestrator.broke(driver, contained(error))
        finally:
            self._over(driver.run_id, reading)

    async def _try_to_read(self, driver: Driver) -> bool:
        orchestrator = self._orchestrator
        journal, payloads = orchestrator.store.journal, orchestrator.payloads
        if orchestrator.turns.lost:
            await orchestrator.turns.take(driver.run_id)
        try:
            if driver.saved and await self._read_tail(driver):
                return True
            batches = await payloads.inflate(await journal.read(driver.run_id))
            started = await payloads.with_input(batches)
        except StoreUnavailable:
            return False
        except PerdureError as error:
            await orchestrator.give_up_unread(driver, str(error))
            return True
        await orchestrator.in_callback(lambda: orchestrator.rejoin(driver, started, batches))
        return True

    async def _read_tail(self, driver: Driver) -> bool:
        """Where the journal holds all that the driver knows, what came from outside since is all there is to read."""
        tail = await self._orchestrator.store.journal.read(driver.run_id, driver.state.next_seq)
        if not tail or not all(type(event) in FROM_OUTSIDE for batch in tail for event in batch.events):
            return False
        caught_up: list[bool] = []
        await self._orchestrator.in_callback(lambda: caught_up.append(self._catch_up(driver, tail)))
        return caught_up == [True]

    def _catch_up(self, driver: Driver, tail: Sequence[Batch]) -> bool:
        orchestrator = self._orchestrator
        if orchestrator.active.get(driver.run_id) is not driver or orchestrator.leaving or not driver.catch_up(tail):
            return False
        orchestrator.locks.tell_again(driver)
        orchestrator.settle(driver)
        return True
