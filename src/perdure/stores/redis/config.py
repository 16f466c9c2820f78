"""How long the Redis store waits, and for what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RedisConfig:
    """Durations are in seconds."""

    silent: float = 1.5
    """After so long without an answer another connection probes whether this one is dead."""
    probe: float = 3.0
    """How long each part of the probe may take."""
    grace: float = 0.5
    """How long the answer to a command may still be under way after the probe."""
    poll_interval: float = 15.0
    """Without a notification for so long, the counter of commits is polled. A lease renewal returns it too."""
    first_retry: float = 0.05
    """The pause after the listening connection ended; it doubles each time."""
    longest_retry: float = 2.0
    """The longest such pause."""
    refused_retry: float = 3600.0
    """The pause after the server refused the subscription."""
    unused_lease: float = 86_400.0
    """Leases that were unused for so long are swept; the highest of their epochs is kept."""
