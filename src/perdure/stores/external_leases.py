"""A store whose leases are kept elsewhere, bundled into one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from perdure.ports.leases import Leases
from perdure.ports.store import Store, Survives


class WithLeases:
    """All of `store` but its leases. `close` closes the connections of the leases when the store is closed."""

    def __init__(self, store: Store, leases: Leases, close: Callable[[], Awaitable[None]] | None = None) -> None:
        self._store, self._close = store, close
        self.url = store.url
        self.journal, self.runs, self.timers = store.journal, store.runs, store.timers
        self.queues, self.blobs, self.upkeep, self.leases = store.queues, store.blobs, store.upkeep, leases
        self.open = store.open
        # External leases do not change `version()`; wait for them with `watch()` or by polling.
        self.version, self.trace, self.check_durability = store.version, store.trace, store.check_durability

    @property
    def survives(self) -> Survives:
        """As the store says."""
        return self._store.survives

    async def close(self) -> None:
        """Disconnect from both."""
        try:
            if self._close is not None:
                await self._close()
        finally:
            await self._store.close()
