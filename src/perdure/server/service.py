"""What all routes work with: the client, the tables of ops that are kept, the streams that are open."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from perdure.client.client import Client
from perdure.errors import NoSuchRun
from perdure.kernel.events import moment
from perdure.kernel.ids import flaw_of
from perdure.kernel.values.redaction import Redaction
from perdure.ports.journal import Journal
from perdure.server.access import Access
from perdure.server.changes import Changes
from perdure.server.counting import Counting
from perdure.server.found_run import FoundRun
from perdure.server.op_table import OpTable
from perdure.server.problems import Problem
from perdure.server.programs import KnownPrograms
from perdure.server.streams import Streams
from perdure.server.viewed import ViewedCapsules

if TYPE_CHECKING:
    from perdure.server.developing import Development

# How many events are decoded and folded in one turn of the event loop, which is the host's.
SLICE = 250
# How many tables are kept, and how many ops they may have together.
TABLES, OPS_KEPT = 64, 200_000
# No op path or id is longer.
MAX_PATH = 10_000


class Service:
    """A client, and what its routes share."""

    def __init__(self, client: Client, trace_url: str | None = None) -> None:
        self.client, self.trace_url = client, trace_url
        self._opening = asyncio.Lock()
        self._redactions: dict[Sequence[str], Redaction] = {}
        self.tables = Tables()
        self.streams = Streams()
        self.counting = Counting(client)
        self.changes = Changes(client)
        self.viewed = ViewedCapsules(client)
        self.programs = KnownPrograms(client)
        self.openapi: dict[str, Any] = {}
        # Whether callers present tokens.
        self.signs_in = False
        # The code that is edited, where `perdure dev` serves.
        self.development: Development | None = None

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

    def redaction(self, access: Access) -> Redaction:
        """What a caller does not see: what the engine redacts, and what the access of the caller says."""
        found = self._redactions.get(access.redact)
        if found is None:
            if len(self._redactions) > 100:
                self._redactions.clear()
            found = self._redactions[access.redact] = self.client._base.redaction.plus(access.redact)
        return found

    async def run(self, access: Access, address: str, child: str = "") -> FoundRun:
        """The run of a run_id, or its child at an op path; NoSuchRun also for one that who asks may not see."""
        wanted = f"{address}/{child}" if child else address
        if flaw_of(wanted, MAX_PATH) is not None:
            raise NoSuchRun(wanted[:200])
        client = self.viewed.client_of(address)
        root = address if client is self.client else self.viewed.run_id_of(address)
        run_id = f"{root}/{child}" if child else root
        row = await client.store.runs.get(run_id)
        if row is None and "/" in run_id:
            found = await client._base.find(run_id)  # items of a map have no row
            row = None if found is None else found[0]
        head = None if row is None else await client.store.journal.head(row.root or row.run_id)
        if row is None or head is None or not access.sees(row.program):
            raise NoSuchRun(wanted)
        return FoundRun(self, client, access, address.partition("/")[0], row, head)


class Tables:
    """The tables of ops of the runs that were looked at last."""

    def __init__(self) -> None:
        self._tables: OrderedDict[str, OpTable] = OrderedDict()
        self._locks: dict[str, asyncio.Lock] = {}

    async def read(
        self, journal: Journal, address: str, root: str, enough: Callable[[OpTable], bool] = lambda table: False
    ) -> OpTable:
        """The ops of a journal, up to its present end or until it is `enough`; what was read is not read again."""
        async with self._lock(address):
            table = self._tables.pop(address, None) or OpTable(root)
            while not enough(table):
                batches = await journal.read(root, table.next_seq, SLICE)
                if not batches:
                    break
                table.feed(batches)
                await asyncio.sleep(0)
            self._tables[address] = table
            while len(self._tables) > 1 and (
                len(self._tables) > TABLES or sum(map(len, self._tables.values())) > OPS_KEPT
            ):
                self._tables.popitem(last=False)
            return table

    def _lock(self, address: str) -> asyncio.Lock:
        """One fold of a journal at a time."""
        if len(self._locks) > 4 * TABLES:
            self._locks = {key: lock for key, lock in self._locks.items() if lock.locked()}
        return self._locks.setdefault(address, asyncio.Lock())


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
