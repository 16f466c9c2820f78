"""The runs that execute remote steps, and chunks of maps: they make the attempts, and report the outcome.

The report is the run's last step. It is made again after a crash until the parent's journal has an outcome, and counts
once there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from perdure.engine.items import ItemBlobs
from perdure.errors import NotDecodable, StepBailed, StoreUnavailable
from perdure.kernel.chunks import KEEP, MAP, ChunkOutcome, ChunkResults
from perdure.kernel.commands import UNDECODED, CancelOp, Command, Finish, RunStep, StepSpec
from perdure.kernel.events import (
    NULL,
    AnyEvent,
    CancelRequested,
    RemoteCall,
    RunClaimed,
    RunStarted,
    RunStatus,
    StepFailed,
    StepSkipped,
    StepSucceeded,
)
from perdure.kernel.ids import REMOTE, inputs_hash
from perdure.kernel.patches import NO_HISTORY, PatchHistory
from perdure.kernel.policies.retry import Retry
from perdure.kernel.policies.versions import Programs
from perdure.kernel.program import Dataflow, Execution, Program
from perdure.kernel.values.arguments import call_names, rebound, recorded_call
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.failures import describe

Outcome = StepSucceeded | StepFailed | StepSkipped
Report = Callable[[str, Outcome], Awaitable[str]]
# Gives the run of a chunk the outcomes of the run that it continues, and returns how many.
Keep = Callable[[str, RunStarted, Dataflow | None], Awaitable[int]]

# Retry while the store is unavailable: the outcome must not be lost.
_UNTIL_REPORTED = Retry(attempts=1_000_000, initial=0.5, factor=2.0, max=30.0, jitter=True, on=(StoreUnavailable,))
_REPORT = "<report>:0"
# Describes perdure's own errors.
_PLAIN = Codec()


def _own_step(op: str, fn: Callable[[], Awaitable[Any]], of: bytes) -> RunStep:
    """A step of the engine's own, tried until the store is available. `of` tells calls apart."""
    spec = StepSpec(fn.__name__, fn, retry=_UNTIL_REPORTED, asynchronous=True)
    return RunStep(op, spec, b"[]", inputs_hash(of))


class RemoteStep(Program):
    """The program of one remote step."""

    def __init__(self, spec: StepSpec, report: Report) -> None:
        self.name = REMOTE + spec.name
        # It is executed here, not queued again.
        self._spec = dataclasses.replace(spec, queue="")
        self._report = report

    def open(self, run_id: str, started: RunStarted, codec: Codec, past: PatchHistory = NO_HISTORY) -> RemoteStepRun:
        """A new execution."""
        assert started.remote is not None
        return RemoteStepRun(self._spec, started, started.remote, self._report)


class RemoteStepRun(Execution):
    """One call of a remote step: execute, report, end."""

    def __init__(self, spec: StepSpec, started: RunStarted, call: RemoteCall, report: Report) -> None:
        self._spec, self._parent, self._call, self._report = spec, started.parent, call, report
        self._inputs = bytes(started.input)
        self._op = f"{spec.name}:0"
        self._outcome: Outcome | None = None
        self._cancelled = False

    def advance(self, event: AnyEvent, at: float, decoded: Any = UNDECODED) -> Sequence[Command]:
        """Apply one event, and return the next commands."""
        if isinstance(event, RunClaimed):
            return [self._step()]
        if isinstance(event, CancelRequested):
            # The client that cancels it has recorded that in the parent's journal as well.
            self._cancelled = True
            under_way = _REPORT if self._outcome is not None else self._op
            return [CancelOp(under_way), Finish(RunStatus.CANCELLED, reason=event.reason)]
        if self._cancelled or not isinstance(event, StepSucceeded | StepFailed | StepSkipped):
            return []
        if self._outcome is None:
            self._outcome = self._translated(event)
            return [self._reporting(self._outcome)]
        if isinstance(event, StepFailed):  # it could not be reported: this run has the outcome
            return [Finish(RunStatus.FAILED, error=event.error)]
        if isinstance(self._outcome, StepSucceeded):
            return [Finish(RunStatus.COMPLETED, bytes(event.value) if isinstance(event, StepSucceeded) else b"null")]
        return [Finish(RunStatus.FAILED, error=self._outcome.error)]

    def _step(self) -> RunStep:
        """The call, with the arguments of the caller bound by name to the parameters that the step has here."""
        call, spec = self._call, self._spec
        if call.secrets:
            spec = dataclasses.replace(spec, secrets=call.secrets)
        inputs, positional, keywords = self._inputs, call.positional, call.keywords
        if len(call.names) == positional:  # else its caller was older, and recorded positions only
            try:
                inputs, positional, keywords = rebound(spec, call.names, keywords, inputs)
            except TypeError as error:
                raise NotDecodable(f"the input of the step {spec.name}", "its arguments", str(error)) from None
        record = recorded_call(call_names(spec.types, positional, keywords), inputs)
        return RunStep(self._op, spec, inputs, record, positional, keywords)

    def _translated(self, event: Outcome) -> Outcome:
        """The outcome for the parent: under the parent's op, as its only attempt."""
        op = self._call.op
        if isinstance(event, StepSucceeded):
            return StepSucceeded(op, event.value, fallback=event.fallback)
        if isinstance(event, StepFailed) and event.bailed:
            return StepFailed(op, 1, event.error, bailed=True, output=event.output)
        if isinstance(event, StepSkipped) or (self._call.skip and not event.unknown):
            return StepSkipped(op, 1, event.error)
        return StepFailed(op, 1, event.error, unknown=event.unknown)

    def _reporting(self, outcome: Outcome) -> RunStep:
        async def report() -> str:
            return await self._report(self._parent, outcome)

        return _own_step(_REPORT, report, msgspec.json.encode(outcome))

    def close(self) -> None:
        """Nothing is held."""


# --- chunks of maps -------------------------------------------------------------------------------------------------


class Chunks(Program):
    """The program of the runs of chunks: of all maps in the runs of one program."""

    # Their executions are those of graphs.
    decides = True

    def __init__(self, program: str, programs: Programs, report: Report, keep: Keep, items: ItemBlobs) -> None:
        self.name = MAP + program
        self._programs, self.report, self.keep, self.items = programs, report, keep, items

    def graph(self, started: RunStarted) -> Program:
        """The graph that has the map. Raises UnknownProgram or UnknownVersion."""
        assert started.remote is not None
        call = started.remote.map
        assert call is not None
        found, before = self._programs.find(call.program, call.version), ""
        for path, program, version in call.within:
            found = found.inside(path.removeprefix(before)) or self._programs.find(program, version)
            before = f"{path}/"
        return found

    def open(self, run_id: str, started: RunStarted, codec: Codec, past: PatchHistory = NO_HISTORY) -> ChunkRun:
        """A new execution."""
        return ChunkRun(self, run_id, self.graph(started).open_chunk(run_id, started, codec, past), started)


class ChunkRun(Execution):
    """One chunk: keep the outcomes of an earlier run, run the items, report the results, end."""

    by_data = True

    def __init__(self, program: Chunks, run_id: str, items: Execution, started: RunStarted) -> None:
        self._program, self._run_id, self._items = program, run_id, items
        self._started = msgspec.structs.replace(started, input=NULL)
        assert started.remote is not None
        self._op, self._map = started.remote.op, started.remote.map
        # Whether its items run: it has what it keeps, and has not ended.
        self._running = False
        # The beginning of its run, until it has what it keeps; and how it ended, while that is reported.
        self._began: AnyEvent | None = None
        self._end: Finish | None = None

    def advance(self, event: AnyEvent, at: float, decoded: Any = UNDECODED) -> Sequence[Command]:
        """Apply one event, and return the next commands."""
        if not self._running:
            return self._before(event, at) if self._end is None else self._after(event, self._end)
        commands = self._items.advance(event, at, decoded)
        end = commands[-1] if commands else None
        if type(end) is not Finish or end.status is RunStatus.CANCELLED:
            return commands
        self._running, self._end = False, end
        return [*commands[:-1], self._reporting(end)]

    def _before(self, event: AnyEvent, at: float) -> Sequence[Command]:
        if isinstance(event, RunClaimed) and self._map is not None and self._map.past:
            self._began = event
            return [self._keeping()]
        if self._began is not None and isinstance(event, CancelRequested):
            return [CancelOp(KEEP), Finish(RunStatus.CANCELLED, reason=event.reason)]
        if self._began is not None and isinstance(event, StepFailed):
            self._end = Finish(RunStatus.FAILED, error=event.error)
            return [self._reporting(self._end)]
        self._running = True
        return self.advance(self._began or event, at)

    def _after(self, event: AnyEvent, end: Finish) -> Sequence[Command]:
        if isinstance(event, CancelRequested):
            return [CancelOp(_REPORT), Finish(RunStatus.CANCELLED, reason=event.reason)]
        if isinstance(event, StepFailed) and event.op == _REPORT:
            return [Finish(RunStatus.FAILED, error=event.error)]
        if isinstance(event, StepSucceeded) and event.op == _REPORT:
            return [Finish(RunStatus.COMPLETED, bytes(event.value)) if end.status is RunStatus.COMPLETED else end]
        return []

    def _keeping(self) -> RunStep:
        async def keep() -> int:
            return await self._program.keep(self._run_id, self._started, self._program.graph(self._started).dataflow)

        return _own_step(KEEP, keep, b"")

    def _reporting(self, end: Finish) -> RunStep:
        async def report() -> str:
            return await self._program.report(self._started.parent, await self._outcome(end))

        return _own_step(_REPORT, report, end.value)

    async def _outcome(self, end: Finish) -> Outcome:
        if end.status is RunStatus.BAILED:
            error = describe(StepBailed(end.reason, None), _PLAIN)
            return StepFailed(self._op, 1, error, bailed=True, output=Raw(end.value))
        if end.error is not None:
            return StepFailed(self._op, 1, end.error)
        found = msgspec.json.decode(end.value, type=ChunkResults)
        parts = await self._program.items.parts(found.results)
        columns = {path: await self._program.items.parts(of) for path, of in found.columns.items()}
        ended = found.failed, found.error, found.stopped, found.without
        outcome = ChunkOutcome(parts, columns, self._run_id, *ended)
        return StepSucceeded(self._op, Raw(msgspec.json.encode(outcome)))

    def retires(self, op: str) -> bool:
        """Whether a recorded op is that of a node that the graph has retired."""
        return self._items.retires(op)

    def close(self) -> None:
        """Close the items."""
        self._items.close()
