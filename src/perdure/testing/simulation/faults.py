"""What may vary and what may break, as data. Draws nothing itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Side = Literal["before", "after", "during"]


@dataclass(frozen=True, slots=True)
class Faults:
    """Which faults a simulation injects. Everything is drawn from its seed.

    Times are in virtual seconds and are picked from the tuple with equal chances; shares are between 0 and 1.
    """

    durations: tuple[float, ...] = (0.0, 0.0, 0.001, 0.01, 0.1, 1.0)
    """How long one execution of a step takes, in addition to what its own code awaits."""
    delays: tuple[float, ...] = (0.0,)
    """How long a message to or from the store takes. The store answers at once where both take no time."""
    lost_replies: float = 0.0
    """The share of appends that are written, and answered with StoreUnavailable."""
    refusals: float = 0.0
    """The share of calls of the store that do nothing and are answered with StoreUnavailable."""
    interference: float = 0.0
    """The share of appends before and after which another client sends the run a signal that it does not wait for."""
    clock_jumps: float = 0.0
    """The share of appends at which the wall clock of the machine is set, forward or back."""
    crashes: float = 0.0
    """The share of appends at which the machine dies."""

    def __post_init__(self) -> None:
        if not self.durations or not self.delays or min(*self.durations, *self.delays) < 0:
            raise ValueError("Faults: durations and delays need at least one number each, none of them negative")
        for name in ("lost_replies", "refusals", "interference", "clock_jumps", "crashes"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"Faults({name}={getattr(self, name)!r}): a share is at least 0 and less than 1")


STORMY = Faults(
    delays=(0.0, 0.0, 0.001, 0.05, 0.4),
    lost_replies=0.1,
    refusals=0.1,
    interference=0.1,
    clock_jumps=0.02,
)
"""Much of everything, except crashes."""


@dataclass(frozen=True, slots=True)
class Crash:
    """The machine dies at the append of this number, counted over all machines from 0.

    `before`: nothing of it was written. `after`: it was, and no reply was received. `during`: the machine dies, and
    what it sent is written a little later, when another may have taken its place already.
    """

    at: int
    side: Side = "before"


@dataclass(frozen=True, slots=True)
class Pause:
    """The machine is paused at the append of this number, and continues later: a zombie, after a takeover."""

    at: int
    seconds: float = 60.0
    side: Side = "before"
