"""What callers tell runs that are in memory here. What it comes to is decided in `kernel/inbound`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from perdure.engine.driver import NotKnown
from perdure.kernel.events import CancelRequested, RunFinished, RunStatus
from perdure.kernel.inbound import Accepted
from perdure.kernel.state import RunState
from perdure.kernel.values.raised import contained

if TYPE_CHECKING:
    from perdure.orchestrator.orchestrator import Orchestrator


class Teller:
    """Brings what callers say to the drivers of their runs."""

    def __init__(self, orchestrator: Orchestrator) -> None:
        self._orchestrator = orchestrator

    async def tell(self, run_id: str, decide: Callable[[RunState], Any]) -> Any:
        """Record what `decide` makes of a run in memory here; what it says is answered when all of that is durable.

        None when the run is not here any more, or nobody knows yet whether the journal took it: ask again.
        """
        reading = self._orchestrator.tails.reading.get(run_id)
        if reading is not None:
            await asyncio.wait([reading])  # what others wrote comes first
        loop = self._orchestrator.loop
        answer: asyncio.Future[tuple[Any, asyncio.Future[None] | None]] = loop.create_future()
        loop.call_soon(self._tell, run_id, decide, answer)
        verdict, durable = await answer
        if durable is not None:
            try:
                await durable
            except NotKnown:
                return None
        return verdict

    def _tell(self, run_id: str, decide: Callable[[RunState], Any], answer: asyncio.Future[Any]) -> None:
        orchestrator = self._orchestrator
        driver = orchestrator.active.get(run_id)
        if answer.done():
            return
        try:
            if driver is None or driver.stale or driver.closed or orchestrator.closing:
                answer.set_result((None, None))
                return
            verdict = decide(driver.state)
        except BaseException as error:
            answer.set_exception(contained(error))
            return
        try:
            events = verdict if isinstance(verdict, Sequence) else ()
            # In-memory state may be uncommitted and lose a race; answer only after it is durable.
            durable = driver.accept(*events) if events or not driver.saved else None
            orchestrator.acknowledge(driver)
            answer.set_result((Accepted() if isinstance(verdict, Sequence) else verdict, durable))
        except BaseException as error:
            orchestrator.broke(driver, contained(error))
            answer.set_result((None, None))  # the caller asks again, and tells the journal then

    async def terminate(self, run_id: str, reason: str) -> bool:
        """End a run that is in memory here; False when it is not, or has ended by itself."""
        loop = self._orchestrator.loop
        done: asyncio.Future[bool] = loop.create_future()
        loop.call_soon(self._terminate, run_id, reason, done)
        return await done

    def _terminate(self, run_id: str, reason: str, done: asyncio.Future[bool]) -> None:
        driver = self._orchestrator.active.get(run_id)
        here = driver is not None and driver.state.finished is None and not driver.stale
        if driver is not None and here:
            try:
                driver.record(CancelRequested(reason), RunFinished(RunStatus.CANCELLED, reason=reason))
            except BaseException as error:
                self._orchestrator.broke(driver, contained(error))
                here = False
        if not done.done():
            done.set_result(here)
