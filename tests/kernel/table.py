"""A program that is a table, not a coroutine: rows of ops, and what each comes after; and runs without an engine.

`Table` shows that the kernel needs nothing of asyncio: a plain class that is fed events and answers with commands.
`Machine` does what a driver does, one choice at a time: it plans what the program commands, ends attempts, lets time
pass and crashes, and keeps the journal that comes of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import Raw

from perdure.kernel.commands import UNDECODED, CancelOp, Command, Finish, RunStep, StartTimer, StepSpec
from perdure.kernel.events import (
    AnyEvent,
    Batch,
    RunClaimed,
    RunParked,
    RunReleased,
    RunResumed,
    RunStarted,
    RunStatus,
    StepFailed,
    StepSkipped,
    StepSucceeded,
    WaitResolved,
)
from perdure.kernel.ids import inputs_hash
from perdure.kernel.patches import NO_HISTORY, PatchHistory
from perdure.kernel.plan import Call, Plan, adopt, failed, plan, wake
from perdure.kernel.policies.retry import Retry
from perdure.kernel.program import Execution, Program
from perdure.kernel.replay import Replay
from perdure.kernel.state import RunState
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.failures import Failure

CODEC = Codec()
BOOM = Failure("builtins.ValueError", "boom")


def total(*values: int) -> int:
    """The step of a table: the sum of the values before it, plus one."""
    return sum(values) + 1


@dataclass(frozen=True)
class Row:
    """One op: a step, or a timer in seconds. `gives_up` names ops that are cancelled once it is done."""

    op: str
    spec: StepSpec | float
    after: tuple[str, ...] = ()
    gives_up: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table(Program):
    """A program. It ends when every row has an outcome, or as soon as the op `until` has one."""

    rows: tuple[Row, ...]
    until: str | None = None
    name: str = "table"
    version: str = "1"

    def open(self, run_id: str, started: RunStarted, codec: Codec, past: PatchHistory = NO_HISTORY) -> TableExecution:
        return TableExecution(self, codec)


class TableExecution(Execution):
    """One run of a table."""

    def __init__(self, table: Table, codec: Codec) -> None:
        self._table, self._codec = table, codec
        self._asked: set[str] = set()
        self._done: dict[str, int] = {}
        self.closed = False

    def advance(self, event: AnyEvent, at: float, decoded: Any = UNDECODED) -> Sequence[Command]:
        """Apply one event, and return the commands of every row that is ready."""
        commands: list[Command] = []
        if isinstance(event, StepSucceeded):
            self._end(event.op, self._codec.decode(event.value, int, event.op), commands)
        elif isinstance(event, WaitResolved | StepSkipped):
            self._end(event.op, 0, commands)
        elif isinstance(event, StepFailed):
            return [Finish(RunStatus.FAILED, error=event.error)]
        for row in self._table.rows:
            if row.op not in self._asked and all(op in self._done for op in row.after):
                self._asked.add(row.op)
                commands.append(self._command(row, at))
        until = self._table.until
        if len(self._done) == len(self._table.rows) or (until is not None and until in self._done):
            commands.append(Finish(RunStatus.COMPLETED, self._codec.encode(self._done, "the result")))
        return commands

    def _end(self, op: str, value: int, commands: list[Command]) -> None:
        self._done[op] = value
        row = next(row for row in self._table.rows if row.op == op)
        for other in row.gives_up:
            if other not in self._done:
                self._asked.add(other)
                self._done[other] = 0
                commands.append(CancelOp(other))

    def _command(self, row: Row, at: float) -> Command:
        if not isinstance(row.spec, StepSpec):
            return StartTimer(row.op, at + row.spec, f"table row {row.op}")
        values = [self._done[op] for op in row.after]
        data = self._codec.encode(values, "the inputs")
        return RunStep(row.op, row.spec, data, inputs_hash(data), len(values), source=f"table row {row.op}")

    def close(self) -> None:
        self.closed = True


def step_row(op: str, *after: str, gives_up: tuple[str, ...] = (), **policy: Any) -> Row:
    """A row that is a step."""
    return Row(op, StepSpec(op.partition(":")[0], total, **policy), after, gives_up)


def timer_row(op: str, seconds: float, *after: str, gives_up: tuple[str, ...] = ()) -> Row:
    """A row that is a timer."""
    return Row(op, seconds, after, gives_up)


# --- a run of it ----------------------------------------------------------------------------------------------------


class Machine:
    """A run of a program in memory, driven by hand."""

    def __init__(self, program: Table, deadline: float | None = None) -> None:
        self.program = program
        self.started = RunStarted("order-1", program.name, program.version, Raw(b"[]"), deadline=deadline)
        self.now = 1000.0
        self.journal: list[tuple[AnyEvent, float]] = []
        self.calls: dict[str, Call] = {}
        self.replay = self._fresh()

    def _fresh(self) -> Replay:
        return Replay(RunState("r1"), self.program.open("r1", self.started, CODEC))

    @property
    def state(self) -> RunState:
        return self.replay.state

    def begin(self) -> None:
        """Accept the run, and let its first owner begin."""
        self.record(self.started, RunClaimed("host-1", 1))

    def record(self, *events: AnyEvent) -> None:
        """Apply events, and do what follows from them."""
        for event in events:
            self._fold(event)
        self.pump()

    def _fold(self, event: AnyEvent) -> None:
        self.replay.fold(event, self.now)
        self.journal.append((event, self.now))

    def pump(self, planned: Plan | None = None) -> None:
        """Record what is planned and everything that follows from it."""
        while True:
            if planned is not None:
                for event in planned.events:
                    self._fold(event)
                for op in planned.cancels:
                    self.calls.pop(op, None)
                self.calls.update({call.command.op: call for call in planned.calls})
            if not self.replay.pending:
                break
            planned = plan(self.state, list(self.replay.pending.values()), self.now)
        if self.state.finished is not None:
            self.calls.clear()

    def succeed(self, op: str) -> None:
        """An attempt returns."""
        call = self.calls.pop(op)
        value = total(*msgspec.json.decode(call.command.inputs, type=list[int]))
        self.record(StepSucceeded(op, Raw(str(value).encode()), call.attempt))

    def fail(self, op: str, retryable: bool = True) -> None:
        """An attempt raises."""
        self.record(failed(self.state, self.calls.pop(op), BOOM, retryable, self.now))

    def wait(self) -> None:
        """Let time pass until something is due."""
        if self.state.wake_at is not None:
            self.now = max(self.now, self.state.wake_at)
            self.pump(wake(self.state, self.replay.open_steps, self.now, 1 << 30))

    def crash(self, keep: int | None = None) -> None:
        """Lose everything but the first `keep` events of the journal, and continue as a new owner."""
        kept = self.journal[: len(self.journal) if keep is None else max(1, keep)]
        self.journal, self.calls = [], {}
        self.replay = self._fresh()
        for event, at in kept:
            self.now = at
            self._fold(event)
        if self.state.finished is not None:
            return
        if self.state.parked is not None:
            self._fold(RunResumed())
        self._fold(RunClaimed("host-2", self.state.epoch + 1))
        self.pump(adopt(self.state, self.replay.open_steps))

    def leave(self, event: AnyEvent) -> None:
        """Release the run, and let another owner continue."""
        self.record(event)
        self.crash()

    def choose(self, choice: int) -> None:
        """Do one of the things that can happen now."""
        if self.state.finished is not None:
            return
        ops = sorted(self.calls)
        actions: list[Any] = [lambda: self.wait(), lambda: self.crash()]
        actions += [lambda op=op: self.succeed(op) for op in ops] * 2
        actions += [lambda op=op: self.fail(op) for op in ops]
        actions += [lambda: self.leave(RunReleased(self.state.owner or "")), lambda: self.leave(RunParked("by hand"))]
        actions[choice % len(actions)]()

    def finish(self) -> None:
        """Let everything succeed until the run ends."""
        while self.state.finished is None:
            if self.calls:
                self.succeed(min(self.calls))
            else:
                assert self.state.wake_at is not None, "nothing is under way, and nothing will be due"
                self.wait()


def batches(journal: Iterable[tuple[AnyEvent, float]], cuts: Iterable[int] = ()) -> list[Batch]:
    """A journal as batches: cut where the time changes, and at the numbers in `cuts`."""
    cut, result = set(cuts), list[Batch]()
    for seq, (event, at) in enumerate(journal):
        last = result[-1] if result else None
        if last is not None and last.at == at and seq not in cut:
            result[-1] = Batch(last.seq, at, [*last.events, event])
        else:
            result.append(Batch(seq, at, [event]))
    return result


def facts(state: RunState) -> dict[str, Any]:
    """Everything a state says."""
    plain = {name: getattr(state, name) for name in RunState.__slots__ if name not in ("ops", "_wake", "_due")}
    ops = {op: {name: getattr(one, name) for name in one.__struct_fields__} for op, one in state.ops.items()}
    derived = {"status": state.status, "wake_at": state.wake_at, "due": state.due(1e12)}
    return plain | derived | {"ops": ops}


# --- any table, any run ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Story:
    """A table, and what happens to a run of it."""

    table: Table
    choices: tuple[int, ...]
    deadline: float | None = None
    keys: Mapping[str, int] = field(default_factory=dict)

    def run(self) -> Machine:
        machine = Machine(self.table, self.deadline)
        machine.begin()
        for choice in self.choices:
            machine.choose(choice)
        return machine


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Tables of up to six rows, each after some of those before it."""
    rows: list[Row] = []
    for i in range(draw(st.integers(1, 6))):
        before = [row.op for row in rows]
        after = tuple(draw(st.lists(st.sampled_from(before), unique=True, max_size=2))) if before else ()
        others = [op for op in before if op not in after]
        gives_up = tuple(draw(st.lists(st.sampled_from(others), unique=True, max_size=1))) if others else ()
        if draw(st.integers(0, 3)) == 0:
            rows.append(
                timer_row(f"sleep:{i}", draw(st.sampled_from([0.0, 1.0, 5.0, 5.0, 60.0])), *after, gives_up=gives_up)
            )
        else:
            retry = Retry(attempts=draw(st.integers(1, 3)))
            once = draw(st.integers(0, 4)) == 0
            policy: dict[str, Any] = {"on_failure": draw(st.sampled_from(["halt", "skip"]))}
            policy |= {"retry": retry, "at_most_once": once, "fallback": draw(st.sampled_from([None, None, total]))}
            rows.append(step_row(f"work:{i}", *after, gives_up=gives_up, **policy))
    until = draw(st.none() | st.sampled_from([row.op for row in rows]))
    return Table(tuple(rows), until)


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """Any run of any table."""
    choices = tuple(draw(st.lists(st.integers(0, 1000), max_size=25)))
    return Story(draw(tables()), choices, draw(st.none() | st.sampled_from([1000.0, 1003.0, 1100.0])))
