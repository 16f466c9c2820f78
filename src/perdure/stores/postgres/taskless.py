"""The one place that drives a coroutine of the driver by hand, in place of a task. Knows no statement.

Why: a sequence of steps waits for one small write after the other. A task costs three turns of the event loop for each:
one to start the statement, one to resume it, one to wake the caller. Driven by the callback of its answer, a statement
is sent at once, and the caller continues in the turn in which the answer arrives (docs/decisions/0019).

What it relies on: asyncpg's `fetch` awaits futures only, and a future that is awaited sets `_asyncio_future_blocking`,
which a task resets once it has seen it. If either ceases to hold, `run_without_task` can make a task with a callback:
nothing changes but for the three turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def run_without_task(coroutine: Coroutine[Any, None, T], done: Callable[[T | Exception], None]) -> None:
    """Run a coroutine that awaits futures only: begin at once, and call `done` with its result or its error."""
    _Driven(coroutine, done).proceed()


class _Driven(Generic[T]):
    """A coroutine under way. An object, since a function that refers to itself would be garbage to collect."""

    __slots__ = ("_coroutine", "_done")

    def __init__(self, coroutine: Coroutine[Any, None, T], done: Callable[[T | Exception], None]) -> None:
        self._coroutine, self._done = coroutine, done

    def proceed(self, _: object = None) -> None:
        """Run until it awaits a future, or to its end."""
        try:
            future = self._coroutine.send(None)
        except StopIteration as end:
            result: T | Exception = end.value
        except Exception as error:
            result = error
        except asyncio.CancelledError:
            result = ConnectionResetError(0, "the driver cancelled the statement")
        else:
            future._asyncio_future_blocking = False
            future.add_done_callback(self.proceed)
            return
        self._done(result)
