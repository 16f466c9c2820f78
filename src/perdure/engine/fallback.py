"""An attempt of a fallback: call it with the failure, and perform the call that it returns. The kernel plans it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from perdure.engine.executor_call import Raised, RemoteError
from perdure.errors import StepTimeout
from perdure.kernel.commands import StepSpec
from perdure.kernel.plan import Call
from perdure.kernel.policies.fallback import FailedStep, Instead, RetryWith
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.failures import rebuild, set_cause

# Executes a function where steps of its kind run, and reports when it begins.
Execute = Callable[[StepSpec, list[Any], dict[str, Any], Callable[[], None] | None], Coroutine[Any, Any, Any]]


async def fall_back(call: Call, args: list[Any], kwargs: dict[str, Any], codec: Codec, execute: Execute) -> Any:
    """The value of the fallback, or of the call that it returns. Its errors have the failure as their cause.

    The step's timeout applies to the fallback and again to another call of the step; another step has its own.
    """
    command = call.command
    spec, fallback = command.spec, command.spec.fallback
    assert call.failed is not None
    assert fallback is not None
    original = rebuild(call.failed, codec, spec.errors)
    failed = FailedStep(spec.name, command.op, tuple(args), kwargs, call.attempt, original)
    try:
        asked = StepSpec(spec.name, fallback, asynchronous=inspect.iscoroutinefunction(fallback))
        made = await _within(spec.timeout, command.op, lambda begun: execute(asked, [failed], {}, begun))
        if isinstance(made, RetryWith | Instead):
            other, args, kwargs = made.spec if isinstance(made, Instead) else spec, list(made.args), made.kwargs
            made = await _within(other.timeout, command.op, lambda begun: execute(other, args, kwargs, begun))
    except RemoteError as error:
        failure = error.failure
        if failure.cause is None:
            failure = msgspec.structs.replace(failure, cause=call.failed)
        raise RemoteError(msgspec.json.encode(failure)) from None
    except Exception as error:
        set_cause(error.error if type(error) is Raised else error, original)
        raise
    return made


async def _within(
    timeout: float | None, op: str, begin: Callable[[Callable[[], None] | None], Coroutine[Any, Any, Any]]
) -> Any:
    """The result of a call; StepTimeout when its time is up, even if it ignores its cancellation.

    The time counts from the call of the function, not while it waits for a thread.
    """
    if timeout is None:
        return await begin(None)
    loop = asyncio.get_running_loop()
    late: asyncio.Future[None] = loop.create_future()

    def begun() -> None:
        loop.call_soon_threadsafe(count)

    def count() -> None:
        if not late.done():
            timer = loop.call_later(timeout, late.set_result, None)
            late.add_done_callback(lambda _: timer.cancel())

    task = loop.create_task(begin(begun))
    try:
        await asyncio.wait([task, late], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise StepTimeout(op, timeout)
        return task.result()
    finally:
        task.cancel()
        late.cancel()
