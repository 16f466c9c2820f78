"""One run of a plan: a state machine that takes events and returns commands.

In each round of its loop, a node has one of six statuses:

    WAITING ──► OPEN ──► DONE      it has a value
       │         ├─────► SKIPPED   it ran, and policy or `on_error` lets the run go on without its value
       │         └─────► FAILED
       ├───────────────► SKIPPED   no gate chose it, its `when` is false, or a value that it requires was skipped
       └───────────────► BLOCKED   a node that it needs has failed

*Whose turn it is.* Each node counts the nodes that it still waits for. When a node ends, in whatever status, the
counters of its consumers go down, and those at zero have their turn, in the order of their numbers. So the cost of an
event is the number of consumers of the node that ended.

*A turn* (`_turn`) goes through gates, values, the condition and the lock. Each of them can end it without a command; a
decision that raises fails the node. Otherwise the node is `OPEN`, and a command begins its op. If a turn needs a value
that is in a blob, or the lock, a callback continues it once that has come.

*Which events matter.* `RunClaimed` gives the run its input, and the nodes that wait for nothing begin. The outcome of
an op ends its node, or an item of its map, and further items may begin. `CancelRequested` stops the run. `loaded` is no
event: it brings a value that a `LoadValue` asked for.

*Loops* are regions of the plan. When all nodes of a region have ended, either they wait again, with the carried values
in `Lookup.carry` (another round), or the counters of the nodes that use the loop's values go down.

*The end.* The run ends when region 0 has ended. After a failure or a cancellation it is *stopping*: no node begins, and
the run ends when the open children have ended, and the open steps too unless it was cancelled. The last node, if the
plan has one, runs after that.

Nothing here depends on anything but the events. `lookup.py` finds values, `op_history.py` knows what was recorded
before, `maps.py` chooses the next items of a map.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Raw

from perdure.authoring.dataflow import deciding
from perdure.authoring.dataflow.ahead import Ahead
from perdure.authoring.dataflow.changes import OF_GRAPHS, explain
from perdure.authoring.dataflow.lists import LongLists, Reader, Readers, Unread
from perdure.authoring.dataflow.lookup import BLOCKED, DONE, FAILED, OPEN, SKIPPED, WAITING, Lookup
from perdure.authoring.dataflow.maps import ChunkMap, Column, ItemMap, chunk_size, columns_of, most_failures, window_of
from perdure.authoring.dataflow.op_history import OpHistory
from perdure.authoring.dataflow.plan import (
    STATUS,
    Absent,
    Argument,
    Decision,
    Lock,
    Node,
    Plan,
    Question,
    outputs_of,
    passed_on,
)
from perdure.authoring.dataflow.values import Value, as_object, encoded, input_by_name, joined, record
from perdure.errors import (
    ApprovalRejected,
    ExpressionFailed,
    LockTimeout,
    LoopLimit,
    NotDecodable,
    NotSerializable,
    PayloadTooLarge,
    RunCancelled,
    SignalTimeout,
    StepBailed,
    UsageError,
)
from perdure.kernel.batches import ROW, failed_row
from perdure.kernel.chunks import DRAIN, MapShape
from perdure.kernel.commands import (
    UNDECODED,
    CancelOp,
    Command,
    Finish,
    LoadValue,
    OpenWait,
    RecordValue,
    RunStep,
    StartChild,
    StartTimer,
)
from perdure.kernel.divergence.model import Divergence, OpView
from perdure.kernel.events import (
    NULL,
    AnyEvent,
    CancelRequested,
    ChildFinished,
    RunClaimed,
    RunStarted,
    RunStatus,
    StepFailed,
    StepSkipped,
    StepStatus,
    StepSucceeded,
    WaitResolved,
)
from perdure.kernel.patches import PATCH, PatchHistory
from perdure.kernel.policies.durations import duration, parse_duration
from perdure.kernel.policies.lock_keys import check_key
from perdure.kernel.program import Execution
from perdure.kernel.step_records import NotRun
from perdure.kernel.values.arguments import ALL_SMALL, named_input
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.failures import Failure, describe
from perdure.kernel.values.items import Part, has_references, is_items, parts_of
from perdure.kernel.values.raised import is_a, pressed
from perdure.kernel.values.signatures import misfit
from perdure.kernel.values.skips import SKIPS, no_result, why_no_result, without_skips
from perdure.kernel.values.value_versions import VERSION_KEY

_NONE = Value(b"null")
# The field in which a step says that it found nothing to do, and its value.
_STATUS, NO_DATA = ("status",), b'"no_data"'
# The reason of cancelling the items after the one that ended the map.
NOT_NEEDED = "no further item is needed"
# The status that the last node gets as its input.
_ENDS = {RunStatus.COMPLETED: "succeeded"}


class AnswerReader(msgspec.Struct, frozen=True):
    """Decodes the answer to a question. Equal for equal questions, so that two replays of a journal ask the same."""

    codec: Codec
    question: Question
    op: str

    def __call__(self, value: Raw, *, exact: bool = False) -> Any:
        decode, question = self.codec.decode_exact if exact else self.codec.decode, self.question
        signal = question.kind == "signal"
        what = f"the signal {question.name!r}" if signal else f"the answer to the approval {question.name!r}"
        found = decode(value, question.answer, f"{what} taken by {self.op}")
        wrong = None if question.schema is None else misfit(bytes(question.schema), found)
        if wrong is not None:
            raise NotDecodable(f"{what} taken by {self.op}", "its schema", f"{wrong[1]} - at `{wrong[0]}`")
        return found


class DataflowExecution(Execution):
    """One run of a plan."""

    # It asks for an op as soon as the op's values are there, so the order varies: see `Execution`.
    by_data = True
    register = OF_GRAPHS

    # Whether it is a chunk of a map; the map is recorded in another run.
    _is_chunk = False

    # What few runs have is an attribute of the class until a run has it: an instance with more than 30 attributes needs
    # a dict of its own.
    #
    # Nodes that failed in this round and that another node runs instead of.
    _caught: frozenset[int] = frozenset()
    # By blob: outcomes whose values are being loaded, and values that the result needs.
    _awaited: dict[str, list[StepSucceeded | ChildFinished | Value | LongLists | Unread]] | None = None
    # By node: whether its value is passed on unread, and can stay in its blob. Empty until a value is in one.
    _passed_on: Sequence[bool] = ()
    # By node: the op that holds its lock; while a node waits for its lock, the key and the node's arguments.
    _locks: dict[int, str] | None = None
    _locking: dict[int, tuple[str, dict[str, Value]]] | None = None
    # The node that found no data, because of which the rest is skipped; -1: none.
    _no_data = -1
    # The first failure, and the cancellation.
    _failure: Failure | None = None
    _cancelled: CancelRequested | None = None
    # How the run ends once the last node has ended.
    _end: Finish | None = None
    # Turns that did not run, for a caller that sets this to a list.
    noted: list[NotRun] | None = None

    def __init__(
        self,
        plan: Plan,
        started: RunStarted,
        codec: Codec,
        past: PatchHistory,
        check_input: Callable[[Raw], object] = lambda input: None,
        renamed: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._plan, self._started, self._codec, self._past = plan, started, codec, past
        # By the name of an input for callers: its name in the plan.
        self._check_input, self._renamed = check_input, renamed
        self._structure = ""
        self._at = 0.0
        self._commands: list[Command] = []
        self._lookup = lookup = Lookup(plan, started, codec)
        # By node: its status and its value in this round, how many nodes it still waits for, and its turns so far.
        self._status, self._values = lookup.status, lookup.values
        self._unmet = list(plan.waits)
        self._turns = [0] * len(plan.nodes)
        # By node: how many nodes have yet to take its value in this round.
        self._readers = list(plan.readers)
        # By gate: the nodes that it chose in this round. By node: why it did not run in this round.
        self._chosen: dict[int, frozenset[int]] = {}
        self._reasons: dict[int, str] = {}
        # By region: how many of its nodes and inner loops have not ended, and how many rounds have.
        self._left = list(plan.sizes)
        self._rounds = [0] * len(plan.regions)
        # A heap of the nodes whose turn it is.
        self._ready: list[int] = []
        # The nodes of the open ops, by op path; how many of these ops are steps and children, which end by themselves.
        self._open: dict[str, int] = {}
        self._running = 0
        self._maps: dict[int, ItemMap | ChunkMap] = {}
        # Whether no further node begins, and whether the run has ended.
        self._stopping = False
        self._finished = False
        self.patches: dict[str, bool] = {}

    @cached_property
    def _history(self) -> OpHistory:
        """What was recorded of its ops. Made on demand: few runs have decisions, or continue with changed code."""
        recorded = self._started.recorded or {}
        return OpHistory(self._plan, self._codec, self._past, recorded, self._turns, self._lookup)

    # --- Execution ------------------------------------------------------------------------------------------------

    def advance(self, event: AnyEvent, at: float, decoded: Any = UNDECODED) -> Sequence[Command]:
        """Apply one fact, and return the commands of the nodes whose turn it is."""
        apply = _APPLY.get(type(event))
        if apply is None or self._finished:
            return ()
        self._at = at
        apply(self, event)
        while self._ready and not self._stopping:
            self._turn(heapq.heappop(self._ready))
        if self._stopping or not self._left[0]:
            self._check_end()
        commands, self._commands = self._commands, []
        return commands

    def loaded(self, blob: str, value: Raw, at: float) -> Sequence[Command]:
        """Take a value that a LoadValue asked for."""
        commands: list[Command] = []
        for awaited in self._awaited.pop(blob, ()) if self._awaited else ():
            if isinstance(awaited, Value):
                awaited.data = bytes(value)
            elif isinstance(awaited, LongLists):
                self._at = at
                self._part_loaded(awaited, bytes(value))
                self._take_turns()
            elif isinstance(awaited, Unread):
                self._at = at
                awaited.read(blob, bytes(value))
                if not awaited.left and not self._stopping:
                    awaited.then()
                    self._take_turns()
            else:
                commands += self.advance(msgspec.structs.replace(awaited, value=value, blob=""), at)
        if not self._finished:
            self._check_end()
        commands += self._commands
        self._commands = []
        return commands

    def close(self) -> None:
        """Nothing to do: it holds only memory."""

    def check_ahead(self, *, failing: bool = False) -> Iterable[None]:
        """Read what the nodes that have yet to run will take of what is recorded."""
        if not self._past.begun or self._stopping or self._finished or self._no_data >= 0:
            return ()
        return Ahead(
            self._plan,
            self._codec,
            self._history,
            self._lookup,
            self._turns,
            self._left,
            self._maps,
            self._chosen,
            failing=failing,
        ).check()

    def under_way(self) -> dict[str, Node]:
        """The ops that have begun and not ended, with their nodes."""
        return {op: self._plan.nodes[number] for op, number in self._open.items()}

    def explains(self, op: str, recorded: OpView) -> Divergence | None:
        """Why the plan does not ask for a recorded op, if the plan is the reason."""
        status = self._status
        return explain(
            self._plan,
            op,
            recorded,
            lambda number: status[number] != WAITING,
            lambda number: status[number] > OPEN,
            self._past.began,
            lambda number, turn: self._reasons.get(number, "") if str(self._turns[number] - 1) == turn else "",
        )

    def retires(self, op: str) -> bool:
        """Whether a recorded op is that of a node that the plan has retired."""
        return op.partition(":")[0] in self._plan.retired

    def _apply_run_claimed(self, event: RunClaimed) -> None:
        self._structure = self._started.structure or event.code
        self._take_input(event)
        for patch in self._plan.patches:
            op = f"{PATCH}:{patch}"
            known = self._past.marked(op)
            if not known and not self._past.replaying:
                known = True
                self._commands.append(RecordValue(op, PATCH))
            self.patches[patch] = known
        self._ready = [node for node, unmet in enumerate(self._unmet) if not unmet]

    def _take_input(self, event: RunClaimed) -> None:
        input = input_by_name(named_input(self._started.input, event.names))
        if not self._past.replaying:
            self._check_input(input)
        given = msgspec.json.decode(input, type=dict[str, Raw])
        self._lookup.input = {self._renamed.get(name, name): Value(bytes(value)) for name, value in given.items()}

    def _apply_step_succeeded(self, event: StepSucceeded) -> None:
        number = self._open.pop(event.op, None)
        if number is None:
            return
        value = Value(bytes(event.value))
        if event.blob and event.value == NULL:
            if event.digest and self._is_passed_on(number):
                value = Value(b"", event.blob, event.digest)
            elif self._awaits(number, event):
                return
        self._running -= 1
        if number in self._maps:
            self._item_done(number, event.op, value)
        else:
            self._done(number, value)

    def _is_passed_on(self, number: int) -> bool:
        if not self._passed_on:
            self._passed_on = passed_on(self._plan)
        return self._passed_on[number]

    def _awaits(self, number: int, event: StepSucceeded | ChildFinished) -> bool:
        """Have the value of an outcome loaded from its blob; False if no node takes the value."""
        if number not in self._maps and not self._readers[number] and number not in self._plan.kept:
            return False
        self._open[event.op] = number
        self._load(event.op, event.blob, event)
        return True

    def _load(self, op: str, blob: str, of: StepSucceeded | ChildFinished | Value | LongLists | Unread) -> None:
        if self._awaited is None:
            self._awaited = {}
        self._awaited.setdefault(blob, []).append(of)
        self._commands.append(LoadValue(op, blob))

    def _apply_step_skipped(self, event: StepSkipped) -> None:
        number = self._open.pop(event.op, None)
        if number is not None:
            self._running -= 1
            self._skipped(number, event.op, f"{event.op} failed, and its policy skips it")

    def _apply_step_failed(self, event: StepFailed) -> None:
        number = self._open.pop(event.op, None)
        if number is None:
            return
        self._running -= 1
        if event.bailed:
            self._finish(Finish(RunStatus.BAILED, bytes(event.output), reason=event.error.message))
        elif number in self._maps:
            self._item_failed(number, event.op, event.error)
        else:
            self._failed(number, event.error, recorded=True)

    def _apply_wait_resolved(self, event: WaitResolved) -> None:
        number = self._open.pop(event.op, None)
        if number is None:
            return
        if self._locking and number in self._locking:
            self._lock_resolved(number, event, *self._locking.pop(number))
            return
        question = self._plan.nodes[number].question
        if question is None:
            self._done(number, _NONE)  # a timer
            return
        read = AnswerReader(self._codec, question, event.op)
        try:
            if event.by == "timeout" and question.has_default:
                value = Raw(self._codec.encode(question.on_timeout, f"on_timeout of {question.name}"))
            elif event.by == "timeout":
                raise SignalTimeout(question.kind, question.name)
            elif event.is_rejection:
                raise ApprovalRejected(question.name, event.person, msgspec.json.decode(event.value, type=str))
            else:
                value = event.value
            read(value)
        except (SignalTimeout, ApprovalRejected, NotDecodable, NotSerializable) as error:
            self._failed(number, self._described(error))
        else:
            self._done(number, Value(bytes(value)))

    def _apply_child_finished(self, event: ChildFinished) -> None:
        number = self._open.pop(event.op, None)
        if number is None or (event.blob and event.value == NULL and self._awaits(number, event)):
            return
        self._running -= 1
        if number == self._plan.last:
            self._last_ended(event)
            return
        node = self._plan.nodes[number]
        rows = node.mapped is not None and node.mapped.rows
        if event.status is RunStatus.BAILED and self._can_drain(number) and not rows:
            # A nested graph is a part of this one: bail() in it ends the whole run.
            self._finish(Finish(RunStatus.BAILED, bytes(event.value), reason=event.reason))
            return
        failure = event.error
        if event.status is RunStatus.BAILED and not rows:
            failure = self._misfit(event.value, node.returns, f"the output of bail() in {event.op}")
        if event.status in (RunStatus.COMPLETED, RunStatus.BAILED) and failure is None:
            reason = why_no_result(event.value)
            # Runs from before structures were recorded have passed on what a result says about skipped values.
            clean = self._structure and self._can_drain(number)
            value = Value(bytes(without_skips(event.value) if clean else event.value))
            if reason is not None:
                if self._plan.jobs and self.noted is not None:
                    self._note(number, event.op, SKIPPED, f"{event.op}/{reason.partition(' ')[0]}", reason)
                self._skipped(number, event.op, reason)
            elif number in self._maps:
                self._item_done(number, event.op, value)
            else:
                self._done(number, value)
            return
        if failure is None:
            error = RunCancelled(f"{self._started.id}/{event.op}", event.reason or None)
            failure = self._described(error)
        if number in self._maps:
            self._item_failed(number, event.op, failure)
        else:
            self._failed(number, failure, recorded=True)

    def _misfit(self, value: Raw, type: Any, what: str) -> Failure | None:
        """Why a value is not of a type."""
        try:
            self._codec.decode(value, type, what)
        except NotDecodable as error:
            return describe(error, self._codec)
        return None

    def _apply_cancel_requested(self, event: CancelRequested) -> None:
        if self._end is not None:
            return  # it ends already
        self._cancelled, self._stopping = event, True
        self._give_up_chunks(event.reason or "the run is cancelled")
        for op, number in self._open.items():
            if self._plan.nodes[number].kind == "child" and (event.reason != DRAIN or self._can_drain(number)):
                self._commands.append(CancelOp(op, event.reason or "the run is cancelled"))

    def _give_up_chunks(self, reason: str) -> None:
        """Cancel the chunks of maps, which are runs of their own. When draining, they let their open steps end."""
        for under_way in self._maps.values():
            if isinstance(under_way, ChunkMap):
                self._cancel_all(under_way.give_up(), reason)

    def _can_drain(self, number: int) -> bool:
        """Whether a node is a nested graph: a child that can be asked to drain."""
        program = self._plan.nodes[number].program
        return program is not None and program.decides

    # --- turns ----------------------------------------------------------------------------------------------------

    def _take_turns(self) -> None:
        while self._ready and not self._stopping:
            self._turn(heapq.heappop(self._ready))

    def _turn(self, number: int) -> None:
        node = self._plan.nodes[number]
        turn = self._turns[number]
        op = self._history.op_of(node, turn) if self._plan.renamed else f"{node.name}:{turn}"
        self._turns[number] = turn + 1
        if node.gates and not self._is_chosen(node, number, op):
            return
        if node.instead is not None and node.instead not in self._caught:
            for producer in self._plan.reads[number]:
                self._readers[producer] -= 1
            self._skipped(number, op, f"{self._op(node.instead)} did not fail")
            return
        if self._no_data >= 0:
            self._not_run(number, op, SKIPPED, self._op(self._no_data), self._why_no_data())
            return
        if self._lookup.lost:
            self._lookup.lost.clear()
        self._lookup.missing = None
        wrong = failed = key = None
        arguments: dict[str, Value] | None = {}
        condition: dict[str, Value] | None = {}
        try:
            arguments = self._lookup.gather(node.arguments)
            if node.lock is not None and arguments is not None:
                arguments, key = self._with_key(arguments, node.lock)
        except (ExpressionFailed, NotSerializable) as error:
            wrong = error  # an error only if the condition holds
        except NotDecodable as error:
            error.taker = self._history.taker(number, op, error.reason.partition(" ")[0])
            error.op = error.taker.path
            raise
        try:
            condition = None if node.when is None else self._lookup.gather(node.when.arguments)
        except (ExpressionFailed, NotSerializable) as error:
            failed = error
        readers, kept = self._readers, self._plan.kept
        for producer in self._plan.reads[number]:
            readers[producer] -= 1
            if not readers[producer] and producer not in kept:
                self._values[producer] = _NONE  # this node was the last to take it
        for lost in self._lookup.lost:
            if self._status[lost] >= FAILED:
                self._not_run(number, op, BLOCKED, self._op(lost), self._why_blocked(lost))
                return
        if failed is not None:
            self._failed(number, self._described(failed))
            return
        if arguments is None or (node.when is not None and condition is None):
            self._lacks_value(number, op)
            return
        if node.when is not None and condition is not None:
            self._judge(number, node, op, node.when, condition, arguments, wrong, key)
        elif node.spec is not None and node.mapped is None and wrong is None and key is None:
            self._status[number] = OPEN
            if self._past.begun:
                self._call(number, node, op, arguments)
            else:  # as `_call`: the most frequent case, without a further call
                self._open[op] = number
                self._running += 1
                self._commands.append(self._run_step(node, op, arguments, ()))
        else:
            self._go_ahead(number, node, op, arguments, wrong, key)

    def _judge(
        self,
        number: int,
        node: Node,
        op: str,
        when: Decision,
        condition: dict[str, Value],
        arguments: dict[str, Value],
        wrong: Exception | None,
        key: Value | None,
    ) -> None:
        """Run a node if its condition holds."""

        def judge(condition: dict[str, Value]) -> None:
            if self._holds(number, op, when, condition):
                self._go_ahead(number, node, op, arguments, wrong, key)

        decided = self._past.began(op) or self._history.decision(op) is not None
        self._with_lists(number, op, condition, () if decided else when.arguments, judge)

    def _go_ahead(
        self, number: int, node: Node, op: str, arguments: dict[str, Value], wrong: Exception | None, key: Value | None
    ) -> None:
        """Run a node whose condition holds; if it has a lock, once that is held."""
        if wrong is not None:
            self._failed(number, self._described(wrong))
        elif key is not None:
            self._acquire(number, node, op, arguments, key)
        else:
            self._begin(number, node, op, arguments)

    def _begin(self, number: int, node: Node, op: str, arguments: dict[str, Value]) -> None:
        begun = self._past.began(op)
        if node.kind == "gate":
            decoded = node.arguments if self._history.decision(op) is None else ()
            self._with_lists(number, op, arguments, decoded, lambda given: self._decide(number, node, op, given))
        elif node.kind == "wait":
            decoded = () if begun else node.arguments
            self._with_lists(number, op, arguments, decoded, lambda given: self._ask(number, node, op, given))
        elif node.program is not None and not node.program.decides and node.mapped is None:

            def call(given: dict[str, Value]) -> None:
                self._status[number] = OPEN
                self._call(number, node, op, arguments, given)

            self._with_lists(number, op, arguments, () if begun else node.arguments, call)
        elif node.kind == "timer":
            self._sleep(number, node, op, arguments)
        elif node.mapped is not None:
            code = node.program is not None and not node.program.decides
            alike = [one for one in node.arguments if code and one.name not in node.mapped.over]
            self._with_lists(number, op, arguments, alike, lambda given: self._map(number, node, op, given))
        else:
            self._status[number] = OPEN
            self._call(number, node, op, arguments)

    def _lacks_value(self, number: int, op: str) -> None:
        """End the turn of a node that lacks a required value."""
        status, missing = BLOCKED if self._plan.jobs else SKIPPED, self._lookup.missing
        assert missing is not None
        if isinstance(missing, Absent):
            self._not_run(number, op, status, "input", missing.reason)
        else:
            self._not_run(number, op, status, self._op(missing), self._why_missing(missing))

    def _why_blocked(self, lost: int) -> str:
        return f"{self._op(lost)} {'was blocked' if self._status[lost] == BLOCKED else 'failed'}"

    def _why_no_data(self) -> str:
        return f"{self._op(self._no_data)} found no data"

    def _is_chosen(self, node: Node, number: int, op: str) -> bool:
        """Whether a gate chose this node."""
        for gate in node.gates:
            if number in self._chosen.get(gate, ()):
                return True
        for producer in self._plan.reads[number]:
            self._readers[producer] -= 1
        failed = next((gate for gate in node.gates if self._status[gate] >= FAILED), None)
        if failed is not None:
            self._not_run(number, op, BLOCKED, self._op(failed), self._why_blocked(failed))
        else:
            gate = node.gates[0]
            words = "was skipped" if self._status[gate] == SKIPPED else f"chose {self._shown(gate)}"
            self._not_run(number, op, SKIPPED, self._op(gate), f"{self._op(gate)} {words}")
        return False

    def _shown(self, gate: int) -> str:
        chosen = self._chosen.get(gate, frozenset())
        return ", ".join(self._plan.nodes[one].name for one in sorted(chosen)) or "none of its targets"

    def _why_missing(self, lost: int) -> str:
        if self._status[lost] == SKIPPED:
            return f"{self._op(lost)} was skipped"
        return f"{self._op(lost)} has no such value"

    def _op(self, number: int) -> str:
        """The path of the last turn of a node."""
        return f"{self._plan.nodes[number].name}:{max(0, self._turns[number] - 1)}"

    # --- what a turn comes to -------------------------------------------------------------------------------------

    def _call(
        self,
        number: int,
        node: Node,
        op: str,
        arguments: dict[str, Value],
        given: dict[str, Value] | None = None,
        unread: Readers | None = None,
    ) -> None:
        """Command a step or a child. `given`: its arguments with long lists loaded, where it needs them whole.

        `unread`: what `_with_readable` found; None before it was asked.
        """
        if unread is None and self._past.begun and not self._past.began(op):
            if node.mapped is None:
                self._call_readable(number, node, op, arguments, given)
                return
            if self._is_chunk or self._history.is_known_map(op):
                self._history.check_item(node, op, arguments)
        self._open[op] = number
        self._running += 1
        if node.program is None:
            self._commands.append(self._run_step(node, op, arguments, unread or ()))
            return
        rows, named = node.mapped is not None and node.mapped.rows, node.program.by_name
        self._commands.append(
            StartChild(
                op,
                node.program.name,
                node.program.version,
                arguments[ROW].data if rows else as_object(given or arguments),
                record(arguments),
                source=node.where,
                own=None if named else node.program,
                embedded=not named,
                structure="" if named else self._structure,
                last=number == self._plan.last,
            )
        )

    def _call_readable(
        self, number: int, node: Node, op: str, arguments: dict[str, Value], given: dict[str, Value] | None
    ) -> None:
        def call(unread: Readers) -> None:
            self._call(number, node, op, arguments, given, unread)

        self._with_readable(number, op, node.arguments, arguments, call)

    # --- what other code recorded -----------------------------------------------------------------------------------

    def _with_readable(
        self,
        number: int,
        op: str,
        of: Iterable[Argument],
        arguments: Mapping[str, Value],
        then: Callable[[Readers], None],
    ) -> None:
        """Continue with a new op. Raises NotDecodable if the present code cannot read a value recorded by earlier code.

        Of a long list, only the first part is loaded and read. A value in a blob is read when the op begins.
        """
        parts, unread = self._history.unread(number, op, of, arguments)
        if not parts:
            then(unread)
            return
        self._status[number] = OPEN
        awaited = Unread(parts, lambda: then(unread))
        for blob in parts:
            self._load(op, blob, awaited)

    def _check_readable(self, number: int, op: str, of: Iterable[Argument], arguments: Mapping[str, Value]) -> None:
        """As `_with_readable`, for a decision, whose values are loaded already."""
        if self._past.begun:
            self._with_readable(number, op, of, arguments, lambda unread: None)

    def _run_step(self, node: Node, op: str, arguments: dict[str, Value], unread: Readers) -> RunStep:
        spec = node.spec
        assert spec is not None
        references: tuple[tuple[int, str], ...] = ()
        if self._passed_on:
            values = list(arguments.values())
            references = tuple([(position, value.blob) for position, value in enumerate(values) if not value.data])
            data = joined([value if value.data else _NONE for value in values])
        else:
            data = b"[%b]" % b",".join(map(encoded, arguments.values()))  # as `joined`, without a call
        given = len(arguments)
        keywords: tuple[str, ...] = ()
        if given < len(node.arguments) or (given and node.arguments[-1].keyword):
            # Arguments after one that is left out are passed by name.
            given = next((n for n, one in enumerate(node.arguments) if one.keyword or one.name not in arguments), given)
            keywords = tuple(arguments)[given:]
        if (
            not references
            and not keywords
            and len(data) <= ALL_SMALL
            and given < len(spec.prefixes)
            and VERSION_KEY not in data
        ):
            text = spec.prefixes[given] + data.decode()
        else:
            text = record(arguments)
        patches = dict(self.patches) if spec.queue and self.patches else None
        return RunStep(
            op, spec, data, text, given, keywords, node.where, patches=patches, references=references, unread=unread
        )

    def _decide(self, number: int, node: Node, op: str, arguments: dict[str, Value]) -> None:
        gate = node.gate
        assert gate is not None
        known = self._history.decision(op)
        chosen: list[str | None]
        if known is not None:
            chosen = msgspec.json.decode(known, type=dict[str, list[str | None]]).get("chose", [])
            chosen = [None if one is None else self._plan.renamed.get(one, one) for one in chosen]
            gone = next((one for one in chosen if one is not None and one not in gate.targets), None)
            if gone is not None and gone not in self._plan.retired:
                what = f"the decision of {op}"
                raise NotDecodable(what, "a target of the gate", f"it chose {gone!r}, which is no target any more")
        elif self._is_late(number):
            self._status[number] = OPEN
            return
        else:
            self._check_readable(number, op, node.arguments, arguments)
            try:
                assert node.function is not None
                chosen = list(gate.choose(self._result_of(node.function, node.arguments, arguments, op)))
            except BaseException as error:
                self._failed(number, self._described(error))
                return
        skips = [target for target in gate.targets if target not in chosen]
        value = msgspec.json.encode({"chose": chosen, "skips": skips})
        self._commands.append(RecordValue(op, "route", Raw(value), node.where))
        found = (gate.targets.get(target) for target in chosen if target is not None)
        self._chosen[number] = frozenset(target for target in found if target is not None)
        self._done(number, _NONE)

    def _is_late(self, number: int) -> bool:
        """Whether a node that waits for this one has run before, under code that did not have this one.

        A decision would be recorded after its effect, so none is made: replay parks the run at the op of that node.
        """
        if not self._past.begun:
            return False
        for consumer in self._plan.consumers[number]:
            op = self._history.op_of(self._plan.nodes[consumer], self._turns[consumer])
            if self._past.began(op) or self._past.decided(op) is not None:
                return True
        return False

    def _holds(self, number: int, op: str, when: Decision, arguments: dict[str, Value]) -> bool:
        """Whether the condition of a node holds; if not, the node is skipped."""
        known = self._history.decision(op)
        if known is None and not self._past.began(op):
            self._check_readable(number, op, when.arguments, arguments)
            try:
                holds = self._result_of(when.call, when.arguments, arguments, op)
                if not isinstance(holds, bool):
                    raise UsageError(f"`when` of {op} returned {holds!r:.80}; it must return True or False")
            except BaseException as error:
                self._failed(number, self._described(error))
                return False
            if holds:
                return True
        elif known is None or msgspec.json.decode(known) is not False:
            return True
        if known is None and self._is_late(number):
            self._status[number] = OPEN
            return False
        self._commands.append(RecordValue(op, "when", Raw(b"false"), self._plan.nodes[number].where))
        self._not_run(number, op, SKIPPED, "when", "its `when` is false")
        return False

    def _result_of(
        self, function: Callable[..., Any], of: Iterable[Argument], arguments: Mapping[str, Value], op: str
    ) -> Any:
        """The result of a pure function."""
        decoded = {
            one.name: self._codec.decode(arguments[one.name].data, one.type, f"the argument {one.name} of {op}")
            for one in of
            if one.name in arguments
        }
        return deciding.call(function, self.patches, **decoded)

    # --- long lists -----------------------------------------------------------------------------------------------

    def _with_lists(
        self,
        number: int,
        op: str,
        arguments: dict[str, Value],
        decoded: Iterable[Argument],
        then: Callable[[dict[str, Value]], None],
    ) -> None:
        """Continue with the arguments once the long lists among the `decoded` ones are loaded."""
        lists: dict[str, tuple[Part, ...]] = {}
        for one in decoded:
            data = arguments[one.name].data if one.name in arguments else b""
            if not has_references(data) or is_items(one.type):
                continue
            parts = parts_of(data)
            if parts is None or self._plan.nodes[number].mapped is not None:
                where = "for each item" if parts is not None else "in a list"
                message = f"{op} takes {one.name}, a long list, {where}; let a node make of it what {op} needs"
                self._failed(number, self._described(UsageError(message)))
                return
            lists[one.name] = parts
        if not lists:
            then(arguments)
            return
        self._status[number] = OPEN
        self._load_list(LongLists(number, op, dict(arguments), lists, then))

    def _load_list(self, wanted: LongLists) -> None:
        part = wanted.next
        if part is None:
            wanted.then(wanted.arguments)
        else:
            self._load(wanted.op, part.blob, wanted)

    def _part_loaded(self, wanted: LongLists, blob: bytes) -> None:
        if self._stopping:
            return
        size, limit = wanted.add(blob), self._codec.limit
        if size > limit:
            advice = f"annotate `{wanted.name}: Items[...]`, or let a node make of it what {wanted.op} needs"
            error = PayloadTooLarge(f"the list {wanted.name} of {wanted.op}", size, limit, advice)
            self._failed(wanted.number, self._described(error))
        else:
            self._load_list(wanted)

    def _ask(self, number: int, node: Node, op: str, arguments: dict[str, Value]) -> None:
        question, former = node.question, op.partition(":")[0]
        assert question is not None
        if former != node.name == question.name:
            question = msgspec.structs.replace(question, name=former)  # as it was asked before it was renamed
        answer = self._lookup.given_answer(node)
        if answer is not None:
            self._done(number, answer)
            return
        request = NULL
        if not self._past.began(op):
            self._check_readable(number, op, node.arguments, arguments)
        try:
            if question.shows is not None:
                request = Raw(arguments[question.shows].data)
            elif not self._past.began(op):
                assert node.function is not None
                shown = self._result_of(node.function, node.arguments, arguments, op)
                request = Raw(self._codec.encode(shown, f"the request of {question.name!r}"))
            if len(request) > self._codec.limit and not self._past.took(op):
                raise PayloadTooLarge(f"the request of {question.name!r}", len(request), self._codec.limit)
        except BaseException as error:
            self._failed(number, self._described(error))
            return
        self._status[number] = OPEN
        self._open[op] = number
        self._commands.append(
            OpenWait(
                op,
                question.kind,
                question.name,
                None if question.timeout is None else self._at + question.timeout,
                node.where,
                request,
                self._codec.question_schema(None if question.answer is Any else question.answer)
                if question.schema is None
                else question.schema,
                question.approvers,
                reads=AnswerReader(self._codec, question, op),
            )
        )

    def _sleep(self, number: int, node: Node, op: str, arguments: dict[str, Value]) -> None:
        (value,) = arguments.values()
        given = msgspec.json.decode(value.data)
        length = parse_duration(given, bare=False) if isinstance(given, str) else duration(given)
        if length is None or length < 0:
            error = UsageError(f"{op} cannot sleep for {given!r:.80}; give seconds, or a text such as 90m")
            self._failed(number, self._described(error))
            return
        self._status[number] = OPEN
        self._open[op] = number
        self._commands.append(StartTimer(op, self._at + length, node.where))

    # --- locks ----------------------------------------------------------------------------------------------------

    def _with_key(self, arguments: dict[str, Value], lock: Lock) -> tuple[dict[str, Value] | None, Value | None]:
        """The arguments of a node and the key of its lock; (None, None) if the key has no value."""
        found = self._lookup.gather((Argument("key", lock.key),))
        return (None, None) if found is None else (arguments, found["key"])

    def _acquire(self, number: int, node: Node, op: str, arguments: dict[str, Value], key: Value) -> None:
        """Wait for the lock of a node. The node begins when the lock is held."""
        lock = node.lock
        assert lock is not None
        try:
            name = check_key(msgspec.json.decode(key.data))
        except UsageError as error:
            self._failed(number, self._described(error))
            return
        wait = f"lock.{op}"
        if self._locking is None:
            self._locking = {}
        self._status[number], self._open[wait], self._locking[number] = OPEN, number, (name, arguments)
        deadline = None if lock.wait is None else self._at + lock.wait
        self._commands.append(OpenWait(wait, "lock", name, deadline, node.where, ttl=lock.ttl))

    def _lock_resolved(self, number: int, event: WaitResolved, key: str, arguments: dict[str, Value]) -> None:
        node = self._plan.nodes[number]
        if event.by == "lock":
            if self._locks is None:
                self._locks = {}
            self._locks[number] = event.op
            self._begin(number, node, event.op.removeprefix("lock."), arguments)
            return
        assert node.lock is not None
        self._failed(number, describe(LockTimeout(key, node.lock.wait or 0.0), self._codec))

    def _unlock(self, number: int) -> None:
        op = self._locks.pop(number, None) if self._locks else None
        if op is not None:
            self._commands.append(RecordValue(f"{op}/unlock", "unlock", source=self._plan.nodes[number].where))

    # --- maps -----------------------------------------------------------------------------------------------------

    def _map(self, number: int, node: Node, op: str, arguments: dict[str, Value]) -> None:
        mapped, known = node.mapped, self._history.decision(op)
        assert mapped is not None
        recorded = None if known is None else msgspec.json.decode(known, type=MapShape)
        if known is not None and recorded is not None and recorded.results != NULL:
            self._commands.append(RecordValue(op, "map", known, node.where))
            self._done(number, Value(bytes(recorded.results)))
            return
        try:
            columns = columns_of(op, mapped.over, arguments)
        except UsageError as error:
            self._failed(number, self._described(error))
            return

        if known is None and self._is_late(number):
            self._status[number] = OPEN
            return

        def begin(unread: Readers = ()) -> None:
            self._begin_map(number, node, op, arguments, columns, recorded)

        if known is None and self._past.begun:
            self._with_readable(number, op, node.arguments, arguments, begin)
        else:
            begin()

    def _begin_map(
        self,
        number: int,
        node: Node,
        op: str,
        arguments: dict[str, Value],
        columns: dict[str, Column],
        recorded: MapShape | None,
    ) -> None:
        mapped = node.mapped
        assert mapped is not None
        count = next(iter(columns.values())).length
        size = chunk_size(mapped, columns, count, recorded)
        window, most = window_of(node), most_failures(mapped, count)
        shape = msgspec.json.encode(MapShape(count, size))
        self._commands.append(RecordValue(op, "map", Raw(shape), node.where))
        self._status[number] = OPEN
        if size is None:
            self._maps[number] = ItemMap(op, arguments, columns, window, most, count)
        else:
            window = min(window, self._started.max_concurrency or window)
            self._maps[number] = ChunkMap(op, arguments, columns, size, window, most, count)
        self._go_on(number)

    def _go_on(self, number: int) -> None:
        """Begin items within the limit; the map has ended when none is left."""
        if self._stopping:
            return  # open items end, and the map does not
        node, under_way = self._plan.nodes[number], self._maps[number]
        if isinstance(under_way, ChunkMap):
            for command in under_way.begin(node, self.patches, self._past.began):
                if self._past.begun and not self._past.began(command.op):
                    self._history.check_chunk(node, command)
                self._open[command.op] = number
                self._running += 1
                self._commands.append(command)
            running = len(under_way.open)
        else:
            for op, arguments in under_way.begin(self._past.began):
                self._call(number, node, op, arguments)
            running = under_way.running
        if running:
            return
        del self._maps[number]
        if under_way.failure is not None:
            self._failed(number, under_way.failure, recorded=under_way.failed > 0)
        elif isinstance(under_way, ChunkMap):
            self._done(number, under_way.result)
        else:
            self._items_done(number, under_way)

    def _items_done(self, number: int, items: ItemMap) -> None:
        mapped = self._plan.nodes[number].mapped
        assert mapped is not None
        self._done(number, Value(b"[%b]" % b",".join(items.found(with_none=mapped.on_error == "none"))))

    def _item_done(self, number: int, op: str, value: Value | None) -> None:
        """An item or a chunk of items has ended; an item without a value was skipped."""
        under_way, mapped = self._maps[number], self._plan.nodes[number].mapped
        assert mapped is not None
        if isinstance(under_way, ChunkMap):
            assert value is not None
            self._cancel_all(under_way.ended(op, value), NOT_NEEDED if under_way.failure is None else DRAIN)
            self._go_on(number)
            return
        index = under_way.ended(op, value)
        if value is not None and mapped.until is not None and index < under_way.end:
            returns = self._plan.nodes[number].returns
            found = Reader(self._codec, returns, f"the result of {op}", self._past.whole(op)).read(value.data)
            try:
                if deciding.call(mapped.until, self.patches, found):
                    self._end_early(under_way, index + 1)
            except BaseException as error:
                under_way.failure = under_way.failure or self._described(error)
        self._go_on(number)

    def _end_early(self, items: ItemMap, end: int) -> None:
        """No item from `end` on is needed."""
        unneeded = [f"{items.op}[{items.first + index}]" for index in range(end, items.next)]
        open_ones = [op for op in unneeded if op in self._open]
        items.running -= len(open_ones)
        self._cancel_all(open_ones, NOT_NEEDED)
        items.end, items.stopped = end, True

    def _item_failed(self, number: int, op: str, failure: Failure) -> None:
        under_way = self._maps[number]
        if isinstance(under_way, ChunkMap):
            self._cancel_all(under_way.failed_with(op, failure), DRAIN)
        else:
            mapped = self._plan.nodes[number].mapped
            rows = mapped is not None and mapped.rows
            under_way.failed_with(op, failure, failed_row(failure) if rows else None)
        self._go_on(number)

    def _cancel_all(self, ops: Iterable[str], reason: str) -> None:
        """Cancel open ops of maps whose outcomes no longer matter."""
        for op in ops:
            del self._open[op]
            self._running -= 1
            self._commands.append(CancelOp(op, reason))

    # --- outcomes -------------------------------------------------------------------------------------------------

    def _done(self, number: int, value: Value) -> None:
        if self._locks:
            self._unlock(number)
        if self._plan.nodes[number].skips_rest and _is_no_data(value):
            self._no_data = number
        self._status[number] = DONE
        self._values[number] = value if self._readers[number] or number in self._plan.kept else _NONE
        self._ended(number)

    def _skipped(self, number: int, op: str, reason: str) -> None:
        """A node, or an item of a map, has no value, and the run goes on without it."""
        if number in self._maps:
            self._item_done(number, op, None)
            return
        if self._locks:
            self._unlock(number)
        self._status[number], self._reasons[number] = SKIPPED, reason
        self._ended(number)

    def _not_run(self, number: int, op: str, status: int, by: str, reason: str) -> None:
        self._status[number] = status
        self._reasons[number] = reason
        if self.noted is not None:
            self._note(number, op, status, by, reason)
        self._ended(number)

    def _note(self, number: int, op: str, status: int, by: str, reason: str) -> None:
        assert self.noted is not None
        shown = StepStatus.SKIPPED if status == SKIPPED else StepStatus.BLOCKED
        self.noted.append(NotRun(op, shown, by, reason, self._plan.nodes[number].where, self._at))

    def _note_blocked(self) -> None:
        """Note the nodes that can no longer run because a node that they need has failed."""
        nodes = self._plan.nodes
        failed = [number for number, status in enumerate(self._status) if status == FAILED]
        behind: dict[int, list[int]] = {}
        for number, node in enumerate(nodes):
            after = node.after if self._plan.in_order else ()
            for one in {*node.gates, *after, *(output.node for output in outputs_of(node))}:
                behind.setdefault(one, []).append(number)
        while failed:
            cause = failed.pop()
            for number in behind.get(cause, ()):
                if self._status[number] == WAITING:
                    self._status[number] = BLOCKED
                    op = f"{nodes[number].name}:{self._turns[number]}"
                    self._turns[number] += 1
                    self._note(number, op, BLOCKED, self._op(cause), self._why_blocked(cause))
                    failed.append(number)

    def _described(self, error: BaseException) -> Failure:
        """The failure of a node from an exception, such as one of the user's gate. Raises it if Ctrl-C was pressed."""
        if pressed(error):
            raise error
        if is_a(error, StepBailed):
            error = UsageError(f"bail() was called where nothing but a decision is made ({error}); call it in a node")
        return describe(error, self._codec)

    def _failed(self, number: int, failure: Failure, *, recorded: bool = False) -> None:
        """A node has failed. If `recorded`, an event says so: its step or child failed, not a decision about it."""
        node = self._plan.nodes[number]
        if self._locks:
            self._unlock(number)
        if node.on_error == "instead":
            self._caught |= {number}
        if node.on_error != "fail":
            self._skipped(number, self._op(number), f"{self._op(number)} failed, and its on_error says what follows")
            return
        if node.otherwise is not None:
            try:
                self._lookup.lost.clear()
                if (value := self._lookup.find(node.otherwise)) is not None:
                    self._done(number, value)
                    return
            except ExpressionFailed as error:
                failure = self._described(error)
        self._status[number] = FAILED
        if self.noted is not None and not recorded:
            self.noted.append(NotRun(self._op(number), StepStatus.FAILED, "", "", node.where, self._at, failure))
        if self._plan.on_failure == "continue":
            self._failure = self._failure or failure
            self._ended(number)
        else:
            self._stop(failure)

    def _stop(self, failure: Failure) -> None:
        """Begin nothing more after a failure. Open steps end by themselves; nested graphs are asked to drain."""
        self._failure = self._failure or failure
        if not self._stopping:
            self._stopping = True
            self._give_up_chunks(DRAIN)
            self._commands += [CancelOp(op, DRAIN) for op, child in self._open.items() if self._can_drain(child)]

    def _ended(self, number: int) -> None:
        """A node has ended: count down its consumers, and the region that it is in."""
        unmet = self._unmet
        for consumer in self._plan.consumers[number]:
            unmet[consumer] -= 1
            if not unmet[consumer]:
                heapq.heappush(self._ready, consumer)
        region = self._plan.region[number]
        while region >= 0:
            self._left[region] -= 1
            if self._left[region] or not region or self._begins_again(region):
                return
            region = self._plan.regions[region].parent

    # --- loops ----------------------------------------------------------------------------------------------------

    def _begins_again(self, number: int) -> bool:
        """A round is over: begin another one, or fail the run. False if neither: the loop has ended."""
        region, fed = self._plan.regions[number], False
        for slot in region.slots:
            for output in self._plan.slots[slot].producers:
                if self._status[output.node] == DONE and (value := self._lookup.find(output)) is not None:
                    self._lookup.carry[slot] = value
                    fed |= slot in region.feeds
        gate = next((one for one in region.gates if region.entry in self._chosen.get(one, ())), None)
        if gate is not None or (fed and not region.gates):
            self._rounds[number] += 1
            most = self._started.max_rounds or self._plan.nodes[region.entry].max_rounds or self._plan.max_rounds
            if self._rounds[number] < most:
                self._next_round(number)
                return True
            entry, nodes = self._plan.nodes[region.entry].name, self._plan.nodes
            error = LoopLimit(entry, "" if gate is None else nodes[gate].name, self._rounds[number])
            self._stop(self._described(error))
            return True
        self._reset(number)
        for _, consumer in region.exports:
            self._unmet[consumer] -= 1
            if not self._unmet[consumer]:
                heapq.heappush(self._ready, consumer)
        return False

    def _next_round(self, number: int) -> None:
        region = self._plan.regions[number]
        if self._caught:
            self._caught -= {node for node, _ in region.body}
        for node, unmet in region.body:
            self._status[node], self._unmet[node], self._values[node] = WAITING, unmet, None
            self._readers[node] = self._plan.readers[node]
            self._chosen.pop(node, None)
            self._reasons.pop(node, None)
            if not unmet:
                heapq.heappush(self._ready, node)
        for loop in region.within:
            self._reset(loop)
            self._left[loop] = self._plan.sizes[loop]
        self._left[number] = self._plan.sizes[number]

    def _reset(self, number: int) -> None:
        self._rounds[number] = 0
        for slot in self._plan.regions[number].slots:
            self._lookup.carry[slot] = None

    # --- the end --------------------------------------------------------------------------------------------------

    def _check_end(self) -> None:
        if self._finished or self._end is not None:
            return
        if self._cancelled is not None:
            children = any(self._plan.nodes[number].kind == "child" for number in self._open.values())
            if not (self._running if self._cancelled.reason == DRAIN else children):
                self._finish(Finish(RunStatus.CANCELLED, reason=self._cancelled.reason))
        elif self._stopping or not self._left[0]:
            if self._failure is None:
                try:
                    if self._no_data >= 0:
                        self._finish(Finish(RunStatus.COMPLETED, no_result(self._why_no_data())))
                    elif self._passed_on:
                        self._complete()
                    else:
                        self._finish(Finish(RunStatus.COMPLETED, self._result()))
                except ExpressionFailed as error:
                    self._finish(Finish(RunStatus.FAILED, error=self._described(error)))
            elif not self._running:
                if self.noted is not None:
                    self._note_blocked()
                self._finish(Finish(RunStatus.FAILED, error=self._failure))

    def _finish(self, finish: Finish) -> None:
        """End the run; if the plan has a last node, when that has ended."""
        if self._plan.last >= 0 and self._end is None:
            self._begin_last(finish)
            return
        self._finished = True
        self._commands.append(finish)

    def _begin_last(self, end: Finish) -> None:
        self._end, self._stopping = end, True
        self._cancel_open(f"the run {_ENDS.get(end.status, end.status)}")
        number = self._plan.last
        node = self._plan.nodes[number]
        self._lookup.input[STATUS] = Value(msgspec.json.encode(_ENDS.get(end.status, end.status)))
        self._lookup.lost.clear()
        self._status[number] = OPEN
        self._call(number, node, f"{node.name}:0", self._lookup.gather(node.arguments) or {})

    def _cancel_open(self, reason: str) -> None:
        """Cancel everything that is still open, and release its locks."""
        self._commands += [CancelOp(op, reason) for op in self._open]
        self._open.clear()
        self._locking, self._running = None, 0
        for number in list(self._locks or ()):
            self._unlock(number)

    def _last_ended(self, event: ChildFinished) -> None:
        """The last node has ended. If it failed, the run fails, whatever its status would have been."""
        end = self._end
        assert end is not None
        if event.error is not None and end.status is not RunStatus.FAILED:
            end = Finish(RunStatus.FAILED, error=event.error)
        self._finish(end)

    def _complete(self) -> None:
        """End the run once the values of its result are loaded from their blobs."""
        if self._awaited:
            return
        found = [value for _, source in self._plan.results if (value := self._lookup.find(source)) is not None]
        lacking = [value for value in found if not value.data]
        if lacking and self._plan.single:
            self._finish(Finish(RunStatus.COMPLETED, blob=lacking[0].blob))
            return
        for value in lacking:
            self._load("", value.blob, value)
        if not lacking:
            self._finish(Finish(RunStatus.COMPLETED, self._result()))

    def _result(self) -> bytes:
        found: dict[str, Value] = {}
        skipped: dict[str, str] = {}
        for name, source in self._plan.results:
            self._lookup.lost.clear()
            value = self._lookup.find(source)
            if value is not None:
                found[name] = value
            else:
                lost = self._lookup.lost[0]
                skipped[name] = self._reasons.get(lost) or self._why_missing(lost)
        missing = next((name for name in skipped if name in self._plan.required), None)
        if missing is not None:
            return no_result(skipped[missing])
        if self._plan.single:
            return next(iter(found.values())).data
        if skipped:
            found[SKIPS] = Value(msgspec.json.encode(skipped))
        return as_object(found)


def _is_no_data(value: Value) -> bool:
    found = value.part(_STATUS)
    return found is not None and found.data == NO_DATA


_APPLY: dict[type[Any], Callable[[DataflowExecution, Any], None]] = {
    RunClaimed: DataflowExecution._apply_run_claimed,
    StepSucceeded: DataflowExecution._apply_step_succeeded,
    StepSkipped: DataflowExecution._apply_step_skipped,
    StepFailed: DataflowExecution._apply_step_failed,
    WaitResolved: DataflowExecution._apply_wait_resolved,
    ChildFinished: DataflowExecution._apply_child_finished,
    CancelRequested: DataflowExecution._apply_cancel_requested,
}
