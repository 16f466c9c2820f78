"""The observer of an engine's commits: told of each of them, in their order and apart from the runs.

An observer may raise, block or be slow: no run waits for it. A plain function is called in a thread of its own, a
coroutine function is awaited on the engine's loop. One that falls too far behind misses commits, and that is logged.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from perdure.errors import UsageError
from perdure.kernel.values.failures import message_of
from perdure.kernel.values.raised import pressed
from perdure.ports.journal import Append

log = logging.getLogger("perdure")

# How many commits an observer may be behind before it misses some.
MOST_BEHIND = 10_000
# How long an engine that is left waits for its observer.
CLOSE_SECONDS = 5.0

OnCommit = Callable[[str, Append], object]


def checked(observer: OnCommit | None) -> OnCommit | None:
    """What was given as `on_commit`, if it can be called."""
    if observer is not None and not callable(observer):
        raise UsageError(f"on_commit takes a function that is told of each commit, f(id, append), not {observer!r:.80}")
    return observer


def ends_the_task(error: BaseException) -> bool:
    """Whether what came out of a callback is not its own doing: its task is cancelled, or Ctrl-C was pressed.

    Anything else that it raises is its failure, SystemExit too: that would end the loop, and all runs with it.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return pressed(error)


class Observer:
    """Tells one function of commits."""

    def __init__(self, observe: OnCommit) -> None:
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        called = getattr(observe, "__call__", None)  # noqa: B004  # of an object with an `async def __call__`
        self._on_loop = inspect.iscoroutinefunction(observe) or inspect.iscoroutinefunction(called)
        # Commits that it has not been told of; the thread and the loop share them.
        self._commits: deque[tuple[str, Append]] = deque()
        self._some = threading.Condition()
        self._closing = False
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._begun = False
        self._task: asyncio.Task[None] | None = None
        self._stir = asyncio.Event()
        # Said once: what it raised, and that it fell behind.
        self._raised = False
        self._missed = 0

    def committed(self, id: str, append: Append) -> None:
        """Something has been written."""
        if len(self._commits) >= MOST_BEHIND:
            self._missed += 1
            if self._missed == 1:
                log.error(
                    "on_commit is %d commits behind, and misses some until it has caught up; runs are not affected. "
                    "Let it hand over what it is told, and do the rest elsewhere",
                    MOST_BEHIND,
                )
            return
        self._commits.append((id, append))
        if self._on_loop:
            self._stir.set()
        else:
            with self._some:
                self._some.notify()
        if not self._begun:
            self._begin()

    async def close(self) -> None:
        """Tell it of what has been written so far, and wait for that, but not for ever."""
        self._closing = True
        self._stir.set()
        with self._some:
            self._some.notify()
        if self._begun:
            _, late = await asyncio.wait({self._over}, timeout=CLOSE_SECONDS)
            if late:
                log.warning(
                    "on_commit has not returned %g s after the engine was left; it is not waited for, and is not told "
                    "of %d commits",
                    CLOSE_SECONDS,
                    len(self._commits),
                )
                self._commits.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _begin(self) -> None:
        self._begun = True
        if self._on_loop:
            self._task = self._loop.create_task(self._tell_on_loop())
        else:
            # A daemon: one that hangs must not keep the process.
            threading.Thread(target=self._tell_in_thread, name="perdure-on-commit", daemon=True).start()

    async def _tell_on_loop(self) -> None:
        while True:
            while self._commits:
                id, append = self._commits.popleft()
                try:
                    returned = self._observe(id, append)
                    if inspect.isawaitable(returned):
                        await returned
                except BaseException as error:
                    if ends_the_task(error):
                        raise
                    self._failed(id, error)
            if self._closing:
                break
            self._stir.clear()
            await self._stir.wait()
        self._end()

    def _tell_in_thread(self) -> None:
        while True:
            with self._some:
                while not self._commits and not self._closing:
                    self._some.wait()
            if not self._commits:
                break
            id, append = self._commits.popleft()
            try:
                returned = self._observe(id, append)
                if inspect.isawaitable(returned):
                    error = asyncio.run_coroutine_threadsafe(_raised_by(returned), self._loop).result()
                    if error is not None:
                        self._failed(id, error)
            except BaseException as error:
                self._failed(id, error)
        try:
            self._loop.call_soon_threadsafe(self._end)
        except RuntimeError:
            pass  # the loop is gone

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _failed(self, id: str, error: BaseException) -> None:
        if not self._raised:
            self._raised = True
            log.error(
                "on_commit raised %s: %s for run %r; runs are not affected. It is told of the next commits, and "
                "what it raises from now on is not logged",
                type(error).__name__,
                message_of(error),
                id,
                exc_info=error,
            )


def _raised_by(awaitable: Awaitable[Any]) -> Coroutine[Any, Any, BaseException | None]:
    async def raised() -> BaseException | None:
        try:
            await awaitable
        except BaseException as error:
            if ends_the_task(error):
                raise
            return error
        return None

    return raised()
