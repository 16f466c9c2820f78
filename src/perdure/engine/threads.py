"""Threads in which plain functions are called for steps. Knows when each call begins; decides nothing about it.

The threads are daemons: a step that hangs must not keep the process from leaving. A thread that waits for perdure (a
step that calls `perdure.blocking`) does not count against the limit, since what it waits for may need a thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

log = logging.getLogger("perdure")

# How many threads there are, unless a setting says otherwise.
DEFAULT_THREADS = 64
# How long calls may wait while none begins or ends before the log says so.
STALL_SECONDS = 30.0
# How many calls a log line names.
NAMED = 5

# What a call came to: its value, or what it raised.
Outcome = tuple[Any, BaseException | None]


class Item:
    """One call: waits for a thread, is made, and has an outcome."""

    __slots__ = ("future", "kept", "label", "work")

    def __init__(self, work: Callable[[], Any], label: object, kept: bool, future: asyncio.Future[Outcome]) -> None:
        self.work: Callable[[], Any] | None = work
        self.label, self.kept = label, kept
        self.future = future


class Threads:
    """Makes calls, at most `limit` at a time besides those that wait for perdure."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int, name: str, setting: str) -> None:
        self._loop, self._limit, self._name, self._setting = loop, limit, name, setting
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
        """Make a call as soon as there is a thread. Cancelling the future gives up a call that has not begun."""
        future: asyncio.Future[Outcome] = self._loop.create_future()
        item = Item(work, label, kept, future)
        with self._lock:
            self._waiting.append(item)
            self._see_to_waiting()
            full = len(self._waiting) > self._idle and self._size - self._blocked >= self._limit
        if full and self._watch is None:
            self._watch = self._loop.call_later(STALL_SECONDS, self._look, self._moves)
        return future

    def withdraw(self) -> None:
        """Give up calls that have not begun, without those that are to be kept."""
        with self._lock:
            waiting, self._waiting = self._waiting, deque(item for item in self._waiting if item.kept)
        for item in waiting:
            if not item.kept:
                item.future.cancel()

    def close(self) -> None:
        """Begin nothing more. A thread that is busy ends after its call; nothing comes of that."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            self._ready.notify_all()
        if self._watch is not None:
            self._watch.cancel()

    @contextmanager
    def waits(self) -> Iterator[None]:
        """For the length of a block, this thread waits for perdure: another one may work in its place."""
        with self._lock:
            self._blocked += 1
            self._see_to_waiting()
        try:
            yield
        finally:
            with self._lock:
                self._blocked -= 1

    def _see_to_waiting(self) -> None:
        """Under the lock: have a thread for the calls that wait, if there may be one."""
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
            del item  # what it returned must not live as long as this thread waits

    def _next(self) -> Item | None:
        with self._lock:
            # One too many, since a thread that waited for perdure has gone on.
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
            return  # given up before it began
        try:
            outcome: Outcome = work(), None
        except BaseException as error:  # whatever it is, it is the step's outcome and not the thread's
            outcome = None, error
        try:
            self._loop.call_soon_threadsafe(_settle, item.future, outcome)
        except RuntimeError:
            pass  # the loop is closed: the engine is gone, and nothing comes of it

    # --- a pool in which nothing moves ----------------------------------------------------------------------------

    def _look(self, moves: int) -> None:
        """On the loop, while calls wait: say so if none has begun or ended since the last look."""
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
                STALL_SECONDS,
                ", ".join(str(item.label) for item in busy[:NAMED]),
                f" and {len(busy) - NAMED} more" if len(busy) > NAMED else "",
                self._setting,
            )
        # Once it has been said there is time until it is said again.
        self._watch = self._loop.call_later(STALL_SECONDS * (10 if stalled else 1), self._look, moves)


class _Here(threading.local):
    """The pool that the current thread belongs to."""

    pool: Threads | None = None


_here = _Here()


@contextmanager
def waiting_for_perdure() -> Iterator[None]:
    """For the length of a block, the current thread waits for what an engine does."""
    pool = _here.pool
    if pool is None:
        yield
    else:
        with pool.waits():
            yield


def _settle(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)
