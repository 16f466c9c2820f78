"""A run that goes on from before one of its ops, under its own id. Decides, never writes.

It goes on as a fork of itself: a journal of its own with the past up to there. What people told the run is not
forgotten with the ops that heard of it: signals come to it again, and a cancel still stands. Steps after the point are
done again under other idempotency keys than before: with other code, `work:1` may not be the call that it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from perdure.errors import NotParked
from perdure.kernel.events import (
    AnyEvent,
    Batch,
    CancelRequested,
    RunFinished,
    RunStarted,
    RunStatus,
    SignalReceived,
)
from perdure.kernel.history.fork import Point, before, find, fork, numbered, ops
from perdure.kernel.inbound import Accepted, Finished, refuse_redacted
from perdure.kernel.state import RunState, fold

# What acts on the world, and acts again when the code asks for it again.
_EFFECTS = ("step", "child")


class Truncated(Accepted, frozen=True):
    """The run goes on from before an op, as the incarnation `run_id`.

    `again` are the steps and children that it had begun and no longer knows of: they are done again when the code asks
    for them.
    """

    run_id: str
    again: tuple[str, ...] = ()


def points(batches: Sequence[Batch], op: str) -> list[Point]:
    """Where a run may go on from to be before an op; the first keeps what went on beside it, the last nothing of it."""
    found = find(ops(batches), op)
    most = replace(before(batches, found.path), unsent=frozenset())
    least = Point(found.began)
    return [most] if most == least else [most, least]


def truncate(batches: Sequence[Batch], point: Point, started: RunStarted, now: float) -> list[Batch]:
    """The journal with which a run goes on from a point: its past, and what it was told after it."""
    past = fork(batches, point, started, now)
    state = fold("", past)
    told: list[AnyEvent] = []
    for seq, _, event in numbered(batches):
        sent = isinstance(event, SignalReceived) and event.child not in state.ended
        cancelled = isinstance(event, CancelRequested) and not event.child and state.cancel_requested is None
        if seq >= point.seq and (sent or cancelled):
            told.append(event)
    if told:
        last = past[-1]
        past[-1] = Batch(last.seq, last.at, [*last.events, *told])
    return past


def forgotten(batches: Sequence[Batch], past: Sequence[Batch]) -> tuple[str, ...]:
    """The steps and children of a run that its past up to a point does not hold."""
    kept = ops(past)
    return tuple(op.path for op in ops(batches).values() if op.kind in _EFFECTS and op.path not in kept)


def end(state: RunState, op: str, run_id: str) -> list[AnyEvent] | Finished:
    """How a parked run ends that goes on as another incarnation."""
    if state.finished is not None:
        return Finished(state.finished.status)
    if state.parked is None:
        raise NotParked(state.started.id if state.started else state.run_id, state.status)
    refuse_redacted(state)
    return [RunFinished(RunStatus.CANCELLED, reason=f"it goes on from before {op}", continued_as=run_id)]
