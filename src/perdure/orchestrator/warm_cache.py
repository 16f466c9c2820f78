"""Runs that wait and stay in memory for a moment, because what they wait for often comes soon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from perdure.engine.driver import Driver

# How long a run that waits is kept, and how many of them at most: replaying one costs more than its wait is worth.
LINGER_SECONDS = 1.0
LINGER_LIMIT = 256
# Of how many runs it is remembered that they wait here.
KNOWN_LIMIT = 10_000


class Lingering:
    """The latest runs that have begun to wait. `let_go` is called with each whose moment is over."""

    def __init__(self, loop: asyncio.AbstractEventLoop, let_go: Callable[[Driver], None]) -> None:
        self._loop, self._let_go = loop, let_go
        self._until: dict[Driver, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        # The run_ids of runs that wait here, or did when they were looked at last, by their ids.
        self._known: dict[str, str] = {}

    def find(self, id: str) -> str | None:
        """The run_id of a run that most likely waits here, in memory or asleep."""
        return self._known.get(id)

    def keep(self, driver: Driver) -> None:
        """Keep a run for a moment from now on; the oldest goes when there are too many."""
        self._until.pop(driver, None)
        self._until[driver] = self._loop.time() + LINGER_SECONDS
        self._known[driver.id] = driver.run_id
        if len(self._known) > KNOWN_LIMIT:
            del self._known[next(iter(self._known))]
        if len(self._until) > LINGER_LIMIT:
            self._go(next(iter(self._until)))
        if self._timer is None:
            self._timer = self._loop.call_later(LINGER_SECONDS, self._over)

    def forget(self, driver: Driver) -> None:
        """This one has left by itself."""
        self._until.pop(driver, None)
        if driver.state.finished is not None:
            self.gone(driver.id)

    def gone(self, id: str) -> None:
        """No run of this id waits here any more."""
        self._known.pop(id, None)

    def end(self) -> None:
        """Let all of them go."""
        for driver in list(self._until):
            self._go(driver)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._until:
            driver, until = next(iter(self._until.items()))
            if until > now:
                self._timer = self._loop.call_at(until, self._over)
                return
            self._go(driver)

    def _go(self, driver: Driver) -> None:
        del self._until[driver]
        self._let_go(driver)
