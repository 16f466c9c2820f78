"""The program `perdure.schedule`: one endless run per schedule, whose journal is all there is of it.

It sleeps until the next tick, starts a run for it under an id made from the tick, and repeats. Whatever depends
on the world (the rules of a time zone, whether a run is still open) is found out in a step, so that a replay elsewhere
goes the same way; when a step is made again after a crash, it finds the run that it had started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import msgspec

from perdure.authoring.code.body import Wait, require_body
from perdure.authoring.code.child import continue_as
from perdure.authoring.code.step import step
from perdure.authoring.code.waits import set_state
from perdure.authoring.code.workflow import Workflow, workflow
from perdure.client.base import StoreClient
from perdure.client.messages import Messages
from perdure.client.starts import Start, Starts
from perdure.engine.step_context import step_context
from perdure.errors import AlreadyExists, NotDecodable, PerdureError, SignalTimeout
from perdure.kernel.events import RunStatus
from perdure.kernel.invocation import EncodedInvocation
from perdure.kernel.policies.retry import Retry
from perdure.kernel.projection import RunRow
from perdure.kernel.schedules import schedule as kernel
from perdure.kernel.schedules.schedule import (
    CONTROL,
    PROGRAM,
    Backfill,
    Change,
    Control,
    Definition,
    Due,
    Fired,
    Order,
    Overlap,
    Pause,
    Resume,
    ScheduleSpec,
    ScheduleState,
    Survey,
    Trigger,
    stamp,
    tick_id,
)

# Retry for long before a tick fails: the store may be unreachable for a while.
_PATIENT = Retry(attempts=1000, initial=0.5, max=60.0)
# How often a parked run is polled, until a person resolves it.
_PARKED_SECONDS = 30.0
# After so many ticks and control signals a schedule continues in a new journal.
RENEWAL = 250
DUE = "the next run of its schedule is due"


class FireRequest(msgspec.Struct, frozen=True):
    """An order to start a run, with all that is needed to fire it.

    `busy`: another order waits in line. `patient`: it waits under any overlap policy. `at` is when it was given.
    """

    id: str
    definition: Definition
    order: Order
    previous: str
    busy: bool
    patient: bool
    after: float
    at: float


class ScheduledRuns:
    """The actions of schedules on runs, through their engine."""

    def __init__(self, base: StoreClient, starts: Starts, messages: Messages) -> None:
        self._base, self._starts, self._messages = base, starts, messages
        self._leaving = asyncio.Event()
        # Whether a tick that begins this run may fire now. A sweep fires so many and leaves the rest to the next.
        self.may_fire: Callable[[str], bool] = lambda run: True
        # The steps, by their idempotency keys, that only wait: for the end of a run with this id, or another sweep.
        self._held: dict[str, str | None] = {}

    def open(self) -> None:
        """The engine is open, perhaps again."""
        self._leaving = asyncio.Event()

    def close(self) -> None:
        """End the waits of steps: the engine is being closed."""
        self._leaving.set()

    async def fire(self, request: FireRequest) -> Fired:
        """Start the run of an order, unless the overlap policy says otherwise."""
        definition, order = request.definition, request.order
        if not self.may_fire(run_of(request.id, order)):
            with self._holding(None):
                await asyncio.Event().wait()  # until the sweep is over, which hands the schedule over
        ahead = kernel.ahead(definition.spec, request.id, request.after)
        id = run_of(request.id, order)
        found = await self._find(id)
        if found is not None:
            # By an attempt of this step that crashed, or by a tick that is being filled in again.
            if found.program != definition.program:
                return Fired("failed", ahead, f"the id {id!r} belongs to a run of {found.program!r}")
            before = order.backfill and found.created_at < request.at
            return Fired("existed" if before else "started", ahead)
        verdict = await self._overlap(definition.spec.overlap, request)
        if verdict is not None:
            return Fired(verdict, ahead)
        tick = {"tick": stamp(order.tick)} if order.tick is not None else {}
        input = definition.input.encode()
        if definition.deployed:
            from perdure.authoring.flow.scheduled import filled  # which few schedules need

            try:
                at = order.tick if order.tick is not None else request.at
                input = filled(definition.input, request.id, at, definition.spec.timezone)
            except PerdureError as error:
                return Fired("failed", ahead, str(error))
        try:
            _ = await self._starts.start(
                Start(
                    EncodedInvocation(definition.program, input, request.id, order.tick, definition.rules),
                    id=id,
                    tags={**definition.tags, "schedule": request.id, **tick},
                    queue=definition.queue or None,
                    key=definition.queue_key or None,
                    priority=definition.priority,
                    deadline=definition.deadline,
                    max_concurrency=definition.max_concurrency,
                    durability=definition.durability or None,
                )
            )
        except AlreadyExists as error:
            return Fired("failed", ahead, str(error))
        return Fired("started", ahead)

    async def _overlap(self, overlap: Overlap, request: FireRequest) -> Literal["skipped", "waits"] | None:
        """What happens to an order that is not started now; None: start it."""
        if overlap == "allow":
            return None
        previous = await self._open(request.previous) if request.previous else None
        if request.patient:
            return "waits" if previous is not None else None
        if overlap == "buffer_one" and request.busy:
            return "skipped"
        if previous is None:
            return "waits" if request.busy else None
        if overlap == "cancel_previous":
            await self._messages.cancel(previous.run_id, DUE)
        elif overlap == "terminate_previous":
            await self._messages.terminate(previous.run_id, DUE)
            return None
        return "skipped" if overlap == "skip" else "waits"

    @contextmanager
    def _holding(self, id: str | None) -> Iterator[None]:
        """The step that runs now only waits: for the end of the run with this id, or None for another sweep."""
        key = step_context().id
        self._held[key] = id
        try:
            yield
        finally:
            del self._held[key]

    async def is_held(self, key: str) -> bool:
        """Whether the step with this idempotency key waits for another sweep, or for a run that is still open."""
        if key not in self._held:
            return False
        id = self._held[key]
        # A run that has ended is about to be noticed.
        return id is None or await self._open(id) is not None

    async def ended(self, id: str) -> bool:
        """Wait until no run under this id is open; False when the engine is left before."""
        while True:
            run = await self._open(id)
            if run is None:
                return True
            end = asyncio.ensure_future(self._end(run))
            leaving = asyncio.ensure_future(self._leaving.wait())
            try:
                with self._holding(id):
                    await asyncio.wait({end, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if not end.done():
                    return False
                end.result()
            finally:
                end.cancel()
                leaving.cancel()

    async def _end(self, run: RunRow) -> None:
        row = await self._base.watch.wait_for_end(run.run_id)
        if row.status is RunStatus.PARKED:
            await asyncio.sleep(_PARKED_SECONDS)

    async def _open(self, id: str) -> RunRow | None:
        run = await self._find(id)
        return run if run is not None and run.finished_at is None else None

    async def _find(self, id: str) -> RunRow | None:
        found = await self._base.store.runs.find(id)
        return found[0] if found is not None else None


def run_of(id: str, order: Order) -> str:
    """The id of the run that an order starts."""
    if order.run:
        return order.run
    assert order.tick is not None
    return tick_id(id, order.tick)


@step(name="survey", retry=_PATIENT)
def _survey(spec: ScheduleSpec, id: str, after: float, until: float, now: float) -> Survey:
    return kernel.survey(spec, id, after, until, now)


@step(name="between", retry=_PATIENT)
def _between(spec: ScheduleSpec, start: float, end: float) -> list[float]:
    return kernel.between(spec, start, end)


class ScheduleBody:
    """The body of one schedule."""

    def __init__(
        self,
        id: str,
        definition: Definition,
        book: ScheduleState,
        fire: Callable[[FireRequest], Awaitable[Fired]],
        ended: Callable[[str], Awaitable[bool]],
    ) -> None:
        self.id, self.definition, self.book = id, definition, book
        # The steps that start a run, and wait for the end of one.
        self._fire_step, self._ended = fire, ended
        # The next two ticks; None while they are not known.
        self._ahead: tuple[Due, ...] | None = None
        # What is as it usually is need not be said.
        self._published: dict[str, Any] = dict.fromkeys(("last_tick", "last_run", "trouble"))
        self._published |= {"paused": False, "failed": 0, "waiting": 0}
        self._said_paused: bool | None = None
        self._body = require_body("a schedule")
        self.turns = 0

    async def turn(self) -> None:
        """Do what is due, then wait for what comes next: a tick, a control signal, the end of a run."""
        self.turns += 1
        await self._catch_up(self._body.loop.now)
        self._publish()
        control = await self._next_control()
        if control is not None:
            await self._apply(control)

    async def _catch_up(self, until: float) -> None:
        """Fire the ticks that are due by then, by the policy for those that were missed."""
        book, spec = self.book, self.definition.spec
        while not book.paused:
            if self._ahead is not None and (not self._ahead or until < self._ahead[0].at):
                return
            now = self._body.loop.now
            if self._ahead is not None and until == now and kernel.on_time(spec, self._ahead, now):
                book.after = self._ahead[0].tick
                await self._fire(Order(book.after))
                continue
            found = await _survey(spec, self.id, book.after, until, now)
            book.after, self._ahead = found.after, found.ahead
            book.skipped += found.skipped
            for tick in found.fire:
                await self._fire(Order(tick))

    async def _fire(self, order: Order, *, patient: bool = False) -> None:
        book = self.book
        busy = any(not waiting.backfill for waiting in book.backlog)
        request = FireRequest(
            self.id, self.definition, order, book.previous, busy, patient, book.after, self._body.loop.now
        )
        try:
            fired = await self._fire_step(request)
        except Exception as error:
            fired = Fired("failed", (), f"{type(error).__name__}: {error}")
            self._ahead = None
        else:
            self._ahead = fired.ahead
        if fired.outcome in ("started", "existed"):
            book.previous = run_of(self.id, order)
            book.fired += fired.outcome == "started"
            if order.tick is not None:
                book.last_tick = max(order.tick, book.last_tick or order.tick)
        elif fired.outcome == "skipped":
            book.skipped += 1
        elif fired.outcome == "failed":
            book.failed += 1
            book.trouble = fired.trouble
        else:
            # At most one tick waits, and it is the latest; those that are filled in come after it.
            others = [waiting for waiting in book.backlog if waiting.backfill]
            book.skipped += 0 if order.backfill else len(book.backlog) - len(others)
            book.backlog = [order, *(book.backlog if order.backfill else others)]
        self._publish()

    async def _next_control(self) -> Control | None:
        """The next control signal; None when a tick is due, or the previous run has ended and the next may start."""
        book = self.book
        deadline = self._ahead[0].at if self._ahead and not book.paused else None
        if not book.backlog:
            return await self._listen(deadline)
        said = asyncio.ensure_future(self._listen(deadline))
        ended = asyncio.ensure_future(self._previous_ended())
        await asyncio.wait({said, ended}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done() and ended.result():
            waiting, *book.backlog = book.backlog
            await self._fire(waiting, patient=True)
        if not said.done():
            said.cancel()
            return None
        ended.cancel()
        return said.result()

    async def _previous_ended(self) -> bool:
        return not self.book.previous or await self._ended(self.book.previous)

    async def _listen(self, deadline: float | None) -> Control | None:
        try:
            said: Control = await self._body.wait(Wait("signal", CONTROL, Control, judges=True), deadline)
            return said
        except SignalTimeout:
            return None
        except NotDecodable as error:
            self.book.trouble = str(error)
            return None

    async def _apply(self, control: Control) -> None:
        if isinstance(control, Pause):
            await self._until_then(control, paused=True)
            self.book.paused = True
        elif isinstance(control, Resume):
            if self.book.paused:
                self._restart_from(control.at, paused=False)
        elif isinstance(control, Trigger):
            await self._fire(Order(run=control.run))
        elif isinstance(control, Backfill):
            await self._fill_in(control)
        elif isinstance(control, Change):
            before, after = self.definition.spec, control.definition.spec
            # A schedule that was paused by hand stays so, unless the pause itself is what changed.
            paused = after.pause if after.pause != before.pause else self.book.paused
            set_state("definition", control.definition)
            await self._until_then(control, paused=paused)
            self.definition = control.definition
            self._restart_from(control.at, paused=paused)
        self._publish()

    async def _until_then(self, control: Pause | Change, *, paused: bool) -> None:
        """Publish the change at once; ticks that were due before it still follow the former definition."""
        self._said_paused = paused
        self._publish()
        await self._catch_up(min(control.at, self._body.loop.now))
        self._said_paused = None

    def _restart_from(self, at: float, *, paused: bool) -> None:
        self.book.paused = paused
        self.book.after = max(self.book.after, at)
        self._ahead = None

    async def _fill_in(self, control: Backfill) -> None:
        spec = self.definition.spec
        orders = [Order(tick, backfill=True) for tick in await _between(spec, control.start, control.end)]
        if spec.overlap != "allow":
            self.book.backlog += orders
            return
        for order in orders:
            await self._fire(order)

    def _publish(self) -> None:
        """Show what has changed, in `get("schedule:<id>").state`."""
        book = self.book
        values = {
            "paused": book.paused if self._said_paused is None else self._said_paused,
            "fired": book.fired,
            "skipped": book.skipped,
            "failed": book.failed,
            "waiting": len(book.backlog),
            "last_tick": None if book.last_tick is None else stamp(book.last_tick),
            "last_run": book.previous or None,
            "trouble": book.trouble or None,
            "next_tick": stamp(self._ahead[0].tick) if self._ahead and not book.paused else None,
        }
        for key, value in values.items():
            if key not in self._published or self._published[key] != value:
                self._published[key] = value
                set_state(key, value)


def schedule_program(runs: ScheduledRuns) -> Workflow[..., None]:
    """The program, for an engine whose runs these are."""
    fire = step(name="fire", retry=_PATIENT)(runs.fire)
    ended = step(name="previous_ended", retry=_PATIENT)(runs.ended)

    @workflow(name=PROGRAM)
    async def schedule(id: str, definition: Definition, book: ScheduleState) -> None:
        body = ScheduleBody(id, definition, book, fire, ended)
        while body.turns < RENEWAL:
            await body.turn()
        continue_as(id, body.definition, body.book)

    return schedule
