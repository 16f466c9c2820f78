"""Until when an orchestrator may act: shortly before its lease ends, by the monotonic clock.

`expired` is a question. What has to stop when the answer is yes is stopped by `enforce`, and only there.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from functools import partial

# Differences below this are not a suspension of the machine: two clocks cannot be read at the same instant.
INSTANT = 0.1


class LeaseDeadline:
    """The time until which an orchestrator is sure to be the only one of its name.

    Checked before every write and before every step, and not only by a timer: a process that was stopped for a while
    continues with what it was about to do, and its timers fire after that. `on_expired` stops everything; `is_idle`
    says whether there is nothing to stop.
    """

    __slots__ = ("_boot_time", "_ends", "_is_idle", "_loop", "_on_expired", "_slept", "_timer", "until")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_expired: Callable[[], None],
        is_idle: Callable[[], bool] = lambda: False,
    ) -> None:
        self._loop, self._on_expired, self._is_idle = loop, on_expired, is_idle
        self._timer: asyncio.TimerHandle | None = None
        self._slept = 0.0
        self._ends = math.inf
        # In the time of the loop. A process without a lease has no deadline.
        self.until = math.inf
        # The time that a suspension does not stop: one reading of it says all, if the loop has the usual clock. uvloop
        # has it too, but reads it once in each turn, and a process may be stopped within one.
        usual = getattr(loop.time, "__func__", None) is asyncio.BaseEventLoop.time or _is_uvloop(loop)
        self._boot_time = since_boot if usual else None

    def extend(self, until: float, ends: float) -> None:
        """The lease was renewed: act until `until`. The lease itself ends later, so that steps have time to stop."""
        self.until, self._ends, self._slept = until, ends, slept()
        self.cancel()
        self._timer = self._loop.call_at(until, self._ring)

    def expired(self, moment: float | None = None) -> bool:
        """Whether the deadline, or another moment, has passed; the loop's time stops while the machine is suspended."""
        if self._boot_time is not None and moment is None:
            return self._boot_time() - self._slept >= self.until
        suspended = slept() - self._slept
        now = self._loop.time() + suspended if suspended > INSTANT else self._loop.time()
        return now >= (self.until if moment is None else moment)

    def enforce(self) -> None:
        """Stop everything if the deadline has passed."""
        if self._boot_time is not None and self._boot_time() - self._slept < self.until:
            return
        if self.expired():
            self._on_expired()

    def _ring(self) -> None:
        if self._is_idle() and not self.expired(self._ends):
            # A late heartbeat may still succeed. A run that enters memory meanwhile checks the deadline itself.
            self._timer = self._loop.call_at(self._ends + INSTANT, self._ring)
        elif self.expired():
            self.enforce()
        else:  # a timer may fire an instant early
            self._timer = self._loop.call_at(self.until + INSTANT, self._ring)

    def cancel(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _is_uvloop(loop: asyncio.AbstractEventLoop) -> bool:
    return any(cls.__module__.partition(".")[0] == "uvloop" for cls in type(loop).__mro__)


# None where the system does not know it.
since_boot = partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else None


def slept() -> float:
    """How long the machine has been suspended since boot, during which the loop's clock stops."""
    return 0.0 if since_boot is None else since_boot() - time.clock_gettime(time.CLOCK_MONOTONIC)
