"""The attempts of one run's steps: planned, running, and their outcomes.

The driver begins attempts, and each attempt calls its driver when it ends; this module does not know the driver. When a
journal has to be read again, the next driver continues the same attempts. Never decides what follows from an outcome,
and never records it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from contextvars import Context
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from perdure.engine.executor_call import RemoteError
from perdure.engine.step_context import AttemptOwner, StepContext
from perdure.engine.steps import Attempt
from perdure.engine.streams import Channel
from perdure.errors import (
    OutcomeUnknown,
    PayloadTooLarge,
    PerdureError,
    ProcessDied,
    StepBailed,
    StepError,
    UsageError,
    ValueProblem,
)
from perdure.kernel.commands import UNDECODED, RunStep
from perdure.kernel.events import (
    NULL,
    AnyEvent,
    AttemptFailed,
    RunStarted,
    StepFailed,
    StepSkipped,
    StepStarted,
    StepSucceeded,
)
from perdure.kernel.ids import MAX_REASON, check_text, step_key
from perdure.kernel.plan import Call, Plan, failed
from perdure.kernel.state import RunState
from perdure.kernel.values.failures import describe, is_any_of, rebuild, type_name
from perdure.kernel.values.raised import contained
from perdure.kernel.values.redact import taken_of_call
from perdure.logs import log

if TYPE_CHECKING:
    from perdure.engine.runtime import Services


_BAILED = type_name(StepBailed)
ENDING = (SystemExit, KeyboardInterrupt, GeneratorExit)

# An op and the number of an attempt of it.
Key = tuple[str, int]
Outcome = StepSucceeded | AttemptFailed | StepFailed | StepSkipped


class Handoff(msgspec.Struct):
    """An attempt that one driver hands to the next: it is running, it has ended, its result is being offloaded or was,
    or its outcome may not be in the store."""

    # The hash of its inputs: with other inputs it is another call. Empty: not compared.
    inputs: str
    attempt: Attempt | None = None
    # How the attempt ended, if it did before replay reached it.
    ended: tuple[Any, BaseException | None] | None = None
    # The result that was to be offloaded, and its blob, or the error.
    stored: tuple[bytes, str | BaseException] | None = None
    outcome: Outcome | None = None
    # The value of the outcome, if that is offloaded.
    large: Raw | None = None

    @property
    def over(self) -> bool:
        """Whether nothing is left to do but to record it."""
        return self.ended is not None or self.stored is not None or self.outcome is not None

    def cancel(self) -> None:
        """Stop the attempt, if it runs."""
        if self.attempt is not None:
            self.attempt.cancel()


class Attempts:
    """The running attempts of one run."""

    __slots__ = (
        "_given_up",
        "_handoffs",
        "_keys",
        "_ready",
        "_services",
        "_state",
        "_variables",
        "calls",
        "cancels",
        "channels",
        "large",
        "running",
        "storing",
    )

    def __init__(self, services: Services, state: RunState, variables: Context) -> None:
        self._services, self._state, self._variables = services, state, variables
        self._keys = state.keys
        # Calls to make after the next commit, and running attempts.
        self.calls: list[Call] = []
        self.cancels: list[str] = []
        # The attempt of the next call, prepared while its commit is pending.
        self._ready: Attempt | None = None
        self.running: dict[str, Attempt] = {}
        # What attempts emit before they end.
        self.channels: dict[Key, Channel] = {}
        # Offloaded values, by op, until their events are known to be in the store.
        self.large: dict[str, Raw] = {}
        # Attempts whose result is being offloaded, with the fingerprints of their inputs.
        self.storing: dict[Key, str] = {}
        # The handoffs of the previous driver, until they are launched here or recorded; and attempts that the program
        # has cancelled, until that is durable.
        self._handoffs: dict[Key, Handoff] = {}
        self._given_up: dict[Key, Handoff] = {}

    @property
    def busy(self) -> bool:
        """Whether any attempt is running or planned."""
        return bool(self.running or self.calls or self.storing)

    def tasks(self) -> list[asyncio.Future[Any]]:
        """The futures of the running attempts."""
        return [attempt.task for attempt in self.running.values() if attempt.task is not None]

    # --- planned, and begun after the commit ----------------------------------------------------------------------

    def plan(self, planned: Plan) -> None:
        """Remember what to start and stop once its events are durable."""
        self.calls += planned.calls
        self._services.runner.reserved += len(planned.calls)
        self.cancels += planned.cancels

    def plan_call(self, call: Call) -> None:
        """As `plan`, for one call."""
        self.calls.append(call)
        self._services.runner.reserved += 1

    def forget_calls(self) -> None:
        """Drop planned calls."""
        self._services.runner.reserved -= len(self.calls)
        self.calls.clear()
        self._ready = None

    def stop_given_up(self, unsaved: Collection[str] = ()) -> None:
        """Stop attempts whose cancellation is durable; `unsaved` are the ops whose cancellation is not."""
        # Not earlier: until then a crash or a conflict would bring them back.
        for op in self.cancels:
            attempt = self.running.pop(op, None) if op not in unsaved else None
            if attempt is not None:
                attempt.cancel()
        self.cancels = [op for op in self.cancels if op in unsaved]
        self._given_up = {key: handoff for key, handoff in self._given_up.items() if key[0] in unsaved}

    def make_ready(self, owner: AttemptOwner) -> None:
        """Prepare the next attempt while its commit is pending."""
        if len(self.calls) == 1 and not self._handoffs and not self.channels:
            self._ready = self._make(self.calls[0], owner)
            self._services.runner.make_ready(self._ready)

    def launch_planned(self, owner: AttemptOwner) -> None:
        """Launch the calls whose StepStarted is durable."""
        calls, self.calls = self.calls, []
        self._services.runner.reserved -= len(calls)
        for call in calls:
            if owner.expects(call):
                self._launch(call, owner)

    def _launch(self, call: Call, owner: AttemptOwner) -> None:
        op = call.command.op
        if self._handoffs:
            handoff = self._handoffs.get((op, call.attempt))
            if handoff is not None and handoff.inputs in ("", call.command.inputs_hash):
                self._go_on(call, handoff, owner)
                return
            if handoff is not None:
                del self._handoffs[op, call.attempt]
                handoff.cancel()
        if self.channels:
            self.channels.pop((op, call.attempt), None)  # of an attempt that had other inputs
        ready, self._ready = self._ready, None
        attempt = ready if ready is not None and ready.call is call else self._make(call, owner)
        self.running[op] = attempt
        self._services.runner.start(attempt)

    def _make(self, call: Call, owner: AttemptOwner) -> Attempt:
        """An attempt that has not begun."""
        state, runner, op = self._state, self._services.runner, call.command.op
        assert state.started is not None
        deadline = state.deadline_of(op) if state.children else state.started.deadline
        context = StepContext(step_key(self._keys, op), state.run_id, call.attempt, deadline, owner, call)
        context.locker = runner.locker
        open_op = state.ops.get(op)
        if open_op is not None and open_op.emitted is not None:
            context.emitted = open_op.emitted.copy()
        return Attempt(runner, call, context, self._variables, owner)

    # --- handed over when the journal has to be read again --------------------------------------------------------

    def take_over(
        self, old: Attempts, unsaved: Iterable[AnyEvent], open_steps: Mapping[str, RunStep], owner: AttemptOwner
    ) -> None:
        """Continue the attempts of the previous driver, and its outcomes that were not in the store."""
        self._handoffs = old._hand_over(unsaved)
        for handoff in self._handoffs.values():
            if handoff.attempt is not None:
                handoff.attempt.hand_over(owner)
        self.channels = old.channels
        for channel in self.channels.values():
            channel.hand_over(owner)
        for op, command in open_steps.items():
            open_op = self._state.ops[op]
            if open_op.running:
                self.calls.append(Call(command, open_op.attempt, open_op.failed))
                self._services.runner.reserved += 1

    def _hand_over(self, unsaved: Iterable[AnyEvent]) -> dict[Key, Handoff]:
        """Every attempt that is running, or whose outcome may not be in the store."""
        handoffs = {**self._handoffs, **self._given_up}
        for key, of_inputs in self.storing.items():
            handoffs[key] = Handoff(of_inputs)
        for op, attempt in self.running.items():
            handoffs[op, attempt.call.attempt] = Handoff(attempt.call.command.inputs_hash, attempt=attempt)
        inputs: dict[str, str] = {}
        for event in unsaved:
            if isinstance(event, StepStarted) and event.attempt == 1:
                inputs[event.op] = event.inputs
            elif isinstance(event, StepSucceeded | AttemptFailed | StepSkipped) or (
                # The program decides again whether to cancel it.
                isinstance(event, StepFailed) and not event.cancelled
            ):
                value = self.large.get(event.op) if isinstance(event, StepSucceeded) and event.blob else None
                handoffs[event.op, event.attempt] = Handoff(inputs.get(event.op, ""), outcome=event, large=value)
        return handoffs

    def _go_on(self, call: Call, handoff: Handoff, owner: AttemptOwner) -> None:
        """Reuse an attempt of the previous driver in place of a new one."""
        key = call.command.op, call.attempt
        if key in self.channels:
            self.channels[key].record_again()
        if handoff.over:
            # It stays here until it is recorded: the journal may have to be read again before that.
            self._services.loop.call_soon(owner.record_handoff, call)
            return
        del self._handoffs[key]
        if handoff.attempt is not None:
            self.running[call.command.op] = handoff.attempt
        else:
            self.storing[key] = call.command.inputs_hash

    def take_handoff(self, call: Call) -> Handoff | None:
        """The handoff of a call, to be recorded."""
        return self._handoffs.pop((call.command.op, call.attempt), None)

    def remove(self, attempt: Attempt, value: Any, error: BaseException | None) -> bool:
        """An attempt has ended. False: replay has not reached its op, and it is kept until then."""
        op = attempt.call.command.op
        if self.running.get(op) is attempt:
            del self.running[op]
        if self._handoffs:
            handoff = self._handoffs.get((op, attempt.call.attempt))
            if handoff is not None and handoff.attempt is attempt:
                handoff.ended = (value, error)
                return False
        return True

    def stored(self, call: Call, data: bytes, blob: str | BaseException) -> bool:
        """A result has been offloaded, or could not be. False: as in `remove`."""
        self.storing.pop((call.command.op, call.attempt), None)
        handoff = self._handoffs.get((call.command.op, call.attempt))
        if handoff is not None and not handoff.over and handoff.attempt is None:
            handoff.stored = data, blob
            return False
        return True

    def keep_given_up(self, call: Call, handoff: Handoff) -> None:
        """Keep the outcome of a cancelled attempt until the cancellation is durable: if it never is, it counts."""
        if call.command.op in self.cancels:
            handoff.inputs = call.command.inputs_hash
            self._given_up[call.command.op, call.attempt] = handoff

    # --- outcomes -------------------------------------------------------------------------------------------------

    def result(self, call: Call, value: Any) -> tuple[bytes, Any]:
        """Encode the result of a step, and decode it for the program. Raises if it cannot be stored."""
        codec, returns, what = self._services.codec, call.command.spec.returns, f"the result of {call.command.op}"
        data = codec.encode(value, what)
        if call.command.spec.secrets:
            data = self._services.runner.secrets.mask(data)
        if returns is Any:
            return data, UNDECODED
        decoded = codec.decode(data, returns, what)
        try:
            # A dict that the step got from elsewhere may have fields that the type does not read.
            check = returns in codec.fields and not (type(value) is returns and returns in codec.flat)
        except TypeError:  # an annotation that cannot be hashed
            check = True
        return codec.exact(data, decoded, returns, what) if check else data, decoded

    def failure(self, call: Call, error: BaseException, now: float) -> AttemptFailed | StepFailed | StepSkipped:
        """The event for an attempt that raised."""
        spec, codec, op = call.command.spec, self._services.codec, call.command.op
        try:
            bailed = self._bailed(call, error)
        except PerdureError as not_kept:
            bailed, error = None, not_kept
        except BaseException as broken:
            broken = contained(broken)
            # A StepBailed raised by user code may lack attributes: then the step fails with that error.
            bailed = None
            error = UsageError(
                f"{op} raised a StepBailed without a reason or an output ({broken!r:.200}); write bail(reason, output)"
            )
        mask = self._services.runner.secrets if spec.secrets else None
        if bailed is not None and mask is not None:
            output = Raw(mask.mask(bytes(bailed.output)))
            return msgspec.structs.replace(bailed, error=mask.mask_failure(bailed.error), output=output)
        if bailed is not None:
            return bailed
        if type(error) is RemoteError:
            failure = error.failure
            error = rebuild(failure, codec, spec.errors)
        else:
            failure = describe(error, codec)
        if mask is not None:
            failure = mask.mask_failure(failure)
        # SystemExit and the like are treated as any other error.
        judged = StepError("", "") if is_any_of(error, ENDING) else error
        # A value that cannot be stored is not retried.
        retryable = is_any_of(judged, spec.retry.on) and not is_any_of(error, (ValueProblem,))
        if type(error) is ProcessDied and spec.at_most_once:
            unknown = describe(OutcomeUnknown(op, step_key(self._keys, op)), codec)
            return StepFailed(op, call.attempt, unknown, unknown=True)
        event = failed(self._state, call, failure, retryable, now)
        if log.isEnabledFor(logging.INFO):
            assert self._state.started is not None
            redaction = self._services.redaction
            said = redaction.text(str(failure), taken_of_call(call.command, self._state.started, redaction))
            log.info("%s", _log_line(self._state.started, event, said, spec.retry.attempts, now))
        return event

    def _bailed(self, call: Call, error: BaseException) -> StepFailed | None:
        """The outcome of a step that called bail(). Raises if its output cannot be stored."""
        op = call.command.op
        if type(error) is RemoteError and error.failure.type == _BAILED:
            failure = error.failure
            output = msgspec.json.decode(failure.args, type=tuple[str, Raw])[1] if failure.args else NULL
        elif type(error) is StepBailed:
            check_text(error.reason, f"the reason of the StepBailed that {op} raised", MAX_REASON)
            failure = describe(error, self._services.codec)
            output = Raw(self._services.codec.encode(error.output, f"the output of bail() in {op}"))
        else:
            return None
        if not self._services.payloads.fits_inline(len(output), f"the output of bail() in {op}"):
            limits = self._services.payloads.limits
            raise PayloadTooLarge(f"the output of bail() in {op}", len(output), limits.blob)
        return StepFailed(op, call.attempt, failure, bailed=True, output=output)

    # --- chunks and progress --------------------------------------------------------------------------------------

    def settle_channel(self, call: Call, succeeded: bool) -> None:
        """An attempt has ended: record what it emitted last, before its outcome."""
        channel = self.channels.get((call.command.op, call.attempt))
        if channel is not None:
            channel.finish(succeeded)

    def record_channels(self) -> None:
        """Record chunks that were held back while the run was catching up."""
        for channel in list(self.channels.values()):
            channel.record_due()

    def flush_channels(self) -> None:
        """The run is released: record what attempts have emitted so far."""
        for channel in list(self.channels.values()):
            channel.flush()

    def channels_committed(self, next_seq: int) -> None:
        """The journal is durable up to this number."""
        for key, channel in list(self.channels.items()):
            channel.committed(next_seq)
            if channel.empty:
                self.channels.pop(key, None)

    # --- leaving --------------------------------------------------------------------------------------------------

    def cancel_running(self) -> None:
        """Stop running attempts."""
        for attempt in self.running.values():
            attempt.cancel()
        self.running.clear()

    def cancel_all(self) -> None:
        """As `cancel_running`, including handoffs that were not launched again."""
        self.cancel_running()
        for handoff in self._handoffs.values():
            handoff.cancel()
        self.channels = {}


def _log_line(
    started: RunStarted, event: AttemptFailed | StepFailed | StepSkipped, said: str, allowed: int, now: float
) -> str:
    """A failed attempt in one line, for an operator: of which run, how it failed, and what follows."""
    run, op, remote = started.id, event.op, started.remote
    if remote is not None and remote.run is not None and remote.map is None:
        # The run that called the step: that of the step itself is in no list.
        run, op = remote.run.id, f"{remote.op} in queue {started.queue}"
    # More attempts than are allowed: some died with their process.
    number = f"attempt {event.attempt}" + (f" of {allowed}" if 1 < allowed >= event.attempt else "")
    follows = "the step has failed"
    if isinstance(event, AttemptFailed):
        wait = event.retry_at - now
        after = f"{wait:.1f} s" if wait < 120 else f"{wait / 60:.0f} min"
        follows = "its fallback is called" if event.fallback else f"next attempt in {after}"
    elif isinstance(event, StepSkipped):
        follows = "the step is skipped"
    said = said.partition("\n")[0]
    said = said if len(said) <= 200 else f"{said[:199]}…"
    # Escape control characters of the message.
    error = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in said)
    return f"run {run}: step {op}: {number} failed: {error}; {follows}"
