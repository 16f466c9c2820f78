"""Deliver messages of callers to runs that are in memory here. `kernel/inbound` decides what to record of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias, TypeVar, cast

from perdure.engine.driver import Driver, NotKnown
from perdure.kernel.inbound import UNDECIDED, Accepted, Decide, Decided, Succession, Undecided, events_of
from perdure.kernel.values.raised import contained
from perdure.orchestrator.residency import ACTIVE, WARM
from perdure.orchestrator.session import Session

V = TypeVar("V")
# What was decided, and a future for when it is durable, if it is not yet.
_Answer: TypeAlias = tuple[Decided[V | Accepted] | Undecided, asyncio.Future[None] | None]


class Inbox:
    """Brings messages to the drivers of their runs. `broke` parks a run that an error of the engine stopped."""

    def __init__(self, session: Session, broke: Callable[[Driver, Exception], None]) -> None:
        self._session, self._runs, self._broke = session, session.runs, broke

    async def deliver(self, run_id: str, decide: Decide[V]) -> Decided[V | Accepted] | Undecided:
        """Record what `decide` makes of a run in memory here; its verdict is returned when all of that is durable.

        Undecided when the run is not here any more, or it is not known whether the journal took it.
        """
        caught_up = self._runs.slot(run_id).caught_up
        if caught_up is not None:
            await asyncio.wait([caught_up])  # what was appended before comes first
        loop = self._session.loop
        answer: asyncio.Future[_Answer[V]] = loop.create_future()
        loop.call_soon(self._deliver, run_id, decide, answer)
        outcome, durable = await answer
        if durable is not None:
            try:
                await durable
            except NotKnown:
                return UNDECIDED
        return outcome

    def _deliver(self, run_id: str, decide: Decide[V], answer: asyncio.Future[_Answer[V]]) -> None:
        driver = self._runs.drivers.get(run_id)
        if answer.done():
            return
        try:
            if driver is None or driver.stale or driver.closed or self._session.closing:
                answer.set_result((UNDECIDED, None))
                return
            verdict = decide(driver.state)
        except BaseException as error:
            answer.set_exception(contained(error))
            return
        try:
            events = events_of(verdict)
            if events and run_id in self._runs.of(WARM):
                self._runs.move(self._runs.slot(run_id), ACTIVE)
            if isinstance(verdict, Succession):
                driver.outbox.starts.append(verdict.next)
            # In-memory state may be uncommitted and lose a race; answer only after it is durable.
            durable = driver.accept(*(events or ())) if events or not driver.saved else None
            self._session.acknowledge(driver)
            answer.set_result((Decided(Accepted() if events is not None else cast("V", verdict)), durable))
        except BaseException as error:
            self._broke(driver, contained(error))
            answer.set_result((UNDECIDED, None))  # the caller decides again, and writes to the journal then
