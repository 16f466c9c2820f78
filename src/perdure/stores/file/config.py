"""How long the file store waits and keeps, and for what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileConfig:
    """Durations are in seconds."""

    busy: float = 10.0
    """How long a process waits for the write lock while nothing is written."""
    longest_log: int = 1024 * 1024
    """How many bytes of commits are logged before a new log begins."""
    kept_lease: float = 86400.0
    """How long a released lease keeps its own epoch; after that, only the highest epoch of such leases is kept."""
