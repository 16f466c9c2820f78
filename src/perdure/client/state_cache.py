"""Folded journals of runs that receive messages repeatedly: only the tail is read each time."""

from __future__ import annotations

from collections import OrderedDict

from perdure.kernel.events import FROM_OUTSIDE, AnyEvent, StepOutcome
from perdure.kernel.state import RunState
from perdure.ports.journal import Journal

LIMIT = 64
# So many batches take longer to read than others take to append.
LONG = 256


class CallerState(RunState):
    """A run as its callers see it. Counts the events from outside since its owner last wrote."""

    __slots__ = ("external",)

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.external = 0

    def fold(self, event: AnyEvent, at: float) -> None:
        """Apply one event."""
        outside = type(event) in FROM_OUTSIDE
        if not outside and isinstance(event, StepOutcome):
            # The outcome of a remote step is written by its worker.
            op = self.ops.get(event.op)
            outside = op is not None and op.kind == "remote"
        self.external = self.external + 1 if outside else 0
        super().fold(event, at)


class StateCache:
    """The runs that were read last, each as far as its journal has been read."""

    def __init__(self) -> None:
        self._states: OrderedDict[str, CallerState] = OrderedDict()

    async def read(self, journal: Journal, run_id: str) -> CallerState:
        """The state of a run after everything that is in its journal now."""
        # Taken out while it is read: two callers must not fold the same tail twice.
        state = self._states.pop(run_id, None) or CallerState(run_id)
        while True:
            batches = await journal.read(run_id, state.next_seq)
            state.fold_batches(batches)
            if len(batches) < LONG:
                return state
            # Reading took a while, and an append that is decided on this state would lose to what came meanwhile.

    def remember(self, state: CallerState) -> None:
        """Keep a state that agrees with the store."""
        self._states[state.run_id] = state
        if len(self._states) > LIMIT:
            self._states.popitem(last=False)

    def forget(self, run_id: str) -> None:
        """Read this run from its beginning next time."""
        self._states.pop(run_id, None)
