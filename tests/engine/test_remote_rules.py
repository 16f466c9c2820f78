"""The policy of a remote step: what rules and options of the call say holds where the worker tries it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, InvalidRule, Program, Retry, RunResult, RunStatus, step, step_context, workflow
from perdure.kernel.policies.rules import RulesLike, default, kind, rule


@step(queue="gpu")
async def flaky(until: int) -> int:
    if step_context().attempt < until:
        raise ConnectionError("not yet")
    return step_context().attempt


@step(queue="gpu")
async def endless() -> None:
    await asyncio.Event().wait()


@workflow
async def trying(until: int) -> int:
    return await flaky(until)


@workflow
async def trying_or_none(until: int) -> int | None:
    return await flaky(until)


@workflow(rules=[rule("flaky", attempts=4, initial=0)])
async def trying_by_its_own_rules(until: int) -> int:
    return await flaky(until)


@workflow
async def trying_with_options(until: int) -> int:
    return await flaky.options(retry=Retry(attempts=3, initial=0))(until)


@workflow
async def hanging() -> None:
    await endless.options(timeout=0.01)()


class Run:
    """Runs a workflow in one engine, whose steps are tried by another one on the same store."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __call__(
        self, invocation: Any, worker: RulesLike = (), engine: RulesLike = (), **options: Any
    ) -> RunResult[Any]:
        programs: list[Program] = [trying, trying_or_none, trying_by_its_own_rules, trying_with_options, hanging]
        async with (
            Engine(self._url, programs, rules=engine) as caller,
            Engine(self._url, steps=[flaky, endless], rules=worker),
        ):
            return await caller.run(invocation, **options)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(f"sqlite:///{tmp_path}/x.db")


@pytest.mark.parametrize(
    ("invocation", "given"),
    [
        (trying(3), {"rules": [rule("flaky", attempts=3, initial=0)]}),
        (trying(3), {"rules": [rule(kind("remote"), attempts=3, initial=0)]}),
        (trying(3), {"engine": [rule("flaky", attempts=3, initial=0)]}),
        (trying(3), {"worker": [rule("flaky", attempts=3, initial=0)]}),
        (trying_by_its_own_rules(3), {}),
        (trying_with_options(3), {}),
        (trying_with_options(5), {"rules": [rule("flaky", attempts=5)]}),
        (trying(3), {"rules": [rule("flaky", attempts=3, initial=0)], "worker": [rule("flaky", attempts=1)]}),
    ],
)
async def test_retries_that_are_asked_for_are_made_by_the_worker(
    run: Run, invocation: Any, given: dict[str, Any]
) -> None:
    result = await run(invocation, **given)
    assert (result.status, result.error) == (RunStatus.COMPLETED, None)


async def test_without_a_rule_the_worker_tries_as_its_own_code_says(run: Run) -> None:
    assert isinstance((await run(trying(2))).error, ConnectionError)


async def test_a_timeout_of_the_call_holds_at_the_worker(run: Run) -> None:
    assert isinstance((await run(hanging())).error, TimeoutError)


async def test_a_remote_step_is_skipped_as_a_rule_says(run: Run) -> None:
    result = await run(trying_or_none(2), rules=[rule("flaky", on_failure="skip")])
    assert (result.status, result.output) == (RunStatus.COMPLETED, None)


async def test_rules_of_the_worker_leave_its_report_alone(run: Run) -> None:
    rules = [rule(default, attempts=3, initial=0, on_failure="skip", timeout=30)]
    assert (await run(trying(3), worker=rules)).output == 3


async def test_a_fallback_cannot_be_sent_and_is_refused_with_what_to_write(run: Run) -> None:
    result = await run(trying(2), engine=[rule("flaky", fallback=lambda failed: 0)])
    assert isinstance(result.error, InvalidRule)
    assert "give this rule to the worker" in str(result.error)


async def test_a_fallback_of_the_worker_holds(run: Run) -> None:
    assert (await run(trying(2), worker=[rule("flaky", fallback=lambda failed: 7)])).output == 7


def test_exception_classes_cannot_be_sent_and_are_refused_where_they_are_given() -> None:
    with pytest.raises(InvalidRule, match="give this rule to the worker"):
        flaky.options(retry=Retry(attempts=3, on=(ConnectionError,)))


async def test_a_failed_attempt_is_logged_under_the_run_that_called_the_step(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "perdure"):
        await run(trying(2), worker=[rule("flaky", attempts=2, initial=0)], id="film")
    assert [line for line in caplog.messages if "failed" in line] == [
        "run film: step flaky:0 in queue gpu: attempt 1 of 2 failed: ConnectionError: not yet; next attempt in 0.0 s"
    ]
