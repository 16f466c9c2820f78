"""How long the PostgreSQL store waits, and for what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PostgresConfig:
    """Durations are in seconds."""

    connect: float = 5.0
    """How long connecting may take."""
    answer: float = 20.0
    """After so long without an answer a connection is dropped, even if TCP considers it alive."""
    silent: float = 1.5
    """After so long without an answer another connection asks the server whether this one is dead."""
    probe: float = 3.0
    """How long that question may take."""
    grace: float = 0.5
    """How long the answer to a statement may still be under way after the probe."""
    close: float = 2.0
    """How long closing a connection may take."""
    patience: float = 8.0
    """How long a query is retried over new connections before it raises."""
    first_pause: float = 0.05
    """The pause after the first try to connect; it doubles each time."""
    longest_pause: float = 1.0
    """The longest such pause."""
    collisions: int = 10
    """After how many serialization failures or deadlocks a statement fails."""
    lease_patience: float = 3.0
    """The patience of statements on leases: a lease that cannot be renewed in time is lost."""
    lease_sweep: float = 3600.0
    """How often unused rows of leases are deleted: a sweep reads all of them."""
    follow: float = 12.0
    """How long a process is notified of a run that it asked about: longer than the interval of its polls."""
    blind: float = 1.0
    """How often everything is polled without a listening connection."""
    offer: float = 2.0
    """For how long runs that were found for an orchestrator are withheld from others: longer than a claim takes."""
    migration: float = 3600.0
    """How long one migration may take: building an index over millions of runs may take long."""
