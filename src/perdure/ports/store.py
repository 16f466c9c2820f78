"""A backend as a bundle of ports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from perdure.kernel.events import Batch, ChildStarted, RunStarted
from perdure.kernel.ids import BATCH, stored_id
from perdure.kernel.policies.durability import Durability
from perdure.ports.blobs import Blobs
from perdure.ports.journal import Journal
from perdure.ports.leases import Leases
from perdure.ports.queues import Queues
from perdure.ports.runs import Runs
from perdure.ports.timers import Timers
from perdure.ports.upkeep import Upkeep

# What an acknowledged append with `fsync` survives: power loss, a killed process, or neither.
Survives = Literal["power_loss", "kill", "nothing"]


class Store(Protocol):
    """One backend. Ports of different backends may be bundled."""

    @property
    def url(self) -> str: ...

    @property
    def journal(self) -> Journal: ...

    @property
    def runs(self) -> Runs: ...

    @property
    def timers(self) -> Timers: ...

    @property
    def queues(self) -> Queues: ...

    @property
    def leases(self) -> Leases: ...

    @property
    def blobs(self) -> Blobs: ...

    @property
    def upkeep(self) -> Upkeep: ...

    async def open(self, *, migrate: bool) -> None:
        """Connect; with `migrate`, bring an embedded store's schema up to date first."""

    async def close(self) -> None:
        """Disconnect. Everything acknowledged stays."""

    @property
    def survives(self) -> Survives:
        """What an acknowledged append with `fsync` survives. Known once the store is open."""

    def check_durability(self, durability: Durability) -> None:
        """Raise UsageError when the backend, as it is set up, would break what this durability promises."""

    def version(self) -> object:
        """A token that changes with every write to the store, read without a statement where that is possible.

        A lease renewal must not change it, or the heartbeats of idle engines would make each other poll.
        """

    def trace(self, callback: Callable[[str], None] | None) -> None:
        """Report each statement sent to the backend, for measurements; None stops it."""


async def definitions_of(store: Store, batches: Sequence[Batch]) -> list[bytes]:
    """The definitions of the programs of a run and its children, as far as those are data."""
    events = (event for batch in batches for event in batch.events if isinstance(event, RunStarted | ChildStarted))
    found: list[bytes] = []
    for name, version in dict.fromkeys((event.program.removesuffix(BATCH), event.version) for event in events):
        row = await store.runs.find(stored_id(name, version))
        data = None if row is None else await store.blobs.get(row[0].input_blob)
        found += [] if data is None else [data]
    return found
