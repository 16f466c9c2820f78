"""Tell from a journal whether its run takes down whoever advances it. Never parks one itself."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.events import (
    FROM_OUTSIDE,
    AnyEvent,
    Batch,
    RunClaimed,
    RunParked,
    StepStarted,
    Trait,
    events_with,
)
from perdure.kernel.state import POISONED, RunState

_NO_PROGRESS = events_with(Trait.NO_PROGRESS)
# What the run does with these it has not done before; an answer to a wait, and a resumption, are progress themselves.
_NEW_INPUT = FROM_OUTSIDE & _NO_PROGRESS


def fruitless(batches: Sequence[Batch], session: str = "") -> list[str]:
    """The owners that claimed the run one after another and may have died of it, the oldest first.

    An owner that has claimed it twice in a row has lived with it, and did not die of it; one that gave it up did not
    either. If it lived while an attempt was made again that is still not done, that attempt is known to take long, and
    later owners that were gone in the middle of it prove nothing, unless the run was told something since.

    One that claims it again after another, as `session` is about to, was alive all the while: two that cannot see each
    other take a run from each other, and it is not the run's fault.
    """
    lost: dict[str, str] = {}
    last = ""
    # Whether an attempt was made again after the claim that comes before it, and whether something came from outside
    # after the claim that was met last.
    tried = told = told_since = False
    for batch in reversed(batches):
        for event in reversed(batch.events):
            if isinstance(event, RunClaimed):
                if event.session and event.session == last:
                    lost.pop(last, None)
                    return [] if tried and not told_since else list(lost.values())[::-1]
                last, tried, told_since = event.session, False, told
                if not session or event.session != session:
                    lost.setdefault(event.session or str(event.epoch), event.owner)
            elif is_progress(event):
                return list(lost.values())[::-1]
            tried = tried or isinstance(event, StepStarted)
            told = told or type(event) in _NEW_INPUT
    return list(lost.values())[::-1]


def last_claim(batches: Sequence[Batch]) -> RunClaimed | None:
    """The claim that stands last in a journal."""
    claims = (event for batch in reversed(batches) for event in reversed(batch.events))
    return next((event for event in claims if isinstance(event, RunClaimed)), None)


def only_waits(state: RunState, now: float) -> bool:
    """Whether a run has nothing to do before something comes that it waits for: until then it does no harm.

    What is in the journal was written after its body had come to rest, so replay comes to rest there as well.
    """
    busy = state.running or state.held or len(state.ops) == len(state.children)
    told = state.stirred or state.cancel_requested is not None or state.deliverable()
    due = state.wake_at is not None and state.wake_at <= now
    return not (busy or told or due)


def is_progress(event: AnyEvent) -> bool:
    """Whether a run is further for this event. A claim is none, and is counted. A heartbeat is progress."""
    # An attempt that is made again was under way when its owner died.
    return type(event) not in _NO_PROGRESS and not (isinstance(event, StepStarted) and event.attempt > 1)


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
