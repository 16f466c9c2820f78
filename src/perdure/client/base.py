"""The basis of all that a caller does with a store: the connection to it, and finding runs in it."""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from msgspec.structs import replace

from perdure.client.folded import FoldedJournals
from perdure.client.locks import Locks
from perdure.client.signatures import Signatures
from perdure.client.state_cache import StateCache
from perdure.client.subscriptions import JournalFollowers, RunWaiters
from perdure.config import Limits
from perdure.engine.items import ItemBlobs
from perdure.engine.large_values import Payloads
from perdure.engine.locks import Locker
from perdure.errors import Corrupt, NoSuchRun, UsageError
from perdure.inherited import check_main, check_process
from perdure.kernel.chunks import CHUNK, chunk_of
from perdure.kernel.events import Batch, StepStarted, events_in
from perdure.kernel.ids import check_asked_id, step_key
from perdure.kernel.ids import run_id as make_run_id
from perdure.kernel.policies.durability import Durability
from perdure.kernel.policies.durability import durability as durability_of
from perdure.kernel.policies.queues import Queue
from perdure.kernel.policies.start_options import Reuse, decide
from perdure.kernel.projection import RunRow, child_row
from perdure.kernel.state import fold
from perdure.kernel.structures import NoStructures, Structures
from perdure.kernel.values.codec import Codec, TypeCodec
from perdure.kernel.values.redaction import Redaction
from perdure.logs import redact_lines
from perdure.ports.blobs import sources_of
from perdure.ports.clock import Clock, SystemClock
from perdure.ports.journal import Append, Head, append_one
from perdure.ports.store import Store

if TYPE_CHECKING:
    from perdure.kernel.program import Program

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class StoreClient:
    """A store as one client or engine uses it: with a codec for values, a clock, and caches of runs.

    `kind` is the name of the class that callers see, for messages.
    """

    def __init__(
        self,
        kind: str,
        store: Store,
        *,
        limits: Limits | None = None,
        codecs: Iterable[TypeCodec[Any]] = (),
        clock: Clock | None = None,
        durability: str | Durability = "sync",
        reuse: Reuse = "return_existing",
        structures: Structures | None = None,
        redact: Sequence[str] = (),
    ) -> None:
        self._kind = kind
        # What people do not see of values, wherever they are shown.
        self.redaction = Redaction(redact)
        self._end_redacting: Callable[[], None] = lambda: None
        # What can read the stored structures of programs that are not here.
        self.structures = structures or NoStructures()
        self.store = store
        self.payloads = Payloads(store.blobs, limits or Limits())
        self.codec = Codec(codecs, self.payloads.limits.payload)
        self.items = ItemBlobs(store.blobs)
        self.codec.read_items_with(self.items)
        self.clock: Clock = clock or SystemClock()
        self.durability = durability_of(durability)
        decide(reuse, None)
        self.reuse: Reuse = reuse
        self.leases = store.leases
        self.followers = JournalFollowers(store)
        self.signatures = Signatures(store, self.clock)
        self.states = StateCache()
        # For views of runs.
        self.folded = FoldedJournals(store.journal, whole=True)
        self.folded_states = FoldedJournals(store.journal, whole=False)
        # The limits of queues, where they are known.
        self.queues: dict[str, Queue] = {}
        self._watch: RunWaiters | None = None
        self._locks: Locks | None = None
        self._last_run_id = ""
        # The process in which it is open.
        self._pid = 0

    # --- opening and closing --------------------------------------------------------------------------------------

    async def connect(self, *, migrate: bool = False) -> None:
        """Open the store. The client is open when it has been given its watch as well."""
        check_main()
        self._pid = os.getpid()
        await self.store.open(migrate=migrate)
        self.items.open()
        self.signatures = Signatures(self.store, self.clock)
        locker = Locker(self.store, self.clock)
        self._locks = Locks(self.leases, self.clock, locker, self.store.runs)

    async def disconnect(self) -> None:
        """Close the store, if this client is open."""
        if self.forked:
            self.set_watch(None)  # it is its parent's to close
        if self._watch is not None:
            await self._watch.close()
            await self.followers.close()
            self.set_watch(None)
            if self._locks is not None:
                await self._locks.locker.close()
            self.items.close()
            await self.store.close()

    # --- programs that are not here -------------------------------------------------------------------------------

    async def stored_structures(self, batches: Sequence[Batch]) -> dict[str, bytes]:
        """The structures that a run and its children were executed with, by id."""
        sources = await sources_of(self.store.blobs, batches)
        return {id: source.structure for id, source in sources.items() if source.structure}

    async def stored_program(self, batches: Sequence[Batch], path: str = "") -> Program | None:
        """The program of a run, or of its child at an op path, from its stored structure; None if it has none."""
        structures = await self.stored_structures(batches)
        return await asyncio.to_thread(self.structures.program, structures, batches, path) if structures else None

    @property
    def is_open(self) -> bool:
        """Whether it was opened in this process, and not closed since."""
        return self._watch is not None and not self.forked

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that opened it."""
        return self._pid not in (0, os.getpid())

    def check_open(self) -> None:
        """Raise UsageError unless it is open, in this process."""
        if self._watch is None:
            raise UsageError(f"this {self._kind} is not open; use it as `async with {self._kind}(...)`")
        self.check_process()

    def check_process(self) -> None:
        """Raise UsageError in a child of the process that opened it."""
        check_process(self._pid, self._kind)

    @property
    def watch(self) -> RunWaiters:
        """The waits of callers for runs to end."""
        self.check_open()
        assert self._watch is not None
        return self._watch

    def set_watch(self, watch: RunWaiters | None) -> None:
        """Open for callers, whose waits this watch resolves; None: not open any more."""
        self._watch = watch
        self._end_redacting()
        self._end_redacting = redact_lines(self.redaction) if watch is not None else lambda: None

    @property
    def locks(self) -> Locks:
        """The locks of the store."""
        self.check_open()
        return self.opened_locks

    @property
    def opened_locks(self) -> Locks:
        """As `locks`, while the client is being opened."""
        assert self._locks is not None
        return self._locks

    # --- runs -----------------------------------------------------------------------------------------------------

    async def find(self, id: str) -> tuple[RunRow, Head] | None:
        """The latest run under an id, or the run of a run_id; None when there is none."""
        self.check_open()
        id = check_asked_id(id)
        found = await self.store.runs.find(id)
        if found is not None:
            return found
        # A run_id names one incarnation.
        run = await self.store.runs.get(id)
        if run is None:
            return await self._item(id)
        head = await self.store.journal.head(run.root or run.run_id)
        return (run, head) if head is not None else None

    async def _item(self, id: str) -> tuple[RunRow, Head] | None:
        """A child that is an item of a map, or inside one: it has no row, so the row is computed from its journal."""
        end = id.find("/")
        while 0 <= end < id.rfind("]"):
            found = await self.find(id[:end])
            if found is not None and not found[0].root:
                root, head = found
                state = fold(root.run_id, await self.store.journal.read(root.run_id))
                path = id[end + 1 :]
                if (child := state.changed.get(path)) is not None:
                    return child_row(state, child), head
                if (there := await self.chunk_with(root.run_id, path)) is not None:
                    chunk, path = there
                    state = fold(chunk, await self.store.journal.read(chunk))
                    child, of_chunk = state.changed.get(path), await self.store.journal.head(chunk)
                    if child is not None and of_chunk is not None:
                        return replace(child_row(state, child), id=id), of_chunk
            end = id.find("/", end + 1)
        return None

    async def chunk_with(self, run_id: str, path: str) -> tuple[str, str] | None:
        """The run of the chunk of a run that has an op, by its path, with its path there; None if there is none."""
        if "[" not in path:
            return None
        events = events_in(await self.store.journal.read(run_id))
        begun = [event.op for event in events if isinstance(event, StepStarted) and event.queue == CHUNK]
        chunk, _ = chunk_of(path, begun)
        found = await self.store.runs.find(step_key(run_id, chunk)) if chunk else None
        if found is None:
            return None
        path = path[chunk.rfind("/") + 1 :]
        return await self.chunk_with(found[0].run_id, path) or (found[0].run_id, path)

    async def require(self, id: str) -> tuple[RunRow, Head]:
        """As `find`; raises NoSuchRun when there is none."""
        found = await self.find(id)
        if found is None:
            raise NoSuchRun(id)
        return found

    async def append(self, append: Append) -> bool:
        """Write to a journal; False when another event came first, or the id of a new run is taken."""
        return await append_one(self.store.journal, append)

    def new_run_id(self, now: float) -> str:
        """The run_id of a new run: never before the last one, so that runs of one millisecond keep their order."""
        self._last_run_id = make_run_id(now, secrets.randbits(36), self._last_run_id)
        return self._last_run_id

    def resolve(self, row: RunRow | Corrupt) -> None:
        """A run has ended, is parked, or cannot be read any more: resolve the waits of its callers."""
        if self._watch is not None:
            self._watch.resolve(row)


class KeptBlobs:
    """Blobs that callers put by hand. They are never collected: references to them may be anywhere."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def put(self, data: bytes) -> str:
        """Store the bytes durably and return their id, the SHA-256 in hex."""
        if not isinstance(data, bytes | bytearray | memoryview):
            write = "text.encode()" if isinstance(data, str) else "json.dumps(value).encode()"
            raise UsageError(
                f"blobs.put() takes bytes, and {data!r:.60} is of type {type(data).__name__}; write blobs.put({write})"
            )
        id = await self._store.blobs.put(data)
        await self._store.upkeep.keep(id)
        return id

    async def get(self, blob_id: str) -> bytes | None:
        """The bytes, or None when there is no such blob. Raises Corrupt when they are not what was put."""
        if not isinstance(blob_id, str):
            raise UsageError(f"blobs.get() takes the id that blobs.put() returned, a text, not {blob_id!r:.60}")
        if not (blob_id.isascii() and blob_id.isalnum()):
            return None  # it is no hash, and stores would take it in ways of their own
        return await self._store.blobs.get(blob_id)


def delegated(
    part: str, method: Callable[Concatenate[S, P], Awaitable[T]]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A method of a client that is one of its parts: `method` of the object in the attribute `part`."""

    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await method(getattr(self, part), *args, **kwargs)

    functools.update_wrapper(call, method)
    return call
