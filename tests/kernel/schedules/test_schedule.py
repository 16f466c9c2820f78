"""When schedules fire, and which ticks are caught up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import UsageError
from perdure.kernel.schedules import schedule as kernel
from perdure.kernel.schedules.schedule import (
    LATE,
    CatchUp,
    Definition,
    ScheduleSpec,
    all_ticks,
    between,
    catch_up_of,
    fires_at,
    missed,
    next_fire,
    on_time,
    schedule_spec,
    survey,
    tick_id,
    ticks,
)

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC).timestamp()

specs = st.builds(
    lambda when, catch_up, jitter: schedule_spec(**when, catch_up=catch_up, jitter=jitter),
    st.sampled_from([{"every": 5}, {"every": 7.5}, {"every": 60}, {"cron": "* * * * *"}, {"cron": "*/5 * * * * *"}]),
    st.sampled_from(["skip", "one", "all", "all(3)", "all(1)"]),
    st.sampled_from([0.0, 0.5, 5.0]),
)
moments = st.floats(NOON, NOON + 2000)


@given(st.floats(0.001, 1e6), st.floats(0, 4e9))
def test_every_counts_from_the_epoch_and_never_drifts(period: float, after: float) -> None:
    spec = schedule_spec(every=period)
    micros = round(period * 1e6)
    first, second = islice(ticks(spec, after), 2)
    assert after - 1e-3 <= first <= after + period + 1e-3
    assert round(first * 1e6) % micros in (0, 1, micros - 1)
    assert second - first == pytest.approx(micros / 1e6, abs=1e-5)


@given(specs, st.lists(moments, min_size=1, max_size=20))
def test_every_tick_is_handled_exactly_once_however_often_it_is_surveyed(
    spec: ScheduleSpec, looks: list[float]
) -> None:
    after, fired, skipped = NOON, list[float](), 0
    for now in sorted(looks):
        found = survey(spec, "s", after, now, now)
        assert all(after < tick <= found.after for tick in found.fire)
        assert len(found.fire) <= max(1, spec.catch_up.limit)
        fired += found.fire
        skipped += found.skipped
        after = found.after
    assert len(fired) == len(set(fired))
    assert fired == sorted(fired)
    assert len(fired) + skipped == len(list(missed(spec, NOON, after)))


@given(specs, moments)
def test_missed_ticks_are_fired_by_their_policy(spec: ScheduleSpec, now: float) -> None:
    due = []
    for tick in missed(spec, NOON, now):
        if fires_at(spec, "s", tick) > now:
            break
        due.append(tick)
    found = survey(spec, "s", NOON, now, now)
    match spec.catch_up.mode:
        case "one":
            assert list(found.fire) == due[-1:]
        case "all":
            assert list(found.fire) == due[-spec.catch_up.limit :]
        case "skip":
            assert list(found.fire) == [t for t in due[-1:] if now - fires_at(spec, "s", t) <= LATE]
    assert found.skipped == len(due) - len(found.fire)
    assert [due.tick for due in found.ahead] == list(islice(ticks(spec, found.after), 2))


@given(specs, moments, st.floats(0, 200))
def test_a_tick_is_on_time_when_a_survey_would_fire_only_that_tick(
    spec: ScheduleSpec, start: float, later: float
) -> None:
    ahead = kernel.ahead(spec, "s", start)
    now = ahead[0].at + later
    if on_time(spec, ahead, now):
        found = survey(spec, "s", start, now, now)
        assert (found.fire, found.skipped) == ((ahead[0].tick,), 0)


def test_a_year_of_missed_seconds_is_surveyed_at_once() -> None:
    year = 365 * 86400
    found = survey(schedule_spec(every=1, catch_up=all_ticks(3)), "s", NOON, NOON + year, NOON + year)
    assert found.fire == (NOON + year - 2, NOON + year - 1, NOON + year)
    assert found.skipped == year - 3


def test_of_very_many_missed_cron_ticks_the_latest_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "COUNTED", 100)
    spec = schedule_spec(cron="* * * * *", catch_up=all_ticks(3))
    found = survey(spec, "s", NOON, NOON + 86400, NOON + 86400)
    assert found.fire == (NOON + 86400 - 120, NOON + 86400 - 60, NOON + 86400)
    assert found.after == NOON + 86400
    rare = schedule_spec(cron="0 0 1 1 *", catch_up=all_ticks(200))
    century = NOON + 120 * 365.25 * 86400
    assert len(survey(rare, "s", NOON, century, century).fire) == 120


def test_jitter_depends_on_the_schedule_and_the_tick_alone() -> None:
    spec = schedule_spec(every=3600, jitter=600)
    assert fires_at(spec, "a", NOON) == fires_at(spec, "a", NOON)
    assert fires_at(spec, "a", NOON) != fires_at(spec, "b", NOON)
    assert fires_at(spec, "a", NOON) != fires_at(spec, "a", NOON + 3600)
    delays = [fires_at(spec, "a", tick) - tick for tick in missed(spec, NOON, NOON + 1000 * 3600)]
    assert all(0 <= delay < 600 for delay in delays)
    assert max(delays) > 550
    assert min(delays) < 50


def test_the_id_of_a_run_follows_from_its_tick() -> None:
    assert tick_id("daily", NOON) == "daily@2030-01-01T12:00:00Z"
    assert tick_id("often", NOON + 0.1) == "often@2030-01-01T12:00:00.100000Z"


@given(st.floats(0.001, 10.0))
def test_ticks_have_ids_of_their_own(period: float) -> None:
    ids = [tick_id("s", tick) for tick in islice(ticks(schedule_spec(every=period), NOON), 50)]
    assert len(set(ids)) == 50


def test_a_range_has_its_start_and_not_its_end() -> None:
    spec = schedule_spec(every=3600)
    assert between(spec, NOON, NOON + 7200) == [NOON, NOON + 3600]
    assert between(spec, NOON + 1, NOON + 3600) == []


def test_a_range_of_too_many_ticks_is_refused() -> None:
    with pytest.raises(UsageError, match="more than 10000 ticks from 2030-01-01T12:00:00Z"):
        between(schedule_spec(every=1), NOON, NOON + 86400)


def test_next_fire_of_a_schedule_that_is_over_is_none() -> None:
    late = datetime(9999, 6, 1, tzinfo=UTC).timestamp()
    assert next_fire(schedule_spec(cron="0 0 1 1 *"), late) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("skip", CatchUp("skip", 0)),
        ("one", CatchUp("one", 1)),
        ("all", CatchUp("all", 1000)),
        ("all(10)", CatchUp("all", 10)),
        (all_ticks(10), CatchUp("all", 10)),
    ],
)
def test_catch_up_has_names(value: str | CatchUp, expected: CatchUp) -> None:
    assert catch_up_of(value) == expected
    assert catch_up_of(str(expected)) == expected


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "either every=... or cron=..., and neither was given"),
        ({"every": 1, "cron": "* * * * *"}, "and both were given"),
        ({"every": 0}, "every=0 must be more than zero"),
        ({"every": -5}, "every=-5 must be more than zero"),
        ({"every": timedelta(0)}, "must be more than zero"),
        ({"every": float("nan")}, "must be a number of seconds"),
        ({"every": "daily"}, "must be a number of seconds or a timedelta"),
        ({"every": True}, "must be a number of seconds or a timedelta"),
        ({"every": 60, "timezone": "Europe/Berlin"}, "counts in UTC"),
        ({"cron": "0 0 30 2 *"}, "never fires"),
        ({"every": 60, "pause": "yes"}, "pause='yes' is True or False"),
        ({"cron": 5}, "is not a text"),
        ({"cron": "0 0 * * *", "timezone": "Mars"}, "not a time zone"),
        ({"every": 60, "overlap": "skipp"}, "did you mean 'skip'"),
        ({"every": 60, "overlap": "zzz"}, "there are 'skip', 'allow', 'buffer_one'"),
        ({"every": 60, "catch_up": "some"}, "none of 'skip', 'one', 'all'"),
        ({"every": 60, "catch_up": "all(0)"}, "at least 1"),
        ({"every": 60, "jitter": -1}, "must not be negative"),
        ({"every": 60, "jitter": 61}, "must not be longer than every=60"),
    ],
)
def test_what_is_wrong_is_refused_with_the_fix(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        schedule_spec(**options)


@pytest.mark.parametrize("id", ["", "a\nb", "x" * 201, "\ud800", 7])
def test_an_id_that_no_run_could_bear_is_refused(id: Any) -> None:
    with pytest.raises(UsageError, match="id"):
        kernel.check_schedule_id(id)


def test_a_definition_from_before_queues_is_encoded_unchanged() -> None:
    plain = Definition(ScheduleSpec(every=60.0), "report", "[]")
    assert set(msgspec.json.decode(msgspec.json.encode(plain))) == {"spec", "program", "input"}
