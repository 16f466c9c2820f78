"""Folded journals of runs that receive messages again and again. Only the tail is read each time."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from perdure.errors import AnswerRejected, SignalRejected
from perdure.kernel.events import FROM_OUTSIDE, AnyEvent, StepOutcome, WaitOpened
from perdure.kernel.state import RunState
from perdure.ports.journal import Journal

LIMIT = 64
# So many batches take longer to read than others take to append.
LONG = 256


class CallerState(RunState):
    """A run as its callers see it. Counts the events that they appended since its owner last wrote."""

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
    """The last few runs, as far as their journals have been read."""

    def __init__(self) -> None:
        self._states: OrderedDict[str, CallerState] = OrderedDict()

    async def read(self, journal: Journal, run_id: str) -> CallerState:
        """The state of a run after everything that is in its journal now."""
        # Taken out while it is read: two callers must not fold the same tail twice.
        state = self._states.pop(run_id, None) or CallerState(run_id)
        while True:
            batches = await journal.read(run_id, state.next_seq)
            for batch in batches:
                for event in batch.events:
                    state.fold(event, batch.at)
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


def check_answer(asked: WaitOpened, answer: bytes) -> None:
    """Raise AnswerRejected when an answer does not fit the schema of what was asked."""
    if misfit := _misfit(asked, answer):
        raise AnswerRejected(asked.name, *misfit)


def check_signal(asked: WaitOpened, payload: bytes) -> None:
    """Raise SignalRejected when a signal does not fit the type that a run waits for."""
    if misfit := _misfit(asked, payload):
        raise SignalRejected(asked.name, *misfit)


def _misfit(asked: WaitOpened, value: bytes) -> tuple[str, str] | None:
    """Where a value does not fit the schema of what was asked for, and why."""
    schema = msgspec.json.decode(asked.schema)
    if schema is None:
        return None
    import jsonschema_rs

    for error in jsonschema_rs.validator_for(schema).iter_errors(msgspec.json.decode(value)):
        path = "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
        return path, error.message
    return None
