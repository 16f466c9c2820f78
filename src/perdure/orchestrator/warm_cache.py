"""Keep idle runs in memory for a moment: their next message often comes soon, and replay costs more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from perdure.engine.driver import Driver
from perdure.orchestrator.residency import ACTIVE, WARM, RunSlot
from perdure.orchestrator.session import Session

# How many idle runs are kept at most.
WARM_LIMIT = 256
# The limit of remembered run_ids.
KNOWN_LIMIT = 10_000


class WarmCache:
    """The runs that became idle last. `evict` is called with each run whose time is over; a busy run stays."""

    def __init__(self, session: Session, evict: Callable[[Driver], None]) -> None:
        # In the order in which they came, so that the first is the oldest.
        self._runs, self._warm, self._evict = session.runs, session.runs.of(WARM), evict
        self._loop, self._seconds = session.loop, session.config.warm
        self._timer: asyncio.TimerHandle | None = None
        # The run_ids of runs that wait here, or did lately, by their ids: messages go by id, and this saves a query.
        self._known: dict[str, str] = {}

    def find(self, id: str) -> str | None:
        """The run_id of a run that was warm here lately, in memory or not."""
        return self._known.get(id)

    def keep(self, driver: Driver) -> None:
        """Keep a run for a moment from now on; the oldest is evicted when there are too many."""
        slot = self._runs.slot(driver.run_id)
        if slot.state is WARM:
            self._runs.move(slot, ACTIVE)
        self._runs.move(slot, WARM)
        slot.until = self._loop.time() + self._seconds
        self._known[driver.id] = driver.run_id
        if len(self._known) > KNOWN_LIMIT:
            del self._known[next(iter(self._known))]
        if len(self._warm) > WARM_LIMIT:
            self._expire(next(iter(self._warm.values())))
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._ring)

    def forget(self, id: str) -> None:
        """Forget the run of this id."""
        self._known.pop(id, None)

    def evict_all(self) -> None:
        """Evict all of them."""
        for slot in list(self._warm.values()):
            self._expire(slot)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._warm:
            slot = next(iter(self._warm.values()))
            if slot.until > now:
                self._timer = self._loop.call_at(slot.until, self._ring)
                return
            self._expire(slot)

    def _expire(self, slot: RunSlot) -> None:
        driver = slot.driver
        assert driver is not None
        self._runs.move(slot, ACTIVE)
        self._evict(driver)
