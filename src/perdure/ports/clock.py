"""Time, as a parameter."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The wall clock, in seconds since the epoch."""

    def now(self) -> float:
        """The current time."""


class SystemClock:
    """The clock of this machine."""

    __slots__ = ()

    now = staticmethod(time.time)
