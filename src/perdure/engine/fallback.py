"""An attempt of a fallback: ask what to make of a failure, and do that once. Never decides whether there is one."""

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

# Calls a function where steps of its kind run, and says when that begins.
Execute = Callable[[StepSpec, list[Any], dict[str, Any], Callable[[], None] | None], Coroutine[Any, Any, Any]]


async def fall_back(call: Call, args: list[Any], kwargs: dict[str, Any], codec: Codec, execute: Execute) -> Any:
    """The value that the fallback gives, or that of the call it asks for. What it raises has the failure as its cause.

    Its timeout is the step's, for the fallback itself and again for the step; another step has its own.
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
    """What a call returns; StepTimeout when its time is up, whether or not it heeds its cancellation.

    Its time counts from when its function is called, and not while it waits for a thread.
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
