"""Callbacks of an engine, `on_commit` and `on_complete`: notified in the background, apart from the runs.

A callback may raise, block or be slow: no run waits for it. A coroutine function is awaited on the engine's loop, a
plain function is called in a thread of its own, where it may block.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import inf
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from perdure.client.views import RunResult
from perdure.errors import UsageError
from perdure.kernel.values.failures import raised_at
from perdure.kernel.values.raised import brief, pressed
from perdure.logs import log
from perdure.ports.journal import Append

OnCommit = Callable[[str, Append], object]
OnComplete = Callable[[RunResult[Any]], object]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ObserversConfig:
    """Durations are in seconds."""

    most_behind: int = 10_000
    """How many notifications may wait for a callback before it misses some."""
    closing: float = 5.0
    """How long an engine that is closed waits for its callbacks."""


def check_on_commit(given: OnCommit | None) -> tuple[OnCommit, ...]:
    """The callback of `Engine(on_commit=...)`."""
    if given is not None and not callable(given):
        raise UsageError(f"on_commit takes a function that is called for each commit, f(id, append), not {given!r:.80}")
    return () if given is None else (given,)


def check_on_complete(given: OnComplete | Sequence[OnComplete] | None) -> tuple[OnComplete, ...]:
    """The callbacks of `Engine(on_complete=...)`."""
    if given is None:
        return ()
    found = tuple(given) if isinstance(given, Sequence) else (given,)
    for callback in found:
        if not callable(callback):
            raise UsageError(f"on_complete takes a function of a RunResult, or several, not {callback!r}")
    return found


class Observers(Generic[T]):
    """Notifies the callbacks of one option, in order. One that falls too far behind misses some, and that is logged.

    `arguments` makes the arguments of a call. If it is not `bounded`, no callback misses any.
    """

    def __init__(
        self,
        option: str,
        callbacks: Sequence[Callable[..., object]],
        arguments: Callable[[T], Awaitable[tuple[Any, ...]]],
        *,
        bounded: bool = True,
        config: ObserversConfig = ObserversConfig(),  # noqa: B008 - frozen
    ) -> None:
        self._option, self._callbacks, self._arguments, self._config = option, callbacks, arguments, config
        self._most = config.most_behind if bounded else inf
        self._pending: deque[tuple[str, T]] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        self._task = asyncio.get_running_loop().create_task(self._notify_all())
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        # What has been logged: the number of a callback, and the kind of error; and whether it fell behind.
        self._logged: set[tuple[int, type[BaseException]]] = set()
        self._missed = False

    def notify(self, id: str, item: T) -> None:
        """Notify the callbacks of something that happened to a run, soon."""
        if len(self._pending) >= self._most:
            if not self._missed:
                self._missed = True
                log.error(
                    "%s is %d commits behind, and misses some until it has caught up; runs are not affected. Let it "
                    "hand over what it is notified of, and do the rest elsewhere",
                    self._option,
                    self._most,
                )
            return
        self._pending.append((id, item))
        self._wake.set()

    async def close(self) -> None:
        """Notify of everything so far, and wait for the callbacks, but only for as long as its config says."""
        self._closing = True
        self._wake.set()
        _, late = await asyncio.wait({self._task}, timeout=self._config.closing)
        if late:
            log.warning(
                "%s: a callback has not returned %g s after the engine was closed; the engine waits no longer, and %d "
                "notifications are dropped",
                self._option,
                self._config.closing,
                len(self._pending),
            )
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._calls.put(None)

    async def _notify_all(self) -> None:
        while True:
            while self._pending:
                id, item = self._pending.popleft()
                for number, callback in enumerate(self._callbacks):
                    await self._notify(number, callback, id, item)
            if self._closing:
                return
            self._wake.clear()
            await self._wake.wait()

    async def _notify(self, number: int, callback: Callable[..., object], id: str, item: T) -> None:
        try:
            error = await self._call(callback, await self._arguments(item))
        except BaseException as raised:
            if _ends_the_task(raised):
                raise
            error = raised
        if error is None or (number, type(error)) in self._logged:
            return
        self._logged.add((number, type(error)))
        place = raised_at(error)
        log.error(
            "%s of run %r: %s raised %s%s; the run is not affected. The callback is called again next time; "
            "further errors of this kind are not logged",
            self._option,
            id,
            getattr(callback, "__qualname__", type(callback).__qualname__),
            brief(error),
            f" ({place})" if place else "",
        )

    async def _call(self, callback: Callable[..., Any], arguments: tuple[Any, ...]) -> BaseException | None:
        """Call a callback. What it raises in its thread is returned: no future holds all of that."""
        called = getattr(callback, "__call__", None)  # noqa: B004  # of an object with an `async def __call__`
        if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(called):
            await callback(*arguments)
            return None
        returned, error = await self._in_thread(lambda: callback(*arguments))
        if inspect.isawaitable(returned):
            await returned
        return error

    async def _in_thread(self, call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        """Call a plain function. The thread is a daemon: a function that hangs must not keep the process."""
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
                pass  # the loop is closed: the engine waits no longer

        if self._thread is None:
            name = f"perdure-{self._option.replace('_', '-')}"
            self._thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._thread.start()
        self._calls.put(work)
        return await done

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _ends_the_task(error: BaseException) -> bool:
    """Whether what came out of a callback is not its own doing: its task is cancelled, or Ctrl-C was pressed.

    Anything else that it raises is its failure, SystemExit too: that would end the loop, and all runs with it.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return pressed(error)
