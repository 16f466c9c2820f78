"""An orchestrator's lease on its own name, and which others hold one. The journal, not this, decides who may write.

The lease on a name is held by one session of it: a process from its start to its end. A process that starts under a
name takes the lease from the session before, which finds out at its next heartbeat and stops for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from perdure.engine.lease_deadline import LeaseDeadline
from perdure.errors import NotOwner, StoreUnavailable
from perdure.kernel.values.signatures import Signature, packed
from perdure.logs import log
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

# How many characters a registration has at most: it is part of an index.
REGISTRATION_SIZE = 1000
# At most this many leases of that size hold the signatures; if they are not enough, the signatures are not registered.
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


def follows(name: str, owner: str, *, has_program: bool = False) -> bool:
    """Whether an orchestrator is the successor of another that had the same code: by what their names say.

    It has the other's name; or both names were generated, from the same host and the same script. `has_program`: it has
    other versions of the program in question, so that a script without a name of its own will do.
    """
    if name == owner:
        return True
    made, before = name.split(":"), owner.split(":")
    same = len(made) == len(before) == 3 and made[:2] == before[:2]
    return same and (has_program or made[1] not in _ANY_PROGRAM)


class Superseded(Exception):
    """Another process has been started under the same name."""


class Membership:
    """The membership of one orchestrator in those of a store: its lease, its registration, and the live others."""

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
        # The leases that hold the registration, and when to renew them.
        self._registered: list[Renewal] = []
        self._renew_registration_at = 0.0
        # Owner by key: every lease of a registration that is to be released, older and incomplete ones included.
        self._to_release: dict[str, str] = {}
        # Why the last heartbeat failed, if it did.
        self._reason = ""
        # Other orchestrators known to be alive: their runs are left to them.
        self.others: list[str] = []
        # When the lease of each of them ends, unless it is renewed.
        self.expires: dict[str, float] = {}
        # The same for those that may have sent their last heartbeat before this orchestrator could notice it.
        self._awaited: dict[str, float] = {}

    async def join(self) -> None:
        """Acquire the lease on the name. A process that holds it has to stop: it is superseded."""
        began = self._loop.time()
        while isinstance(held := await self._acquire(), HeldBy):
            with suppress(NotOwner):
                await self._leases.release(self._key, held.owner)
        self._extend(began)

    def describe(
        self,
        programs: Mapping[str, tuple[str, ...]],
        serves: Sequence[str] | None,
        signatures: Callable[[], Mapping[str, Signature]] = dict,
    ) -> None:
        """Set what to register: the programs with their versions, what they take, and the queues it serves alone."""
        versions = {name: found for name, found in programs.items() if found != ("1",)}
        queues = None if serves is None else tuple(serves)
        self._described = Registration(tuple(sorted(programs)), queues, self._ttl, versions=versions)
        self._signatures, self._registered = signatures, []

    async def register(self) -> None:
        """Store the registration, once: for clients without the programs, and for `why`."""
        async with self._registering:
            while self._described is not None and not self._registered:
                described = self._described
                wanted = self._leases_for(described)
                for lease in wanted:
                    self._to_release[lease.key] = lease.owner
                    await self._replace(lease)
                if described is self._described:  # else a program was defined again meanwhile
                    self._registered = wanted
                    self._renew_registration_at = self._loop.time() + self._config.registration_ttl / 2
                    await self._release(self._to_release.keys() - {lease.key for lease in wanted})

    def _leases_for(self, described: Registration) -> list[Renewal]:
        digest, parts = packed(self._signatures(), REGISTRATION_SIZE)
        if len(parts) > SIGNATURE_PARTS:
            digest, parts = "", []
        described = msgspec.structs.replace(described, signatures=digest)
        text = msgspec.json.encode(described).decode()
        for left_out in ("versions", "programs"):
            if len(text) > REGISTRATION_SIZE:
                described = msgspec.structs.replace(described, **{left_out: None})
                text = msgspec.json.encode(described).decode()
        prefix, ttl = part_prefix(self.name, digest), self._config.registration_ttl
        leases = [Renewal(f"{prefix}{number}", part, ttl) for number, part in enumerate(parts)]
        return [*leases, Renewal(REGISTRATION + self.name, text, ttl)]

    async def _replace(self, lease: Renewal) -> None:
        now = self._clock.now()
        while isinstance(held := await self._leases.acquire(lease.key, lease.owner, lease.ttl, now), HeldBy):
            with suppress(NotOwner):
                await self._leases.release(lease.key, held.owner)

    async def _release(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            with suppress(NotOwner):
                await self._leases.release(key, self._to_release[key])
            del self._to_release[key]

    async def renew(self) -> bool:
        """Renew the lease; False when the store could not. Raises Superseded."""
        # The time before the request: the store may count the lease from then on.
        began = self._loop.time()
        try:
            async with asyncio.timeout(min(self._ttl / 2, self._config.timeout)):
                renewals = [Renewal(self._key, self._holder, self._ttl)]
                if self._registered and began >= self._renew_registration_at:
                    renewals += self._registered
                    self._renew_registration_at = began + self._config.registration_ttl / 2
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
            return  # logged once, until the reason changes
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

    async def refresh(self) -> None:
        """Read which other orchestrators are alive."""
        live = await self._leases.live(ORCHESTRATOR, self._clock.now())
        ends = {orchestrator_name(lease.key): lease.expires for lease in live}
        self.expires = {name: at for name, at in ends.items() if name != self.name}
        self.others = list(self.expires)
        # One that has sent a heartbeat since is watched from now on, and one whose lease has ended is found.
        self._awaited = {name: at for name, at in self._awaited.items() if self.expires.get(name) == at}

    def await_end(self, name: str) -> None:
        """Have `next_end` count the lease that another orchestrator has now."""
        if name in self.expires:
            self._awaited[name] = self.expires[name]

    def next_end(self) -> float | None:
        """In how many seconds the first of the awaited leases ends."""
        return min(self._awaited.values()) - self._clock.now() if self._awaited else None

    async def served_programs(self) -> set[str]:
        """The programs that another live orchestrator serves completely, according to its registration."""
        if not self.others:
            return set()
        found = registrations(await self._leases.live(REGISTRATION, self._clock.now()))
        known = [found[name] for name in self.others if name in found and found[name].serves is None]
        return {program for one in known for program in one.programs or ()}

    def lease_left(self, name: str) -> float | None:
        """For how many more seconds at most another orchestrator has its lease; None when it has none."""
        left = self.expires.get(name, 0.0) - self._clock.now()
        return left if left > 0 else None

    async def leave(self) -> None:
        """Release everything, so that other orchestrators may take over at once."""
        try:
            # A newer process under this name may have registered the same: then the registration is that process's.
            live = await self._leases.live(self._key, self._clock.now())
            if not any(lease.key == self._key and lease.owner != self._holder for lease in live):
                await self._release(self._to_release)
            await self._leases.release_all(self._holder)
        except StoreUnavailable as error:
            log.warning(
                "orchestrator %s: its lease could not be released: %s. Its runs are taken over when the lease ends",
                self.name,
                error,
            )
