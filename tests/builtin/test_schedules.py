"""Schedules in virtual time: ticks, overlap, catching up, control, and what happens when the clock is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from perdure import (
    Engine,
    NoSuchSchedule,
    Retry,
    RunStatus,
    Schedule,
    UnknownProgram,
    UsageError,
    all_ticks,
    call,
    rule,
    sleep,
    step,
    workflow,
)
from perdure.builtin import schedules
from perdure.client.schedules import ScheduleHandle
from perdure.testing.simulation import Simulation

START = datetime(2030, 1, 1, tzinfo=UTC)


@step
async def write(day: str) -> str:
    return day


@workflow
async def report(day: str = "today", seconds: float = 0.0) -> str:
    await sleep(seconds)
    return await write(day)


@workflow
async def stubborn(seconds: float) -> str:
    """Takes its time, also when it is told to end."""
    try:
        await sleep(1000)
    except asyncio.CancelledError:
        await sleep(seconds)
        raise
    return "done"


def minute(number: float) -> str:
    """The id of the tick in the n-th minute."""
    at = START + timedelta(minutes=number)
    return f"s@{at.isoformat().replace('+00:00', 'Z')}"


async def started(engine: Engine) -> list[str]:
    """The runs of the schedule `s`, oldest first."""
    return [run.id for run in reversed(await engine.list(tags={"schedule": "s"}, limit=10_000))]


def play(scenario: Callable[[Simulation, Engine], Coroutine[Any, Any, None]], **options: Any) -> Simulation:
    sim = Simulation(**options)

    async def whole() -> None:
        async with sim.engine([report, stubborn], name="a") as engine:
            await scenario(sim, engine)

    sim.play(whole())
    return sim


# --- ticks ----------------------------------------------------------------------------------------------------------


def test_each_tick_starts_a_run_with_the_recorded_input_under_an_id_of_its_own() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        _ = await engine.schedule("s", report(day="monday"), every=timedelta(minutes=1))
        await sim.advance(minutes=3, seconds=1)
        assert await started(engine) == [minute(1), minute(2), minute(3)]
        run = await engine.get(minute(2))
        assert run is not None
        assert (run.output, run.status) == ("monday", RunStatus.COMPLETED)
        assert run.created_at == START + timedelta(minutes=2)
        assert run.tags == {"schedule": "s", "tick": "2030-01-01T00:02:00Z"}

    play(scenario)


def test_the_runs_of_a_schedule_wait_in_its_queue_and_bear_its_tags() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        schedule = await engine.schedule(
            "s", report(), every=60, queue="q", key="acme", priority=3, tags={"team": "billing"}, overlap="allow"
        )
        await sim.advance(minutes=2, seconds=1)
        for id in (minute(1), minute(2)):
            run = await engine.get(id)
            assert run is not None
            assert (run.queue, run.key, run.priority, run.status) == ("q", "acme", 3, RunStatus.COMPLETED)
            assert run.tags["team"] == "billing"
            assert run.tags["schedule"] == "s"
        view = await schedule.view()
        assert (view.queue, view.key, view.priority, view.tags) == ("q", "acme", 3, {"team": "billing"})
        # Made anew without them, it is another schedule.
        _ = await engine.schedule("s", report(), every=60)
        await sim.advance(minutes=1)
        run = await engine.get(minute(3))
        assert run is not None
        assert (run.queue, run.tags.get("team")) == (None, None)

    play(scenario)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"queue": "a/b"}, "the name of a queue 'a/b'"),
        ({"key": "acme"}, "means nothing without a queue"),
        ({"priority": 3}, "means nothing without a queue"),
        ({"queue": "q", "priority": "high"}, "priority='high'"),
        ({"tags": ["a"]}, "must be a dict"),
        ({"tags": {"tick": "x"}}, "tick is set by the schedule itself"),
    ],
)
def test_a_place_that_makes_no_sense_is_refused_when_the_schedule_is_made(options: dict[str, Any], says: str) -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        with pytest.raises(UsageError, match=says):
            _ = await engine.schedule("s", report(), every=60, **options)
        assert await engine.schedules() == []

    play(scenario)


def test_what_a_schedule_did_can_be_seen() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        handle = await engine.schedule("s", report(seconds=90), every=60, jitter=0.001)
        await sim.advance(minutes=4, seconds=1)
        [view] = await engine.schedules()
        assert view == await handle.view()
        assert (view.fired, view.skipped, view.failed, view.waiting) == (2, 2, 0, 0)
        assert view.last_tick == START + timedelta(minutes=3)
        assert view.next_tick == START + timedelta(minutes=5)
        assert view.last_run == minute(3)
        assert (view.program, view.input) == ("report", {"day": "today", "seconds": 90})
        assert view.every == timedelta(minutes=1)
        assert (view.overlap, view.catch_up, view.timezone, view.cron) == ("skip", "one", "UTC", None)
        state = (await engine.list(program="perdure.schedule"))[0]
        run = await engine.get(state.id)
        assert run is not None
        assert run.state["fired"] == 2
        assert run.state["skipped"] == 2
        assert run.state["last_tick"] == "2030-01-01T00:03:00Z"
        assert run.state["next_tick"] == "2030-01-01T00:05:00Z"

    play(scenario)


def test_schedules_are_not_among_the_runs_unless_they_are_asked_for() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        _ = await engine.schedule("s", report(), every=60)
        await sim.advance(seconds=61)
        assert [run.id for run in await engine.list()] == [minute(1)]
        assert [run.id for run in await engine.list(program="perdure.schedule")] == ["schedule:s"]

    play(scenario)


def test_a_cron_schedule_fires_at_the_times_of_its_zone() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        handle = await engine.schedule("s", report(), cron="30 2 * * *", timezone="Europe/Berlin")
        await sim.advance(days=3)
        assert await started(engine) == [f"s@2030-03-{day}Z" for day in ("30T01:30:00", "31T01:00:00")] + [
            "s@2030-04-01T00:30:00Z"
        ]
        assert (await handle.next(2))[0] == datetime(2030, 4, 2, 0, 30, tzinfo=UTC)

    play(scenario, start=datetime(2030, 3, 30, tzinfo=UTC).timestamp())


def test_jitter_delays_a_tick_and_changes_no_id() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        _ = await engine.schedule("s", report(), every=60, jitter=30)
        await sim.advance(minutes=6)
        runs = list(reversed(await engine.list(tags={"schedule": "s"})))
        assert [run.id for run in runs] == [minute(n) for n in range(1, 6)]
        delays = [(run.created_at - START - timedelta(minutes=n)).total_seconds() for n, run in enumerate(runs, 1)]
        assert all(0 <= delay <= 31 for delay in delays)
        assert len({round(delay, 3) for delay in delays}) == 5

    play(scenario)


def test_a_tick_may_start_a_program_that_only_another_engine_has() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        async with sim.client() as client:
            _ = await client.schedule("s", call("elsewhere", day="x"), every=60)
        await sim.advance(seconds=61)
        run = await engine.get(minute(1))
        assert run is not None
        assert (run.program, run.status, run.input) == ("elsewhere", RunStatus.QUEUED, {"day": "x"})
        with pytest.raises(UnknownProgram, match="report"):
            _ = await engine.schedule("t", call("elsewhere"), every=60)

    play(scenario)


def test_an_id_that_belongs_to_another_program_is_told_and_the_schedule_goes_on() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        _ = await engine.start(stubborn(0.0), id=minute(1))
        handle = await engine.schedule("s", report(), every=60)
        await sim.advance(seconds=121)
        view = await handle.view()
        assert (view.fired, view.failed) == (1, 1)
        assert view.trouble is not None
        assert "stubborn" in view.trouble

    play(scenario)


# --- overlap --------------------------------------------------------------------------------------------------------


def test_skip_starts_nothing_while_the_previous_run_is_open() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        handle = await engine.schedule("s", report(seconds=150), every=60)
        await sim.advance(minutes=8, seconds=1)
        assert await started(engine) == [minute(1), minute(4), minute(7)]
        assert (await handle.view()).skipped == 5

    play(scenario)


def test_allow_starts_every_tick() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        _ = await engine.schedule("s", report(seconds=1000), every=60, overlap="allow")
        await sim.advance(minutes=5, seconds=1)
        assert await started(engine) == [minute(n) for n in range(1, 6)]
        assert len(await engine.list(status="waiting")) == 5

    play(scenario)


def test_buffer_one_lets_one_tick_wait_for_the_end_of_the_previous_run() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        handle = await engine.schedule("s", report(seconds=150), every=60, overlap="buffer_one")
        await sim.advance(seconds=125)
        assert (await handle.view()).waiting == 1
        await sim.advance(minutes=8, seconds=-124)
        # The first runs from 1:00 to 3:30; 2:00 waits, 3:00 is one too many. 2:00 runs from 3:30 to 6:00, and so on.
        assert await started(engine) == [minute(1), minute(2), minute(4)]
        [first, second, third] = reversed(await engine.list(tags={"schedule": "s"}))
        assert second.created_at - START == pytest.approx(timedelta(minutes=3, seconds=30), abs=timedelta(seconds=1))
        assert third.created_at >= (second.finished_at or START)
        view = await handle.view()
        assert (view.fired, view.skipped, view.waiting) == (3, 4, 1)
        assert first.finished_at is not None

    play(scenario)


def test_cancel_previous_starts_when_the_cancelled_run_has_cleaned_up() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        _ = await engine.schedule("s", stubborn(20.0), every=60, overlap="cancel_previous")
        await sim.advance(minutes=2, seconds=10)
        assert await started(engine) == [minute(1)]
        await sim.advance(seconds=20)
        assert await started(engine) == [minute(1), minute(2)]
        [second, first] = await engine.list(tags={"schedule": "s"})
        assert first.status is RunStatus.CANCELLED
        assert first.reason == "the next run of its schedule is due"
        assert first.finished_at is not None
        assert first.finished_at <= second.created_at

    play(scenario)


def test_with_cancel_previous_the_latest_tick_waits_and_the_ones_before_are_skipped() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        handle = await engine.schedule("s", stubborn(150.0), every=60, overlap="cancel_previous")
        await sim.advance(minutes=5)
        # Told to end at 2:00, the first takes until 4:30; of 2:00, 3:00 and 4:00 the last is left.
        assert await started(engine) == [minute(1), minute(4)]
        assert (await handle.view()).skipped == 2

    play(scenario)


def test_terminate_previous_ends_the_run_and_starts_the_next_at_once() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        _ = await engine.schedule("s", stubborn(500.0), every=60, overlap="terminate_previous")
        await sim.advance(minutes=3, seconds=1)
        assert await started(engine) == [minute(1), minute(2), minute(3)]
        assert [run.status.value for run in await engine.list(tags={"schedule": "s"})] == [
            "waiting",
            "cancelled",
            "cancelled",
        ]

    play(scenario)


def test_a_run_that_is_parked_is_still_open() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        handle = await engine.schedule("s", report(seconds=1e6), every=60, overlap="buffer_one")
        await sim.advance(seconds=61)
        await engine.pause(minute(1))
        await sim.advance(minutes=10)
        assert await started(engine) == [minute(1)]
        assert (await handle.view()).waiting == 1
        _ = await engine.cancel(minute(1))
        await engine.resume(minute(1))
        await sim.advance(seconds=59)
        assert await started(engine) == [minute(1), minute(2)]

    play(scenario)


# --- catching up ----------------------------------------------------------------------------------------------------


def downtime(catch_up: Any, seconds: float, overlap: str = "allow") -> tuple[list[str], int]:
    """Which runs there are after the engine was gone from 1:30 on for a while, and how many ticks were skipped."""
    sim = Simulation()

    async def before() -> None:
        engine = await sim.engine([report], name="a").open()
        _ = await engine.schedule("s", report(), every=60, catch_up=catch_up, overlap=overlap)  # type: ignore[arg-type]
        await sim.advance(seconds=90)

    async def gone() -> None:
        await sim.advance(seconds)

    async def after() -> tuple[list[str], int]:
        async with sim.engine([report], name="a") as engine:
            await sim.advance(seconds=1)
            return await started(engine), (await engine.schedules())[0].skipped

    sim.play(before())
    sim.play(gone())
    return sim.play(after())


@pytest.mark.parametrize(
    ("catch_up", "expected", "skipped"),
    [
        # Back at 6:31. The tick of 6:00 is half a minute late, and not missed.
        ("skip", [1, 6], 4),
        ("one", [1, 6], 4),
        ("all", [1, 2, 3, 4, 5, 6], 0),
        ("all(3)", [1, 4, 5, 6], 2),
        (all_ticks(100), [1, 2, 3, 4, 5, 6], 0),
    ],
)
def test_ticks_of_a_downtime_are_caught_up_by_their_policy(catch_up: Any, expected: list[int], skipped: int) -> None:
    assert downtime(catch_up, 301.0) == ([minute(n) for n in expected], skipped)


def test_a_tick_that_is_more_than_a_minute_late_is_missed() -> None:
    sim = Simulation()

    async def before() -> None:
        engine = await sim.engine([report], name="a").open()
        _ = await engine.schedule("s", report(), every=3600, catch_up="skip")
        await sim.advance(seconds=3500)

    async def gone() -> None:
        await sim.advance(seconds=200)

    async def after() -> tuple[list[str], int]:
        async with sim.engine([report], name="a") as engine:
            await sim.advance(hours=1)
            return await started(engine), (await engine.schedules())[0].skipped

    sim.play(before())
    sim.play(gone())
    assert sim.play(after()) == ([minute(120)], 1)


def test_what_is_caught_up_obeys_the_overlap_policy() -> None:
    runs, skipped = downtime("all", 301.0, "skip")
    assert runs == [minute(1), minute(2), *runs[2:]]
    assert len(runs) + skipped == 6


@pytest.mark.parametrize("jump", [3600.0, 86400.0])
@pytest.mark.parametrize(("catch_up", "caught"), [("skip", 1), ("one", 1), ("all(7)", 7)])
def test_when_the_clock_jumps_forward_the_ticks_in_between_are_missed_once(
    jump: float, catch_up: str, caught: int
) -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        handle = await engine.schedule("s", report(), every=60, catch_up=catch_up, overlap="allow")
        await sim.advance(seconds=90)
        assert sim._playing is not None
        sim._playing.clock.skew += jump
        await sim.advance(seconds=601)
        runs = await started(engine)
        minutes = int(jump) // 60
        assert runs[:1] == [minute(1)]
        assert runs[-1] == minute(minutes + 11)
        view = await handle.view()
        assert len(runs) == len(set(runs)) == view.fired
        assert view.fired + view.skipped == minutes + 11
        # The engine may have noticed a few minutes later, and caught up then.
        late = [run for run in runs if run > minute(minutes + 1.5)]
        assert len(runs) - 1 - len(late) <= caught

    play(scenario)


@pytest.mark.parametrize("jump", [3600.0, 86400.0])
def test_when_the_clock_jumps_back_no_tick_fires_twice(jump: float) -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        handle = await engine.schedule("s", report(), every=600, catch_up="all", overlap="allow")
        await sim.advance(minutes=30, seconds=1)
        assert await started(engine) == [minute(10), minute(20), minute(30)]
        assert sim._playing is not None
        sim._playing.clock.skew -= jump
        await sim.advance(seconds=jump)
        assert await started(engine) == [minute(10), minute(20), minute(30)]
        await sim.advance(minutes=20)
        assert await started(engine) == [minute(n) for n in (10, 20, 30, 40, 50)]
        assert (await handle.view()).skipped == 0

    play(scenario)


@pytest.mark.parametrize("jump", [3600.0, 86400.0])
def test_a_clock_that_jumps_forward_and_back_again_fires_each_tick_once(jump: float) -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        handle = await engine.schedule("s", report(), every=600, catch_up="all", overlap="allow")
        await sim.advance(minutes=10, seconds=1)
        assert sim._playing is not None
        sim._playing.clock.skew += jump
        await sim.advance(minutes=30)
        sim._playing.clock.skew -= jump
        await sim.advance(seconds=jump + 1200)
        runs = await started(engine)
        assert len(runs) == len(set(runs))
        assert sorted(runs) == [minute(10 * n) for n in range(1, len(runs) + 1)]
        assert len(runs) == (int(jump) + 1800 + 1200) // 600 + 1
        assert (await handle.view()).fired == len(runs)

    play(scenario)


# --- control --------------------------------------------------------------------------------------------------------


def test_a_paused_schedule_fires_nothing_and_catches_nothing_up() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        handle = await engine.schedule("s", report(), every=60, catch_up="all")
        await sim.advance(seconds=61)
        await handle.pause("too much")
        view = await handle.view()
        assert view.paused
        assert view.next_tick is None
        await sim.advance(minutes=5)
        await handle.resume()
        assert not (await handle.view()).paused
        await sim.advance(seconds=61)
        assert await started(engine) == [minute(1), minute(7)]
        assert (await handle.view()).skipped == 0

    play(scenario)


def test_a_schedule_can_begin_paused() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        handle = await engine.schedule("s", report(), every=60, pause=True)
        assert (await handle.view()).paused
        await sim.advance(minutes=5)
        assert await started(engine) == []
        await handle.resume()
        await sim.advance(seconds=61)
        assert await started(engine) == [minute(6)]

    play(scenario)


def test_what_was_due_before_a_pause_still_counts_when_the_engine_comes_back() -> None:
    sim = Simulation()

    async def before() -> None:
        engine = await sim.engine([report], name="a").open()
        _ = await engine.schedule("s", report(), every=60, catch_up="all", overlap="allow")
        await sim.advance(seconds=61)

    async def pause() -> None:
        await sim.advance(minutes=2)
        async with sim.client() as client:
            handle = await client.schedule("s")
            await handle.pause()
            assert (await handle.view()).paused
        await sim.advance(minutes=2)

    async def after() -> list[str]:
        async with sim.engine([report], name="a") as engine:
            await sim.advance(minutes=3)
            return await started(engine)

    sim.play(before())
    sim.play(pause())
    assert sim.play(after()) == [minute(1), minute(2), minute(3)]


def test_a_trigger_starts_a_run_now_also_while_the_schedule_is_paused() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        handle = await engine.schedule("s", report(day="x"), every=3600, pause=True)
        await sim.advance(seconds=30)
        id = await handle.trigger()
        assert id.startswith("s@2030-01-01T00:00:30Z!")
        await sim.advance(seconds=1)
        assert await started(engine) == [id]
        run = await engine.get(id)
        assert run is not None
        assert run.output == "x"
        assert (await handle.view()).fired == 1

    play(scenario)


def test_a_trigger_obeys_the_overlap_policy() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        handle = await engine.schedule("s", report(seconds=600), every=60)
        await sim.advance(seconds=61)
        _ = await handle.trigger()
        await sim.advance(seconds=1)
        assert await started(engine) == [minute(1)]
        assert (await handle.view()).skipped == 1

    play(scenario)


def test_the_next_ten_fire_times_are_those_at_which_it_fires() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        handle = await engine.schedule("s", report(), every=60, jitter=30)
        times = await handle.next()
        assert len(times) == 10
        await sim.advance(minutes=11)
        runs = list(reversed(await engine.list(tags={"schedule": "s"})))[:10]
        for time, run in zip(times, runs, strict=True):
            assert timedelta(0) <= run.created_at - time < timedelta(seconds=1)
        with pytest.raises(UsageError, match="at least one"):
            _ = await handle.next(0)

    play(scenario)


def test_a_range_is_filled_in_one_run_after_the_other_and_no_tick_twice() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        handle = await engine.schedule("s", report(seconds=10), every=60)
        await sim.advance(seconds=61)
        ids = await handle.backfill(START - timedelta(minutes=3), START + timedelta(seconds=61))
        assert ids == [minute(n) for n in (-3, -2, -1, 0, 1)]
        await sim.advance(seconds=15)
        assert (await handle.view()).waiting == 4
        await sim.advance(seconds=41)
        assert await started(engine) == [minute(n) for n in (1, -3, -2, -1, 0)]
        runs = list(reversed(await engine.list(tags={"schedule": "s"})))
        for earlier, later in pairwise(runs):
            assert earlier.finished_at is not None
            assert earlier.finished_at <= later.created_at
        assert (await handle.view()).fired == 5

    play(scenario)


def test_a_range_is_filled_in_at_once_where_runs_may_overlap() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        handle = await engine.schedule("s", report(seconds=100), every=60, overlap="allow")
        _ = await handle.backfill(START - timedelta(minutes=5), START)
        await sim.advance(seconds=1)
        assert len(await engine.list(status="waiting", tags={"schedule": "s"})) == 5

    play(scenario)


def test_a_range_that_makes_no_sense_is_refused() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        handle = await engine.schedule("s", report(), every=60)
        with pytest.raises(UsageError, match="time zone"):
            _ = await handle.backfill(datetime(2029, 1, 1), START)  # noqa: DTZ001
        with pytest.raises(UsageError, match="in the future"):
            _ = await handle.backfill(START, START + timedelta(days=1))
        with pytest.raises(UsageError, match="start must be before end"):
            _ = await handle.backfill(START, START - timedelta(days=1))
        with pytest.raises(UsageError, match="more than 10000"):
            _ = await handle.backfill(START - timedelta(days=365), START)

    play(scenario)


def test_a_deleted_schedule_fires_no_more_and_its_id_is_free() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        handle = await engine.schedule("s", report(), every=60)
        await sim.advance(seconds=61)
        await handle.delete()
        assert await engine.schedules() == []
        for told in (handle.pause, handle.resume, handle.trigger, handle.next, handle.view, handle.delete):
            with pytest.raises(NoSuchSchedule, match="'s'"):
                await told()
        await sim.advance(minutes=3)
        assert await started(engine) == [minute(1)]
        _ = await engine.schedule("s", report(), every=120)
        await sim.advance(minutes=3)
        assert await started(engine) == [minute(1), minute(6)]

    play(scenario)


def test_a_schedule_that_does_not_exist_says_so() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        with pytest.raises(NoSuchSchedule):
            _ = await engine.schedule("nothing")
        with pytest.raises(UsageError, match="needs an invocation"):
            _ = await engine.schedule("s", every=60)
        with pytest.raises(UsageError, match="needs an invocation"):
            _ = await engine.schedule("s", report, every=60)  # type: ignore[arg-type]

    play(scenario)


# --- change ---------------------------------------------------------------------------------------------------------


def test_the_same_schedule_again_changes_nothing() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        handle = await engine.schedule("s", report(), every=60)
        await sim.advance(seconds=61)
        await handle.pause()
        before = await engine.journal("schedule:s")
        _ = await engine.schedule("s", report(), every=timedelta(minutes=1))
        async with sim.client() as client:
            _ = await client.schedule("s", report(), every=60)
        assert await engine.journal("schedule:s") == before
        assert (await handle.view()).paused

    play(scenario)


def test_a_schedule_becomes_what_is_asked_for_and_keeps_its_counts() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        _ = await engine.schedule("s", report(day="a"), every=60)
        await sim.advance(seconds=90)
        handle = await engine.schedule("s", report(day="b"), cron="*/5 * * * *", overlap="allow")
        view = await handle.view()
        assert (view.cron, view.every, view.input["day"], view.fired) == ("*/5 * * * *", None, "b", 1)
        assert view.next_tick == START + timedelta(minutes=5)
        await sim.advance(minutes=5)
        assert await started(engine) == [minute(1), minute(5)]
        run = await engine.get(minute(5))
        assert run is not None
        assert run.output == "b"
        assert [view.fired for view in await engine.schedules()] == [2]

    play(scenario)


def test_a_change_leaves_a_pause_by_hand_alone_and_pause_itself_can_be_changed() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        handle = await engine.schedule("s", report(), every=60)
        await handle.pause()
        _ = await engine.schedule("s", report(), every=120)
        assert (await handle.view()).paused
        await handle.resume()
        _ = await engine.schedule("s", report(), every=120, pause=True)
        assert (await handle.view()).paused
        await sim.advance(minutes=5)
        assert await started(engine) == []
        _ = await engine.schedule("s", report(), every=120)
        await sim.advance(minutes=2)
        assert await started(engine) == [minute(6)]

    play(scenario)


def test_two_that_make_the_same_schedule_at_once_make_one() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        async with sim.engine([report], name="b") as other:
            made = [e.schedule("s", report(), every=60) for e in (engine, other) for _ in range(10)]
            handles: list[ScheduleHandle] = await asyncio.gather(*made)
            assert {handle.id for handle in handles} == {"s"}
            await sim.advance(seconds=121)
            assert await started(engine) == [minute(1), minute(2)]
            assert [view.fired for view in await other.schedules()] == [2]

    play(scenario)


def test_a_signal_that_is_none_of_ours_is_told_and_does_no_harm() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        handle = await engine.schedule("s", report(), every=60)
        await engine.signal("schedule:s", "control", {"type": "Explode"})
        await sim.advance(seconds=61)
        view = await handle.view()
        assert (view.fired, view.paused) == (1, False)
        assert view.trouble is not None
        assert "Explode" in view.trouble

    play(scenario)


def test_a_schedule_goes_on_in_a_new_journal_and_loses_neither_ticks_nor_counts_nor_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedules, "RENEWAL", 5)

    async def scenario(sim: Simulation, engine: Engine) -> None:
        handle = await engine.schedule("s", report(seconds=150), every=60, overlap="buffer_one")
        for turn in range(20):
            await sim.advance(seconds=150)
            await (handle.pause() if turn % 2 else handle.resume())
            assert (await handle.view()).paused is bool(turn % 2)
        await handle.resume()
        await sim.advance(seconds=1)
        runs = list(reversed(await engine.list(tags={"schedule": "s"})))
        view = await handle.view()
        assert len({run.id for run in runs}) == len(runs) == view.fired
        for earlier, later in pairwise(runs):
            assert earlier.finished_at is not None
            assert earlier.finished_at <= later.created_at
        assert len(await engine.list(program="perdure.schedule")) > 5
        assert [view.id for view in await engine.schedules()] == ["s"]

    play(scenario)


def test_names_of_our_own_programs_are_not_free() -> None:
    @workflow(name="perdure.mine")
    async def mine() -> None: ...

    with pytest.raises(UsageError, match="names that begin with"):
        _ = Engine("memory://", [mine])


# --- the options of its runs ----------------------------------------------------------------------------------------


def test_each_run_of_a_schedule_has_the_options_it_was_made_with() -> None:
    tries: list[str] = []

    @step
    async def flaky() -> str:
        tries.append("try")
        raise ConnectionError("no")

    @workflow
    async def fails() -> str:
        return await flaky()

    async def scenario() -> None:
        async with sim.engine([report, fails], name="a") as engine:
            slow = await engine.schedule(
                "s",
                report(seconds=3000),
                every=60,
                deadline=timedelta(seconds=20),
                max_concurrency=2,
                durability="relaxed",
                tags={"team": "ops"},
            )
            await engine.schedule("t", fails(), every=60, rules=[rule("flaky", retry=Retry(attempts=3, initial=0.1))])
            await sim.advance(minutes=1, seconds=40)
            view = await slow.view()
            assert (view.deadline, view.max_concurrency) == (timedelta(seconds=20), 2)
            first = await engine.get(minute(1))
            assert first is not None
            assert (first.status, first.error.type if first.error else "") == (
                RunStatus.FAILED,
                "perdure.errors.DeadlineExceeded",
            )
            began = (await engine.journal(minute(1)))[0].event
            assert (began.durability, began.max_concurrency) == ("relaxed", 2)  # type: ignore[union-attr]
            assert len(tries) == 3
            # The same again changes nothing, another deadline does.
            await engine.schedule(
                "s", report(seconds=3000), every=60, deadline=30, max_concurrency=2, durability="relaxed"
            )
            assert (await slow.view()).deadline == timedelta(seconds=30)

    sim = Simulation()
    sim.play(scenario())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"deadline": START}, "how long each of its runs may take"),
        ({"deadline": -1}, "deadline=-1"),
        ({"max_concurrency": 0}, "must be at least 1"),
        ({"durability": "never"}, "never"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_when_the_schedule_is_made(options: dict[str, Any], says: str) -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        with pytest.raises((UsageError, ValueError), match=says):
            await engine.schedule("s", report(), every=60, **options)
        assert await engine.schedules() == []

    play(scenario)


# --- declared with the engine ---------------------------------------------------------------------------------------


def test_an_engine_declares_its_schedules_when_it_opens_and_only_what_changed_is_changed() -> None:
    sim = Simulation()

    async def declared(*schedules: Schedule) -> list[tuple[str, Any, bool, int]]:
        async with sim.engine([report], name="a", schedules=schedules) as engine:
            await sim.advance(minutes=2)
            return [(view.id, view.every, view.paused, view.fired) for view in await engine.schedules()]

    async def paused_by_hand() -> None:
        async with sim.engine([report], name="a") as engine:
            await (await engine.schedule("s")).pause()

    async def journal() -> int:
        async with sim.engine([report], name="a") as engine:
            return len([e for e in await engine.journal("schedule:s") if type(e.event).__name__ == "SignalReceived"])

    async def scenario() -> None:
        one, two = timedelta(minutes=1), timedelta(minutes=2)
        assert await declared(Schedule("s", report(), every=60)) == [("s", one, False, 2)]
        await paused_by_hand()
        # Declared again as it was: it stays as it is, the pause with it.
        assert await declared(Schedule("s", report(), every=60)) == [("s", one, True, 2)]
        assert await journal() == 1
        assert await declared(Schedule("s", report(), every=120), Schedule("t", report(), every=60)) == [
            ("s", two, True, 2),
            ("t", one, False, 2),
        ]
        # What is declared no longer goes on: somebody may have made it by hand.
        assert [one[0] for one in await declared()] == ["s", "t"]

    sim.play(scenario())


def test_two_engines_that_declare_the_same_schedule_have_one() -> None:
    sim = Simulation()

    async def scenario() -> None:
        same = Schedule("s", report(), every=60)
        async with (
            sim.engine([report], name="a", schedules=[same]) as engine,
            sim.engine([report], name="b", schedules=[same]),
        ):
            await sim.advance(minutes=3, seconds=30)
            assert await started(engine) == [minute(1), minute(2), minute(3)]

    sim.play(scenario())


def test_a_sweep_declares_schedules_too() -> None:
    sim = Simulation()

    async def scenario() -> None:
        engine = sim.engine([report], name="a", schedules=[Schedule("s", report(), every=60)])
        await engine.sweep()
        await sim.advance(minutes=1)
        await engine.sweep()
        async with sim.engine([report], name="b") as other:
            assert minute(1) in await started(other)

    sim.play(scenario())


def test_a_declaration_that_makes_no_sense_is_refused_before_the_engine_opens() -> None:
    wrong: list[tuple[Any, str]] = [
        (Schedule("s", report(), every=60), r"takes a list; write schedules=\[Schedule\("),
        ([report], r"takes schedules, and .* is not one; write Schedule\("),
        ([Schedule("s", report())], "either every=... or cron="),
        ([Schedule("s", report(), every=60), Schedule("s", report(), every=60)], "is declared twice"),
        ([Schedule("", report(), every=60)], "is empty"),
        ([Schedule("s", report, every=60)], "needs an invocation"),  # type: ignore[arg-type]
    ]
    for given, says in wrong:
        with pytest.raises(UsageError, match=says):
            _ = Engine("memory://", [report], schedules=given)


async def test_a_declaration_of_a_program_that_the_engine_does_not_have_is_named() -> None:
    with pytest.raises(UnknownProgram, match="no program named 'nothing'") as raised:
        _ = await Engine("memory://", [report], schedules=[Schedule("nightly", call("nothing"), every=60)]).open()
    assert raised.value.__notes__ == ["in Engine(schedules=[Schedule('nightly', ...)])"]
