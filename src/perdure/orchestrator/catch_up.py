"""Catch up with the events that other processes have appended to the journals of runs in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from perdure.engine.driver import Driver
from perdure.engine.large_values import Payloads
from perdure.engine.turns import Turns
from perdure.errors import PerdureError, StoreUnavailable
from perdure.kernel.events import FROM_OUTSIDE, Batch, RunStarted, events_in
from perdure.kernel.values.raised import contained
from perdure.orchestrator.locks import RunLocks
from perdure.orchestrator.parking import Parking
from perdure.orchestrator.residency import ACTIVE, CATCHING_UP
from perdure.orchestrator.session import Session


class CatchUp:
    """Reads the tails of journals; the whole journal if its tail is not enough.

    `inflate` puts the values in place that a journal has offloaded, `rejoin` gives a run a new driver on its whole
    journal, `settle` sees to a run that has caught up, `evict` takes a driver out of memory, `broke` parks a run that
    an error of the engine stopped.
    """

    name = "reading what other processes wrote"

    def __init__(
        self,
        session: Session,
        payloads: Payloads,
        turns: Turns,
        locks: RunLocks,
        parking: Parking,
        *,
        inflate: Callable[[str, RunStarted, Sequence[Batch]], Awaitable[Sequence[Batch]]],
        rejoin: Callable[[Driver, RunStarted, Sequence[Batch]], None],
        settle: Callable[[Driver], None],
        evict: Callable[[Driver], None],
        broke: Callable[[Driver, Exception], None],
    ) -> None:
        self._session, self._runs, self._journal = session, session.runs, session.store.journal
        self._payloads, self._turns, self._locks, self._parking = payloads, turns, locks, parking
        self._inflate = inflate
        self._rejoin, self._settle, self._evict, self._broke = rejoin, settle, evict, broke

    async def run_once(self, now: float) -> int:
        """Poll the journals of all runs in memory, and catch up with those that have grown. Returns how many have."""
        return await self.poll(list(self._runs.drivers.values()))

    async def poll(self, drivers: Sequence[Driver]) -> int:
        """As `run_once`, for some runs."""
        quiet = [driver for driver in drivers if driver.quiet]
        heads = await self._journal.heads([driver.run_id for driver in quiet]) if quiet else {}
        # If a driver has appended since, its own append has met the conflict.
        grown = [one for one in quiet if heads.get(one.run_id, 0) > one.outbox.committed and one.quiet]
        for driver in grown:
            self.begin(driver)
        return len(grown)

    def begin(self, driver: Driver) -> None:
        """Another process has appended: nothing more is written until the driver has caught up."""
        if driver.stale or not self._runs.has(driver):
            return
        driver.stale = True
        self._runs.move(self._runs.slot(driver.run_id), CATCHING_UP)
        self._session.spawn(self._catch_up(driver))

    async def _catch_up(self, driver: Driver) -> None:
        try:
            while self._runs.has(driver) and not await self._try_to_catch_up(driver):
                await asyncio.sleep(self._session.config.store_retry)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            self._broke(driver, contained(error))

    async def _try_to_catch_up(self, driver: Driver) -> bool:
        """Whether a driver has caught up, was replaced, or was evicted; False when the store is out of reach."""
        if self._turns.lost:
            await self._turns.reserve(driver.run_id)
        try:
            if driver.saved and await self._read_tail(driver):
                return True
            journal = await self._journal.read(driver.run_id)
            started = await self._payloads.with_input(journal)
            batches = await self._inflate(driver.run_id, started, journal)
        except StoreUnavailable:
            return False
        except PerdureError as error:
            self._evict(driver)
            await self._parking.park_unread(driver.run_id, str(error))
            return True
        await self._session.in_callback(lambda: self._rejoin(driver, started, batches))
        return True

    async def _read_tail(self, driver: Driver) -> bool:
        """Read and apply the tail. False if it is not made of external events alone, or does not follow the state."""
        tail = await self._journal.read(driver.run_id, driver.state.next_seq)
        if not tail or not all(type(event) in FROM_OUTSIDE for event in events_in(tail)):
            return False
        caught_up: list[bool] = []
        await self._session.in_callback(lambda: caught_up.append(self._apply(driver, tail)))
        return caught_up == [True]

    def _apply(self, driver: Driver, tail: Sequence[Batch]) -> bool:
        if not self._runs.has(driver) or self._session.leaving or not driver.catch_up(tail):
            return False
        self._runs.move(self._runs.slot(driver.run_id), ACTIVE)
        self._locks.deliver_again(driver)
        self._settle(driver)
        return True
