"""The state that routes share: the client, cached tables of ops, open streams."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from perdure.client.client import Client
from perdure.client.folded import OneAtATime
from perdure.errors import NoSuchRun
from perdure.kernel.events import moment
from perdure.kernel.ids import flaw_of
from perdure.kernel.values.redaction import Redaction
from perdure.ports.journal import Journal
from perdure.server.access import Access
from perdure.server.changes import Changes
from perdure.server.op_table import OpTable
from perdure.server.problems import Problem
from perdure.server.programs import KnownPrograms
from perdure.server.requested_run import RequestedRun
from perdure.server.run_counts import RunCounts
from perdure.server.streams import Streams
from perdure.server.viewed_capsules import ViewedCapsules
from perdure.telemetry.prometheus import exposition
from perdure.telemetry.store_figures import StoreFigures

if TYPE_CHECKING:
    from perdure.server.development import Development
    from perdure.telemetry.engine import EngineTelemetry

# How many events are folded in one turn of the host's event loop.
SLICE = 250
# How many tables are cached, and how many ops they may hold together.
TABLES, OPS_KEPT = 64, 200_000
# No op path or id is longer.
MAX_PATH = 10_000


class Service:
    """A client, and the state that its routes share."""

    def __init__(self, client: Client, trace_url: str | None = None) -> None:
        self.client, self.trace_url = client, trace_url
        self._opening = asyncio.Lock()
        self._redactions: dict[Sequence[str], Redaction] = {}
        self.op_tables = OpTables()
        self.streams = Streams()
        self.run_counts = RunCounts(client)
        self.changes = Changes(client)
        self.viewed_capsules = ViewedCapsules(client)
        self.programs = KnownPrograms(client)
        self.openapi: dict[str, Any] = {}
        # Reads the metrics as text, where they are served.
        self.metrics: Callable[[], Awaitable[str]] | None = None
        # Whether callers sign in with tokens.
        self.signs_in = False
        # The state of the edited code, under `perdure dev`.
        self.development: Development | None = None

    async def ready(self) -> None:
        """Open the client, unless it is open: a mounted application gets no startup event."""
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
        """Whether the client is an engine, which executes runs."""
        return hasattr(self.client, "superseded")

    def redaction(self, access: Access) -> Redaction:
        """What is redacted for a caller: what the engine redacts, and what the caller's access adds."""
        found = self._redactions.get(access.redact)
        if found is None:
            if len(self._redactions) > 100:
                self._redactions.clear()
            found = self._redactions[access.redact] = self.client._base.redaction.plus(access.redact)
        return found

    async def run(self, access: Access, address: str, child: str = "") -> RequestedRun:
        """The run with this run_id, or its child at an op path. Raises NoSuchRun also if the caller may not see it."""
        wanted = f"{address}/{child}" if child else address
        if flaw_of(wanted, MAX_PATH) is not None:
            raise NoSuchRun(wanted[:200])
        client = self.viewed_capsules.client_of(address)
        root = address if client is self.client else self.viewed_capsules.run_id_of(address)
        run_id = f"{root}/{child}" if child else root
        row = await client.store.runs.get(run_id)
        if row is None and "/" in run_id:
            found = await client._base.find(run_id)  # items of a map have no row
            row = None if found is None else found[0]
        head = None if row is None else await client.store.journal.head(row.root or row.run_id)
        if row is None or head is None or not access.sees(row.program):
            raise NoSuchRun(wanted[:200])
        return RequestedRun(self, client, access, address.partition("/")[0], row, head)


def metrics_of(client: Client) -> Callable[[], Awaitable[str]]:
    """Reads the metrics: all of an engine, which counts from now on; of a client what the store knows."""
    telemetry: EngineTelemetry | None = getattr(client, "_telemetry", None)  # not of a client that executes nothing
    if telemetry is not None:
        _ = telemetry.count()
        return telemetry.exposition
    figures = StoreFigures(lambda: client.store, lambda: client._base.leases, client.clock)

    async def read() -> str:
        return exposition(None, await figures.read())

    return read


class OpTables:
    """The tables of ops of the runs that were requested last."""

    def __init__(self) -> None:
        self._tables: OrderedDict[str, OpTable] = OrderedDict()
        self._reading = OneAtATime()

    async def read(
        self, journal: Journal, address: str, root: str, enough: Callable[[OpTable], bool] = lambda table: False
    ) -> OpTable:
        """The ops of a journal, up to its present end or until the table is `enough`. Only new events are read."""
        async with self._reading.of(address):
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


def time_of(at: float | None) -> datetime | None:
    """A time of the store, for a response."""
    return None if at is None else moment(at)


def seconds_of(at: datetime | None, name: str) -> float | None:
    """A time of a query, for the store."""
    if at is None:
        return None
    if at.tzinfo is None:
        raise Problem(422, "invalid_request", f"{name}: the time has no zone; write 2026-11-16T03:00:00Z")
    return at.timestamp()
