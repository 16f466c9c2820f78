"""Steps in virtual time: how long each execution takes is drawn from the seed. Starts no thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from perdure.engine.step_context import StepContext
from perdure.engine.steps import EveryStepExecutor
from perdure.testing.simulation.faults import Faults
from perdure.testing.simulation.monitor import Monitor
from perdure.testing.simulation.world import Machine


class VirtualExecutor(EveryStepExecutor):
    """Runs the steps of one machine: wraps the coroutine of each attempt, and is the pool for plain functions."""

    def __init__(self, machine: Machine, faults: Faults, monitor: Monitor) -> None:
        self._machine, self._faults, self._monitor = machine, faults, monitor
        machine.loop.wrap_step = self.wrap

    def _times(self) -> tuple[float, float]:
        """How long an execution takes before and after the step's own code."""
        chance = self._machine.world.chance
        duration = chance.choice(self._faults.durations)
        # The effect may come at the beginning or at the end of the time: a crash in between differs.
        return (0.0, duration) if chance.random() < 0.5 else (duration, 0.0)

    def wrap(self, context: StepContext, coro: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
        """Wrap the coroutine of a step so that it takes virtual time."""
        self._monitor.launching(self._machine, *_attempt(context))
        return self._taking_time(context, lambda: coro, *self._times())

    async def call(self, context: StepContext, fn: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
        self._monitor.launching(self._machine, *_attempt(context))
        return await self._taking_time(context, lambda: fn(*args, **kwargs), *self._times())

    async def _taking_time(
        self, context: StepContext, begin: Callable[[], Coroutine[Any, Any, Any]], before: float, after: float
    ) -> Any:
        if before:
            await asyncio.sleep(before)
        self._monitor.executing(self._machine, *_attempt(context), _path(context))
        try:
            value = await begin()
            if after:
                await asyncio.sleep(after)
        except BaseException as error:
            self._monitor.executed(self._machine, *_attempt(context), error)
            raise
        self._monitor.executed(self._machine, *_attempt(context), None)
        return value

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a plain function at once: the wrapped coroutine that calls it takes the virtual time."""
        future: Future[Any] = Future()
        self._machine.in_function = True
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        finally:
            self._machine.in_function = False
        return future


def _attempt(context: StepContext) -> tuple[str, str, int]:
    """The run of an attempt, the op in its journal, and its number."""
    assert context._call is not None
    return context.run_id, context._call.command.op, context.attempt


def _path(context: StepContext) -> str:
    """The op path of an attempt, as users know it: of an item of a chunk, it is not the op in its run.

    The idempotency key has it, behind a run_id without slashes.
    """
    own = f"{context.run_id}/"
    return context.id.removeprefix(own) if context.id.startswith(own) else context.id.partition("/")[2]
