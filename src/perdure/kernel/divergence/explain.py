"""Classify the change that made a journal diverge from the code, and suggest a fix. Never reads the code itself.

The evidence is the op at which replay fails, the ops before and after it in the journal, the commands of the code, and
the source map of the program. Some changes look the same from one run (a step inserted before another; a later step
moved up); then the explanation is the one that fits this run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from perdure.kernel.commands import (
    FINISH,
    CancelOp,
    Checkpoint,
    Command,
    Finish,
    OpenWait,
    RecordValue,
    RunStep,
    SetState,
    StartChild,
    StartTimer,
)
from perdure.kernel.divergence.advice import title_for, ways
from perdure.kernel.divergence.model import Divergence, OpView, Raised
from perdure.kernel.divergence.source_map import NO_SOURCE, SourceMap
from perdure.kernel.events import (
    AnyEvent,
    CancelRequested,
    ChildStarted,
    RunStatus,
    StateSet,
    StepFailed,
    StepStarted,
    ValueRecorded,
    WaitOpened,
    WaitResolved,
)
from perdure.kernel.ids import op_name

# Ops that the code does not wait for. If it also waits for something, that is where it stands.
_IN_PASSING = frozenset({"now", "uuid", "random", "state", "unlock", "patch"})
# Lines in code of perdure, which older journals have for compensations.
_OURS = "perdure/authoring/code/"
_DRAWS = frozenset({"now", "uuid", "random"})


class Evidence(msgspec.Struct, frozen=True):
    """What is known about a divergence at the op `recorded`.

    `wishes` are pending commands that the journal does not hold, `before` and `after` the ops around `recorded` in the
    journal, `asked` all ops that the code asked for, each in order. `inserted` is a command that came before `recorded`
    and is not in the journal, where that is the divergence; `raised` the exceptions of the code since it last agreed.
    """

    recorded: OpView
    wishes: Sequence[OpView] = ()
    before: Sequence[OpView] = ()
    after: Sequence[OpView] = ()
    asked: Sequence[OpView] = ()
    source_map: SourceMap = NO_SOURCE
    inserted: OpView | None = None
    raised: Sequence[Raised] = ()
    # The arguments that the recorded op and the one in its place differ in, as text.
    arguments: Sequence[str] = ()


def recorded_op(event: AnyEvent) -> OpView | None:
    """The op that an event begins, or None."""
    if isinstance(event, StepStarted):
        return OpView("step", event.op, op_name(event.op), event.inputs, event.source) if event.attempt == 1 else None
    if isinstance(event, WaitOpened):
        if event.kind == "timer":
            return OpView("timer", event.op, op_name(event.op), source=event.source)
        # The key of a lock is not part of its path.
        inputs = event.name if event.kind == "lock" else ""
        return OpView(event.kind, event.op, op_name(event.op), inputs, event.source)
    if isinstance(event, ChildStarted):
        kind = "detached child" if event.detached else "child"
        return OpView(kind, event.op, op_name(event.op), _child_inputs(event.inputs, event.id), event.source)
    if isinstance(event, StateSet):
        return OpView("state", event.op, event.key, source=event.source)
    if isinstance(event, ValueRecorded) and event.kind not in ("lock", "patch"):
        return OpView(event.kind, event.op, op_name(event.op), source=event.source)
    return None


def given_up_op(event: StepFailed | WaitResolved | CancelRequested) -> OpView:
    """The cancellation of an op by the program."""
    path = event.child if isinstance(event, CancelRequested) else event.op
    return OpView("cancel", path, op_name(path))


def wished_op(command: Command) -> OpView:
    """The op that a command asks for."""
    op = command.op
    if isinstance(command, RunStep):
        return OpView("step", op, command.spec.name, command.inputs_hash, command.source)
    if isinstance(command, StartTimer):
        return OpView("timer", op, op_name(op), source=command.source)
    if isinstance(command, OpenWait):
        inputs = command.name if command.kind == "lock" else ""
        return OpView(command.kind, op, op_name(op), inputs, command.source)
    if isinstance(command, StartChild):
        kind = "detached child" if command.detached else "child"
        return OpView(kind, op, command.program, _child_inputs(command.inputs_hash, command.id), command.source)
    if isinstance(command, SetState):
        return OpView("state", op, command.key, source=command.source)
    if isinstance(command, RecordValue):
        return OpView(command.kind, op, op_name(op), source=command.source)
    if isinstance(command, Checkpoint):
        return OpView("checkpoint", op, op_name(op), source=command.source)
    if isinstance(command, CancelOp):
        return OpView("cancel", op, op_name(op))
    return _end(command)


def _child_inputs(inputs: str, id: str) -> str:
    return f"{inputs}\n{id}" if id else inputs


def _end(command: Finish) -> OpView:
    path = command.op.removesuffix(FINISH).rstrip("/")
    whose = f"of {path} " if path else ""
    error = command.error
    if command.status is not RunStatus.FAILED or error is None:
        return OpView("end", command.op, command.status, code=f"the end {whose}({command.status})")
    kind = error.type.rpartition(".")[2]
    return OpView(
        "end", command.op, "failed", kind, _where(error.traceback), f"the end {whose}({kind}: {error.message})"
    )


def _where(traceback: str) -> str:
    """The last `file:line` in a traceback."""
    for line in reversed(traceback.splitlines()):
        _, quote, rest = line.partition('File "')
        if quote:
            file, _, number = rest.partition('", line ')
            return f"{file}:{number.partition(',')[0]}"
    return ""


# --- classification -------------------------------------------------------------------------------------------------


def explain(evidence: Evidence) -> Divergence:
    """Classify the change, and name both sides and the fix."""
    if _OURS in evidence.recorded.source:
        evidence = msgspec.structs.replace(evidence, recorded=msgspec.structs.replace(evidence.recorded, source=""))
    source_map = evidence.source_map
    current = _current(evidence)
    cause = _cause(evidence, current)
    if cause is not None:
        return _raises(evidence, cause)
    inserted = evidence.inserted or _drawn(evidence, current)
    if inserted is not None:
        current, change = _first_new(evidence, inserted), "inserted"
    else:
        change = _change(evidence, current)
    last: OpView | None = None
    if current is not None and current.kind != "end":
        current = msgspec.structs.replace(current, code=source_map.code.get(current.source, ""))
    elif current is None or not current.source:
        last = _last(evidence)
    recorded = evidence.recorded
    title = title_for(change, recorded, current)
    arguments = tuple(evidence.arguments) if change == "inputs" else ()
    return Divergence(
        change, recorded.path, title, recorded, current, ways(recorded.path), last=last, arguments=arguments
    )


def _cause(evidence: Evidence, current: OpView | None) -> Raised | None:
    """The exception that led the code away from the recorded op, if one did."""
    recorded = evidence.recorded
    places = set(evidence.source_map.of(recorded))
    for raised in evidence.raised:
        if raised.mistake or places & raised.skipped or recorded.name in raised.names:
            return raised
        if current is not None and (current.source in raised.handlers or _compensates(current, recorded)):
            return raised
    if current is None or current.kind != "end" or current.name != "failed":
        return None
    return next((raised for raised in evidence.raised if not raised.caught), None)


def _compensates(current: OpView, recorded: OpView) -> bool:
    """Whether the code undoes what the run went on with."""
    return "compensate:" in current.path and "compensate:" not in recorded.path


def _raises(evidence: Evidence, raised: Raised) -> Divergence:
    recorded = evidence.recorded
    now = OpView("end", recorded.path, "failed", raised.type.rpartition(".")[2], raised.source, str(raised))
    title = title_for("raised", recorded, now)
    return Divergence("raised", recorded.path, title, recorded, now, ways(recorded.path))


def _drawn(evidence: Evidence, current: OpView | None) -> OpView | None:
    """A draw before the recorded op that the journal does not have: inputs differ because draws have shifted."""
    recorded = evidence.recorded
    if current is None or not _alike(msgspec.structs.replace(current, inputs=recorded.inputs), recorded):
        return None
    known = {op.path for op in evidence.after}
    for wish in evidence.wishes:
        if wish.path == current.path:
            return None
        if wish.kind in _DRAWS and _scope(wish) == _scope(recorded) and wish.path not in known:
            return wish
    return None


def _first_new(evidence: Evidence, inserted: OpView) -> OpView:
    """Of ops of one name, which are told apart by their number alone, the one whose line is new."""
    asked = [op for op in evidence.asked if _names(op) == _names(inserted) and _scope(op) == _scope(inserted)]
    ops = [*evidence.before, evidence.recorded, *evidence.after]
    known = [_line(op.source) for op in ops if _names(op) == _names(inserted) and _scope(op) == _scope(inserted)]
    lines = [_line(op.source) for op in asked]
    if inserted.kind not in _DRAWS or not known or len(lines) <= len(known):
        return inserted
    for n in range(len(known) + 1):
        # Lines before it stand where they stood, and lines after it have moved down together.
        moved = {line - known[m] for m, line in enumerate(lines[:n])}
        further = {line - known[n + m] for m, line in enumerate(lines[n + 1 : len(known) + 1])}
        if len(moved) <= 1 and len(further) <= 1 and (not moved or moved != further):
            return asked[n]
    return next((asked[n] for n, line in enumerate(known) if lines[n] != line), inserted)


def _last(evidence: Evidence) -> OpView | None:
    """The last op that the same execution asked for, with its line."""
    runs = {op.path for op in (*evidence.before, *evidence.asked) if op.kind == "child"}
    mine = _execution_of(evidence.recorded.path, runs)
    asked = [op for op in evidence.asked if op.kind not in ("end", "cancel") and _execution_of(op.path, runs) == mine]
    if not asked:
        return None
    return msgspec.structs.replace(asked[-1], code=evidence.source_map.code.get(asked[-1].source, ""))


def _current(evidence: Evidence) -> OpView | None:
    """The op that the code asks for in place of the recorded one."""
    recorded = evidence.recorded
    wishes = list(evidence.wishes)
    same = _at(recorded.path, wishes)
    if same is not None:
        return same
    # Commands of other runs in this journal say nothing about this one.
    runs = {op.path for op in (*evidence.before, *evidence.asked) if op.kind == "child"}
    wishes = [wish for wish in wishes if _execution_of(wish.path, runs) == _execution_of(recorded.path, runs)]
    waited_for = [wish for wish in wishes if wish.kind not in _IN_PASSING and wish.kind != "cancel"]
    candidates = waited_for or list(wishes)
    elsewhere = [wish for wish in candidates if _alike(wish, recorded) and _scope(wish) != _scope(recorded)]
    beside = [wish for wish in candidates if _scope(wish) == _scope(recorded) and wish.kind != "end"]
    found = elsewhere or beside or [wish for wish in candidates if wish.kind != "end"] or candidates
    return found[0] if found else None


def _change(evidence: Evidence, current: OpView | None) -> str:
    recorded = evidence.recorded
    if recorded.kind == "cancel":
        return "removed"
    if current is not None and current.path == recorded.path:
        return _same_place(evidence, current)
    if current is not None and _alike(current, recorded) and _scope(current) != _scope(recorded):
        return _another_scope(recorded, current)
    if current is None or current.kind == "end":
        return _nothing_instead(evidence, current)
    if current.path in {op.path for op in evidence.after}:
        return _passed_over(evidence, current)
    return _something_new(evidence, current)


def _same_place(evidence: Evidence, current: OpView) -> str:
    recorded, source_map = evidence.recorded, evidence.source_map
    if current.kind != recorded.kind:
        return "type"
    if current.name != recorded.name:
        return "renamed"
    # Another call of the same step has its number: an earlier call was removed, or two were swapped.
    later = [op for op in evidence.after if op.name == recorded.name and _scope(op) == _scope(recorded)]
    if any(op.inputs == current.inputs for op in later):
        lines = {op.source for op in [*evidence.before, recorded, *later] if op.name == recorded.name}
        if source_map.known and len(source_map.of(recorded)) < len(lines):
            return "removed"
        looped = len(lines) == 1 and not any(op.inputs == recorded.inputs for op in evidence.wishes)
        return "inputs" if looped else "reordered"
    return "inputs"


def _another_scope(recorded: OpView, current: OpView) -> str:
    before, now = recorded.path.count("/"), current.path.count("/")
    return "renamed" if before == now else "more" if now > before else "fewer"


def _nothing_instead(evidence: Evidence, current: OpView | None) -> str:
    recorded, source_map = evidence.recorded, evidence.source_map
    if current is not None and current.name == "failed":
        return "removed"
    if _repeats(recorded, evidence.before):
        return "fewer"
    if source_map.known and not source_map.of(recorded):
        return "removed"
    if source_map.known and len(source_map.of(recorded)) < _lines(evidence):
        return "removed"
    if current is None:
        return "fewer"  # the code waits for something else first: fewer ops run concurrently
    return "branch" if source_map.conditional(recorded) else "removed"


def _passed_over(evidence: Evidence, current: OpView) -> str:
    """The code asks for an op that comes later in the journal."""
    recorded, source_map = evidence.recorded, evidence.source_map
    if _repeats(recorded, evidence.before):
        return "fewer"
    if source_map.known and len(source_map.of(recorded)) < _lines(evidence):
        return "removed"
    if source_map.exclusive(recorded, current):
        return "branch"
    if source_map.stands_before(recorded, current):
        return "branch" if source_map.conditional(recorded) else "removed"
    # More lines ask for this op than the journal has sources for: one of them is new.
    known = {op.source for op in (*evidence.before, *evidence.after) if _names(op) == _names(current)}
    return "inserted" if len(source_map.of(current)) > len(known) else "reordered"


def _names(op: OpView) -> tuple[str, str]:
    return op.kind, op.name


def _something_new(evidence: Evidence, current: OpView) -> str:
    recorded, source_map = evidence.recorded, evidence.source_map
    gone = source_map.known and len(source_map.of(recorded)) < _lines(evidence)
    if not gone and _repeats(current, [op for op in evidence.asked if op.path != current.path]):
        return "more"
    if source_map.exclusive(recorded, current):
        return "branch"
    if not source_map.known:
        return "renamed" if _fits(current, recorded) else "inserted"
    if gone and current.kind != recorded.kind:
        return "type" if not _repeats(recorded, evidence.before) else "fewer"
    if gone:
        return "renamed" if _fits(current, recorded) else "removed"
    if _repeats(recorded, evidence.before) and not _before_it(source_map, current, recorded):
        return "fewer"
    if source_map.conditional(recorded) and source_map.stands_before(recorded, current):
        return "branch"
    return "inserted"


def _before_it(source_map: SourceMap, current: OpView, recorded: OpView) -> bool:
    """Whether the source has `current` before the recorded op."""
    return any(_line(current.source) <= _line(source) for source in source_map.of(recorded))


def _lines(evidence: Evidence) -> int:
    """How many lines asked for the recorded op's name when the journal was written."""
    recorded = evidence.recorded
    ops: Iterable[OpView] = [*evidence.before, recorded, *evidence.after]
    return len({op.source for op in ops if op.name == recorded.name and op.kind == recorded.kind})


def _repeats(op: OpView, others: Iterable[OpView]) -> bool:
    """Whether the same line asked for an op of this name before, as a loop does."""
    return any(
        other.name == op.name and other.kind == op.kind and other.source == op.source and _scope(other) == _scope(op)
        for other in others
    )


def _fits(current: OpView, recorded: OpView) -> bool:
    return current.kind == recorded.kind and current.inputs == recorded.inputs


def _alike(wish: OpView, recorded: OpView) -> bool:
    return _fits(wish, recorded) and wish.name == recorded.name


def _execution_of(path: str, runs: set[str]) -> str:
    while path := path.rpartition("/")[0]:
        if path in runs:
            break
    return path


def _at(path: str, ops: Iterable[OpView]) -> OpView | None:
    return next((op for op in ops if op.path == path), None)


def _scope(op: OpView) -> str:
    return op.path.rpartition("/")[0]


def _line(source: str) -> int:
    number = source.rpartition(":")[2]
    return int(number) if number.isdigit() else 0
