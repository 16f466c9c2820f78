"""The run that executes a remote step: it makes the attempts, and reports the outcome to its parent.

The report is the run's last step. It is made again after a crash until the parent's journal has an outcome, and counts
once there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from perdure.errors import NotDecodable, StoreUnavailable
from perdure.kernel.commands import UNDECODED, CancelOp, Command, Finish, RunStep, StepSpec
from perdure.kernel.events import (
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
from perdure.kernel.program import Program
from perdure.kernel.values.arguments import call_names, rebound, recorded_call
from perdure.kernel.values.codec import Codec

Outcome = StepSucceeded | StepFailed | StepSkipped
Report = Callable[[str, Outcome], Awaitable[str]]

# Retry while the store is unavailable: the outcome must not be lost.
_UNTIL_REPORTED = Retry(attempts=1_000_000, initial=0.5, factor=2.0, max=30.0, jitter=True, on=(StoreUnavailable,))
_REPORT = "<report>:0"


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


class RemoteStepRun:
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
            # The client that cancels it has appended to the parent as well.
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

        spec = StepSpec("report", report, retry=_UNTIL_REPORTED, asynchronous=True)
        return RunStep(_REPORT, spec, b"[]", inputs_hash(msgspec.json.encode(outcome)))

    def close(self) -> None:
        """Nothing is held."""
