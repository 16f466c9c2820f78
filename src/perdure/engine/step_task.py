"""The task that async steps are called in. One task serves every step that ends without suspending.

A step is called in a callback of the loop, with this task as the current one. If the step ends at once, the task serves
the next one. If it suspends, the task is its own from then on, and it is the one that the step has seen from the
beginning: `current_task()`, `timeout()` and `TaskGroup` know no other. A step that leaves something on the task (a
reference, a callback, a cancellation) has it for its own, too. Never decides what an outcome means.
"""

from __future__ import annotations

import asyncio
from asyncio.tasks import _enter_task, _leave_task  # for task implementations: "Extending" in the docs of asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from sys import exc_info, getrefcount
from types import CoroutineType
from typing import Any
from weakref import getweakrefcount

from perdure.engine.executor_call import Raised
from perdure.kernel.values.raised import is_a, pressed

# What a step returned, or what it raised.
Outcome = tuple[Any, BaseException | None]


class StepTask(Coroutine[Any, Any, Any]):
    """What the task runs: nothing, until a step suspends in it; then the rest of that step."""

    __slots__ = ("_awaited", "_context", "_coro", "_idle", "_loop", "_outcome", "task")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # The step that has suspended, and what it awaits until the task awaits that.
        self._coro: Coroutine[Any, Any, Any] | None = None
        self._context: Context | None = None
        self._awaited: Any = self
        # How a step has ended that has the task for its own.
        self._outcome: Outcome | None = None
        # What the task awaits while it serves no step.
        self._idle: asyncio.Future[None] | None = None
        # None when it is a step's own: the task has this object, and the two would be a cycle.
        self.task: Any = None
        self.task = loop.create_task(self, name="perdure-step", context=Context())
        self.task._log_destroy_pending = False  # an idle task may be dropped

    @property
    def over(self) -> bool:
        """Whether it can serve no step: it was cancelled while it was idle."""
        task, idle = self.task, self._idle
        return task.done() or task._must_cancel or (idle is not None and idle.done())

    def call(self, name: str, context: Context, fn: Callable[..., Any], args: Any, kwargs: Any) -> Outcome | None:
        """Call a step until it suspends. Returns its outcome, or None if the task is its own from now on."""
        task = self.task
        task.set_name(name)
        references, weak = getrefcount(task), getweakrefcount(task)
        coro: Any = None
        _enter_task(self._loop, task)
        try:
            coro = context.run(fn, *args, **kwargs)
            if type(coro) is not CoroutineType:
                coro = _awaiting(coro)
            awaited = context.run(coro.send, None)
        except StopIteration as ended:
            outcome: Outcome = (
                (ended.value, None) if coro is not None else (None, RuntimeError(f"{name} raised StopIteration"))
            )
        except BaseException as error:
            # Without this frame, which holds the outcome: the two would be a cycle.
            raised_at = exc_info()[2]
            outcome = None, BaseException.with_traceback(error, raised_at and raised_at.tb_next)
            del raised_at
        else:
            self._coro, self._context, self._awaited = coro, context, awaited
            self._keep()
            return None
        finally:
            _leave_task(self._loop, task)
        if (
            getrefcount(task) > references
            or getweakrefcount(task) > weak
            or task._callbacks
            or task.cancelling()
            or task._must_cancel
            or (self._idle is not None and self._idle.done())
            or type(outcome[1]) is KeyboardInterrupt
        ):
            self._outcome = outcome
            self._keep()
            return None
        return outcome

    def _keep(self) -> None:
        """The task is that of one step from now on."""
        self.task._log_destroy_pending = True
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        self.task = self._idle = None

    def drop(self) -> None:
        """End an idle task."""
        self.task.cancel()

    # --- what the task asks of a coroutine ------------------------------------------------------------------------

    def send(self, value: Any) -> Any:
        if self._awaited is not self:
            awaited, self._awaited = self._awaited, self
            return awaited
        if self._coro is not None:
            return self._go_on(self._coro.send, value)
        if self._outcome is not None:
            self._end()
        self._idle = self._loop.create_future()
        self._idle._asyncio_future_blocking = True
        return self._idle

    def throw(self, *error: Any) -> Any:
        if self._coro is None:
            if self._outcome is not None and self._outcome[1] is not None:
                self._end()
            raise error[0]  # cancelled while it was idle, or by a step that then returned
        if self._awaited is not self:
            awaited, self._awaited = self._awaited, self
            if awaited is not None and awaited.cancel():
                return awaited  # as any task cancels what it awaits
        return self._go_on(self._coro.throw, *error)

    def _go_on(self, resume: Callable[..., Any], *given: Any) -> Any:
        assert self._context is not None
        try:
            return self._context.run(resume, *given)
        except (SystemExit, KeyboardInterrupt) as error:
            raise _carried(error) from None

    def _end(self) -> None:
        assert self._outcome is not None
        value, error = self._outcome
        self._outcome = None
        if error is None:
            raise StopIteration(value)
        raise _carried(error)

    def close(self) -> None:
        if self._coro is not None:
            self._coro.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise NotImplementedError("it is run by a task")

    # Where the step waits, for those who print the stack of a task.

    @property
    def __name__(self) -> str:
        return getattr(self._coro, "__qualname__", "perdure-step")

    @property
    def cr_frame(self) -> Any:
        return getattr(self._coro, "cr_frame", None)

    @property
    def cr_code(self) -> Any:
        return getattr(self._coro, "cr_code", None)

    @property
    def cr_running(self) -> bool:
        return bool(getattr(self._coro, "cr_running", False))

    @property
    def cr_await(self) -> Any:
        return getattr(self._coro, "cr_await", None)


def _carried(error: BaseException) -> BaseException:
    """As a task can carry it: sys.exit() fails the step, and does not end the engine."""
    return Raised(error) if is_a(error, (SystemExit, KeyboardInterrupt)) and not pressed(error) else error


async def _awaiting(awaitable: Any) -> Any:
    return await awaitable
