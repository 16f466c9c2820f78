"""Offload large values to blobs when they are recorded, and load them when a journal is read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Raw

from perdure.engine.items import ItemBlobs
from perdure.errors import Corrupt, PayloadTooLarge, StoreUnavailable
from perdure.kernel.events import (
    NULL,
    AnyEvent,
    Batch,
    RunForked,
    RunStarted,
    blob_of,
    events_in,
    offloaded_in,
    started_in,
    with_value,
)
from perdure.kernel.values.limits import Limits, place
from perdure.kernel.values.raised import contained
from perdure.logs import log
from perdure.ports.blobs import Blobs

if TYPE_CHECKING:
    from perdure.kernel.replay import Replay

T = TypeVar("T")
# The backoff while the store is unavailable.
FIRST_RETRY, LAST_RETRY = 0.05, 2.0


class Payloads:
    """Moves values between events and blobs."""

    def __init__(self, blobs: Blobs, limits: Limits) -> None:
        self._blobs = blobs
        self._items = ItemBlobs(blobs)
        self.limits = limits

    def fits_inline(self, size: int, what: str) -> bool:
        """Whether a value stays in the journal. Raises PayloadTooLarge if it is above the limit."""
        where = place(size, self.limits)
        if where == "refuse":
            raise PayloadTooLarge(what, size, self.limits.payload)
        return where == "inline"

    async def offload(self, data: bytes, what: str) -> str:
        """Put a value into the blob store and return its blob's id."""
        log.warning(
            "%s is %s bytes as JSON; it was offloaded to a blob. Pass references to large data between steps",
            what,
            f"{len(data):,}",
        )
        return await self._blobs.put(data)

    async def offload_patiently(self, data: bytes, what: str, given_up: Callable[[], bool]) -> str:
        """As `offload`, but retry while the store is unavailable: a result must not be lost to a full disk."""
        return await _patiently(lambda: self.offload(data, what), f"store {what}", given_up)

    async def load_patiently(self, blobs: Collection[str], given_up: Callable[[], bool]) -> dict[str, Raw]:
        """As `load_all`, but retry while the store is unavailable."""
        return await _patiently(lambda: self.load_all(blobs), f"load {', '.join(blobs)}", given_up)

    async def with_items(self, data: bytes, what: str, given_up: Callable[[], bool]) -> bytes:
        """A value above the limit, with its longest lists stored as items until it is below."""
        return await _patiently(lambda: self._items.shortened(data, self.limits.payload), f"store {what}", given_up)

    async def load(self, blob: str, value: Raw) -> Raw:
        """The value itself, from the event or the blob store."""
        if not blob:
            return value
        data = await self._blobs.get(blob)
        if data is None:
            raise Corrupt(f"the blob {blob}", "it is missing")
        return Raw(data)

    async def load_all(self, blobs: Iterable[str]) -> dict[str, Raw]:
        """The values in blobs, by id."""
        return {blob: await self.load(blob, NULL) for blob in blobs}

    async def inflate(self, batches: Sequence[Batch]) -> Sequence[Batch]:
        """The batches with offloaded values in place, as the program saw them first."""
        blobs = offloaded_in(batches)
        return inflated(batches, await self.load_all(blobs)) if blobs else batches

    async def inflate_needed(
        self,
        batches: Sequence[Batch],
        opened: Callable[[], Replay],
        call: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> Sequence[Batch]:
        """The batches with those offloaded values in place that the program needs to continue.

        All of them, unless it can hand them on by reference. `opened` opens a replay of the journal; `call` calls a
        function from a callback of the loop: a body must not be driven inside a task.
        """
        if not offloaded_in(batches):
            return batches
        needed: dict[str, Raw] = {}
        edited = any(isinstance(event, RunForked) and event.inputs for event in events_in(batches))
        survey = None if edited else Survey(opened, batches)
        while survey is not None and not survey.over:
            await call(survey.advance)
            needed |= await self.load_all(blob for blob in survey.lacking if blob not in needed)
            survey.values = needed
        return await self.inflate(batches) if survey is None or survey.misfit else inflated(batches, needed)

    async def with_input(self, batches: Sequence[Batch]) -> RunStarted:
        """The RunStarted of a run with its input in place and the version it is pinned to."""
        started = started_in(batches)
        if started is None:
            raise Corrupt("a journal", "it does not begin with RunStarted")
        if started.input_blob:
            started = msgspec.structs.replace(started, input=await self.load(started.input_blob, started.input))
        if started.remote is not None and started.remote.map is not None:
            # Its items may be in blobs, which the program does not read.
            started = msgspec.structs.replace(started, input=await self._items.of_chunk(started.input))
        return started


async def _patiently(work: Callable[[], Awaitable[T]], what: str, given_up: Callable[[], bool]) -> T:
    wait = FIRST_RETRY
    while True:
        try:
            return await work()
        except StoreUnavailable as error:
            if given_up():
                raise
            log.warning("%s; retrying to %s", error, what)
            await asyncio.sleep(wait)
            wait = min(wait * 2, LAST_RETRY)


class Survey:
    """A replay that finds out which values the program needs of a journal, some at a time."""

    def __init__(self, opened: Callable[[], Replay], batches: Sequence[Batch]) -> None:
        self._opened, self._batches = opened, batches
        self._replay: Replay | None = None
        self._steps: Generator[Collection[str], Mapping[str, Raw], None] | None = None
        # What is needed now, and what the caller has loaded of it.
        self.lacking: Collection[str] = ()
        self.values: Mapping[str, Raw] = {}
        # Whether all is known, or will never be: the program does not fit, or takes no references.
        self.over = self.misfit = False

    def advance(self) -> None:
        """Go on with the values that were needed, until others are."""
        from perdure.kernel.program import ByReference  # here: a process that only reads needs no programs

        lacking, self.lacking = self.lacking, ()
        try:
            if self._steps is None:
                self._replay = self._opened()
                if not isinstance(self._replay.execution, ByReference):
                    self._end(misfit=True)
                    return
                self._steps = self._replay.fold_by_reference(self._batches)
                self.lacking = next(self._steps)
            else:
                self.lacking = self._steps.send({blob: self.values[blob] for blob in lacking})
        except StopIteration:
            self._end()
        except BaseException as error:
            contained(error)  # the replay that follows explains it
            self._end(misfit=True)

    def _end(self, *, misfit: bool = False) -> None:
        self.over, self.misfit = True, misfit
        if self._replay is not None:
            self._replay.close()


def inflated(batches: Sequence[Batch], values: Mapping[str, Raw]) -> list[Batch]:
    """The batches with these values of blobs in place."""

    def whole(event: AnyEvent) -> AnyEvent:
        value = values.get(blob_of(event))
        return event if value is None else with_value(event, value)

    return [Batch(batch.seq, batch.at, [whole(event) for event in batch.events]) for batch in batches]
