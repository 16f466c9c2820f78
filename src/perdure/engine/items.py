"""Read and write the blobs of items. Never holds more than one of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import aclosing, closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

import msgspec
from msgspec import Raw

from perdure.engine.streams import TURN_SECONDS
from perdure.errors import Corrupt, PayloadTooLarge, StepCancelled, StoreUnavailable, UsageError
from perdure.kernel.chunks import ChunkInput
from perdure.kernel.commands import RunStep
from perdure.kernel.values.arguments import names_of
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.items import (
    BYTES_IN_BLOB,
    ITEMS_IN_BLOB,
    Items,
    Part,
    PartReader,
    Stored,
    Unstored,
    elements_of,
    has_references,
    is_items,
    parts_of,
    reference,
)
from perdure.ports.blobs import Blobs
from perdure.ports.store import Store

if TYPE_CHECKING:
    from perdure.engine.step_context import StepContext

T = TypeVar("T")
# The size of a blob with results of a chunk; more results take several blobs.
PAYLOAD = 2 * 1024 * 1024
# How long closing a connection may take.
LAST_SECONDS = 5.0
# How often a step tries to read or write items while the store is unavailable, and the wait in between.
TRIES, FIRST_RETRY, LAST_RETRY = 12, 0.05, 2.0
# No limit: a chunk has its items in memory.
FAR = 1 << 62


class _Beyond(Exception):
    """Items are too long for one value."""

    def __init__(self, size: int) -> None:
        self.size = size
        super().__init__(size)


class _Waits(Exception):
    """A coroutine waits for something."""


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that completes without waiting. Raises _Waits for any other."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    finally:
        work.close()
    raise _Waits


class ItemBlobs:
    """The blobs of items in one store: for code on the event loop, in threads, and in other processes."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._loop: asyncio.AbstractEventLoop | None = None
        # Opens the store once more, for code that cannot wait for the event loop; None if that is not possible.
        self.reopen: Callable[[], Store] | None = None
        self._aside: _Aside | None = None

    def open(self) -> None:
        """The store is open, on this event loop."""
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """The store is about to be closed."""
        aside, self._aside = self._aside, None
        if aside is not None:
            aside.close()

    async def load(self, blob: str) -> bytes:
        """The bytes of a blob. Raises Corrupt if it is missing."""
        return _found(blob, await self._blobs.get(blob))

    async def patiently(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of a read or a write in a step. Tries again if the store is unavailable for a moment."""
        wait = FIRST_RETRY
        for _ in range(TRIES - 1):
            with suppress(StoreUnavailable):
                return await work()
            await asyncio.sleep(wait)
            wait = min(wait * 2, LAST_RETRY)
        return await work()

    async def each(self, parts: Sequence[Part], elements: Callable[[Part, bytes], list[Any]]) -> AsyncIterator[Any]:
        """The elements of parts, read one part at a time; the event loop is free in between."""
        for part in parts:
            for item in elements(part, await self.patiently(partial(self.load, part.blob))):
                yield item

    def read(self, blob: str) -> bytes:
        """As `load`, for code that cannot await; blocks the thread."""
        if not self._on_loop():
            return self.wait(self.patiently(partial(self.load, blob)))
        # A step that blocks the event loop: read the store in another thread, unless it replies at once.
        with suppress(_Waits):
            return _at_once(self.load(blob))
        if self._aside is None:
            if self.reopen is None:
                raise UsageError(
                    "these items are in a store that cannot be read without the event loop; write `async for`"
                )
            self._aside = _Aside(self.reopen)
        return self._aside.read(blob)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """In a thread: await something on the event loop."""
        if self._on_loop():
            return _at_once(work)  # a simulation, which has no threads
        if self._loop is None or self._loop.is_closed():
            work.close()
            raise UsageError("these items are in a store that is not open")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _on_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def elsewhere(self) -> PartReader | None:
        """A reader for another process; None if only this process can read them."""
        return None if self.reopen is None else _Aside(self.reopen)

    async def store(self, items: Iterable[Any], codec: Codec, what: str, of: Any = Any) -> Items[Any]:
        """Write items as they come."""
        writer = ItemWriter(self, codec, what, of)
        for item in items:
            if writer.add(item):
                await writer.flush()
        return await writer.finish()

    async def given(self, command: RunStep, types: Any, limit: int) -> RunStep:
        """A call with its items loaded, for parameters that take a list. Raises PayloadTooLarge above the limit."""
        if not has_references(command.inputs):
            return command
        inputs = msgspec.json.decode(command.inputs, type=list[Raw])
        annotations = get_args(types) if get_origin(types) is tuple else (Any,) * len(inputs)
        names = names_of(command)
        for number, annotation in enumerate(annotations):
            if not is_items(annotation):
                load = partial(self._whole, bytes(inputs[number]), limit, leave=False)
                try:
                    inputs[number] = Raw(await self.patiently(load))
                except _Beyond as beyond:
                    advice = f"annotate `{names[number]}: Items[...]`, which is read item by item"
                    what = f"the list {names[number]} of {command.op}"
                    raise PayloadTooLarge(what, beyond.size, limit, advice) from None
        return msgspec.structs.replace(command, inputs=msgspec.json.encode(inputs))

    async def whole(self, data: Raw, limit: int) -> Raw:
        """An encoded value with its items in place, except for lists beyond the limit."""
        return Raw(await self._whole(bytes(data), limit, leave=True)) if has_references(bytes(data)) else data

    async def of_chunk(self, input: Raw) -> Raw:
        """The input of a chunk with its items in place."""
        if not has_references(bytes(input)):
            return input
        chunk = msgspec.json.decode(input, type=ChunkInput)
        over = {name: Raw(await self._whole(bytes(of), FAR, leave=False)) for name, of in chunk.over.items()}
        return Raw(msgspec.json.encode(msgspec.structs.replace(chunk, over=over)))

    async def _whole(self, data: bytes, limit: int, *, leave: bool) -> bytes:
        if not has_references(data):
            return data
        parts = parts_of(data)
        if parts is not None:
            found, size = [], 0
            for part in parts:
                found.append(elements_of(part, await self.load(part.blob)))
                size += len(found[-1]) + 1
                if size > limit and leave:
                    return data
                if size > limit:
                    raise _Beyond(size)
            return b"[%b]" % b",".join(found)
        if data.startswith(b"["):
            elements = msgspec.json.decode(data, type=list[Raw])
            return msgspec.json.encode([Raw(await self._whole(bytes(one), limit, leave=leave)) for one in elements])
        fields = msgspec.json.decode(data, type=dict[str, Raw])
        return msgspec.json.encode(
            {name: Raw(await self._whole(bytes(one), limit, leave=leave)) for name, one in fields.items()}
        )

    async def parts(self, items: Iterable[Raw]) -> tuple[Part, ...]:
        """Write encoded items into one blob, or several if they are long."""
        parts: list[Part] = []
        found: list[bytes] = []
        size = 0
        for item in [*items, None]:
            if found and (item is None or size + len(item) > PAYLOAD):
                parts.append(Part(await self.put(b"[%b]" % b",".join(found)), len(found)))
                found, size = [], 0
            if item is not None:
                found.append(bytes(item))
                size += len(item) + 1
        return tuple(parts)

    async def shortened(self, data: bytes, limit: int) -> bytes:
        """A list or an object of values, with its longest lists replaced by references until it is short enough."""
        if data.startswith(b"["):
            return reference(await self.parts(msgspec.json.decode(data, type=list[Raw])))
        fields = msgspec.json.decode(data, type=dict[str, Raw])
        for name in sorted(fields, key=lambda name: -len(fields[name])):
            if len(data) <= limit or not bytes(fields[name]).startswith(b"["):
                continue
            fields[name] = Raw(await self.shortened(bytes(fields[name]), limit))
            data = msgspec.json.encode(fields)
        return data

    async def put(self, data: bytes) -> str:
        """Write a blob."""
        return await self._blobs.put(data)


class ItemWriter:
    """Writes items into blobs, one after the other."""

    def __init__(
        self,
        blobs: ItemBlobs,
        codec: Codec,
        what: str,
        of: Any = Any,
        mask: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self._blobs, self._codec, self._what, self._of, self._mask = blobs, codec, what, of, mask
        self._decode: Any = codec.decoder(list[of], what)
        self._parts: list[Part] = []
        self._items: list[bytes] = []
        self._size = 0

    def add(self, item: Any) -> bool:
        """Add an item; True when the blob is full and has to be written."""
        data = self._codec.encode(item, f"an item of {self._what}")
        if self._mask is not None:
            data = self._mask(data)
        if len(data) > self._codec.limit:
            raise PayloadTooLarge(f"an item of {self._what}", len(data), self._codec.limit)
        self._items.append(data)
        self._size += len(data)
        return len(self._items) >= ITEMS_IN_BLOB or self._size >= BYTES_IN_BLOB

    async def flush(self) -> None:
        """Write the added items."""
        if not self._items:
            return
        count, data = len(self._items), b"[%b]" % b",".join(self._items)
        self._items, self._size = [], 0
        if self._of is not Any:
            self._decode(data)  # an item that does not fit the annotation fails the step
        self._parts.append(Part(await self._blobs.patiently(partial(self._blobs.put, data)), count))

    async def finish(self) -> Items[Any]:
        """Write the remaining items. Returns all of them."""
        await self.flush()
        return Stored(self._parts, self._of, self._decode, self._blobs) if self._parts else Items([])


# --- steps whose result is items ------------------------------------------------------------------------------------


async def collect(
    fn: Callable[..., Any],
    args: list[Any],
    kwargs: dict[str, Any],
    context: StepContext,
    writer: ItemWriter,
) -> Items[Any]:
    """Run an async generator to its end, and write the items that it yields."""
    loop = asyncio.get_running_loop()
    turn = loop.time()
    made: AsyncGenerator[Any, Any] = fn(*args, **kwargs)
    async with aclosing(made) as items:
        async for item in items:
            if writer.add(item):
                await writer.flush()
            elif loop.time() - turn > TURN_SECONDS:
                await asyncio.sleep(0)
            else:
                continue
            turn = context.last_heartbeat = loop.time()
    return await writer.finish()


def collect_in_thread(
    fn: Callable[..., Generator[Any, Any, Any]],
    args: list[Any],
    kwargs: dict[str, Any],
    context: StepContext,
    writer: ItemWriter,
    blobs: ItemBlobs,
) -> Items[Any]:
    """As `collect`, for a plain generator in a thread."""
    with closing(fn(*args, **kwargs)) as items:
        for item in items:
            if writer.add(item):
                blobs.wait(writer.flush())
                if context.cancelled:
                    raise StepCancelled(context.id, "this attempt no longer counts")
    return blobs.wait(writer.finish())


def element(annotation: Any) -> Any:
    """The element type of an annotation such as `Items[int]`."""
    return (get_args(annotation) or (Any,))[0]


async def stored(value: Any, blobs: ItemBlobs, codec: Codec, what: str) -> Any:
    """Store items that were given as an iterable; any other value stays as it is."""
    if not isinstance(value, Unstored):
        return value
    if value.stored is None:
        made = await blobs.store(value.take(), codec, what)
        assert isinstance(made, Stored)
        value.stored = made
    return value.stored


# --- reading without the event loop ---------------------------------------------------------------------------------


class _Aside:
    """Reads items over its own connection, in a thread with its own event loop: next to a blocked loop, or in another
    process.

    Sent to another process, it connects there.
    """

    def __init__(self, reopen: Callable[[], Store]) -> None:
        self._reopen = reopen
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._store: Store | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Aside, (self._reopen,)

    def elsewhere(self) -> PartReader:
        """A reader for yet another process."""
        return _Aside(self._reopen)

    async def each(self, parts: Sequence[Part], elements: Callable[[Part, bytes], list[Any]]) -> AsyncIterator[Any]:
        """The elements of parts."""
        for part in parts:
            for item in elements(part, self.read(part.blob)):
                yield item

    def read(self, blob: str) -> bytes:
        """The bytes of a blob. Raises Corrupt if it is missing."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name="perdure-items", daemon=True)
                self._thread.start()
            loop = self._loop
        return asyncio.run_coroutine_threadsafe(self._read(blob), loop).result()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
        finally:
            loop.close()

    async def _read(self, blob: str) -> bytes:
        if self._store is None:
            store = self._reopen()
            await store.open(migrate=False)
            self._store = store
        return _found(blob, await self._store.blobs.get(blob))

    def close(self) -> None:
        """Close the connection, and end the thread."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            asyncio.run_coroutine_threadsafe(self._close(), loop)
            self._thread.join(LAST_SECONDS)

    async def _close(self) -> None:
        try:
            if self._store is not None:
                await self._store.close()
        finally:
            asyncio.get_running_loop().stop()


def _found(blob: str, data: bytes | None) -> bytes:
    if data is None:
        raise Corrupt(f"the blob {blob}", "it is missing")
    return data
