"""The events of a run that are not in the store yet. Decides neither what nor when to append."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from perdure.kernel.events import AnyEvent, Batch, WaitOpened, events_in
from perdure.kernel.policies.queues import Queue
from perdure.kernel.projection import RunRow, child_rows, row, row_key
from perdure.kernel.state import RunState
from perdure.ports.appends import extend
from perdure.ports.journal import Append

if TYPE_CHECKING:
    from perdure.kernel.plan import Start


class Outbox:
    """Closed batches, the open batch, and the pending append."""

    __slots__ = (
        "_next",
        "_row_key",
        "_running",
        "_state",
        "admit",
        "at",
        "batches",
        "committed",
        "events",
        "in_flight",
        "same_row",
        "starts",
        "unplanned",
        "wanted",
    )

    def __init__(self, state: RunState) -> None:
        self._state = state
        self.committed = state.next_seq
        self.at = 0.0
        self.events: list[AnyEvent] = []
        self.batches: list[Batch] = []
        self._row_key: tuple[object, ...] = row_key(state) if self.committed else ()
        # Whether a step was under way when the row was looked at last.
        self._running = False
        # Whether the pending append was known to change no row, without looking at it.
        self.same_row = False
        self.in_flight: Append | None = None
        # The number after the pending append.
        self._next = self.committed
        # Detached runs that start with the next append.
        self.starts: list[Start] = []
        state.changed.clear()
        # The limits of its queue, until the run is admitted.
        self.admit: Queue | None = None
        # Whether the driver has yet to plan which held steps the last of the events made room for.
        self.unplanned = False
        # Whether the driver wants this appended, and the writer has not taken it since.
        self.wanted = False

    @property
    def empty(self) -> bool:
        """Whether everything is in the store."""
        return not (self.batches or self.events or self.in_flight)

    @property
    def has_wait(self) -> bool:
        """Whether a wait is opened by what has not been taken yet."""
        return any(isinstance(event, WaitOpened) for event in events_in(self.batches))

    def moment(self, now: float) -> float:
        """The time of the batch that is being recorded; all its events share it, and it never goes back."""
        if not self.events:
            self.at = max(now, self._state.at)
        return self.at

    def close_batch(self) -> None:
        """Close the open batch: later events get a new time."""
        if self.events:
            seq = self._state.next_seq - len(self.events)
            self.batches.append(Batch(seq, self.at, self.events))
            self.events = []

    def next_append(self, fsync: bool) -> Append | None:
        """Everything as one append, or the pending one."""
        if self.in_flight is not None:
            return self.in_flight
        state = self._state
        if self.events:
            self.batches.append(Batch(state.next_seq - len(self.events), self.at, self.events))
            self.events = []
        elif not self.batches:
            return None
        changed: RunRow | None = None
        running = state.running > 0 and state.owner is not None
        self.same_row = running and self._running and not state.row_moved
        if not self.same_row:
            key = row_key(state)
            changed = row(state, key) if key != self._row_key else None
            self._row_key, self._running, state.row_moved = key, running, False
        self.wanted = False
        # Starts and timers are written with fsync in every mode.
        fsync = fsync or self.committed == 0 or self.has_wait
        starts: Sequence[Append] = ()
        if self.starts:
            starts = [extend(RunState(start.run_id), start.events, state.at) for start in self.starts]
            self.starts = []
        children: Sequence[RunRow] = ()
        if state.changed:
            children = child_rows(state)
            state.changed.clear()
        self.in_flight = Append(
            state.run_id, self.committed, self.batches, changed, fsync, children, starts, self.admit
        )
        self.batches, self._next = [], state.next_seq
        return self.in_flight

    def written(self) -> Append:
        """The pending append was written."""
        append, self.in_flight = self.in_flight, None
        assert append is not None
        self.committed = self._next
        self.admit = None
        return append

    def follow(self) -> None:
        """Another writer has appended, and the state has caught up; nothing was waiting here."""
        self.committed = self._state.next_seq
        self._row_key = row_key(self._state)
        self._running = False
        self._state.changed.clear()

    def unsaved_batches(self) -> Sequence[Batch]:
        """Every batch that may not be in the store, with the one that is still open."""
        batches = [*(self.in_flight.batches if self.in_flight else ()), *self.batches]
        if self.events:
            batches.append(Batch(self._state.next_seq - len(self.events), self.at, [*self.events]))
        return batches

    def unsaved(self) -> Iterator[AnyEvent]:
        """Every event that may not be in the store."""
        for batch in [*(self.in_flight.batches if self.in_flight else ()), *self.batches]:
            yield from batch.events
        yield from self.events
