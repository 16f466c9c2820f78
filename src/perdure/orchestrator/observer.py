"""Callbacks of an orchestrator to its engine, and notes for its own service loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from perdure.engine.probe import Probes
from perdure.errors import Corrupt
from perdure.kernel.projection import RunRow
from perdure.ports.journal import Append


def _ignore(*_: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Observer:
    """Callbacks of an orchestrator, called on the event loop. What is None is not called."""

    # Every append of a run that is durable, with the id of the run.
    committed: Callable[[str, Append], None] | None = None
    # A run has ended, was parked, or cannot be read any more.
    finished: Callable[[RunRow | Corrupt], None] = _ignore
    # A run has ended by what was written here.
    completed: Callable[[RunRow], None] | None = None
    # A remote step was cancelled: the run of this id is no longer awaited.
    abandoned: Callable[[str, str], None] = _ignore
    # Telemetry; empty unless it is on.
    probes: Probes = field(default_factory=Probes)


class Wakeups:
    """Notes for the service loops about what happened to runs. The loops wait for the events, and read the rest."""

    def __init__(self) -> None:
        # Something below has changed.
        self.changed = asyncio.Event()
        # The earliest time at which a run is due that was evicted, or stored, since this was reset.
        self.due_at: float | None = None
        # Whether a run of a queue may begin; and, kept by the admission, whether runs were left there for want of room.
        self.queue_changed = False
        self.backlog = False
        # The next heartbeat is wanted now; and, kept by the heartbeat, whether it is slow because no run is in memory.
        self.heartbeat = asyncio.Event()
        self.heartbeat_slowed = False

    def due(self, at: float) -> None:
        """A run that is not in memory is due at `at`."""
        if self.due_at is None or at < self.due_at:
            self.due_at = at
            self.changed.set()

    def queued(self) -> None:
        """A run of a queue may wait for its turn."""
        self.queue_changed = True
        self.changed.set()

    def room(self) -> None:
        """A run of a queue was evicted."""
        if self.backlog:
            self.queued()

    def busy(self) -> None:
        """The first run comes into memory. Its first step may block the loop: renew the lease before."""
        if self.heartbeat_slowed:
            self.heartbeat.set()

    def name_in_doubt(self) -> None:
        """Another process has claimed a run under this name: the next heartbeat finds out which of the two has it."""
        self.heartbeat.set()
