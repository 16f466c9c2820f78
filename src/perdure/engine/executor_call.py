"""A step's call in a form that any executor can take: threads, processes, Dask, Ray.

In this process the function is called in a copy of the caller's context. An executor of processes pickles the job,
which then carries the *name* of its function: the other process looks it up.
"""

from __future__ import annotations

import importlib
import inspect
import os
import threading
import time
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any

import msgspec

from perdure.engine.resources import Place, resources_here
from perdure.engine.step_context import StepContext, current
from perdure.errors import UsageError
from perdure.kernel.context import RunContext
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.failures import Failure, describe, is_any_of
from perdure.kernel.values.raised import pressed


class Raised(Exception):
    """An exception of a step that no task or future can carry: it would end the loop, or cancel the waiter."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__(error)


class RemoteError(Exception):
    """An exception of a step in another process, as a Failure, because its class may not be importable here."""

    def __init__(self, failure: bytes) -> None:
        self.data = failure
        super().__init__(failure)

    @classmethod
    def of(cls, error: BaseException) -> RemoteError:
        """Describe an error in the process where it was raised."""
        return cls(msgspec.json.encode(describe(error.error if type(error) is Raised else error, Codec())))

    @property
    def failure(self) -> Failure:
        """The failure."""
        return msgspec.json.decode(self.data, type=Failure)


class Job:
    """One attempt, ready to be called."""

    __slots__ = ("args", "begun", "context", "fn", "generator", "kwargs", "step", "timeout")

    def __init__(
        self, fn: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], step: StepContext, context: Context
    ) -> None:
        self.fn, self.args, self.kwargs, self.step, self.context = fn, args, kwargs, step, context
        # Of a step that is a generator: `fn` consumes it, in this process.
        self.generator: Callable[..., Any] | None = None
        # Called, from any thread, right before the function; and its timeouts from then on.
        self.begun: Callable[[], None] | None = None
        self.timeout: float | None = None

    def __call__(self) -> Any:
        """Call the function in its context."""
        if self.begun is not None:
            self.begun()
        return self.context.run(_call, self.fn, self.args, self.kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.generator is not None:
            raise UsageError(
                f"the step {self.generator.__qualname__} is a generator, and the engine's executor would run it in "
                "another process, from which it cannot emit; make it an async generator, or return a list"
            )
        module, name = self.fn.__module__, self.fn.__qualname__
        if "<" in name:
            raise UsageError(
                f"the step {name} is defined inside a function and cannot be found from another process; "
                "define it at the top of a module"
            )
        if inspect.ismethod(self.fn):
            raise UsageError(
                f"the step {name} is a method of an object that the other process does not have; make it a function at "
                "the top of a module, and get what it needs with resource()"
            )
        places = self.step.resources.places()
        step = (
            self.step.id,
            self.step.run_id,
            self.step.attempt,
            self.step.ends,
            self.step.run,
            places,
            dict(self.step.patches),
        )
        return _Named, (module, name, self.args, self.kwargs, step, self.timeout)


def follow_parent() -> None:
    """Die with the parent process, also if it is killed: a step must not outlive its engine."""
    import multiprocessing

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    parent = multiprocessing.parent_process()
    threading.Thread(target=follow, daemon=True).start()


# The context of an attempt in another process: its key, run_id, number, deadline, run context, resources, and answers
# of `patched()`.
Sent = tuple[str, str, int, float | None, RunContext, dict[str, Place], dict[str, bool]]


class _Named:
    """A call in another process: finds its function by name."""

    def __init__(
        self, module: str, name: str, args: list[Any], kwargs: dict[str, Any], step: Sent, timeout: float | None
    ) -> None:
        self._module, self._name, self._args, self._kwargs = module, name, args, kwargs
        self._step, self._timeout = step, timeout

    def __call__(self) -> Any:
        return self.found()()

    def found(self) -> Callable[[], Any]:
        """The call with its function, whose lookup may import a module."""
        found: Any = importlib.import_module(self._module)
        for part in self._name.split("."):
            if not hasattr(found, part):
                raise UsageError(
                    f"the step {self._name} is not in {self._module} as another process imports it; define it at the "
                    'top of a module that is a file, and outside of `if __name__ == "__main__":`'
                )
            found = getattr(found, part)
        # The module usually holds the Step; a function wrapped by hand may be there unwrapped.
        return partial(self._perform, getattr(found, "fn", found))

    def _perform(self, fn: Callable[..., Any]) -> Any:
        id, run_id, attempt, ends, run, places, patches = self._step
        if self._timeout is not None:
            late = time.time() + self._timeout
            ends = late if ends is None else min(ends, late)
        context = Context()
        context.run(
            current.set,
            StepContext(id, run_id, attempt, ends, run=run, resources=resources_here(places), patches=patches),
        )
        try:
            return context.run(_call, fn, self._args, self._kwargs)
        except BaseException as error:
            remote = RemoteError.of(error)
        raise remote


def _call(fn: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    try:
        return fn(*args, **kwargs)
    except StopIteration as error:
        # No future can hold a StopIteration; a coroutine turns it into this too.
        raise RuntimeError("the step raised StopIteration") from error
    except BaseException as error:
        if is_any_of(error, (Exception,)) or pressed(error):
            raise
        raise Raised(error) from None
