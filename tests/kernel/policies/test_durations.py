"""Lengths of time: numbers of seconds and timedeltas, and nothing that only looks like one."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest

from perdure.kernel.policies.durations import ENDLESS, duration


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
