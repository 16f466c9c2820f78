"""Callers that wait for runs to end and for journals to grow.

They are notified at once of what this process writes, and of what other processes write soon after the commit: the
change feed says when to query the store, and one query serves all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from perdure.engine.change_feed import Subscription, change_feed
from perdure.errors import Corrupt, NoSuchRun, StoreUnavailable, UsageError
from perdure.kernel.events import RunStatus
from perdure.kernel.projection import RunRow
from perdure.ports.store import Store


@dataclass(frozen=True, slots=True)
class SubscriptionsConfig:
    """Durations are in seconds."""

    interval: float = 0.0625
    """The least time between two queries."""
    longest: float = 5.0
    """The time between two queries while the store does not change."""
    existence_interval: float = 60.0
    """How often it is checked whether the runs are still in the store: they may have ended, and been pruned since."""
    batch: int = 500
    """How many runs one query asks for: thousands of waiters must not keep the loop from the runs they wait for."""
    follow_interval: float = 0.2
    """The time between two queries for journals that other processes write, while they grow: not every store changes
    its version with every event."""
    follow_back_off: float = 0.1
    """While they do not grow, the time between two queries is this share of the time since then, up to `longest`."""


class RunWaiters:
    """The callers that wait for runs to end."""

    def __init__(
        self,
        store: Store,
        is_local: Callable[[str], bool] = lambda run_id: False,
        unreadable: Mapping[str, Corrupt] | None = None,
        is_resuming: Callable[[str], bool] = lambda run_id: False,
        config: SubscriptionsConfig = SubscriptionsConfig(),  # noqa: B008 - frozen
    ) -> None:
        """`is_local`: the run is in memory here, so its end is passed to `resolve`. `is_resuming`: a parked run is
        about to continue here."""
        self._store, self._is_local, self._is_resuming = store, is_local, is_resuming
        self._unreadable = unreadable if unreadable is not None else {}
        self._config = config
        self._waiters: dict[str, set[asyncio.Future[RunRow]]] = {}
        # When it was last checked whether the runs exist, in the time of the loop.
        self._checked = 0.0
        # Whether callers of parked runs were not answered, because the runs may be about to continue here.
        self._withheld = False
        self._changes = Subscription(
            change_feed(store),
            "waiting for runs to end",
            self._refresh,
            interval=self._config.interval,
            longest=lambda: self._config.follow_interval if self._withheld else self._config.longest,
            wanted=lambda: bool(self._waiters),
        )

    async def wait_for_end(self, run_id: str) -> RunRow:
        """The row of a run that has ended, or is parked; waits for as long as that takes."""
        if run_id in self._unreadable:
            raise self._unreadable[run_id]
        if not self._is_local(run_id):
            for row in await self._store.runs.finished([run_id]):
                if isinstance(row, Corrupt):
                    raise row
                if not self._is_resumed(row):
                    return row
                self._withheld = True
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[RunRow] = loop.create_future()
        self._waiters.setdefault(run_id, set()).add(waiter)
        if self._changes.start():
            self._checked = loop.time()
        try:
            return await waiter
        finally:
            waiters = self._waiters.get(run_id)
            if waiters is not None:
                waiters.discard(waiter)
                if not waiters:
                    del self._waiters[run_id]

    def refresh(self) -> None:
        """Parked runs were tried again: ask which of those that are waited for stay parked."""
        if self._waiters:
            self._changes.notify()

    def resolve(self, row: RunRow | Corrupt) -> None:
        """A run has ended, was parked, or cannot be read any more.

        One that was parked may have been resolved since, before its callers came: they get what the store says.
        """
        run_id = row.run_id or ""
        if isinstance(row, RunRow) and row.status is RunStatus.PARKED:
            if run_id in self._waiters:
                self._changes.notify()
        else:
            self._resolve(self._waiters.pop(run_id, ()), row)

    def _resolve(self, waiters: Iterable[asyncio.Future[RunRow]], outcome: RunRow | Exception) -> None:
        for waiter in waiters:
            if waiter.done():
                continue
            if isinstance(outcome, Exception):
                waiter.set_exception(outcome)
            else:
                waiter.set_result(outcome)

    def _is_resumed(self, row: RunRow | Corrupt) -> bool:
        """Whether the store's row of a run is about to be outdated."""
        parked = not isinstance(row, Corrupt) and row.status is RunStatus.PARKED
        return parked and self._is_resuming(row.run_id or "")

    async def _refresh(self) -> None:
        waiting, withheld = list(self._waiters), False
        for start in range(0, len(waiting), self._config.batch):
            if start:
                await asyncio.sleep(self._config.interval)
            some = self._elsewhere(waiting[start : start + self._config.batch])
            # A caller that comes during the query may know of something later than what is read.
            asked = {run_id: tuple(self._waiters[run_id]) for run_id in some}
            for row in await self._store.runs.finished(some) if some else ():
                if self._is_resumed(row):
                    withheld = True
                else:
                    self._resolve(asked.get(row.run_id or "", ()), row)
        self._withheld = withheld
        now = asyncio.get_running_loop().time()
        if now - self._checked > self._config.existence_interval:
            self._checked = now
            await self._check_existence()

    def _elsewhere(self, run_ids: list[str]) -> list[str]:
        return [run_id for run_id in run_ids if run_id in self._waiters and not self._is_local(run_id)]

    async def _check_existence(self) -> None:
        """Fail the waiters for runs that are not in the store any more."""
        waiting = self._elsewhere(list(self._waiters))
        for start in range(0, len(waiting), self._config.batch):
            # A child lives in the journal of its root, whose run_id its own begins with.
            some = {run_id: run_id.partition("/")[0] for run_id in waiting[start : start + self._config.batch]}
            there = await self._store.journal.heads(list(set(some.values())))
            for run_id, root in some.items():
                if root not in there:
                    self._resolve(self._waiters.pop(run_id, ()), NoSuchRun(run_id))

    async def close(self) -> None:
        """Fail the waiters that are left."""
        await self._changes.close()
        closed = UsageError(
            "the engine was closed before this run ended; it continues when an engine opens the store again"
        )
        for run_id in list(self._waiters):
            self._resolve(self._waiters.pop(run_id, ()), closed)


class Follower:
    """A caller that follows a journal."""

    __slots__ = ("_followers", "_waiter", "closed", "head", "run_id", "status_only")

    def __init__(self, followers: JournalFollowers, run_id: str, status_only: bool) -> None:
        self._followers = followers
        self.run_id = run_id
        # Whether it only has to be notified when the row of the run changes.
        self.status_only = status_only
        # The number of the next event, if that is known; None when the journal is gone.
        self.head: int | None = 0
        # Why it is notified of nothing any more.
        self.closed: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def beyond(self, seq: int) -> bool:
        """Wait until the journal has an event with this number; False when there is no journal any more."""
        while self.head is not None and self.head <= seq:
            if self.closed is not None:
                raise self.closed
            waiter = self._waiter = asyncio.get_running_loop().create_future()
            self._followers.subscribe()
            try:
                await waiter
            finally:
                # A wait that was cancelled ends later: by then the caller may wait again.
                if self._waiter is waiter:
                    self._waiter = None
        return self.head is not None

    @property
    def is_waiting(self) -> bool:
        """Whether the caller waits for the next event."""
        return self._waiter is not None

    def notify(self, head: int | None) -> None:
        """The journal has grown to `head`."""
        if head is not None and self.head is not None and head <= self.head:
            return
        self.head = head
        self._resolve(None)

    def close(self, error: Exception) -> None:
        """Fail the caller."""
        self.closed = error
        self._resolve(error)

    def _resolve(self, error: Exception | None) -> None:
        if self._waiter is not None and not self._waiter.done():
            if error is None:
                self._waiter.set_result(None)
            else:
                self._waiter.set_exception(error)


class JournalFollowers:
    """The callers that follow journals as they grow."""

    def __init__(self, store: Store, config: SubscriptionsConfig = SubscriptionsConfig()) -> None:  # noqa: B008 - frozen
        self._store, self._config = store, config
        # By the run_id of the journal.
        self.followed: dict[str, set[Follower]] = {}
        # Whether all that is written to a journal is passed to `committed`.
        self.is_local: Callable[[str], bool] = lambda run_id: False
        # When a journal grew last, or a caller began to follow one, in the time of the loop.
        self._grew = 0.0
        self._changes: Subscription | None = None

    @contextmanager
    def follow(self, run_id: str, *, status_only: bool = False) -> Iterator[Follower]:
        """Follow a journal while this is open; with `status_only`, only where the status of the run may change."""
        follower = Follower(self, run_id, status_only)
        self._grew = asyncio.get_running_loop().time()
        self.followed.setdefault(run_id, set()).add(follower)
        try:
            yield follower
        except StoreUnavailable:
            # A caller that reads while the engine closes finds its store closed.
            if follower.closed is None:
                raise
            raise follower.closed from None
        finally:
            followers = self.followed[run_id]
            followers.discard(follower)
            if not followers:
                del self.followed[run_id]

    def committed(self, run_id: str, next_seq: int, changed: bool) -> None:
        """This process has written to a journal; `changed`: also the run's row."""
        for follower in self.followed.get(run_id, ()):
            if changed or not follower.status_only:
                follower.notify(next_seq)

    def subscribe(self) -> None:
        """See that followers are notified of what other processes write."""
        if self._changes is None:
            self._changes = Subscription(
                change_feed(self._store),
                "following journals",
                self._refresh,
                interval=self._config.interval,
                longest=self._longest,
                wanted=lambda: bool(self.followed),
            )
        self._changes.start()

    def _longest(self) -> float:
        """The longest time between two queries: the longer no journal has grown, the longer it is."""
        if all(self.is_local(run_id) for run_id in self.followed):
            return self._config.longest
        since = asyncio.get_running_loop().time() - self._grew
        return min(max(self._config.follow_interval, since * self._config.follow_back_off), self._config.longest)

    async def _refresh(self) -> None:
        wanted = list(self.followed)
        heads = await self._store.journal.heads(wanted)
        for run_id in wanted:
            head = heads.get(run_id)
            for follower in list(self.followed.get(run_id, ())):
                if head != follower.head:
                    self._grew = asyncio.get_running_loop().time()
                follower.notify(head)

    async def close(self) -> None:
        """Fail the callers that are left."""
        if self._changes is not None:
            await self._changes.close()
            self._changes = None
        closed = UsageError(
            "the engine was closed while this run was followed; follow it again from the last number you have"
        )
        for followers in self.followed.values():
            for follower in followers:
                follower.close(closed)
