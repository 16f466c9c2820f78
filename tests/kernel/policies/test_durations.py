"""Lengths of time: numbers of seconds and timedeltas, and nothing that only looks like one."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest

from perdure.kernel.policies.durations import ENDLESS, duration, parse_duration


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (3, 3.0),
        (-0.5, -0.5),
        (timedelta(minutes=1), 60.0),
        (timedelta(days=-1), -86_400.0),
        (10**400, ENDLESS),
        (-(10**400), -ENDLESS),
    ],
)
def test_a_duration_is_a_number_of_seconds_or_a_timedelta(given: object, seconds: float) -> None:
    assert duration(given) == seconds


@pytest.mark.parametrize("given", [None, True, False, "3", b"3", [3], 3j])
def test_nothing_else_is_one(given: object) -> None:
    assert duration(given) is None


def test_what_is_endless_or_no_number_is_within_no_bounds() -> None:
    for given in (math.inf, -math.inf, math.nan, 10**400):
        seconds = duration(given)
        assert seconds is not None
        assert not -ENDLESS < seconds < ENDLESS


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("90m", 5400.0), ("1.5h", 5400.0), ("250ms", 0.25), ("2 min", 120.0), (" 30d ", 2_592_000.0)),
        *(("2w", 1_209_600.0), ("-1s", -1.0), (".5s", 0.5), ("1e3s", 1000.0)),
    ],
)
def test_a_text_is_a_number_with_its_unit(text: str, seconds: float) -> None:
    assert parse_duration(text, bare=False) == parse_duration(text, bare=True) == seconds


@pytest.mark.parametrize("text", ["", "s", "soon", "5 x", "5.m", "1h30m", "\u0663s", "9" * 400 + "s", "inf", "nan"])
def test_other_texts_are_none(text: str) -> None:
    assert parse_duration(text, bare=True) is None


def test_a_number_alone_is_seconds_only_where_that_is_meant() -> None:
    assert parse_duration("30", bare=True) == 30.0
    assert parse_duration("30", bare=False) is None
    assert parse_duration("20261116", bare=False) is None  # a date
