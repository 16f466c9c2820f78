"""Leases decide which orchestrator may try to advance a run. The journal decides which may write."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from perdure.kernel.ids import BATCH

# An orchestrator's heartbeat renews a lease on its name. The owner of the lease is the session that holds the name.
ORCHESTRATOR = "orchestrator:"


def holder(name: str, session: str) -> str:
    """The owner of the lease on an orchestrator's name."""
    return f"{name}#{session}"


def orchestrator_name(key: str) -> str:
    """The name of the orchestrator whose lease has this key."""
    return key.removeprefix(ORCHESTRATOR)


# An orchestrator's registration is a lease too. It means nothing once the lease on the name has expired.
REGISTRATION = "registered:"
# So are the signatures of its programs, in parts: together they are longer than the owner of a lease may be.
SIGNATURES = "signatures:"
# A writer whose appends to a journal keep losing reserves its turn with a lease; other writers wait for it.
TURN = "turn:"


def part_prefix(name: str, digest: str) -> str:
    """The key prefix of the leases that hold the signatures of an orchestrator's programs."""
    return f"{SIGNATURES}{name}:{digest}:"


class Registration(msgspec.Struct, frozen=True, omit_defaults=True):
    """The published facts about an orchestrator. As JSON they are the owner of a lease, so that one read returns both.

    `programs` are the names of its programs, or None when there are too many. `serves` are the queues that it serves
    exclusively, or None. `lease` is how long its name stays taken after its last heartbeat. `signatures` is the digest
    of its programs' signatures, which are in leases of their own; empty when they are not published. `versions` are the
    versions of each program whose runs it takes, unless that is version 1 alone; empty if it is not known yet. None
    when they are too many, or an older engine did not publish them.
    """

    programs: tuple[str, ...] | None = None
    serves: tuple[str, ...] | None = None
    lease: float = 30.0
    signatures: str = ""
    versions: dict[str, tuple[str, ...]] | None = None

    def may_take(self, program: str, version: str, queue: str) -> bool:
        """Whether the orchestrator may continue a run, according to what it has published."""
        if self.programs is None:
            return True
        program = program.removesuffix(BATCH)
        if program not in self.programs or (self.serves is not None and queue not in self.serves):
            return False
        versions = self.versions_of(program)
        return not version or not versions or version in versions

    def versions_of(self, program: str) -> tuple[str, ...]:
        """The versions of a program whose runs it takes; empty if that is not known."""
        program = program.removesuffix(BATCH)
        if self.versions is None or program not in (self.programs or ()):
            return ()
        return self.versions.get(program, ("1",))


class Acquired(msgspec.Struct, frozen=True):
    """The lease is yours until `expires`. `epoch` grows each time it changes hands."""

    token: str
    epoch: int
    expires: float


class HeldBy(msgspec.Struct, frozen=True):
    """Another owner holds the lease."""

    owner: str
    expires: float


class Lease(msgspec.Struct, frozen=True):
    """A lease in force."""

    key: str
    owner: str
    epoch: int
    expires: float


class Renewal(msgspec.Struct, frozen=True):
    """A request to extend a lease by `ttl` seconds."""

    key: str
    owner: str
    ttl: float


class Leases(Protocol):
    """Leases with a time to live. `now` is a parameter; expiry is `expires <= now`."""

    async def acquire(self, key: str, owner: str, ttl: float, now: float) -> Acquired | HeldBy:
        """Take a lease that is free, expired, or already yours."""

    async def renew_all(self, renewals: Sequence[Renewal], now: float) -> Sequence[str]:
        """Renew each lease that its owner still holds, in one call; returns the keys of the others."""

    async def release(self, key: str, owner: str) -> None:
        """Release a lease; raises NotOwner when another owner holds it, or none."""

    async def release_all(self, owner: str) -> int:
        """Release every lease of `owner`, and return how many there were."""

    async def get(self, key: str, now: float) -> Lease | None:
        """The lease in force, or None."""

    async def live(self, prefix: str, now: float) -> Sequence[Lease]:
        """The leases in force whose key begins with `prefix`."""

    def watch(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys under `prefix` whose lease has ended, each as soon as the backend reports it.

        A hint: it may come late, twice or not at all, and the lease may have a new owner. A backend without
        notifications yields nothing, and waits. Raises StoreUnavailable when the backend is unreachable; watch again.
        """


def registrations(leases: Iterable[Lease]) -> dict[str, Registration]:
    """The registrations in these leases, by orchestrator name; those that cannot be decoded are left out."""
    found = {}
    for lease in leases:
        try:
            registration = msgspec.json.decode(lease.owner, type=Registration)
        except msgspec.MsgspecError:
            continue
        found[lease.key.removeprefix(REGISTRATION)] = registration
    return found


def versions_at(orchestrators: Mapping[str, Registration | None], program: str, queue: str) -> str:
    """Which of these orchestrators take which versions of a program, in words; empty if that is not known."""
    taking = [(name, known) for name, known in sorted(orchestrators.items()) if known is not None]
    found = [(name, known.versions_of(program)) for name, known in taking if known.may_take(program, "", queue)]
    return some_of([f"{name} has {', '.join(versions)}" for name, versions in found if versions])


def some_of(names: Sequence[str]) -> str:
    """The first of these names, for a message."""
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
