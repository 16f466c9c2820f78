"""What the claims in a journal say: who owns a run, and whether the run kills its owners. Decides, never parks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.kernel.events import (
    FROM_OUTSIDE,
    OF_STEPS,
    AnyEvent,
    Batch,
    RunClaimed,
    RunFinished,
    RunParked,
    RunReleased,
    RunResumed,
    StepStarted,
    Trait,
    events_with,
)
from perdure.kernel.state import IMPORTED, POISONED, REDACTED, RunState


class Standing(NamedTuple):
    """How a run stands by the end of its journal: finished, parked until it is resolved by hand, or claimed."""

    finished: bool = False
    stays_parked: bool = False
    # The claim in force; a parked run has none.
    claim: RunClaimed | None = None


def standing(batches: Sequence[Batch]) -> Standing:
    """How a run stands. Reads its journal backwards, and folds nothing: it is cheap enough before replay."""
    resumed = released = False
    for batch in reversed(batches):
        for event in reversed(batch.events):
            if type(event) in OF_STEPS:
                continue
            if isinstance(event, RunFinished):
                return Standing(finished=True)
            if isinstance(event, RunClaimed):
                return Standing(claim=None if released else event)
            if isinstance(event, RunParked) and not resumed:
                return Standing(stays_parked=event.kind in (IMPORTED, REDACTED, POISONED))
            resumed = resumed or isinstance(event, RunResumed)
            released = released or isinstance(event, RunReleased)
    return Standing()


_NO_PROGRESS = events_with(Trait.NO_PROGRESS)
# External events that give the run new work. An answer to a wait and a resumption count as progress themselves.
_NEW_INPUT = FROM_OUTSIDE & _NO_PROGRESS


def owners_without_progress(batches: Sequence[Batch], session: str = "") -> list[str]:
    """The owners that claimed the run without progress and may have been killed by it, the oldest first.

    An owner that claimed the run twice in a row, or released it, survived it. If it survived a repeated attempt that is
    still open, that attempt is known to take long, and the death of later owners during it proves nothing, unless the
    run has received an external event since.

    An owner that claims the run again after another owner, as `session` is about to, was alive all along: two
    orchestrators that cannot see each other take the run over from each other, which is not the run's fault.
    """
    lost: dict[str, str] = {}
    last = ""
    # Going backwards: whether an attempt began after the next claim to be met, whether there was an external event so
    # far, and whether there was one after the claim that was met last.
    tried = external = external_since = False
    for batch in reversed(batches):
        for event in reversed(batch.events):
            if isinstance(event, RunClaimed):
                if event.session and event.session == last:
                    lost.pop(last, None)
                    return [] if tried and not external_since else list(lost.values())[::-1]
                last, tried, external_since = event.session, False, external
                if not session or event.session != session:
                    lost.setdefault(event.session or str(event.epoch), event.owner)
            elif is_progress(event):
                return list(lost.values())[::-1]
            tried = tried or isinstance(event, StepStarted)
            external = external or type(event) in _NEW_INPUT
    return list(lost.values())[::-1]


def only_waits(state: RunState, now: float) -> bool:
    """Whether a run does nothing until what it waits for arrives, and so cannot kill its owner until then.

    The journal was written after the body had become idle, so replay leaves it idle too.
    """
    busy = state.running or state.held or len(state.ops) == len(state.children)
    unprocessed = state.has_external_event or state.cancel_requested is not None or state.next_delivery
    due = state.wake_at is not None and state.wake_at <= now
    return not (busy or unprocessed or due)


def is_progress(event: AnyEvent) -> bool:
    """Whether an event is progress of the run. A claim is not; a heartbeat of a step is."""
    # A repeated attempt is not: the previous one was running when its owner died.
    return type(event) not in _NO_PROGRESS and not (isinstance(event, StepStarted) and event.attempt > 1)


def poisoned(state: RunState, owners: Sequence[str]) -> RunParked:
    """The event that parks a run in quarantine, with what an operator should know."""
    running = [
        f"  {path}, attempt {op.attempt}" + (f", at {op.source}" if op.source else "")
        for path, op in state.ops.items()
        if op.running
    ]
    what = "\n".join(["Running steps were:", *running]) if running else "No step was running: look at the body."
    id = state.started.id if state.started is not None else state.run_id
    return RunParked(
        f"{len(owners)} orchestrators claimed this run one after another, and each died before the run made any\n"
        f"progress: {', '.join(owners)}. It may kill the process it runs in: memory, a signal, os._exit, an endless\n"
        f"loop.\n{what}\n"
        f"Fix it, then let it continue: perdure resolve {id}; or end it: perdure resolve {id} --fail REASON",
        POISONED,
    )
