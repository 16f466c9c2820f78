"""The thread pool for `def` steps. Knows when each call begins; decides nothing about it.

The threads are daemons: a step that hangs must not keep the process alive. A thread that waits for perdure (a step that
calls `perdure.blocking`) does not count against the limit, because what it waits for may need a thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from perdure.logs import log

# The default limit of threads.
DEFAULT_THREADS = 64
# How many calls a log line names.
NAMED = 5

# The value of a call, or its exception.
Outcome = tuple[Any, BaseException | None]


@dataclass(frozen=True, slots=True)
class ThreadsConfig:
    """Durations are in seconds."""

    stall: float = 30.0
    """How long a pool may make no progress while calls wait before it is logged."""


class Item:
    """One call, from waiting for a thread to its outcome."""

    __slots__ = ("future", "kept", "label", "work")

    def __init__(self, work: Callable[[], Any], label: object, kept: bool, future: asyncio.Future[Outcome]) -> None:
        self.work: Callable[[], Any] | None = work
        self.label, self.kept = label, kept
        self.future = future


class Threads:
    """Makes calls, at most `limit` at a time besides those that wait for perdure."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limit: int,
        name: str,
        setting: str,
        config: ThreadsConfig = ThreadsConfig(),  # noqa: B008 - frozen
    ) -> None:
        self._loop, self._limit, self._name, self._setting = loop, limit, name, setting
        self._stall = config.stall
        self._lock = threading.Lock()
        self._ready = threading.Condition(self._lock)
        self._waiting: deque[Item] = deque()
        self._busy: dict[Item, None] = {}
        self._size = self._idle = self._blocked = self._made = 0
        self._closed = False
        # Counts calls that began or ended: a pool in which it does not change is stalled.
        self._moves = 0
        self._watch: asyncio.TimerHandle | None = None

    def submit(self, work: Callable[[], Any], label: object, kept: bool = False) -> asyncio.Future[Outcome]:
        """Make a call as soon as there is a thread. Cancelling the future drops a call that has not begun."""
        future: asyncio.Future[Outcome] = self._loop.create_future()
        item = Item(work, label, kept, future)
        with self._lock:
            self._waiting.append(item)
            self._see_to_waiting()
            full = len(self._waiting) > self._idle and self._size - self._blocked >= self._limit
        if full and self._watch is None:
            self._watch = self._loop.call_later(self._stall, self._check_stall, self._moves)
        return future

    def withdraw(self) -> None:
        """Drop calls that have not begun, except for those to be kept."""
        with self._lock:
            waiting, self._waiting = self._waiting, deque(item for item in self._waiting if item.kept)
        for item in waiting:
            if not item.kept:
                item.future.cancel()

    def close(self) -> None:
        """Start no more calls. A busy thread ends after its call, whose outcome is discarded."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            self._ready.notify_all()
        if self._watch is not None:
            self._watch.cancel()

    @contextmanager
    def waits(self) -> Iterator[None]:
        """In this block the thread waits for perdure, and another one may work in its place."""
        with self._lock:
            self._blocked += 1
            self._see_to_waiting()
        try:
            yield
        finally:
            with self._lock:
                self._blocked -= 1

    def _see_to_waiting(self) -> None:
        """With the lock held: start a thread for waiting calls, if the limit allows it."""
        if len(self._waiting) <= self._idle:
            self._ready.notify()
        elif self._waiting and self._size - self._blocked < self._limit:
            self._size += 1
            self._made += 1
            threading.Thread(target=self._serve, name=f"{self._name}-{self._made}", daemon=True).start()

    def _serve(self) -> None:
        _here.pool = self
        while (item := self._next()) is not None:
            self._perform(item)
            with self._lock:
                self._moves += 1
                del self._busy[item]
            del item  # do not keep its result alive while this thread waits

    def _next(self) -> Item | None:
        with self._lock:
            # Above the limit, because a thread that waited for perdure has continued.
            if self._size - self._blocked > self._limit and not self._closed:
                self._size -= 1
                return None
            while not self._waiting:
                if self._closed:
                    self._size -= 1
                    return None
                self._idle += 1
                self._ready.wait()
                self._idle -= 1
            item = self._waiting.popleft()
            self._busy[item] = None
            self._moves += 1
            return item

    def _perform(self, item: Item) -> None:
        work, item.work = item.work, None
        if item.future.cancelled() or work is None:
            return  # cancelled before it began
        try:
            outcome: Outcome = work(), None
        except BaseException as error:  # any exception is the outcome of the step
            outcome = None, error
        try:
            self._loop.call_soon_threadsafe(_set_outcome, item.future, outcome)
        except RuntimeError:
            pass  # the loop is closed, so the outcome is discarded

    # --- stalled pools --------------------------------------------------------------------------------------------

    def _check_stall(self, moves: int) -> None:
        """On the loop, while calls wait: log if none has begun or ended since the last check."""
        with self._lock:
            while self._waiting and self._waiting[0].future.cancelled():
                self._waiting.popleft()
            waiting, stalled = len(self._waiting), self._moves == moves
            moves, busy = self._moves, list(self._busy)
        self._watch = None
        if not waiting or self._closed:
            return
        if stalled:
            log.warning(
                "%d step%s for a thread, and all %d threads have been busy with the same steps for %g s: %s%s. Steps "
                "that wait for each other deadlock like this: make them `async def`, give them a timeout, or raise %s",
                waiting,
                " waits" if waiting == 1 else "s wait",
                len(busy),
                self._stall,
                ", ".join(str(item.label) for item in busy[:NAMED]),
                f" and {len(busy) - NAMED} more" if len(busy) > NAMED else "",
                self._setting,
            )
        # After a log line, wait longer before the next.
        self._watch = self._loop.call_later(self._stall * (10 if stalled else 1), self._check_stall, moves)


class _Here(threading.local):
    """The pool that the current thread belongs to."""

    pool: Threads | None = None


_here = _Here()


@contextmanager
def waiting_for_perdure() -> Iterator[None]:
    """In this block the current thread waits for an engine."""
    pool = _here.pool
    if pool is None:
        yield
    else:
        with pool.waits():
            yield


def _set_outcome(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)
