"""How long the SQLite store waits, and for what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SqliteConfig:
    """Durations are in seconds."""

    busy: float = 10.0
    """How long a transaction waits for another process that writes."""
    inline: float = 0.001
    """Below this a commit costs less than handing it to a thread; see docs/decisions/0003-*.md."""
    quiet: float = 0.25
    """After so long without a commit the write-ahead log is checkpointed."""
    checkpoint: float = 1.0
    """How long the first transaction waits for readers before it can checkpoint the log."""
    clock_step: float = 0.04
    """File times advance in steps of some milliseconds; two changes within one step may look the same."""
    lease_sweep: float = 3600.0
    """How often unused rows of leases are deleted: a sweep reads all of them."""
