"""One run in memory: feeds it what happened, records what follows, and acts once that is durable.

Advance before commit, act after commit: the outcome of a step goes to the program at once, its next wishes are planned,
and outcome and intents leave in one append. Steps start, callers are answered and timers count only after that. In the
lazy durability modes steps start at once, and the journal follows within the mode's bounds.

Everything here runs in callbacks of the event loop, never inside a task: a body has tasks of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any

from msgspec import Raw

from perdure.engine.carried import Carried, carry
from perdure.engine.outbox import Outbox
from perdure.engine.services import Services
from perdure.engine.steps import Attempt
from perdure.errors import HistoryTooLarge, PayloadTooLarge, PerdureError, StepCancelled, ValueProblem
from perdure.kernel.commands import Command, Finish, RunStep
from perdure.kernel.durability import Durability
from perdure.kernel.events import (
    NULL,
    AnyEvent,
    AttemptFailed,
    RunReleased,
    RunStatus,
    StepFailed,
    StepSucceeded,
)
from perdure.kernel.failures import describe, type_name
from perdure.kernel.plan import Call, Plan, adopt, deliver, failed, plan, wake
from perdure.kernel.replay import Replay
from perdure.ports.journal import Append

log = logging.getLogger("perdure")

# A rough count of what an event adds to the journal besides its value.
EVENT_BYTES = 120
_GIVEN_UP = type_name(StepCancelled)


class NotKnown(Exception):
    """The run left memory before it was known whether the journal took an event: ask the journal."""


class Driver:
    """Advances one run."""

    def __init__(
        self, services: Services, replay: Replay, durability: Durability, variables: Context, size: int = 0
    ) -> None:
        self._services = services
        self.variables = variables
        self.replay = replay
        self.state = replay.state
        self.durability = durability
        started = self.state.started
        assert started is not None
        self.id = started.id
        self.run_id = self.state.run_id
        self._deadline = started.deadline
        self._room = started.max_concurrency or 1 << 30
        self._size = size
        self._outbox = Outbox(self.state)
        # Whether nothing may begin before everything so far is in the store, in a mode that does not wait for it.
        self._barrier = False
        self._unsaved = 0
        # What is to be done after the next commit, and what is under way.
        self._calls: list[Call] = []
        self._cancels: list[str] = []
        self.attempts: dict[str, Attempt] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._lag: asyncio.TimerHandle | None = None
        self._offloading = False
        # Values that lie apart, by op, until their events are known to be in the store.
        self.large: dict[str, Raw] = {}
        # Attempts whose result is being stored apart; what a driver before this one had under way; who came after it.
        self._storing: set[tuple[str, int]] = set()
        self._carried: dict[tuple[str, int], Carried] = {}
        self._given_up: dict[tuple[str, int], Carried] = {}
        self._heir: Driver | None = None
        # Callers who wait until what they sent is durable, by the number after it.
        self._accepting: list[tuple[int, asyncio.Future[None]]] = []
        # Whether somebody else has appended: nothing more is written until their events have been read.
        self.stale = False
        # Whether a retry is due and waits for room.
        self._held = False
        self.closed = False

    # --- facts come in --------------------------------------------------------------------------------------------

    def accept(self, *events: AnyEvent) -> asyncio.Future[None]:
        """Take events from outside in; the future is resolved when they are durable."""
        accepted: asyncio.Future[None] = self._services.loop.create_future()
        self.record(*events)
        self._accepting.append((self.state.next_seq, accepted))
        self._touch()
        return accepted

    def record(self, *events: AnyEvent) -> None:
        """Take facts in, advance the program, and have it all written."""
        for event in events:
            self._fold(event, event)
        self._pump(None)

    def succeed(self, old: Driver) -> None:
        """Take over from a driver whose view of the journal was out of date: its attempts and their outcomes."""
        self._carried = old.hand_over(self)
        self.large = old.large
        for op, command in self.replay.open_steps.items():
            open_op = self.state.ops[op]
            if open_op.running:
                self._calls.append(Call(command, open_op.attempt))
                self._services.runner.promised += 1
        self._pump(None)
        if not self._outbox.events:
            self._act()
            self._set_alarm()

    def hand_over(self, heir: Driver) -> dict[tuple[str, int], Carried]:
        """Everything that is under way or done and not known to be in the store, by op and attempt."""
        self.close(cancel=False)
        self._heir = heir
        before = {**self._carried, **self._given_up}
        return carry(before, self._storing, self.attempts, self._outbox.unsaved())

    def adopt(self, *events: AnyEvent) -> None:
        """Become the owner of a run that another process left: record the claim, then see to its open attempts."""
        for event in events:
            self._fold(event, event)
        self._pump(adopt(self.state, self.replay.open_steps))

    def wake(self) -> None:
        """Do what is due."""
        self._alarm = None
        if self.closed or self.state.finished is not None:
            return
        now = self._services.clock.now()
        plan_ = wake(self.state, self.replay.open_steps, now, self._free())
        self._held = plan_.held
        if self._held and self.state.running < self._room:
            self._services.runner.wanted(self)
        if plan_.events:
            if self._outbox.events and self._outbox.at < now:
                self._outbox.close_batch()  # a timer that fires must not carry a moment before it was due
            self._pump(plan_)
        else:
            self._set_alarm()

    def _attempt_done(self, attempt: Attempt, value: Any, error: BaseException | None) -> None:
        if self._heir is not None:
            self._heir._attempt_done(attempt, value, error)
            return
        call = attempt.call
        op = call.command.op
        if self.attempts.get(op) is attempt:
            del self.attempts[op]
        carried = self._carried.get((op, call.attempt))
        if carried is not None and carried.attempt is attempt:
            carried.ended = (value, error)
            return
        if self._held:
            # Room of its own has come free; after this outcome is recorded, what was due takes it.
            self._services.loop.call_soon(self.wake)
        if not self._expects(call):
            if op in self._cancels:
                # Given up, and that is not in the journal yet: if it never comes there, this is still its outcome.
                inputs = call.command.inputs_hash
                self._given_up[op, call.attempt] = Carried(inputs, attempt, (value, error))
            return
        if error is None:
            try:
                data = self._services.codec.encode(value, f"the result of {op}")
                if call.command.spec.returns is not Any:
                    self._services.codec.decode(data, call.command.spec.returns, f"the result of {op}")
                self._check_history(len(data))
                if self._services.payloads.fits_inline(len(data), f"the result of {op}"):
                    event = StepSucceeded(op, Raw(data), call.attempt)
                    self._fold(event, event)
                    self._pump(None)
                else:
                    self._storing.add((op, call.attempt))
                    self._offload(data, f"the result of {op}", lambda blob: self._succeeded(call, data, blob))
                return
            except PerdureError as not_kept:
                error = not_kept
        self._failed(call, error)

    def _succeeded(self, call: Call, data: bytes, blob: str | BaseException) -> None:
        if self._heir is not None:
            self._heir._succeeded(call, data, blob)
            return
        self._storing.discard((call.command.op, call.attempt))
        if not self._expects(call):
            return
        if isinstance(blob, BaseException):
            self._failed(call, blob)
            return
        op = call.command.op
        self.large[op] = Raw(data)
        self._fold(StepSucceeded(op, Raw(data), call.attempt), StepSucceeded(op, NULL, call.attempt, blob))
        self._pump(None)

    def _failed(self, call: Call, error: BaseException) -> None:
        retry = call.command.spec.retry
        # A value that cannot be kept will not be kept next time either.
        retryable = isinstance(error, retry.on) and not isinstance(error, ValueProblem)
        failure = describe(error, self._services.codec)
        event = failed(self.state, call, failure, retryable, self._moment())
        self._fold(event, event)
        self._pump(None)

    def _expects(self, call: Call) -> bool:
        """Whether an outcome of this attempt still counts."""
        open_op = self.state.ops.get(call.command.op)
        return not self.closed and open_op is not None and open_op.attempt == call.attempt and open_op.running

    def _check_history(self, size: int) -> None:
        self._size += size
        limit = self._services.payloads.limits.history
        if self._size > limit:
            raise HistoryTooLarge(self.id, self._size, limit)

    # --- and what follows is planned ------------------------------------------------------------------------------

    def _moment(self) -> float:
        """The time of the batch that is being recorded; all its events share it."""
        return self._outbox.at if self._outbox.events else self._outbox.moment(self._services.clock.now())

    def _fold(self, event: AnyEvent, recorded: AnyEvent) -> None:
        at = self._moment()
        self.replay.fold(event, at)
        self._outbox.events.append(recorded)
        self._size += EVENT_BYTES

    def _pump(self, planned: Plan | None) -> None:
        """Record what is planned and everything that follows from it, then see that it is written."""
        while True:
            if planned is not None:
                for event in planned.events:
                    self._fold(event, event)
                self._calls += planned.calls
                self._services.runner.promised += len(planned.calls)
                self._cancels += planned.cancels
                self._barrier |= planned.barrier
            wishes = self.replay.wishes
            if self.state.paused is not None:
                break
            if not wishes and (delivery := deliver(self.state)) is not None:
                self._fold(delivery, delivery)
                planned = None
                continue
            finish = wishes.get("<finish>")
            # An engine that is being left records outcomes and ends, and begins nothing: the next owner does.
            if not wishes or (self._services.closing and finish is None):
                break
            if finish is not None and not self._keep_output(finish):
                break
            commands = self.replay.take_wishes()
            if self._free() < len(commands):
                commands = self._within(commands)
                if not commands:
                    break
            planned = plan(self.state, commands, self._moment())
        self._unsaved += 1
        if self.durability.waits:
            if self._outbox.events:
                self._touch()
            return
        self._outbox.close_batch()
        state = self.state
        due = self.durability.due(self._unsaved) or self._outbox.has_wait
        if self._barrier or self._cancels or due or not state.running or self._outbox.committed == 0:
            self._touch()
        elif self.durability.mode == "async" and self._lag is None:
            self._lag = self._services.loop.call_later(self.durability.lag, self._lag_over)
        if self._outbox.committed > 0:
            self._act()
            self._set_alarm()

    def _free(self) -> int:
        """How many more steps may begin: of this run, and of the engine."""
        return min(self._room - self.state.running, self._services.runner.free)

    def _within(self, commands: Sequence[Command]) -> Sequence[Command]:
        """The commands there is room for. A step that must wait for its turn stays a wish: it has not begun."""
        steps = [command for command in commands if isinstance(command, RunStep)]
        room = self._free()
        if len(steps) <= room:
            return commands
        # Where the run's own limit is the reason, its next outcome brings it back here.
        if self._services.runner.free < min(len(steps), self._room - self.state.running):
            self._services.runner.wanted(self)
        held = {command.op for command in steps[max(0, room) :]}
        return [command for command in commands if command.op not in held]

    def feed(self) -> None:
        """There is room for another step."""
        if not self.closed and self.state.finished is None:
            self._pump(None)
            if self._held:
                self.wake()

    def _touch(self) -> None:
        self._outbox.wanted = True
        self._services.writer.touch(self)

    def _lag_over(self) -> None:
        self._lag = None
        if not self.closed:
            self._touch()

    def _keep_output(self, finish: Any) -> bool:
        """Whether the output of the run can be recorded now; a large one is stored apart first."""
        assert isinstance(finish, Finish)
        if finish.blob or self._offloading:
            return not self._offloading
        try:
            if self._services.payloads.fits_inline(len(finish.value), "the result of the workflow"):
                return True
        except PayloadTooLarge as error:
            self.replay.wishes["<finish>"] = Finish(RunStatus.FAILED, error=describe(error, self._services.codec))
            return True
        self._offloading = True
        self._offload(finish.value, "the result of the workflow", lambda blob: self._output_stored(finish, blob))
        return False

    def _output_stored(self, finish: Finish, blob: str | BaseException) -> None:
        self._offloading = False
        if self.closed or "<finish>" not in self.replay.wishes:
            return
        self.replay.wishes["<finish>"] = (
            Finish(RunStatus.FAILED, error=describe(blob, self._services.codec))
            if isinstance(blob, BaseException)
            else Finish(finish.status, b"null", reason=finish.reason, blob=blob)
        )
        self._pump(None)

    def _offload(self, data: bytes, what: str, then: Callable[[str | BaseException], None]) -> None:
        def stored(task: asyncio.Task[str]) -> None:
            if not task.cancelled():
                then(task.exception() or task.result())

        store = self._services.payloads.offload_patiently(data, what, lambda: self.closed and self._heir is None)
        self._services.loop.create_task(store).add_done_callback(stored)

    # --- the writer takes it, and tells how it went ---------------------------------------------------------------

    def take(self) -> Append | None:
        """Everything that is not in the store yet, as one append."""
        if self.closed or self.stale:
            return None
        append = self._outbox.take(self.durability.fsync)
        self._unsaved = 0
        return append

    def committed(self) -> None:
        """The append is durable: act on it."""
        append = self._outbox.settle()
        while self._accepting and self._accepting[0][0] <= append.next_seq:
            accepted = self._accepting.pop(0)[1]
            if not accepted.done():
                accepted.set_result(None)
        if self.large and self.saved:
            self.large.clear()
        if self.saved:
            self._barrier = False
        if self._outbox.wanted or self._barrier:
            # More came while this was on its way, and the writer has taken its turn for it.
            self._services.writer.touch(self)
        self._act()
        self._services.on_commit(self, append)
        if not self.closed:
            self._set_alarm()

    def _act(self) -> None:
        """Start and stop what the journal now says."""
        # Given up only when the journal says so: until then a crash or a conflict would take it up again.
        if self._cancels and self.saved:
            for op in self._cancels:
                attempt = self.attempts.pop(op, None)
                if attempt is not None:
                    attempt.cancel()
            self._cancels.clear()
            self._given_up.clear()
        # A call planned after the append was taken waits for the next one.
        wait = self.durability.waits or self._barrier
        if self._calls and not (wait and not self.saved):
            calls, self._calls = self._calls, []
            self._services.runner.promised -= len(calls)
            for call in calls:
                if self._expects(call):
                    self._launch(call)

    def _launch(self, call: Call) -> None:
        services = self._services
        op = call.command.op
        if self._carried:
            carried = self._carried.pop((op, call.attempt), None)
            if carried is not None and carried.inputs in ("", call.command.inputs_hash):
                self._go_on(call, carried)
                return
            if carried is not None:
                carried.cancel()
        self.attempts[op] = services.runner.start(call, self.run_id, self._deadline, self.variables, self._attempt_done)

    def _go_on(self, call: Call, carried: Carried) -> None:
        """An attempt that was under way or done before the journal was read anew is not made again."""
        if carried.attempt is not None and carried.ended is not None:
            self._services.loop.call_soon(self._attempt_done, carried.attempt, *carried.ended)
        elif carried.attempt is not None:
            carried.attempt.done = self._attempt_done
            self.attempts[call.command.op] = carried.attempt
        elif carried.outcome is not None:
            self._services.loop.call_soon(self._offer, call, carried.outcome)
        else:
            self._storing.add((call.command.op, call.attempt))

    def _offer(self, call: Call, outcome: StepSucceeded | AttemptFailed | StepFailed) -> None:
        if self._expects(call):
            large = self.large.get(outcome.op)
            self._fold(outcome if large is None else StepSucceeded(outcome.op, large, outcome.attempt), outcome)
            self._pump(None)
        elif outcome.op in self._cancels:
            self._given_up[outcome.op, outcome.attempt] = Carried(call.command.inputs_hash, outcome=outcome)

    def _set_alarm(self) -> None:
        due = self.state.wake_at
        if self._alarm is not None:
            if due is not None and self._alarm.when() <= self._services.loop.time() + due - self._services.clock.now():
                return
            self._alarm.cancel()
            self._alarm = None
        if due is not None and self.state.owner is not None and not self._held:
            # At most an hour: a wall clock that is set forward must not leave the run asleep.
            wait = min(max(0.0, due - self._services.clock.now()), 3600.0)
            self._alarm = self._services.loop.call_later(wait, self.wake)

    # --- leaving --------------------------------------------------------------------------------------------------

    @property
    def saved(self) -> bool:
        """Whether everything that happened is in the store."""
        return self._outbox.empty

    @property
    def idle(self) -> bool:
        """Whether nothing is under way: the run could leave memory without losing anything."""
        busy = self.attempts or self._calls or self._offloading or self._storing or self.replay.wishes
        return not busy and self.saved

    def release(self, owner: str) -> None:
        """Give the run up in good order: nothing new starts, and the journal says so."""
        for attempt in self.attempts.values():
            attempt.cancel()
        self.attempts.clear()
        self._forget_calls()
        if self.state.finished is None and self.state.owner == owner:
            event = RunReleased(owner)
            self._fold(event, event)
            self._touch()

    def _forget_calls(self) -> None:
        self._services.runner.promised -= len(self._calls)
        self._calls.clear()

    def close(self, cancel: bool = True) -> None:
        """Leave memory. Attempts under way are cancelled, unless another driver takes them over."""
        self.closed = True
        for _, accepted in self._accepting:
            if not accepted.done():
                accepted.set_exception(NotKnown())
        self._accepting.clear()
        self._forget_calls()
        self._services.runner.offer()
        for handle in (self._alarm, self._lag):
            if handle is not None:
                handle.cancel()
        if cancel:
            for attempt in self.attempts.values():
                attempt.cancel()
            self.attempts.clear()
            for carried in self._carried.values():
                carried.cancel()
        self.replay.execution.close()
