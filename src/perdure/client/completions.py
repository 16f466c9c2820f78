"""Callbacks that are told of runs that have ended here. Whatever they do, no run notices."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from queue import SimpleQueue
from typing import Any

from perdure.client.observing import ends_the_task
from perdure.client.views import RunResult
from perdure.errors import UsageError
from perdure.kernel.projection import RunRow
from perdure.kernel.values.failures import raised_at
from perdure.kernel.values.raised import brief

log = logging.getLogger("perdure")

OnComplete = Callable[[RunResult[Any]], object]


def callbacks_of(given: OnComplete | Sequence[OnComplete] | None) -> tuple[OnComplete, ...]:
    """The callbacks of `Engine(on_complete=...)`, checked."""
    if given is None:
        return ()
    found = tuple(given) if isinstance(given, Sequence) else (given,)
    for callback in found:
        if not callable(callback):
            raise UsageError(f"on_complete takes a function of a RunResult, or several, not {callback!r}")
    return found


class Completions:
    """Tells callbacks of runs that have ended, in their order and beside the runs that go on.

    A coroutine function is awaited on the engine's loop, a plain function is called in a thread of its own, where it
    may block.
    """

    def __init__(self, callbacks: Sequence[OnComplete], result: Callable[[RunRow], Awaitable[RunResult[Any]]]) -> None:
        self._callbacks, self._result = callbacks, result
        self._rows: asyncio.Queue[RunRow | None] = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(self._tell_all())
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        # What has been logged: the number of a callback, and the kind of error.
        self._logged: set[tuple[int, type[BaseException]]] = set()

    def ended(self, row: RunRow) -> None:
        """A run has ended."""
        self._rows.put_nowait(row)

    async def close(self, seconds: float) -> None:
        """Tell of what has ended so far, and wait for the callbacks, but not for longer than this."""
        self._rows.put_nowait(None)
        _, late = await asyncio.wait({self._task}, timeout=seconds)
        if late:
            log.warning(
                "on_complete: a callback has not returned %g s after the engine was left; it is not waited for, "
                "and %d runs are not told of",
                seconds,
                self._rows.qsize() - 1,  # its end is in there too
            )
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._calls.put(None)

    async def _tell_all(self) -> None:
        while (row := await self._rows.get()) is not None:
            for number, callback in enumerate(self._callbacks):
                try:
                    error = await self._tell(callback, await self._result(row))
                except BaseException as raised:
                    if ends_the_task(raised):
                        raise
                    error = raised
                if error is not None:
                    self._failed(row.id, number, error)

    def _failed(self, id: str, number: int, error: BaseException) -> None:
        if (number, type(error)) in self._logged:
            return
        self._logged.add((number, type(error)))
        place = raised_at(error)
        callback = self._callbacks[number]
        log.error(
            "on_complete of run %r: %s raised %s%s; the run has ended as it is, and is not affected. It is told of the "
            "next runs, and what it raises of this kind from now on is not logged",
            id,
            getattr(callback, "__qualname__", callback),
            brief(error),
            f" ({place})" if place else "",
        )

    async def _tell(self, callback: OnComplete, result: RunResult[Any]) -> BaseException | None:
        """Call a callback. What it raises in its thread is returned: no future holds all of that."""
        if inspect.iscoroutinefunction(callback):
            await callback(result)
            return None
        returned, error = await self._in_thread(lambda: callback(result))
        if inspect.isawaitable(returned):
            await returned
        return error

    async def _in_thread(self, call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        """Call a plain function apart. In a thread that ends with the process: one that hangs must not keep it."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def settle(value: Any, error: BaseException | None) -> None:
            if not done.done():
                done.set_result((value, error))

        def work() -> None:
            value, error = None, None
            try:
                value = call()
            except BaseException as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(settle, value, error)
            except RuntimeError:
                pass  # the loop is closed: no caller waits

        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="perdure-on-complete", daemon=True)
            self._thread.start()
        self._calls.put(work)
        return await done

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
