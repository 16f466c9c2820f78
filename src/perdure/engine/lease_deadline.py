"""How long a process may act on what it knows: until its lease ends, by a clock that is never set."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

# Less than this is no suspension: two clocks cannot be read in the same moment.
INSTANT = 0.1


class Tenure:
    """The time until which an orchestrator is sure to be the only one of its name.

    Asked before every write and before every step, and not only by a timer: a process that was stopped for a while goes
    on with whatever it was about to do, and its timers come after that.
    """

    __slots__ = ("_ends", "_loop", "_slept", "_timer", "idle", "on_over", "until")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._slept = 0.0
        self._ends = math.inf
        # In the time of the loop. A process without a lease has all the time there is.
        self.until = math.inf
        self.on_over: Callable[[], None] = lambda: None
        # Whether there is nothing that would have to stop.
        self.idle: Callable[[], bool] = lambda: False

    def extend(self, until: float, ends: float) -> None:
        """It lasts until then, at least. The lease ends later: what is under way needs time to stop."""
        self.until, self._ends, self._slept = until, ends, slept()
        self.end()
        self._timer = self._loop.call_at(until, self._ring)

    def _ring(self) -> None:
        if self.idle() and not self._past(self._ends):
            # A heartbeat that is late may still come. Whatever begins meanwhile asks by itself.
            self._timer = self._loop.call_at(self._ends + INSTANT, self._ring)
        elif not self.over():  # a timer may come an instant early
            self._timer = self._loop.call_at(self.until + INSTANT, self._ring)

    def over(self) -> bool:
        """Whether it is over. If so, what has to be done about it has been done when this returns."""
        if not self._past(self.until):
            return False
        self.on_over()
        return True

    def _past(self, moment: float) -> bool:
        suspended = slept() - self._slept
        return self._loop.time() + (suspended if suspended > INSTANT else 0.0) >= moment

    def end(self) -> None:
        """Nobody needs to be told any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def slept() -> float:
    """How long the machine has been suspended since it was started: the clock of the loop stands still then."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
