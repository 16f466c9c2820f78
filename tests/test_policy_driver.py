"""A step under its policy, outside of a run."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import (
    FailedStep,
    InvalidRule,
    NotSerializable,
    PolicyDriver,
    Retry,
    StepStatus,
    UsageError,
    kind,
    retry_with,
    rule,
    step,
)


class Flaky:
    """Fails so many times, then answers."""

    def __init__(self, failures: int) -> None:
        self.failures, self.calls = failures, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise ConnectionError(f"call {self.calls}")
        return "answer"


async def test_a_step_is_retried_as_its_policy_says_and_the_attempts_are_told() -> None:
    flaky = Flaky(2)

    @step(retry=Retry(attempts=3, initial=0, jitter=False))
    def ask() -> str:
        return flaky()

    ran = await PolicyDriver().run(ask)
    assert (ran.status, ran.output, ran.error) == (StepStatus.SUCCEEDED, "answer", None)
    assert [attempt.status for attempt in ran.attempts] == ["failed", "failed", "succeeded"]
    kinds = [type(entry.event).__name__ for entry in ran.events]
    assert kinds == ["StepStarted", "AttemptFailed", "StepStarted", "AttemptFailed", "StepStarted", "StepSucceeded"]


async def test_the_policy_of_the_driver_goes_over_that_of_the_step() -> None:
    flaky = Flaky(1)

    @step
    async def ask(question: str) -> str:
        return f"{question} {flaky()}"

    ran = await PolicyDriver({"attempts": 2, "initial": 0.0}).run(ask, question="why?")
    assert (ran.output, len(ran.attempts)) == ("why? answer", 2)


async def test_rules_for_other_steps_do_not_count_and_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    flaky = Flaky(2)

    @step
    def ask() -> str:
        return flaky()

    rules = [rule("asks", attempts=1), rule(kind("cpu"), attempts=1), rule("ask", attempts=3, initial=0.0), rule("aks")]
    assert (await PolicyDriver(rules=rules).run(ask)).output == "answer"
    assert (await PolicyDriver({"attempts": 2}, rules=rules).run(ask)).output == "answer"
    assert caplog.records == []


@pytest.mark.parametrize("policy", [{"attempts": 0}, {"initial": 3600, "max": 60}, {"attemps": 3}])
def test_a_wrong_policy_is_refused_where_it_is_given(policy: Any) -> None:
    with pytest.raises(InvalidRule, match=r"PolicyDriver\(...\)"):
        PolicyDriver(policy)


async def test_a_failure_is_told_and_not_raised() -> None:
    @step
    def ask() -> str:
        raise KeyError("no")

    ran = await PolicyDriver().run(ask)
    assert ran.status is StepStatus.FAILED
    assert ran.output is None
    assert isinstance(ran.error, KeyError)


async def test_a_step_that_is_skipped_tells_why() -> None:
    @step
    def ask() -> str:
        raise KeyError("no")

    ran = await PolicyDriver({"on_failure": "skip"}).run(ask)
    assert (ran.status, ran.output) == (StepStatus.SKIPPED, None)
    assert isinstance(ran.error, KeyError)


async def test_a_fallback_takes_the_place_of_a_failure() -> None:
    @step
    def ask(model: str) -> str:
        if model != "small":
            raise ConnectionError(model)
        return "answer"

    def smaller(failed: FailedStep) -> object:
        return retry_with("small")

    ran = await PolicyDriver(rules=[rule("ask", fallback=smaller)]).run(ask, "large")
    assert (ran.status, ran.output) == (StepStatus.SUCCEEDED, "answer")
    assert [attempt.fallback for attempt in ran.attempts] == [False, True]


async def test_a_timeout_holds() -> None:
    import asyncio

    @step(timeout=0.01)
    async def hang() -> None:
        await asyncio.Event().wait()

    ran = await PolicyDriver().run(hang)
    assert isinstance(ran.error, TimeoutError)


async def test_a_remote_step_is_tried_here() -> None:
    @step(queue="gpu")
    def render() -> str:
        return "frame"

    assert (await PolicyDriver().run(render)).output == "frame"


async def test_a_wrong_call_is_an_error() -> None:
    @step
    def ask(question: str) -> str:
        return question

    with pytest.raises(UsageError, match="takes a step"):
        await PolicyDriver().run(ask.fn, "why?")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await PolicyDriver().run(ask)  # type: ignore[call-arg]
    with pytest.raises(NotSerializable):
        await PolicyDriver().run(ask, object())  # type: ignore[arg-type]
