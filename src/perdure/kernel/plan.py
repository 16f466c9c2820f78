"""Decide what happens next. Never performs it.

Pure functions of a run's state, the program's commands and the time: they return the events to record and, to be done
after those are recorded, the steps to call and to cancel.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec
from msgspec import Raw

from perdure.errors import DeadlineExceeded, OutcomeUnknown, StepCancelled, UsageError
from perdure.kernel.chunks import CHUNK, MAP
from perdure.kernel.commands import (
    FINISH,
    CancelOp,
    Checkpoint,
    Command,
    Finish,
    OpenWait,
    Pending,
    RecordValue,
    RunStep,
    SetState,
    StartChild,
    StartTimer,
)
from perdure.kernel.context import run_context, without_tags
from perdure.kernel.events import (
    NULL,
    AnyEvent,
    AttemptFailed,
    CancelRequested,
    ChildFinished,
    ChildStarted,
    MapCall,
    RemoteCall,
    RunFinished,
    RunStarted,
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
from perdure.kernel.history.kept_outcomes import AGAIN, outcome
from perdure.kernel.ids import BATCH, REMOTE, enclosing, entropy_of, is_generated, run_id, step_key
from perdure.kernel.policies.retry import backoff
from perdure.kernel.policies.rules import sent_rules
from perdure.kernel.state import OpenOp, RunState
from perdure.kernel.values.arguments import names_of, same_call
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.failures import Failure, describe

# Describes perdure's own errors, which hold nothing but text and numbers.
_PLAIN = Codec()


class Call(msgspec.Struct, frozen=True, gc=False):
    """An attempt of a step, to be made once its StepStarted is durable.

    `failed`: it is an attempt of the fallback, for this failure.
    """

    command: RunStep
    attempt: int
    failed: Failure | None = None


class Start(msgspec.Struct, frozen=True, gc=False):
    """A detached run that begins with these events, in the same commit."""

    run_id: str
    events: list[AnyEvent]


class Plan(msgspec.Struct, gc=False):
    """Events to record, and actions for when they are durable."""

    events: list[AnyEvent]
    calls: list[Call]
    cancels: list[str]
    starts: list[Start] = msgspec.field(default_factory=list)
    # Whether everything so far must be durable before anything else takes effect.
    barrier: bool = False
    # The ids of runs of cancelled remote steps, with the reasons.
    abandoned: dict[str, str] = msgspec.field(default_factory=dict)
    # Whether something that is due waits for a concurrency limit.
    held: bool = False


def begin_step(command: Command) -> StepStarted | None:
    """As `plan`, for a step that is the only command and needs nothing but its StepStarted and a Call; else None."""
    if type(command) is not RunStep or command.refused is not None:
        return None
    spec = command.spec
    if spec.queue or spec.version or spec.function or spec.record_inputs or spec.at_most_once:
        return None
    return StepStarted(command.op, 1, command.inputs_hash, command.source, function=spec.function)


def plan(state: RunState, commands: Collection[Command], now: float) -> Plan:
    """Plan the program's commands, in order."""
    result = Plan([], [], [])
    events, calls = result.events, result.calls
    finish: Finish | None = None
    ends: list[Finish] = []
    for command in commands:
        if type(command) is RunStep and command.spec.queue:
            _start_remote(state, command, now, result)
        elif type(command) is RunStep:
            event = StepStarted(command.op, 1, command.inputs_hash, command.source)
            if command.spec.version or command.spec.function:
                event = msgspec.structs.replace(event, version=command.spec.version, function=command.spec.function)
            if command.spec.record_inputs:
                event = _with_inputs(event, command)
            events.append(event)
            if command.refused is not None:
                events.append(StepFailed(command.op, 1, command.refused))
                continue
            calls.append(Call(command, 1))
            if command.spec.at_most_once:
                # After a crash the next owner must know that it began.
                result.barrier = True
        elif isinstance(command, StartTimer):
            events.append(WaitOpened(command.op, "timer", command.due, command.source))
        elif isinstance(command, OpenWait):
            events.append(_open(command))
        elif isinstance(command, SetState):
            events.append(StateSet(command.op, command.key, command.value, command.source))
        elif isinstance(command, StartChild):
            _start_child(state, command, now, result)
        elif isinstance(command, CancelOp):
            if command.op in state.children:
                given_up = [one for one in commands if isinstance(one, CancelOp) and one.op in state.children]
                events += [CancelRequested(one.reason, one.op, given_up=True) for one in given_up]
                # Folding this cancels the children, which may withdraw their other commands: plan those later.
                break
            reason = command.reason or "the workflow no longer waits for it"
            _cancel(state, command.op, reason, result, retired=command.retired)
        elif isinstance(command, RecordValue):
            events.append(ValueRecorded(command.op, command.kind, command.value, command.source))
            # Work done under a lock is stored before the lock is released.
            result.barrier |= command.kind == "unlock"
        elif isinstance(command, Checkpoint):
            events.append(ValueRecorded(command.op, "checkpoint", source=command.source))
            result.barrier = True
            # Folding this advances the program, which may withdraw its other commands: plan those later.
            break
        elif isinstance(command, Finish):
            if command.op == FINISH:
                finish = command
            else:
                ends.append(command)
    if finish is not None:
        _drop_begun(state, result)
        _finish(state, finish, now, result)
    elif ends:
        # The innermost first, because the end of a child cancels its open ops.
        depth = max(end.op.count("/") for end in ends)
        _finish_children(state, [end for end in ends if end.op.count("/") == depth], now, result)
    return result


def keep(state: RunState, pending: Pending, now: float) -> Plan | None:
    """The next command of a retried run that has a kept outcome, with that outcome; None if there is none."""
    if state.kept is None or (command := state.kept.next(pending)) is None:
        return None
    kept = state.kept.of(command)
    if isinstance(command, Finish):
        return plan(state, [one for one in pending.values() if isinstance(one, Finish)], now)
    if kept is None:
        return plan(state, [command], now)
    if isinstance(command, StartChild):
        result = Plan([], [], [])
        _start_child(state, command, now, result, known=kept.by)
        return result
    assert isinstance(command, RunStep | OpenWait | StartTimer)
    begun = plan(state, [command], now).events[0]
    if isinstance(begun, StepStarted) and kept.inputs:
        # As in the former journal: the code may write the call in another way now.
        begun = msgspec.structs.replace(begun, inputs=kept.inputs)
    assert state.started is not None
    return Plan([begun, *outcome(command, kept, state.started.memo)], [], [])


def _drop_begun(state: RunState, result: Plan, children: Collection[str] | None = None) -> None:
    """Drop commands that were issued together with the end of the run, or of children of it."""

    def over(op: str) -> bool:
        return children is None or enclosing(op, children) != ""

    dropped = {
        event.op: event
        for event in result.events
        if isinstance(event, StepStarted | WaitOpened | ChildStarted) and over(event.op)
    }
    if not dropped:
        return
    result.calls = [call for call in result.calls if call.command.op not in dropped]
    # With what has begun and failed at once: it was refused.
    result.events = [event for event in result.events if getattr(event, "op", None) not in dropped]
    runs = {step_key(state.run_id, op) for op in dropped}
    runs |= {event.detached for event in dropped.values() if isinstance(event, ChildStarted)}
    result.starts = [one for one in result.starts if one.run_id not in runs and _id_of(one) not in runs]


def _id_of(start: Start) -> str:
    started = start.events[0]
    assert isinstance(started, RunStarted)
    return started.id


def _function(command: StartChild) -> str:
    """The name of the function of a child, if it has one, and that is not the name of its program."""
    defined = getattr(command.own, "defined", None)
    name = "" if defined is None or command.embedded else defined.place[1].rpartition(".")[2]
    return "" if name == command.program else name


def _start_child(state: RunState, command: StartChild, now: float, result: Plan, known: str = "") -> None:
    assert state.started is not None
    kept = Raw(command.input)
    event = ChildStarted(
        command.op,
        command.program,
        command.version,
        kept,
        command.blob,
        command.inputs_hash,
        command.id,
        deadline=command.deadline,
        source=command.source,
        refused=command.refused is not None,
        structure="" if command.embedded else command.structure,
        last=command.last,
        function=_function(command),
    )
    if command.refused is not None:
        failed = ChildFinished(command.op, RunStatus.FAILED, error=command.refused)
        result.events += [msgspec.structs.replace(event, input=NULL), failed]
        return
    if not command.detached:
        result.events.append(event)
        return
    if known:
        result.events.append(msgspec.structs.replace(event, detached=known, input=NULL, input_blob=""))
        return
    child = run_id(now, entropy_of(step_key(state.run_id, command.op)))
    started = RunStarted(
        id=command.id or f"{state.started.id}/{command.op}",
        program=command.program,
        version=command.version,
        input=NULL if command.blob else kept,
        input_blob=command.blob,
        durability=state.started.durability,
        deadline=command.deadline,
        parent=state.run_id,
        exact=1 if command.own is None else 2,
        structure=command.structure,
        **(msgspec.structs.asdict(command.options) if command.options is not None else {}),
    )
    result.events.append(msgspec.structs.replace(event, detached=child, input=NULL, input_blob=""))
    result.starts.append(Start(child, [started]))
    # The child must not begin before its ChildStarted is durable.
    result.barrier = True


def _with_inputs(event: StepStarted, command: RunStep) -> StepStarted:
    """The StepStarted of a step that records its arguments, unless they are too large."""
    if command.refused is not None:
        return event
    input = NULL if command.blob else Raw(command.inputs)
    return msgspec.structs.replace(event, input=input, input_blob=command.blob, names=names_of(command))


def _start_remote(state: RunState, command: RunStep, now: float, result: Plan) -> None:
    assert state.started is not None
    op = command.op
    event = StepStarted(op, 1, command.inputs_hash, command.source, command.spec.queue, function=command.spec.function)
    result.events.append(_with_inputs(event, command) if command.spec.record_inputs else event)
    if command.refused is not None:
        result.events.append(StepFailed(op, 1, command.refused))
        return
    if command.spec.queue == CHUNK:
        _start_chunk(state, command, now, result)
        return
    skip = command.spec.on_failure == "skip"
    started = RunStarted(
        id=step_key(state.run_id, op),
        program=REMOTE + (command.spec.served_as or command.spec.name),
        version="",
        input=NULL if command.blob else Raw(command.inputs),
        input_blob=command.blob,
        deadline=state.deadline_of(op),
        parent=state.run_id,
        queue=command.spec.queue,
        # A remote step has the queue key of its run.
        queue_key=state.started.queue_key,
        priority=state.started.priority,
        tags=state.started.tags,
        remote=RemoteCall(
            op,
            command.positional,
            command.keywords,
            names_of(command)[: command.positional],
            skip,
            without_tags(run_context(state, state.child_of(op))),
            command.patches,
            secrets=command.spec.secrets,
        ),
        rules=sent_rules(command.spec),
    )
    result.starts.append(Start(run_id(now, entropy_of(step_key(state.run_id, op))), [started]))
    result.barrier = True


def _start_chunk(state: RunState, command: RunStep, now: float, result: Plan) -> None:
    """Start the run of a chunk: its items have the op paths and the idempotency keys that they would have here."""
    began, op = state.started, command.op
    assert began is not None
    # A run that keeps outcomes of another run continues the chunks of that run.
    past, again = began.memo if not began.forked_from else "", ""
    kept = state.kept.entries.get(op) if state.kept is not None else None
    if kept is not None and kept.kind == AGAIN and same_call(kept.inputs, command):
        past, again = began.forked_from, kept.by
    path = inner = state.child_of(op)
    within: list[tuple[str, str, str]] = []
    while inner:
        child = state.children[inner].started
        within.insert(0, (inner, child.program, child.version))
        inner = state.child_of(inner)
    # A map in an item of a chunk is a map of the same program.
    outer = None if began.remote is None else began.remote.map
    of = MapCall(began.program, began.version) if outer is None else outer
    started = RunStarted(
        id=step_key(state.run_id, op),
        program=MAP + of.program.removesuffix(BATCH),
        version="",
        input=NULL if command.blob else Raw(command.inputs),
        input_blob=command.blob,
        durability=began.durability,
        deadline=state.deadline_of(op),
        parent=state.run_id,
        tags=began.tags,
        rules=began.rules,
        keys=step_key(state.keys, path) if path else state.keys,
        max_rounds=began.max_rounds,
        memo=began.memo if not began.forked_from else "",
        exact=2,
        remote=RemoteCall(
            op,
            run=without_tags(run_context(state, path)),
            patches=command.patches,
            map=MapCall(of.program, of.version, (*of.within, *within), past, again),
        ),
    )
    result.starts.append(Start(run_id(now, entropy_of(step_key(state.run_id, op))), [started]))
    result.barrier = True


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
    """Deliver the next received signal to its wait; None if there is none.

    One at a time: the program may then cancel the other waits, and their signals must not be consumed.
    """
    if not state.inbox or state.finished is not None or state.parked is not None:
        return None
    op = state.next_delivery
    return None if op is None else WaitResolved(op, "signal")


def _cancel(state: RunState, op: str, reason: str, result: Plan, *, retired: bool = False) -> None:
    open_op = state.ops.get(op)
    if open_op is None:
        return
    if open_op.kind == "child":
        result.events.append(ChildFinished(op, RunStatus.CANCELLED, reason=reason))
        return
    if open_op.kind == "remote":
        result.abandoned[step_key(state.run_id, op)] = reason
    if open_op.kind in ("step", "remote"):
        error = describe(StepCancelled(op, reason), _PLAIN)
        result.events.append(StepFailed(op, open_op.attempt, error, cancelled=True, retired=retired))
        result.cancels.append(op)
    else:
        result.events.append(WaitResolved(op, "cancelled", retired=retired))


def _ends_in(result: Plan) -> set[str]:
    """The ops that a plan ends."""
    return {event.op for event in result.events if isinstance(event, StepFailed | WaitResolved | ChildFinished)}


def _give_up_open(state: RunState, ops: Iterable[str], ended: Collection[str], result: Plan) -> None:
    """Cancel the open ops of a body that has ended, without those that end anyway."""
    for op in ops:
        if op not in ended:
            _cancel(state, op, "the run ended without waiting for it", result)


def _finish(state: RunState, command: Finish, now: float, result: Plan) -> None:
    if is_late(state, now):
        # The body may end after its deadline but before the timer fires: the deadline wins.
        assert state.started is not None
        command = _too_late(state.started.id, state.started.deadline, FINISH)
    open_ops = sorted(state.ops, key=lambda op: -op.count("/")) if state.children else state.ops
    _give_up_open(state, open_ops, _ends_in(result), result)
    if command.continue_with is not None:
        next_one = continuation(state, command, now)
        result.starts.append(next_one)
        result.events.append(RunFinished(command.status, continued_as=next_one.run_id))
        return
    value = NULL if command.blob else Raw(command.value)
    result.events.append(RunFinished(command.status, value, command.blob, command.error, command.reason))


def _too_late(id: str, deadline: float | None, op: str) -> Finish:
    """The end of a run or a child whose deadline has passed."""
    assert deadline is not None
    error = describe(DeadlineExceeded(id, moment(deadline).isoformat()), _PLAIN)
    return Finish(RunStatus.FAILED, error=error, op=op)


def _finish_children(state: RunState, commands: Iterable[Finish], now: float, result: Plan) -> None:
    """End children, none of which is inside another."""
    ends = {command.op.removesuffix("/" + FINISH): command for command in commands}
    _drop_begun(state, result, ends)
    ended = _ends_in(result)
    for path, command in ends.items():
        _finish_child(state, path, command, now, ended, result)


def _finish_child(
    state: RunState, path: str, command: Finish, now: float, ended: Collection[str], result: Plan
) -> None:
    due = state.ops[path].due
    if due is not None and due <= now:
        command = _too_late(state.children[path].started.id or path, due, command.op)
    elif command.continue_with is not None:
        error = UsageError("continue_as() ends a run, and this one is awaited: start it with child(..., detached=True)")
        command = Finish(RunStatus.FAILED, error=describe(error, _PLAIN))
    _give_up_open(state, state.open_within(path), ended, result)
    value = Raw(command.value)
    result.events.append(
        ChildFinished(path, command.status, value, command.blob, command.error, command.reason, command.retired)
    )


def continuation(state: RunState, command: Finish, now: float) -> Start:
    """The next incarnation of a run: with new input, and with every signal that was not consumed."""
    started, input = state.started, command.continue_with
    assert started is not None
    assert input is not None
    begin = msgspec.structs.replace(
        started,
        input=NULL if command.blob else Raw(input),
        input_blob=command.blob,
        incarnation=started.incarnation + 1,
        version=command.version or started.version,
        not_before=None,
        continued_from=state.run_id,
        exact=2,
        recorded=None,
        keys="",
        # The latest ids that callers chose, to deduplicate repeated signals.
        seen=tuple(key.id for key in state.signal_ids if not key.child and not is_generated(key.id))[-1000:],
    )
    unread = [signal for waiting in state.inbox.values() for signal in waiting if not signal.child]
    return Start(run_id(now, entropy_of(state.run_id)), [begin, *unread])


def wake(state: RunState, open_steps: Mapping[str, RunStep], now: float, room: int) -> Plan:
    """Plan all that is due at `now`: timers, retries within the concurrency limit, the deadline of the run."""
    result = Plan([], [], [])
    if state.finished is not None or state.parked is not None or state.started is None:
        return result
    if is_late(state, now):
        return expire(state, now)
    # A received signal wins over the timeout of its wait: see `deliver`.
    served = set(state.deliverable()) if state.inbox else ()
    due = state.due(now)
    late = {op for op in due if op in state.children} if state.children else set()
    for op in due:
        if op in served or (state.paused is not None and op not in late) or (late and enclosing(op, late)):
            continue  # the end of a child ends what is in it
        open_op = state.ops[op]
        if op in late:
            _finish_child(state, op, Finish(RunStatus.FAILED, op=f"{op}/{FINISH}"), now, (), result)
        elif open_op.kind != "step":
            result.events.append(WaitResolved(op, "timer" if open_op.kind == "timer" else "timeout"))
        elif op not in open_steps:
            continue  # of a node that was retired
        elif len(result.calls) < room:
            _try_again(op, open_op, open_steps[op], result)
            result.barrier |= open_steps[op].spec.at_most_once
        else:
            result.held = True
    return result


def is_late(state: RunState, now: float) -> bool:
    """Whether the deadline of a run has passed, in any status. An imported run does not expire."""
    if state.finished is not None or state.started is None or state.imported:
        return False
    return state.started.deadline is not None and state.started.deadline <= now


def expire(state: RunState, now: float) -> Plan:
    """The end of a run whose deadline has passed. Needs no program: it is the same in every state."""
    result = Plan([], [], [])
    _finish(state, Finish(RunStatus.FAILED), now, result)
    return result


def adopt(state: RunState, open_steps: Mapping[str, RunStep]) -> Plan:
    """Plan what a new owner does about attempts that were running when the previous owner died.

    Such an attempt is counted and made again under the same idempotency key; one that must not run twice is declared
    unknown, which the program gets as an error.
    """
    result = Plan([], [], [])
    for op, open_op in state.ops.items():
        if not open_op.running or op not in open_steps:
            continue  # not under way, or of a node that was retired
        command = open_steps[op]
        if command.spec.at_most_once:
            error = describe(OutcomeUnknown(op, step_key(state.keys, op)), _PLAIN)
            result.events.append(StepFailed(op, open_op.attempt, error, unknown=True))
        else:
            _try_again(op, open_op, command, result)
    return result


def _try_again(op: str, open_op: OpenOp, command: RunStep, result: Plan) -> None:
    if open_op.failed is not None and command.spec.fallback is None:
        # It waited for a fallback that the rules no longer contain.
        result.events.append(_end(command, open_op.attempt, open_op.failed))
        return
    result.events.append(StepStarted(op, open_op.attempt + 1, source=open_op.source))
    result.calls.append(Call(command, open_op.attempt + 1, open_op.failed))


def failed(
    state: RunState, call: Call, error: Failure, retryable: bool, now: float
) -> AttemptFailed | StepFailed | StepSkipped:
    """The event for a failed attempt: a retry follows, or the fallback, or the step has failed."""
    command = call.command
    spec = command.spec
    open_op = state.ops[command.op]
    if open_op.failed is None:
        # Attempts whose process died are numbered, but do not count as failures.
        failures = open_op.failures + 1
        if retryable and failures < spec.retry.attempts:
            wait = backoff(spec.retry, failures, step_key(state.run_id, command.op))
            return AttemptFailed(command.op, call.attempt, error, now + wait, of=spec.retry.attempts)
        if spec.fallback is not None:
            return AttemptFailed(command.op, call.attempt, error, now, fallback=True)
    return _end(command, call.attempt, error)


def _end(command: RunStep, attempt: int, error: Failure) -> StepFailed | StepSkipped:
    if command.spec.on_failure == "skip":
        return StepSkipped(command.op, attempt, error)
    return StepFailed(command.op, attempt, error)
