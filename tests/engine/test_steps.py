"""Steps under their policies: attempts, retries, timeouts, at-most-once, what a step knows about itself."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import (
    Engine,
    OutcomeUnknown,
    PerdureError,
    Retry,
    RunFailed,
    RunStatus,
    StepStatus,
    StepTimeout,
    sleep,
    step,
    step_context,
    workflow,
)
from perdure.kernel.events import AttemptFailed, StepFailed, StepStarted
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import (
    AT_ONCE,
    PATIENCE,
    FakeClock,
    Gates,
    Recorded,
    go_on_from_everywhere,
    left_by_a_crash,
    run,
)

var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="unset")
QUICK = Retry(attempts=3, initial=0, jitter=False)


class Declined(Exception):
    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"declined with {code}: {why}")
        self.code, self.why = code, why


class TooBusy(ConnectionError):
    pass


# --- where steps run -------------------------------------------------------------------------------------------------


async def test_async_steps_run_on_the_loop_and_plain_steps_in_threads() -> None:
    main = threading.get_ident()

    @step
    async def asynchronous() -> bool:
        return threading.get_ident() == main

    @step
    def plain() -> bool:
        return threading.get_ident() == main

    @workflow
    async def flow() -> list[bool]:
        return [await asynchronous(), await plain()]

    assert (await run(flow())).output == [True, False]


async def test_plain_steps_run_side_by_side() -> None:
    barrier = threading.Barrier(8, timeout=PATIENCE)

    @step
    def meet(n: int) -> int:
        barrier.wait()
        return n

    @workflow
    async def flow() -> list[int]:
        return list(await asyncio.gather(*(meet(n) for n in range(8))))

    assert (await run(flow())).output == list(range(8))


async def test_many_plain_steps_all_end() -> None:
    @step
    def one(n: int) -> int:
        return n

    @workflow
    async def flow() -> int:
        return sum(await asyncio.gather(*(one(n) for n in range(500))))

    assert (await run(flow())).output == sum(range(500))


async def test_a_thread_sees_a_copy_of_the_context_and_changes_nothing_of_it() -> None:
    @step
    def look() -> str:
        before = var.get()
        var.set("changed by the step")
        return before

    @workflow
    async def flow() -> list[str]:
        return [await look(), await look()]

    var.set("of the engine")
    async with Engine("memory://", [flow]) as engine:
        result = await engine.run(flow())
    assert result.output == ["of the engine", "of the engine"]
    assert var.get() == "of the engine"


async def test_steps_of_one_run_do_not_see_the_context_of_another_runs_caller() -> None:
    @step
    async def look() -> str:
        return var.get()

    @step
    def look_in_a_thread() -> str:
        return var.get()

    @workflow
    async def flow() -> list[str]:
        return [await look(), await look_in_a_thread(), await look()]

    async with Engine("memory://", [flow]) as engine:

        async def caller(name: str) -> list[str]:
            var.set(name)
            return (await engine.run(flow())).output or []

        seen = await asyncio.gather(*(caller(name) for name in ("alice", "bob", "carol")))
    for name, values in zip(("alice", "bob", "carol"), seen, strict=True):
        assert set(values) <= {name, "unset"}


class Inline(Executor):
    """An executor of the user's own: calls at once."""

    def __init__(self) -> None:
        self.calls = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls += 1
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


async def test_a_custom_executor_runs_plain_steps_and_no_others() -> None:
    @step
    def plain(x: int) -> str:
        if x < 0:
            raise ValueError("negative")
        return f"{step_context().attempt}: {x}"

    @step
    async def asynchronous(x: int) -> int:
        return x

    @workflow
    async def flow() -> list[Any]:
        try:
            await plain(-1)
        except ValueError as error:
            return [str(error), await plain(1), await asynchronous(2)]
        return []

    executor = Inline()
    assert (await run(flow(), executor=executor)).output == ["negative", "1: 1", 2]
    assert executor.calls == 2


async def test_a_thread_pool_of_the_user_runs_plain_steps_and_is_left_open() -> None:
    @step
    def where() -> str:
        return threading.current_thread().name

    @workflow
    async def flow() -> str:
        return await where()

    with ThreadPoolExecutor(1, thread_name_prefix="mine") as pool:
        assert (await run(flow(), executor=pool)).output.startswith("mine")
        assert pool.submit(len, "abc").result() == 3


async def test_an_executor_that_refuses_work_fails_the_step() -> None:
    class Broken(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            raise RuntimeError("no workers left")

    @step
    def plain() -> int:
        return 1

    @workflow
    async def flow() -> str:
        try:
            await plain()
        except RuntimeError as error:
            return str(error)
        return ""

    assert "no workers left" in (await run(flow(), executor=Broken())).output


# --- retries ---------------------------------------------------------------------------------------------------------


async def test_a_step_is_tried_again_until_it_succeeds_and_each_attempt_is_recorded() -> None:
    @step(retry=QUICK)
    async def flaky() -> int:
        attempt = step_context().attempt
        if attempt < 3:
            raise TooBusy(f"attempt {attempt}")
        return attempt

    @workflow
    async def flow() -> int:
        return await flaky()

    store = MemoryStore()
    async with Engine(store, [flow]) as engine:
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

    @workflow
    async def flow() -> int:
        return await flaky()

    with caplog.at_level("INFO", "perdure"):
        async with Engine("memory://", [flow]) as engine:
            await engine.run(flow(), id="it")
    error = r"tests.engine.test_steps.TooBusy: line one\x1b[31m"
    assert [line for line in caplog.messages if line.startswith("run ")] == [
        f"run it: flaky:0, attempt 1 of 2 failed: {error}; the next begins in 0.0 s",
        f"run it: flaky:0, attempt 2 failed: {error}; the step has failed",
    ]


async def test_a_long_error_is_cut_in_the_log_and_shows_that_it_was(caplog: pytest.LogCaptureFixture) -> None:
    @step
    async def talkative() -> int:
        raise RuntimeError("x" * 500)

    @workflow
    async def flow() -> int:
        return await talkative()

    with caplog.at_level("INFO", "perdure"):
        async with Engine("memory://", [flow]) as engine:
            await engine.run(flow(), id="it")
    [line] = [line for line in caplog.messages if line.startswith("run ")]
    assert line == f"run it: talkative:0, attempt 1 failed: {'RuntimeError: '.ljust(199, 'x')}…; the step has failed"


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
    calls = 0

    @step(retry=Retry(attempts=3, initial=0, on=on))
    async def failing() -> None:
        nonlocal calls
        calls += 1
        raise TooBusy("busy")

    @workflow
    async def flow() -> None:
        await failing()

    ran = await run(flow())
    assert isinstance(ran.result.error, TooBusy)
    assert calls == calls_expected


async def test_a_step_without_a_retry_is_tried_once() -> None:
    calls = 0

    @step
    async def failing() -> None:
        nonlocal calls
        calls += 1
        raise TooBusy("busy")

    @workflow
    async def flow() -> None:
        await failing()

    await run(flow())
    assert calls == 1


async def test_retries_wait_durably_with_exponential_backoff() -> None:
    @step(retry=Retry(attempts=4, initial=10, factor=3, max=60, jitter=False))
    async def failing() -> None:
        raise TooBusy("busy")

    @workflow
    async def flow() -> None:
        await failing()

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
    @step(retry=Retry(attempts=2, initial=60, jitter=False))
    async def failing() -> None:
        raise TooBusy("busy")

    @workflow
    async def flow() -> None:
        await failing()

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

    @workflow
    async def flow() -> int:
        return await flaky()

    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [flow], recovery=AT_ONCE, on_commit=recorded) as engine:
        _ = await engine.start(flow(), id="it")
        await recorded.until_started("flaky:0")
        found = left_by_a_crash(store)
    async with Engine(found, [flow], recovery=AT_ONCE) as engine:
        assert await (await engine.start(flow(), id="it")).result(PATIENCE) == 3
        [view] = await engine.steps("it")
    assert seen == [1, 2, 3]
    assert [a.status for a in view.attempts] == [StepStatus.UNKNOWN, StepStatus.FAILED, StepStatus.SUCCEEDED]


async def test_a_failing_step_in_a_gather_waits_for_its_retry_while_the_others_go_on() -> None:
    @step(retry=Retry(attempts=2, initial=0.02, jitter=False))
    async def flaky() -> str:
        if step_context().attempt == 1:
            raise TooBusy("busy")
        return "flaky"

    @step
    async def steady() -> str:
        return "steady"

    @workflow
    async def flow() -> list[str]:
        order: list[str] = []

        async def branch(call: Any) -> None:
            order.append(await call())

        await asyncio.gather(branch(flaky), branch(steady))
        return order

    assert (await run(flow())).output == ["steady", "flaky"]


# --- timeouts --------------------------------------------------------------------------------------------------------


async def test_an_async_step_that_takes_too_long_is_cancelled_and_times_out() -> None:
    cancelled = asyncio.Event()

    @step(timeout=0.01)
    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    @workflow
    async def flow() -> str:
        try:
            await slow()
        except StepTimeout as error:
            return f"{error.op} {error.seconds}"
        return ""

    ran = await run(flow())
    assert ran.output == "slow:0 0.01"
    assert cancelled.is_set()


async def test_a_timeout_of_a_step_is_a_timeout_error_too() -> None:
    @step(timeout=timedelta(milliseconds=10))
    async def slow() -> None:
        await asyncio.Event().wait()

    @workflow
    async def flow() -> None:
        await slow()

    assert isinstance((await run(flow())).result.error, TimeoutError)


async def test_a_step_that_ignores_its_cancellation_does_not_hold_up_the_run() -> None:
    gates = Gates()

    @step(timeout=0.01)
    async def stubborn() -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await gates.wait("end")
        return 1

    @workflow
    async def flow() -> str:
        try:
            await stubborn()
        except StepTimeout:
            return "timed out"
        return "ended"

    store = MemoryStore()
    async with Engine(store, [flow], recovery=AT_ONCE) as engine:
        assert await (await engine.start(flow(), id="it")).result(PATIENCE) == "timed out"
        gates.open("end")
        [view] = await engine.steps("it")
    assert view.status is StepStatus.FAILED


async def test_a_thread_learns_that_nobody_waits_for_it_any_more() -> None:
    begun, ended = threading.Event(), threading.Event()
    seen: list[bool] = []

    @step(timeout=0.01)
    def slow() -> None:
        context = step_context()
        seen.append(context.cancelled)
        begun.set()
        while not context.cancelled:
            ended.wait(0.001)
        seen.append(context.cancelled)
        ended.set()

    @workflow
    async def flow() -> str:
        try:
            await slow()
        except StepTimeout:
            return "timed out"
        return "ended"

    assert (await run(flow())).output == "timed out"
    assert begun.is_set()
    assert await asyncio.to_thread(ended.wait, PATIENCE)
    assert seen == [False, True]


async def test_a_timeout_counts_per_attempt_and_is_tried_again() -> None:
    @step(timeout=0.02, retry=Retry(attempts=2, initial=0, on=(TimeoutError,)))
    async def slow_at_first() -> int:
        attempt = step_context().attempt
        if attempt == 1:
            await asyncio.Event().wait()
        return attempt

    @workflow
    async def flow() -> int:
        return await slow_at_first()

    assert (await run(flow())).output == 2


async def test_an_outcome_that_comes_after_the_timeout_is_dropped() -> None:
    gates = Gates()

    @step(timeout=0.01, retry=Retry(attempts=2, initial=0))
    async def slow() -> str:
        attempt = step_context().attempt
        if attempt == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                gates.open("late")
                return "too late"
        await gates.wait("late")
        return "in time"

    @workflow
    async def flow() -> str:
        return await slow()

    assert (await run(flow())).output == "in time"


async def test_options_change_the_policy_of_one_call() -> None:
    calls = 0

    @step
    async def failing() -> None:
        nonlocal calls
        calls += 1
        raise TooBusy("busy")

    @step
    async def slow() -> None:
        await asyncio.Event().wait()

    @workflow
    async def flow() -> list[Any]:
        seen: list[Any] = []
        try:
            await failing.options(retry=QUICK)()
        except TooBusy:
            seen.append(calls)
        try:
            await failing()
        except TooBusy:
            seen.append(calls)
        try:
            await slow.options(timeout=timedelta(milliseconds=10))()
        except StepTimeout:
            seen.append("timed out")
        return seen

    async with Engine("memory://", [flow]) as engine:
        assert (await engine.run(flow())).output == [3, 4, "timed out"]


# --- at most once ----------------------------------------------------------------------------------------------------


async def test_an_at_most_once_step_is_not_tried_again_after_a_crash() -> None:
    calls: list[int] = []

    @step(at_most_once=True)
    async def launch() -> None:
        calls.append(step_context().attempt)
        await asyncio.Event().wait()

    @workflow
    async def flow() -> list[str]:
        try:
            await launch()
        except OutcomeUnknown as error:
            return [error.op, error.key]
        return []

    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [flow], recovery=AT_ONCE, on_commit=recorded) as engine:
        handle = await engine.start(flow(), id="it")
        await recorded.until_started("launch:0")
        found = left_by_a_crash(store)
    async with Engine(found, [flow], recovery=AT_ONCE) as engine:
        op, key = await (await engine.start(flow(), id="it")).result(PATIENCE)
        [view] = await engine.steps("it")
    assert (op, key) == ("launch:0", f"{handle.run_id}/launch:0")
    assert calls == [1]
    assert view.status is StepStatus.UNKNOWN


async def test_an_at_most_once_step_that_ended_before_the_crash_keeps_its_result() -> None:
    @step(at_most_once=True)
    async def launch() -> str:
        return "launched"

    @step
    async def watch() -> None:
        await gates.wait("watch")

    @workflow
    async def flow() -> str:
        result = await launch()
        await watch()
        return result

    gates = Gates()
    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [flow], recovery=AT_ONCE, on_commit=recorded) as engine:
        _ = await engine.start(flow(), id="it")
        await recorded.until_started("watch:0")
        found = left_by_a_crash(store)
    gates.open("watch")
    async with Engine(found, [flow], recovery=AT_ONCE) as engine:
        assert await (await engine.start(flow(), id="it")).result(PATIENCE) == "launched"


# --- step_context ----------------------------------------------------------------------------------------------------


async def test_a_step_knows_its_key_run_and_attempt_and_the_key_is_the_same_for_every_attempt() -> None:
    seen: list[tuple[str, str, int]] = []

    @step(retry=QUICK)
    async def flaky() -> None:
        context = step_context()
        seen.append((context.id, context.run_id, context.attempt))
        if context.attempt < 3:
            raise TooBusy("busy")

    @workflow
    async def flow() -> None:
        await flaky()
        await flaky()

    ran = await run(flow())
    assert seen == [
        *[(f"{ran.run_id}/flaky:0", ran.run_id, n) for n in (1, 2, 3)],
        *[(f"{ran.run_id}/flaky:1", ran.run_id, n) for n in (1, 2, 3)],
    ]


async def test_the_key_is_the_same_after_a_crash() -> None:
    seen: list[str] = []

    @step
    async def slow() -> None:
        seen.append(step_context().id)
        if step_context().attempt == 1:
            await asyncio.Event().wait()

    @workflow
    async def flow() -> None:
        await slow()

    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [flow], recovery=AT_ONCE, on_commit=recorded) as engine:
        _ = await engine.start(flow(), id="it")
        await recorded.until_started("slow:0")
        found = left_by_a_crash(store)
    async with Engine(found, [flow], recovery=AT_ONCE) as engine:
        await (await engine.start(flow(), id="it")).result(PATIENCE)
    assert len(seen) == 2
    assert seen[0] == seen[1]


async def test_a_step_knows_its_deadline() -> None:
    @step(timeout=60)
    def with_timeout() -> datetime | None:
        return step_context().deadline

    @step
    async def without() -> datetime | None:
        return step_context().deadline

    @workflow
    async def flow() -> list[datetime | None]:
        return [await with_timeout(), await without()]

    clock = FakeClock()
    assert (await run(flow(), clock=clock)).output == [datetime.fromtimestamp(clock.now() + 60, UTC), None]


async def test_the_deadline_of_a_run_bounds_the_deadline_of_its_steps() -> None:
    @step(timeout=60)
    async def look() -> datetime | None:
        return step_context().deadline

    @workflow
    async def flow() -> datetime | None:
        return await look()

    clock = FakeClock()
    async with Engine("memory://", [flow], clock=clock) as engine:
        result = await engine.run(flow(), deadline=30)
    assert result.output == datetime.fromtimestamp(clock.now() + 30, UTC)


async def test_the_deadline_of_a_step_that_had_to_queue_counts_from_its_start() -> None:
    clock, gates = FakeClock(), Gates()

    @step
    async def hold() -> None:
        await gates.wait("hold")

    @step(timeout=60)
    async def look() -> datetime | None:
        return step_context().deadline

    @workflow
    async def flow() -> datetime | None:
        _, deadline = await asyncio.gather(hold(), look())
        return deadline

    recorded = Recorded()
    async with Engine("memory://", [flow], clock=clock, max_concurrency=1, on_commit=recorded) as engine:
        handle = await engine.start(flow())
        await recorded.until_started("hold:0")
        clock.advance(600)
        gates.open("hold")
        deadline = await handle.result(PATIENCE)
    assert deadline == datetime.fromtimestamp(clock.now() + 60, UTC)


async def test_step_context_outside_a_step_says_so() -> None:
    with pytest.raises(PerdureError, match="only inside a step"):
        step_context()

    @workflow
    async def flow() -> None:
        step_context()

    error = (await run(flow())).result.error
    assert isinstance(error, PerdureError)
    assert "only inside a step" in str(error)


# --- calling ---------------------------------------------------------------------------------------------------------


async def test_a_step_that_calls_another_step_calls_it_plainly() -> None:
    @step
    async def inner(x: int) -> int:
        return x + 1

    @step
    def inner_in_a_thread(x: int) -> int:
        return x + 1

    @step
    async def outer(x: int) -> int:
        plain: Any = inner_in_a_thread(x)
        return await inner(plain)

    @step
    def outer_in_a_thread(x: int) -> Any:
        return inner_in_a_thread(x)

    @workflow
    async def flow() -> list[int]:
        return [await outer(1), await outer_in_a_thread(1)]

    ran = await run(flow())
    assert ran.output == [3, 2]
    assert await ran.ops() == ["outer:0", "outer_in_a_thread:0"]


async def test_wrong_arguments_are_an_error_that_names_the_function() -> None:
    @step
    async def charge(amount: int, currency: str) -> int:
        return amount

    @step
    def charge_in_a_thread(amount: int) -> int:
        return amount

    @workflow
    async def flow() -> list[str]:
        errors = await asyncio.gather(
            charge(1),  # type: ignore[call-arg]
            charge(1, "EUR", 3),  # type: ignore[call-arg]
            charge_in_a_thread(1, sum=3),  # type: ignore[call-arg]
            return_exceptions=True,
        )
        return [f"{type(e).__name__}: {e}" for e in errors]

    output = (await run(flow())).output
    assert all(line.startswith("TypeError") for line in output)
    assert "charge() missing 1 required positional argument: 'currency'" in output[0]
    assert "charge() takes 2 positional arguments but 3 were given" in output[1]
    assert "unexpected keyword argument 'sum'" in output[2]


async def test_arguments_that_do_not_fit_their_annotations_fail_the_step_and_are_not_tried_again() -> None:
    called: list[Any] = []

    @step(retry=QUICK)
    async def charge(amount: int) -> int:
        called.append(amount)
        return amount

    @workflow
    async def flow() -> str:
        try:
            await charge("a lot")  # type: ignore[arg-type]
        except PerdureError as error:
            return str(error)
        return ""

    ran = await run(flow())
    assert "charge:0" in ran.output
    assert called == []
    assert len([e for e in await ran.events() if isinstance(e, StepStarted)]) == 1


async def test_all_kinds_of_parameters_reach_a_step() -> None:
    @step
    async def kinds(a: int, /, b: int, *rest: int, c: str = "c", **more: float) -> list[Any]:
        return [a, b, list(rest), c, more]

    @workflow
    async def flow() -> list[Any]:
        return [
            await kinds(1, 2),
            await kinds(1, b=2, c="x"),
            await kinds(1, 2, 3, 4, c="x", d=0.5),
        ]

    assert (await run(flow())).output == [
        [1, 2, [], "c", {}],
        [1, 2, [], "x", {}],
        [1, 2, [3, 4], "x", {"d": 0.5}],
    ]


async def test_exception_classes_defined_beside_a_step_inside_a_function_are_caught_by_type() -> None:
    class Local(Exception):
        pass

    @step
    async def failing() -> None:
        raise Local("beside the step")

    @workflow
    async def flow() -> str:
        try:
            await failing()
        except Local as error:
            return str(error)
        return ""

    ran = await run(flow())
    assert ran.output == "beside the step"
    await go_on_from_everywhere(flow(), ran)


# --- exceptions ------------------------------------------------------------------------------------------------------


class WithData(Exception):
    """Has an __init__ of its own, and data that is not in its message."""

    made = 0

    def __init__(self, order: str, *, cents: int) -> None:
        super().__init__(f"order {order}")
        self.order, self.cents = order, cents
        type(self).made += 1


async def test_exceptions_of_the_users_classes_are_caught_by_type_with_their_data() -> None:
    @step
    async def failing() -> None:
        raise WithData("a-1", cents=250)

    @workflow
    async def flow() -> list[Any]:
        try:
            await failing()
        except WithData as error:
            return [str(error), error.order, error.cents]
        return []

    ran = await run(flow())
    assert ran.output == ["order a-1", "a-1", 250]
    await go_on_from_everywhere(flow(), ran)


async def test_the_cause_of_an_exception_comes_along() -> None:
    @step
    def failing() -> None:
        try:
            raise KeyError("k")
        except KeyError as error:
            raise Declined(7, "no key") from error

    @workflow
    async def flow() -> str:
        try:
            await failing()
        except Declined as error:
            return repr(error.__cause__)
        return ""

    ran = await run(flow())
    assert ran.output == "KeyError('k')"
    await go_on_from_everywhere(flow(), ran)


async def test_an_exception_of_a_class_that_cannot_be_found_is_the_same_on_the_first_run_as_on_replay() -> None:
    @step
    async def failing() -> None:
        class Local(Exception):
            pass

        raise Local("here only")

    @workflow
    async def flow() -> str:
        try:
            await failing()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    ran = await run(flow())
    assert ran.output.startswith("StepError: ")
    assert "Local: here only" in ran.output
    await go_on_from_everywhere(flow(), ran)


@pytest.mark.parametrize("error", [StopIteration("x"), StopAsyncIteration("x"), GeneratorExit("x")])
async def test_exceptions_that_drive_python_itself_fail_a_plain_step_and_stop_nothing(error: BaseException) -> None:
    @step
    def failing() -> None:
        raise error

    @workflow
    async def flow() -> str:
        try:
            await failing()
        except Exception as caught:
            return repr(caught)
        return ""

    async with Engine("memory://", [flow], recovery=AT_ONCE) as engine:
        handle = await engine.start(flow())
        assert type(error).__name__ in await handle.result(PATIENCE)


async def test_exceptions_that_drive_python_itself_fail_an_async_step_and_stop_nothing() -> None:
    @step
    async def empty() -> int:
        return next(iter([]))

    @step
    async def cancelled() -> None:
        raise asyncio.CancelledError("from within")

    @workflow
    async def flow() -> list[str]:
        errors = await asyncio.gather(empty(), cancelled(), return_exceptions=True)
        return [str(e) for e in errors]

    first, second = (await run(flow())).output
    assert "StopIteration" in first
    assert "Cancelled" in second


async def test_a_run_whose_exception_cannot_be_rebuilt_raises_run_failed_with_its_type_and_cause() -> None:
    @step
    async def failing() -> None:
        class Local(Exception):
            pass

        try:
            raise KeyError("k")
        except KeyError as error:
            raise Local("here only") from error

    @workflow
    async def flow() -> None:
        await failing()

    async with Engine("memory://", [flow]) as engine:
        handle = await engine.start(flow(), id="it")
        with pytest.raises(RunFailed, match="here only") as caught:
            await handle.result(PATIENCE)
    assert caught.value.id == "it"
    assert "Local" in caught.value.type
    assert isinstance(caught.value.__cause__, KeyError)
    assert "in test_a_run_whose_exception_cannot_be_rebuilt" in caught.value.traceback


async def test_steps_of_a_run_end_in_the_order_of_their_outcomes_not_of_their_starts() -> None:
    @step
    async def nap(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    @workflow
    async def flow() -> list[float]:
        order: list[float] = []

        async def branch(seconds: float) -> None:
            order.append(await nap(seconds))
            await sleep(0)

        await asyncio.gather(branch(0.02), branch(0))
        return order

    assert (await run(flow())).output == [0, 0.02]
