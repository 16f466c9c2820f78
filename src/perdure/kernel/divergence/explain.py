"""Classify the change that made a journal diverge from the code, and suggest a fix. Never reads the code itself.

The evidence is the op at which replay fails, the ops before and after it in the journal, the commands of the code, and
the source map of the program. Some changes look the same from one run (a step inserted before another; a later step
moved up); then the explanation is the one that fits this run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec

from perdure.kernel.commands import (
    FINISH,
    CancelOp,
    Checkpoint,
    Command,
    Finish,
    LoadValue,
    OpenWait,
    RecordValue,
    RunStep,
    SetState,
    StartChild,
    StartTimer,
)
from perdure.kernel.divergence.advice import OF_WORKFLOWS, title_for, ways
from perdure.kernel.divergence.model import Divergence, OpView, Raised
from perdure.kernel.divergence.source_map import NO_SOURCE, SourceMap
from perdure.kernel.events import (
    AnyEvent,
    CancelRequested,
    ChildFinished,
    ChildStarted,
    RunStatus,
    StateSet,
    StepFailed,
    StepStarted,
    ValueRecorded,
    WaitOpened,
    WaitResolved,
)
from perdure.kernel.ids import enclosing, op_name

# Ops that the code does not wait for. If it also waits for something, that is where it stands.
_IN_PASSING = frozenset({"now", "uuid", "random", "state", "unlock", "patch"})
# Lines in code of perdure, which older journals have for compensations.
_OURS = "perdure/authoring/code/"
_DRAWS = frozenset({"now", "uuid", "random"})


class Evidence(msgspec.Struct, frozen=True):
    """What is known about a divergence at the op `recorded`.

    `commands` are pending, and not in the journal; `before` and `after` are the ops around `recorded` in the journal,
    `asked` all ops that the code asked for, each in order. `inserted` is a command that came before `recorded`, and is
    not in the journal; `raised` are the exceptions of the code since it last agreed, `raised_before` those of before.
    """

    recorded: OpView
    commands: Sequence[OpView] = ()
    before: Sequence[OpView] = ()
    after: Sequence[OpView] = ()
    asked: Sequence[OpView] = ()
    source_map: SourceMap = NO_SOURCE
    inserted: OpView | None = None
    raised: Sequence[Raised] = ()
    raised_before: Sequence[Raised] = ()
    # The arguments that the recorded op and the one in its place differ in, as text.
    arguments: Sequence[str] = ()
    # How the program says its version.
    register: str = OF_WORKFLOWS


def recorded_op(event: AnyEvent) -> OpView | None:
    """The op that an event begins, or None."""
    if isinstance(event, StepStarted):
        op = OpView(
            "step", event.op, op_name(event.op), event.inputs, event.source, queue=event.queue, function=event.function
        )
        return op if event.attempt == 1 else None
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


def given_up_op(event: StepFailed | WaitResolved | ChildFinished | CancelRequested) -> OpView:
    """The cancellation of an op by the program."""
    path = event.child if isinstance(event, CancelRequested) else event.op
    return OpView("cancel", path, op_name(path))


def commanded_op(command: Command) -> OpView:
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
    if isinstance(command, CancelOp | LoadValue):
        return OpView("cancel" if isinstance(command, CancelOp) else "value", op, op_name(op))
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
    if current is not None and current.kind == "end":
        current = msgspec.structs.replace(current, source=_as_known(current.source, source_map))
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
        change,
        recorded.path,
        title,
        recorded,
        current,
        ways(recorded.path, evidence.register),
        last=last,
        arguments=arguments,
    )


def _as_known(source: str, source_map: SourceMap) -> str:
    """A line of a traceback, whose file has its whole path, as other lines are named."""
    return max((place for place in source_map.code if source.endswith(f"/{place}")), key=len, default=source)


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
    since = (raised for raised in evidence.raised if not raised.caught)
    # One that waited for what the code does in the end, as in a `finally`, is raised again without a word.
    before = (raised for raised in reversed(evidence.raised_before) if current.code.endswith(f"({raised})"))
    return next(chain(since, before), None)


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
    paths = [op.path for op in evidence.asked]
    before = evidence.asked[: paths.index(current.path)] if current.path in paths else ()
    for kind in sorted(_DRAWS):
        asked = [op for op in before if op.kind == kind and _scope(op) == _scope(recorded)]
        known = [op for op in evidence.before if op.kind == kind and _scope(op) == _scope(recorded)]
        if known and len(asked) > len(known):
            return asked[len(known)]
    return None


def _first_new(evidence: Evidence, inserted: OpView) -> OpView:
    """Of ops of one name, which are told apart by their number alone, the one whose line is new."""
    asked = [op for op in evidence.asked if _names(op) == _names(inserted) and _scope(op) == _scope(inserted)]
    ops = [*evidence.before, evidence.recorded]
    known = [_line(op.source) for op in ops if _names(op) == _names(inserted) and _scope(op) == _scope(inserted)]
    lines = [_line(op.source) for op in asked]
    if inserted.kind not in _DRAWS or not known or len(lines) <= len(known):
        return inserted
    asked_at = {op.path: _line(op.source) for op in evidence.asked}
    pairs = sorted(
        {(_line(op.source), asked_at[op.path]) for op in ops if op.path in asked_at and op.kind not in _DRAWS}
    )

    def expected(line: int) -> int:
        """Where a line should be now, by the next op that both have."""
        nearest = next((pair for pair in pairs if pair[0] >= line), pairs[-1] if pairs else (0, 0))
        return line + nearest[1] - nearest[0]

    def distance(n: int) -> int:
        """How far from there the lines are if the one with number `n` is new."""
        return sum(abs(lines[m if m < n else m + 1] - expected(line)) for m, line in enumerate(known))

    return asked[min(range(len(known) + 1), key=distance)]


def _last(evidence: Evidence) -> OpView | None:
    """The last op that the same execution asked for, with its line."""
    runs = {op.path for op in (*evidence.before, *evidence.asked) if op.kind == "child"}
    mine = enclosing(evidence.recorded.path, runs)
    asked = [op for op in evidence.asked if op.kind not in ("end", "cancel") and enclosing(op.path, runs) == mine]
    if not asked:
        return None
    return msgspec.structs.replace(asked[-1], code=evidence.source_map.code.get(asked[-1].source, ""))


def _current(evidence: Evidence) -> OpView | None:
    """The op that the code asks for in place of the recorded one."""
    recorded = evidence.recorded
    commands = list(evidence.commands)
    same = _at(recorded.path, commands)
    if same is not None:
        return same
    # Commands of other runs in this journal say nothing about this one.
    runs = {op.path for op in (*evidence.before, *evidence.asked) if op.kind == "child"}
    commands = [command for command in commands if enclosing(command.path, runs) == enclosing(recorded.path, runs)]
    waited_for = [command for command in commands if command.kind not in _IN_PASSING and command.kind != "cancel"]
    candidates = waited_for or list(commands)
    elsewhere = [command for command in candidates if _alike(command, recorded) and _scope(command) != _scope(recorded)]
    beside = [command for command in candidates if _scope(command) == _scope(recorded) and command.kind != "end"]
    found = elsewhere or beside or [command for command in candidates if command.kind != "end"] or candidates
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
    return _something_else(evidence, current)


def _same_place(evidence: Evidence, current: OpView) -> str:
    """The code asks for the same op with something else."""
    recorded, source_map = evidence.recorded, evidence.source_map
    if current.kind != recorded.kind:
        return "type"
    if current.name != recorded.name:
        return "renamed"
    # Another call of the same step has its number: an earlier call was removed, or two were swapped.
    later = [op for op in evidence.after if op.name == recorded.name and _scope(op) == _scope(recorded)]
    lines = Lines(evidence, current)
    if any(op.inputs == current.inputs for op in later):
        known = {op.source for op in [*evidence.before, recorded, *later] if op.name == recorded.name}
        if lines.moved is not None and lines.moved > 0 and lines.is_below and _has_new_line(evidence, current):
            return "inserted"
        if source_map.known and len(source_map.of(recorded)) < len(known):
            return "removed"
        looped = len(known) == 1 and not any(op.inputs == recorded.inputs for op in evidence.commands)
        return "inputs" if looped else "reordered"
    if lines.moved is not None and lines.moved > 0 and lines.is_below and _has_new_line(evidence, current):
        return "inserted"
    return "removed" if lines.moved is not None and lines.moved < 0 else "inputs"


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
    if source_map.loops_of(recorded):
        return "fewer"
    ends_early = current.name == RunStatus.BAILED
    return "branch" if ends_early or source_map.conditional(recorded) else "removed"


def _something_else(evidence: Evidence, current: OpView) -> str:
    """The code asks for another op first: a later one of the journal, or one that the journal does not have."""
    recorded, source_map = evidence.recorded, evidence.source_map
    recorded_later = [op.path for op in evidence.after]
    lines = Lines(evidence, current)
    if not source_map.known:
        return _without_source(evidence, current)
    seen = source_map.of(recorded)
    gone = len(seen) < _lines(evidence)
    if recorded.kind == "step" and not seen:
        # A line that the source map does not see, as in a method, is there if the code has come to it before.
        gone &= all(_names(op) != _names(recorded) for op in evidence.asked)
    if recorded.kind == "lock":
        gone |= not source_map.has_key(recorded)
        if current.path in _under(recorded, recorded_later) or (gone and current.kind != "lock"):
            return "removed"
    if not gone:
        jump = _jump(evidence, current, lines)
        if jump:
            return jump
    if source_map.exclusive(recorded, current):
        return "branch"
    if not gone and lines.is_above:
        return "branch" if source_map.arms_at(recorded, lines.place) else "removed"
    if gone or not lines.is_below:
        return _in_its_place(evidence, current, lines)
    if current.path not in recorded_later:
        return "reordered" if lines.moved == 0 and lines.has_sunk else "inserted"
    if lines.moved is not None and lines.moved <= 0:
        return "reordered"
    return "inserted" if _has_new_line(evidence, current) else "reordered"


def _has_new_line(evidence: Evidence, current: OpView) -> bool:
    """Whether more lines ask for an op than the journal has sources for: one of them is new."""
    ops = (*evidence.before, evidence.recorded, *evidence.after)
    known = {op.source for op in ops if _names(op) == _names(current)}
    return len(evidence.source_map.of(current)) > len(known)


def _without_source(evidence: Evidence, current: OpView) -> str:
    recorded = evidence.recorded
    if current.path in {op.path for op in evidence.after}:
        return "fewer" if _repeats(recorded, evidence.before) else "reordered"
    if _repeats(current, [op for op in evidence.asked if op.path != current.path]):
        return "more"
    return "renamed" if _fits(current, recorded) else "inserted"


def _under(lock: OpView, later: Sequence[str]) -> Sequence[str]:
    """What the run did while it held a lock."""
    release = f"{lock.path}/unlock"
    return later[: later.index(release)] if release in later else later


def _jump(evidence: Evidence, current: OpView, lines: Lines) -> str:
    """Whether the code has left a loop, or a group of tasks, early, or stays in it; empty if neither."""
    recorded, source_map = evidence.recorded, evidence.source_map
    inner, outer = _scope(recorded), _scope(current)
    asked = [op.path for op in evidence.asked]
    before = evidence.asked[: asked.index(current.path)] if current.path in asked else evidence.asked
    # A loop that makes tasks.
    if inner != outer and inner.startswith(outer):
        return "fewer"
    scopes = {_scope(op) for op in before}
    if inner != outer and outer.startswith(inner) and outer not in scopes and _shape(outer) in map(_shape, scopes):
        return "more"
    loops, current_loops = source_map.loops_at(lines.place), source_map.loops_at(current.source)
    if _repeats(current, before) and (not current_loops or any(loop not in loops for loop in current_loops)):
        return "more"
    left = [loop for loop in loops if loop not in current_loops]
    if left and _line(current.source) > left[0][1]:
        return "fewer"
    if _repeats(recorded, evidence.before) and not loops and not _before_it(source_map, current, recorded):
        return "fewer"
    return ""


def _in_its_place(evidence: Evidence, current: OpView, lines: Lines) -> str:
    """The recorded op is gone, and the code asks for another one where it was."""
    recorded = evidence.recorded
    later = current.path in {op.path for op in evidence.after}
    if lines.moved is None:
        if later:
            return "removed"
        if current.kind != recorded.kind:
            return "type" if not _repeats(recorded, evidence.before) else "fewer"
        return "renamed" if current.inputs == recorded.inputs else "removed"
    if lines.moved < 0 or (later and not _has_new_line(evidence, current)):
        return "removed"
    return "type" if current.kind != recorded.kind else "renamed"


class Lines:
    """Where the lines of the recorded code are now, judged by ops that both the journal and the code have."""

    def __init__(self, evidence: Evidence, current: OpView) -> None:
        recorded, source_map = evidence.recorded, evidence.source_map
        self._file, now = _file(current.source), _line(current.source)
        self._old_file, old = _file(recorded.source), _line(recorded.source)
        self._source_map = source_map
        asked = {op.path: _line(op.source) for op in evidence.asked if _file(op.source) == self._file}
        # The lines of ops that both have, by name and old line.
        self._known = {
            (op.name, _line(op.source)): asked[op.path]
            for op in evidence.before
            if op.path in asked and _file(op.source) == self._old_file
        }
        above = max(((line, new) for (_, line), new in self._known.items() if line < old), default=None)
        shift = above[1] - above[0] if above is not None else now - old
        # Where it is mentioned now, next to its old place.
        taken = {new for (name, line), new in self._known.items() if name == recorded.name and line != old}
        places = [line for line in self._mentions(recorded) if line not in taken]
        place = self._known.get((recorded.name, old))
        if place is None:
            place = min(places, key=lambda line: (abs(line - old - shift), line == now), default=None)
        self.place = "" if place is None else f"{self._file}:{place}"
        below = self._below(evidence, old, place, shift)
        # By how many lines the code after it has moved; None if that cannot be told.
        self.moved = None if below is None else below - shift
        near = place is not None and (len(places) == 1 or 0 <= place - old - shift <= _NEAR)
        self.is_below = place is not None and place >= now and (near or (self.moved or 0) > 0)
        self.is_above = place is not None and place < now
        # Whether it stands lower than it did, as after a swap.
        self.has_sunk = place is not None and place > old + shift

    def _mentions(self, op: OpView) -> list[int]:
        return [_line(place) for place in self._source_map.of(op) if _file(place) == self._file]

    def _below(self, evidence: Evidence, old: int, taken: int | None, shift: int) -> int | None:
        """The shift of the lines after the recorded op."""
        votes: dict[int, int] = {}
        ops = [op for op in (*evidence.after, *evidence.before) if _file(op.source) == self._old_file]
        for name, line in {(op.name, _line(op.source)) for op in ops}:
            if line > old:
                known = self._known.get((name, line))
                for place in [known] if known is not None else self._mentions(OpView("", "", name)):
                    if place != taken or known is not None:
                        votes[place - line] = votes.get(place - line, 0) + 1
        return max(votes, key=lambda found: (votes[found], -abs(found - shift), found), default=None)


# As many lines are at most inserted at once, as far as nothing else tells.
_NEAR = 3


def _names(op: OpView) -> tuple[str, str]:
    return op.kind, op.name


def _before_it(source_map: SourceMap, current: OpView, recorded: OpView) -> bool:
    """Whether the source has `current` before the recorded op."""
    return any(_line(current.source) <= _line(source) for source in source_map.of(recorded))


def _lines(evidence: Evidence) -> int:
    """How many lines asked for the recorded op's name when the journal was written."""
    recorded = evidence.recorded
    ops = [*evidence.before, recorded, *evidence.after]
    # The source map is that of the execution that asked for it, and has no lines of those around it.
    own = enclosing(recorded.path, {op.path for op in evidence.before if op.kind == "child"})
    ops = [op for op in ops if not own or op.path.startswith(f"{own}/")]
    return len({op.source for op in ops if op.name == recorded.name and op.kind == recorded.kind})


def _repeats(op: OpView, others: Iterable[OpView]) -> bool:
    """Whether the same line asked for an op of this name before, as a loop does."""
    return any(
        other.name == op.name
        and other.kind == op.kind
        and other.source == op.source
        and _shape(_scope(other)) == _shape(_scope(op))
        for other in others
    )


def _shape(path: str) -> str:
    """A path without its numbers: the same for every task of a loop."""
    return "/".join(part.partition(":")[0] for part in path.split("/"))


def _file(source: str) -> str:
    return source.rpartition(":")[0]


def _fits(current: OpView, recorded: OpView) -> bool:
    return current.kind == recorded.kind and current.inputs == recorded.inputs


def _alike(command: OpView, recorded: OpView) -> bool:
    return _fits(command, recorded) and command.name == recorded.name


def _at(path: str, ops: Iterable[OpView]) -> OpView | None:
    return next((op for op in ops if op.path == path), None)


def _scope(op: OpView) -> str:
    return op.path.rpartition("/")[0]


def _line(source: str) -> int:
    number = source.rpartition(":")[2]
    return int(number) if number.isdigit() else 0
