"""Stop advancing a run, visibly, and say why. It keeps everything it has."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from perdure.engine.outbox import extend
from perdure.errors import Corrupt, PerdureError
from perdure.kernel.events import Batch, RunParked, RunResumed, RunStatus
from perdure.kernel.projection import RunRow, row
from perdure.kernel.state import RunState
from perdure.ports.clock import Clock
from perdure.ports.journal import Append, Appended
from perdure.ports.store import Store

log = logging.getLogger("perdure")


class Parking:
    """Parks runs that cannot go on, and knows those that nothing can be appended to."""

    def __init__(self, store: Store, clock: Clock, on_parked: Callable[[RunRow | Corrupt], None]) -> None:
        self._store, self._clock, self._on_parked = store, clock, on_parked
        self.unreadable: dict[str, Corrupt] = {}

    async def park(self, state: RunState, error: Exception) -> None:
        """Park a run whose journal does not fit the code."""
        reason = str(error) if isinstance(error, PerdureError) else f"{type(error).__name__}: {error}"
        if await self._append(extend(state, [RunParked(reason)], self._clock.now())):
            log.error("run %r is parked: %s", state.started.id if state.started else state.run_id, reason)
            self._on_parked(row(state))

    async def resume(self, state: RunState) -> None:
        """Let a run that was parked before it began wait for its turn again."""
        await self._append(extend(state, [RunResumed()], self._clock.now()))

    async def park_unread(self, run_id: str, reason: str) -> None:
        """Park a run whose journal cannot be read; its row and its head can."""
        try:
            found, head = await self._store.runs.get(run_id), await self._store.journal.head(run_id)
        except Corrupt:
            found = head = None
        if found is None or head is None:
            # Nothing can be appended to it, so it is remembered here: it must not be tried again and again.
            log.error("run_id %s cannot be read: %s", run_id, reason)
            self.unreadable[run_id] = Corrupt(f"what the store holds of run_id {run_id}", reason, run_id)
            self._on_parked(self.unreadable[run_id])
            return
        if found.status is RunStatus.PARKED:
            return
        parked = msgspec.structs.replace(found, status=RunStatus.PARKED, wake_at=None, reason=reason)
        batch = Batch(head.next_seq, self._clock.now(), [RunParked(reason, "damaged")])
        if await self._append(Append(run_id, head.next_seq, [batch], parked)):
            log.error("run %r is parked: %s", found.id, reason)
            self._on_parked(parked)

    async def _append(self, append: Append) -> bool:
        outcomes = self._store.journal.append([append])
        done = outcomes if isinstance(outcomes, Sequence) else await outcomes
        return isinstance(done[0], Appended)
