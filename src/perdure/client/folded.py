"""Folded journals for views of runs: folded in slices, so that the event loop stays free, and kept for later views."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TypeVar

from perdure.kernel.events import Batch
from perdure.kernel.state import RunState
from perdure.kernel.step_records import StepRecords
from perdure.ports.journal import Head, Journal

T = TypeVar("T")
# How many events are decoded, and how many batches are folded or records made into views, before other tasks have a
# turn. Each takes some milliseconds.
READ, SLICE = 500, 200
# How many runs are kept, and how many bytes of journals in all.
KEPT, KEPT_BYTES = 64, 32 * 1024 * 1024


class Folded:
    """A run as far as its journal has been read. The next view continues it: keep nothing of it over an await.

    Only a `whole` one has its steps and its events, which of a long run are many objects.
    """

    __slots__ = ("batches", "next_seq", "size", "state", "steps", "whole")

    def __init__(self, run_id: str, *, whole: bool) -> None:
        self.whole = whole
        self.state = RunState(run_id)
        self.steps = StepRecords()
        self.batches: list[Batch] = []
        self.next_seq = 0
        self.size = 0

    def feed(self, batches: Sequence[Batch]) -> None:
        """Fold what comes next."""
        self.state.fold_batches(batches)
        if self.whole:
            self.steps.feed(batches)
            self.batches += batches
        self.next_seq = batches[-1].seq + len(batches[-1].events)


class OneAtATime:
    """A lock for each key, so that a journal is folded by one caller at a time, and the others get what it has made."""

    def __init__(self, kept: int = 4 * KEPT) -> None:
        self._kept = kept
        self._locks: dict[str, asyncio.Lock] = {}

    def of(self, key: str) -> asyncio.Lock:
        """The lock of a key."""
        if len(self._locks) > self._kept:
            self._locks = {one: lock for one, lock in self._locks.items() if lock.locked()}
        return self._locks.setdefault(key, asyncio.Lock())


class FoldedJournals:
    """The runs that were viewed last, by run_id of their root: only tails are read again."""

    def __init__(self, journal: Journal, *, whole: bool) -> None:
        self._journal, self._whole = journal, whole
        self._kept: OrderedDict[str, Folded] = OrderedDict()
        self._reading = OneAtATime()

    async def read(self, run_id: str, head: Head) -> Folded:
        """A run up to this head, or further."""
        async with self._reading.of(run_id):
            return await self._read(run_id, head)

    async def _read(self, run_id: str, head: Head) -> Folded:
        # Taken out while it is read: what a failed read leaves is not kept.
        folded = self._kept.pop(run_id, None)
        if folded is None or head.next_seq < folded.next_seq or _is_other(folded, head):
            folded = Folded(run_id, whole=self._whole)
        while folded.next_seq < head.next_seq:
            batches = await self._journal.read(run_id, folded.next_seq, READ)
            if not batches:
                break
            for some in sliced(batches):
                folded.feed(some)
                await asyncio.sleep(0)
        if folded.next_seq < head.next_seq:
            await _check_end(self._journal, run_id, folded.next_seq)
        folded.size = head.size
        self._keep(run_id, folded)
        return folded

    def _keep(self, run_id: str, folded: Folded) -> None:
        self._kept[run_id] = folded
        self._kept.move_to_end(run_id)
        while len(self._kept) > KEPT or sum(one.size for one in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)


def _is_other(folded: Folded, head: Head) -> bool:
    """Whether the journal was compacted since: its events have other numbers."""
    return head.next_seq == folded.next_seq and head.size != folded.size


async def in_slices(journal: Journal, run_id: str, start: int = 0, limit: int | None = None) -> list[Batch]:
    """As `Journal.read`, a slice at a time."""
    found: list[Batch] = []
    left = limit
    while left is None or left > 0:
        batches = await journal.read(run_id, start, READ if left is None else min(left, READ))
        if not batches:
            await _check_end(journal, run_id, start)
            break
        found += batches
        start = batches[-1].seq + len(batches[-1].events)
        if left is not None:
            left -= sum(len(batch.events) for batch in batches)
        await asyncio.sleep(0)
    return found


async def _check_end(journal: Journal, run_id: str, end: int) -> None:
    """Raise Corrupt if the journal should not end there: stores compare a read with the head if it has no limit."""
    await journal.read(run_id, max(0, end - 1))


def sliced(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Items, so many at a time."""
    for start in range(0, len(items), SLICE):
        yield items[start : start + SLICE]
