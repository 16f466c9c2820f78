"""How many attempts a step gets, and when the next is due."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.kernel.policies.retry import ONCE, Retry, backoff, fraction

SECONDS = st.floats(0, 1e6, allow_nan=False)
POLICIES = st.builds(
    lambda waits, **given: Retry(initial=min(waits), max=max(waits), **given),
    st.tuples(SECONDS, SECONDS),
    attempts=st.integers(1, 10**9),
    factor=st.floats(1, 1e300, allow_nan=False) | st.integers(1, 10**12),
    jitter=st.booleans(),
)
FAILURES = st.integers(1, 10**9)


@given(POLICIES, FAILURES, st.text())
def test_a_wait_is_within_its_bounds_and_never_overflows(retry: Retry, failures: int, key: str) -> None:
    wait = backoff(retry, failures, key)
    assert math.isfinite(wait)
    assert 0 <= wait <= retry.max


@given(POLICIES, FAILURES, st.text())
def test_a_wait_is_the_same_on_every_replay(retry: Retry, failures: int, key: str) -> None:
    assert backoff(retry, failures, key) == backoff(retry, failures, key)


@given(SECONDS, st.floats(1, 100), SECONDS, FAILURES)
def test_waits_without_jitter_never_shrink(initial: float, factor: float, more: float, failures: int) -> None:
    retry = Retry(initial=initial, factor=factor, max=initial + more, jitter=False)
    assert backoff(retry, failures, "k") <= backoff(retry, failures + 1, "k")


@given(POLICIES, FAILURES, st.text())
def test_jitter_takes_at_most_half_of_a_wait(retry: Retry, failures: int, key: str) -> None:
    plain = Retry(retry.attempts, retry.initial, retry.factor, retry.max, jitter=False)
    full = backoff(plain, failures, key)
    wait = backoff(retry, failures, key)
    assert full / 2 <= wait <= full


def test_waits_grow_by_the_factor_up_to_the_most() -> None:
    retry = Retry(initial=1, factor=2, max=10, jitter=False)
    assert [backoff(retry, n, "k") for n in range(1, 7)] == [1, 2, 4, 8, 10, 10]


def test_jitter_spreads_different_steps() -> None:
    waits = {backoff(Retry(initial=100, max=100), 1, f"r{i}/work:0") for i in range(100)}
    assert len(waits) > 90
    assert max(waits) - min(waits) > 40


@pytest.mark.parametrize("initial", [61, 3600, 86400.0])
@pytest.mark.parametrize("plan", ["exponential", "linear"])
def test_a_first_wait_above_the_default_of_the_longest_is_waited(initial: float, plan: Any) -> None:
    retry = Retry(initial=initial, backoff=plan, jitter=False)
    assert [backoff(retry, n, "k") for n in (1, 2, 3)] == [initial] * 3
    assert dataclasses.replace(retry, attempts=9).max == initial
    assert dataclasses.replace(Retry(), initial=initial).max == initial


def test_a_longest_wait_below_the_default_of_the_first_is_waited() -> None:
    retry = Retry(max=0.25, jitter=False)
    assert [backoff(retry, n, "k") for n in (1, 2)] == [0.25, 0.25]


@pytest.mark.parametrize(("initial", "most"), [(3600, 60), (3600.0, 60.0), (1.0, 0.5), (1, 0)])
def test_a_first_wait_above_the_longest_that_was_given_is_refused(initial: float, most: float) -> None:
    with pytest.raises(
        ValueError, match=r"Retry\(initial=.*, max=.*\): the first wait is longer than the longest; raise"
    ):
        Retry(initial=initial, max=most)


@given(st.text())
def test_a_fraction_is_at_least_zero_and_less_than_one(key: str) -> None:
    assert 0 <= fraction(key) < 1


def test_one_exception_class_may_stand_alone() -> None:
    assert Retry(on=OSError).on == (OSError,)  # type: ignore[arg-type]


def test_a_step_without_a_policy_is_tried_once() -> None:
    assert ONCE.attempts == 1


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"attempts": -1}, {"initial": -1.0}, {"max": -1.0}, {"factor": 0.5}, {"factor": 0}]
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="Retry"):
        Retry(**wrong)  # type: ignore[arg-type]
