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
from perdure.kernel.values.failures import message_of

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

    def ended(self, row: RunRow) -> None:
        """A run has ended."""
        self._rows.put_nowait(row)

    async def close(self, grace: float) -> None:
        """Tell of what has ended so far, and wait for the callbacks, but not for longer than `grace`."""
        self._rows.put_nowait(None)
        _, late = await asyncio.wait({self._task}, timeout=grace)
        if late:
            log.warning(
                "on_complete: a callback has not returned %g seconds after the engine was left; it is not waited for, "
                "and %d runs are not told of",
                grace,
                self._rows.qsize(),
            )
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._calls.put(None)

    async def _tell_all(self) -> None:
        while (row := await self._rows.get()) is not None:
            for callback in self._callbacks:
                try:
                    await self._tell(callback, await self._result(row))
                except BaseException as error:
                    if ends_the_task(error):
                        raise
                    log.error(
                        "on_complete of run %r: %s raised %s: %s; the run has ended as it is, and is not affected",
                        row.id,
                        getattr(callback, "__qualname__", callback),
                        type(error).__name__,
                        message_of(error),
                        exc_info=error,
                    )

    async def _tell(self, callback: OnComplete, result: RunResult[Any]) -> None:
        if inspect.iscoroutinefunction(callback):
            await callback(result)
            return
        returned = await self._in_thread(lambda: callback(result))
        if inspect.isawaitable(returned):
            await returned

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        """Call a plain function apart. In a thread that ends with the process: one that hangs must not keep it."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()

        def settle(value: Any, error: BaseException | None) -> None:
            if not done.done():
                if error is None:
                    done.set_result(value)
                else:
                    # A future holds no StopIteration, and SystemExit would end the loop.
                    plain = isinstance(error, Exception) and not isinstance(error, StopIteration)
                    done.set_exception(error if plain else RuntimeError(f"{type(error).__name__}: {error}"))

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
