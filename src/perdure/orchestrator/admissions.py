"""Runs on their way out of a queue: which may begin, and who waits to hear whether they did."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perdure.kernel.policies.queues import Queue
from perdure.kernel.state import RunState
from perdure.ports.journal import Full

if TYPE_CHECKING:
    from perdure.orchestrator.orchestrator import Orchestrator


class Admissions:
    """Claims of queued runs that are on their way to the store."""

    def __init__(self) -> None:
        self._expected: dict[str, asyncio.Future[Full | None]] = {}

    def expect(self, run_ids: Sequence[str]) -> list[asyncio.Future[Full | None]]:
        """For each run that is about to be admitted: whether its queue was full, once that is known."""
        loop = asyncio.get_running_loop()
        outcomes: list[asyncio.Future[Full | None]] = [loop.create_future() for _ in run_ids]
        self._expected.update(zip(run_ids, outcomes, strict=True))
        return outcomes

    def settle(self, *run_ids: str, full: Full | None = None) -> None:
        """These runs have begun, were refused, or are no longer tried."""
        for run_id in run_ids:
            outcome = self._expected.pop(run_id, None)
            if outcome is not None and not outcome.done():
                outcome.set_result(full)


def may_begin(orchestrator: Orchestrator, state: RunState, admit: Queue | None) -> bool:
    """Whether a run that nobody has begun may begin now. If not, what comes next is seen to."""
    started = state.started
    assert started is not None
    if started.queue and state.parked is not None:
        # It fits the code again: it goes back into its queue.
        orchestrator.spawn(orchestrator.parking.resume(state))
        return False
    early = started.not_before is not None and started.not_before > orchestrator.clock.now()
    if started.queue and (admit is None or state.paused is not None or early):
        orchestrator.on_queued()
        return False
    if early and started.not_before is not None:
        orchestrator.on_due(started.not_before)
    return not early
