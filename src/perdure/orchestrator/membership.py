"""An orchestrator's lease on its own name, and which others hold one. The journal, not this, decides who may write.

The lease on a name is held by one session of it: a process from its start to its end. A process that starts under a
name takes the lease from the session before, which finds out at its next heartbeat and stops for good.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from perdure.engine.lease_deadline import LeaseDeadline
from perdure.errors import NotOwner, StoreUnavailable
from perdure.kernel.values.signatures import Signature, packed
from perdure.ports.clock import Clock
from perdure.ports.leases import (
    ORCHESTRATOR,
    REGISTRATION,
    Acquired,
    HeldBy,
    Leases,
    Registration,
    Renewal,
    holder,
    orchestrator_name,
    part_prefix,
    registrations,
)

log = logging.getLogger("perdure")

# How many characters a registration has at most: it is part of an index.
REGISTRATION_SIZE = 1000
# How many leases of that size at most hold what the programs take; where that is not enough, it is not registered.
SIGNATURE_PARTS = 50


@dataclass(frozen=True, slots=True)
class MembershipConfig:
    """Durations are in seconds. How long the lease is, `Recovery` says."""

    margin: float = 1 / 6
    """The part of a lease that is left when work stops: steps under way must have stopped when the lease ends."""
    timeout: float = 3.5
    """How long a renewal may take at most: there has to be time for another one before work stops."""
    registration_ttl: float = 86400.0
    """How long a registration is kept. It means nothing once the lease on the name has ended."""


# Parts of generated names that say nothing of the program: what starts every one of them.
_ANY_PROGRAM = {"perdure", "python", "python3"}


def follows(name: str, owner: str) -> bool:
    """Whether an orchestrator is the successor of another that had the same code: by what their names say.

    It has the other's name; or both names were generated, from the same host and the same script.
    """
    if name == owner:
        return True
    made, before = name.split(":"), owner.split(":")
    return len(made) == len(before) == 3 and made[:2] == before[:2] and made[1] not in _ANY_PROGRAM


class Superseded(Exception):
    """Another process has been started under the same name."""


class Membership:
    """One orchestrator among those of a store: its lease, its registration, and the others that are alive."""

    def __init__(
        self,
        leases: Leases,
        name: str,
        session: str,
        ttl: float,
        clock: Clock,
        deadline: LeaseDeadline,
        config: MembershipConfig = MembershipConfig(),  # noqa: B008 - frozen
    ) -> None:
        self._leases, self.name, self._ttl, self._clock, self._deadline = leases, name, ttl, clock, deadline
        self._config = config
        self._key, self._holder = ORCHESTRATOR + name, holder(name, session)
        self._loop = asyncio.get_running_loop()
        self._described: Registration | None = None
        self._signatures: Callable[[], Mapping[str, Signature]] = dict
        self._registering = asyncio.Lock()
        self._said: list[Renewal] = []
        self._say_again = 0.0
        # By key: all that we have said and not taken back, also what was said in part, or before a program was defined.
        self._to_take_back: dict[str, str] = {}
        # Why the last heartbeat failed, if it did.
        self._reason = ""
        # Other orchestrators known to be alive: their runs are none of our business.
        self.others: list[str] = []
        # When the lease of each of them ends, unless it is renewed.
        self.expires: dict[str, float] = {}

    async def take(self) -> None:
        """Show that we live. Whoever lived under our name before us has to stop."""
        began = self._loop.time()
        while isinstance(held := await self._acquire(), HeldBy):
            with suppress(NotOwner):
                await self._leases.release(self._key, held.owner)
        self._extend(began)

    def describe(
        self,
        programs: Sequence[str],
        serves: Sequence[str] | None,
        signatures: Callable[[], Mapping[str, Signature]] = dict,
    ) -> None:
        """What to register: the programs that we have, what they take, and the queues that we serve alone."""
        self._described = Registration(tuple(sorted(programs)), None if serves is None else tuple(serves), self._ttl)
        self._signatures, self._said = signatures, []

    async def register(self) -> None:
        """Say what we have, once, for callers without our programs and for those who ask why a run does not go on."""
        async with self._registering:
            while self._described is not None and not self._said:
                described = self._described
                wishes = self._wishes(described)
                for wish in wishes:
                    self._to_take_back[wish.key] = wish.owner
                    await self._say(wish)
                if described is self._described:  # else a program was defined again meanwhile
                    self._said, self._say_again = wishes, self._loop.time() + self._config.registration_ttl / 2
                    await self._take_back(self._to_take_back.keys() - {wish.key for wish in wishes})

    def _wishes(self, described: Registration) -> list[Renewal]:
        digest, parts = packed(self._signatures(), REGISTRATION_SIZE)
        if len(parts) > SIGNATURE_PARTS:
            digest, parts = "", []
        said = msgspec.structs.replace(described, signatures=digest)
        text = msgspec.json.encode(said).decode()
        if len(text) > REGISTRATION_SIZE:
            text = msgspec.json.encode(msgspec.structs.replace(said, programs=None)).decode()
        prefix, ttl = part_prefix(self.name, digest), self._config.registration_ttl
        wishes = [Renewal(f"{prefix}{number}", part, ttl) for number, part in enumerate(parts)]
        return [*wishes, Renewal(REGISTRATION + self.name, text, ttl)]

    async def _say(self, wish: Renewal) -> None:
        now = self._clock.now()
        while isinstance(held := await self._leases.acquire(wish.key, wish.owner, wish.ttl, now), HeldBy):
            with suppress(NotOwner):
                await self._leases.release(wish.key, held.owner)

    async def _take_back(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            with suppress(NotOwner):
                await self._leases.release(key, self._to_take_back[key])
            del self._to_take_back[key]

    async def renew(self) -> bool:
        """Show that we still live; False when that could not be written. Raises Superseded."""
        # By the time before it was asked for: the store may have counted from then on.
        began = self._loop.time()
        try:
            async with asyncio.timeout(min(self._ttl / 2, self._config.timeout)):
                renewals = [Renewal(self._key, self._holder, self._ttl)]
                if self._said and began >= self._say_again:
                    renewals += self._said
                    self._say_again = began + self._config.registration_ttl / 2
                lost = await self._leases.renew_all(renewals, self._clock.now())
                if self._key in lost and isinstance(await self._acquire(), HeldBy):
                    raise Superseded
        except StoreUnavailable as error:
            self._missed(str(error))
            return False
        except TimeoutError:
            self._missed("the store did not answer in time")
            return False
        self._extend(began)
        self._reason = ""
        return True

    def _missed(self, reason: str) -> None:
        if reason == self._reason:
            return  # told once for as long as it goes on
        self._reason = reason
        log.warning(
            "orchestrator %s: heartbeat failed: %s. It tries again, and stops its runs unless one succeeds before its "
            "lease ends",
            self.name,
            reason,
        )

    async def _acquire(self) -> Acquired | HeldBy:
        return await self._leases.acquire(self._key, self._holder, self._ttl, self._clock.now())

    def _extend(self, began: float) -> None:
        self._deadline.extend(began + self._ttl * (1 - self._config.margin), began + self._ttl)

    async def look_around(self) -> None:
        """Find out who else lives."""
        live = await self._leases.live(ORCHESTRATOR, self._clock.now())
        ends = {orchestrator_name(lease.key): lease.expires for lease in live}
        self.expires = {name: at for name, at in ends.items() if name != self.name}
        self.others = list(self.expires)

    async def have(self) -> set[str]:
        """The programs of which some other orchestrator that lives takes every run, as far as they say."""
        if not self.others:
            return set()
        said = registrations(await self._leases.live(REGISTRATION, self._clock.now()))
        known = [said[name] for name in self.others if name in said and said[name].serves is None]
        return {program for one in known for program in one.programs or ()}

    def wait_for(self, name: str) -> float | None:
        """For how many seconds at most the lease of another orchestrator keeps us out; None when it does not."""
        left = self.expires.get(name, 0.0) - self._clock.now()
        return left if left > 0 else None

    async def leave(self) -> None:
        """Give back everything, so that others may take over at once."""
        try:
            # A process that has our name now may have said the same: then that is what it has said.
            live = await self._leases.live(self._key, self._clock.now())
            if not any(lease.key == self._key and lease.owner != self._holder for lease in live):
                await self._take_back(self._to_take_back)
            await self._leases.release_all(self._holder)
        except StoreUnavailable as error:
            log.warning(
                "orchestrator %s: its lease could not be given back: %s. Its runs are taken over when the lease ends",
                self.name,
                error,
            )
