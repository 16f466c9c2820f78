"""What everything a caller does with a store rests on: being connected to it, and finding a run in it."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from perdure.client.locks import Locks
from perdure.client.news import News
from perdure.client.signatures import Signatures
from perdure.client.state_cache import States
from perdure.client.views import Loaded
from perdure.client.watch import Watch
from perdure.config import Limits
from perdure.engine.large_values import Payloads
from perdure.engine.locks import Locker
from perdure.errors import Corrupt, NoSuchRun, NotDecodable, UsageError
from perdure.inherited import check_main, check_process
from perdure.kernel.events import RunStatus
from perdure.kernel.ids import check_asked_id
from perdure.kernel.policies.durability import Durability
from perdure.kernel.policies.durability import durability as durability_of
from perdure.kernel.policies.queues import Queue
from perdure.kernel.policies.reuse import Reuse, decide
from perdure.kernel.program import Program
from perdure.kernel.projection import RunRow
from perdure.kernel.values.codec import Codec, TypeCodec
from perdure.ports.blobs import Blobs
from perdure.ports.clock import Clock, SystemClock
from perdure.ports.journal import Append, Head, append_one
from perdure.ports.leases import Leases
from perdure.ports.store import Store


class Connection:
    """An open store, with a codec for values and a clock."""

    def __init__(
        self,
        store: Store,
        *,
        limits: Limits | None = None,
        codecs: Iterable[TypeCodec[Any]] = (),
        clock: Clock | None = None,
        durability: str | Durability = "sync",
        reuse: Reuse = "return_existing",
    ) -> None:
        self.store = store
        self.payloads = Payloads(store.blobs, limits or Limits())
        self.codec = Codec(codecs, self.payloads.limits.payload)
        self.clock: Clock = clock or SystemClock()
        self._durability = durability_of(durability)
        decide(reuse, None)
        self._reuse: Reuse = reuse
        self._leases: Leases = store.leases
        self._watch: Watch | None = None
        self._news = News(store)
        self._signatures = Signatures(store, self.clock)
        self._locks: Locks | None = None
        self._last_run_id = ""
        # The process in which it is open.
        self._pid = 0
        self._states = States()
        # The limits of queues, where they are known.
        self._queues: dict[str, Queue] = {}

    async def open(self) -> Self:
        """Connect. `async with` and `await` do this too."""
        check_main()
        if self._watch is not None and not self._forked():
            return self  # `async with` of what was awaited before
        self._pid = os.getpid()
        await self.store.open(migrate=False)
        self._watch = Watch(self.store)
        self._signatures = Signatures(self.store, self.clock)
        self._locks = self._make_locks()
        return self

    async def close(self) -> None:
        """Disconnect."""
        if self._forked():
            self._watch = None  # it is its parent's to close
        if self._watch is not None:
            await self._watch.close()
            await self._news.close()
            self._watch = None
            if self._locks is not None:
                await self._locks.locker.close()
            await self.store.close()

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
    def watch(self) -> Watch:
        """Who waits for which run."""
        self._check_open()
        assert self._watch is not None
        return self._watch

    def _check_open(self) -> None:
        if self._watch is None:
            kind = type(self).__name__
            raise UsageError(f"this {kind} is not open; use it as `async with {kind}(...)`")
        check_process(self._pid, type(self).__name__)

    def _forked(self) -> bool:
        """Whether this is a child of the process that opened it."""
        return self._pid not in (0, os.getpid())

    @property
    def blobs(self) -> Blobs:
        """The blob store: `put(bytes) -> id`, `get(id) -> bytes | None`. What is put here is never collected."""
        return _KeptBlobs(self.store)

    @property
    def locks(self) -> Locks:
        """The locks of the store: `async with engine.locks.hold(key)`."""
        self._check_open()
        assert self._locks is not None
        return self._locks

    def _make_locks(self) -> Locks:
        return Locks(self._leases, self.clock, Locker(self._leases, self.clock, self.store.version), self.store.runs)

    def _ended_here(self, row: RunRow) -> None:
        """A run has ended by what this process wrote."""
        if self._watch is not None:
            self._watch.resolve(row)

    async def _append(self, append: Append) -> bool:
        return await append_one(self.store.journal, append)

    async def _find(self, id: str) -> tuple[RunRow, Head] | None:
        self._check_open()
        check_asked_id(id)
        found = await self.store.runs.find(id)
        if found is not None:
            return found
        # A run_id names one incarnation.
        run = await self.store.runs.get(id)
        head = await self.store.journal.head(run.root or run.run_id) if run is not None else None
        return (run, head) if run is not None and head is not None else None

    async def _require(self, id: str) -> tuple[RunRow, Head]:
        found = await self._find(id)
        if found is None:
            raise NoSuchRun(id)
        return found

    async def _load_or_say(self, run: RunRow) -> Loaded:
        """As `_load`; a run whose values cannot be read is listed without them, and with the reason."""
        try:
            return await self._load(run)
        except Corrupt as damage:
            return Loaded(msgspec.structs.replace(run, reason=str(damage)))

    async def _load(self, run: RunRow) -> Loaded:
        input = await self.payloads.load(run.input_blob, run.input)
        output = await self.payloads.load(run.output_blob, run.output)
        return Loaded(run, msgspec.json.decode(input), self._output(run, output))

    def _output(self, run: RunRow, output: msgspec.Raw) -> Any:
        """What a run returned, as its program says where that is known, and as plain JSON where it is not."""
        program = self._code_of(run.program, run.version) if run.status is RunStatus.COMPLETED else None
        if program is not None:
            try:
                return self.codec.decode(output, program.returns, f"the result of run {run.id!r}")
            except NotDecodable:
                pass  # the type has changed since; the value is shown all the same
        return msgspec.json.decode(output)

    def _code_of(self, program: str, version: str) -> Program | None:
        """The program of a run, where this process has it."""
        return None


class _KeptBlobs:
    """Blobs that callers put by hand: what refers to them is in their values, or elsewhere, so they stay."""

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
