"""When events must be committed to the store. Decides, never writes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from perdure.kernel.ids import WrongValue, plain

MODES = ("sync", "relaxed", "async", "exit", "every", "manual")


@dataclass(frozen=True, slots=True)
class Durability:
    """A durability mode. `n` belongs to `every`, `lag` (seconds) to `async`."""

    mode: str = "sync"
    n: int = 1
    lag: float = 0.1

    @property
    def waits(self) -> bool:
        """Whether a step starts only after its intent is in the store."""
        return self.mode in ("sync", "relaxed")

    @property
    def fsync(self) -> bool:
        """Whether a commit must survive power loss, not only kill -9."""
        return self.mode == "sync"

    def due(self, outcomes: int) -> bool:
        """Whether this many outcomes that are not in the store yet must be appended now."""
        return self.waits or (self.mode == "every" and outcomes >= self.n)

    def __str__(self) -> str:
        """The text that the journal records and `durability` reads."""
        if self.mode == "every":
            return f"every({self.n})"
        return f"async({self.lag!r})" if self.mode == "async" else self.mode


def every(n: int) -> Durability:
    """Persist every n-th outcome; a crash loses what came since."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise WrongValue(f"every({n!r:.80}): n must be at least 1")
    return Durability("every", n)


_NO_MODE = "durability={!r} is none of 'sync', 'relaxed', 'async', 'exit', 'manual', every(n)"


def durability(value: str | Durability) -> Durability:
    """The mode of a name such as `sync`, `every(5)` or `async(0.5)`, with the lag in seconds."""
    if isinstance(value, Durability):
        return value
    if not isinstance(value, str):
        raise WrongValue(_NO_MODE.format(value))
    return _by_name(plain(value))


@cache
def _by_name(value: str) -> Durability:
    if match := re.fullmatch(r"async\((\d+\.?\d*(?:e-?\d+)?)\)", value):
        return Durability("async", lag=float(match[1]))
    if match := re.fullmatch(r"every\((\d+)\)", value):
        return every(int(match[1]))
    if value in MODES and value != "every":
        return Durability(value)
    raise WrongValue(_NO_MODE.format(value))
