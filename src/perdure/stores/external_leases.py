"""A store whose leases are kept elsewhere, bundled into one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from perdure.ports.leases import Leases
from perdure.ports.store import Store, Survives


class WithLeases:
    """All of `store` but its leases. `close` lets go of what the leases hold open, when the store is closed."""

    def __init__(self, store: Store, leases: Leases, close: Callable[[], Awaitable[None]] | None = None) -> None:
        self._store, self._close = store, close
        self.url = store.url
        self.journal, self.runs, self.timers = store.journal, store.runs, store.timers
        self.queues, self.blobs, self.upkeep, self.leases = store.queues, store.blobs, store.upkeep, leases
        self.open = store.open
        # Of leases elsewhere nothing shows here: who waits for one watches it, or asks.
        self.version, self.trace, self.promise = store.version, store.trace, store.promise

    @property
    def survives(self) -> Survives:
        """What the store promises."""
        return self._store.survives

    async def close(self) -> None:
        """Disconnect from both."""
        try:
            if self._close is not None:
                await self._close()
        finally:
            await self._store.close()
