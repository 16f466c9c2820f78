"""The one write path."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Protocol

import msgspec

from perdure.kernel.events import Batch
from perdure.kernel.policies.queues import Queue
from perdure.kernel.projection import RunRow


class Append(msgspec.Struct, frozen=True):
    """Batches for one journal, and the row of its run if these change it.

    The first batch gets number `expected_next`, and batches follow each other without a gap. `expected_next=0` creates
    the journal. `fsync` asks that the commit survive power loss. `children` are the rows of runs that live in this
    journal. `starts` are new journals, created with this append or not at all; one whose run_id or id exists already
    has been started before, and is left as it is. `admit` are the limits of the run's queue, for the append by which it
    begins: it is refused when, with what the store holds at that moment, there would be more than they allow.
    `outside`: it does not come from where the run is executed, which a store that wakes others should wake.
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


class Appended(msgspec.Struct, frozen=True):
    """All events are in the journal, as durable as was asked for."""


class Conflict(msgspec.Struct, frozen=True):
    """Nothing was written: the journal's next number is another one. None: a run of that id exists already."""

    next_seq: int | None


class Full(msgspec.Struct, frozen=True):
    """Nothing was written: the queue allows no further run now. `until`: when its rate does, if that is the reason."""

    until: float | None = None


class Head(msgspec.Struct, frozen=True):
    """Where a journal ends."""

    next_seq: int
    at: float
    size: int


Outcome = Appended | Conflict | Full


class Answer:
    """Outcomes that are on their way: await them, or be called at the very moment, which saves a turn of the loop."""

    __slots__ = ("_said", "_then")

    def __init__(self) -> None:
        self._said: Sequence[Outcome] | Exception | None = None
        self._then: Callable[[Sequence[Outcome] | Exception], None] | None = None

    def say(self, said: Sequence[Outcome] | Exception) -> None:
        """The outcomes are here, or what went wrong."""
        self._said = said
        if self._then is not None:
            self._then(said)

    def then(self, call: Callable[[Sequence[Outcome] | Exception], None]) -> None:
        """Call with what is said, or was said already. There is one caller."""
        self._then = call
        if self._said is not None:
            call(self._said)

    def __await__(self) -> Generator[Any, None, Sequence[Outcome]]:
        future: asyncio.Future[Sequence[Outcome]] = asyncio.get_running_loop().create_future()

        def pass_on(said: Sequence[Outcome] | Exception) -> None:
            if future.done():
                return
            if isinstance(said, Exception):
                future.set_exception(said)
            else:
                future.set_result(said)

        self.then(pass_on)
        return (yield from future)


class Journal(Protocol):
    """Append-only events per root run."""

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome] | Awaitable[Sequence[Outcome]]:
        """Write each append wholly or not at all, in one commit; one outcome each, in order.

        Answers at once where the backend can, so that nobody pays for a hop that is not needed. Raises
        StoreUnavailable when nothing was written and a later try may succeed.
        """
        ...

    async def rewrite(self, run_id: str, expected_next: int, batches: Sequence[Batch]) -> Outcome:
        """Put `batches` in the place of a whole journal whose next number is `expected_next`; wholly or not at all.

        For journals of runs that have ended. Rows stay as they are.
        """
        ...

    async def read(self, run_id: str, start: int = 0, limit: int | None = None) -> list[Batch]:
        """The events from number `start` on, at most `limit` of them; empty when there are none."""
        ...

    async def read_many(self, run_ids: Sequence[str]) -> dict[str, list[Batch] | Exception]:
        """Whole journals. One that is damaged comes as its error, and the others come all the same."""
        ...

    async def heads(self, run_ids: Sequence[str]) -> dict[str, int]:
        """The next number of each of these journals that there is."""
        ...

    async def head(self, run_id: str) -> Head | None:
        """Where the journal ends, or None when there is none."""
        ...


async def append_all(journal: Journal, appends: Sequence[Append]) -> Sequence[Outcome]:
    """As `Journal.append`, for a caller that waits for the answer in any case."""
    outcomes = journal.append(appends)
    return await outcomes if isinstance(outcomes, Awaitable) else outcomes


async def append_one(journal: Journal, append: Append) -> bool:
    """Whether a journal took an append."""
    return isinstance((await append_all(journal, [append]))[0], Appended)
