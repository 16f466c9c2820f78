"""Prune by the clock, where an engine was told to. Never decides what goes: that is the retention's to say."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from perdure.config import Retention
from perdure.ports.clock import Clock
from perdure.ports.leases import HeldBy, Leases

log = logging.getLogger("perdure")

KEY = "retention"
# The first pass is made soon, so that engines that live for less than a period prune as well; but not at once.
SOON = 60.0


class Pruned(Protocol):
    """What a pass came to."""

    @property
    def runs(self) -> int: ...

    @property
    def blobs(self) -> int: ...

    @property
    def kept(self) -> Sequence[object]: ...


class Retainer:
    """The passes of one engine. Of all engines on a store, one makes each."""

    def __init__(
        self,
        retention: Retention,
        leases: Leases,
        name: str,
        clock: Clock,
        prune: Callable[[Retention], Awaitable[Pruned]],
    ) -> None:
        self.retention, self._leases, self._name, self._clock, self._prune = retention, leases, name, clock, prune
        self.first = min(SOON, retention.every)

    async def run_once(self) -> bool:
        """Make a pass, unless somebody else has made one within the last period."""
        ttl = self.retention.every * 0.9
        if isinstance(await self._leases.acquire(KEY, self._name, ttl, self._clock.now()), HeldBy):
            return False
        pruned = await self._prune(self.retention)
        if pruned.runs or pruned.blobs:
            log.info("pruned %s runs and %s blobs", f"{pruned.runs:,}", f"{pruned.blobs:,}")
        if pruned.kept:
            log.warning("%s runs are kept that were to be pruned; the first: %s", len(pruned.kept), pruned.kept[0])
        return True
