"""Cron expressions in time zones, checked against a search of every minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import UsageError
from perdure.kernel.schedules.cron import check_cron, cron_ticks, zone

# A day on which the clocks go forward, and one on which they go back.
CHANGES = {
    "Europe/Berlin": (datetime(2030, 3, 31), datetime(2030, 10, 27)),  # noqa: DTZ001
    "America/New_York": (datetime(2030, 3, 10), datetime(2030, 11, 3)),  # noqa: DTZ001
    # By half an hour.
    "Australia/Lord_Howe": (datetime(2030, 10, 6), datetime(2030, 4, 7)),  # noqa: DTZ001
    # At midnight, so that the day itself begins at one.
    "America/Sao_Paulo": (datetime(2018, 11, 4), datetime(2018, 2, 17)),  # noqa: DTZ001
    # Never, and half an hour off.
    "Asia/Kolkata": (datetime(2030, 3, 31), datetime(2030, 10, 27)),  # noqa: DTZ001
    # A whole day was left out.
    "Pacific/Apia": (datetime(2011, 12, 30), datetime(2011, 12, 30)),  # noqa: DTZ001
}
DAYS = [(name, day) for name, days in CHANGES.items() for day in days]

minutes = st.sampled_from(["*", "*/15", "*/7", "0", "30", "17", "0,30", "10-20", "59"])
hours = st.sampled_from(["*", "*/2", "0", "1", "2", "3", "1,2", "0-5", "23"])
expressions = st.builds(
    lambda minute, hour, day: f"{minute} {hour} {day} * *", minutes, hours, st.sampled_from(["*", "*", "*/2", "L"])
)


def between(expression: str, where: str, start: datetime, end: datetime) -> list[datetime]:
    found = []
    for due in cron_ticks(expression, ZoneInfo(where), start):
        if due > end:
            break
        found.append(due)
    return found


@cache
def parsed(expression: str) -> CronSim:
    return CronSim(expression, datetime(2000, 1, 1))  # noqa: DTZ001


def shows(expression: str, wall: datetime) -> bool:
    fields = parsed(expression)
    return wall.minute in fields.minutes and wall.hour in fields.hours and fields.match_day(wall.date())


def by_looking(expression: str, where: str, start: datetime, end: datetime) -> list[datetime]:
    """The same, found by checking every minute."""
    zone = ZoneInfo(where)
    minute = timedelta(minutes=1)
    if any(field.startswith("*") for field in expression.split()[:2]):
        moments = [start + minute * i for i in range(1, (end - start) // minute + 1)]
        return [at for at in moments if shows(expression, at.astimezone(zone))]
    found = set()
    wall = start.astimezone(zone).replace(tzinfo=None, fold=0)
    while wall < end.astimezone(zone).replace(tzinfo=None) + timedelta(days=2):
        wall += minute
        if shows(expression, wall):
            real = wall
            while real.replace(tzinfo=zone).astimezone(UTC).astimezone(zone).replace(tzinfo=None) != real:
                real += minute
            found.add(real.replace(tzinfo=zone).astimezone(UTC))
    return sorted(at for at in found if start < at <= end)


@given(expressions, st.sampled_from(DAYS), st.integers(-1500, 1500))
def test_cron_ticks_equal_a_check_of_every_minute(expression: str, place: tuple[str, datetime], offset: int) -> None:
    where, day = place
    start = day.replace(tzinfo=UTC) + timedelta(minutes=offset)
    end = start + timedelta(days=2)
    assert between(expression, where, start, end) == by_looking(expression, where, start, end)


@given(expressions, st.sampled_from(DAYS), st.integers(0, 1500))
@settings(max_examples=50)
def test_ticks_after_any_tick_are_the_rest_of_all_ticks(
    expression: str, place: tuple[str, datetime], offset: int
) -> None:
    where, day = place
    start = day.replace(tzinfo=UTC) - timedelta(minutes=offset)
    through = list(islice(cron_ticks(expression, ZoneInfo(where), start), 40))
    after, one_by_one = start, []
    for _ in through:
        after = next(cron_ticks(expression, ZoneInfo(where), after))
        one_by_one.append(after)
    assert through == one_by_one


@pytest.mark.parametrize(("where", "day"), DAYS[:10])
@pytest.mark.parametrize("expression", ["30 2 * * *", "30 1 * * *", "0 30 2 * * *", "0 0 * * *"])
def test_a_daily_time_fires_once_on_the_days_of_change_too(where: str, day: datetime, expression: str) -> None:
    zone = ZoneInfo(where)
    start = (day - timedelta(days=3)).replace(tzinfo=zone, hour=12).astimezone(UTC)
    end = (day + timedelta(days=3)).replace(tzinfo=zone, hour=12).astimezone(UTC)
    days = [due.astimezone(zone).date() for due in between(expression, where, start, end)]
    assert len(days) == 6
    assert len(set(days)) == 6


def test_a_skipped_time_fires_after_the_gap_and_a_repeated_one_fires_once() -> None:
    spring, autumn = datetime(2030, 3, 31, tzinfo=UTC), datetime(2030, 10, 27, tzinfo=UTC)
    assert next(cron_ticks("30 2 * * *", ZoneInfo("Europe/Berlin"), spring)) == spring.replace(hour=1)
    assert next(cron_ticks("30 2 * * *", ZoneInfo("Europe/Berlin"), autumn)) == autumn.replace(hour=0, minute=30)


def test_a_quarter_hourly_cron_fires_in_both_repeated_hours() -> None:
    autumn = datetime(2030, 10, 26, 23, 59, tzinfo=UTC)
    due = list(islice(cron_ticks("*/15 * * * *", ZoneInfo("Europe/Berlin"), autumn), 12))
    assert due == [datetime(2030, 10, 27, tzinfo=UTC) + timedelta(minutes=15 * i) for i in range(12)]


def test_a_fraction_of_a_second_makes_no_difference() -> None:
    at = datetime(2030, 1, 1, 2, 30, tzinfo=UTC)
    for where in ("UTC", "Europe/Berlin"):
        ticks = cron_ticks("* * * * * *", zone(where), at + timedelta(milliseconds=500))
        assert next(ticks) == at + timedelta(seconds=1)


def test_cron_ticks_stop_after_the_year_9999() -> None:
    assert list(cron_ticks("0 0 1 1 *", UTC, datetime(9998, 6, 1, tzinfo=UTC))) == [datetime(9999, 1, 1, tzinfo=UTC)]


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("0 0 30 2 *", "never fires"),
        ("0 0 31 4,6,9,11 *", "never fires"),
        ("0 0 0 30 2 *", "never fires"),
        ("* * * *", "Wrong number of fields"),
        ("@daily", r"written with fields here: cron='0 0 \* \* \*'"),
        ("61 * * * *", "Bad minute"),
        ("0 0 * * funday", "Bad day-of-week"),
        ("", "Wrong number of fields"),
        ("1#2/3 * * * 1#1/2", "cannot be read"),
    ],
)
def test_an_expression_that_is_wrong_or_never_due_is_refused_with_the_fix(expression: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        check_cron(expression)
    assert repr(expression) in str(refused.value)
    assert any(fix in str(refused.value) for fix in ("fields are", "choose another", "written with fields"))


def test_the_29th_of_february_is_a_day_that_comes() -> None:
    check_cron("0 0 29 2 *")


@pytest.mark.parametrize("name", ["Europe/Berlinn", "America", "", "../etc/passwd", "\0", "Mars/Olympus"])
def test_an_unknown_zone_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="not a time zone"):
        zone(name)


def test_a_zone_that_is_misspelt_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match="did you mean 'Europe/Berlin'"):
        zone("Europe/Berlim")
