"""Whether a run can go on without a person. Decides, and waits for nothing."""

from __future__ import annotations

from perdure.kernel.state import RunState

# What comes from outside, and from nowhere else.
ASKED = frozenset({"approval", "signal"})


def at_rest(state: RunState) -> bool:
    """Whether nothing of a run goes on until a person acts: it asks, and runs nothing, or it is paused or parked.

    The time that its questions themselves give is not counted: a deadline of theirs is no work. A timer is.
    """
    if state.finished is not None or state.parked is not None:
        return True
    if state.running or state.held or state.stirred or state.epoch == 0 or state.lock_waits:
        return state.paused is not None and not state.running
    if state.paused is not None:
        return True
    return (
        bool(questions(state))
        and not state.deliverable()
        and all(op.kind in ASKED or op.kind == "child" for op in state.ops.values())
    )


def questions(state: RunState) -> list[str]:
    """The op paths of what a run, and its children, ask for, in the order they asked."""
    return [path for path, op in state.ops.items() if op.kind in ASKED]
