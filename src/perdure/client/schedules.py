"""What callers do with schedules. A schedule is a run of `perdure.schedule`: it is told what to do by signals."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import msgspec

from perdure.client.messages import Telling
from perdure.errors import AlreadyExists, Corrupt, NoSuchSchedule, UsageError
from perdure.kernel.events import RunStatus, moment
from perdure.kernel.inbound import Accepted, Duplicate
from perdure.kernel.invocation import Invocation, check_invocation
from perdure.kernel.policies.durability import Durability
from perdure.kernel.policies.durability import durability as durability_of
from perdure.kernel.policies.rule_names import run_rules
from perdure.kernel.policies.rules import RulesLike
from perdure.kernel.policies.start_options import at_least_one, placed, seconds
from perdure.kernel.policies.tags import checked_tags
from perdure.kernel.projection import RunRow
from perdure.kernel.schedules import schedule as kernel
from perdure.kernel.schedules.schedule import (
    CONTROL,
    PREFIX,
    PROGRAM,
    Backfill,
    Book,
    CatchUp,
    Change,
    Control,
    Definition,
    Overlap,
    Pause,
    Resume,
    ScheduleSpec,
    Trigger,
    check_schedule_id,
    schedule_spec,
    tick_id,
)
from perdure.kernel.state import RunState, fold
from perdure.ports.runs import RunFilter

if TYPE_CHECKING:
    from perdure.client.client import Client

_PAGE = 500


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """A schedule as it stands. `fired`, `skipped` and `failed` count ticks; `waiting` are those that wait in line."""

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

    What it takes is what `engine.schedule(...)` takes, and what becomes of it is the same: it is made if there is none
    under its id, stays as it is if it is the same, and becomes what is declared now if that has changed.
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


# What the runs of a schedule are marked with in any case.
OWN_TAGS = frozenset({"schedule", "tick"})


class Scheduling(Telling):
    """Makes schedules, and lists them."""

    async def schedule(
        self,
        id: str,
        invocation: Invocation[Any] | None = None,
        *,
        every: float | timedelta | None = None,
        cron: str | None = None,
        timezone: str = "UTC",
        overlap: Overlap = "skip",
        catch_up: str | CatchUp = "one",
        jitter: float | timedelta | None = None,
        pause: bool = False,
        queue: str | None = None,
        key: str | None = None,
        priority: int = 0,
        tags: dict[str, str] | None = None,
        deadline: float | timedelta | None = None,
        max_concurrency: int | None = None,
        durability: str | Durability | None = None,
        rules: RulesLike = (),
    ) -> ScheduleHandle:
        """Start a run at every tick, durably. A schedule that exists under this id becomes what is asked for now.

        Its runs are started with the options of `start`: they wait in `queue`, if there is one, bear `tags` beside
        those of the schedule, and each has `deadline` seconds. Without an invocation: the schedule as it is.
        """
        self._check_open()
        handle = ScheduleHandle(cast("Client", self), check_schedule_id(id))
        if invocation is None:
            if every is not None or cron is not None:
                raise UsageError(f"schedule({id!r}, ...) needs an invocation such as report(day='today')")
            await handle._read()
            return handle
        return await self._declare(
            Schedule(
                id,
                invocation,
                every=every,
                cron=cron,
                timezone=timezone,
                overlap=overlap,
                catch_up=catch_up,
                jitter=jitter,
                pause=pause,
                queue=queue,
                key=key,
                priority=priority,
                tags=tags,
                deadline=deadline,
                max_concurrency=max_concurrency,
                durability=durability,
                rules=rules,
            )
        )

    async def _declare(self, asked: Schedule) -> ScheduleHandle:
        """Make a schedule what was asked for."""
        handle, spec, invocation = ScheduleHandle(cast("Client", self), asked.id), asked.spec(), asked.invocation
        if kernel.next_fire(spec, self.clock.now()) is None:
            raise UsageError(f"cron={asked.cron!r} never fires from now on; choose another day or month")
        place, marks = placed(asked.queue, asked.key, asked.priority), checked_tags(asked.tags) or {}
        if own := sorted(OWN_TAGS & marks.keys()):
            raise UsageError(
                f"tags={asked.tags!r:.80}: {', '.join(own)} is set by the schedule itself; choose another name"
            )
        if isinstance(asked.deadline, datetime):
            raise UsageError("deadline= of a schedule is how long each of its runs may take: seconds or a timedelta")
        if asked.durability is not None:
            self.store.promise(durability_of(asked.durability))
        program = handle._client._program(invocation)
        input = invocation.encode(program, self.codec)
        if program is not None:
            program.check_input(msgspec.Raw(input), self.codec)
        else:
            await self._signatures.check(invocation.name, input)
        self.payloads.fits_inline(len(input), f"the input of {invocation.name}")
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
            )
        )
        return handle

    async def schedules(self) -> Sequence[ScheduleView]:
        """All schedules, by their ids."""
        self._check_open()
        found: list[ScheduleView] = []
        cursor: str | None = None
        open_ = [status for status in RunStatus if not status.finished]
        while True:
            page = await self.store.runs.list(RunFilter(open_, PROGRAM, limit=_PAGE, cursor=cursor))
            journals = await self.store.journal.read_many([row.run_id for row, _ in page])
            for row, _ in page:
                journal = journals.get(row.run_id, [])
                if isinstance(journal, Exception):
                    raise journal
                found.append(self._view(await self._schedule(row, fold(row.run_id, journal))))
            if len(page) < _PAGE:
                return sorted(found, key=lambda view: view.id)
            cursor = page[-1][0].run_id

    async def _schedule(self, row: RunRow, state: RunState) -> _Schedule:
        """What is known of a schedule, with what it has been told and not read yet."""
        data = await self.payloads.load(row.input_blob, row.input)
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

    def _view(self, known: _Schedule) -> ScheduleView:
        spec, shown, book = known.definition.spec, known.shown, known.book
        upcoming = None if known.paused else next(iter(known.upcoming(self.clock.now(), 1)), None)
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
    """What the run of a schedule is started with: the arguments of its program."""

    id: str
    definition: Definition
    book: Book


@dataclass(slots=True)
class _Schedule:
    """A schedule as its journal tells it."""

    row: RunRow
    id: str
    definition: Definition
    book: Book
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

    def __init__(self, client: Client, id: str) -> None:
        self._client = client
        self.id = id

    async def view(self) -> ScheduleView:
        """The schedule as it stands."""
        return self._client._view(await self._read())

    async def pause(self, reason: str | None = None) -> None:
        """Fire nothing until further notice. Runs that have been started go on."""
        await self._tell(Pause(self._client.clock.now(), reason or ""))

    async def resume(self) -> None:
        """Fire again, from the next tick on; those of the pause are not caught up."""
        await self._tell(Resume(self._client.clock.now()))

    async def trigger(self) -> str:
        """Start a run now, if the overlap policy allows, also while the schedule is paused. Returns the run's id."""
        now = self._client.clock.now()
        run = f"{tick_id(self.id, now)}!{secrets.token_hex(3)}"
        await self._tell(Trigger(now, run))
        return run

    async def next(self, count: int = 10) -> Sequence[datetime]:
        """When the schedule fires next, if it is not paused: the moments of its ticks, with their jitter."""
        if count < 1:
            raise UsageError(f"next({count}): ask for at least one")
        known = await self._read()
        spec = known.definition.spec
        ticks = known.upcoming(self._client.clock.now(), count)
        return [moment(kernel.fires_at(spec, self.id, tick)) for tick in ticks]

    async def backfill(self, start: datetime, end: datetime) -> Sequence[str]:
        """Fire the ticks from `start` on and before `end` as if they were due now, and return the ids of their runs.

        One after the other, unless overlap is `allow`. A tick whose run exists already is not fired again.
        """
        for name, value in (("start", start), ("end", end)):
            if not isinstance(value, datetime) or value.tzinfo is None:
                raise UsageError(
                    f"backfill({name}={value!r:.80}) needs a datetime with a timezone; write "
                    "datetime(2026, 1, 1, tzinfo=UTC)"
                )
        now = self._client.clock.now()
        if end.timestamp() > now:
            raise UsageError(f"backfill(end={end.isoformat()}) is in the future; those ticks will fire by themselves")
        if start >= end:
            raise UsageError(f"backfill(start={start.isoformat()}, end={end.isoformat()}): start must be before end")
        known = await self._read()
        ticks = kernel.between(known.definition.spec, start.timestamp(), end.timestamp())
        if ticks:
            await self._tell(Backfill(now, start.timestamp(), end.timestamp()))
        return [tick_id(self.id, tick) for tick in ticks]

    async def delete(self) -> None:
        """End the schedule. Runs that it has started go on; what waits in line is dropped."""
        known = await self._read()
        await self._client._terminate(known.row, "the schedule was deleted")

    async def _read(self) -> _Schedule:
        found = await self._client.store.runs.find(PREFIX + self.id)
        if found is None or found[0].status.finished:
            raise NoSuchSchedule(self.id)
        row = found[0]
        state = fold(row.run_id, await self._client.store.journal.read(row.run_id))
        if state.finished is not None:
            raise NoSuchSchedule(self.id)
        return await self._client._schedule(row, state)

    async def _define(self, definition: Definition) -> None:
        """Make the schedule what was asked for, whoever else asks at the same time."""
        while True:
            try:
                known = await self._read()
            except NoSuchSchedule:
                if await self._create(definition):
                    return
                continue
            if known.definition == definition:
                return
            now = self._client.clock.now()
            verdict = await self._client.signal(known.row.id, CONTROL, Change(now, definition))
            if isinstance(verdict, Accepted | Duplicate):
                return

    async def _create(self, definition: Definition) -> bool:
        book = Book(self._client.clock.now(), definition.spec.pause)
        arguments = {"id": self.id, "definition": definition, "book": book}
        invocation: Invocation[None] = Invocation(PROGRAM, None, (), arguments)
        try:
            # One that was deleted is cancelled; one that somebody else has just made is in the way, and is looked at.
            _ = await self._client.start(
                invocation, id=PREFIX + self.id, reuse="allow_if_failed", durability="sync", tags={"schedule": self.id}
            )
        except AlreadyExists:
            return False
        return True

    async def _tell(self, control: Control) -> None:
        # One that has just gone on in a new journal says that it has ended: ask again.
        key = secrets.token_hex(8)
        while not isinstance(await self._client.signal(PREFIX + self.id, CONTROL, control, key), Accepted | Duplicate):
            await self._read()

    def __repr__(self) -> str:
        return f"<schedule {self.id!r}>"
