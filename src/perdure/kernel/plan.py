"""Decide what happens next. Never performs it.

Pure functions of a run's state, the program's commands and the time: they return the events to record and, to be done
after those are recorded, the steps to call and to give up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Raw

from perdure.errors import DeadlineExceeded, OutcomeUnknown, StepCancelled
from perdure.kernel.codec import Codec
from perdure.kernel.commands import (
    CancelOp,
    Checkpoint,
    Command,
    Finish,
    OpenWait,
    RecordValue,
    RunStep,
    SetState,
    StartTimer,
)
from perdure.kernel.events import (
    AnyEvent,
    AttemptFailed,
    RunFinished,
    RunStatus,
    StateSet,
    StepFailed,
    StepSkipped,
    StepStarted,
    ValueRecorded,
    WaitOpened,
    WaitResolved,
    moment,
)
from perdure.kernel.failures import Failure, describe
from perdure.kernel.ids import step_key
from perdure.kernel.retry import backoff
from perdure.kernel.state import OpenOp, RunState

# Describes perdure's own errors, which hold nothing but text and numbers.
_PLAIN = Codec()


class Call(msgspec.Struct, frozen=True, gc=False):
    """An attempt of a step, to be made once its StepStarted is durable.

    `failed`: it is the fallback's, and this is the failure that it has to make something of.
    """

    command: RunStep
    attempt: int
    failed: Failure | None = None


class Plan(msgspec.Struct, gc=False):
    """What to record, and what to do once it is durable."""

    events: list[AnyEvent]
    calls: list[Call]
    cancels: list[str]
    # Whether the caller asked that everything so far be durable before anything else takes effect.
    barrier: bool = False
    # Whether something that is due must wait for room.
    held: bool = False


def plan(state: RunState, commands: Iterable[Command], now: float) -> Plan:
    """What the program's wishes come to, in their order."""
    events: list[AnyEvent] = []
    calls: list[Call] = []
    result = Plan(events, calls, [])
    finish: Finish | None = None
    for command in commands:
        if type(command) is RunStep:
            events.append(StepStarted(command.op, 1, command.inputs_hash, command.source))
            calls.append(Call(command, 1))
            if command.spec.at_most_once:
                # Whoever comes after a crash must know that it began.
                result.barrier = True
        elif isinstance(command, StartTimer):
            events.append(WaitOpened(command.op, "timer", command.due, command.source))
        elif isinstance(command, OpenWait):
            events.append(_open(command))
        elif isinstance(command, SetState):
            events.append(StateSet(command.op, command.key, command.value))
        elif isinstance(command, CancelOp):
            _cancel(state, command.op, "the workflow no longer waits for it", result)
        elif isinstance(command, RecordValue):
            events.append(ValueRecorded(command.op, command.kind, command.value))
            # What was done under a lock is in the store before the next holder comes.
            result.barrier |= command.kind == "unlock"
        elif isinstance(command, Checkpoint):
            events.append(ValueRecorded(command.op, "checkpoint"))
            result.barrier = True
            # The program goes on when this is folded, and may no longer want what follows: that stays a wish.
            break
        elif isinstance(command, Finish):
            finish = command
    if finish is not None:
        # What was asked for in the same breath as the end never begins.
        calls.clear()
        events[:] = [event for event in events if not isinstance(event, StepStarted | WaitOpened)]
        _finish(state, finish, result)
    return result


def _open(command: OpenWait) -> WaitOpened:
    return WaitOpened(
        command.op,
        command.kind,
        command.deadline,
        command.source,
        command.name,
        command.request,
        command.schema,
        command.approvers,
        command.escalate_at,
        command.escalate_to,
        command.ttl,
    )


def deliver(state: RunState) -> WaitResolved | None:
    """Hand the next signal that has come to the wait for it; None when there is nothing to hand over.

    One at a time: the program may give up the other waits when it gets it, and their signals must not go with them.
    """
    if not state.inbox or state.finished is not None or state.parked is not None:
        return None
    ready = state.deliverable()
    return WaitResolved(ready[0], "signal") if ready else None


def _cancel(state: RunState, op: str, reason: str, result: Plan) -> None:
    open_op = state.ops.get(op)
    if open_op is None:
        return
    if open_op.kind == "step":
        error = describe(StepCancelled(op, reason), _PLAIN)
        result.events.append(StepFailed(op, open_op.attempt, error, cancelled=True))
        result.cancels.append(op)
    else:
        result.events.append(WaitResolved(op, "cancelled"))


def _finish(state: RunState, command: Finish, result: Plan) -> None:
    # What the body left under way has an outcome too: it was given up.
    given_up = {event.op for event in result.events if isinstance(event, StepFailed | WaitResolved)}
    for op in state.ops:
        if op not in given_up:
            _cancel(state, op, "the run ended without waiting for it", result)
    result.events.append(RunFinished(command.status, Raw(command.value), command.blob, command.error, command.reason))


def wake(state: RunState, open_steps: Mapping[str, RunStep], now: float, room: int) -> Plan:
    """What is due at `now`: timers that fire, retries that start while there is room, the deadline of the run."""
    result = Plan([], [], [])
    if state.finished is not None or state.parked is not None or state.started is None:
        return result
    if state.paused is not None:
        return result
    deadline = state.started.deadline
    if deadline is not None and deadline <= now:
        error = describe(DeadlineExceeded(state.started.id, moment(deadline).isoformat()), _PLAIN)
        _finish(state, Finish(RunStatus.FAILED, error=error), result)
        return result
    # A signal that has come wins over the timeout of the wait for it: see `deliver`.
    served = set(state.deliverable()) if state.inbox else ()
    for op in state.due(now):
        if op in served:
            continue
        open_op = state.ops[op]
        if open_op.kind != "step":
            result.events.append(WaitResolved(op, "timer" if open_op.kind == "timer" else "timeout"))
        elif len(result.calls) < room:
            _try_again(op, open_op, open_steps[op], result)
            result.barrier |= open_steps[op].spec.at_most_once
        else:
            result.held = True
    return result


def adopt(state: RunState, open_steps: Mapping[str, RunStep]) -> Plan:
    """What a new owner does about attempts that were under way when the last one died.

    Such an attempt is counted and made again under the same idempotency key; one that must not run twice is declared
    unknown, and the program is told.
    """
    result = Plan([], [], [])
    for op, open_op in state.ops.items():
        if not open_op.running:
            continue
        command = open_steps[op]
        if command.spec.at_most_once:
            error = describe(OutcomeUnknown(op, step_key(state.run_id, op)), _PLAIN)
            result.events.append(StepFailed(op, open_op.attempt, error, unknown=True))
        else:
            _try_again(op, open_op, command, result)
    return result


def _try_again(op: str, open_op: OpenOp, command: RunStep, result: Plan) -> None:
    if open_op.failed is not None and command.spec.fallback is None:
        # It waited for a fallback that the rules no longer have.
        result.events.append(_end(command, open_op.attempt, open_op.failed))
        return
    result.events.append(StepStarted(op, open_op.attempt + 1, source=open_op.source))
    result.calls.append(Call(command, open_op.attempt + 1, open_op.failed))


def failed(
    state: RunState, call: Call, error: Failure, retryable: bool, now: float
) -> AttemptFailed | StepFailed | StepSkipped:
    """What a failed attempt comes to: another one later, one of the fallback, or the end of the step."""
    command = call.command
    spec = command.spec
    open_op = state.ops[command.op]
    if open_op.failed is None:
        # Attempts that died with their process are numbered but not held against the step.
        failures = open_op.failures + 1
        if retryable and failures < spec.retry.attempts:
            wait = backoff(spec.retry, failures, step_key(state.run_id, command.op))
            return AttemptFailed(command.op, call.attempt, error, now + wait)
        if spec.fallback is not None:
            return AttemptFailed(command.op, call.attempt, error, now, fallback=True)
    return _end(command, call.attempt, error)


def _end(command: RunStep, attempt: int, error: Failure) -> StepFailed | StepSkipped:
    if command.spec.on_failure == "skip":
        return StepSkipped(command.op, attempt, error)
    return StepFailed(command.op, attempt, error)
