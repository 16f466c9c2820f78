"""Deliver messages of callers to runs that are in memory here. What they come to is decided in `kernel/inbound`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from perdure.engine.driver import Driver, NotKnown
from perdure.kernel.events import CancelRequested, RunFinished, RunStatus
from perdure.kernel.inbound import Accepted
from perdure.kernel.state import RunState
from perdure.kernel.values.raised import contained
from perdure.orchestrator.lifecycle import Lifecycle, Owner
from perdure.orchestrator.residency import ACTIVE, WARM, RunTable


class Inbox:
    """Brings messages to the drivers of their runs. `broke` parks a run that an error of the engine stopped."""

    def __init__(
        self, runs: RunTable, lifecycle: Lifecycle, owner: Owner, broke: Callable[[Driver, Exception], None]
    ) -> None:
        self._runs, self._lifecycle, self._owner, self._broke = runs, lifecycle, owner, broke

    async def deliver(self, run_id: str, decide: Callable[[RunState], Any]) -> Any:
        """Record what `decide` makes of a run in memory here; its verdict is returned when all of that is durable.

        None when the run is not here any more, or it is not known whether the journal took it: ask again.
        """
        caught_up = self._runs.slot(run_id).caught_up
        if caught_up is not None:
            await asyncio.wait([caught_up])  # what was appended before comes first
        loop = self._lifecycle.loop
        answer: asyncio.Future[tuple[Any, asyncio.Future[None] | None]] = loop.create_future()
        loop.call_soon(self._deliver, run_id, decide, answer)
        verdict, durable = await answer
        if durable is not None:
            try:
                await durable
            except NotKnown:
                return None
        return verdict

    def _deliver(self, run_id: str, decide: Callable[[RunState], Any], answer: asyncio.Future[Any]) -> None:
        driver = self._runs.drivers.get(run_id)
        if answer.done():
            return
        try:
            if driver is None or driver.stale or driver.closed or self._lifecycle.closing:
                answer.set_result((None, None))
                return
            verdict = decide(driver.state)
        except BaseException as error:
            answer.set_exception(contained(error))
            return
        try:
            events = verdict if isinstance(verdict, Sequence) else ()
            if events and run_id in self._runs.of(WARM):
                self._runs.move(self._runs.slot(run_id), ACTIVE)
            # In-memory state may be uncommitted and lose a race; answer only after it is durable.
            durable = driver.accept(*events) if events or not driver.saved else None
            self._owner.acknowledge(driver)
            answer.set_result((Accepted() if isinstance(verdict, Sequence) else verdict, durable))
        except BaseException as error:
            self._broke(driver, contained(error))
            answer.set_result((None, None))  # the caller asks again, and writes to the journal then

    async def terminate(self, run_id: str, reason: str) -> bool:
        """End a run that is in memory here; False when it is not, or has ended by itself."""
        loop = self._lifecycle.loop
        done: asyncio.Future[bool] = loop.create_future()
        loop.call_soon(self._terminate, run_id, reason, done)
        return await done

    def _terminate(self, run_id: str, reason: str, done: asyncio.Future[bool]) -> None:
        driver = self._runs.drivers.get(run_id)
        here = driver is not None and driver.state.finished is None and not driver.stale
        if driver is not None and here:
            try:
                driver.record(CancelRequested(reason), RunFinished(RunStatus.CANCELLED, reason=reason))
            except BaseException as error:
                self._broke(driver, contained(error))
                here = False
        if not done.done():
            done.set_result(here)
