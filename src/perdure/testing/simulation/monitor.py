"""Watch the store and the steps of a simulation, and report broken promises. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.errors import DeadlineExceeded
from perdure.kernel.events import (
    AnyEvent,
    AttemptFailed,
    Batch,
    CancelRequested,
    ChunkAppended,
    InputReplaced,
    OutcomeKept,
    RunClaimed,
    RunFinished,
    RunForked,
    RunParked,
    RunPaused,
    RunResumed,
    RunStarted,
    SignalReceived,
    StepFailed,
    StepProgressed,
    StepSkipped,
    StepStarted,
    StepSucceeded,
    WaitResolved,
    encode_events,
)
from perdure.kernel.ids import STORED
from perdure.kernel.projection import RunRow, child_row, child_rows, row
from perdure.kernel.state import RunState
from perdure.kernel.values.failures import type_name
from perdure.ports.journal import Append, Appended, Outcome
from perdure.testing.simulation.report import StepExecution
from perdure.testing.simulation.world import Machine, World

# Clients may append these; only the owner may append other events.
FREE = (
    RunStarted
    | InputReplaced
    | RunClaimed
    | SignalReceived
    | CancelRequested
    | RunPaused
    | RunParked
    | RunResumed
    | RunForked
    | OutcomeKept
)


class Watched:
    """One journal as it grows."""

    def __init__(self, run_id: str) -> None:
        self.state = RunState(run_id)
        self.owner: Machine | None = None
        self.outcomes: set[str] = set()
        self.batches: list[Batch] = []


class Monitor:
    """Checks every append and every execution at the moment it happens."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.runs: dict[str, Watched] = {}
        self.trace: list[str] = []
        self.executions: list[StepExecution] = []
        # Results that steps have returned, and when, by machine, run and op.
        self.returned: dict[tuple[Machine, str, str], float] = {}
        self.violations: list[str] = []
        # The running runs of each queue, and their maximum.
        self._under_way: dict[str, set[str]] = {}
        self.most_under_way: dict[str, int] = {}

    def note(self, machine: str, what: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self._world.time:.6f} {machine} {what}")

    def accuse(self, what: str) -> None:
        """Report a broken promise, and stop."""
        self.note("monitor", what)
        self.violations.append(what)
        self._world.stop()

    # --- appends --------------------------------------------------------------------------------------------------

    def answered(
        self, machine: Machine, appends: Sequence[Append], outcomes: Sequence[Outcome], rows: dict[str, RunRow]
    ) -> None:
        """Record an append that the store has written."""
        for append, outcome in zip(appends, outcomes, strict=True):
            place = f"{append.run_id}[{append.expected_next}]"
            if not isinstance(outcome, Appended):
                self.note(machine.name, f"append {place} conflict: {outcome}")
                continue
            events = " ".join(f"@{batch.at!r} {encode_events(batch.events).decode()}" for batch in append.batches)
            self.note(machine.name, f"append {place} {events}")
            self._appended(machine, append, rows)
            for start in append.starts:
                # An existing journal was started before.
                if start.run_id not in self.runs and start.run_id in rows:
                    self._appended(machine, start, rows)

    def _appended(self, machine: Machine, append: Append, rows: dict[str, RunRow]) -> None:
        watched = self.runs.setdefault(append.run_id, Watched(append.run_id))
        state = watched.state
        if append.expected_next != state.next_seq:
            self.accuse(f"an append to {append.run_id} was accepted at {append.expected_next}, not {state.next_seq}")
            return
        for batch in append.batches:
            if batch.seq != state.next_seq or not batch.events:
                self.accuse(f"the journal of {append.run_id} has a gap: {batch.seq} follows {state.next_seq - 1}")
            if batch.at < state.at:
                self.accuse(f"time runs backwards in the journal of {append.run_id} at {batch.seq}")
            for event in batch.events:
                self._check(machine, watched, event)
                try:
                    state.fold(event, batch.at)
                except Exception as error:
                    self.accuse(f"{type(event).__name__} cannot be folded into {append.run_id}: {error!r}")
                    return
            watched.batches.append(batch)
        self._count(state)
        children = child_rows(state)
        state.changed.clear()
        # Unchanged children keep their rows.
        unchanged = [child_row(state, child) for child in state.children.values() if child.listed]
        for implied in (row(state), *children, *unchanged):
            stored = rows.get(implied.run_id)
            if msgspec.json.encode(stored) != msgspec.json.encode(implied):
                self.accuse(f"the row of {implied.run_id} is not what its journal implies:\n  {stored}\n  {implied}")

    def _count(self, state: RunState) -> None:
        queue = state.started.queue if state.started is not None else ""
        if queue:
            under_way = self._under_way.setdefault(queue, set())
            (under_way.add if state.epoch > 0 and state.finished is None else under_way.discard)(state.run_id)
            self.most_under_way[queue] = max(len(under_way), self.most_under_way.get(queue, 0))

    def _check(self, machine: Machine, watched: Watched, event: AnyEvent) -> None:
        state = watched.state
        where = f"{state.run_id}[{state.next_seq}] {type(event).__name__}"
        if isinstance(event, RunStarted) != (state.next_seq == 0):
            self.accuse(f"{where}: a journal begins with RunStarted, once")
        if state.finished is not None:
            self.accuse(f"{where}: an event follows the end of the run")
        if isinstance(event, RunClaimed):
            if event.epoch != state.epoch + 1:
                self.accuse(f"{where}: epoch {event.epoch} follows {state.epoch}")
            watched.owner = machine
        elif isinstance(event, RunFinished) and state.cancel_requested is not None:
            pass  # the caller that cancels a run may end it
        elif isinstance(event, RunFinished) and (state.epoch == 0 or state.parked is not None) and _is_late(event):
            pass  # no orchestrator advances it, and its deadline has passed
        elif isinstance(event, RunFinished) and state.epoch == 0 and _is_definition(state):
            pass  # it holds a definition, and ends when it begins
        elif isinstance(event, WaitResolved) and (event.is_answer or event.is_rejection):
            pass  # by a person
        elif isinstance(event, StepSucceeded | StepFailed | StepSkipped) and _is_remote(state, event.op):
            pass  # reported by the engine that executed it
        elif not isinstance(event, FREE) and watched.owner is not machine:
            owner = watched.owner.name if watched.owner else "no machine"
            self.accuse(f"{where}: written by {machine.name}, which is not the owner ({owner} is)")
        if isinstance(event, StepStarted):
            if event.op in watched.outcomes:
                self.accuse(f"{where}: {event.op} has an outcome and is started again")
            last = state.ops[event.op].attempt if event.op in state.ops else 0
            if event.attempt != last + 1:
                self.accuse(f"{where}: attempt {event.attempt} of {event.op} follows {last}")
        elif isinstance(event, ChunkAppended | StepProgressed):
            open_op = state.ops.get(event.op)
            if open_op is None or open_op.attempt != event.attempt or not open_op.running:
                self.accuse(f"{where}: attempt {event.attempt} of {event.op} shows something and is not under way")
            elif isinstance(event, ChunkAppended):
                count = open_op.emitted.count if open_op.emitted is not None else 0
                if event.start != count:
                    self.accuse(f"{where}: chunk {event.start} of {event.op} follows {count - 1}")
        elif isinstance(event, StepSucceeded | StepFailed | StepSkipped | AttemptFailed):
            open_op = state.ops.get(event.op)
            if event.op in watched.outcomes:
                self.accuse(f"{where}: {event.op} has an outcome already")
            elif open_op is None or open_op.attempt != event.attempt:
                self.accuse(f"{where}: attempt {event.attempt} of {event.op} was never started")
            if not isinstance(event, AttemptFailed):
                watched.outcomes.add(event.op)

    # --- executions -----------------------------------------------------------------------------------------------

    def executing(self, machine: Machine, run_id: str, op: str, attempt: int, path: str) -> None:
        """A step's code begins to run; `path` is its op path in the run at the top."""
        watched = self.runs.get(run_id)
        seq = watched.state.next_seq if watched is not None else 0
        owned = watched is not None and watched.owner is machine
        self.executions.append(StepExecution(self._world.time, machine.name, run_id, path, attempt, seq, owned))
        self.note(machine.name, f"execute {run_id}/{op} #{attempt}")

    def executed(self, machine: Machine, run_id: str, op: str, attempt: int, error: BaseException | None) -> None:
        """A step's code has come to its end."""
        if machine.dead:  # long dead: its coroutines are being closed
            return
        how = "returned" if error is None else f"raised {type(error).__name__}"
        self.note(machine.name, f"{how} {run_id}/{op} #{attempt}")
        if error is None:
            self.returned[machine, run_id, op] = self._world.time

    def unsaved(self, machine: Machine) -> dict[tuple[str, str], float]:
        """Results that a machine has not stored yet: when each was returned, by run and op."""
        unsaved = {}
        for (owner, run_id, op), at in self.returned.items():
            watched = self.runs.get(run_id)
            if owner is machine and watched is not None and watched.owner is machine and op not in watched.outcomes:
                unsaved[run_id, op] = at
        return unsaved

    def launching(self, machine: Machine, run_id: str, op: str, attempt: int) -> None:
        """A machine decides to call a step. Its code may run later, when another owner has advanced the run."""
        watched = self.runs.get(run_id)
        if watched is None:
            self.accuse(f"{op} is called for a run that is not in the store")
            return
        # A zombie cannot know that it lost the run; it must only not write.
        if watched.owner is not machine:
            return
        if op in watched.outcomes:
            self.accuse(f"{run_id}/{op} is called by its owner although its outcome is recorded")
        started = watched.state.started
        if started is not None and started.durability in ("sync", "relaxed"):
            open_op = watched.state.ops.get(op)
            if open_op is None or open_op.attempt != attempt or not open_op.running:
                self.accuse(f"attempt {attempt} of {run_id}/{op} is called before its start is in the store")


def _is_late(event: RunFinished) -> bool:
    return event.error is not None and event.error.type == type_name(DeadlineExceeded)


def _is_definition(state: RunState) -> bool:
    return state.started is not None and state.started.program == STORED


def _is_remote(state: RunState, op: str) -> bool:
    return op in state.ops and state.ops[op].kind == "remote"
