"""An event loop in a thread of its own, and the way to wait for what it does."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from perdure.engine.threads import waiting_for_perdure
from perdure.errors import UsageError
from perdure.inherited import check_main, check_process
from perdure.logs import log
from perdure.loops import new_loop

# How long what was cancelled may take to end.
LEAVE_SECONDS = 5.0

T = TypeVar("T")


class Loop:
    """An event loop in a thread of its own, and the way to wait for what it does."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        # The process in which it was started: a forked child has no such thread.
        self._pid = 0
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        return self._loop is not None

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process in which the loop runs."""
        return self._pid not in (0, os.getpid())

    def start(self) -> None:
        check_main()
        self._check_process()
        if self._loop is not None:
            raise UsageError(f"this {self._owner} is already open; create another one to use two side by side")
        self._pid = os.getpid()
        self._loop = new_loop()
        # A daemon: a process that ends without closing the engine must not wait for it. Its runs are recovered.
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="perdure-loop", daemon=True)
        self._thread.start()
        atexit.register(self._silence)

    def _silence(self) -> None:
        """At exit, an open loop is collected with its tasks, and asyncio would report each of them."""
        if self._loop is not None:
            self._loop.set_exception_handler(lambda loop, context: None)

    def stop(self) -> None:
        atexit.unregister(self._silence)
        if self.forked:
            # There is no such thread in this process, and the loop is its parent's.
            self._loop = self._thread = None
            return
        # Under the lock: what was handed over before is on the loop and gets cancelled, and nothing comes after.
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(_end_all(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that runs on the loop."""
        future: Future[T] | None = None
        try:
            self._check_process()
            with self._lock:
                if self._loop is None or threading.current_thread() is self._thread:
                    raise self._refusal()
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
            # While a step waits here, another step may use its thread: the wait may depend on it.
            with waiting_for_perdure():
                return future.result()
        except CancelledError:
            raise UsageError(f"this {self._owner} was closed while this call waited; its runs are kept") from None
        except BaseException:
            # After a Ctrl-C the caller waits no longer; it may come before the loop has the coroutine.
            _ = work.close() if future is None else future.cancel()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items of an async iterator, one wait each."""
        while True:
            try:
                item = self.wait(_next(items))
            except StopAsyncIteration:
                return
            yield item

    def _check_process(self) -> None:
        if self.forked:
            check_process(self._pid, self._owner)

    def _refusal(self) -> UsageError:
        if self._loop is None:
            how = f"with {'Engine(...)' if self._owner == 'Engine' else 'connect(...)'}"
            return UsageError(f"this {self._owner} is not open; use it as `{how} as ...`")
        return UsageError(
            f"this {self._owner} of perdure.blocking was called from its own event loop, and would deadlock; "
            "call it from a step that is a plain `def`, which runs in a thread"
        )


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped. A task of a step that calls sys.exit() does not end it."""
    while True:
        try:
            loop.run_forever()
            return
        except (SystemExit, KeyboardInterrupt) as error:
            log.error(
                "a task in the engine's loop raised %r; the engine continues. Steps end by raising or returning", error
            )


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)


async def _end_all() -> None:
    """Cancel everything else on this loop, and wait until it has ended."""
    loop = asyncio.get_running_loop()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    leaving = {task for task in others if task.cancelling()}
    if leaving:
        # A close() that was cut short by a second Ctrl-C still hands runs over.
        _, leaving = await asyncio.wait(leaving, timeout=LEAVE_SECONDS)
    others = {task for task in asyncio.all_tasks() - {asyncio.current_task()} if task not in leaving}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    # Its default executor is not waited for: a step may hang in a thread of asyncio.to_thread().
    await loop.shutdown_asyncgens()
