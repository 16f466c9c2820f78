"""The attempts of one run's steps: launched once the journal says so, and turned into outcomes when they end.

Knows what is under way or done and not in the journal yet, so that a run whose journal has to be read anew goes on with
the same attempts. Never decides what follows from an outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from perdure.engine.carried import Carried, carry
from perdure.engine.executor_call import Told
from perdure.engine.steps import Attempt
from perdure.engine.streams import Channels
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
from perdure.kernel.events import NULL, AttemptFailed, StepFailed, StepSkipped, StepSucceeded
from perdure.kernel.ids import MAX_REASON, check_text, step_key
from perdure.kernel.plan import Call, Plan, failed
from perdure.kernel.state import RunState
from perdure.kernel.values.failures import Failure, describe, is_any_of, rebuild, type_name
from perdure.kernel.values.raised import contained

if TYPE_CHECKING:
    from perdure.engine.driver import Driver


log = logging.getLogger("perdure")

_BAILED = type_name(StepBailed)
ENDING = (SystemExit, KeyboardInterrupt, GeneratorExit)


class _Gone:
    """In the place of a driver that has left memory: what a step shows now, after its end, it shows to nobody."""

    id, size, closed, held = "", 0, True, False

    state = RunState("")

    def patches_of(self, op: str) -> dict[str, bool]:
        return {}

    @property
    def attempts(self) -> _Gone:
        return self

    def expects(self, call: Call) -> bool:
        return False

    hears = expects

    def broke(self, error: Exception) -> None:
        pass


_GONE: Any = _Gone()


class Attempts:
    """What is under way for one driver."""

    __slots__ = (
        "_carried",
        "_driver",
        "_given_up",
        "_heir",
        "_ready",
        "_services",
        "_state",
        "_storing",
        "calls",
        "cancels",
        "channels",
        "large",
        "running",
    )

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._services = driver.services
        self._state = driver.state
        # What is to be done after the next commit, and what is under way.
        self.calls: list[Call] = []
        self.cancels: list[str] = []
        # The call that begins next, made ready while its commit was on its way.
        self._ready: Attempt | None = None
        self.running: dict[str, Attempt] = {}
        # What they show before they end.
        self.channels = Channels(driver, driver.services)
        # Values that lie apart, by op, until their events are known to be in the store.
        self.large: dict[str, Raw] = {}
        # Attempts whose result is being stored apart, with their inputs; what a driver before this one had under way,
        # until the run has heard of it; who came after it.
        self._storing: dict[tuple[str, int], str] = {}
        self._carried: dict[tuple[str, int], Carried] = {}
        self._given_up: dict[tuple[str, int], Carried] = {}
        self._heir: Attempts | None = None

    @property
    def busy(self) -> bool:
        """Whether anything is under way, or about to be."""
        return bool(self.running or self.calls or self._storing)

    def tasks(self) -> list[asyncio.Future[Any]]:
        """What to wait for until the next attempt ends."""
        return [attempt.task for attempt in self.running.values() if attempt.task is not None]

    @property
    def inherited(self) -> bool:
        """Whether somebody else sees to what is under way here."""
        return self._heir is not None

    # --- planned, and begun after the commit ----------------------------------------------------------------------

    def plan(self, planned: Plan) -> None:
        """Remember what is to begin and to end once its events are durable."""
        self.calls += planned.calls
        self._services.runner.promised += len(planned.calls)
        self.cancels += planned.cancels

    def forget_calls(self) -> None:
        """Begin nothing of what was planned."""
        self._services.runner.promised -= len(self.calls)
        self.calls.clear()
        self._ready = None

    def stop_given_up(self, unsaved: Collection[str] = ()) -> None:
        """The journal says what was given up, except for ops that it does not know of yet: let it go."""
        # Only then: until it does, a crash or a conflict would take it up again.
        for op in self.cancels:
            attempt = self.running.pop(op, None) if op not in unsaved else None
            if attempt is not None:
                attempt.cancel()
        self.cancels = [op for op in self.cancels if op in unsaved]
        self._given_up = {key: carried for key, carried in self._given_up.items() if key[0] in unsaved}

    def make_ready(self) -> None:
        """Use the time of the disk: do now what need not wait for the commit."""
        if len(self.calls) == 1 and not self._carried and not self.channels.open:
            self._ready = self._make(self.calls[0])
            self._services.runner.make_ready(self._ready)

    def launch_planned(self) -> None:
        """The journal says what begins: begin it."""
        calls, self.calls = self.calls, []
        self._services.runner.promised -= len(calls)
        for call in calls:
            if self.expects(call):
                self._launch(call)

    def _launch(self, call: Call) -> None:
        op = call.command.op
        if self._carried:
            carried = self._carried.get((op, call.attempt))
            if carried is not None and carried.inputs in ("", call.command.inputs_hash):
                self._go_on(call, carried)
                return
            if carried is not None:
                del self._carried[op, call.attempt]
                carried.cancel()
        if self.channels.open:
            self.channels.open.pop((op, call.attempt), None)  # of an attempt that had other inputs
        ready, self._ready = self._ready, None
        attempt = ready if ready is not None and ready.call is call else self._make(call)
        self.running[op] = attempt
        self._services.runner.start(attempt)

    def _make(self, call: Call) -> Attempt:
        driver = self._driver
        deadline = driver.deadline_of(call.command.op) if self._state.children else driver.deadline
        attempt = self._services.runner.make(
            call, driver.run_id, self._state.keys, deadline, driver.variables, self.channels, self._ended
        )
        open_op = self._state.ops.get(call.command.op)
        if open_op is not None and open_op.shown is not None:
            attempt.context.shown = open_op.shown.copy()
        return attempt

    # --- handed over when the journal has to be read anew ---------------------------------------------------------

    def take_over(self, old: Attempts) -> None:
        """Go on with the attempts of a driver whose view of the journal was out of date, and with their outcomes."""
        self._carried = old._hand_over(self)
        self.channels = old.channels
        self.channels.hand_over(self._driver)
        for op, command in self._driver.replay.open_steps.items():
            open_op = self._state.ops[op]
            if open_op.running:
                self.calls.append(Call(command, open_op.attempt, open_op.failed))
                self._services.runner.promised += 1

    def _hand_over(self, heir: Attempts) -> dict[tuple[str, int], Carried]:
        """Everything that is under way or done and not known to be in the store, by op and attempt."""
        self._heir = heir
        before = {**self._carried, **self._given_up}
        return carry(before, self._storing, self.running, self._driver.outbox.unsaved(), self.large)

    def _go_on(self, call: Call, carried: Carried) -> None:
        """An attempt that was under way or done before the journal was read anew is not made again."""
        key = call.command.op, call.attempt
        if self.channels.open:
            self.channels.go_on(call)
        if carried.over:
            # It stays carried until the run has heard of it: the journal may have to be read anew before that.
            self._services.loop.call_soon(self._offer, call)
            return
        del self._carried[key]
        if carried.attempt is not None:
            carried.attempt.done = self._ended
            self.running[call.command.op] = carried.attempt
        else:
            self._storing[key] = call.command.inputs_hash

    def _offer(self, call: Call) -> None:
        """Tell the run what an attempt came to that another driver had made."""
        if self._heir is not None:
            return  # it was handed on
        try:
            carried = self._carried.pop((call.command.op, call.attempt), None)
            if carried is None:
                return
            if carried.attempt is not None and carried.ended is not None:
                self._ended(carried.attempt, *carried.ended)
            elif carried.stored is not None:
                self._stored(call, *carried.stored)
            elif not self.expects(call):
                self._remember(call, carried)
            elif (outcome := carried.outcome) is not None:
                event: StepSucceeded | AttemptFailed | StepFailed | StepSkipped = outcome
                if carried.large is not None and isinstance(outcome, StepSucceeded):
                    self.large[outcome.op] = carried.large
                    event = replace(outcome, value=carried.large)
                self._driver.record_as(event, outcome)
        except BaseException as broken:
            self._driver.broke(contained(broken))

    def _remember(self, call: Call, carried: Carried) -> None:
        """Keep what an attempt came to that was given up, until the journal says so: if it never does, it counts."""
        if call.command.op in self.cancels:
            carried.inputs = call.command.inputs_hash
            self._given_up[call.command.op, call.attempt] = carried

    # --- and ended ------------------------------------------------------------------------------------------------

    def _ended(self, attempt: Attempt, value: Any, error: BaseException | None) -> None:
        if self._heir is not None:
            self._heir._ended(attempt, value, error)
            return
        try:
            call = attempt.call
            op = call.command.op
            if self.running.get(op) is attempt:
                del self.running[op]
            if self._services.closing and isinstance(error, asyncio.CancelledError):
                return  # it never began, or all tasks of the loop were cancelled: the next owner makes it again
            carried = self._carried.get((op, call.attempt))
            if carried is not None and carried.attempt is attempt:
                carried.ended = (value, error)
                return
            if self._driver.held:
                # Room of its own has come free; after this outcome is recorded, what was due takes it.
                self._services.loop.call_soon(self._driver.ring)
            if not self.expects(call):
                self._remember(call, Carried("", attempt, (value, error)))
                return
            if self.channels.open:
                self.channels.settle(call, error is None)
            if error is None:
                try:
                    event = self._kept(call, value)
                except PerdureError as not_kept:
                    error = not_kept
                else:
                    if event is not None:
                        self._driver.record_as(event, event)
            if error is not None:
                self._failed(call, error)
            if self._services.runner.idle:
                # No other run is about to end and share the commit: waiting for the next turn gains nothing.
                self._services.writer.hurry()
        except BaseException as broken:
            self._driver.broke(contained(broken))

    def _kept(self, call: Call, value: Any) -> StepSucceeded | None:
        """The outcome of a step that returned; None while its value is being stored. Raises what cannot be kept."""
        op, services = call.command.op, self._services
        what = f"the result of {op}"
        data = services.codec.encode(value, what)
        if call.command.spec.returns is not Any:
            services.codec.decode(data, call.command.spec.returns, what)
        self._driver.check_history(len(data))
        if services.payloads.fits_inline(len(data), what):
            return StepSucceeded(op, Raw(data), call.attempt, fallback=call.failed is not None)
        self._storing[op, call.attempt] = call.command.inputs_hash
        self._driver.offload(data, what, lambda blob: self._stored(call, data, blob))
        return None

    def _stored(self, call: Call, data: bytes, blob: str | BaseException) -> None:
        if self._heir is not None:
            self._heir._stored(call, data, blob)
            return
        try:
            op = call.command.op
            self._storing.pop((op, call.attempt), None)
            carried = self._carried.get((op, call.attempt))
            if carried is not None and not carried.over and carried.attempt is None:
                carried.stored = data, blob  # the run has not come to this op again
                return
            if not self.expects(call):
                self._remember(call, Carried("", stored=(data, blob)))
                return
            if isinstance(blob, BaseException):
                self._failed(call, blob)
                return
            value = self.large[op] = Raw(data)
            recorded = StepSucceeded(op, NULL, call.attempt, blob, call.failed is not None)
            self._driver.record_as(replace(recorded, value=value), recorded)
        except BaseException as broken:
            self._driver.broke(contained(broken))

    def _failed(self, call: Call, error: BaseException) -> None:
        spec, codec = call.command.spec, self._services.codec
        try:
            bailed = self._bailed(call, error)
        except PerdureError as not_kept:
            bailed, error = None, not_kept
        except BaseException as broken:
            broken = contained(broken)
            # A StepBailed that was made by hand may lack anything. The step has failed, and its caller is told.
            bailed = None
            error = UsageError(
                f"{call.command.op} raised a StepBailed that says no reason or no output ({broken!r:.200}); "
                "write bail(reason, output)"
            )
        if bailed is not None:
            self._driver.record_as(bailed, bailed)
            return
        if type(error) is Told:
            failure = error.failure
            error = rebuild(failure, codec, spec.errors)
        else:
            failure = describe(error, codec)
        # What would end the process is to the body, and so to its policy, an error like any other.
        judged = StepError("", "") if is_any_of(error, ENDING) else error
        # A value that cannot be kept will not be kept next time either.
        retryable = is_any_of(judged, spec.retry.on) and not is_any_of(error, (ValueProblem,))
        if type(error) is ProcessDied and spec.at_most_once:
            key = step_key(self._state.keys, call.command.op)
            unknown = describe(OutcomeUnknown(call.command.op, key), codec)
            end = StepFailed(call.command.op, call.attempt, unknown, unknown=True)
            self._driver.record_as(end, end)
            return
        now = self._driver.moment()
        event = failed(self._state, call, failure, retryable, now)
        if log.isEnabledFor(logging.INFO):
            log.info("%s", _told(self._driver.id, event, failure, now))
        self._driver.record_as(event, event)

    def _bailed(self, call: Call, error: BaseException) -> StepFailed | None:
        """The outcome of a step that asked for the end of its run. Raises when what it gave cannot be kept."""
        op = call.command.op
        if type(error) is Told and error.failure.type == _BAILED:
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

    def expects(self, call: Call) -> bool:
        """Whether an outcome of this attempt still counts."""
        open_op = self._state.ops.get(call.command.op)
        return not self._driver.closed and open_op is not None and open_op.attempt == call.attempt and open_op.running

    def hears(self, call: Call) -> bool:
        """Whether what an attempt shows would be recorded now. While an append is on its way it had better wait."""
        return not self._driver.stale and self._driver.outbox.in_flight is None and self.expects(call)

    # --- leaving --------------------------------------------------------------------------------------------------

    def part(self) -> None:
        """Nothing was under way: let go of the driver. Both leave memory now, and are not left to the garbage."""
        if not self._carried and not self.channels.open:
            self._driver = self.channels.driver = _GONE

    def cancel_running(self) -> None:
        """Nobody waits for what is under way any more."""
        for attempt in self.running.values():
            attempt.cancel()
        self.running.clear()

    def cancel_all(self) -> None:
        """As `cancel_running`, with what was taken over and not begun again."""
        self.cancel_running()
        for carried in self._carried.values():
            carried.cancel()


def _told(id: str, event: AttemptFailed | StepFailed | StepSkipped, failure: Failure, now: float) -> str:
    """A failed attempt in one line, for an operator: of which run, how it failed, and what follows."""
    number, follows = f"attempt {event.attempt}", "the step has failed"
    if isinstance(event, AttemptFailed):
        number += f" of {event.of}" if event.of else ""
        follows = "its fallback is next" if event.fallback else f"the next begins in {event.retry_at - now:.1f} s"
    elif isinstance(event, StepSkipped):
        follows = "the step is skipped"
    said = str(failure).partition("\n")[0]
    said = said if len(said) <= 200 else f"{said[:199]}…"
    # What others have written in an error does nothing to a terminal.
    error = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in said)
    return f"run {id}: {event.op}, {number} failed: {error}; {follows}"
