"""Schedules under crashes, races, changes of the clocks, and with nothing to do."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from zoneinfo import ZoneInfo

import pytest

from perdure import Engine, StoreUnavailable, UsageError, sleep, step, workflow
from perdure.builtin.schedules import FireRequest
from perdure.kernel.events import RunStatus
from perdure.kernel.schedules.schedule import Definition, Order, ScheduleSpec, missed, schedule_spec, survey, tick_id
from perdure.testing.simulation import STORMY, Crash, Faults, Simulation
from perdure.testing.simulation.store import FaultPlan
from tests.amounts import some

T = TypeVar("T")

# A day on which the clocks go forward, and one on which they go back.
CHANGES = {
    "Europe/Berlin": (datetime(2030, 3, 31, tzinfo=UTC), datetime(2030, 10, 27, tzinfo=UTC)),
    "America/New_York": (datetime(2030, 3, 10, tzinfo=UTC), datetime(2030, 11, 3, tzinfo=UTC)),
    "Australia/Lord_Howe": (datetime(2030, 10, 6, tzinfo=UTC), datetime(2030, 4, 7, tzinfo=UTC)),
    "America/Sao_Paulo": (datetime(2018, 11, 4, tzinfo=UTC), datetime(2018, 2, 17, tzinfo=UTC)),
    "Asia/Kolkata": (datetime(2030, 3, 31, tzinfo=UTC), datetime(2030, 10, 27, tzinfo=UTC)),
}


@step
async def write(day: str) -> str:
    return day


@workflow
async def report(day: str = "today", seconds: float = 0.0) -> str:
    await sleep(seconds)
    return await write(day)


# --- crashes --------------------------------------------------------------------------------------------------------


def crashing(number: int, side: str, overlap: str) -> tuple[Simulation, list[tuple[str, RunStatus]], dict[str, int]]:
    """Play five minutes of a schedule, die at one append, go on at once, and say what there is at the end."""
    sim = Simulation(seed=number)
    sim._plan = FaultPlan(sim.faults, [Crash(number, side)])  # type: ignore[arg-type]
    ends = 330.0

    async def live() -> tuple[list[tuple[str, RunStatus]], dict[str, int]]:
        engine = await sim.engine([report], name="a").open()
        handle = await engine.schedule(
            "s",
            report(seconds=100),
            every=60,
            catch_up="all",
            overlap=overlap,  # type: ignore[arg-type]
        )
        await sim.advance(ends - sim.world.time)
        found = [(run.id, run.status) for run in await engine.list(tags={"schedule": "s"})]
        view = await handle.view()
        counts = {"fired": view.fired, "skipped": view.skipped, "failed": view.failed, "waiting": view.waiting}
        await engine.close()
        return found, counts

    try:
        found, counts = sim.play(live())
    except UsageError:  # the machine is dead, and nothing more happens
        found, counts = sim.play(live())
    return sim, found, counts


SIDES = ("before", "after", "during")
OVERLAPS = ["skip", "allow", "buffer_one", "cancel_previous", "terminate_previous"]


# One side of every second append, others with each way to overlap; `make soak` takes all.
@pytest.mark.parametrize("sides", [1, pytest.param(3, marks=pytest.mark.soak)])
@pytest.mark.parametrize("overlap", OVERLAPS)
def test_a_crash_at_any_append_loses_no_tick_and_fires_none_twice(overlap: str, sides: int) -> None:
    calm, found, expected = crashing(10_000, "before", overlap)
    assert Counter(id for id, _ in found).most_common(1)[0][1] == 1
    ids = {id for id, _ in found}
    first, every = (OVERLAPS.index(overlap) % 2, 2) if sides == 1 else (0, 1)
    for number in range(first, calm._plan.appends, every):
        for turn in range(sides):
            side = SIDES[(number + turn + OVERLAPS.index(overlap)) % len(SIDES)]
            _, found, counts = crashing(number, side, overlap)
            assert {id for id, _ in found} == ids, (number, side)
            assert len(found) == len(ids), (number, side)
            assert counts == expected, (number, side)


# --- races ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", some([100, 1000], 1))
def test_two_workers_that_fire_one_tick_many_times_start_one_run_each_time_and_agree(times: int) -> None:
    sim = Simulation(seed=3, faults=Faults(durations=(0.0,), delays=(0.0, 0.0, 0.001, 0.01, 0.05)))
    definition = Definition(schedule_spec(every=60, overlap="skip"), "report", '{"day":"x"}')
    start = datetime(2030, 1, 1, tzinfo=UTC).timestamp()

    async def scenario() -> None:
        async with sim.engine([report], name="a") as a, sim.engine([report], name="b") as b:
            for number in range(1, times + 1):
                tick = start + 60 * number
                request = FireRequest("s", definition, Order(tick), "", False, False, tick, 0.0)
                answers = await asyncio.gather(*(engine._scheduled.fire(request) for engine in (a, b)))
                assert [answer.outcome for answer in answers] == ["started", "started"]
                assert answers[0] == answers[1]
            runs = await a.list(tags={"schedule": "s"}, limit=10_000)
            assert Counter(run.id for run in runs) == {tick_id("s", start + 60 * n): 1 for n in range(1, times + 1)}

    sim.play(scenario())


def test_a_schedule_whose_owner_dies_is_fired_by_the_other_worker_and_no_tick_is_lost_or_doubled() -> None:
    sim = Simulation(seed=5)

    async def scenario() -> None:
        first = await sim.engine([report], name="a").open()
        async with sim.engine([report], name="b") as second:
            _ = await first.schedule("s", report(), every=3600, catch_up="all", overlap="allow")
            await sim.advance(hours=3, seconds=1)
            assert first._orchestrator is not None
            assert first._service is not None
            assert first._service._heart is not None
            first._orchestrator.abort()
            for task in (*first._service._tasks, first._service._heart):
                task.cancel()
            await sim.advance(hours=24)
            runs = Counter(run.id for run in await second.list(tags={"schedule": "s"}, limit=1000))
            start = sim.world.start
            assert runs == {tick_id("s", start + 3600 * n): 1 for n in range(1, 28)}

    sim.play(scenario())


# --- storms ---------------------------------------------------------------------------------------------------------


async def patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Ask a store until it answers."""
    while True:
        try:
            return await work()
        except StoreUnavailable:
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("seed", some(range(14), 2))
def test_in_a_storm_with_a_clock_that_jumps_every_tick_has_one_run(seed: int) -> None:
    """Replies are lost, calls refused, others interfere, and the clock is set forward and back by an hour."""
    sim = Simulation(seed, faults=STORMY)

    async def scenario() -> None:
        engine = await patiently(sim.engine([report], name="a").open)
        handle = await patiently(
            lambda: engine.schedule("s", report(seconds=5), every=600, catch_up="all", overlap="allow")
        )
        await sim.advance(hours=12)
        view = await patiently(handle.view)
        runs = [run.id for run in await patiently(lambda: engine.list(tags={"schedule": "s"}, limit=10_000))]
        assert view.last_tick is not None
        last = view.last_tick.timestamp()
        first = min(datetime.fromisoformat(id.partition("@")[2]).timestamp() for id in runs)
        ticks = [tick_id("s", first + 600 * n) for n in range(round((last - first) / 600) + 1)]
        # The last may be under way.
        assert Counter(runs) - Counter([tick_id("s", last + 600)]) == Counter(ticks)
        assert (view.skipped, view.failed) == (0, 0)
        assert view.fired in (len(ticks), len(ticks) + 1)
        assert len(ticks) >= 5

    sim.play(scenario())


# --- days on which clocks change ------------------------------------------------------------------------------------


def schedules_of(zone: str, count: int, chance: random.Random) -> Iterator[ScheduleSpec]:
    """Schedules that fire daily, many of them in the hours that are skipped or come twice."""
    for number in range(count):
        minute, hour = chance.randrange(60), chance.choice((0, 1, 1, 2, 2, 3, chance.randrange(24)))
        if number < 2:
            minute, hour = 30, 1 + number
        yield schedule_spec(
            cron=f"{minute} {hour} * * *", timezone=zone, catch_up=chance.choice(("one", "all", "skip"))
        )


@pytest.mark.parametrize("count", some([250, 1000], 1))
@pytest.mark.parametrize("zone", CHANGES)
def test_daily_schedules_fire_once_a_day_on_both_days_of_change(zone: str, count: int) -> None:
    where, chance = ZoneInfo(zone), random.Random(zone)
    for day in CHANGES[zone]:
        noon = day.replace(tzinfo=None, hour=12)
        start, end = ((noon + timedelta(days=days)).replace(tzinfo=where).timestamp() for days in (-1, 1))
        for spec in schedules_of(zone, count, chance):
            ticks = list(missed(spec, start, end))
            dates = [datetime.fromtimestamp(tick, where).date() for tick in ticks]
            assert len(dates) == len(set(dates)) == 2, (spec.cron, day)
            found = survey(spec, "s", start, end, end)
            assert len(found.fire) + found.skipped == 2


def on_the_days(count: int) -> None:
    """Let many schedules of five zones live through both days in a whole engine."""
    chance = random.Random(count)
    for moment in sorted({day for days in CHANGES.values() for day in days}):
        zones = [zone for zone, days in CHANGES.items() if moment in days]
        sim = Simulation(start=(moment - timedelta(hours=12)).timestamp())
        specs = {
            f"{zone} {number}": spec for zone in zones for number, spec in enumerate(schedules_of(zone, count, chance))
        }

        async def scenario(sim: Simulation = sim, specs: dict[str, ScheduleSpec] = specs) -> None:
            async with sim.engine([report], name="a") as engine:
                start = sim.now().timestamp()
                for id, spec in specs.items():
                    _ = await engine.schedule(id, report(), cron=spec.cron, timezone=spec.timezone)
                await sim.advance(hours=48)
                end = sim.now().timestamp()
                expected = {tick_id(id, tick): 1 for id, spec in specs.items() for tick in missed(spec, start, end - 1)}
                found = Counter(await all_runs(engine))
                assert found == expected
                counts = {view.id: (view.fired, view.skipped) for view in await engine.schedules()}
                assert counts == {id: (len(list(missed(spec, start, end - 1))), 0) for id, spec in specs.items()}

        sim.play(scenario())


async def all_runs(engine: Engine) -> list[str]:
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await engine.list(limit=1000, cursor=cursor)
        found += [run.id for run in page]
        if page.cursor is None:
            return found
        cursor = page.cursor


def test_schedules_of_five_zones_live_through_both_days_of_change() -> None:
    on_the_days(10)


@pytest.mark.soak
def test_a_thousand_schedules_of_each_of_five_zones_live_through_both_days_of_change() -> None:
    on_the_days(1000)


# --- nothing to do --------------------------------------------------------------------------------------------------


def test_schedules_that_wait_cost_no_statement() -> None:
    def statements(schedules: int) -> int:
        sim = Simulation()
        seen: list[str] = []

        async def scenario() -> None:
            async with sim.engine([report], name="a") as engine:
                for number in range(schedules):
                    _ = await engine.schedule(f"s{number}", report(), cron="0 0 1 1 *")
                await sim.advance(minutes=1)
                sim.store.trace(seen.append)
                await sim.advance(hours=6)
                sim.store.trace(None)

        sim.play(scenario())
        return len(seen)

    assert statements(10) == statements(0)
