"""Everything a caller can read of a store. Imports no more than that takes: reading commands are short-lived."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from perdure.client.base import KeptBlobs, StoreClient, delegated
from perdure.client.gateway import RunGateway, StoreGateway
from perdure.client.locks import Locks
from perdure.client.queries import Queries, RunFilters
from perdure.client.subscriptions import RunWaiters
from perdure.client.views import (
    Chunk,
    RunPage,
)
from perdure.config import Limits
from perdure.errors import UsageError
from perdure.kernel.events import Entry, RunStatus
from perdure.kernel.structures import Structures
from perdure.kernel.values.codec import TypeCodec
from perdure.ports.blobs import Blobs
from perdure.ports.clock import Clock
from perdure.ports.store import Store


class Reader:
    """A connection to a store that reads runs."""

    def __init__(
        self,
        store: Store,
        *,
        limits: Limits | None = None,
        codecs: Iterable[TypeCodec[Any]] = (),
        clock: Clock | None = None,
        structures: Structures | None = None,
        redact: Sequence[str] = (),
    ) -> None:
        base = StoreClient(
            "Client", store, limits=limits, codecs=codecs, clock=clock, structures=structures, redact=redact
        )
        self._assemble(base, StoreGateway(base, base.resolve))

    def _assemble(self, base: StoreClient, gateway: RunGateway) -> None:
        """Make the parts, over one store and one way to the runs."""
        self._base, self._gateway = base, gateway
        self.store, self.payloads, self.codec, self.clock = base.store, base.payloads, base.codec, base.clock
        self._queries = Queries(base, gateway)

    # --- opening and closing -------------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Connect. `async with` and `await` do this too."""
        if not self._base.is_open:  # `async with` of what was awaited before finds it open
            await self._base.connect()
            self._base.set_watch(RunWaiters(self.store))
        return self

    async def close(self) -> None:
        """Disconnect."""
        await self._base.disconnect()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    if not TYPE_CHECKING:  # a type checker says so itself

        def __enter__(self):
            name = type(self).__name__
            raise UsageError(f"write `async with {name}(...)`; code that does not await uses perdure.blocking.{name}")

        def __exit__(self, *error):
            """Never reached: it cannot be entered so."""

    def __await__(self) -> Generator[Any, None, Self]:
        return self.open().__await__()

    @property
    def watch(self) -> RunWaiters:
        """The waits of callers for runs to end."""
        return self._base.watch

    @property
    def blobs(self) -> Blobs:
        """The blob store: `put(bytes) -> id`, `get(id) -> bytes | None`. What is put here is never collected."""
        return KeptBlobs(self.store)

    @property
    def locks(self) -> Locks:
        """The locks of the store: `async with engine.locks.hold(key)`."""
        return self._base.locks

    # --- reading ------------------------------------------------------------------------------------------------------

    get = delegated("_queries", Queries.get)

    async def list(
        self,
        *,
        status: RunStatus | str | Sequence[RunStatus | str] | None = None,
        program: str | None = None,
        tags: dict[str, str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        owner: str | None = None,
        parent: str | None = None,
        root: str | None = None,
        queue: str | None = None,
        id_prefix: str | None = None,
        roots: bool = False,
        search: str | None = None,
        values: bool = True,
        limit: int = 100,
        cursor: str | None = None,
    ) -> RunPage:
        """Runs, newest first, a page at a time; runs of perdure's own programs only when `program` names one.

        Created at or after `since` and before `until`. `parent` and `root` are ids or run_ids; a run without a parent
        is its own root, and `roots` leaves children out. `owner` is an orchestrator. `id_prefix` is compared literally.
        `search` is `input.customer=ann`, `output.total=17` or `error=timed out`. A search, or one by tags, looks at
        100,000 runs; `page.searched` says where it stopped. Without `values` the inputs and outputs are left out.
        """
        filters = RunFilters(
            status=status,
            program=program,
            tags=tags,
            since=since,
            until=until,
            owner=owner,
            parent=parent,
            root=root,
            queue=queue,
            id_prefix=id_prefix,
            roots=roots,
            search=search,
        )
        return await self._queries.list(filters, limit, cursor, values=values)

    counts = delegated("_queries", Queries.counts)
    histogram = delegated("_queries", Queries.histogram)

    why = delegated("_queries", Queries.why)
    reasons = delegated("_queries", Queries.reasons)
    queues = delegated("_queries", Queries.queues)
    orchestrators = delegated("_queries", Queries.orchestrators)
    steps = delegated("_queries", Queries.steps)
    items = delegated("_queries", Queries.items)
    batch = delegated("_queries", Queries.batch)
    values = delegated("_queries", Queries.values)
    history = delegated("_queries", Queries.history)
    diagram = delegated("_queries", Queries.diagram)
    approvals = delegated("_queries", Queries.approvals)
    get_checkpoint = delegated("_queries", Queries.get_checkpoint)
    journal = delegated("_queries", Queries.journal)

    def follow(self, id: str, start: int = 0) -> AsyncIterator[Entry]:
        """The events of a run from number `start`, as they are committed, until it ends.

        By id, a run that continues by `continue_as` has not ended: the events of the next incarnation follow, from
        number 0, with its `run_id`. A run_id means that one incarnation.
        """
        return self._queries.follow(id, start)

    def stream(self, id: str, step: str | None = None, start: int = 0) -> AsyncIterator[Chunk]:
        """The chunks that a step emits, from number `start`, as they are committed; ends with the step.

        `step` is an op path such as `tokens:0`, or a name, which means the first step of that name. Without it: all
        steps of the run and its children, until it ends. By id, a run that continues by `continue_as` has not ended:
        chunks of the next incarnation follow, and their numbers continue. A run_id means that one incarnation.
        """
        return self._queries.stream(id, step, start)
