"""Settings, as frozen dataclasses. Reads no file and no environment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from perdure.errors import UsageError
from perdure.kernel.events import FINISHED, RunStatus
from perdure.kernel.policies.durations import ENDLESS, Duration, duration
from perdure.kernel.policies.queues import Queue, Rate
from perdure.kernel.values.limits import Limits

__all__ = ["Limits", "Queue", "Rate", "Recovery", "Retention"]


# Work goes on within 15 s of a machine's death. An engine with runs in memory has time for a second try of a heartbeat
# before it has to stop them; one without has nothing to stop, and gives six heartbeats a minute.
SERVER_LEASE, SERVER_HEARTBEAT, SERVER_IDLE_HEARTBEAT = 14.0, 7.0, 10.0
# Where the operating system tells who is dead, the lease is for processes that stand still.
EMBEDDED_LEASE = 30.0


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
    lease: float | None = None
    """How long its name stays taken after its last heartbeat; it gives three in that time. None: 14 s on a database
    server, with a heartbeat every 7 s while runs are in memory and every 10 s while there are none; and 30 s where all
    engines are on one machine, which tells at once who is dead."""
    grace: float = 30.0
    """How long steps under way may go on when the engine is left, with their lease; then they are given up, and their
    runs are handed over. What only waits is handed over at once."""

    quarantine: int = 3
    """How many orchestrators in a row may be gone before a run gets any further; then it is parked as `poisoned`, for a
    person to look at. 0: however many."""

    snapshot: int = 1000
    """How many events of a journal are over and done with (chunks, progress, failed attempts of steps that have ended)
    before a snapshot without them is stored, from which the run is loaded more quickly. 0: never."""

    @property
    def ttl(self) -> float:
        """How long the lease is."""
        return SERVER_LEASE if self.lease is None else self.lease

    @property
    def heartbeat(self) -> float:
        """How long after one heartbeat the next is due."""
        return SERVER_HEARTBEAT if self.lease is None else self.lease / 3

    @property
    def idle_heartbeat(self) -> float:
        """How long after one heartbeat the next is due where no run would have to stop for want of it."""
        return SERVER_IDLE_HEARTBEAT if self.lease is None else self.lease / 3

    def __post_init__(self) -> None:
        for name, least, zero in (
            ("snapshot", 0, "; 0 takes none"),
            ("quarantine", 0, "; 0 parks none"),
            ("max_startup", 1, ""),
            ("max_claims", 1, ""),
        ):
            count: object = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, int) or count < least:
                raise ValueError(f"Recovery({name}={count!r}) must be a whole number, at least {least}{zero}")
        for name in ("grace", "check_interval", "lease"):
            seconds: object = getattr(self, name)
            if name == "lease" and seconds is None:
                continue
            number = float(seconds) if isinstance(seconds, int | float) and not isinstance(seconds, bool) else -1.0
            if not 0 <= number < ENDLESS or (number == 0 and name != "grace"):
                least_seconds = "at least 0" if name == "grace" else "more than 0"
                raise ValueError(f"Recovery({name}={seconds!r}) must be a number of seconds, {least_seconds}")
        if not isinstance(self.enabled, bool):
            raise ValueError(f"Recovery(enabled={self.enabled!r}) must be True or False")


@dataclass(frozen=True, slots=True)
class Retention:
    """Which runs an engine prunes by itself. Without one it prunes nothing. Durations are seconds or timedeltas."""

    older_than: Duration
    """How long ago a run has to have ended."""
    statuses: RunStatus | str | Sequence[RunStatus | str] = RunStatus.COMPLETED
    """How it has to have ended."""
    every: float = 3600.0
    """Seconds from one pass to the next; of all engines on a store, one makes each."""
    archive: str | os.PathLike[str] | None = None
    """A directory where each run is written into a capsule before it goes."""

    def __post_init__(self) -> None:
        number = duration(self.older_than)
        if number is None or not 0 <= number < ENDLESS:
            raise UsageError(f"Retention(older_than={self.older_than!r}) must be seconds or a timedelta, not negative")
        if not isinstance(self.every, int | float) or isinstance(self.every, bool) or not 0 < self.every < ENDLESS:
            raise UsageError(f"Retention(every={self.every!r}) must be a number of seconds, more than 0")
        given = [self.statuses] if isinstance(self.statuses, str) else list(self.statuses)
        if not given or any(status not in FINISHED for status in given):
            over = ", ".join(sorted(FINISHED))
            raise UsageError(f"Retention(statuses={self.statuses!r}): runs are pruned that have ended, as {over}")
