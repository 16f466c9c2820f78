"""What a step can know about the attempt it is in."""

from __future__ import annotations

from contextvars import ContextVar
from datetime import datetime

from perdure.errors import PerdureError
from perdure.kernel.events import moment


class StepContext:
    """One attempt of a step, seen from inside."""

    __slots__ = ("_cancelled", "attempt", "ends", "id", "run_id")

    def __init__(self, id: str, run_id: str, attempt: int, deadline: float | None) -> None:
        self.id = id
        """The idempotency key: the same for every attempt, on every machine."""
        self.run_id = run_id
        self.attempt = attempt
        # When this attempt is timed out; until it is launched, the deadline of its run.
        self.ends = deadline
        self._cancelled = False

    @property
    def deadline(self) -> datetime | None:
        """When this attempt is timed out, or None."""
        return None if self.ends is None else moment(self.ends)

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for this attempt any more: a step in a thread should look, and stop."""
        return self._cancelled

    def cancel(self) -> None:
        """Tell the attempt that nobody waits for it any more."""
        self._cancelled = True


current: ContextVar[StepContext] = ContextVar("perdure_step")


def step_context() -> StepContext:
    """The attempt that this code is part of; raises outside a step."""
    try:
        return current.get()
    except LookupError:
        raise PerdureError("step_context() works only inside a step that a workflow called") from None
