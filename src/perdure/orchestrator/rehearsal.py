"""Replay a journal that is not in the store yet, to see whether the code fits it. Writes nothing, calls no step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perdure.kernel.events import Batch, RunClaimed, RunStarted
from perdure.kernel.history.retry_points import check_retry as rehearse_retry
from perdure.kernel.values.raised import contained

if TYPE_CHECKING:
    from perdure.orchestrator.orchestrator import Orchestrator


async def rehearse(orchestrator: Orchestrator, run_id: str, batches: Sequence[Batch]) -> None:
    """Raise what would keep a run with this journal from going on."""
    payloads = orchestrator.payloads
    started, whole = await payloads.with_input(batches), await payloads.inflate(batches)
    failed: list[Exception] = []

    def replay() -> None:
        try:
            play(orchestrator, run_id, started, whole)
        except BaseException as error:
            failed.append(contained(error))

    await orchestrator.in_callback(replay)
    if failed:
        raise failed[0]


def play(orchestrator: Orchestrator, run_id: str, started: RunStarted, batches: Sequence[Batch]) -> None:
    """As `rehearse`, in a callback, with all values in place."""
    replayed = orchestrator.replay(started, run_id, batches)
    try:
        if replayed.state.epoch == 0:
            replayed.fold(RunClaimed(orchestrator.name, 1), batches[-1].at)
            if replayed.state.kept is not None:
                rehearse_retry(replayed, started.id, "failed", batches[-1].at)
    finally:
        replayed.close()
