"""Runs in files, and journals that take less room, for code that does not await."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.blocking.loop import Loop
from perdure.client.client import Client
from perdure.client.compacting import CompactReport
from perdure.client.views import RunView


class Capsules:
    """Writes runs into files, reads them from there, and compacts journals."""

    _client: Client
    _loop: Loop

    def export(self, id: str, *, redact: Sequence[str] = ()) -> bytes:
        """A run as one file: its journal with its children, its large values, and which program wrote it."""
        return self._loop.wait(self._client.export(id, redact=redact))

    def import_run(self, data: bytes) -> RunView:
        """Bring a run from a file into this store, to be read and replayed; nothing executes it."""
        return self._loop.wait(self._client.import_run(data))

    def compact(self, id: str, *, dry_run: bool = False) -> CompactReport:
        """Leave out of a finished run's journal what its steps showed before they ended: chunks and progress."""
        return self._loop.wait(self._client.compact(id, dry_run=dry_run))
