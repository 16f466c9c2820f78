"""Follow a journal with a program: the same events lead to the same commands, or the run has diverged.

Live execution and replay are one thing here. Each event is folded; facts go to the program, whose commands become
*wishes*; events that record a wish must find it. What is wished for and not recorded when the journal ends is what the
owner has to plan next. Never writes, never calls a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from perdure.errors import Diverged
from perdure.kernel.commands import (
    CancelOp,
    Checkpoint,
    Command,
    Execution,
    Finish,
    OpenWait,
    RecordValue,
    RunStep,
    SetState,
    StartTimer,
)
from perdure.kernel.events import (
    AnyEvent,
    Batch,
    CancelRequested,
    RunClaimed,
    RunFinished,
    StateSet,
    StepFailed,
    StepSkipped,
    StepStarted,
    StepSucceeded,
    ValueRecorded,
    WaitOpened,
    WaitResolved,
)
from perdure.kernel.state import RunState


class Replay:
    """A run in memory: its folded state, its program, and what the program wishes for."""

    __slots__ = ("_rules", "execution", "open_steps", "state", "wishes")

    def __init__(
        self, state: RunState, execution: Execution, rules: Callable[[RunStep], RunStep] | None = None
    ) -> None:
        self.state = state
        self.execution = execution
        # What the rules of the engine, the program and the run make of a step's policy. Never of its name or inputs:
        # rules may change while a run goes on.
        self._rules = rules
        # Commands whose events are not in the journal yet, in the order they were made.
        self.wishes: dict[str, Command] = {}
        # Steps that have begun and have no outcome: an attempt after the first needs the command again.
        self.open_steps: dict[str, RunStep] = {}

    def fold(self, event: AnyEvent, at: float) -> None:
        """Take one event in. Raises Diverged when the program did not wish for what was recorded."""
        self.state.fold(event, at)
        kind = type(event)
        if kind is StepStarted:
            assert isinstance(event, StepStarted)
            if event.attempt == 1:
                self._match_step(event)
        elif kind is StepSucceeded or kind is StepFailed or kind is StepSkipped:
            assert isinstance(event, StepSucceeded | StepFailed | StepSkipped)
            self.open_steps.pop(event.op, None)
            if not self._match_cancel(event.op):
                self._advance(event, at)
        elif isinstance(event, WaitOpened):
            wish: type[Command] = StartTimer if event.kind == "timer" else OpenWait
            self._match(event, event.op, wish, f"a wait for a {event.kind}", event.source)
        elif isinstance(event, WaitResolved):
            if event.by == "signal":
                self._advance(WaitResolved(event.op, "signal", self.state.delivery), at)
            elif not self._match_cancel(event.op):
                self._advance(event, at)
        elif isinstance(event, CancelRequested):
            self._advance(event, at)
        elif isinstance(event, StateSet):
            self._match(event, event.op, SetState, f"set_state({event.key!r})", "")
        elif isinstance(event, ValueRecorded) and event.kind == "lock":
            # The owner's word, not an answer to a wish: the run has its lock again, under a new token.
            self._advance(event, at)
        elif isinstance(event, ValueRecorded):
            wish = Checkpoint if event.kind == "checkpoint" else RecordValue
            self._match(event, event.op, wish, f"{event.kind}()", "")
            self._advance(event, at)
        elif isinstance(event, RunClaimed):
            # The body begins with the first claim; later claims are no business of the program.
            if event.epoch == 1:
                self._advance(event, at)
        elif isinstance(event, RunFinished):
            self.wishes.clear()
            self.open_steps.clear()

    def fold_all(self, batches: Iterable[Batch]) -> None:
        """Take whole batches in."""
        for batch in batches:
            at = batch.at
            for event in batch.events:
                self.fold(event, at)

    def take_wishes(self) -> Sequence[Command]:
        """The commands to plan now. They stay wishes until their events are folded."""
        return list(self.wishes.values())

    def _advance(self, event: AnyEvent, at: float) -> None:
        wishes, rules = self.wishes, self._rules
        for command in self.execution.advance(event, at):
            if type(command) is CancelOp:
                # Wished for and given up in one breath: neither ever happened.
                if wishes.pop(command.op, None) is None and command.op in self.state.ops:
                    wishes[f"cancel {command.op}"] = command
            else:
                if rules is not None and type(command) is RunStep:
                    command = rules(command)
                wishes[command.op] = command

    def _match_cancel(self, op: str) -> bool:
        return bool(self.wishes) and self.wishes.pop(f"cancel {op}", None) is not None

    def _match_step(self, event: StepStarted) -> None:
        command = self.wishes.pop(event.op, None)
        if type(command) is RunStep:
            self.open_steps[event.op] = command
            if command.inputs_hash == event.inputs:
                return
            self._diverge(
                event,
                event.op,
                f"the call of a step ({event.source}) with inputs {event.inputs}",
                f"calls it ({command.source}) with other inputs {command.inputs_hash}",
            )
        self._missing(event, event.op, "the call of a step", event.source, command)

    def _match(self, event: AnyEvent, op: str, wish: type[Command], what: str, source: str) -> None:
        command = self.wishes.pop(op, None)
        if type(command) is not wish:
            self._missing(event, op, what, source, command)

    def _missing(self, event: AnyEvent, op: str, what: str, source: str, command: Command | None) -> None:
        recorded = f"{what} at {source}" if source else what
        if command is not None:
            current = f"does {_describe(command)} there"
        elif self.wishes:
            current = "wishes for " + ", ".join(_describe(c) for c in list(self.wishes.values())[:3]) + " instead"
        else:
            current = "does nothing of the kind"
        self._diverge(event, op, recorded, current)

    def _diverge(self, event: AnyEvent, op: str, recorded: str, current: str) -> None:
        raise Diverged(self.state.next_seq - 1, op, recorded, current)


def _describe(command: Command) -> str:
    source = getattr(command, "source", "")
    where = f" at {source}" if source else ""
    if isinstance(command, RunStep):
        return f"the step {command.op}{where}"
    if isinstance(command, StartTimer):
        return f"a timer {command.op}{where}"
    if isinstance(command, Finish):
        return f"the end of the run ({command.status})"
    return f"{type(command).__name__} {command.op}{where}"
