"""Who follows which journal as it grows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from perdure.client import watch
from perdure.errors import PerdureError, StoreUnavailable, UsageError
from perdure.ports.store import Store

log = logging.getLogger("perdure")

# Not every store tells of every event. How often it is asked for journals that others write, while they grow; and the
# part of the time since they last did, after which it is asked again.
FOLLOW_SECONDS = 0.2
FOLLOW_PART = 0.1


class Following:
    """One who follows a journal."""

    __slots__ = ("_news", "_waiter", "head", "over", "run_id")

    def __init__(self, news: News, run_id: str) -> None:
        self._news = news
        self.run_id = run_id
        # As far as is known; None when the journal is gone.
        self.head: int | None = 0
        # Why nobody will tell anything any more.
        self.over: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def beyond(self, seq: int) -> bool:
        """Wait until the journal has an event with this number; False when there is no journal any more."""
        while self.head is not None and self.head <= seq:
            if self.over is not None:
                raise self.over
            self._waiter = asyncio.get_running_loop().create_future()
            self._news.stir()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.head is not None

    def tell(self, head: int | None) -> None:
        """The journal ends here now."""
        if head is not None and self.head is not None and head <= self.head:
            return
        self.head = head
        self._resolve(None)

    def give_up(self, error: Exception) -> None:
        """Nobody will tell anything any more."""
        self.over = error
        self._resolve(error)

    def _resolve(self, error: Exception | None) -> None:
        if self._waiter is not None and not self._waiter.done():
            if error is None:
                self._waiter.set_result(None)
            else:
                self._waiter.set_exception(error)


class News:
    """Tells followers: at once of what this process writes, soon after the commit of what others do.

    What others write shows in the store's version, or when it is asked for. One statement then asks for all journals
    that are followed.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        # Who follows which run.
        self.followed: dict[str, set[Following]] = {}
        # Whether all that is written about a run is told by `committed`.
        self.is_local: Callable[[str], bool] = lambda run_id: False
        # When there was something new last, or somebody who wanted it.
        self._moved = 0.0
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def follow(self, run_id: str) -> Iterator[Following]:
        """Be told about a journal while this is open."""
        following = Following(self, run_id)
        self._moved = asyncio.get_running_loop().time()
        self.followed.setdefault(run_id, set()).add(following)
        try:
            yield following
        except StoreUnavailable:
            # Whoever reads when the engine is left finds its store closed.
            if following.over is None:
                raise
            raise following.over from None
        finally:
            followers = self.followed[run_id]
            followers.discard(following)
            if not followers:
                del self.followed[run_id]

    def committed(self, run_id: str, next_seq: int) -> None:
        """This process has written."""
        for following in self.followed.get(run_id, ()):
            following.tell(next_seq)

    def stir(self) -> None:
        """Somebody waits: see that he is told."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._poll())

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        version: object = object()
        polled = 0.0
        while self.followed:
            current = self._store.version()
            if current != version or loop.time() - polled > self._pause(loop.time()):
                version, polled = current, loop.time()
                try:
                    await self._ask()
                except PerdureError as error:
                    log.warning("%s", error)
                except Exception:
                    log.exception("an unexpected error while journals are followed; they are asked for again")
            await asyncio.sleep(watch.WATCH_SECONDS)

    def _pause(self, now: float) -> float:
        """How long to wait between two questions: the longer nothing has come, the longer."""
        if all(self.is_local(run_id) for run_id in self.followed):
            return watch.POLL_SECONDS
        return min(max(FOLLOW_SECONDS, (now - self._moved) * FOLLOW_PART), watch.POLL_SECONDS)

    async def _ask(self) -> None:
        wanted = list(self.followed)
        heads = await self._store.journal.heads(wanted)
        for run_id in wanted:
            head = heads.get(run_id)
            for following in list(self.followed.get(run_id, ())):
                if head != following.head:
                    self._moved = asyncio.get_running_loop().time()
                following.tell(head)

    async def close(self) -> None:
        """Nobody will be told anything any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        closed = UsageError("the engine was left while this run was followed; follow it again from where you were")
        for followers in self.followed.values():
            for following in followers:
                following.give_up(closed)
