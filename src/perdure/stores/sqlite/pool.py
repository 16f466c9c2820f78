"""Threads that take work until they are closed, also while the interpreter exits."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Pool(ThreadPoolExecutor):
    """A ThreadPoolExecutor for a store that may be closed by an `atexit` callback.

    The interpreter ends all executors before it calls those, and from then on they refuse work. This one then works in
    the calling thread.
    """

    _closed = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Have a function called in one of the threads."""
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:
            if self._closed:
                raise
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads."""
        self._closed = True
        super().shutdown(wait, cancel_futures=cancel_futures)
