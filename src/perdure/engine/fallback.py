"""An attempt of a fallback: ask what to make of a failure, and do that once. Never decides whether there is one."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from perdure.engine.jobs import Raised, Told
from perdure.errors import StepTimeout
from perdure.kernel.codec import Codec
from perdure.kernel.commands import StepSpec
from perdure.kernel.failures import rebuild, set_cause
from perdure.kernel.fallback import FailedStep, Instead, RetryWith
from perdure.kernel.plan import Call

# Calls a function where steps of its kind run.
Execute = Callable[[StepSpec, list[Any], dict[str, Any]], Coroutine[Any, Any, Any]]


async def fall_back(call: Call, args: list[Any], kwargs: dict[str, Any], codec: Codec, execute: Execute) -> Any:
    """The value that the fallback gives, or that of the call it asks for. What it raises has the failure as its cause.

    Its timeout is the step's, for the fallback itself and again for the step; another step has its own.
    """
    command = call.command
    spec, fallback = command.spec, command.spec.fallback
    assert call.failed is not None
    assert fallback is not None
    original = rebuild(call.failed, codec, spec.errors)
    told = FailedStep(spec.name, command.op, tuple(args), kwargs, call.attempt, original)
    try:
        asked = StepSpec(spec.name, fallback, asynchronous=inspect.iscoroutinefunction(fallback))
        made = await _within(spec.timeout, command.op, execute(asked, [told], {}))
        if isinstance(made, RetryWith | Instead):
            other = made.spec if isinstance(made, Instead) else spec
            made = await _within(other.timeout, command.op, execute(other, list(made.args), made.kwargs))
    except Told as error:
        failure = error.failure
        if failure.cause is None:
            failure = msgspec.structs.replace(failure, cause=call.failed)
        raise Told(msgspec.json.encode(failure)) from None
    except Exception as error:
        set_cause(error.error if type(error) is Raised else error, original)
        raise
    return made


async def _within(timeout: float | None, op: str, work: Coroutine[Any, Any, Any]) -> Any:
    """What `work` returns; StepTimeout at once when its time is up, whether or not it heeds its cancellation."""
    if timeout is None:
        return await work
    task = asyncio.get_running_loop().create_task(work)
    try:
        await asyncio.wait([task], timeout=timeout)
        if not task.done():
            raise StepTimeout(op, timeout)
        return task.result()
    finally:
        task.cancel()
