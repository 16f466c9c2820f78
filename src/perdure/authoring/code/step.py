"""`@step`: a function with side effects, called durably from a workflow and plainly from anywhere else."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from asyncio import events
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Generic, Never, ParamSpec, TypeVar, overload

from perdure.authoring.code.body import require_body
from perdure.authoring.code.hints import hints_of, local_errors
from perdure.authoring.code.loop import BodyLoop
from perdure.kernel.commands import StepSpec
from perdure.kernel.ids import check_name
from perdure.kernel.retry import ONCE, Retry

P = ParamSpec("P")
R = TypeVar("R")


class Step(Generic[P, R]):
    """A step. Inside a workflow a call is durable and awaited; outside it is a plain call of `fn`."""

    def __init__(self, spec: StepSpec) -> None:
        self.spec = spec
        self.fn: Callable[P, Any] = spec.fn
        self.__name__ = spec.name
        self.__qualname__ = getattr(spec.fn, "__qualname__", spec.name)
        self.__module__ = spec.fn.__module__
        self.__doc__ = spec.fn.__doc__
        self.__wrapped__ = spec.fn

    @property
    def name(self) -> str:
        """The name that op paths are made of."""
        return self.spec.name

    # Not Coroutine[Any, Any, R]: with Any in it, mypy sees no types through asyncio.gather.
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, Never, R]:
        """Wish for the step (in a workflow), or call the function (anywhere else)."""
        loop = events._get_running_loop()
        if type(loop) is BodyLoop:
            # A future in the clothes of a coroutine: gather, create_task and wait take it without another task.
            return loop.body.run_step(self.spec, args, kwargs, sys._getframe(1))  # type: ignore[return-value]
        return self.fn(*args, **kwargs)  # type: ignore[no-any-return]

    def options(
        self,
        *,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        at_most_once: bool | None = None,
    ) -> Step[P, R]:
        """The same step with another policy, for one call."""
        changes: dict[str, Any] = {}
        if retry is not None:
            changes["retry"] = _retry(retry)
        if timeout is not None:
            changes["timeout"] = seconds(timeout, "timeout")
        if at_most_once is not None:
            changes["at_most_once"] = at_most_once
        return Step(dataclasses.replace(self.spec, **changes))

    def __repr__(self) -> str:
        return f"<step {self.name}>"


@overload
def step(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
@overload
def step(fn: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(
    *,
    name: str | None = None,
    retry: Retry | None = None,
    timeout: float | timedelta | None = None,
    at_most_once: bool = False,
    cpu: bool = False,
) -> _StepDecorator: ...
def step(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retry: Retry | None = None,
    timeout: float | timedelta | None = None,
    at_most_once: bool = False,
    cpu: bool = False,
) -> Any:
    """Make a function a step: `@step` or `@step(retry=Retry(...), timeout=10)`.

    `at_most_once`: never try again an attempt whose process died; the workflow gets OutcomeUnknown instead.
    `cpu`: run it in a process of its own, for work that would hold the interpreter.
    """
    decorator = _StepDecorator(name, _retry(retry), timeout, at_most_once, cpu)
    return decorator if fn is None else decorator._make(fn, 2)


class _StepDecorator:
    """`@step(...)` with its options, waiting for the function."""

    def __init__(
        self, name: str | None, retry: Retry, timeout: float | timedelta | None, at_most_once: bool, cpu: bool
    ) -> None:
        self._name, self._retry, self._at_most_once, self._cpu = name, retry, at_most_once, cpu
        self._timeout = None if timeout is None else seconds(timeout, "timeout")

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Step[P, R]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Any:
        return self._make(fn, 2)

    def _make(self, fn: Callable[..., Any], depth: int) -> Step[..., Any]:
        if not callable(fn) or isinstance(fn, Step):
            raise TypeError(f"@step needs a function, not {fn!r}")
        if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
            raise TypeError(f"@step {fn.__qualname__} is a generator; return a value, or a list of them")
        if self._cpu and inspect.iscoroutinefunction(fn):
            raise TypeError(f"@step(cpu=True) {fn.__qualname__} runs in another process and must be a plain def")
        hints = hints_of(fn, depth + 1)
        return Step(
            StepSpec(
                name=check_name(self._name or fn.__name__.strip("<>"), "the name of a step"),
                fn=fn,
                retry=self._retry,
                timeout=self._timeout,
                at_most_once=self._at_most_once,
                cpu=self._cpu,
                asynchronous=inspect.iscoroutinefunction(fn),
                types=parameter_types(fn, hints),
                returns=hints.get("return", Any),
                errors=local_errors(fn, depth + 1),
            )
        )


def parameter_types(fn: Callable[..., Any], hints: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Pairs of a parameter's name and type; `*`, `**` and `=` mark variable and keyword-only ones."""
    marks: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    marks[inspect.Parameter.KEYWORD_ONLY] = "="
    try:
        parameters = inspect.signature(fn).parameters.values()
    except ValueError:  # a builtin without a signature
        return ()
    return tuple((marks.get(p.kind, "") + p.name, hints.get(p.name, Any)) for p in parameters)


def step_inline(name: str, fn: Callable[..., Any], *args: Any) -> Coroutine[Any, Any, Any]:
    """Call a function as a step where it is needed: `await step_inline("roll", lambda: randint(1, 6))`."""
    body = require_body("step_inline()")
    spec = StepSpec(name=check_name(name, "the name of a step"), fn=fn, asynchronous=inspect.iscoroutinefunction(fn))
    return body.run_step(spec, args, {}, sys._getframe(1))  # type: ignore[return-value]


def seconds(value: float | timedelta, what: str) -> float:
    """A duration in seconds; raises ValueError when it is negative or no number."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise TypeError(f"{what} is a number of seconds or a timedelta, not {value!r}")
    if not 0 <= number < 1e11:
        raise ValueError(f"{what}={value!r} must not be negative or endless")
    return float(number)


def _retry(retry: Retry | None) -> Retry:
    if retry is None:
        return ONCE
    if not isinstance(retry, Retry):
        raise TypeError(f"retry is a Retry, as in retry=Retry(attempts=3), not {retry!r}")
    return retry
