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

__all__ = ["Limits", "Queue", "Rate", "Recovery", "Retention", "Telemetry"]


# Work continues within 15 s of a machine's death. An engine with runs in memory can retry a failed heartbeat before its
# lease deadline; an idle engine has nothing to stop, and sends six heartbeats a minute.
SERVER_LEASE, SERVER_HEARTBEAT, SERVER_IDLE_HEARTBEAT = 14.0, 7.0, 10.0
# Where the operating system reports dead processes, the lease only covers processes that hang.
EMBEDDED_LEASE = 30.0


@dataclass(frozen=True, slots=True)
class Recovery:
    """The recovery of orphans by an orchestrator, and its lease. Durations are in seconds."""

    enabled: bool = True
    """Whether it takes over runs of dead orchestrators while it is open."""
    check_interval: float = 30.0
    """How often it searches for orphans."""
    max_startup: int = 100
    """How many runs it loads per batch when it starts; the next batch follows at once."""
    max_claims: int = 10
    """How many orphans it claims per batch later on; the next batch follows after a short pause."""
    lease: float | None = None
    """How long its name stays taken after its last heartbeat; it sends three in that time. None: 14 s on a database
    server, with a heartbeat every 7 s while runs are in memory and every 10 s while there are none; and 30 s where all
    engines are on one machine, which reports dead processes at once."""
    grace: float = 30.0
    """How long running steps may continue, with their lease, when the engine closes; then they are abandoned and their
    runs released. Runs that only wait are released at once."""

    quarantine: int = 3
    """How many orchestrators in a row may die before a run makes progress; then the run is parked as `poisoned`. 0: no
    limit."""

    snapshot: int = 1000
    """How many events of a journal must be obsolete (chunks, progress, failed attempts of finished steps) before a
    snapshot without them is stored, from which the run is loaded faster. 0: never."""

    @property
    def ttl(self) -> float:
        """The length of the lease."""
        return SERVER_LEASE if self.lease is None else self.lease

    @property
    def heartbeat(self) -> float:
        """The interval between heartbeats."""
        return SERVER_HEARTBEAT if self.lease is None else self.lease / 3

    @property
    def idle_heartbeat(self) -> float:
        """The interval between heartbeats while no run is in memory."""
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
    """The runs that an engine prunes automatically. Durations are seconds or timedeltas."""

    older_than: Duration
    """The minimum time since the end of a run."""
    statuses: RunStatus | str | Sequence[RunStatus | str] = RunStatus.COMPLETED
    """The statuses of the runs to prune."""
    every: float = 3600.0
    """Seconds between passes; of all engines on a store, one makes each pass."""
    archive: str | os.PathLike[str] | None = None
    """A directory in which each run is stored as a capsule before it is removed."""

    def __post_init__(self) -> None:
        number = duration(self.older_than)
        if number is None or not 0 <= number < ENDLESS:
            raise UsageError(f"Retention(older_than={self.older_than!r}) must be seconds or a timedelta, not negative")
        if not isinstance(self.every, int | float) or isinstance(self.every, bool) or not 0 < self.every < ENDLESS:
            raise UsageError(f"Retention(every={self.every!r}) must be a number of seconds, more than 0")
        given = [self.statuses] if isinstance(self.statuses, str) else list(self.statuses)
        if not given or any(status not in FINISHED for status in given):
            over = ", ".join(sorted(FINISHED))
            raise UsageError(f"Retention(statuses={self.statuses!r}): only ended runs are pruned: {over}")


@dataclass(frozen=True, slots=True)
class Flows:
    """What the steps of flows may use beside the built-in components: see docs/flows.md.

    `python`: modules, with all below them. `http`: hosts that are not public, with a port or without. `shell`: whether
    they may run commands; None: a flow may that is in a file or in the store, and one that a step has made may not.
    `workspaces`: folders that workspaces may be in beside the folder of the flow. `profile`: which of their profiles
    flows have that have any.
    """

    python: tuple[str, ...] = ()
    http: tuple[str, ...] = ()
    shell: bool | None = None
    profile: str = ""
    workspaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What an engine measures and traces: see docs/telemetry.md. Durations are in seconds."""

    metrics: bool = False
    """Whether it counts what it does. `engine.metrics()` and `engine.asgi(metrics=True)` turn this on too."""
    spans: bool = False
    """Whether it makes spans for OpenTelemetry. Needs `perdure[otel]`, and an SDK that the application sets up."""
    store_metrics: bool = True
    """Whether the metrics include what is read from the store, such as the depth of queues."""
    trace_gap: float = 60.0
    """How long a run may rest and continue in the same trace; after that it continues in a new one, with a link."""

    def __post_init__(self) -> None:
        for name in ("metrics", "spans", "store_metrics"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"Telemetry({name}={getattr(self, name)!r:.80}) must be True or False")
        gap: object = self.trace_gap
        if isinstance(gap, bool) or not isinstance(gap, int | float) or not 0 <= gap < ENDLESS:
            raise UsageError(f"Telemetry(trace_gap={gap!r:.80}) must be a number of seconds, at least 0")
