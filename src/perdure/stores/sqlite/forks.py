"""Keep the threads of stores out of SQLite while this process forks. Says nothing about using a store in a fork.

A forked child has no threads but the one that forked, yet it has a copy of SQLite's own mutexes as they were. One that
another thread held at that moment is never released in the child, and every call of SQLite there would wait for it.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event, Semaphore
from time import monotonic
from weakref import WeakSet

# How long a fork waits for threads that are in the middle of something.
PATIENCE = 2.0


class Threads:
    """The threads from which a store uses SQLite: those of its executors, and that of the loop it was opened on."""

    def __init__(self, *pools: tuple[ThreadPoolExecutor, int]) -> None:
        self._pools = pools
        self._loop: asyncio.AbstractEventLoop | None = None
        with suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()
        _open.add(self)

    def close(self) -> None:
        """The store uses SQLite no more."""
        _open.discard(self)

    def pause(self, stopped: Semaphore, go_on: Event) -> int:
        """Have each of these threads but the calling one stop as soon as it is free; returns how many those are."""

        def stop() -> None:
            stopped.release()
            go_on.wait(PATIENCE)

        count = 0
        with suppress(RuntimeError):  # it has been closed
            for pool, threads in self._pools:
                for _ in range(threads):
                    pool.submit(stop)
                    count += 1
            loop = self._loop
            if loop is not None and loop.is_running() and loop is not _running_loop():
                loop.call_soon_threadsafe(stop)
                count += 1
        return count


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _before() -> None:
    global _go_on
    stopped, _go_on = Semaphore(0), Event()
    count = sum(threads.pause(stopped, _go_on) for threads in list(_open))
    end = monotonic() + PATIENCE
    for _ in range(count):
        stopped.acquire(timeout=max(0.0, end - monotonic()))


def _after() -> None:
    _go_on.set()


_open: WeakSet[Threads] = WeakSet()
_go_on = Event()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
