"""Replay a journal with a program: the same events lead to the same commands, or the run has diverged.

Live execution and replay are one thing here. Each event is folded. Facts go to the program, whose commands are
*pending* until an event records them; such an event must find its command. What is pending when the journal ends, the
owner plans next. A child in the same journal is an execution of its own: its op path precedes the ops that it commands,
and it gets their outcomes. Never writes, never calls a step.

Insertions
==========

A command without a record is either what the owner plans next, or was inserted into the past. An owner plans the
commands of a round together, in the order in which they were asked for, and what begins is written in one append. So a
command comes too late if an op has begun that was asked for after it, or together with it. A journal has no rounds,
though, only events. Three questions stand in for that one rule, each where the others have no answer:

- `_comes_late`: has anything begun since it was asked for? The number of events before a command stands for its round.
  A local step may wait for a concurrency limit, so of those only the ones count that no StepsHeld has counted.
- `_passed_over`: has an op begun that was asked for after it? This is asked of commands that are given up while a round
  is cut short, by a checkpoint or the end of a child. The owner plans twice there, after the same number of events.
- `_beside_others`: did the run begin two or more branches at once where the code asks for one more? If not, a step that
  followed a lone one may have moved beside it, which is allowed (decision 0030). So `gather(a())` that has become
  `gather(a(), b())` is not noticed while `a` is under way.

One rule in place of the three needs the round of each op in its record: bytes in every step of every run, for what is
asked once after a deploy.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from msgspec import Raw
from msgspec.structs import replace

from perdure.errors import Diverged, NotDecodable
from perdure.kernel.commands import (
    FINISH,
    UNDECODED,
    CancelKey,
    CancelOp,
    Checkpoint,
    Command,
    Finish,
    LoadValue,
    OpenWait,
    Pending,
    RecordValue,
    RunStep,
    SetState,
    StartChild,
    StartTimer,
)
from perdure.kernel.divergence.changed_types import check_types
from perdure.kernel.divergence.explain import Evidence, commanded_op, explain, given_up_op, recorded_op
from perdure.kernel.divergence.lost_steps import check_steps
from perdure.kernel.divergence.model import Divergence, OpView
from perdure.kernel.divergence.source import Source
from perdure.kernel.events import (
    AnyEvent,
    Batch,
    CancelRequested,
    ChildFinished,
    ChildStarted,
    OutcomeKept,
    RunClaimed,
    RunFinished,
    RunForked,
    RunStarted,
    RunStatus,
    StateSet,
    StepFailed,
    StepsHeld,
    StepSkipped,
    StepStarted,
    StepSucceeded,
    ValueRecorded,
    WaitOpened,
    WaitResolved,
    blob_of,
    with_value,
)
from perdure.kernel.history.edits import with_inputs
from perdure.kernel.ids import op_name
from perdure.kernel.misfits import check_value, expect
from perdure.kernel.patches import NO_HISTORY, PATCH, PatchHistory, patch_history
from perdure.kernel.policies.versions import Programs
from perdure.kernel.program import ByReference
from perdure.kernel.projection import child_run_id
from perdure.kernel.state import OpenOp, RunState
from perdure.kernel.values.arguments import (
    ArgumentChange,
    changes,
    check_call,
    check_remote_call,
    loaded_call,
    same_call,
)
from perdure.kernel.values.codec import Codec

if TYPE_CHECKING:
    from perdure.kernel.program import Execution, Program

OfOp = StepSucceeded | StepFailed | StepSkipped | WaitResolved | ValueRecorded | ChildStarted | ChildFinished
_BEGIN = RunClaimed("", 1)
# Why an op is given up that was under way: an outcome in the journal comes first.
_RETIRED = "the graph has retired it"


Resolve: TypeAlias = Callable[[RunStep], RunStep]


class ChildContext:
    """What the children of a run need: programs, codec, rules for their steps, patch history."""

    __slots__ = ("codec", "past", "programs", "rules")

    def __init__(
        self,
        programs: Programs,
        codec: Codec,
        rules: Callable[[Program], Resolve | None] = lambda program: None,
        past: PatchHistory = NO_HISTORY,
    ) -> None:
        self.programs, self.codec, self.rules, self.past = programs, codec, rules, past


class _OpenChild:
    """A child in memory: its program, the rules for its steps, and its ops that have no outcome yet."""

    __slots__ = ("asked", "execution", "rules")

    def __init__(self, execution: Execution, rules: Resolve | None) -> None:
        self.execution, self.rules = execution, rules
        self.asked: set[str] = set()


class Replay:
    """A run in memory: its folded state, its program, and the pending commands of the program."""

    __slots__ = (
        "_amid",
        "_begun",
        "_child_context",
        "_children",
        "_cut_short",
        "_given_up",
        "_inputs",
        "_issued",
        "_last_asked",
        "_last_begun",
        "_outcomes",
        "_planned",
        "_published",
        "_recorded",
        "_rules",
        "_uncounted",
        "_unrecorded",
        "bulky",
        "execution",
        "held",
        "open_steps",
        "pending",
        "referring",
        "state",
        "wanted",
    )

    def __init__(
        self,
        state: RunState,
        execution: Execution,
        rules: Resolve | None = None,
        child_context: ChildContext | None = None,
    ) -> None:
        self.state = state
        self.execution = execution
        # Applies the rules of the engine, the program and the run to a step's policy, never to its name or inputs:
        # rules may change while a run is open.
        self._rules = rules
        self._child_context = child_context or ChildContext(Programs(), Codec())
        self._children: dict[str, _OpenChild] = {}
        # For a fork: replaced arguments by op, and values recorded in the past of the origin by child and op in it.
        self._inputs: dict[str, dict[str, Raw]] = {}
        self._recorded: dict[str, dict[str, Raw]] = {}
        # Commands whose events are not in the journal yet, in the order they were made. The first ones are taken first:
        # a dict would skip the places of all those that were taken before.
        self.pending: Pending = OrderedDict()
        # Steps among them that wait for a concurrency limit, apart, so that they are not iterated over repeatedly.
        self.held: OrderedDict[str, RunStep] = OrderedDict()
        # Commands with a value that may have to be offloaded, in order.
        self.bulky: dict[str, None] = {}
        # Whether there have been steps whose arguments are in blobs in part.
        self.referring = False
        # Blobs that executions need, each with the op paths of the children that do; empty for the root.
        self.wanted: dict[str, list[str]] = {}
        # The commands of open steps: a later attempt needs them again.
        self.open_steps: dict[str, RunStep] = {}
        # Cancellations recorded without a CancelOp, by child; valid only if that child or the run ends next.
        self._given_up: dict[str, list[StepFailed | WaitResolved]] = {}
        # While a whole journal is folded: each command, in order, as (number of events before it, is a local step).
        self._issued: dict[str, tuple[int, bool]] | None = None
        # Meanwhile, the command that published each key of the run's state last.
        self._published: dict[str, str] = {}
        # Commands that were given up, and not recorded although later ones were.
        self._unrecorded: Pending = {}
        # Steps that had not begun when a StepsHeld was recorded, and that it did not count.
        self._uncounted: set[str] = set()
        # While an event is folded after which the owner plans again: it may not have begun all that was asked for.
        self._cut_short = False
        # While an event is folded that the owner planned together with others; and the commands that such an event led
        # to. What was asked for before them begins before them, if the journal ends there: one of them may have been
        # large, and none was planned until it was offloaded.
        self._planned = False
        self._amid: set[str] | None = None
        # The number of the last event that began an op, and the highest under which one that has begun was asked for.
        self._last_begun = self._last_asked = -1
        # How many outcomes the program has got; while a whole journal is folded, how many it had when each op began.
        self._outcomes = 0
        self._begun: dict[str, int] = {}

    def fold(self, event: AnyEvent, at: float, decoded: Any = UNDECODED) -> None:
        """Fold one event. Raises Diverged if the program did not command what was recorded.

        `decoded`: see `Execution.advance`.
        """
        wait: OpenOp | None = None
        # `type` and not `isinstance`, which takes four times as long to say no.
        if type(event) is WaitResolved:
            if event.by == "signal" and (signal := self.state.next_signal(event.op)) is not None:
                event = replace(event, value=signal.payload)
            wait = self.state.ops.get(event.op)
        self.state.fold(event, at)
        if self._given_up:
            self._check_given_up(event, at)
        if type(event) is StepStarted:
            if event.attempt == 1:
                self._match_step(event)
        elif type(event) is StepSucceeded:
            self.open_steps.pop(event.op, None)
            if not (self.pending and self._match_cancel(event.op)):
                self._advance(event, at, decoded)
        elif isinstance(event, StepFailed | StepSkipped):
            self.open_steps.pop(event.op, None)
            if self.pending and self._match_cancel(event.op):
                pass
            elif isinstance(event, StepFailed) and event.retired:
                self._diverge(given_up_op(event))
            elif isinstance(event, StepFailed) and event.cancelled:
                self._note_given_up(event)
            else:
                self._advance(event, at, decoded)
        elif isinstance(event, WaitOpened):
            command = self._match(event)
            if isinstance(command, OpenWait) and command.reads is not None:
                expect(self.state.ops[event.op], command)
        elif isinstance(event, WaitResolved):
            if wait is not None and wait.reads is not None and event.brings_value and not event.misfit:
                check_value(wait, event)
            if event.by == "signal":
                self._advance(event, at)
            elif self._match_cancel(event.op):
                pass
            elif event.retired:
                self._diverge(given_up_op(event))
            elif event.by == "cancelled":
                self._note_given_up(event)
            else:
                self._advance(event, at)
        elif isinstance(event, CancelRequested):
            self._cancel(event, at)
        elif isinstance(event, ChildStarted):
            self._start_child(event, at)
        elif isinstance(event, ChildFinished):
            self._finish_child(event, at)
        elif isinstance(event, StateSet):
            # A state is published, not used: code may publish more, less, or under another name.
            command = self.pending.get(event.op)
            if isinstance(command, SetState) and command.key == event.key:
                del self.pending[event.op]
                self._forget(event.op)
        elif isinstance(event, ValueRecorded) and event.kind == "lock":
            # From the owner, not a command: the run has its lock again, under a new token.
            self._advance(event, at)
        elif isinstance(event, ValueRecorded) and event.kind == PATCH:
            # Patch marks are read before replay; code that dropped `patched()` still takes the new branch.
            self.pending.pop(event.op, None)
        elif isinstance(event, ValueRecorded):
            self._match(event)
            self._cut_short = event.kind == "checkpoint"
            self._planned = not self._cut_short
            self._advance(event, at)
            self._cut_short = self._planned = False
        elif isinstance(event, RunClaimed):
            # The body begins with the first claim; the program does not see later ones.
            if event.epoch == 1:
                self._add_commands(self.execution.advance(event, at), "", self._rules, at)
        elif isinstance(event, RunStarted):
            for op, value in (event.recorded or {}).items():
                end = op.find("/")
                while end >= 0:
                    self._recorded.setdefault(op[:end], {})[op[end + 1 :]] = value
                    end = op.find("/", end + 1)
        elif isinstance(event, RunForked):
            if self._issued is not None:
                # The past of an origin ends anywhere, also between the records of one round.
                self._issued.clear()
                self._unrecorded.clear()
            self._inputs.update(event.inputs or {})
            for op in self._inputs.keys() & self.pending.keys():
                self.pending[op] = with_inputs(self.pending[op], self._inputs[op])
        elif isinstance(event, StepsHeld):
            if self._issued is not None and self.state.counted_from >= 0:
                self._count(event)
        elif isinstance(event, RunFinished):
            self.pending.clear()
            self.held.clear()
            self.bulky.clear()
            self.wanted.clear()
            self.open_steps.clear()
            self._close_children()

    def fold_all(self, batches: Iterable[Batch]) -> None:
        """Fold whole batches."""
        for batch in batches:
            at = batch.at
            self.state.next_seq = batch.seq
            for event in batch.events:
                self.fold(event, at)

    def fold_whole(self, batches: Iterable[Batch]) -> None:
        """Fold a whole journal. Raises Diverged also for what only its end shows."""
        for _ in self.fold_parts([batches]):
            pass

    def fold_parts(self, parts: Iterable[Iterable[Batch]]) -> Iterator[None]:
        """As `fold_whole`, with a pause after each part of the journal."""
        self._issued, self._published, self._unrecorded, self._uncounted, self._last_begun = {}, {}, {}, set(), -1
        self._begun, self._amid, self._last_asked = {}, set(), -1
        for part in parts:
            self.fold_all(part)
            yield
        if self._given_up:
            self._diverge(given_up_op(next(iter(self._given_up.values()))[0]))
        self._check_order()
        self._issued, self._begun, self._amid = None, {}, None

    def give(self, blob: str, value: Raw, at: float) -> None:
        """Hand a value from a blob to the executions that need it."""
        for path in self.wanted.pop(blob, ()):
            child = self._children.get(path)
            execution, rules = (self.execution, self._rules) if child is None else (child.execution, child.rules)
            if isinstance(execution, ByReference) and (child is not None or not path):
                self._add_commands(execution.loaded(blob, value, at), path, rules, at)

    def resolve(self, op: str, values: Mapping[str, Raw]) -> None:
        """Put the arguments of a step that has not begun in place. Raises NotDecodable for what it cannot take."""
        for commands in (self.pending, self.held):
            command = commands.get(op)
            if isinstance(command, RunStep) and command.references:
                for blob, read in command.unread:
                    read(values[blob])
                commands[op] = loaded_call(command, values)
                if command.spec.queue or command.spec.record_inputs:
                    self.bulky[op] = None

    def fold_by_reference(self, batches: Iterable[Batch]) -> Generator[Collection[str], Mapping[str, Raw], None]:
        """Fold a journal whose large values are in blobs, and give the blobs that are needed to continue it.

        Yields a set of ids whenever replay cannot continue without them, and the caller sends the values. An empty set
        is a pause in a long journal.
        """
        for batch in batches:
            self.state.next_seq = batch.seq
            for event in batch.events:
                if (blob := blob_of(event)) and not self._takes_reference(event):
                    event = with_value(event, (yield {blob})[blob])
                self.fold(event, batch.at)
                while self.wanted:
                    values = yield set(self.wanted)
                    for blob, value in values.items():
                        self.give(blob, value, batch.at)
                if not self.state.next_seq % 1000:
                    yield ()
        yield {blob for command in self.open_steps.values() for _, blob in command.references}

    def _takes_reference(self, event: AnyEvent) -> bool:
        """Whether an event may come without its value, which is in a blob."""
        if isinstance(event, OutcomeKept):
            return "/" not in event.op and isinstance(self.execution, ByReference)
        if not isinstance(event, StepSucceeded | ChildFinished):
            return False
        return isinstance(self.execution_of(event.op)[0], ByReference)

    def commands_within(self, room: int) -> Sequence[Command]:
        """The commands to plan now, with no more than `room` steps; the others wait, in order. Remote ones need none.

        They stay pending until their events are folded.
        """
        for command in list(self.pending.values()):
            if isinstance(command, RunStep) and not command.spec.queue:
                self.held[command.op] = command
                del self.pending[command.op]
        return [*self.pending.values(), *islice(self.held.values(), max(0, room))]

    @property
    def children(self) -> dict[str, Execution]:
        """The executions of open children, by op path."""
        return {path: child.execution for path, child in self._children.items()}

    def execution_of(self, op: str) -> tuple[Execution, str]:
        """The execution that an op belongs to, and the op path of its child; empty for the root."""
        path = self.state.child_of(op) if self._children else ""
        child = self._children.get(path)
        return (self.execution, "") if child is None else (child.execution, path)

    def program(self, child: StartChild) -> Program:
        """The program of a child that is about to begin. Raises UnknownProgram or UnknownVersion."""
        if child.embedded:
            return child.own  # type: ignore[no-any-return]
        if child.own is not None:
            self._child_context.programs.renew(child.own)
        return self._child_context.programs.find(child.program, child.version)

    def close(self) -> None:
        """Close the program, and its children."""
        self._close_children()
        self.execution.close()

    # --- the program advances -------------------------------------------------------------------------------------

    def _advance(self, event: OfOp, at: float, decoded: Any = UNDECODED) -> None:
        """Advance the program or child that commanded an op with its outcome."""
        self._outcomes += 1
        path = self.state.child_of(event.op) if self._children else ""
        if path:
            child = self._children.get(path)
            if child is None:
                return  # of a node that was retired
            child.asked.discard(event.op)
            event = replace(event, op=event.op[len(path) + 1 :])
            self._add_commands(child.execution.advance(event, at, decoded), path, child.rules, at)
        else:
            self._add_commands(self.execution.advance(event, at, decoded), "", self._rules, at)

    def _add_commands(self, commands: Sequence[Command], path: str, rules: Resolve | None, at: float) -> None:
        """Add the commands of an execution."""
        pending = self.pending
        asked = self._children[path].asked if path else None
        for command in commands:
            if path:
                command = replace(command, op=f"{path}/{command.op}")
            kind = type(command)
            if kind is CancelOp:
                self._give_up(command, at)
                continue
            if kind is LoadValue:
                assert isinstance(command, LoadValue)
                self.wanted.setdefault(command.blob, []).append(path)
                continue
            if asked is not None:
                asked.add(command.op)
            if kind is Finish or kind is StartChild:
                self.bulky[command.op] = None
            elif isinstance(command, RunStep):
                if rules is not None:
                    command = rules(command)
                if command.spec.queue or command.spec.record_inputs:
                    self.bulky[command.op] = None
                if command.references:
                    self.referring = True
            if self._inputs and command.op in self._inputs:
                command = with_inputs(command, self._inputs[command.op])
            pending[command.op] = command
            if self._issued is not None:
                self._issued[command.op] = self.state.next_seq, kind is RunStep and not command.spec.queue  # type: ignore[union-attr]
                if self._planned and self._amid is not None:
                    self._amid.add(command.op)
                if kind is SetState:
                    self._published[command.key] = command.op  # type: ignore[union-attr]

    def _give_up(self, command: Command, at: float) -> None:
        # Commanded and cancelled in the same round: neither is recorded.
        withdrawn = self.pending.pop(command.op, None) or self.held.pop(command.op, None)
        if withdrawn is not None:
            self.bulky.pop(command.op, None)
            self._forget(command.op)
        if self._issued is not None and withdrawn is not None:
            number, local = self._issued.get(command.op, (self.state.next_seq, False))
            late = self._passed_over if self._cut_short else self._comes_late
            if number < self.state.next_seq and late(command.op, number, local):
                self._unrecorded[command.op] = withdrawn
            else:
                self._issued.pop(command.op, None)
        if type(withdrawn) is StartChild and not withdrawn.detached:
            # What awaits a child waits for its end.
            self._advance(ChildFinished(command.op, RunStatus.CANCELLED), at)
        elif withdrawn is None and command.op in self.state.ops:
            self.pending[CancelKey(command.op)] = command

    def _cancel(self, event: CancelRequested, at: float) -> None:
        path = event.child
        if not path:
            self._add_commands(self.execution.advance(event, at), "", self._rules, at)
            return
        if not self._match_cancel(path) and event.given_up:
            self._diverge(given_up_op(event))
        if path in self._children:
            child = self._children[path]
            self._cut_short = event.given_up
            self._add_commands(child.execution.advance(CancelRequested(event.reason), at), path, child.rules, at)
            self._cut_short = False

    # --- children -------------------------------------------------------------------------------------------------

    def _start_child(self, event: ChildStarted, at: float) -> None:
        command = self.pending.get(event.op)
        if command is None and self._is_retired(event.op):
            if not event.detached and not event.refused:
                # What is open in it is given up, and it ends.
                end = f"{event.op}/{FINISH}"
                self.pending[end] = Finish(RunStatus.CANCELLED, reason=_RETIRED, op=end, retired=True)
            return
        if not isinstance(command, StartChild) or not _is_child(command, event):
            self._diverge(recorded_op(event))
        del self.pending[event.op]
        self._last_begun = self.state.next_seq - 1
        if self._issued is not None:
            self._note_begun(self._issued, event.op)
        self.bulky.pop(event.op, None)
        if event.detached:
            self._planned = True
            self._advance(event, at)
            self._planned = False
            return
        if event.refused:
            return
        child_context = self._child_context
        program = command.own if command.embedded else child_context.programs.find(event.program, event.version)
        root = self.state.started
        exact = 0 if root is None else min(root.exact, 1)
        started = RunStarted(
            event.id or (event.op if root is None else f"{root.id}/{event.op}"),
            event.program,
            event.version,
            event.input,
            recorded=self._recorded.get(event.op),
            exact=exact,
            max_rounds=None if root is None else root.max_rounds,
            structure=event.structure or command.structure,
        )
        past = child_context.past.within(event.op)
        child = program.open(child_run_id(self.state.run_id, event.op), started, child_context.codec, past)
        self._opened(child, event.op)
        rules = child_context.rules(program)
        self._children[event.op] = _OpenChild(child, rules)
        self._planned = True
        self._add_commands(child.advance(_BEGIN, at), event.op, rules, at)
        self._planned = False

    def _opened(self, child: Execution, path: str) -> None:
        """A child is about to begin."""

    def _finish_child(self, event: ChildFinished, at: float) -> None:
        if event.retired and event.op in self._children:
            self._diverge(given_up_op(event))
        if f"{event.op}/{FINISH}" in self.pending and event.op not in self._children:
            # Of a node that was retired: what is open in it is given up with it.
            for key in [key for key, command in self.pending.items() if command.op.startswith(f"{event.op}/")]:
                del self.pending[key]
        self._match_cancel(event.op)
        left = [event.op]
        while left:
            path = left.pop()
            child = self._children.pop(path, None)
            if child is None:
                continue
            child.execution.close()
            for op in child.asked:
                self.pending.pop(op, None)
                self.pending.pop(CancelKey(op), None)
                self.bulky.pop(op, None)
                self.held.pop(op, None)
                self.open_steps.pop(op, None)
            left += [op for op in child.asked if op in self._children]
        self._advance(event, at)

    def _close_children(self) -> None:
        while self._children:
            self._children.popitem()[1].execution.close()

    # --- commands and their events --------------------------------------------------------------------------------

    def _match_cancel(self, op: str) -> bool:
        if self.pending.pop(CancelKey(op), None) is None:
            return False
        self._forget(op)
        return True

    def _forget(self, op: str) -> None:
        """An op has ended, or was never recorded, and its execution does not get an event for that."""
        child = self._children.get(self.state.child_of(op)) if self._children else None
        if child is not None:
            child.asked.discard(op)

    def _match_step(self, event: StepStarted) -> None:
        command = self.pending.get(event.op) or self.held.get(event.op)
        if command is None and self._is_retired(event.op):
            self.pending[CancelKey(event.op)] = CancelOp(event.op, _RETIRED, retired=True)
            return
        # No hash of inputs: it was redacted.
        if type(command) is not RunStep or (
            event.inputs and event.inputs != command.inputs_hash and not same_call(event.inputs, command)
        ):
            self._diverge(recorded_op(event))
        if self.pending.pop(event.op, None) is None:
            del self.held[event.op]
        self.bulky.pop(event.op, None)
        if command.spec.queue and event.inputs:
            command = replace(command, inputs_hash=event.inputs)  # as its worker gets it
        self.open_steps[event.op] = command
        self._last_begun = self.state.next_seq - 1
        if self._issued is not None:
            asked = self._issued.get(event.op)
            if asked is not None and asked[0] > self._last_asked:
                self._last_asked = asked[0]
            self._begun[event.op] = self._outcomes

    def _match(self, event: WaitOpened | ValueRecorded) -> Command | None:
        command = self.pending.get(event.op)
        if command is None and self._is_retired(event.op):
            if isinstance(event, WaitOpened):
                self.pending[CancelKey(event.op)] = CancelOp(event.op, _RETIRED, retired=True)
            return None
        if not _asks_for(command, event):
            self._diverge(recorded_op(event))
        del self.pending[event.op]
        if type(command) is not Checkpoint:  # what was asked for together with it is recorded after it
            self._last_begun = self.state.next_seq - 1
            if self._issued is not None:
                self._note_begun(self._issued, event.op, isinstance(event, WaitOpened) and op_name(event.op) != "timer")
        return command

    def _note_begun(self, issued: dict[str, tuple[int, bool]], op: str, branches: bool = True) -> None:
        asked = issued.get(op)
        if asked is not None and asked[0] > self._last_asked:
            self._last_asked = asked[0]
        if branches:
            self._begun[op] = self._outcomes

    def _check_order(self) -> None:
        """Check that what the code asks for now, and the journal does not hold, comes after what it holds.

        In each scope ops are recorded in the order in which they are asked for; only a local step may wait for a
        concurrency limit, and then later steps of all scopes wait too. Anything else, and the end of a lock, is
        recorded before what begins after it, in any scope: new work beside work under way comes too late, too, and so
        does a local step that no StepsHeld counts.
        """
        for key, command in list(self.pending.items()):
            if isinstance(command, SetState) and self._published.get(command.key, command.op) != command.op:
                del self.pending[key]  # published again since
        issued, commands = self._issued, {**self._unrecorded, **self.pending}
        if not issued or not commands or self.state.kept is not None or self.state.finished is not None:
            return
        # Recorded values by scope and name: one more of a name shifts the others, and only that matters.
        values = {_numberless(op) for op in issued if op not in commands}
        placed = {
            op
            for op, command in commands.items()
            if isinstance(op, str)
            and _begins(command)
            and not self._by_data(op)
            and (not isinstance(command, RecordValue) or command.kind == "unlock" or _numberless(op) in values)
        }
        if not placed:
            return
        # From the last to the first: in each scope, the next op that the journal holds, and the next local step of all.
        after: dict[str, str] = {}
        step = ""
        stepped: set[str] = set()
        found: tuple[str, str] | None = None
        first = nearest = ""
        for op, (number, local) in reversed(issued.items()):
            scope = op.rpartition("/")[0]
            if op in placed:
                recorded = step if local else after.get(scope, "")
                if local and recorded and scope not in stepped and not self._beside_others(scope, number):
                    continue
                if not recorded and _at_once(commands[op]) and self._comes_late(op, number, local):
                    if local and op not in self._uncounted and not self._beside_others(scope, number):
                        continue
                    recorded, first = nearest, "" if nearest else op
                found = (op, recorded) if recorded else found
            elif op not in commands:
                found, first = (first, op) if first else found, ""
                after[scope] = nearest = op
                if local:
                    step = op
                    stepped.add(scope)
        if found is not None:
            op, recorded = found
            self._diverge(OpView("op", recorded, op_name(recorded)), commanded_op(commands[op]))

    def _is_retired(self, op: str) -> bool:
        """Whether a recorded op is passed over, because its execution has retired it."""
        path = self.state.child_of(op)
        while path and path not in self._children:
            path = self.state.child_of(path)
        execution = self._children[path].execution if path else self.execution
        return execution.retires(op[len(path) + 1 :] if path else op)

    def _by_data(self, op: str) -> bool:
        """Whether an op belongs to an execution whose ops have no order but that of their values."""
        return self.execution_of(op)[0].by_data

    def _count(self, event: StepsHeld) -> None:
        """Note which steps an owner that counts them did not hold back: the last of them."""
        waiting = [
            command.op for command in self.pending.values() if _is_local(command) and command.op not in self._uncounted
        ]
        self._uncounted.update(waiting[event.count :])

    def _comes_late(self, op: str, number: int, local: bool) -> bool:
        """Whether a command, made after this many events, would have begun before others that did."""
        if local and (self.state.held or not 0 <= self.state.counted_from < self._last_begun):
            return op in self._uncounted  # else it may wait for a concurrency limit
        return number <= (self._last_asked if self._amid and op in self._amid else self._last_begun)

    def _passed_over(self, op: str, number: int, local: bool) -> bool:
        """Whether an op that the program asked for later has begun. Where steps are limited, they come after others."""
        assert self._issued is not None
        known: tuple[Mapping[Any, object], ...] = self.pending, self.held, self._unrecorded
        later = takewhile(lambda item: item[0] != op, reversed(self._issued.items()))
        return any((is_local or not local) and not any(other in one for one in known) for other, (_, is_local) in later)

    def _beside_others(self, scope: str, number: int) -> bool:
        """Whether the run began several branches at once where the code asks for one more.

        If not, a step that followed another one may have moved beside it.
        """
        assert self._issued is not None
        known, branches = False, set()
        for op, outcomes in self._begun.items():
            if op in self._issued and self._issued[op][0] == number:
                within = op.rpartition("/")[0]
                known |= within == scope
                branch = op if within == scope else within
                if branch.rpartition("/")[0] == scope:
                    branches.add((outcomes, branch))
        return not known or len({outcomes for outcomes, _ in branches}) < len(branches)

    def _note_given_up(self, event: StepFailed | WaitResolved) -> None:
        self._given_up.setdefault(self.state.child_of(event.op), []).append(event)

    def _check_given_up(self, event: AnyEvent, at: float) -> None:
        """Check that the end of the run or child follows the cancellations that were recorded without a CancelOp."""
        if isinstance(event, RunFinished):
            self._given_up.clear()
            return
        if isinstance(event, ChildFinished):
            self._given_up.pop(event.op, None)
            return
        if isinstance(event, StepFailed | WaitResolved):
            return  # more cancellations before that end
        given_up = [one for several in self._given_up.values() for one in several]
        self._given_up.clear()
        if not isinstance(event, RunClaimed):
            self._diverge(given_up_op(given_up[0]))
        # The end was not written with them: after a takeover the program gets them as outcomes.
        for one in given_up:
            self._advance(one, at)

    def check_open_steps(self, *, other_code: bool = False) -> None:
        """Raise NotDecodable if a step that is to be tried again cannot be called with its arguments.

        The worker of a remote step sees to it itself; with `other_code`, it has the code that is checked.
        """
        for op, command in self.open_steps.items():
            try:
                if not command.spec.queue:
                    check_call(command, self._child_context.codec)
                elif other_code:
                    check_remote_call(command, self._child_context.codec)
            except NotDecodable as error:
                error.op = op
                raise

    def check_ahead(self, *, failing: bool = False) -> Iterator[None]:
        """Raise NotDecodable if the program will take something later that it cannot read, or that is not there.

        `failing`: see Execution. What a retry kept stands in for ops that the program has not asked for: then nothing
        is said.
        """
        if self.state.kept is None or not self.state.kept.entries:
            yield from self.execution.check_ahead(failing=failing)
            for execution in self.children.values():
                yield from execution.check_ahead(failing=failing)

    def check_edits(self) -> None:
        """Raise NotDecodable if a fork gives a step or a child arguments that it cannot be called with."""
        for op in self._inputs:
            self._check_arguments(self.pending.get(op))

    def check_next(self) -> None:
        """Raise NotDecodable if a step or a child that the program asks for now cannot be called with its arguments."""
        for command in [*self.pending.values(), *self.held.values()]:
            self._check_arguments(command)

    def _check_arguments(self, command: Command | None) -> None:
        codec = self._child_context.codec
        if isinstance(command, RunStep):
            check_call(command, codec)
        elif isinstance(command, StartChild) and not command.detached:
            self.program(command).check_input(Raw(command.input), codec)

    def _diverge(self, recorded: OpView | None, inserted: OpView | None = None) -> NoReturn:
        assert recorded is not None
        found = self._explained(recorded) or explain(self.evidence(recorded, inserted))
        raise Diverged(self.state.next_seq - 1, found)

    def _explained(self, recorded: OpView) -> Divergence | None:
        """The explanation that the execution itself gives for not commanding a recorded op, if it gives one."""
        execution, path = self.execution_of(recorded.path)
        return execution.explains(recorded.path[len(path) + 1 :] if path else recorded.path, recorded)

    def evidence(self, recorded: OpView, inserted: OpView | None = None) -> Evidence:
        """The evidence from which a divergence at a recorded op is explained."""
        pending = [*self.pending.values(), *self.held.values()]
        found = [
            change for command in pending if command.op == recorded.path for change in _arguments_of(command, recorded)
        ]
        arguments = [str(change) for change in found]
        return Evidence(
            recorded,
            [commanded_op(command) for command in pending],
            inserted=inserted,
            arguments=arguments,
            register=self.execution_of(recorded.path)[0].register,
        )


def open_replay(
    programs: Programs,
    run_id: str,
    started: RunStarted,
    codec: Codec,
    batches: Sequence[Batch] = (),
    rules: Callable[[Program], Resolve | None] = lambda program: None,
    kind: type[Replay] = Replay,
    sources: Mapping[str, Source] = MappingProxyType({}),
    since: float = inf,
) -> Replay:
    """A new replay with the patch history of `batches`, of the program that fits.

    Raises UnknownProgram or UnknownVersion if no program fits, Diverged if a recorded step is a plain function now, and
    NotDecodable if a recorded value means something else. `sources` are those that the run was executed with, by id, as
    far as they are known; `since`: from when on signals come from code of now.
    """
    program, state = programs.find(started.program, started.version), RunState(run_id)
    former = check_steps(programs, program, batches, sources)
    if former:
        check_types(program, started, batches, {code: sources[code] for code in former}, codec.own_types, since)
    past = patch_history(state, batches, decides=program.decides)
    execution = program.open(run_id, started, codec, past)
    return kind(state, execution, rules(program), ChildContext(programs, codec, rules, past))


def _arguments_of(command: Command, recorded: OpView) -> Sequence[ArgumentChange]:
    """The arguments in which a command differs from the recorded op."""
    return changes(recorded.inputs.partition("\n")[0], command) if isinstance(command, RunStep | StartChild) else ()


def _is_child(command: StartChild, event: ChildStarted) -> bool:
    """Whether an event records this child. A missing hash of inputs was redacted."""
    if event.inputs and not same_call(event.inputs, command):
        return False
    return (command.program, command.id, command.detached) == (event.program, event.id, bool(event.detached))


def _numberless(op: str) -> str:
    return op.rpartition(":")[0]


def _begins(command: Command) -> bool:
    """Whether a command begins an op whose place among the others matters."""
    if isinstance(command, RecordValue):
        return command.kind != PATCH
    return not isinstance(command, SetState | CancelOp | Finish)


def _is_local(command: Command) -> bool:
    return isinstance(command, RunStep) and not command.spec.queue


def _at_once(command: Command) -> bool:
    """Whether a command is recorded together with others of its round, even of other scopes."""
    return not isinstance(command, SetState | Checkpoint)


def _asks_for(command: Command | None, event: WaitOpened | ValueRecorded) -> bool:
    """Whether an event records this command."""
    if isinstance(event, WaitOpened):
        if event.kind == "timer":
            return isinstance(command, StartTimer)
        return isinstance(command, OpenWait) and (command.kind, command.name) == (event.kind, event.name)
    if event.kind == "checkpoint":
        return isinstance(command, Checkpoint)
    return isinstance(command, RecordValue) and command.kind == event.kind
