"""External events of a run: signals, answers, cancellations, pauses. Decides, never writes.

Any process may append these events, not only the owner. Each function reads the folded journal and returns the events
to append, or why there are none. When another event comes first, the caller folds it and calls the function again. So
every race has one winner, and the journal shows which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, cast

import msgspec
from msgspec import Raw

from perdure.errors import AnswerRejected, NotParked, UsageError
from perdure.kernel.events import (
    AnyEvent,
    CancelRequested,
    InputReplaced,
    RunFinished,
    RunPaused,
    RunResumed,
    RunStarted,
    RunStatus,
    SignalReceived,
    StepFailed,
    StepSkipped,
    StepSucceeded,
    WaitOpened,
    WaitResolved,
)
from perdure.kernel.ids import SignalKey, address
from perdure.kernel.state import REDACTED, OpenOp, RunState
from perdure.kernel.values.failures import Failure

if TYPE_CHECKING:
    from perdure.kernel.plan import Start

T_co = TypeVar("T_co", covariant=True)
V = TypeVar("V")


class Accepted(msgspec.Struct, frozen=True):
    """The event is in the journal, durably."""


class Duplicate(msgspec.Struct, frozen=True):
    """The same message was received before, under the same id."""


class NotFound(msgspec.Struct, frozen=True, eq=False, repr_omit_defaults=True):
    """There is no such run, or no such open approval. `reason` says what became of it, if that is known.

    All are equal: what a caller compares with is NotFound().
    """

    reason: str = ""

    def __eq__(self, other: object) -> bool:
        """Whether it is a NotFound."""
        return isinstance(other, NotFound)

    def __hash__(self) -> int:
        """The same for all."""
        return hash(NotFound)


class Finished(msgspec.Struct, frozen=True):
    """The run had ended before."""

    status: RunStatus


class Cancelled(msgspec.Struct, frozen=True):
    """The run has a cancellation, and ends as cancelled unless its code catches it."""


class AlreadyFinished(msgspec.Struct, frozen=True):
    """The run had ended before it could be cancelled."""

    status: RunStatus


Events = Sequence[AnyEvent]


class Succession(list[AnyEvent]):
    """Events that end a run, and the next one, which begins in the same commit."""

    def __init__(self, events: Events, next: Start) -> None:
        super().__init__(events)
        self.next = next


# The events to append to a run in this state, or why there are none.
Decide = Callable[[RunState], Events | V]


@dataclass(frozen=True, slots=True)
class Decided(Generic[T_co]):
    """It was decided, and what that wrote is durable."""

    value: T_co


class Undecided:
    """Another event came first, or it is not known whether the append was written: decide again."""

    __slots__ = ()


UNDECIDED = Undecided()


def events_of(verdict: Events | V) -> Events | None:
    """The events of a decision; None if it is a reason for none."""
    return cast("Events", verdict) if isinstance(verdict, Sequence) else None


def final_status(state: RunState, child: str) -> RunStatus | None:
    """How a run, or its child at this op path, ended; None while it is open."""
    if child:
        return None if child in state.children else state.ended.get(child, RunStatus.COMPLETED)
    return state.finished.status if state.finished is not None else None


def signal(
    state: RunState,
    name: str,
    payload: Raw,
    signal_id: str,
    child: str = "",
    check: Callable[[OpenOp], None] = lambda wait: None,
    trace: str = "",
) -> Events | Duplicate | Finished:
    """Send a signal. One with a known `signal_id` is a duplicate, even if its payload is another one.

    `check` raises SignalRejected if the signal does not fit the wait that would consume it at once.
    """
    if signal_id and SignalKey(child, signal_id) in state.signal_ids:
        return Duplicate()
    if (status := final_status(state, child)) is not None:
        return Finished(status)
    to = address(child, name)
    waiting = state.waits.get(to)
    if waiting and not state.inbox.get(to):
        check(state.ops[waiting[0]])
    return [SignalReceived(name, payload, signal_id, child, trace)]


def answer(
    state: RunState,
    name: str,
    payload: Raw,
    answer_id: str,
    by: str,
    now: float,
    check: Callable[[OpenOp], None],
    child: str = "",
) -> Events | Duplicate | NotFound | Finished:
    """Answer an open approval; `check` raises AnswerRejected if the answer does not fit the question."""
    found = _question(state, name, answer_id, by, now, child)
    if not isinstance(found, tuple):
        return found
    op = found[0]
    check(state.ops[op])
    return [WaitResolved.answered(op, by, payload, answer_id)]


def reject(
    state: RunState, name: str, reason: str, answer_id: str, by: str, now: float, child: str = ""
) -> Events | Duplicate | NotFound | Finished:
    """Refuse an open approval, under the rules of an answer."""
    found = _question(state, name, answer_id, by, now, child)
    if not isinstance(found, tuple):
        return found
    return [WaitResolved.rejected(found[0], by, reason, answer_id)]


def may_answer(question: WaitOpened, now: float) -> tuple[str, ...]:
    """Who may answer a question at `now`; empty when anyone may."""
    if question.escalate_at is None or now < question.escalate_at or not question.approvers:
        return question.approvers
    return tuple(dict.fromkeys((*question.approvers, *question.escalate_to)))


def _question(
    state: RunState, name: str, answer_id: str, by: str, now: float, child: str
) -> tuple[str, WaitOpened] | Duplicate | NotFound | Finished:
    """The open question of this name, or at this path, that `by` may answer, in the run or its children.

    Raises AnswerRejected if several questions have the name.
    """
    if answer_id and answer_id in state.answers:
        return Duplicate()
    if (status := final_status(state, child)) is not None:
        return Finished(status)
    closed_to: set[str] = set()
    found: list[tuple[str, WaitOpened]] = []
    for op, open_op in state.ops.items():
        question = open_op.opened
        if (
            question is None
            or question.kind != "approval"
            or name not in (question.name, op)
            or (child and not op.startswith(f"{child}/"))
        ):
            continue
        allowed = may_answer(question, now)
        if allowed and by not in allowed:
            closed_to.update(allowed)
        elif name == op:
            return op, question
        else:
            found.append((op, question))
    if len(found) > 1:
        raise AnswerRejected(name, "", f"it is asked more than once: {_listed(found)}; give the path of one of them")
    if found:
        return found[0]
    if closed_to:
        people = ", ".join(sorted(closed_to))
        reason = f"{by} is not among {people}" if by else f"say who answers (by=...): one of {people}"
        raise AnswerRejected(name, "", reason)
    return NotFound()


def _listed(questions: Sequence[tuple[str, WaitOpened]]) -> str:
    """The paths of questions, the first ten of them."""
    paths = ", ".join(path for path, _ in questions[:10])
    return paths if len(questions) <= 10 else f"{paths} and {len(questions) - 10} others"


def cancel(state: RunState, reason: str, child: str = "", by: str = "") -> Events | AlreadyFinished:
    """Cancel a run. A run that never began, or is parked, ends at once."""
    if (status := final_status(state, child)) is not None:
        return AlreadyFinished(status)
    if child:
        return [CancelRequested(reason, child, by=by)]
    request = CancelRequested(reason, by=by)
    if state.epoch == 0 or state.parked is not None:
        return [request, RunFinished(RunStatus.CANCELLED, reason=reason)]
    return [] if state.cancel_requested is not None else [request]


def terminate(state: RunState, reason: str) -> Events | AlreadyFinished:
    """Terminate a run at once, whichever orchestrator owns it; its body does not run again."""
    if state.finished is not None:
        return AlreadyFinished(state.finished.status)
    return [CancelRequested(reason), RunFinished(RunStatus.CANCELLED, reason=reason)]


def report(state: RunState, outcome: StepSucceeded | StepFailed | StepSkipped) -> Events | Duplicate | Finished:
    """Report the outcome of a remote step to its run, once; no events if the step was cancelled in the meantime."""
    if state.finished is not None:
        return Finished(state.finished.status)
    open_op = state.ops.get(outcome.op)
    return [outcome] if open_op is not None and open_op.kind == "remote" else Duplicate()


def pause(state: RunState, reason: str, child: str = "", by: str = "") -> Events | Finished:
    """Pause a run: no new step begins."""
    _refuse_child(child, "paused")
    if state.finished is not None:
        return Finished(state.finished.status)
    return [] if state.paused is not None else [RunPaused(reason, by)]


def resume(state: RunState, child: str = "", by: str = "") -> Events | Finished:
    """Resume a paused run."""
    _refuse_child(child, "resumed")
    if state.finished is not None:
        return Finished(state.finished.status)
    if state.paused is None and state.parked is not None:
        id = state.started.id if state.started else state.run_id
        raise UsageError(
            f"run {id!r} is parked, not paused, and resuming does nothing for it; `perdure runs show` says why it is "
            "parked, and `perdure resolve`, or resolve(id), has it tried again"
        )
    if state.paused is None:
        return []
    # RunResumed ends both a pause and a parking, so a parked run is parked again.
    resumed = RunResumed(by=by)
    return [resumed] if state.parked is None else [resumed, state.parked]


# Why a run is unparked, by the kind of its parking. For all other kinds, the code did not fit and does now.
UNPARKED = {
    "by hand": "resolved by hand",
    "no_program": "an engine has its program again",
    "damaged": "its journal can be read again",
    "internal": "tried again after an error of the engine",
}


def unpark(state: RunState, version: str = "", *, by_hand: bool = False, by: str = "") -> Events:
    """Let a parked run continue; if it was paused too, it stays paused until it is resumed."""
    kind = "by hand" if by_hand or state.parked is None else state.parked.kind
    resumed = RunResumed(version, UNPARKED.get(kind, "deployed code fits again"), by)
    return [resumed] if state.paused is None else [resumed, state.paused]


def resolve(state: RunState, version: str, failure: Failure | None, child: str = "", by: str = "") -> Events | Finished:
    """Let a parked run continue, with another version of its program if given; or end it as failed."""
    _refuse_child(child, "resolved")
    if state.finished is not None:
        return Finished(state.finished.status)
    if state.parked is None:
        raise NotParked(state.started.id if state.started else state.run_id, state.status)
    if failure is not None:
        return [RunFinished(RunStatus.FAILED, error=failure, reason=failure.message)]
    refuse_redacted(state)
    return unpark(state, version, by_hand=True, by=by)


def refuse_redacted(state: RunState) -> None:
    """Raise UsageError if a run would continue with redacted values."""
    if state.parked is not None and state.parked.kind == REDACTED:
        raise UsageError(
            f"run {state.started.id if state.started else state.run_id!r} came here without some of its values, and "
            "would go on with what stands in their place; fork it, with values= and inputs= for what was taken out"
        )


def replace_input(state: RunState, again: RunStarted) -> Events | Finished | NotFound:
    """Replace the input of a run that has not begun, and restart its delay. NotFound if it has begun."""
    if state.finished is not None:
        return Finished(state.finished.status)
    if state.epoch > 0 or state.parked is not None:
        return NotFound()
    return [InputReplaced(again.input, again.input_blob, again.not_before, again.priority)]


def _refuse_child(child: str, what: str) -> None:
    if child:
        raise UsageError(
            f"{child} is a child, and cannot be {what} alone; give the id of the run at the top of its tree"
        )
