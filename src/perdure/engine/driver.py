"""One run in memory: folds events, records what follows, and acts once that is durable.

Theory of operation
===================

A driver exists while its run is in memory here. Everything in it runs in callbacks of the event loop, never inside a
task: a body has tasks of its own. One round looks like this.

        an outcome, a message, a due timer
                   |
                   v
        fold  (Replay: state and program advance; the program's commands are pending)
                   |                      ^
                   v                      |  until no command can be planned
        plan  (kernel.plan: events to record, steps to call, steps to cancel)
                   |
                   v
        outbox  --- Writer --->  journal  ---> committed: start and stop steps, answer callers, set the alarm

**Advance before commit, act after commit.** The outcome of a step goes to the program at once, its next commands are
planned, and outcome and intents leave in one append. Steps start, callers are answered and timers count only when that
append is durable. In the lazy durability modes steps start at once, and the journal follows within the mode's bounds; a
*barrier* (`_barrier`) makes one append be waited for all the same.

What the driver holds back, and why:

- `replay.held`: steps for which the run's or the engine's concurrency limit has no room; `retry_held`: a retry that is
  due and has none. `room_free` is called when there is some.
- `_offloading`: commands whose value is being offloaded, or whose program is being loaded.
- `outbox.in_flight`: the pending append. Events that come before it is durable go into the next one.

A driver is in one of these states:

        active --- another writer has appended ---> stale --- catch_up() --> active
           |                                          |
           |                                          +---- the tail does not follow: a new driver succeed()s this one
           |                                          |     and continues its attempts --> closed
           +--- the run was evicted, or is another owner's -> closed

- **active**; after a takeover also `adopting`, until the claim is durable: attempts in the journal are the previous
  owner's.
- **stale**: an append lost its compare-and-swap. Nothing more is written before the missing events have been read.
- **closed**: nothing is folded or written any more. `_successor` is the driver that replaced it, if there is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextvars import Context
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from perdure.engine.attempts import Attempts, Handoff
from perdure.engine.outbox import Outbox
from perdure.engine.probe import Probe
from perdure.engine.runtime import Services
from perdure.engine.step_context import StepContext
from perdure.engine.steps import Attempt
from perdure.engine.streams import Channel
from perdure.errors import HistoryTooLarge, NotDecodable, PayloadTooLarge, PerdureError, UsageError
from perdure.kernel.commands import FINISH, UNDECODED, Command, Finish, RunStep, StartChild
from perdure.kernel.events import (
    EVENT_BYTES,
    NULL,
    AnyEvent,
    Batch,
    RunClaimed,
    RunReleased,
    RunStatus,
    StepFailed,
    StepsHeld,
    StepSucceeded,
    events_in,
)
from perdure.kernel.ids import step_key
from perdure.kernel.misfits import check_inbox, judged
from perdure.kernel.plan import Call, Plan, adopt, begin_step, deliver, keep, plan, wake
from perdure.kernel.policies.durability import Durability
from perdure.kernel.policies.queues import Queue
from perdure.kernel.replay import Replay
from perdure.kernel.values.arguments import digest_alone, named_input, positional_names
from perdure.kernel.values.failures import describe
from perdure.kernel.values.items import has_references
from perdure.kernel.values.raised import contained, is_a
from perdure.ports.appends import OFFLOADABLE, as_kept
from perdure.ports.journal import Append

T = TypeVar("T")

# How soon to retry something that is due but cannot be done now.
NOTHING_DUE_SECONDS = 0.1


class NotKnown(Exception):
    """The run was evicted before it was known whether an event was appended: read the journal."""


class Driver:
    """Advances one run."""

    def __init__(
        self, services: Services, replay: Replay, durability: Durability, variables: Context, size: int = 0
    ) -> None:
        self.services = services
        self.variables = variables
        self.replay = replay
        self.state = replay.state
        self.durability = durability
        self._waits, self._fsync = durability.waits, durability.fsync
        self._limits = services.payloads.limits
        started = self.state.started
        assert started is not None
        self.id = started.id
        self.run_id = self.state.run_id
        self.queue = started.queue
        self._room = started.max_concurrency or 1 << 30
        # The approximate size of the journal.
        self.size = size
        self.outbox = Outbox(self.state)
        self.attempts = Attempts(services, self.state, variables)
        # Whether everything so far must be durable before anything begins (`checkpoint`).
        self._barrier = False
        self._unsaved = 0
        # Runs of cancelled remote steps, with the reasons, to be cancelled once that is durable.
        self._abandoned: dict[str, str] = {}
        self._alarm: asyncio.TimerHandle | None = None
        # Whether nothing was due when the alarm was set last, so that there is none.
        self._undated = False
        self._lag: asyncio.TimerHandle | None = None
        # Commands whose value is being offloaded.
        self._offloading: set[str] = set()
        # Callers that wait until their events are durable, by the number after those.
        self._accepting: list[tuple[int, asyncio.Future[None]]] = []
        # Whether another writer has appended: nothing more is written until its events have been read.
        self.stale = False
        # Whether the claim of a takeover is not durable yet: the attempts in the journal are the previous owner's.
        self.adopting = False
        # Whether a retry is due and waits for a concurrency limit.
        self.retry_held = False
        self.closed = False
        # A value in the journal that the program cannot decode: nothing more is planned, and the run is parked.
        self._unreadable: NotDecodable | None = None
        # The driver that replaced this one after the journal was read again, and continues its attempts.
        self._successor: Driver | None = None

    # --- events come in -------------------------------------------------------------------------------------------

    def accept(self, *events: AnyEvent) -> asyncio.Future[None]:
        """Fold external events; the future is resolved when they are durable."""
        accepted: asyncio.Future[None] = self.services.loop.create_future()
        self.record(*events)
        self._accepting.append((self.state.next_seq, accepted))
        self._touch()
        return accepted

    def record(self, *events: AnyEvent) -> None:
        """Fold events, advance the program, and write everything."""
        for event in events:
            self._fold(event, as_kept(event) if type(event) in OFFLOADABLE else event)
        self._pump(None)

    def succeed(self, old: Driver) -> None:
        """Continue the attempts and outcomes of a driver that had missed events of the journal."""
        old.close(cancel=False)
        old._successor = self
        self._abandoned = old._stop_cancelled()
        self.attempts.take_over(old.attempts, old.outbox.unsaved(), self.replay.open_steps, self)
        self._pump(None)
        if not self.outbox.events:
            self._act()
            self._set_alarm()

    def _stop_cancelled(self) -> dict[str, str]:
        """Stop attempts whose cancellation is durable; returns the runs of such remote steps, to be cancelled."""
        unsaved = {e.op for e in self.outbox.unsaved() if isinstance(e, StepFailed) and e.cancelled}
        self.attempts.stop_given_up(unsaved)
        keys = {step_key(self.run_id, op) for op in unsaved}
        return {id: reason for id, reason in self._abandoned.items() if id not in keys}

    def catch_up(self, tail: Sequence[Batch]) -> bool:
        """Fold events of other writers. False if they do not follow the state in memory."""
        if self.closed or not self.saved or tail[0].seq != self.state.next_seq:
            return False
        self.replay.fold_all(tail)
        if self.services.probes:
            self.services.probes.tell(Probe.caught_up, self, tail)
        self.size += sum(len(getattr(event, "payload", b"")) + EVENT_BYTES for event in events_in(tail))
        self.outbox.follow()
        self.stale = False
        self._pump(None)
        if not self.outbox.events:
            self._act()
            self._set_alarm()
        # Chunks emitted meanwhile were held back.
        self.attempts.record_channels()
        return True

    def adopt(self, *events: AnyEvent, admit: Queue | None = None) -> None:
        """Take over a run: record the claim, then repeat its open attempts.

        With `admit` the append is the one that begins a queued run: it is refused where the limits of the queue allow
        no further run, and nothing begins before it is durable.
        """
        self.outbox.admit = admit
        self._barrier = admit is not None
        for event in events:
            self._fold(event, event)
        planned = adopt(self.state, self.replay.open_steps)
        self.adopting = bool(planned.events)
        self._pump(planned)

    def broke(self, error: Exception) -> None:
        """Park the run after an error in one of its callbacks."""
        self.services.on_broken(self, error)

    def ring(self) -> None:
        """Call `wake` from a timer."""
        try:
            self.wake()
        except BaseException as error:
            self.broke(contained(error))

    def wake(self) -> None:
        """Do what is due."""
        self._alarm = None
        if self.closed or self.state.finished is not None:
            return
        now, due = self.services.clock.now(), self.state.wake_at
        # An engine that shuts down begins no attempt: the next owner does.
        plan_ = wake(self.state, self.replay.open_steps, now, 0 if self.services.closing else self._free())
        self.retry_held = plan_.held
        if self.retry_held and self.state.running < self._room:
            self.services.runner.wait_for_room(self)
        if plan_.events:
            if self.outbox.events and self.outbox.at < now:
                self.outbox.close_batch()  # the time of a fired timer must not be before it was due
            if self.services.probes and due is not None:
                self.services.probes.tell(Probe.fired, now - due)
            self._pump(plan_)
        else:
            # Due work is held back until an event changes that: do not spin.
            self._set_alarm(at_least=NOTHING_DUE_SECONDS)

    def report(self, events: Sequence[AnyEvent], size: int) -> int:
        """Fold and write what an attempt emits before it ends. Returns the number of the next event."""
        for event in events:
            self._fold(event, event)
        self.size += size
        next_seq = self.state.next_seq
        self._pump(None)
        self._touch()
        return next_seq

    def patches_of(self, op: str) -> Mapping[str, bool]:
        """The answers of `patched()` in the body that called a step."""
        started = self.state.started
        if started is not None and started.remote is not None:
            return started.remote.patches or {}
        return self.replay.execution_of(op)[0].patches

    # --- attempts end ---------------------------------------------------------------------------------------------

    def expects(self, call: Call) -> bool:
        """Whether an outcome of this attempt still counts."""
        open_op = self.state.ops.get(call.command.op)
        return not self.closed and open_op is not None and open_op.attempt == call.attempt and open_op.running

    def accepts_reports(self, call: Call) -> bool:
        """Whether chunks would be recorded now. While an append is pending they wait."""
        return not self.stale and self.outbox.in_flight is None and self.expects(call)

    def channel(self, context: StepContext, call: Call) -> Channel:
        """The channel of an attempt, from any thread."""
        return self.attempts.channels.setdefault((call.command.op, call.attempt), Channel(self, context, call))

    def attempt_ended(self, attempt: Attempt, value: Any, error: BaseException | None) -> None:
        """An attempt has ended: record its outcome, and what follows."""
        services = self.services
        # Alone: while no other run is about to share the commit, it does not wait for the next turn.
        alone = not services.writer.held and services.runner.idle
        if alone:
            services.writer.hold()
        try:
            call, attempts = attempt.call, self.attempts
            if not attempts.remove(attempt, value, error):
                return
            if services.closing and is_a(error, asyncio.CancelledError):
                return  # never begun, or the loop was cancelled: the next owner repeats it
            if self.retry_held:
                # Its slot is free: after this outcome is recorded, due retries may use it.
                services.loop.call_soon(self.ring)
            if not self.expects(call):
                attempts.keep_given_up(call, Handoff("", attempt, (value, error)))
                return
            if attempts.channels:
                attempts.settle_channel(call, error is None)
            if error is None:
                self._step_returned(call, value)
            else:
                self._step_failed(call, error)
        except BaseException as broken:
            self.broke(contained(broken))
        finally:
            if alone:
                services.writer.resume(now=services.runner.idle)

    def _step_returned(self, call: Call, value: Any) -> None:
        op, limits = call.command.op, self._limits
        try:
            data, decoded = self.attempts.result(call, value)
            self.size += len(data)
            if self.size > limits.history:
                raise HistoryTooLarge(self.id, self.size, limits.history)
            if len(data) > limits.payload:
                raise PayloadTooLarge(f"the result of {op}", len(data), limits.payload)
        except PerdureError as not_kept:
            self._step_failed(call, not_kept)
            return
        if len(data) > limits.blob and not has_references(data):
            self.attempts.storing[op, call.attempt] = call.command.inputs_hash
            self.offload(data, f"the result of {op}", lambda blob: self._result_stored(call, data, blob, decoded))
            return
        event = StepSucceeded(op, Raw(data), call.attempt, fallback=call.failed is not None)
        self._fold(event, event, decoded)
        self._pump(None, outcome=True)

    def _result_stored(self, call: Call, data: bytes, blob: str | BaseException, decoded: Any = UNDECODED) -> None:
        if self._successor is not None:
            self._successor._result_stored(call, data, blob)
            return
        try:
            if not self.attempts.stored(call, data, blob):
                return
            if not self.expects(call):
                self.attempts.keep_given_up(call, Handoff("", stored=(data, blob)))
            elif isinstance(blob, BaseException):
                self._step_failed(call, blob)
            else:
                recorded = StepSucceeded(
                    call.command.op, NULL, call.attempt, blob, call.failed is not None, digest=digest_alone(data)
                )
                self._record_offloaded(recorded, Raw(data), decoded)
        except BaseException as broken:
            self.broke(contained(broken))

    def _record_offloaded(self, recorded: StepSucceeded, value: Raw, decoded: Any = UNDECODED) -> None:
        self.attempts.large[recorded.op] = value
        self._fold(msgspec.structs.replace(recorded, value=value), recorded, decoded)
        self._pump(None, outcome=True)

    def _step_failed(self, call: Call, error: BaseException) -> None:
        event = self.attempts.failure(call, error, self.moment())
        self._fold(event, event)
        self._pump(None, outcome=True)

    def record_handoff(self, call: Call) -> None:
        """Record the outcome of an attempt of the previous driver."""
        if self._successor is not None:
            return  # it was handed on
        try:
            handoff = self.attempts.take_handoff(call)
            if handoff is None:
                return
            if handoff.attempt is not None and handoff.ended is not None:
                self.attempt_ended(handoff.attempt, *handoff.ended)
            elif handoff.stored is not None:
                self._result_stored(call, *handoff.stored)
            elif not self.expects(call):
                self.attempts.keep_given_up(call, handoff)
            elif handoff.large is not None and isinstance(handoff.outcome, StepSucceeded):
                self._record_offloaded(handoff.outcome, handoff.large)
            elif handoff.outcome is not None:
                self.record(handoff.outcome)
        except BaseException as broken:
            self.broke(contained(broken))

    # --- planning -------------------------------------------------------------------------------------------------

    def moment(self) -> float:
        """The time of the batch that is being recorded; all its events share it."""
        return self.outbox.at if self.outbox.events else self.outbox.moment(self.services.clock.now())

    def _fold(self, event: AnyEvent, recorded: AnyEvent, decoded: Any = UNDECODED) -> None:
        """Fold an event, stored as `recorded`; `decoded` is the value of an outcome as the program gets it."""
        outbox = self.outbox
        at = outbox.at if outbox.events else outbox.moment(self.services.clock.now())
        try:
            self.replay.fold(event, at, decoded)
        except NotDecodable as error:
            if type(event) is RunClaimed:
                raise  # its arguments do not fit: it does not begin
            # It is in the journal all the same: code that can decode it continues the run from there.
            self._unreadable = error
        outbox.events.append(recorded)
        self.size += EVENT_BYTES

    def _pump(self, planned: Plan | None, *, outcome: bool = False, write: bool = True) -> None:
        """Record what is planned and everything that follows from it, then write it."""
        state = self.state
        if outcome and self._waits and not (self.replay.pending or self.replay.wanted or state.inbox):
            # All it can lead to is room for held steps: they are planned together when the append is taken.
            self.outbox.unplanned = True
            self._touch()
            return
        self.outbox.unplanned = False
        while True:
            if self._unreadable is not None:
                self._stop_unreadable()
                return
            if planned is not None:
                for event in planned.events:
                    self._fold(event, as_kept(event) if type(event) in OFFLOADABLE else event)
                if planned.calls or planned.cancels:
                    self.attempts.plan(planned)
                if planned.starts or planned.abandoned:
                    tracing = self.services.runner.tracing
                    self.outbox.starts += planned.starts if tracing is None else tracing.traced(self, planned.starts)
                    self._abandoned |= planned.abandoned
                self._barrier |= planned.barrier
            pending, held = self.replay.pending, self.replay.held
            if self.state.paused is not None:
                break
            if state.inbox:
                try:
                    check_inbox(state, pending)
                except NotDecodable as error:
                    self._unreadable = error
                    continue
            if not pending and state.inbox and (delivery := deliver(state)) is not None:
                # Deliver signals even while steps are held back.
                delivery = judged(state, delivery)
                self._fold(delivery, delivery)
                planned = None
                continue
            if self.replay.wanted:
                self._load_wanted()
            finish = pending.get(FINISH)
            # An engine that shuts down records outcomes and ends, and begins nothing: the next owner does.
            if not (pending or held) or (self.services.closing and finish is None):
                break
            if (self.replay.bulky or self._offloading) and not self._keep_values():
                break
            if state.kept is not None and (planned := keep(state, pending, self.moment())) is not None:
                continue
            room = min(self._room - state.running, self.services.runner.free)
            if room > 0 and len(pending) == 1 and not (held or self.replay.referring or state.inbox):
                (command,) = pending.values()
                if (begun := begin_step(command)) is not None:
                    assert isinstance(command, RunStep)
                    self._fold(begun, begun)
                    self.attempts.plan_call(Call(command, 1))
                    break  # nothing else is pending or held, and no signal waits
            commands = self._within(room) if held or room < len(pending) else list(pending.values())
            if not commands:
                if deliver(self.state) is None:
                    break
                planned = None
                continue
            if self.replay.referring and self._load_arguments(commands):
                break
            planned = plan(self.state, commands, self.moment())
        if pending or held or self.state.held:
            self._note_held(len(pending) + len(held))
        self._unsaved += 1
        if self._waits:
            if write and self.outbox.events:
                self.outbox.wanted = True
                self.services.writer.touch(self)
            return
        self.outbox.close_batch()
        due = self.durability.due(self._unsaved) or self.outbox.has_wait
        if self._barrier or self.attempts.cancels or due or not state.running or self.outbox.committed == 0:
            self._touch()
        elif self.durability.mode == "async" and self._lag is None:
            self._lag = self.services.loop.call_later(self.durability.lag, self._lag_over)
        if self.outbox.committed > 0:
            self._act()
            self._set_alarm()

    def _stop_unreadable(self) -> None:
        """Stop a run that cannot decode a value in its journal, once everything it has done is written."""
        if not self.saved:
            self._touch()
        elif not self.closed and self._unreadable is not None:
            # Not at once: the caller may still have something to do with this driver.
            self.services.loop.call_soon(self.broke, self._unreadable)

    def _note_held(self, count: int) -> None:
        """Record StepsHeld, if the journal would otherwise look as if nothing waited to begin."""
        state = self.state
        if count and not state.held and state.paused is None and state.finished is None:
            self._fold(event := StepsHeld(count), event)
        elif state.held and not count:
            self._fold(event := StepsHeld(), event)

    def _free(self) -> int:
        """How many more steps may begin, by the limits of the run and of the engine."""
        return min(self._room - self.state.running, self.services.runner.free)

    def _within(self, room: int) -> Sequence[Command]:
        """The commands within the limits. A step that is held back stays pending."""
        commands = self.replay.commands_within(room)
        # If the run's own limit is the reason, its next outcome leads here again.
        if self.services.runner.free < min(len(self.replay.held), self._room - self.state.running):
            self.services.runner.wait_for_room(self)
        return commands

    def room_free(self) -> None:
        """The engine has room for another step."""
        if self.closed or self.state.finished is not None:
            return
        try:
            self._pump(None)
            if self.retry_held:
                self.wake()
        except BaseException as error:
            self.broke(contained(error))

    def _touch(self) -> None:
        self.outbox.wanted = True
        self.services.writer.touch(self)

    def _lag_over(self) -> None:
        self._lag = None
        try:
            if not self.closed:
                self._touch()
        except BaseException as error:
            self.broke(contained(error))

    def _keep_values(self) -> bool:
        """Whether the values of the commands can be recorded now; a large one is offloaded first."""
        bulky = list(self.replay.bulky)
        self.replay.bulky.clear()
        for op in bulky:
            command = self.replay.pending.get(op)
            if isinstance(command, Finish | StartChild | RunStep) and op not in self._offloading:
                self._keep_value(command)
        return not self._offloading

    def _keep_value(self, command: Finish | StartChild | RunStep, asked: bool = False) -> None:
        if isinstance(command, RunStep):
            if command.references:
                self._load_arguments([command])
                return
            what, data = f"the input of {command.op}", command.inputs
        elif isinstance(command, StartChild):
            what, data = f"the input of {command.op}", command.input
            if not (command.embedded or asked) and self.services.programs.programs.lacks(
                command.program, command.version
            ):
                self._load_program(command)
                return
            try:
                program = self.replay.program(command)
                version = program.version
                if not command.detached:
                    program.check_input(Raw(command.input), self.services.codec)
            except (UsageError, NotDecodable) as error:
                if not command.detached:
                    self._refuse(command, error)
                    return
            else:
                # Called by name: its version is chosen at its first claim, and its arguments get their names.
                data = bytes(named_input(Raw(data), positional_names(program.types)))
                structure = command.structure if command.embedded else program.structure
                if structure and not command.embedded:
                    self.services.on_structure(program)
                command = self.replay.pending[command.op] = msgspec.structs.replace(
                    command, version=version, input=data, structure=structure
                )
        elif command.continue_with is not None:
            what, data = "the input of continue_as()", command.continue_with
        else:
            what, data = "the result of the workflow", command.value
        try:
            if self.services.payloads.fits_inline(len(data), what) or has_references(data):
                return
        except PayloadTooLarge as error:
            if self._may_hold_items(command) and data[:1] in (b"[", b"{"):
                self._store_lists(command, data, what, error)
            else:
                self._refuse(command, error)
            return
        self._offloading.add(command.op)
        self.offload(data, what, lambda blob: self._value_kept(command, blob))

    def _may_hold_items(self, command: Finish | StartChild | RunStep) -> bool:
        """Whether references to items may be in the value of a command: graphs take them, and give them."""
        if isinstance(command, StartChild):
            return self.replay.program(command).decides
        if not isinstance(command, Finish) or command.status is not RunStatus.COMPLETED:
            return False
        return self.replay.execution_of(command.op)[0].by_data

    def _store_lists(self, command: Finish | StartChild | RunStep, data: bytes, what: str, error: Exception) -> None:
        """Store the long lists in the value of a command as items."""

        def stored(found: bytes) -> None:
            if self.replay.pending.get(command.op) is not command:
                return
            if len(found) > self.services.payloads.limits.payload:
                self._refuse(command, error)
            elif isinstance(command, StartChild):
                self.replay.pending[command.op] = msgspec.structs.replace(command, input=found)
            elif isinstance(command, Finish):
                self.replay.pending[command.op] = msgspec.structs.replace(command, value=found)

        self._offload_or_load(command.op, self.services.payloads.with_items(data, what, self._gone), stored)

    def _refuse(self, command: Finish | StartChild | RunStep, error: BaseException) -> None:
        failure = describe(error, self.services.codec)
        self.replay.pending[command.op] = (
            Finish(RunStatus.FAILED, error=failure, op=command.op)
            if isinstance(command, Finish)
            else msgspec.structs.replace(command, refused=failure)
        )

    def _value_kept(self, command: Finish | StartChild | RunStep, blob: str | BaseException) -> None:
        self._offloading.discard(command.op)
        if self.closed or self.replay.pending.get(command.op) is not command:
            return
        if isinstance(blob, BaseException):
            self._refuse(command, blob)
        else:
            self.replay.pending[command.op] = msgspec.structs.replace(command, blob=blob)
        self._pump(None)

    def _load_wanted(self) -> None:
        """Load the values that the program needs, and hand them to it."""

        def given(values: Mapping[str, Raw]) -> None:
            for blob, value in values.items():
                try:
                    self.replay.give(blob, value, self.moment())
                except NotDecodable as error:
                    self._unreadable = error

        for blob in self.replay.wanted:
            self._load(f"blob {blob}", [blob], given)

    def _load_arguments(self, commands: Iterable[Command]) -> bool:
        """Load the arguments, from blobs, of steps that are about to begin. False if there are none."""
        lacking = {one.op: one for one in commands if isinstance(one, RunStep) and one.references}

        def resolve(values: Mapping[str, Raw]) -> None:
            for op in lacking:
                try:
                    self.replay.resolve(op, values)
                except NotDecodable as error:
                    self._unreadable = error

        if lacking:
            blobs = {blob for command in lacking.values() for _, blob in command.references}
            self._load(f"arguments of {next(iter(lacking))}", blobs, resolve)
        return bool(lacking)

    def _load(self, key: str, blobs: Collection[str], then: Callable[[Mapping[str, Raw]], None]) -> None:
        """Load values from blobs. Until they are here, nothing is planned."""
        if key not in self._offloading:
            self._offload_or_load(key, self.services.payloads.load_patiently(blobs, self._gone), then)

    def _load_program(self, command: StartChild) -> None:
        """Load the program of a child from its stored definition. Until it is here, nothing is planned."""
        load = self.services.programs.load_version(command.program, command.version)
        self._offload_or_load(command.op, load, lambda _: self._keep_value(command, asked=True))

    def _offload_or_load(self, key: str, work: Coroutine[Any, Any, T], then: Callable[[T], None]) -> None:
        """Await what the run cannot continue without, and continue after `then` has got it."""
        self._offloading.add(key)

        def done(found: T | BaseException) -> None:
            self._offloading.discard(key)
            if self.closed:
                return
            if isinstance(found, BaseException):
                raise found
            then(found)
            self._pump(None)

        self._in_task(work, done)

    def offload(self, data: bytes, what: str, then: Callable[[str | BaseException], None]) -> None:
        """Offload a value, and call `then` with its blob's id or the error."""
        self._in_task(self.services.payloads.offload_patiently(data, what, self._gone), then)

    def _in_task(self, work: Coroutine[Any, Any, T], then: Callable[[T | BaseException], None]) -> None:
        """Await something in a task, and call `then` with its result or error in a callback of the loop."""

        def done(task: asyncio.Task[T]) -> None:
            try:
                if not task.cancelled():
                    then(task.exception() or task.result())
            except BaseException as error:
                self.broke(contained(error))

        self.services.loop.create_task(work).add_done_callback(done)

    def _gone(self) -> bool:
        return self.closed and self._successor is None

    # --- the writer appends it ----------------------------------------------------------------------------------

    def next_append(self) -> Append | None:
        """Everything that is not in the store yet, as one append; the Writer asks for it."""
        if self.closed or self.stale:
            return None
        if self.outbox.unplanned and self.outbox.in_flight is None:
            self._pump(None, write=False)
        append = self.outbox.next_append(self._fsync)
        if self.services.runner.tracing is not None and append is not None:
            self.services.runner.tracing.writing(self, append)
        self._unsaved = 0
        return append

    def meanwhile(self) -> None:
        """The append is pending: use the time."""
        if self.attempts.calls:
            self.attempts.make_ready(self)

    def committed(self) -> None:
        """The append is durable: act on it."""
        outbox = self.outbox
        append = outbox.written()
        self.adopting = False
        if self.services.probes:
            self.services.probes.committed(self, append)
        while self._accepting and self._accepting[0][0] <= outbox.committed:
            accepted = self._accepting.pop(0)[1]
            if not accepted.done():
                accepted.set_result(None)
        if not (outbox.batches or outbox.events):
            self.attempts.large.clear()
            self._barrier = False
        if outbox.wanted or self._barrier:
            # More was recorded while this append was pending.
            self.services.writer.touch(self)
        if append.expected_next == 0:
            self.services.on_start(self)
        self._act()
        self.services.on_commit(self, append)
        if not self.closed:
            if not (outbox.same_row and self._undated):
                self._set_alarm()
            if self.attempts.channels:
                # After launching planned calls, which a continuous stream must not delay.
                self.attempts.channels_committed(self.outbox.committed)
            if self._unreadable is not None:
                self._stop_unreadable()

    def _act(self) -> None:
        """Start and stop attempts according to the durable journal."""
        attempts = self.attempts
        if attempts.cancels and self.saved:
            attempts.stop_given_up()
        if self._abandoned and self.saved:
            for id, reason in self._abandoned.items():
                self.services.on_abandoned(id, reason)
            self._abandoned.clear()
        # A call planned after the append was taken waits for the next one.
        outbox = self.outbox
        if attempts.calls and not (
            (self._waits or self._barrier) and (outbox.events or outbox.batches or outbox.in_flight)
        ):
            attempts.launch_planned(self)

    def _set_alarm(self, at_least: float = 0.0) -> None:
        due = self.state.wake_at
        self._undated = due is None
        if self._alarm is not None:
            if due is not None and self._alarm.when() <= self.services.loop.time() + due - self.services.clock.now():
                return
            self._alarm.cancel()
            self._alarm = None
        if due is not None and self.state.owner is not None and not self.retry_held:
            # At most an hour, in case the wall clock is set forward.
            wait = due - self.services.clock.now()
            wait = at_least if wait <= 0 else min(wait, 3600.0)
            self._alarm = self.services.loop.call_later(wait, self.ring)

    # --- leaving --------------------------------------------------------------------------------------------------

    @property
    def saved(self) -> bool:
        """Whether everything that happened is in the store."""
        return self.outbox.empty

    @property
    def quiet(self) -> bool:
        """Whether it must poll for events of other writers: no append is pending that would conflict with them."""
        outbox = self.outbox
        if self.stale or self.closed or outbox.in_flight or not outbox.committed:
            return False
        return self.saved or not outbox.wanted

    @property
    def idle(self) -> bool:
        """Whether the run can be evicted without losing anything."""
        # Pending commands of a paused run wait until it is resumed; replay issues them again.
        pending = self.state.paused is None and (self.replay.pending or self.replay.held)
        return not (self.attempts.busy or self._offloading or pending) and self.saved

    @property
    def working(self) -> bool:
        """Whether an attempt is running, or its outcome is not in an append yet."""
        return self.attempts.busy or bool(self._offloading)

    def release(self, owner: str) -> None:
        """Release the run: start nothing new, and append RunReleased."""
        self.attempts.flush_channels()
        self.attempts.cancel_running()
        self.attempts.forget_calls()
        self.outbox.unplanned = False
        if self.state.finished is None and self.state.owner == owner:
            event = RunReleased(owner)
            self._fold(event, event)
            self._touch()

    def close(self, cancel: bool = True) -> None:
        """Close the driver. Running attempts are cancelled, unless another driver takes them over."""
        self.closed = True
        for _, accepted in self._accepting:
            if not accepted.done():
                accepted.set_exception(NotKnown())
        self._accepting.clear()
        self.attempts.forget_calls()
        self.services.runner.notify_waiters()
        for handle in (self._alarm, self._lag):
            if handle is not None:
                handle.cancel()
        if cancel:
            self.attempts.cancel_all()
        self.replay.close()
