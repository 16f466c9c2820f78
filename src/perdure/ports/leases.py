"""Who may try. The journal decides who may write."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Protocol

import msgspec

# An orchestrator shows that it lives by a lease on its name. Its owner is the session: the process that holds the name.
ORCHESTRATOR = "orchestrator:"


def holder(name: str, session: str) -> str:
    """The owner of the lease on the name of an orchestrator."""
    return f"{name}#{session}"


def orchestrator_name(key: str) -> str:
    """The name that a lease of an orchestrator is on."""
    return key.removeprefix(ORCHESTRATOR)


# What it says of itself is a lease as well, of no use to others once the one on its name has ended.
REGISTRATION = "registered:"
# So is what its programs take, in parts: it is longer than the owner of a lease may be, and read once by each caller.
SIGNATURES = "signatures:"
# A writer that lost appends to a journal again and again asks the others for its turn by a lease on it.
TURN = "turn:"


def part_prefix(name: str, digest: str) -> str:
    """What the keys begin with of the parts that have what the programs of an orchestrator take."""
    return f"{SIGNATURES}{name}:{digest}:"


class Registration(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an orchestrator says of itself: the owner of the lease is this as JSON, so that it is read with the lease.

    `programs` are those it has, by name, and None when they are too many to be said. `serves` are the queues that it
    serves alone, if it does so. `lease` is how long its name stays taken after its last heartbeat. `signatures` is the
    digest of what its programs take, which is in leases of its own; empty where it is not said.
    """

    programs: tuple[str, ...] | None = None
    serves: tuple[str, ...] | None = None
    lease: float = 30.0
    signatures: str = ""


class Acquired(msgspec.Struct, frozen=True):
    """The lease is yours until `expires`. `epoch` grows each time it changes hands."""

    token: str
    epoch: int
    expires: float


class HeldBy(msgspec.Struct, frozen=True):
    """Somebody else holds it."""

    owner: str
    expires: float


class Lease(msgspec.Struct, frozen=True):
    """A lease as it stands."""

    key: str
    owner: str
    epoch: int
    expires: float


class Renewal(msgspec.Struct, frozen=True):
    """A wish to hold on to a lease for another `ttl` seconds."""

    key: str
    owner: str
    ttl: float


class Leases(Protocol):
    """Rights that run out. `now` is a parameter; expiry is `expires <= now`."""

    async def acquire(self, key: str, owner: str, ttl: float, now: float) -> Acquired | HeldBy:
        """Take a lease that is free, expired, or already yours."""
        ...

    async def renew_all(self, renewals: Sequence[Renewal], now: float) -> Sequence[str]:
        """Hold on to leases, in one call, each or not at all; returns the keys of those that are not their owner's."""
        ...

    async def release(self, key: str, owner: str) -> None:
        """Give your lease back; raises NotOwner when it is not yours."""
        ...

    async def release_all(self, owner: str) -> int:
        """Give back everything `owner` holds, and say how many leases that was."""
        ...

    async def get(self, key: str, now: float) -> Lease | None:
        """The lease in force, or None."""
        ...

    async def live(self, prefix: str, now: float) -> Sequence[Lease]:
        """The leases in force whose key begins with `prefix`."""
        ...

    def watch(self, prefix: str) -> AsyncIterator[str]:
        """The keys under `prefix` whose lease has ended since, each as soon as the backend says so.

        A hint: it may come late, twice or not at all, and somebody may hold the lease again. A backend that cannot tell
        yields nothing, and waits. Ends with StoreUnavailable when the backend is out of reach; watch again then.
        """
        ...


def registrations(leases: Iterable[Lease]) -> dict[str, Registration]:
    """What orchestrators have said of themselves, by name; what cannot be read counts as unsaid."""
    found = {}
    for lease in leases:
        try:
            said = msgspec.json.decode(lease.owner, type=Registration)
        except msgspec.MsgspecError:
            continue
        found[lease.key.removeprefix(REGISTRATION)] = said
    return found
