"""What all routes work with: the client, what is kept of journals, and how values are shown."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from typing import Any
from urllib.parse import quote

from msgspec import Raw

from perdure.client.client import Client
from perdure.errors import NoSuchRun
from perdure.kernel.events import moment
from perdure.kernel.ids import flaw_of
from perdure.kernel.projection import RunRow, child_path
from perdure.kernel.state import RunState
from perdure.ports.journal import Head
from perdure.server.access import Access
from perdure.server.counting import Counting
from perdure.server.op_table import OpTable
from perdure.server.problems import Problem
from perdure.server.routing import KIB
from perdure.server.streams import Streams

# A longer value is sent when it is asked for.
INLINE = 16 * KIB
# How many events are decoded and folded in one turn of the event loop, which is the host's.
SLICE = 500
# How many tables and states are kept, and how many ops the tables may have together.
TABLES, OPS_KEPT = 64, 300_000
# No op path or id is longer.
MAX_PATH = 10_000


class Service:
    """A client, and what its routes share."""

    def __init__(self, client: Client, trace_url: str | None = None) -> None:
        self.client, self.trace_url = client, trace_url
        self._tables: OrderedDict[str, OpTable] = OrderedDict()
        self._states: OrderedDict[str, tuple[int, RunState]] = OrderedDict()
        self._locks: dict[str, asyncio.Lock] = {}
        self._opening = asyncio.Lock()
        self.streams = Streams()
        self.counts = Counting(client).counts
        self.openapi: Callable[[], dict[str, Any]] = dict
        self.features: list[str] = []

    async def ready(self) -> None:
        """Open the client if its owner has not: an application that was mounted is told of no start."""
        if self.client._base.is_open:
            return
        if self.executes:
            raise Problem(
                503,
                "engine_not_open",
                "the engine of this server is not open",
                hint="open it where the application starts: FastAPI(lifespan=engine.lifespan)",
                headers={"Retry-After": "2"},
            )
        async with self._opening:
            _ = await self.client.open()

    @property
    def executes(self) -> bool:
        """Whether it is an engine."""
        return hasattr(self.client, "superseded")

    # --- runs -----------------------------------------------------------------------------------------------------

    async def run(self, access: Access, run_id: str, child: str = "") -> tuple[RunRow, Head]:
        """The run of a run_id, or its child at an op path; NoSuchRun also for one that who asks may not see."""
        wanted = f"{run_id}/{child}" if child else run_id
        if flaw_of(wanted, MAX_PATH) is not None:
            raise NoSuchRun(wanted[:200])
        store = self.client.store
        row = await store.runs.get(wanted)
        if row is None and "/" in wanted:
            found = await self.client._base.find(wanted)  # items of a map have no row
            row = None if found is None else found[0]
        head = None if row is None else await store.journal.head(row.root or row.run_id)
        if row is None or head is None or not access.sees(row.program):
            raise NoSuchRun(wanted)
        return row, head

    async def state(self, row: RunRow, head: Head) -> RunState:
        """The folded journal of a run, folded in slices and kept until the journal grows."""
        root = row.root or row.run_id
        async with self._lock(root):
            kept = self._states.get(root)
            if kept is None or kept[0] > head.next_seq:
                kept = (0, RunState(root))
            at, state = kept
            while at < head.next_seq:
                batches = await self.client.store.journal.read(root, at, SLICE)
                if not batches:
                    break
                for batch in batches:
                    for seq, event in enumerate(batch.events, batch.seq):
                        if seq >= at:
                            state.fold(event, batch.at)
                at = batches[-1].seq + len(batches[-1].events)
                await asyncio.sleep(0)
            self._states[root] = (at, state)
            self._states.move_to_end(root)
            while len(self._states) > TABLES:
                self._states.popitem(last=False)
            return state

    async def table(self, row: RunRow) -> OpTable:
        """The ops of the journal that a run is in, up to its present end."""
        root = row.root or row.run_id
        async with self._lock(root):
            table = self._tables.pop(root, None) or OpTable(root)
            while batches := await self.client.store.journal.read(root, table.next_seq, SLICE):
                table.feed(batches)
                await asyncio.sleep(0)
            self._tables[root] = table
            while len(self._tables) > 1 and (
                len(self._tables) > TABLES or sum(map(len, self._tables.values())) > OPS_KEPT
            ):
                self._tables.popitem(last=False)
            return table

    def _lock(self, root: str) -> asyncio.Lock:
        """One fold of a journal at a time."""
        if len(self._locks) > 4 * TABLES:
            self._locks = {key: lock for key, lock in self._locks.items() if lock.locked()}
        return self._locks.setdefault(root, asyncio.Lock())

    # --- values ---------------------------------------------------------------------------------------------------

    async def value(self, row: RunRow, place: str, data: Raw, blob: str, access: Access) -> Any:
        """A value for an answer: itself, or where it is to be had."""
        if blob:
            data = await self.client.payloads.load(blob, data)
        return self.shown(row, place, data, access)

    def shown(self, row: RunRow, place: str, data: Raw, access: Access) -> Any:
        """As `value`, for one that is here."""
        if len(data) <= INLINE:
            return data
        return {"$value": self.url_of(row, place), "bytes": len(data)}

    @staticmethod
    def url_of(row: RunRow, place: str) -> str:
        """Where a value is to be had, relative to `api/v1/`."""
        root, child = row.root or row.run_id, child_path(row)
        query = f"?child={quote(child, safe='')}" if child else ""
        return f"runs/{root}/values/{place}{query}"


def time_of(at: float | None) -> datetime | None:
    """A time of the store, for an answer."""
    return None if at is None else moment(at)


def seconds_of(at: datetime | None, name: str) -> float | None:
    """A time of a query, for the store."""
    if at is None:
        return None
    if at.tzinfo is None:
        raise Problem(422, "invalid_request", f"{name}: the time has no zone; write 2026-11-16T03:00:00Z")
    return at.timestamp()
