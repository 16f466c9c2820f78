"""Settings, as frozen dataclasses. Reads no file and no environment."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.kernel.payload import Limits
from perdure.kernel.queues import Queue, Rate

__all__ = ["Limits", "Queue", "Rate", "Recovery"]


@dataclass(frozen=True, slots=True)
class Recovery:
    """How an orchestrator looks after runs that lost their owner. Durations are in seconds."""

    enabled: bool = True
    """Whether runs of dead orchestrators are taken over while this one works."""
    check_interval: float = 30.0
    """How often it looks for them."""
    max_startup: int = 100
    """How many runs are loaded at a time when it starts; the next batch follows at once."""
    max_claims: int = 10
    """How many runs of others are claimed at a time later on; the next batch follows after a moment."""
    lease: float = 30.0
    """How long its name stays taken after its last sign of life. It gives three in that time."""
    grace: float = 1.0
    """How long steps under way may go on when the engine is left; then they are cancelled and handed over."""

    quarantine: int = 3
    """How many orchestrators in a row may be gone before a run gets any further; then it is parked as `poisoned`, for a
    person to look at. 0: however many."""

    snapshot: int = 1000
    """How many events of a journal are over and done with (chunks, progress, failed attempts of steps that have ended)
    before a snapshot without them is stored, from which the run is loaded more quickly. 0: never."""

    def __post_init__(self) -> None:
        if self.snapshot < 0:
            raise ValueError(f"Recovery(snapshot={self.snapshot!r}) must be at least 0; 0 takes none")
        if self.quarantine < 0:
            raise ValueError(f"Recovery(quarantine={self.quarantine!r}) must be at least 0; 0 parks none")
        for name in ("check_interval", "lease"):
            if getattr(self, name) <= 0:
                raise ValueError(f"Recovery({name}={getattr(self, name)!r}) must be more than 0")
        for name in ("max_startup", "max_claims"):
            if getattr(self, name) < 1:
                raise ValueError(f"Recovery({name}={getattr(self, name)!r}) must be at least 1")
