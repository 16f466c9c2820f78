"""Pruning, rebuilding and who lives, for code that does not await."""

from __future__ import annotations

import os
from collections.abc import Sequence

from perdure.blocking.loop import Loop
from perdure.client.client import Client
from perdure.client.pruning import GRACE, PruneReport, Statuses
from perdure.client.rebuilding import RebuildReport
from perdure.client.views import OrchestratorView
from perdure.kernel.events import RunStatus
from perdure.kernel.policies.durations import Duration


class Upkeep:
    """Looks after a store."""

    _client: Client
    _loop: Loop

    def prune(
        self,
        older_than: Duration,
        statuses: Statuses = RunStatus.COMPLETED,
        dry_run: bool = False,
        *,
        archive: str | os.PathLike[str] | None = None,
        grace: Duration = GRACE,
    ) -> PruneReport:
        """Remove the runs of these statuses that ended longer ago than that, their children, and their large values."""
        return self._loop.wait(self._client.prune(older_than, statuses, dry_run, archive=archive, grace=grace))

    def rebuild(self, *, dry_run: bool = False) -> RebuildReport:
        """Compute the row of every run from its journal, tell where it differs from the stored one, and mend it."""
        return self._loop.wait(self._client.rebuild(dry_run=dry_run))

    def orchestrators(self) -> Sequence[OrchestratorView]:
        """Who lives and who owns what, by name: those that are gone, too, as long as they own unfinished runs."""
        return self._loop.wait(self._client.orchestrators())
