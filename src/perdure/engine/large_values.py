"""Offload large values to blobs when they are recorded, and load them when a journal is read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

import msgspec
from msgspec import Raw

from perdure.engine.items import ItemBlobs
from perdure.errors import Corrupt, PayloadTooLarge, StoreUnavailable
from perdure.kernel.events import (
    NULL,
    AnyEvent,
    Batch,
    ChildStarted,
    InputReplaced,
    RunClaimed,
    RunResumed,
    RunStarted,
)
from perdure.kernel.values.limits import Limits, place
from perdure.ports.appends import blob_of
from perdure.ports.blobs import Blobs

# The backoff while the store is unavailable.
FIRST_RETRY, LAST_RETRY = 0.05, 2.0


log = logging.getLogger("perdure")


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
        wait = FIRST_RETRY
        while True:
            try:
                return await self.offload(data, what)
            except StoreUnavailable as error:
                if given_up():
                    raise
                log.warning("%s; retrying to store %s", error, what)
                await asyncio.sleep(wait)
                wait = min(wait * 2, LAST_RETRY)

    async def load(self, blob: str, value: Raw) -> Raw:
        """The value itself, from the event or the blob store."""
        if not blob:
            return value
        data = await self._blobs.get(blob)
        if data is None:
            raise Corrupt(f"the blob {blob}", "it is missing")
        return Raw(data)

    async def inflate(self, batches: Sequence[Batch]) -> Sequence[Batch]:
        """The batches with offloaded values in place, as the program saw them first."""
        if not any(blob_of(event) for batch in batches for event in batch.events):
            return batches
        return [Batch(b.seq, b.at, [await self._inflate(event) for event in b.events]) for b in batches]

    async def _inflate(self, event: AnyEvent) -> AnyEvent:
        blob = blob_of(event)
        if not blob:
            return event
        value = await self.load(blob, NULL)
        field = "input" if isinstance(event, ChildStarted) else "value"
        return msgspec.structs.replace(event, **{field: value})

    async def with_input(self, batches: Sequence[Batch]) -> RunStarted:
        """The RunStarted of a run with its input in place and the version it is pinned to."""
        started = batches[0].events[0] if batches else None
        if not isinstance(started, RunStarted):
            raise Corrupt("a journal", "it does not begin with RunStarted")
        for event in takewhile(lambda event: not isinstance(event, RunClaimed), _events(batches)):
            if isinstance(event, InputReplaced):
                started = event.of(started)
        for event in _events(batches):
            if isinstance(event, RunClaimed | RunResumed) and event.version:
                started = msgspec.structs.replace(started, version=event.version)
        if started.input_blob:
            started = msgspec.structs.replace(started, input=await self.load(started.input_blob, started.input))
        if started.remote is not None and started.remote.map is not None:
            # Its items may be in blobs, which the program does not read.
            started = msgspec.structs.replace(started, input=await self._items.of_chunk(started.input))
        return started


def _events(batches: Sequence[Batch]) -> Iterator[AnyEvent]:
    for batch in batches:
        yield from batch.events
