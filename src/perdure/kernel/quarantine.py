"""Tell from a journal whether its run takes down whoever advances it. Never parks one itself."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.events import (
    AnyEvent,
    Batch,
    CancelRequested,
    ChunkAppended,
    RunClaimed,
    RunParked,
    RunPaused,
    SignalReceived,
    SnapshotTaken,
    StepProgressed,
    StepStarted,
)
from perdure.kernel.state import POISONED, RunState

# What the owner does anyway, what a step shows on its way, and what others send: a run is no further for it.
_NO_PROGRESS = (RunClaimed, SnapshotTaken, ChunkAppended, StepProgressed, SignalReceived, CancelRequested, RunPaused)


def fruitless(batches: Sequence[Batch], session: str = "") -> list[str]:
    """The owners that claimed the run one after another and got no further with it, the oldest first.

    An owner that has claimed it twice in a row was there for longer, and did not die of it; one that gave it up did not
    either. One that claims it again after another, as `session` is about to, was alive all the while: two that cannot
    see each other take a run from each other, and it is not the run's fault.
    """
    lost: dict[str, str] = {}
    last = ""
    for batch in reversed(batches):
        for event in reversed(batch.events):
            if isinstance(event, RunClaimed):
                if event.session and event.session == last:
                    lost.pop(last, None)
                    return list(lost.values())[::-1]
                last = event.session
                if not session or event.session != session:
                    lost.setdefault(event.session or str(event.epoch), event.owner)
            elif is_progress(event):
                return list(lost.values())[::-1]
    return list(lost.values())[::-1]


def last_claim(batches: Sequence[Batch]) -> RunClaimed | None:
    """The claim that stands last in a journal."""
    claims = (event for batch in reversed(batches) for event in reversed(batch.events))
    return next((event for event in claims if isinstance(event, RunClaimed)), None)


def only_waits(state: RunState, now: float) -> bool:
    """Whether a run has nothing to do before a lock comes free that it waits for: until then it does no harm."""
    busy = state.running or state.held or len(state.ops) == len(state.children)
    told = state.stirred or state.cancel_requested is not None or state.deliverable()
    due = state.wake_at is not None and state.wake_at <= now
    return bool(state.lock_waits) and not (busy or told or due)


def is_progress(event: AnyEvent) -> bool:
    """Whether a run is further for this event. A claim is none, and is counted."""
    # An attempt that is made again was under way when its owner died.
    return not isinstance(event, _NO_PROGRESS) and not (isinstance(event, StepStarted) and event.attempt > 1)


def poisoned(state: RunState, owners: Sequence[str]) -> RunParked:
    """The event that takes a run out of circulation, and what a person should know."""
    under_way = [
        f"  {path}, attempt {op.attempt}" + (f", at {op.source}" if op.source else "")
        for path, op in state.ops.items()
        if op.running
    ]
    what = "\n".join(["Under way were:", *under_way]) if under_way else "No step was under way: look at the body."
    id = state.started.id if state.started is not None else state.run_id
    return RunParked(
        f"{len(owners)} orchestrators took this run up one after another, and each was gone before the run got any\n"
        f"further: {', '.join(owners)}. It may take down the process it runs in: memory, a signal, os._exit, a loop\n"
        f"that never ends.\n{what}\n"
        f"Mend it, then let it go on: perdure resolve {id}; or end it: perdure resolve {id} --fail REASON",
        POISONED,
    )
