"""Replay a journal that is not in the store yet, to see whether the code fits it. Writes nothing, calls no step."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.events import Batch, RunClaimed
from perdure.orchestrator.orchestrator import Orchestrator


async def rehearse(orchestrator: Orchestrator, run_id: str, batches: Sequence[Batch]) -> None:
    """Raise what would keep a run with this journal from going on."""
    payloads = orchestrator.payloads
    started, whole = await payloads.with_input(batches), await payloads.inflate(batches)
    failed: list[Exception] = []

    def replay() -> None:
        try:
            replayed = orchestrator.replay(started, run_id, whole)
            try:
                if replayed.state.epoch == 0:
                    replayed.fold(RunClaimed(orchestrator.name, 1), whole[-1].at)
            finally:
                replayed.close()
        except Exception as error:
            failed.append(error)

    await orchestrator.in_callback(replay)
    if failed:
        raise failed[0]
