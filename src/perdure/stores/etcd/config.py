"""How long leases in etcd wait, and for what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EtcdConfig:
    """Durations are in seconds."""

    quiet: float = 60.0
    """A stream without a message for so long is opened again: its connection may be dead."""
    sweep: float = 3600.0
    """How often unused epochs are swept."""
    kept_epoch: float = 86400.0
    """How long they are kept."""
