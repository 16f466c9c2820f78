"""Being alive under a name, and knowing who else is. The journal, not this, decides who may write."""

from __future__ import annotations

import logging

from perdure.errors import StoreUnavailable
from perdure.ports.clock import Clock
from perdure.ports.leases import Leases, Renewal

log = logging.getLogger("perdure")

PREFIX = "orchestrator:"


class Ownership:
    """An orchestrator's lease on its own name."""

    def __init__(self, leases: Leases, name: str, ttl: float, clock: Clock) -> None:
        self._leases, self.name, self._ttl, self._clock = leases, name, ttl, clock
        # Other orchestrators known to be alive: their runs are none of our business.
        self.others: list[str] = []

    async def take(self) -> None:
        """Show that we live."""
        await self._leases.acquire(PREFIX + self.name, self.name, self._ttl, self._clock.now())

    async def renew(self) -> None:
        """Show that we still live."""
        try:
            if await self._leases.renew_all([Renewal(PREFIX + self.name, self.name, self._ttl)], self._clock.now()):
                await self.take()
        except StoreUnavailable as error:
            log.warning("no sign of life could be written: %s", error)

    async def look_around(self) -> None:
        """Find out who else lives."""
        live = await self._leases.live(PREFIX, self._clock.now())
        self.others = [lease.owner for lease in live if lease.owner != self.name]

    async def leave(self) -> None:
        """Give back everything, so that others may take over at once."""
        try:
            await self._leases.release_all(self.name)
        except StoreUnavailable as error:
            log.warning("others take over when the leases of %r run out: %s", self.name, error)
