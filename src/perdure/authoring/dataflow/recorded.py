"""What did not run in a recorded run, found from its stored structure, without its code. Executes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from perdure.authoring.dataflow.execution import DataflowExecution
from perdure.authoring.dataflow.lookup import FAILED, OPEN, WAITING
from perdure.authoring.dataflow.manifest import StoredProgram
from perdure.authoring.dataflow.plan import Node, Plan
from perdure.authoring.dataflow.values import Value
from perdure.kernel.divergence.recorded_source import code_at, last_command
from perdure.kernel.events import (
    AnyEvent,
    Batch,
    CancelRequested,
    ChildFinished,
    ChildStarted,
    RunClaimed,
    RunFinished,
    RunStarted,
    RunStatus,
    StepStarted,
    StepStatus,
    ValueRecorded,
    WaitOpened,
)
from perdure.kernel.ids import enclosing
from perdure.kernel.patches import DECISIONS, PatchHistory, patch_history
from perdure.kernel.state import RunState
from perdure.kernel.step_records import Missed, NotRun, within
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.failures import Failure

_BEGIN = RunClaimed("", 1)


def missed(programs: Mapping[str, StoredProgram], started: RunStarted, batches: Sequence[Batch]) -> Missed:
    """The turns that did not run, in a journal with its large values in place.

    `programs` are the programs with a stored structure, by its id. Parts of the run without a structure are left out.
    """
    walk = _Walk(programs, patch_history(RunState(""), batches, decides=True))
    walk.begin("", _root(programs, batches), started)
    for batch in batches:
        for event in batch.events:
            walk.fold(event, batch.at)
    turns = [within(path, turn) for path, noted in walk.noted.items() for turn in noted]
    return Missed(turns, walk.whole)


def program_at(programs: Mapping[str, StoredProgram], batches: Sequence[Batch], path: str) -> StoredProgram | None:
    """The program of a run, or of its child at an op path."""
    children = {event.op: event for batch in batches for event in batch.events if isinstance(event, ChildStarted)}
    above = [at for at in children if path == at or path.startswith(f"{at}/")]
    found = _root(programs, batches)
    at = ""
    for child in sorted(above, key=len):
        structure, own = children[child].structure, child[len(at) + 1 :] if at else child
        found, at = programs.get(structure) if structure else _inside(found, own), child
    return found


def _root(programs: Mapping[str, StoredProgram], batches: Sequence[Batch]) -> StoredProgram | None:
    """The program of the last owner that recorded a command; an owner that only parked the run does not count."""
    return programs.get(code_at(batches, last_command(batches)))


def _inside(program: StoredProgram | None, op: str) -> StoredProgram | None:
    """The program that runs as an op of another one."""
    plan = None if program is None else program.plan
    nodes = () if plan is None else plan.nodes
    found = next((node.program for node in nodes if node.name == op.partition(":")[0]), None)
    return found if isinstance(found, StoredProgram) else None


class _Walk:
    """The executions of a journal, by op path, and what did not run in them."""

    def __init__(self, programs: Mapping[str, StoredProgram], past: PatchHistory) -> None:
        self._programs, self._past = programs, past
        # None for code, and for an execution that raised.
        self._open: dict[str, _Shown | None] = {}
        self.noted: dict[str, list[NotRun]] = {}
        # Whether a structure explains everything that was recorded.
        self.whole = True

    def fold(self, event: AnyEvent, at: float) -> None:
        """Apply an event to the execution that it belongs to."""
        if isinstance(event, RunClaimed):
            if event.epoch == 1:
                self._advance("", event, at)
        elif isinstance(event, RunFinished):
            for path in list(self._open):
                self._end(path, event.status, event.error)
        elif isinstance(event, CancelRequested):
            self._advance(event.child, CancelRequested(event.reason), at)
        elif hasattr(event, "op"):
            self._of_op(event, event.op, at)

    def _of_op(self, event: AnyEvent, op: str, at: float) -> None:
        path = enclosing(op, self._open)
        own = op[len(path) + 1 :] if path else op
        execution = self._open.get(path)
        if isinstance(event, ChildFinished) and op in self._open:
            self._end(op, event.status, event.error)
        if execution is not None and isinstance(event, StepStarted | ChildStarted | WaitOpened):
            execution.begins(own)
        if isinstance(event, ChildStarted) and not event.detached and not event.refused:
            inside = None if execution is None else _inside(execution.program, own)
            program = self._programs.get(event.structure) if event.structure else inside
            self.begin(op, program, RunStarted(event.id, event.program, event.version, event.input))
            self._advance(op, _BEGIN, at)
        elif execution is None:
            self.whole &= not (isinstance(event, ValueRecorded) and event.kind in DECISIONS)
        else:
            self._advance(path, replace(event, op=own), at)

    def begin(self, path: str, program: StoredProgram | None, started: RunStarted) -> None:
        """Begin an execution, if its structure is known."""
        past = self._past.within(path) if path else self._past
        plan = None if program is None else program.plan
        self._open[path] = None
        if program is not None and plan is not None:
            self._open[path] = _Shown(program, plan, started, past, self.noted.setdefault(path, []))

    def _advance(self, path: str, event: AnyEvent, at: float) -> None:
        execution = self._open.get(path)
        if execution is None:
            return
        try:
            execution.advance(event, at)
        except Exception:
            self._open[path], self.whole = None, False  # what follows is not known

    def _end(self, path: str, status: RunStatus, error: Failure | None) -> None:
        execution = self._open.pop(path, None)
        if execution is not None and status is RunStatus.FAILED and error is not None:
            execution.fail(error)


class _Shown(DataflowExecution):
    """A run of a stored structure. What its functions decided is in the journal, or unknown."""

    def __init__(
        self, program: StoredProgram, plan: Plan, started: RunStarted, past: PatchHistory, noted: list[NotRun]
    ) -> None:
        super().__init__(plan, started, Codec(), past)
        self.program = program
        self.noted: list[NotRun] = noted
        self._numbers = {node.name: number for number, node in enumerate(plan.nodes)}

    def begins(self, op: str) -> None:
        """An op begins. A map before it that seems to be in progress was ended early, by its `until`."""
        number = self._numbers.get(op.partition(":")[0], -1)
        if number >= 0 and self._status[number] == WAITING:
            for before in [one for one in self._maps if number in self._plan.consumers[one]]:
                del self._maps[before]
                self._done(before, Value(b"null"))
            self._take_turns()

    def fail(self, error: Failure) -> None:
        """The run has failed: so did the decisions that were due and are not recorded."""
        failed = [number for number, status in enumerate(self._status) if status == OPEN and self._is_undecided(number)]
        for number in failed:
            self._status[number] = FAILED
            where, op = self._plan.nodes[number].where, self._op(number)
            self.noted.append(NotRun(op, StepStatus.FAILED, "", "", where, self._at, error))
        if failed:
            self._note_blocked()

    def _is_undecided(self, number: int) -> bool:
        node = self._plan.nodes[number]
        decides = node.kind in ("gate", "wait") or node.when is not None
        return decides and not self._past.began(self._op(number))

    def _decide(self, number: int, node: Node, op: str, arguments: dict[str, Value]) -> None:
        if self._history.decision(op) is None:
            self._status[number] = OPEN
        else:
            super()._decide(number, node, op, arguments)

    def _not_run(self, number: int, op: str, status: int, by: str, reason: str) -> None:
        if self._past.began(op):
            # The value was computed from a default, which the structure does not have.
            self._status[number], self._open[op] = OPEN, number
            self._running += self._plan.nodes[number].kind in ("step", "child")
        else:
            super()._not_run(number, op, status, by, reason)

    def _sleep(self, number: int, node: Node, op: str, arguments: dict[str, Value]) -> None:
        self._status[number], self._open[op] = OPEN, number

    def _map(self, number: int, node: Node, op: str, arguments: dict[str, Value]) -> None:
        known = self._history.decision(op)
        if known is not None and node.mapped is not None:
            # A fixed value is not stored: the journal has the number of items.
            items = Value(b"[%b]" % b",".join([b"null"] * msgspec.json.decode(known)["n"]))
            fixed = {name: items for name in node.mapped.over if name in arguments and arguments[name].data == b"null"}
            arguments = {**arguments, **fixed}
        super()._map(number, node, op, arguments)
