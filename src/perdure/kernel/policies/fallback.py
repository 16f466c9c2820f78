"""The argument of a fallback, and what it can return in place of a value. Calls nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ParamSpec

from perdure.errors import UsageError
from perdure.kernel.commands import StepSpec

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class FailedStep:
    """A step whose last attempt failed, as its fallback sees it."""

    name: str
    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    attempt: int
    """The number of the fallback's own attempt: one more than the attempts before it."""
    error: BaseException
    """The exception of the last attempt, rebuilt from the journal: the same after a crash."""


@dataclass(frozen=True, slots=True, eq=False)
class RetryWith:
    """Call the same step once more, with other arguments. Made by `retry_with`."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Instead:
    """Call another step once. Made by `instead`."""

    spec: StepSpec
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def retry_with(*args: Any, **kwargs: Any) -> Any:
    """From a fallback: call the step once more, with these arguments in place of its own."""
    return RetryWith(args, kwargs)


def instead(step: Callable[P, Awaitable[Any]], /, *args: P.args, **kwargs: P.kwargs) -> Any:
    """From a fallback: call another step once, and use its result in place of that of the failed step."""
    spec = getattr(step, "spec", None)
    if not isinstance(spec, StepSpec):
        raise UsageError(f"instead() takes a step and its arguments, as in instead(ask_locally, prompt), not {step!r}")
    return Instead(spec, args, kwargs)
