"""The one write path."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Protocol

import msgspec

from perdure.kernel.events import Batch
from perdure.kernel.policies.queues import Queue
from perdure.kernel.projection import RunRow


class Append(msgspec.Struct, frozen=True, gc=False):
    """Batches for one journal, and the row of its run if the batches change it.

    The first batch gets number `expected_next`, and batches follow each other without a gap. `expected_next=0` creates
    the journal. `fsync`: the commit must survive power loss. `children` are the rows of child runs in this journal.
    `starts` are new journals, created in the same commit; one whose run_id or id exists is skipped, so that a repeated
    append is deduplicated. `admit` are the limits of the run's queue, given with the append that admits it: the store
    refuses the append with Full if it would exceed them. `outside`: the append comes from a client, not from the
    run's owner, and a store with notifications notifies the owner.
    """

    run_id: str
    expected_next: int
    batches: Sequence[Batch]
    row: RunRow | None = None
    fsync: bool = True
    children: Sequence[RunRow] = ()
    starts: Sequence[Append] = ()
    admit: Queue | None = None
    outside: bool = False

    @property
    def next_seq(self) -> int:
        """The number after the last event."""
        last = self.batches[-1]
        return last.seq + len(last.events)


class Appended(msgspec.Struct, frozen=True, gc=False):
    """All events are in the journal, as durable as requested."""


class Conflict(msgspec.Struct, frozen=True, gc=False):
    """Nothing was written: `next_seq` is not what the append expected; None: a run with that id exists."""

    next_seq: int | None


class Full(msgspec.Struct, frozen=True, gc=False):
    """Nothing was written: the queue admits no further run now. `until`: when its rate limit does, if that is why."""

    until: float | None = None


class Head(msgspec.Struct, frozen=True, gc=False):
    """The end of a journal."""

    next_seq: int
    at: float
    size: int


Outcome = Appended | Conflict | Full


class PendingOutcomes:
    """The outcomes of a pending append: await them, or use a callback, which saves a turn of the event loop."""

    __slots__ = ("_callback", "_result")

    def __init__(self) -> None:
        self._result: Sequence[Outcome] | Exception | None = None
        self._callback: Callable[[Sequence[Outcome] | Exception], None] | None = None

    def resolve(self, result: Sequence[Outcome] | Exception) -> None:
        """Set the outcomes or the error, and run the callback."""
        self._result = result
        if self._callback is not None:
            self._callback(result)

    def on_result(self, call: Callable[[Sequence[Outcome] | Exception], None]) -> None:
        """Call with the result, at once if there is one. There is one callback."""
        self._callback = call
        if self._result is not None:
            call(self._result)

    def __await__(self) -> Generator[Any, None, Sequence[Outcome]]:
        future: asyncio.Future[Sequence[Outcome]] = asyncio.get_running_loop().create_future()

        def pass_on(result: Sequence[Outcome] | Exception) -> None:
            if future.done():
                return
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.on_result(pass_on)
        return (yield from future)


class Journal(Protocol):
    """Append-only events per root run."""

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome] | Awaitable[Sequence[Outcome]]:
        """Write each append wholly or not at all, in one commit; one outcome each, in order.

        Returns the outcomes themselves where the backend can, and an awaitable otherwise: an embedded store should not
        cost a turn of the event loop. Raises StoreUnavailable when nothing was written and a retry may succeed.
        """

    async def rewrite(self, run_id: str, expected_next: int, batches: Sequence[Batch]) -> Outcome:
        """Replace a whole journal whose next number is `expected_next` by `batches`, atomically.

        For journals of runs that have ended. Rows do not change.
        """

    async def read(self, run_id: str, start: int = 0, limit: int | None = None) -> list[Batch]:
        """At most `limit` events, from number `start` on; empty when there are none."""

    async def read_many(self, run_ids: Sequence[str]) -> dict[str, list[Batch] | Exception]:
        """Whole journals, by run_id. A damaged journal is returned as its error, beside the others."""

    async def heads(self, run_ids: Sequence[str]) -> dict[str, int]:
        """The next number of each of these journals that exists."""

    async def head(self, run_id: str) -> Head | None:
        """The end of the journal, or None when it does not exist."""


async def append_all(journal: Journal, appends: Sequence[Append]) -> Sequence[Outcome]:
    """As `Journal.append`, for a caller that awaits the outcomes in any case."""
    outcomes = journal.append(appends)
    return await outcomes if isinstance(outcomes, Awaitable) else outcomes


async def append_one(journal: Journal, append: Append) -> bool:
    """Whether the append was written."""
    return isinstance((await append_all(journal, [append]))[0], Appended)
