"""Prune periodically, if an engine has a `Retention`, which decides what is removed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from perdure.config import Retention
from perdure.logs import log
from perdure.ports.leases import HeldBy, Leases

KEY = "retention"


class Pruned(Protocol):
    """The report of a pass."""

    @property
    def runs(self) -> int: ...

    @property
    def blobs(self) -> int: ...

    @property
    def kept(self) -> Sequence[object]: ...


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """The report of a pass."""

    pruned: bool = False
    """Whether this engine made the pass."""
    runs: int = 0
    blobs: int = 0
    kept: int = 0
    """How many runs were to be pruned and could not be."""


class Pruner:
    """The passes of one engine. Each pass is made by one of the engines on a store.

    The first is made after `first` seconds at most: engines that live for less than a period prune as well.
    """

    name = "pruning"

    def __init__(
        self,
        retention: Retention,
        leases: Leases,
        name: str,
        prune: Callable[[Retention], Awaitable[Pruned]],
        first: float = 60.0,
    ) -> None:
        self.retention, self._leases, self._orchestrator, self._prune = retention, leases, name, prune
        self.first = min(first, retention.every)

    async def run_once(self, now: float) -> RetentionReport:
        """Make a pass, unless another engine has made one within the last period."""
        ttl = self.retention.every * 0.9
        if isinstance(await self._leases.acquire(KEY, self._orchestrator, ttl, now), HeldBy):
            return RetentionReport()
        pruned = await self._prune(self.retention)
        if pruned.runs or pruned.blobs:
            log.info("pruned %s runs and %s blobs", f"{pruned.runs:,}", f"{pruned.blobs:,}")
        if pruned.kept:
            log.warning(
                "%s runs could not be pruned and stay in the store; the first of them: %s",
                len(pruned.kept),
                pruned.kept[0],
            )
        return RetentionReport(True, pruned.runs, pruned.blobs, len(pruned.kept))
