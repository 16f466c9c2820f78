"""Being alive under a name, and knowing who else is. The journal, not this, decides who may write.

The lease on a name is held by one session of it: a process from its start to its end. Whoever starts under a name takes
the lease from the session before, which finds out at its next sign of life and stops for good.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from perdure.engine.tenure import Tenure
from perdure.errors import NotOwner, StoreUnavailable
from perdure.ports.clock import Clock
from perdure.ports.leases import ORCHESTRATOR, Acquired, HeldBy, Leases, Renewal, holder, orchestrator_name

log = logging.getLogger("perdure")

# The part of a lease that is left when work stops: what is under way must have ended when the lease does.
MARGIN = 1 / 6


class Superseded(Exception):
    """Another process has been started under our name."""


class Ownership:
    """An orchestrator's lease on its own name."""

    def __init__(self, leases: Leases, name: str, session: str, ttl: float, clock: Clock, tenure: Tenure) -> None:
        self._leases, self.name, self._ttl, self._clock, self._tenure = leases, name, ttl, clock, tenure
        self._key, self._holder = ORCHESTRATOR + name, holder(name, session)
        self._loop = asyncio.get_running_loop()
        # Other orchestrators known to be alive: their runs are none of our business.
        self.others: list[str] = []

    async def take(self) -> None:
        """Show that we live. Whoever lived under our name before us has to stop."""
        began = self._loop.time()
        while isinstance(held := await self._acquire(), HeldBy):
            with suppress(NotOwner):
                await self._leases.release(self._key, held.owner)
        self._extend(began)

    async def renew(self) -> bool:
        """Show that we still live; False when that could not be written. Raises Superseded."""
        # By the time before it was asked for: the store may have counted from then on.
        began = self._loop.time()
        try:
            async with asyncio.timeout(self._ttl / 2):
                renewal = Renewal(self._key, self._holder, self._ttl)
                if await self._leases.renew_all([renewal], self._clock.now()) and isinstance(
                    await self._acquire(), HeldBy
                ):
                    raise Superseded
        except StoreUnavailable as error:
            log.warning("no sign of life could be written: %s", error)
            return False
        except TimeoutError:
            log.warning("no sign of life could be written: the store did not answer in time")
            return False
        self._extend(began)
        return True

    async def _acquire(self) -> Acquired | HeldBy:
        return await self._leases.acquire(self._key, self._holder, self._ttl, self._clock.now())

    def _extend(self, began: float) -> None:
        self._tenure.extend(began + self._ttl * (1 - MARGIN))

    async def look_around(self) -> None:
        """Find out who else lives."""
        live = await self._leases.live(ORCHESTRATOR, self._clock.now())
        names = (orchestrator_name(lease.key) for lease in live)
        self.others = [name for name in names if name != self.name]

    async def leave(self) -> None:
        """Give back everything, so that others may take over at once."""
        try:
            await self._leases.release_all(self._holder)
        except StoreUnavailable as error:
            log.warning("others take over when the leases of %r run out: %s", self.name, error)
