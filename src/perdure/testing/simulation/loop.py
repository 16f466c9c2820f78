"""An asyncio event loop in virtual time, run callback by callback from outside. Opens no socket and no thread."""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from perdure.engine.step_context import StepContext, current
from perdure.errors import UsageError

Wrap = Callable[[StepContext, Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop of one machine."""

    # Of BaseEventLoop: callbacks to run, and a heap of timers.
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, time: Callable[[], float]) -> None:
        super().__init__()
        self._now = time
        # Set to leave `run_ready` before the next callback.
        self.halted = False
        # Wraps the coroutine of a step.
        self.wrap_step: Wrap | None = None
        # Errors of callbacks, and of tasks that are not awaited.
        self.problems: list[str] = []
        self._all: list[asyncio.Task[Any]] = []
        self._fatal: BaseException | None = None
        self._inner: dict[asyncio.Task[Any], Coroutine[Any, Any, Any]] = {}
        self.set_exception_handler(lambda _, context: self._problem(context))

    # --- driving --------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether a callback could run now."""
        return bool(self._ready)

    def run_ready(self, most: int) -> None:
        """Run at most `limit` ready callbacks, in order."""
        self.halted = False
        ready = self._ready
        events._set_running_loop(self)
        try:
            while ready and most > 0 and not self.halted:
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
                    most -= 1
        finally:
            events._set_running_loop(None)
        if self._fatal is not None:
            raise self._fatal

    def next_timer(self) -> float | None:
        """When the next timer fires, or None."""
        timers = self._scheduled
        while timers and timers[0].cancelled():
            heapq.heappop(timers)
        return timers[0].when() if timers else None

    def ring(self, now: float) -> None:
        """Make the callbacks of all timers due at `now` ready."""
        while (when := self.next_timer()) is not None and when <= now:
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]
            self._ready.append(timer)

    def unasked(self) -> list[str]:
        """Errors of callbacks, and of tasks whose outcome was never retrieved."""
        for task in self._all:
            if task.done() and not task.cancelled() and task._log_traceback:
                self.problems.append(f"a task raised an error that was never retrieved: {task.exception()!r}")
        return self.problems

    def dispose(self) -> None:
        """Close tasks that never ended."""
        self._ready.clear()
        self._scheduled.clear()
        tasks, self._all = self._all, []
        for task in tasks:
            if task.done():
                if not task.cancelled():
                    task.exception()  # mark it as retrieved
                continue
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            _close(task.get_coro())
        for inner in self._inner.values():
            _close(inner)
        self._inner.clear()
        self.problems.clear()
        if not self.is_closed():
            self.close()

    def _problem(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if "handle" not in context and "fault" not in context:
            return
        if isinstance(error, Exception | asyncio.CancelledError):
            self.problems.append(f"a callback raised: {error!r}")
        else:  # outside of the engine, such as a test that timed out
            self._fatal, self.halted = error, True

    # --- the interface of an event loop ---------------------------------------------------------------------------

    def time(self) -> float:
        """Virtual seconds."""
        return self._now()

    def is_running(self) -> bool:
        """Whether the calling code runs on this loop."""
        return events._get_running_loop() is self

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """A task; the coroutine of a step's attempt is wrapped first."""
        context, inner = options.get("context"), None
        if context is not None and self.wrap_step is not None:
            # A context of another attempt than the current one belongs to an attempt that is being launched.
            attempt = context.get(current)
            if attempt is not None and attempt is not current.get(None):
                inner, coro = coro, self.wrap_step(attempt, coro)
        task = super().create_task(coro, **options)
        self._all.append(task)
        if inner is not None:
            # A task that is cancelled before it begins never reaches the wrapped coroutine.
            self._inner[task] = inner
            task.add_done_callback(lambda task: self._inner.pop(task).close())
        if len(self._all) & 255 == 0:
            self._all = [task for task in self._all if not task.done() or _is_unasked(task)]
        return task

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        """There are no other threads here."""
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> NoReturn:  # type: ignore[override]
        """Threads have no place in virtual time."""
        raise UsageError("a simulation runs no threads: replace what calls run_in_executor() by a stub")

    def _process_events(self, event_list: object) -> None:
        raise AssertionError("a virtual loop has no selector")

    def _write_to_self(self) -> None:
        """No selector sleeps that would have to be woken."""


def _close(coro: Any) -> None:
    """Close a coroutine, also one that awaits in its `finally`."""
    for _ in range(100):
        try:
            coro.close()
            return
        except RuntimeError:  # it awaits: close it there
            pass
        except BaseException:
            return


def _is_unasked(task: asyncio.Task[Any]) -> bool:
    return not task.cancelled() and task._log_traceback
