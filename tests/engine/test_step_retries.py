"""Retries: which failures are tried again, when, and what is recorded and logged of them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from perdure import Engine, Retry, RunStatus, StepStatus, step, step_context, workflow
from perdure.kernel.events import AttemptFailed, StepFailed
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, FakeClock, Gates, Recorded, crashed, only, run
from tests.engine.step_parts import QUICK, Declined, TooBusy, failing


async def test_a_step_is_tried_again_until_it_succeeds_and_each_attempt_is_recorded() -> None:
    flow = only(failing(2, retry=QUICK))
    async with Engine("memory://", [flow]) as engine:
        assert (await engine.run(flow(), id="it")).output == 3
        [view] = await engine.steps("it")
    assert (view.status, view.attempt, view.output) == (StepStatus.SUCCEEDED, 3, 3)
    assert [(a.number, a.status) for a in view.attempts] == [
        (1, StepStatus.FAILED),
        (2, StepStatus.FAILED),
        (3, StepStatus.SUCCEEDED),
    ]
    assert [a.error.message if a.error else None for a in view.attempts] == ["attempt 1", "attempt 2", None]


async def test_a_failed_attempt_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    @step(retry=Retry(attempts=2, initial=0.01, jitter=False))
    async def flaky() -> int:
        raise TooBusy("line one\x1b[31m\nline two")

    flow = only(flaky)

    with caplog.at_level("INFO", "perdure"):
        async with Engine("memory://", [flow]) as engine:
            await engine.run(flow(), id="it")
    error = r"tests.engine.step_parts.TooBusy: line one\x1b[31m"
    assert [line for line in caplog.messages if line.startswith("run ")] == [
        f"run it: step flaky:0: attempt 1 of 2 failed: {error}; next attempt in 0.0 s",
        f"run it: step flaky:0: attempt 2 of 2 failed: {error}; the step has failed",
    ]


async def test_a_long_error_is_cut_in_the_log_and_shows_that_it_was(caplog: pytest.LogCaptureFixture) -> None:
    @step
    async def talkative() -> int:
        raise RuntimeError("x" * 500)

    flow = only(talkative)

    with caplog.at_level("INFO", "perdure"):
        async with Engine("memory://", [flow]) as engine:
            await engine.run(flow(), id="it")
    [line] = [line for line in caplog.messages if line.startswith("run ")]
    assert (
        line == f"run it: step talkative:0: attempt 1 failed: {'RuntimeError: '.ljust(199, 'x')}…; the step has failed"
    )


async def test_a_step_that_never_succeeds_fails_with_its_last_exception() -> None:
    calls = 0

    @step(retry=QUICK)
    async def failing() -> None:
        nonlocal calls
        calls += 1
        raise Declined(calls, "always")

    @workflow
    async def flow() -> list[Any]:
        try:
            await failing()
        except Declined as error:
            return [error.code, error.why, str(error)]
        return []

    ran = await run(flow())
    assert ran.output == [3, "always", "declined with 3: always"]
    kinds = [type(e) for e in await ran.events() if isinstance(e, AttemptFailed | StepFailed)]
    assert kinds == [AttemptFailed, AttemptFailed, StepFailed]


@pytest.mark.parametrize(
    ("on", "calls_expected"),
    [
        ((TooBusy,), 3),
        ((ConnectionError,), 3),
        ((OSError, ValueError), 3),
        ((ValueError,), 1),
        ((), 1),
        (ConnectionError, 3),
    ],
)
async def test_only_exceptions_on_the_list_are_tried_again(on: Any, calls_expected: int) -> None:
    called: list[int] = []
    ran = await run(only(failing(retry=Retry(attempts=3, initial=0, on=on), called=called))())
    assert isinstance(ran.result.error, TooBusy)
    assert len(called) == calls_expected


async def test_a_step_without_a_retry_is_tried_once() -> None:
    called: list[int] = []
    await run(only(failing(called=called))())
    assert called == [1]


async def test_retries_wait_durably_with_exponential_backoff() -> None:
    flow = only(failing(retry=Retry(attempts=4, initial=10, factor=3, max=60, jitter=False)))
    clock, recorded, store = FakeClock(), Recorded(), MemoryStore()
    begin = clock.now()
    async with Engine(store, [flow], clock=clock, on_commit=recorded) as engine:
        handle = await engine.start(flow(), id="it")
        for attempt, wait in ((1, 10), (2, 30), (3, 60)):
            event = await recorded.until(lambda e, n=attempt: isinstance(e, AttemptFailed) and e.attempt == n)  # type: ignore[misc]
            assert isinstance(event, AttemptFailed)
            assert event.retry_at == clock.now() + wait
            assert await handle.status() is RunStatus.WAITING
            clock.advance(wait)
        with pytest.raises(TooBusy):
            await handle.result(PATIENCE)
    assert clock.now() == begin + 100


async def test_a_run_that_waits_for_a_retry_shows_what_it_waits_for() -> None:
    flow = only(failing(retry=Retry(attempts=2, initial=60, jitter=False)))
    clock, recorded = FakeClock(), Recorded()
    async with Engine("memory://", [flow], clock=clock, on_commit=recorded) as engine:
        _ = await engine.start(flow(), id="it")
        await recorded.until(lambda e: isinstance(e, AttemptFailed))
        view = await engine.get("it")
        assert view is not None
        [wait] = view.waits
    assert (wait.path, wait.kind) == ("failing:0", "retry")
    assert wait.deadline == datetime.fromtimestamp(clock.now() + 60, UTC)


async def test_retries_go_on_after_a_crash_and_attempts_that_died_do_not_count() -> None:
    gates = Gates()
    seen: list[int] = []

    @step(retry=Retry(attempts=2, initial=0, jitter=False))
    async def flaky() -> int:
        attempt = step_context().attempt
        seen.append(attempt)
        if attempt == 1:
            await gates.wait("never")
        if attempt == 2:
            raise TooBusy("busy")
        return attempt

    flow = only(flaky)

    found = await crashed(flow(), "flaky:0")
    async with Engine(found, [flow], recovery=AT_ONCE) as engine:
        assert await (await engine.start(flow(), id="it")).result(PATIENCE) == 3
        [view] = await engine.steps("it")
    assert seen == [1, 2, 3]
    assert [a.status for a in view.attempts] == [StepStatus.UNKNOWN, StepStatus.FAILED, StepStatus.SUCCEEDED]


async def test_a_failing_step_in_a_gather_waits_for_its_retry_while_the_others_go_on() -> None:
    flaky, steady = failing(1, retry=Retry(attempts=2, initial=0.02, jitter=False)), failing(0)

    @workflow
    async def flow() -> list[int]:
        order: list[int] = []

        async def branch(call: Any) -> None:
            order.append(await call())

        await asyncio.gather(branch(flaky), branch(steady))
        return order

    # The number of the attempt that succeeded.
    assert (await run(flow())).output == [1, 2]
