"""Steps in virtual time: how long each execution takes is drawn from the seed. Starts no thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any

from perdure.engine.jobs import Job
from perdure.engine.step_context import StepContext
from perdure.testing.simulation.faults import Faults
from perdure.testing.simulation.monitor import Monitor
from perdure.testing.simulation.world import Machine


class VirtualExecutor(Executor):
    """Runs the steps of one machine: plain functions as an executor, coroutines by wrapping them."""

    def __init__(self, machine: Machine, faults: Faults, monitor: Monitor) -> None:
        self._machine, self._faults, self._monitor = machine, faults, monitor
        machine.loop.wrap_step = self.wrap

    def _times(self) -> tuple[float, float]:
        """How long an execution takes before and after the step's own code."""
        chance = self._machine.world.chance
        duration = chance.choice(self._faults.durations)
        # The effect may come at the beginning or at the end: a crash in between is another crash.
        return (0.0, duration) if chance.random() < 0.5 else (duration, 0.0)

    def _begin(self, context: StepContext) -> None:
        self._monitor.executing(
            self._machine, context.run_id, context.id.removeprefix(f"{context.run_id}/"), context.attempt
        )

    def _end(self, context: StepContext, error: BaseException | None) -> None:
        how = "returned" if error is None else f"raised {type(error).__name__}"
        self._monitor.note(self._machine.name, f"{how} {context.id} #{context.attempt}")

    async def wrap(self, context: StepContext, coro: Coroutine[Any, Any, Any]) -> Any:
        """Await a step's coroutine, and take some time over it."""
        before, after = self._times()
        try:
            if before:
                await asyncio.sleep(before)
            self._begin(context)
            try:
                value = await coro
            except BaseException as error:
                self._end(context, error)
                raise
            if after:
                await asyncio.sleep(after)
            self._end(context, None)
            return value
        finally:
            coro.close()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function after some virtual time, and answer after some more."""
        future: Future[Any] = Future()
        before, after = self._times()
        loop = self._machine.loop
        context = fn.step if isinstance(fn, Job) else None

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            if context is not None:
                self._begin(context)
            try:
                value = fn(*args, **kwargs)
            except Exception as error:
                loop.call_later(after, settle, None, error)
            else:
                loop.call_later(after, settle, value, None)

        def settle(value: Any, error: BaseException | None) -> None:
            if context is not None:
                self._end(context, error)
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(value)

        loop.call_later(before, call)
        return future
