"""Derive the spans of a run from its journal: its stretches of work, and their traces.

A run is short stretches of work with long rests between them. A stretch begins with the first event of work after a
rest, and ends when no attempt is under way any more: at a wait, a retry that is not due yet, or the end. All of it,
ids included, follows from the journal alone, so two processes that make the span of one fact make the same span: the
owner makes it when it happens, and the next owner makes those that a dead one could not. Makes no spans itself.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from perdure.kernel.events import (
    AnyEvent,
    AttemptFailed,
    Batch,
    ChildFinished,
    ChildStarted,
    RunClaimed,
    RunFinished,
    RunForked,
    RunParked,
    RunReleased,
    RunStarted,
    SignalReceived,
    StateSet,
    StepFailed,
    StepSkipped,
    StepStarted,
    StepSucceeded,
    ValueRecorded,
    WaitOpened,
    WaitResolved,
)

# How long an exporter may keep a span before it sends it: twice the default of the batch processor of the SDK.
UNSENT_SECONDS = 10.0

# How many links a summary has to its stretches, the latest; and a stretch to the signals that woke it.
MOST_STRETCHES, MOST_SIGNALS = 100, 20
# How many spans of a dead owner are made again at most, the latest.
MOST_RECENT = 100

# Events of work. A claim alone is none: it may find that the run rests.
_WORK = (
    StepStarted,
    StepSucceeded,
    AttemptFailed,
    StepFailed,
    StepSkipped,
    ValueRecorded,
    WaitOpened,
    WaitResolved,
    ChildStarted,
    ChildFinished,
    StateSet,
    RunFinished,
)
_OUTCOMES = (StepSucceeded, AttemptFailed, StepFailed, StepSkipped)


@dataclass(frozen=True, slots=True)
class Place:
    """A span, as a reference from other spans."""

    trace: int
    span: int
    # The `tracestate` that came with it. Whether it came from outside, so that another process may have made the span.
    state: str = ""
    remote: bool = False

    def __str__(self) -> str:
        return f"00-{self.trace:032x}-{self.span:016x}-01{' ' * bool(self.state)}{self.state}"


def place_of(text: str) -> Place | None:
    """The place in a `traceparent`, with a tracestate after a space; None if it names no span."""
    head, _, state = text.partition(" ")
    parts = head.split("-")
    if len(parts) != 4 or not int(parts[1], 16) or not int(parts[2], 16):
        return None
    return Place(int(parts[1], 16), int(parts[2], 16), state, remote=True)


def is_sampled(text: str) -> bool:
    """Whether a traceparent says that its trace is recorded."""
    return bool(int(text.partition(" ")[0][-2:], 16) & 1)


def derived(size: int, *parts: object) -> int:
    """An id of so many bytes, derived from a text: the same in every process, and never 0."""
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=size).digest()) or 1


def first_trace(run_id: str) -> int:
    """The trace of a run that was started outside of any trace."""
    return derived(16, "trace", run_id)


def attempt_span(run_id: str, epoch: int, op: str, attempt: int) -> int:
    """The id of the span of an attempt."""
    return derived(8, "attempt", run_id, epoch, op, attempt)


def summary_span(run_id: str) -> int:
    """The id of the summary of a run."""
    return derived(8, "run", run_id)


@dataclass(slots=True)
class Stretch:
    """Work of one owner without a rest."""

    place: Place
    parent: Place | None
    links: tuple[Place, ...]
    epoch: int
    owner: str
    began: float
    ended: float = 0.0
    # Its owner died, and its open attempts are repeated.
    lost: bool = False


@dataclass(frozen=True, slots=True)
class RemoteAttempt:
    """A step that another worker executed, from its request to its outcome."""

    op: str
    attempt: int
    stretch: Stretch
    began: float
    ended: float
    outcome: AnyEvent


@dataclass(frozen=True, slots=True)
class LostAttempt:
    """An attempt whose process died."""

    op: str
    attempt: int
    source: str
    stretch: Stretch
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole run, at its end. Times are in seconds; `waited` is the time that was neither worked nor queued."""

    place: Place
    parent: Place | None
    links: tuple[Place, ...]
    began: float
    ended: float
    finished: RunFinished
    stretches: int
    steps: int
    attempts: int
    worked: float
    queued: float

    @property
    def waited(self) -> float:
        """The time that is neither work nor queue."""
        return max(0.0, self.ended - self.began - self.worked - self.queued)


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """An attempt whose process made its span, unless the process died before the export."""

    op: str
    attempt: int
    source: str
    stretch: Stretch
    began: float
    ended: float
    outcome: AnyEvent


Fact = Stretch | RemoteAttempt | LostAttempt | EndedAttempt | Summary


@dataclass(slots=True)
class _Open:
    attempt: int
    source: str
    began: float
    stretch: Stretch
    remote: bool


@dataclass(slots=True)
class Trail:
    """Folds the journal of one run. `gap`: the longest rest after which the run continues in the same trace."""

    run_id: str
    gap: float
    # The span that started the run: its parent, or only a link if the run has its own trace.
    cause: Place | None = None
    parent: Place | None = None
    next_seq: int = 0
    current: Stretch | None = None
    last: Stretch | None = None
    # Outcomes of remote steps that no work has followed yet: they may have come while the run was not in memory.
    from_afar: list[RemoteAttempt] = field(default_factory=list)
    _created: float = 0.0
    _due: float = 0.0
    _claimed: float | None = None
    _epoch: int = 0
    _owner: str = ""
    _session: str = ""
    _released: bool = True
    # What the spans of the present trace refer to: its root, its first span, open attempts, signals, stretches.
    _root: Place | None = None
    _first: Place | None = None
    _open: dict[str, _Open] = field(default_factory=dict)
    _woken_by: deque[Place] = field(default_factory=lambda: deque(maxlen=MOST_SIGNALS))
    _stretches: deque[Place] = field(default_factory=lambda: deque(maxlen=MOST_STRETCHES))
    # The latest ended work, with the times at which its spans were made.
    _recent: deque[tuple[float, Stretch | EndedAttempt | LostAttempt]] = field(
        default_factory=lambda: deque(maxlen=MOST_RECENT)
    )
    _count: int = 0
    _steps: int = 0
    _attempts: int = 0
    _worked: float = 0.0
    _at: float = 0.0

    def fold(self, batches: Iterable[Batch]) -> list[Fact]:
        """Fold new batches. Returns the records of completed work, for which spans are due."""
        facts: list[Fact] = []
        for batch in batches:
            if batch.seq < self.next_seq:
                continue
            for seq, event in enumerate(batch.events, batch.seq):
                self._fold(event, seq, batch.at, facts)
            self.next_seq = batch.seq + len(batch.events)
            self._at = batch.at
            if self.current is not None and not self._working:
                facts.append(self._end(batch.at))
        return facts

    @property
    def _working(self) -> bool:
        return any(not one.remote for one in self._open.values())

    def _fold(self, event: AnyEvent, seq: int, at: float, facts: list[Fact]) -> None:
        if isinstance(event, RunStarted):
            self.begin(event, at)
        elif isinstance(event, SignalReceived):
            if event.trace and (place := place_of(event.trace)) is not None:
                self._woken_by.append(place)
        elif isinstance(event, RunClaimed):
            if event.session != self._session:
                if self._released:
                    self._recent.clear()
                else:
                    self._lose(at, facts)
            self._epoch, self._owner, self._session = event.epoch, event.owner, event.session
            self._released = False
            if self._claimed is None:
                self._claimed = at
        elif isinstance(event, RunForked):
            self._forget()
        if not self._epoch:
            return  # it has not begun
        if works(event) and not self._from_afar(event):
            if self.current is None:
                self.current = self._placed(seq, at)
                self._woken_by.clear()
            self.from_afar.clear()
        if isinstance(event, StepStarted):
            assert self.current is not None
            self._attempts += 1
            self._steps += event.attempt == 1
            before = self._open.get(event.op)
            if before is None or not before.remote:
                self._open[event.op] = _Open(event.attempt, event.source, at, self.current, bool(event.queue))
        elif isinstance(event, _OUTCOMES):
            found = self._open.pop(event.op, None)
            if found is not None and found.remote:
                fact = RemoteAttempt(event.op, found.attempt, found.stretch, found.began, at, event)
                facts.append(fact)
                self.from_afar.append(fact)
            elif found is not None:
                ended = EndedAttempt(event.op, found.attempt, found.source, found.stretch, found.began, at, event)
                self._recent.append((at, ended))
        elif isinstance(event, RunReleased | RunParked):
            self._released = True
            self._drop_attempts()
        elif isinstance(event, RunFinished):
            self._drop_attempts()
            if self.current is not None:
                facts.append(self._end(at))
            facts.append(self._summary(event, at))

    def _from_afar(self, event: AnyEvent) -> bool:
        """Whether an event is the outcome of a remote step, which may come while the run is not in memory."""
        found = self._open.get(event.op) if isinstance(event, _OUTCOMES) else None
        return found is not None and found.remote

    def begin(self, started: RunStarted, at: float) -> None:
        """The run was accepted."""
        self._created, self._due = at, max(at, started.not_before or 0.0)
        self.cause = place_of(started.trace) if started.trace else None
        if self.cause is None and started.forked_from:
            self.cause = Place(first_trace(started.forked_from), summary_span(started.forked_from))
        if self.cause is None and started.continued_from:
            self.cause = Place(first_trace(started.continued_from), summary_span(started.continued_from))
        # The run of a remote step is part of its caller's trace; other runs that a run starts have their own.
        apart = started.forked_from or started.continued_from or (started.parent and started.remote is None)
        self.parent = self._root = None if apart else self.cause

    # --- stretches ------------------------------------------------------------------------------------------------

    def preview(self, unsaved: Sequence[Batch]) -> Stretch | None:
        """The stretch that these batches begin or continue; they are not folded. Without any, the present one."""
        if not any(batch.seq >= self.next_seq for batch in unsaved):
            return self.current
        ahead = copy.copy(self)
        ahead._open, ahead.from_afar = dict(self._open), [*self.from_afar]
        ahead._woken_by, ahead._stretches = self._woken_by.copy(), self._stretches.copy()
        ahead._recent = self._recent.copy()
        ahead.current = None if self.current is None else copy.copy(self.current)
        ahead.fold(unsaved)
        return ahead.current or (ahead.last if ahead.last is not self.last else None)

    def _placed(self, seq: int, at: float) -> Stretch:
        """A stretch that begins with this event, in the present trace or a new one."""
        span = derived(8, "stretch", self.run_id, self._epoch, seq)
        silent_since = self.last.ended if self.last is not None else self._created
        signals = tuple(self._woken_by)
        if self._root is not None and at - silent_since <= self.gap:
            place = Place(self._root.trace, span, self._root.state)
            return Stretch(place, self._root, signals, self._epoch, self._owner, at)
        before = () if self.last is None else (self.last.place,)
        caused = () if self.cause is None else (self.cause,)
        trace = first_trace(self.run_id)
        if self.last is not None or self.parent is not None:
            trace = derived(16, "trace", self.run_id, self._epoch, seq)
        return Stretch(Place(trace, span), None, (*caused, *before, *signals), self._epoch, self._owner, at)

    def _end(self, at: float, *, lost: bool = False) -> Stretch:
        stretch, self.current = self.current, None
        assert stretch is not None
        stretch.ended, stretch.lost = max(at, stretch.began), lost
        if stretch.parent is None:
            self._root = stretch.place
        self._first = self._first or stretch.place
        self._stretches.append(stretch.place)
        self._count += 1
        self._worked += stretch.ended - stretch.began
        self.last = stretch
        if not lost:
            self._recent.append((at, stretch))
        return stretch

    def end_now(self, at: float) -> Stretch | None:
        """The run is evicted. Returns its open stretch, if there is one."""
        return None if self.current is None else self._end(at)

    def _lose(self, at: float, facts: list[Fact]) -> None:
        """Another owner has claimed the run: the previous owner died with its open attempts.

        It may also have died before it exported ended spans, whose children may be exported. The new owner may die as
        soon, and leave all of them to the next one.
        """
        died = self._at
        owed = [fact for due, fact in self._recent if due >= died - UNSENT_SECONDS]
        owed += [
            LostAttempt(op, one.attempt, one.source, one.stretch, one.began, max(died, one.began))
            for op, one in self._open.items()
            if not one.remote
        ]
        self._drop_attempts()
        if self.current is not None:
            owed.append(self._end(died, lost=True))
        self._recent.clear()
        self._recent.extend((at, fact) for fact in owed)
        facts += owed

    def _forget(self) -> None:
        """Forget everything so far: it was work of the origin of a fork."""
        self.current = self.last = self._first = self._root = self._claimed = None
        self._epoch = self._count = self._steps = self._attempts = 0
        self._worked, self._session, self._released = 0.0, "", True
        for kept in (self.from_afar, self._open, self._stretches, self._woken_by, self._recent):
            kept.clear()

    def _drop_attempts(self) -> None:
        self._open = {op: one for op, one in self._open.items() if one.remote}

    def _summary(self, event: RunFinished, at: float) -> Summary:
        parent = self.parent or self._first
        trace = first_trace(self.run_id) if parent is None else parent.trace
        place = Place(trace, summary_span(self.run_id), "" if parent is None else parent.state)
        apart = () if self.cause is None or self.cause is self.parent else (self.cause,)
        return Summary(
            place=place,
            parent=parent,
            links=(*apart, *self._stretches),
            began=self._created,
            ended=at,
            finished=event,
            stretches=self._count,
            steps=self._steps,
            attempts=self._attempts,
            worked=self._worked,
            queued=max(0.0, (at if self._claimed is None else self._claimed) - self._due),
        )

    def summary_place(self) -> Place:
        """The place of the summary span, as far as the journal is known."""
        parent = self.parent or self._first
        return Place(first_trace(self.run_id) if parent is None else parent.trace, summary_span(self.run_id))


def works(event: AnyEvent) -> bool:
    """Whether an event is work of the owner. An answer comes from a client, and is not."""
    return isinstance(event, _WORK) and not (isinstance(event, WaitResolved) and ":" in event.by)
