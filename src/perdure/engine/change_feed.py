"""One poller of `store.version()` for everything in a process that waits for what other processes write.

Reading the version costs no statement, so a process that waits for changes and sees none is idle. A subscription stands
for one kind of change: work due, runs ended, journals grew, leases freed. Its `refresh`, which queries the store, is
performed when it starts, when the version has changed since, and now and then regardless; never twice at once.

The notifications of a database server change the version, and do not call subscribers themselves. So every store is
noticed in one way, a burst of notifications costs one query, and a notification that gets lost only delays the query.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

from perdure.engine.duties import Duties, FunctionDuty, cancelled
from perdure.ports.clock import SystemClock
from perdure.ports.store import Store


@dataclass(frozen=True, slots=True)
class ChangeFeedConfig:
    """Durations are in seconds."""

    poll_interval: float = 0.05
    """How often the version is read while there are subscriptions."""
    lease_watch_retry: float = 1.0
    """The pause before leases are watched again after a failure."""


class Subscription:
    """One kind of change that something in this process waits for.

    `interval` is the least time between two refreshes, `longest` the most while nothing changes. The feed ends it when
    it is not `wanted` any more; `start` begins it again. `on_poll` is called at every poll. `on_freed` is called with
    the key of each lease under the prefix `leases` that ends, where the backend notifies of that.
    """

    def __init__(
        self,
        feed: ChangeFeed,
        kind: str,
        refresh: Callable[[], Awaitable[object]],
        *,
        interval: float,
        longest: Callable[[], float] = lambda: math.inf,
        wanted: Callable[[], bool] = lambda: True,
        on_poll: Callable[[], None] = lambda: None,
        leases: str = "",
        on_freed: Callable[[str], None] = lambda key: None,
    ) -> None:
        self._feed, self.interval, self.longest, self.wanted = feed, interval, longest, wanted
        self.refreshing = FunctionDuty(kind, refresh)
        self.on_poll, self.leases, self.on_freed = on_poll, leases, on_freed
        # The version at the last refresh, and when that began, in the time of the loop.
        self.seen: object = object()
        self.began = -math.inf
        self.refresh: asyncio.Task[None] | None = None
        self.listener: asyncio.Task[None] | None = None

    def start(self) -> bool:
        """Start to refresh; False if it was started before."""
        if not self._feed.add(self):
            return False
        self.seen = object()
        return True

    def notify(self) -> None:
        """Refresh soon, even if the version has not changed."""
        self.seen = object()
        self._feed.poll_soon()

    async def close(self) -> None:
        """End, and wait for a running refresh."""
        tasks = {task for task in (self.refresh, self.listener) if task is not None}
        self._feed.remove(self)
        await cancelled(tasks)
        self.refresh = None


class ChangeFeed:
    """The changes of one store, for one event loop. Polls from the first subscription to the last."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop, config: ChangeFeedConfig) -> None:
        self._store, self._loop, self._config = store, loop, config
        self._duties = Duties(f"store {store.url}", SystemClock())
        self._subscriptions: dict[Subscription, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, subscription: Subscription) -> bool:
        """Add a subscription; False if it is active."""
        if subscription in self._subscriptions:
            return False
        self._subscriptions[subscription] = None
        if subscription.leases:
            subscription.listener = self._loop.create_task(self._listen(subscription))
        # The next poll is soon enough: callers query the store before they wait. One for each run that is started and
        # awaited would cost more than the wait.
        if self._timer is None:
            self.poll_soon()
        return True

    def remove(self, subscription: Subscription) -> None:
        """End a subscription."""
        self._subscriptions.pop(subscription, None)
        if subscription.listener is not None:
            subscription.listener.cancel()
            subscription.listener = None
        if not self._subscriptions and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def poll_soon(self) -> None:
        """Poll in the next turn of the loop."""
        self._poll_at(self._loop.time())

    def _poll_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self.poll)

    def poll(self) -> None:
        """Read the version, and refresh the subscriptions that it concerns."""
        if not self._subscriptions:
            self._timer = None
            return
        now = self._loop.time()
        after = now + self._config.poll_interval
        # Before anything that may fail: a feed that stops polling would go unnoticed.
        self._poll_at(after)
        version = self._version()
        for subscription in list(self._subscriptions):
            subscription.on_poll()
            ready_at = subscription.began + subscription.interval
            if subscription.refresh is not None:
                continue  # it polls when it is done
            if not subscription.wanted():
                self.remove(subscription)
            elif version == subscription.seen and now - subscription.began <= subscription.longest():
                continue
            elif now >= ready_at:
                subscription.seen, subscription.began = version, now
                subscription.refresh = self._loop.create_task(self._refresh(subscription))
            else:
                after = min(after, ready_at)
        if self._subscriptions and after < now + self._config.poll_interval:
            self._poll_at(after)

    def _version(self) -> object:
        try:
            return self._store.version()
        except Exception:
            return object()  # treat it as changed: a refresh will report what is wrong with the store

    async def _refresh(self, subscription: Subscription) -> None:
        try:
            if await self._duties.perform(subscription.refreshing) is None:
                subscription.seen = object()
        finally:
            subscription.refresh = None
        self.poll()

    async def _listen(self, subscription: Subscription) -> None:
        """Leases that are kept outside of the store do not change its version."""
        watching = FunctionDuty("watching leases", partial(self._watch_leases, subscription))
        while True:
            await self._duties.perform(watching)
            await asyncio.sleep(self._config.lease_watch_retry)

    async def _watch_leases(self, subscription: Subscription) -> None:
        async for key in self._store.leases.watch(subscription.leases):
            subscription.on_freed(key)


# A feed lives as long as a subscription refers to it, and keeps its store and its loop alive: no id is used twice.
_feeds: WeakValueDictionary[tuple[int, int], ChangeFeed] = WeakValueDictionary()


def change_feed(
    store: Store, loop: asyncio.AbstractEventLoop | None = None, config: ChangeFeedConfig | None = None
) -> ChangeFeed:
    """The feed of a store: everything that waits for its changes in an event loop shares one.

    `config` counts where the feed is not in use yet.
    """
    loop = loop or asyncio.get_running_loop()
    feed = _feeds.get((id(loop), id(store)))
    if feed is None:
        feed = _feeds[id(loop), id(store)] = ChangeFeed(store, loop, config or ChangeFeedConfig())
    return feed
