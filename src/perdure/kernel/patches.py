"""What replay must know of a journal in advance: its patch marks, and up to where the code must repeat it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from msgspec import Raw

from perdure.kernel.context import RunContext, run_context
from perdure.kernel.events import (
    AnyEvent,
    Batch,
    CancelRequested,
    ChildFinished,
    ChildStarted,
    OutcomeKept,
    RunFinished,
    RunForked,
    RunStatus,
    StateSet,
    StepFailed,
    StepStarted,
    StepSucceeded,
    Trait,
    ValueRecorded,
    WaitOpened,
    WaitResolved,
    events_with,
)
from perdure.kernel.history.kept_outcomes import PATCHED
from perdure.kernel.state import RunState

PATCH = "patch"
NO_CHILDREN = frozenset[str]()
# Values up to this are within any limit that makes sense.
LARGE = 4096


class PatchHistory:
    """The recorded history of one execution: of a run, or of a child in its journal."""

    __slots__ = (
        "_children",
        "_completed",
        "_decided",
        "_forks",
        "_last",
        "_marks",
        "_path",
        "_retried",
        "_state",
        "_taken",
        "begun",
    )

    def __init__(
        self,
        state: RunState | None = None,
        marks: frozenset[str] = frozenset(),
        last: int = -1,
        path: str = "",
        forks: Sequence[tuple[int, RunForked]] = (),
        taken: frozenset[str] = frozenset(),
        retried: RunContext | None = None,
        completed: frozenset[str] = frozenset(),
        decided: Mapping[str, Raw] = MappingProxyType({}),
        begun: frozenset[str] = frozenset(),
        children: frozenset[str] = NO_CHILDREN,
    ) -> None:
        self._state, self._marks, self._last, self._path = state, marks, last, path
        # RunForked events by number: the events before each were recorded by the origin of a fork.
        self._forks = forks
        # The ops whose large values are in the journal.
        self._taken = taken
        # The context of the run that this one retries: code that branches on it must take the same path.
        self._retried = retried
        # The executions that have completed, by the op path of the child; the run itself is "".
        self._completed = completed
        # What the journal holds of decisions, by op; and the ops that have begun, for programs that decide.
        self._decided, self.begun = decided, begun
        # The op paths of the children that it holds.
        self._children = children

    @property
    def replaying(self) -> bool:
        """Whether the journal holds later commands of the program, which it must repeat."""
        if self._state is None:
            return False
        # A retried run must also ask again for the steps whose outcomes it kept; one that reuses results need not.
        kept = self._state.kept
        return self._state.next_seq <= self._last or (kept is not None and not kept.versioned and bool(kept.effects))

    def marked(self, op: str) -> bool:
        """Whether the journal holds a patch mark for this op, at any position."""
        return self._path + op in self._marks

    def took(self, op: str) -> bool:
        """Whether the journal holds a large value of this op, which was within the limits when it was recorded."""
        return self._path + op in self._taken

    def decided(self, op: str) -> Raw | None:
        """The recorded decision of an op; None if there is none yet."""
        return self._decided.get(self._path + op)

    def began(self, op: str) -> bool:
        """Whether the journal holds the beginning of an op."""
        return self._path + op in self.begun

    def has_child(self, op: str) -> bool:
        """Whether the journal holds the child of an op."""
        return self._path + op in self._children

    def whole(self, op: str) -> str:
        """The path of an op in the run."""
        return self._path + op

    @property
    def completed(self) -> bool:
        """Whether the journal says that this execution has completed."""
        return self._path[:-1] in self._completed

    def within(self, path: str) -> PatchHistory:
        """The history of the child at an op path."""
        return PatchHistory(
            self._state,
            self._marks,
            self._last,
            f"{path}/",
            self._forks,
            self._taken,
            self._retried,
            self._completed,
            self._decided,
            self.begun,
            self._children,
        )

    @property
    def forked(self) -> bool:
        """Whether a part of the journal was recorded by the origin of a fork."""
        return bool(self._forks)

    def context(self) -> RunContext | None:
        """The run that the code sees as its own: the origin while it repeats the past of an origin, else this run."""
        state = self._state
        if state is None or state.started is None:
            return None
        origin = next((event.run for number, event in self._forks if number >= state.next_seq), self._retried)
        return run_context(state, self._path[:-1], origin)


# Kinds of recorded values that are decisions: which nodes run, and how often.
DECISIONS = ("route", "when", "map")
_COMMANDS = events_with(Trait.COMMAND)

# For a run that has no journal yet.
NO_HISTORY = PatchHistory()


def patch_history(state: RunState, batches: Iterable[Batch], *, decides: bool = False) -> PatchHistory:
    """The history in `batches`, for the replay that folds them into `state`.

    `decides`: see Program; which ops in children have begun is always noted.
    """
    marks, taken, completed, last, forks = set(), set(), set(), -1, []
    decided, begun = dict[str, Raw](), set[str]()
    children: set[str] | None = None
    for batch in batches:
        for number, event in enumerate(batch.events, batch.seq):
            # Most events are one of the first two.
            kind = type(event)
            if kind is StepSucceeded:
                continue
            if kind is StepStarted:
                assert isinstance(event, StepStarted)
                if event.attempt == 1:
                    last = number
                if decides or "/" in event.op:
                    begun.add(event.op)
                continue
            if commanded(event):
                last = number
            if (type(event) is ValueRecorded and event.kind == PATCH) or (
                type(event) is OutcomeKept and event.kind == PATCHED
            ):
                marks.add(event.op)
            elif type(event) is ValueRecorded and event.kind in DECISIONS:
                decided[event.op] = event.value
            elif (type(event) is StateSet and len(event.value) > LARGE) or (
                type(event) is WaitOpened and len(event.request) > LARGE
            ):
                taken.add(event.op)
            elif isinstance(event, ChildFinished | RunFinished) and event.status is RunStatus.COMPLETED:
                completed.add(event.op if isinstance(event, ChildFinished) else "")
            elif type(event) is RunForked:
                forks.append((number, event))
            if isinstance(event, ChildStarted):
                children = children or set()
                children.add(event.op)
            if isinstance(event, WaitOpened | ChildStarted) and (decides or "/" in event.op):
                begun.add(event.op)
    retried = retried_as(batches) if forks else None
    return PatchHistory(
        state,
        frozenset(marks),
        last,
        forks=forks,
        taken=frozenset(taken),
        retried=retried,
        completed=frozenset(completed),
        decided=decided,
        begun=frozenset(begun),
        children=NO_CHILDREN if children is None else frozenset(children),
    )


def retried_as(batches: Iterable[Batch]) -> RunContext | None:
    """The context of the run that this journal retries, if it does and has not been forked since."""
    found: RunContext | None = None
    for batch in batches:
        forked = next((event for event in batch.events if isinstance(event, RunForked)), None)
        if forked is not None:
            found = forked.run if any(isinstance(event, OutcomeKept) for event in batch.events) else None
    return found


def commanded(event: AnyEvent) -> bool:
    """Whether an event records a command of the program, and not an outcome or what came from outside."""
    if type(event) in _COMMANDS:
        return True
    if isinstance(event, StepStarted):
        return event.attempt == 1
    if isinstance(event, WaitResolved):
        return event.by == "cancelled"
    if isinstance(event, ValueRecorded):
        return event.kind != "lock"  # a lock's new token comes from the owner
    if isinstance(event, StepFailed):
        return event.cancelled
    return isinstance(event, CancelRequested) and bool(event.child)
