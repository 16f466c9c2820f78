"""When a schedule fires, and which missed ticks it catches up. Starts nothing, and reads no clock.

A *tick* is a time at which a schedule starts a run, in seconds since the epoch; with jitter it is due a little later.
`every` counts from the epoch in UTC, so it never drifts and all orchestrators agree on it; cron expressions are
evaluated in their time zone, see `cron.py`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any, Literal, get_args

import msgspec

from perdure.errors import UsageError
from perdure.kernel.events import moment
from perdure.kernel.ids import flaw_of, plain
from perdure.kernel.policies.durations import ENDLESS, duration
from perdure.kernel.policies.retry import fraction
from perdure.kernel.schedules.cron import check_cron, cron_ticks, zone

PROGRAM = "perdure.schedule"
PREFIX = "schedule:"
CONTROL = "control"

Overlap = Literal["skip", "allow", "buffer_one", "cancel_previous", "terminate_previous"]

# A tick counts as missed when it is this late, or when the next one is due already.
LATE = 60.0
# How many missed ticks `catch_up="all"` starts at most when it is given no limit.
ALL_LIMIT = 1000
# How many missed ticks are counted one by one. Beyond that, only the latest are searched for, from the end.
COUNTED = 200_000
# The shortest `every`, in seconds.
SHORTEST = 0.001
MAX_ID = 200
BACKFILL_LIMIT = 10_000


# --- what a schedule is ---------------------------------------------------------------------------------------------


class CatchUp(msgspec.Struct, frozen=True):
    """Which missed ticks are fired: none, the latest, or all of them up to a limit."""

    mode: Literal["skip", "one", "all"] = "one"
    limit: int = 1

    def __str__(self) -> str:
        return f"all({self.limit})" if self.mode == "all" else self.mode


class ScheduleSpec(msgspec.Struct, frozen=True):
    """When a schedule fires, and under which policies. Durations are in seconds."""

    every: float | None = None
    cron: str | None = None
    timezone: str = "UTC"
    overlap: Overlap = "skip"
    catch_up: CatchUp = CatchUp()
    jitter: float = 0.0
    pause: bool = False


class Definition(msgspec.Struct, frozen=True, omit_defaults=True):
    """The definition of a schedule: when it fires, and which program with which input (JSON, as recorded).

    Its runs wait in `queue`, if there is one, and carry `tags`. Defaults are omitted when it is encoded, so that the
    journals of schedules from before a field existed replay unchanged.
    """

    spec: ScheduleSpec
    program: str
    input: str
    queue: str = ""
    queue_key: str = ""
    priority: int = 0
    tags: dict[str, str] = {}
    # In seconds, from the start of each run; then the other parameters of `start`.
    deadline: float | None = None
    max_concurrency: int | None = None
    durability: str = ""
    rules: dict[str, Any] | None = None
    # Whether it was deployed with a flow, whose file has it. Its input may have expressions, which see the tick. It is
    # deleted when the file no longer has it.
    deployed: bool = False


class ProgramSchedule(msgspec.Struct, frozen=True):
    """A schedule that a program declares itself, to be deployed with it."""

    id: str
    spec: ScheduleSpec
    # JSON, in which expressions see the tick.
    input: str
    queue: str = ""


def all_ticks(limit: int) -> CatchUp:
    """For `catch_up`: fire every missed tick, the latest `limit` of them if there are more."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise UsageError(f"all_ticks({limit!r}): the limit is a whole number of at least 1")
    return CatchUp("all", limit)


def catch_up_of(value: str | CatchUp) -> CatchUp:
    """A policy from its name: `skip`, `one`, `all` or `all(10)`."""
    if isinstance(value, CatchUp):
        return value
    if value == "skip":
        return CatchUp("skip", 0)
    if value == "one":
        return CatchUp()
    if value == "all":
        return CatchUp("all", ALL_LIMIT)
    if isinstance(value, str) and (match := re.fullmatch(r"all\((\d+)\)", value)):
        return all_ticks(int(match[1]))
    raise UsageError(f"catch_up={value!r} is none of 'skip', 'one', 'all' and 'all(10)'")


def schedule_spec(
    *,
    every: float | timedelta | None = None,
    cron: str | None = None,
    timezone: str = "UTC",
    overlap: Overlap | str = "skip",
    catch_up: str | CatchUp = "one",
    jitter: float | timedelta | None = None,
    pause: bool = False,
) -> ScheduleSpec:
    """Make a spec of what the caller gave; raises UsageError with the fix."""
    if (every is None) == (cron is None):
        given = "neither was" if every is None else "both were"
        raise UsageError(f"a schedule needs either every=... or cron=..., and {given} given")
    period = None if every is None else _seconds(every, "every")
    if period is not None:
        if period < SHORTEST:
            raise UsageError(f"every={every!r} must be more than zero; the shortest is {SHORTEST} seconds")
        if timezone != "UTC":
            raise UsageError(
                f"every={every!r} counts in UTC, and timezone={timezone!r} has no meaning for it; leave the timezone "
                "out, or name times with cron="
            )
    zone(timezone)
    if cron is not None:
        check_cron(cron)
        cron = " ".join(cron.split())
    if overlap not in get_args(Overlap):
        near = get_close_matches(str(overlap), get_args(Overlap), 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(map(repr, get_args(Overlap)))}"
        raise UsageError(f"overlap={overlap!r} is not an overlap policy; {hint}")
    spread = 0.0 if jitter is None else _seconds(jitter, "jitter")
    if spread < 0:
        raise UsageError(f"jitter={jitter!r} must not be negative: it delays a tick, it never brings it forward")
    if period is not None and spread > period:
        raise UsageError(f"jitter={jitter!r} must not be longer than every={every!r}: ticks would overtake each other")
    if not isinstance(pause, bool):
        raise UsageError(f"pause={pause!r} is True or False: whether the schedule begins paused")
    return ScheduleSpec(period, cron, timezone, overlap, catch_up_of(catch_up), spread, pause)  # type: ignore[arg-type]


def _seconds(value: float | timedelta, what: str) -> float:
    number = duration(value)
    if number is None or not -ENDLESS < number < ENDLESS:
        raise UsageError(f"{what}={value!r:.80} must be a number of seconds or a timedelta")
    return number


def check_schedule_id(id: str) -> str:
    """Return the id; raises UsageError when the ids of the schedule's runs, which contain it, would be invalid."""
    flaw = flaw_of(id, MAX_ID)
    if flaw is not None:
        raise UsageError(f"the id {id!r:.60} of a schedule {flaw}; choose a short name, such as 'nightly'")
    return plain(id)


# --- ticks ----------------------------------------------------------------------------------------------------------


def ticks(spec: ScheduleSpec, after: float) -> Iterator[float]:
    """The ticks after `after`, in order; endless unless the cron expression ends."""
    if spec.every is not None:
        return _every(spec.every, after)
    assert spec.cron is not None
    return (due.timestamp() for due in cron_ticks(spec.cron, zone(spec.timezone), moment(after)))


def _every(period: float, after: float) -> Iterator[float]:
    # In whole microseconds: a sum of floats would drift.
    micros = round(period * 1e6)
    number = _micros(after) // micros
    while True:
        number += 1
        yield number * micros / 1e6


def _micros(at: float) -> int:
    return round(at * 1e6)


def next_fire(spec: ScheduleSpec, after: float) -> float | None:
    """The first tick after `after`, or None."""
    return next(ticks(spec, after), None)


def missed(spec: ScheduleSpec, after: float, until: float) -> Iterator[float]:
    """The ticks after `after`, up to and including `until`."""
    for tick in ticks(spec, after):
        if tick > until:
            return
        yield tick


def between(spec: ScheduleSpec, start: float, end: float) -> list[float]:
    """The ticks from `start` on and before `end`; raises UsageError when there are too many for one backfill."""
    found: list[float] = []
    for tick in ticks(spec, start - 1e-6):
        if tick >= end:
            break
        found.append(tick)
        if len(found) > BACKFILL_LIMIT:
            raise UsageError(
                f"there are more than {BACKFILL_LIMIT} ticks from {stamp(start)} to {stamp(end)}; backfill a part of "
                "that at a time"
            )
    return found


def tick_id(id: str, tick: float) -> str:
    """The id of the run that a tick starts. Two orchestrators that fire the same tick start one run."""
    return f"{id}@{stamp(tick)}"


def stamp(at: float) -> str:
    """A time as it is written in ids: `2030-01-01T02:30:00Z`."""
    return datetime.fromtimestamp(_micros(at) / 1e6, UTC).isoformat().replace("+00:00", "Z")


def fires_at(spec: ScheduleSpec, id: str, tick: float) -> float:
    """When a tick is due: the tick plus its jitter, which depends only on the schedule and the tick."""
    return tick + spec.jitter * fraction(tick_id(id, tick)) if spec.jitter else tick


# --- what is due ----------------------------------------------------------------------------------------------------


class Due(msgspec.Struct, frozen=True):
    """A future tick, and when it is due."""

    tick: float
    at: float


class Survey(msgspec.Struct, frozen=True):
    """Which of the ticks up to now to fire, and how many to skip.

    All ticks up to `after` have been handled; `ahead` are the next two.
    """

    fire: tuple[float, ...]
    skipped: int
    after: float
    ahead: tuple[Due, ...]


def ahead(spec: ScheduleSpec, id: str, after: float) -> tuple[Due, ...]:
    """The next two ticks."""
    found: list[Due] = []
    for tick in ticks(spec, after):
        found.append(Due(tick, fires_at(spec, id, tick)))
        if len(found) == 2:
            break
    return tuple(found)


def on_time(spec: ScheduleSpec, ahead: tuple[Due, ...], now: float) -> bool:
    """Whether exactly the first of these ticks is due, and was not missed."""
    if not ahead or now < ahead[0].at or (len(ahead) > 1 and now >= ahead[1].at):
        return False
    return spec.catch_up.mode != "skip" or now - ahead[0].at <= LATE


def survey(spec: ScheduleSpec, id: str, after: float, until: float, now: float) -> Survey:
    """Apply the catch-up policy to the ticks after `after` that were due by `until`."""
    latest, count = _due(spec, id, after, until, max(1, spec.catch_up.limit))
    fire = latest
    if spec.catch_up.mode == "skip" and latest and now - fires_at(spec, id, latest[-1]) > LATE:
        fire = []
    accounted = latest[-1] if latest else after
    return Survey(tuple(fire), count - len(fire), accounted, ahead(spec, id, accounted))


def _due(spec: ScheduleSpec, id: str, after: float, now: float, wanted: int) -> tuple[list[float], int]:
    """The latest `wanted` of the ticks that are due by now, and how many are due in all."""
    count = 0
    if spec.every is not None:
        # Ticks are evenly spaced: compute how many there were, and enumerate only the latest.
        first = max(after, now - (wanted + 2) * spec.every)
        count = max(0, _micros(first) // round(spec.every * 1e6) - _micros(after) // round(spec.every * 1e6))
        after = max(after, first)
    latest: deque[float] = deque(maxlen=wanted)
    for tick in missed(spec, after, now):
        if fires_at(spec, id, tick) > now:
            break
        latest.append(tick)
        count += 1
        if spec.every is None and count == COUNTED:
            # Far behind: continue from the end.
            end = _latest(spec, id, tick, now, wanted)
            return [*latest, *end][-wanted:], count + len(end)
    return list(latest), count


def _latest(spec: ScheduleSpec, id: str, after: float, now: float, wanted: int) -> list[float]:
    """The latest ticks that are due by now, at least `wanted` if there are that many."""
    span = 60.0
    while True:
        start = max(after, now - span)
        due = [tick for tick in missed(spec, start, now) if fires_at(spec, id, tick) <= now]
        if len(due) >= wanted or start == after:
            return due
        span *= 4


# --- what callers send to a schedule --------------------------------------------------------------------------------


class Pause(msgspec.Struct, frozen=True, tag=True):
    """Fire nothing until resumed. Ticks before `at`, when the caller paused it, still fire. `by` is who asks for it."""

    at: float
    reason: str = ""
    by: str = ""


class Resume(msgspec.Struct, frozen=True, tag=True):
    """Fire again; ticks during the pause are not caught up."""

    at: float
    by: str = ""


class Trigger(msgspec.Struct, frozen=True, tag=True):
    """Start a run now, under this id."""

    at: float
    run: str
    by: str = ""


class Backfill(msgspec.Struct, frozen=True, tag=True):
    """Fire the ticks from `start` on and before `end`, one after the other."""

    at: float
    start: float
    end: float
    by: str = ""


class Change(msgspec.Struct, frozen=True, tag=True):
    """Replace the definition."""

    at: float
    definition: Definition
    by: str = ""


Control = Pause | Resume | Trigger | Backfill | Change


# --- the state of a schedule ----------------------------------------------------------------------------------------


class Order(msgspec.Struct, frozen=True):
    """A run to start: for a tick, or by a trigger under the id `run`. `backfill`: the tick comes from a backfill."""

    tick: float | None = None
    run: str = ""
    backfill: bool = False


class ScheduleState(msgspec.Struct):
    """The state of a schedule. All ticks up to `after` have been handled; `previous` is the id of the last run."""

    after: float
    paused: bool = False
    previous: str = ""
    backlog: list[Order] = []
    fired: int = 0
    skipped: int = 0
    failed: int = 0
    last_tick: float | None = None
    trouble: str = ""


class Fired(msgspec.Struct, frozen=True):
    """The outcome of an order. `ahead` are the next two ticks."""

    outcome: Literal["started", "existed", "skipped", "waits", "failed"]
    ahead: tuple[Due, ...]
    trouble: str = ""
