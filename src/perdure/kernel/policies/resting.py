"""Whether a run can continue without a person. Decides, never waits."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.chunks import open_chunks
from perdure.kernel.state import RunState

# Waits that only an external event resolves.
ASKED = frozenset({"approval", "signal"})


def at_rest(state: RunState, chunks: Sequence[RunState] = ()) -> bool:
    """Whether nothing in a run continues until a person acts: it only waits for external events, is paused or parked.

    The timeout of an approval or a signal does not count as work. A timer does. `chunks` are the runs of its chunks
    that are under way, as far as they are known.
    """
    if state.finished is not None or state.parked is not None:
        return True
    if state.running or state.held or state.has_external_event or state.epoch == 0 or state.lock_waits:
        return state.paused is not None and not state.running
    if state.paused is not None:
        return True
    own = open_chunks(state)
    under_way = [one for one in chunks if one.started is not None and one.started.id in own.values()]
    return (
        bool(under_way or questions(state))
        and state.next_delivery is None
        and all(op.kind in ASKED or op.kind == "child" or path in own for path, op in state.ops.items())
        and len(under_way) == len(own)
        and all(one.finished is None and at_rest(one, chunks) for one in under_way)
    )


def questions(state: RunState) -> list[str]:
    """The op paths of the open approvals and signals of a run and its children, in order."""
    return [path for path, op in state.ops.items() if op.kind in ASKED]
