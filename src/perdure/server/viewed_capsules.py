"""Capsules that are viewed without being imported: kept in memory for a while, under the hash of their bytes.

Nothing depends on them: when the server has dropped one, it says so, and the page sends the file again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b

from perdure.client.base import StoreClient
from perdure.client.client import Client
from perdure.client.gateway import RunGateway, StoreGateway
from perdure.client.subscriptions import Follower, JournalFollowers
from perdure.kernel.history.capsule import Capsule, read_capsule
from perdure.kernel.program import Program
from perdure.kernel.projection import child_rows, row
from perdure.kernel.state import RunState
from perdure.ports.journal import Append, append_one
from perdure.server.problems import Problem
from perdure.stores.memory.store import MemoryStore

# The prefix of a capsule's address. No run_id begins with it.
MARK = "~"
# How many capsules are kept, and how many bytes of them.
KEPT, KEPT_BYTES = 8, 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Viewed:
    client: Client
    run_id: str
    size: int


class ViewedCapsules:
    """The capsules that were viewed last."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._kept: OrderedDict[str, _Viewed] = OrderedDict()

    def client_of(self, address: str) -> Client:
        """The client for the run at an address: that of the store, or one for the capsule."""
        return self._client if not address.startswith(MARK) else self._find(address).client

    def run_id_of(self, address: str) -> str:
        """The run_id in the capsule at an address."""
        return self._find(address).run_id

    def _find(self, address: str) -> _Viewed:
        found = self._kept.get(address)
        if found is None:
            raise Problem(404, "no_such_view", "the capsule is not kept here any more", hint="send the file again")
        self._kept.move_to_end(address)
        return found

    async def add(self, data: bytes) -> str:
        """Keep a capsule, and return its address. Raises InvalidCapsule."""
        address = MARK + blake2b(data, digest_size=12).hexdigest()
        if address not in self._kept:
            capsule, state = await asyncio.to_thread(read_capsule, data)
            self._kept[address] = _Viewed(await self._loaded(capsule, state), capsule.run_id, len(data))
            while len(self._kept) > KEPT or sum(one.size for one in self._kept.values()) > KEPT_BYTES:
                if len(self._kept) == 1:
                    break
                self._kept.popitem(last=False)
        self._kept.move_to_end(address)
        return address

    async def _loaded(self, capsule: Capsule, state: RunState) -> Client:
        """A client of an in-memory store that holds the run of the capsule."""
        base = self._client._base
        store = MemoryStore()
        for blob in capsule.blobs.values():
            _ = await store.blobs.put(blob)
        whole = Append(capsule.run_id, 0, capsule.batches, row(state), children=child_rows(state))
        _ = await append_one(store.journal, whole)
        client = Client(store, limits=base.payloads.limits, clock=base.clock, structures=base.structures)
        client._base.followers = _Complete(store)
        client._assemble(client._base, _Borrowing(client._base, self._client._gateway))
        return await client.open()


class _Complete(JournalFollowers):
    """Followers of journals that do not grow: a stream ends where the capsule does."""

    @contextmanager
    def follow(self, run_id: str, *, status_only: bool = False) -> Iterator[Follower]:
        """Follow a journal to its end."""
        with super().follow(run_id, status_only=status_only) as follower:
            follower.head = None
            yield follower


class _Borrowing(StoreGateway):
    """A gateway to another store that finds programs as the original one does."""

    def __init__(self, base: StoreClient, other: RunGateway) -> None:
        super().__init__(base, base.resolve)
        self._other = other

    def find_program(self, name: str, version: str = "") -> Program | None:
        """The program of runs of this version, or the newest of its name."""
        return self._other.find_program(name, version)
