"""The schedules of a client. A schedule is a run of `perdure.schedule`, controlled by signals."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from perdure.client.base import StoreClient
from perdure.client.definitions import Definitions
from perdure.client.gateway import RunGateway, decided
from perdure.client.messages import Messages
from perdure.client.queries import pages
from perdure.client.starts import Start, Starts
from perdure.errors import AlreadyExists, Corrupt, NoSuchSchedule, UsageError
from perdure.kernel.events import RunStatus, moment
from perdure.kernel.ids import MAX_ID, check_id, check_text
from perdure.kernel.inbound import UNDECIDED, Accepted, Decided, Duplicate, Undecided
from perdure.kernel.invocation import Invocation, check_invocation
from perdure.kernel.policies.durability import Durability
from perdure.kernel.policies.durability import durability as durability_of
from perdure.kernel.policies.rules import RulesLike, run_rules
from perdure.kernel.policies.start_options import at_least_one, checked_tags, placed, seconds
from perdure.kernel.program import Program
from perdure.kernel.projection import RunRow
from perdure.kernel.schedules import schedule as kernel
from perdure.kernel.schedules.schedule import (
    CONTROL,
    PREFIX,
    PROGRAM,
    Backfill,
    CatchUp,
    Change,
    Control,
    Definition,
    Overlap,
    Pause,
    Resume,
    ScheduleSpec,
    ScheduleState,
    Trigger,
    check_schedule_id,
    schedule_spec,
    tick_id,
)
from perdure.kernel.state import RunState, fold
from perdure.ports.runs import RunFilter

_PAGE = 500


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """A schedule as it is now. `fired`, `skipped` and `failed` count ticks; `waiting` counts those in line."""

    id: str
    program: str
    input: Any
    every: timedelta | None
    cron: str | None
    timezone: str
    overlap: str
    catch_up: str
    jitter: timedelta | None
    paused: bool
    fired: int
    skipped: int
    failed: int
    waiting: int
    last_tick: datetime | None
    next_tick: datetime | None
    last_run: str | None
    trouble: str | None
    created_at: datetime
    queue: str | None
    key: str | None
    priority: int
    tags: dict[str, str]
    deadline: timedelta | None = None
    max_concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule that an engine declares when it opens: `Engine(url, [report], schedules=[Schedule(...)])`.

    It takes what `engine.schedule(...)` takes, with the same effect: a new schedule is created, an unchanged one stays
    as it is, and a changed one gets this definition.
    """

    id: str
    invocation: Invocation[Any]
    _: KW_ONLY
    every: float | timedelta | None = None
    cron: str | None = None
    timezone: str = "UTC"
    overlap: Overlap = "skip"
    catch_up: str | CatchUp = "one"
    jitter: float | timedelta | None = None
    pause: bool = False
    queue: str | None = None
    key: str | None = None
    priority: int = 0
    tags: dict[str, str] | None = None
    deadline: float | timedelta | None = None
    max_concurrency: int | None = None
    durability: str | Durability | None = None
    rules: RulesLike = ()

    def spec(self) -> ScheduleSpec:
        """When it fires, checked."""
        check_schedule_id(self.id)
        check_invocation(self.invocation, "schedule")
        return schedule_spec(
            every=self.every,
            cron=self.cron,
            timezone=self.timezone,
            overlap=self.overlap,
            catch_up=self.catch_up,
            jitter=self.jitter,
            pause=self.pause,
        )


@dataclass(frozen=True, slots=True)
class Deployment:
    """A flow that was deployed: its version, its schedules, and the ids of those that were deleted."""

    name: str
    version: str
    schedules: tuple[ScheduleView, ...]
    deleted: tuple[str, ...]


# The tags that every run of a schedule has.
OWN_TAGS = frozenset({"schedule", "tick"})


class Schedules:
    """Makes schedules, and lists them."""

    def __init__(
        self, base: StoreClient, gateway: RunGateway, messages: Messages, starts: Starts, definitions: Definitions
    ) -> None:
        self.base, self._gateway, self.messages, self.starts = base, gateway, messages, starts
        self._definitions = definitions

    async def get(self, id: str) -> ScheduleHandle:
        """A handle of a schedule that exists; raises NoSuchSchedule."""
        self.base.check_open()
        handle = ScheduleHandle(self, check_schedule_id(id))
        await handle._read()
        return handle

    async def declare(self, asked: Schedule, by: str | None = None) -> ScheduleHandle:
        """Create a schedule, or change it to this definition. `by` is who asks for it."""
        spec, invocation = asked.spec(), asked.invocation
        handle = ScheduleHandle(self, check_schedule_id(asked.id))
        if kernel.next_fire(spec, self.base.clock.now()) is None:
            raise UsageError(f"cron={asked.cron!r} never fires from now on; choose another day or month")
        place, marks = placed(asked.queue, asked.key, asked.priority), checked_tags(asked.tags) or {}
        if own := sorted(OWN_TAGS & marks.keys()):
            raise UsageError(
                f"tags={asked.tags!r:.80}: {', '.join(own)} is set by the schedule itself; choose another name"
            )
        if isinstance(asked.deadline, datetime):
            raise UsageError(
                "the the deadline= of a schedule is how long each of its runs may take: seconds or a timedelta"
            )
        if asked.durability is not None:
            self.base.store.check_durability(durability_of(asked.durability))
        program = self._gateway.program(invocation)
        input = invocation.encode(program, self.base.codec)
        if program is not None:
            program.check_input(msgspec.Raw(input), self.base.codec)
        else:
            input = await self.base.signatures.check(invocation.name, input)
        self.base.payloads.fits_inline(len(input), f"the input of {invocation.name}")
        await handle._define(
            Definition(
                spec,
                invocation.name,
                input.decode(),
                place.queue,
                place.key,
                place.priority,
                marks,
                None if asked.deadline is None else seconds(asked.deadline, "deadline"),
                at_least_one(asked.max_concurrency),
                "" if asked.durability is None else str(durability_of(asked.durability)),
                run_rules(asked.rules, program),
            ),
            check_text(by, "by"),
        )
        return handle

    async def list(self) -> Sequence[ScheduleView]:
        """All schedules, by id."""
        return sorted(map(self.view, await self._known()), key=lambda view: view.id)

    async def _known(self) -> Sequence[_Schedule]:
        """All schedules."""
        self.base.check_open()
        found: list[_Schedule] = []
        open_ = [status for status in RunStatus if not status.finished]
        async for page in pages(self.base.store, RunFilter(open_, PROGRAM, limit=_PAGE)):
            journals = await self.base.store.journal.read_many([row.run_id for row in page])
            for row in page:
                journal = journals.get(row.run_id, [])
                if isinstance(journal, Exception):
                    raise journal
                found.append(await self.read(row, fold(row.run_id, journal)))
        return found

    async def deploy(self, program: Program) -> Deployment:
        """Store a flow as the latest of its name, and make its schedules those that are in its file.

        Schedules that an earlier version had, and this one no longer has, are deleted. The same flow again changes
        nothing.
        """
        known = {one.id: one.definition for one in await self._known()}
        asked = {one.id: one for one in program.schedules}
        for id in asked:
            before = known.get(id)
            if before is not None and not (before.deployed and before.program == program.name):
                raise UsageError(
                    f"there is a schedule {id!r} of {before.program} already, which was not deployed with "
                    f"{program.name}; delete it, or give this one another id"
                )
        version = await self._definitions.store(program)
        handles = [ScheduleHandle(self, id) for id in asked]
        for handle, one in zip(handles, asked.values(), strict=True):
            await handle._define(Definition(one.spec, program.name, one.input, queue=one.queue, deployed=True))
        gone = [id for id, one in known.items() if one.deployed and one.program == program.name and id not in asked]
        for id in gone:
            with suppress(NoSuchSchedule):
                await ScheduleHandle(self, id).delete()
        return Deployment(program.name, version, tuple([await handle.view() for handle in handles]), tuple(gone))

    async def read(self, row: RunRow, state: RunState) -> _Schedule:
        """The state of a schedule, with the signals that it has not read yet."""
        data = await self.base.payloads.load(row.input_blob, row.input)
        try:
            opening = msgspec.json.decode(data, type=_Opening)
            id, definition, book = opening.id, opening.definition, opening.book
            if "definition" in state.values:
                definition = msgspec.json.decode(state.values["definition"], type=Definition)
        except msgspec.ValidationError as error:
            raise Corrupt(f"the schedule {row.id!r}", str(error), row.run_id) from error
        shown = {key: msgspec.json.decode(value) for key, value in state.values.items()}
        known = _Schedule(row, id, definition, book, shown, bool(shown.get("paused", book.paused)))
        for signal in state.inbox.get(CONTROL, ()):
            try:
                said = msgspec.json.decode(signal.payload, type=Control)
            except msgspec.ValidationError:
                continue
            if isinstance(said, Pause | Resume):
                known.paused = isinstance(said, Pause)
            elif isinstance(said, Change):
                if said.definition.spec.pause != known.definition.spec.pause:
                    known.paused = said.definition.spec.pause
                known.definition = said.definition
        return known

    def view(self, known: _Schedule) -> ScheduleView:
        """A schedule for callers."""
        spec, shown, book = known.definition.spec, known.shown, known.book
        upcoming = None if known.paused else next(iter(known.upcoming(self.base.clock.now(), 1)), None)
        return ScheduleView(
            id=known.id,
            program=known.definition.program,
            input=msgspec.json.decode(known.definition.input),
            every=None if spec.every is None else timedelta(seconds=spec.every),
            cron=spec.cron,
            timezone=spec.timezone,
            overlap=spec.overlap,
            catch_up=str(spec.catch_up),
            jitter=timedelta(seconds=spec.jitter) if spec.jitter else None,
            paused=known.paused,
            fired=shown.get("fired", book.fired),
            skipped=shown.get("skipped", book.skipped),
            failed=shown.get("failed", book.failed),
            waiting=shown.get("waiting", len(book.backlog)),
            last_tick=known.last_tick,
            next_tick=None if upcoming is None else moment(upcoming),
            last_run=shown.get("last_run", book.previous or None),
            trouble=shown.get("trouble", book.trouble) or known.row.reason or None,
            created_at=moment(known.row.created_at),
            queue=known.definition.queue or None,
            key=known.definition.queue_key or None,
            priority=known.definition.priority,
            tags=known.definition.tags,
            deadline=None if known.definition.deadline is None else timedelta(seconds=known.definition.deadline),
            max_concurrency=known.definition.max_concurrency,
        )


class _Opening(msgspec.Struct, frozen=True):
    """The arguments of the run of a schedule."""

    id: str
    definition: Definition
    book: ScheduleState


@dataclass(slots=True)
class _Schedule:
    """A schedule as its journal says."""

    row: RunRow
    id: str
    definition: Definition
    book: ScheduleState
    shown: dict[str, Any]
    paused: bool

    @property
    def last_tick(self) -> datetime | None:
        """The latest tick that started a run."""
        if "last_tick" in self.shown:
            return datetime.fromisoformat(self.shown["last_tick"])
        return None if self.book.last_tick is None else moment(self.book.last_tick)

    def upcoming(self, now: float, count: int) -> list[float]:
        """The next ticks that are not accounted for."""
        last = self.last_tick
        found: list[float] = []
        for tick in kernel.ticks(self.definition.spec, max(now, last.timestamp() if last is not None else now)):
            if len(found) == count:
                break
            found.append(tick)
        return found


class ScheduleHandle:
    """One schedule: pause it, trigger it, look ahead."""

    def __init__(self, schedules: Schedules, id: str) -> None:
        self._schedules = schedules
        self.id = id

    async def view(self) -> ScheduleView:
        """The schedule as it is now."""
        return self._schedules.view(await self._read())

    async def pause(self, reason: str | None = None, *, by: str | None = None) -> None:
        """Fire no tick until it is resumed. Runs that have been started continue. `by` is who asks for it."""
        await self._send(Pause(self._schedules.base.clock.now(), reason or "", check_text(by, "by")))

    async def resume(self, *, by: str | None = None) -> None:
        """Fire again, from the next tick; the ticks of the pause are not caught up."""
        await self._send(Resume(self._schedules.base.clock.now(), check_text(by, "by")))

    async def trigger(self, trigger_id: str | None = None, *, by: str | None = None) -> str:
        """Start a run now, if the overlap policy allows, also while the schedule is paused. Returns the run's id.

        A `trigger_id` deduplicates it: called again with the same one, it returns the id of the same run.
        """
        return (await self.trigger_once(trigger_id, by))[0]

    async def trigger_once(self, trigger_id: str | None, by: str | None) -> tuple[str, bool]:
        """As `trigger`, and whether it was a duplicate."""
        now, key = self._schedules.base.clock.now(), check_text(trigger_id, "trigger_id", MAX_ID)
        run = f"{self.id}!{key}" if key else f"{tick_id(self.id, now)}!{secrets.token_hex(3)}"
        duplicate = await self._send(Trigger(now, check_id(run), check_text(by, "by")), key)
        return run, duplicate

    async def next(self, count: int = 10) -> Sequence[datetime]:
        """The next `count` times at which the schedule fires, with jitter, if it is not paused."""
        if count < 1:
            raise UsageError(f"next({count}): ask for at least one")
        known = await self._read()
        spec = known.definition.spec
        ticks = known.upcoming(self._schedules.base.clock.now(), count)
        return [moment(kernel.fires_at(spec, self.id, tick)) for tick in ticks]

    async def backfill(
        self, start: datetime, end: datetime, backfill_id: str | None = None, *, by: str | None = None
    ) -> Sequence[str]:
        """Fire the ticks from `start` until before `end` as if they were due now; returns the ids of their runs.

        They run one after the other, unless overlap is `allow`. A tick whose run exists already is not fired again. A
        `backfill_id` deduplicates it.
        """
        return (await self.backfill_once(start, end, backfill_id, by))[0]

    async def backfill_once(
        self, start: datetime, end: datetime, backfill_id: str | None, by: str | None
    ) -> tuple[Sequence[str], bool]:
        """As `backfill`, and whether it was a duplicate."""
        for name, value in (("start", start), ("end", end)):
            if not isinstance(value, datetime) or value.tzinfo is None:
                raise UsageError(
                    f"backfill({name}={value!r:.80}) needs a datetime with a time zone; write "
                    "datetime(2026, 1, 1, tzinfo=UTC)"
                )
        now = self._schedules.base.clock.now()
        if end.timestamp() > now:
            raise UsageError(
                f"backfill(end={end.isoformat()}) is in the future; those ticks will fire when they are due"
            )
        if start >= end:
            raise UsageError(f"backfill(start={start.isoformat()}, end={end.isoformat()}): start must be before end")
        known = await self._read()
        ticks = kernel.between(known.definition.spec, start.timestamp(), end.timestamp())
        key = check_text(backfill_id, "backfill_id", MAX_ID)
        asked = Backfill(now, start.timestamp(), end.timestamp(), check_text(by, "by"))
        duplicate = bool(ticks) and await self._send(asked, key and f"backfill {key}")
        return [tick_id(self.id, tick) for tick in ticks], duplicate

    async def delete(self, *, by: str | None = None) -> None:
        """End the schedule. Runs that it has started continue; ticks that wait in line are dropped."""
        known = await self._read()
        person = check_text(by, "by")
        reason = "the schedule was deleted" + (f" by {person}" if person else "")
        await self._schedules.messages.terminate(known.row.run_id, reason)

    async def _read(self) -> _Schedule:
        found = await self._schedules.base.store.runs.find(PREFIX + self.id)
        if found is None or found[0].status.finished:
            raise NoSuchSchedule(self.id)
        row = found[0]
        state = fold(row.run_id, await self._schedules.base.store.journal.read(row.run_id))
        if state.finished is not None:
            raise NoSuchSchedule(self.id)
        return await self._schedules.read(row, state)

    async def _define(self, definition: Definition, by: str = "") -> None:
        """Create or change the schedule, also while another caller does the same."""

        async def attempt() -> Decided[None] | Undecided:
            try:
                known = await self._read()
            except NoSuchSchedule:
                return Decided(None) if await self._create(definition, by) else UNDECIDED
            if known.definition == definition:
                return Decided(None)
            now = self._schedules.base.clock.now()
            verdict = await self._schedules.messages.signal(known.row.id, CONTROL, Change(now, definition, by))
            return Decided(None) if isinstance(verdict, Accepted | Duplicate) else UNDECIDED

        await decided(attempt)

    async def _create(self, definition: Definition, by: str) -> bool:
        book = ScheduleState(self._schedules.base.clock.now(), definition.spec.pause)
        arguments = {"id": self.id, "definition": definition, "book": book}
        invocation: Invocation[None] = Invocation(PROGRAM, None, (), arguments)
        try:
            # One that was deleted is cancelled; one that another caller has just made is read.
            _ = await self._schedules.starts.start(
                Start(
                    invocation,
                    id=PREFIX + self.id,
                    reuse="allow_if_failed",
                    durability="sync",
                    tags={"schedule": self.id, **({"by": by} if by else {})},
                )
            )
        except AlreadyExists:
            return False
        return True

    async def _send(self, control: Control, given: str = "") -> bool:
        """Send it, once for each key that is given; whether it was sent before."""
        key = given or secrets.token_hex(8)

        async def attempt() -> Decided[bool] | Undecided:
            verdict = await self._schedules.messages.signal(PREFIX + self.id, CONTROL, control, key)
            if isinstance(verdict, Accepted | Duplicate):
                return Decided(bool(given) and isinstance(verdict, Duplicate))
            # It has ended, or has just continued in a new journal.
            await self._read()
            return UNDECIDED

        return await decided(attempt)

    def __repr__(self) -> str:
        return f"<schedule {self.id!r}>"
