"""Read the claim in force from the end of a journal, without folding it: cheap enough before replay."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.events import Batch, RunClaimed, RunFinished, RunParked, RunReleased, RunResumed, RunStarted
from perdure.kernel.state import IMPORTED, POISONED, REDACTED


def stays_parked(batches: Sequence[Batch]) -> bool:
    """Whether a run stays parked until it is resolved, whatever code there is."""
    for batch in reversed(batches):
        for event in reversed(batch.events):
            if isinstance(event, RunParked):
                return event.kind in (IMPORTED, REDACTED, POISONED)
            if isinstance(event, RunResumed | RunClaimed | RunStarted):
                return False
    return False


def claim_in_force(batches: Sequence[Batch]) -> tuple[bool, RunClaimed | None]:
    """Whether the run has finished, and the claim in force; a parked run has none."""
    resumed = False
    for batch in reversed(batches):
        for event in reversed(batch.events):
            if isinstance(event, RunClaimed):
                return False, event
            resumed |= isinstance(event, RunResumed)
            if isinstance(event, RunParked) and not resumed:
                return False, None
            if isinstance(event, RunReleased | RunStarted):
                return False, None
            if isinstance(event, RunFinished):
                return True, None
    return False, None
