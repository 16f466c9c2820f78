"""Rewind a run: continue it from before one of its ops, under its own id. Decides, never writes.

The run continues as a fork of itself, in a new journal with the past up to that op. Signals and a cancellation that it
received later are kept and delivered again. Steps after the point run again under other idempotency keys: with other
code, `work:1` may be a different call.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from perdure.errors import NotParked
from perdure.kernel.events import (
    AnyEvent,
    Batch,
    CancelRequested,
    ChildFinished,
    RunFinished,
    RunStarted,
    RunStatus,
    SignalReceived,
    numbered,
)
from perdure.kernel.history.fork import Point, before, fork
from perdure.kernel.history.ops import find, ops
from perdure.kernel.inbound import Accepted, Finished, refuse_redacted
from perdure.kernel.state import RunState, fold

# Ops with side effects, which are repeated when the code asks for them again.
_EFFECTS = ("step", "child")


class Truncated(Accepted, frozen=True):
    """The run continues from before an op, as the incarnation `run_id`.

    `again` are the steps and children that were dropped with the later events; they run again if the code asks for
    them.
    """

    run_id: str
    again: tuple[str, ...] = ()


def points(batches: Sequence[Batch], op: str) -> list[Point]:
    """The points from which a run can continue before an op: with the outcomes of concurrent ops, and without them."""
    found = find(ops(batches), op)
    most = replace(before(batches, found.path), unsent=frozenset())
    least = Point(found.began)
    return [most] if most == least else [most, least]


def truncate(batches: Sequence[Batch], point: Point, started: RunStarted, now: float) -> list[Batch]:
    """The journal of the rewound run: the past up to the point, and the external events after it."""
    past = fork(batches, point, started, now)
    state = fold("", past)
    ended = {event.op for _, _, event in numbered(past) if isinstance(event, ChildFinished)}
    external: list[AnyEvent] = []
    for seq, _, event in numbered(batches):
        sent = isinstance(event, SignalReceived) and event.child not in ended
        cancelled = isinstance(event, CancelRequested) and not event.child and state.cancel_requested is None
        if seq >= point.seq and (sent or cancelled):
            external.append(event)
    if external:
        last = past[-1]
        past[-1] = Batch(last.seq, last.at, [*last.events, *external])
    return past


def forgotten(batches: Sequence[Batch], past: Sequence[Batch]) -> tuple[str, ...]:
    """The steps and children of a run that the rewound journal does not hold."""
    kept = ops(past)
    return tuple(op.path for op in ops(batches).values() if op.kind in _EFFECTS and op.path not in kept)


def end(state: RunState, op: str, run_id: str) -> list[AnyEvent] | Finished:
    """The end of a parked run that continues as another incarnation."""
    if state.finished is not None:
        return Finished(state.finished.status)
    if state.parked is None:
        raise NotParked(state.started.id if state.started else state.run_id, state.status)
    refuse_redacted(state)
    return [RunFinished(RunStatus.CANCELLED, reason=f"it continues from before {op}", continued_as=run_id)]
