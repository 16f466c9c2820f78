"""What a body calls besides steps, inside a workflow and outside of one; and the paths that ops get."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

import perdure
from perdure import (
    Engine,
    PerdureError,
    RunStatus,
    bail,
    checkpoint,
    now,
    random,
    sleep,
    sleep_until,
    step,
    step_inline,
    uuid4,
    workflow,
)
from perdure.kernel.events import ValueRecorded, WaitOpened
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, FakeClock, go_on_from_everywhere, run


@step
async def charge(amount: int) -> int:
    return amount


@step
async def refund(amount: int) -> int:
    return -amount


# --- recorded values -------------------------------------------------------------------------------------------------


async def test_now_is_the_time_of_the_journal_and_the_same_on_replay() -> None:
    @workflow
    async def flow() -> list[datetime]:
        first = now()
        await charge(1)
        return [first, now()]

    clock = FakeClock()
    ran = await run(flow(), clock=clock)
    assert ran.output == [datetime.fromtimestamp(clock.now(), UTC)] * 2
    await go_on_from_everywhere(flow(), ran)


async def test_now_is_aware_and_stands_still_between_two_events() -> None:
    @workflow
    async def flow() -> list[Any]:
        a, b = now(), now()
        return [a == b, a.tzinfo == UTC]

    assert (await run(flow())).output == [True, True]


async def test_now_moves_with_the_clock_over_a_sleep() -> None:
    @workflow
    async def flow() -> float:
        before = now()
        await sleep(timedelta(hours=2))
        return (now() - before).total_seconds()

    clock = FakeClock()
    store = MemoryStore()
    async with Engine(store, [flow], clock=clock) as engine:
        handle = await engine.start(flow())
        clock.advance(7200)
        assert await handle.result(PATIENCE) == 7200


async def test_uuid4_and_random_differ_by_call_and_run_and_are_the_same_on_replay() -> None:
    @workflow
    async def flow() -> list[Any]:
        values = [uuid4(), random(), uuid4(), random()]
        await charge(1)
        return values

    first, second = await run(flow()), await run(flow())
    await go_on_from_everywhere(flow(), first)
    a, x, b, y = first.output
    assert UUID(a).version == UUID(b).version == 4
    assert 0 <= x < 1
    assert 0 <= y < 1
    assert len({a, b, x, y, *second.output}) == 8


async def test_recorded_values_are_in_the_journal_as_the_body_used_them() -> None:
    @workflow
    async def flow() -> list[Any]:
        return [now(), uuid4(), random()]

    ran = await run(flow())
    recorded = [e for e in await ran.events() if isinstance(e, ValueRecorded)]
    assert [(e.op, e.kind) for e in recorded] == [("now:0", "now"), ("uuid:0", "uuid"), ("random:0", "random")]
    import msgspec

    assert [msgspec.json.decode(e.value) for e in recorded] == ran.output


async def test_branches_draw_different_values() -> None:
    @workflow
    async def flow() -> list[float]:
        async def branch() -> float:
            await charge(1)
            return random()

        return list(await asyncio.gather(branch(), branch(), branch()))

    ran = await run(flow())
    assert len(set(ran.output)) == 3
    await go_on_from_everywhere(flow(), ran)


# --- sleeping --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("duration", [0, 0.01, 60, timedelta(milliseconds=10), timedelta(days=400)])
async def test_sleep_takes_seconds_and_timedeltas(duration: float | timedelta) -> None:
    @workflow
    async def flow() -> str:
        await sleep(duration)
        return "awake"

    clock = FakeClock()
    async with Engine("memory://", [flow], clock=clock) as engine:
        handle = await engine.start(flow())
        seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
        clock.advance(seconds)
        assert await handle.result(PATIENCE) == "awake"


async def test_a_sleep_does_not_end_before_its_time() -> None:
    @workflow
    async def flow() -> str:
        await sleep(3600)
        return "awake"

    clock = FakeClock()
    async with Engine("memory://", [flow], clock=clock) as engine:
        handle = await engine.start(flow())
        clock.advance(3599)
        with pytest.raises(TimeoutError):
            await handle.result(0.15)
        assert await handle.status() is RunStatus.WAITING
        clock.advance(1)
        assert await handle.result(PATIENCE) == "awake"


@pytest.mark.parametrize("zone", [UTC, datetime.now(UTC).astimezone().tzinfo])
async def test_sleep_until_takes_a_moment(zone: Any) -> None:
    clock = FakeClock()
    when = datetime.fromtimestamp(clock.now() + 3600, zone)

    @workflow
    async def flow(when: datetime) -> str:
        await sleep_until(when)
        return "awake"

    store = MemoryStore()
    async with Engine(store, [flow], clock=clock) as engine:
        handle = await engine.start(flow(when))
        [opened] = [e.event for e in await engine.journal(handle.id) if isinstance(e.event, WaitOpened)]
        assert opened.deadline == clock.now() + 3600
        clock.advance(3600)
        assert await handle.result(PATIENCE) == "awake"


async def test_sleep_until_a_past_time_continues_at_once() -> None:
    @workflow
    async def flow() -> str:
        await sleep_until(now() - timedelta(days=1))
        return "awake"

    ran = await run(flow())
    assert ran.output == "awake"
    await go_on_from_everywhere(flow(), ran)


async def test_sleep_until_a_moment_without_a_zone_is_an_error_of_the_call() -> None:
    @workflow
    async def flow() -> None:
        await sleep_until(datetime(2030, 1, 1))  # noqa: DTZ001 - the mistake under test

    ran = await run(flow())
    assert isinstance(ran.result.error, ValueError)
    assert "time zone" in str(ran.result.error)


@pytest.mark.parametrize("duration", [-1, float("nan"), float("inf"), "1", None, True])
async def test_a_duration_that_makes_no_sense_is_an_error_of_the_call(duration: Any) -> None:
    @workflow
    async def flow() -> None:
        await sleep(duration)

    # As an argument it would be refused by the codec already.
    error = (await run(flow())).result.error
    assert isinstance(error, TypeError | ValueError)
    assert "sleep()" in str(error)


# --- inline steps ----------------------------------------------------------------------------------------------------


async def test_step_inline_runs_lambdas_functions_and_coroutines_once() -> None:
    calls: list[str] = []

    def plain(x: int) -> int:
        calls.append("plain")
        return x + 1

    async def asynchronous(x: int) -> int:
        calls.append("async")
        return x + 2

    @workflow
    async def flow() -> list[int]:
        return [
            await step_inline("lambda", lambda: 7),
            await step_inline("plain", plain, 1),
            await step_inline("async", asynchronous, 1),
            await step_inline("hidden", lambda: asynchronous(5)),
        ]

    ran = await run(flow())
    assert ran.output == [7, 2, 3, 7]
    assert calls == ["plain", "async", "async"]
    assert await ran.ops() == ["lambda:0", "plain:0", "async:0", "hidden:0"]


async def test_step_inline_closes_over_values_of_the_body() -> None:
    @workflow
    async def flow(n: int) -> int:
        total = 0
        for i in range(n):
            total = await step_inline("add", lambda total=total, i=i: total + i)
        return total

    ran = await run(flow(5))
    assert ran.output == 10
    await go_on_from_everywhere(flow(5), ran)


# --- ending early ----------------------------------------------------------------------------------------------------


async def test_bail_ends_the_run_with_a_reason_and_an_output() -> None:
    @workflow
    async def flow() -> int:
        await charge(1)
        bail("nothing to do", {"left": 3})

    ran = await run(flow())
    assert ran.result.status is RunStatus.BAILED
    assert ran.result.output == {"left": 3}
    assert ran.result.error is None
    await go_on_from_everywhere(flow(), ran)


async def test_bail_shows_its_reason_and_result_returns_its_output() -> None:
    @workflow
    async def flow() -> int:
        bail("closed on Sundays", 7)

    async with Engine("memory://", [flow]) as engine:
        handle = await engine.start(flow(), id="sunday")
        assert await handle.result(PATIENCE) == 7
        view = await engine.get("sunday")
    assert view is not None
    assert (view.status, view.reason, view.output) == (RunStatus.BAILED, "closed on Sundays", 7)


async def test_bail_cannot_be_caught_as_an_exception() -> None:
    @workflow
    async def flow() -> str:
        try:
            bail("enough")
        except Exception:
            return "caught"

    assert (await run(flow())).result.status is RunStatus.BAILED


async def test_bail_in_a_task_ends_the_whole_run() -> None:
    @workflow
    async def flow() -> None:
        async def branch() -> None:
            await charge(1)
            bail("from a branch")

        async with asyncio.TaskGroup() as group:
            group.create_task(branch())
            group.create_task(sleep(3600))

    ran = await run(flow())
    assert ran.result.status is RunStatus.BAILED
    await go_on_from_everywhere(flow(), ran)


async def test_a_step_called_after_bail_never_runs() -> None:
    called: list[str] = []

    @step
    async def too_late() -> None:
        called.append("too late")

    @workflow
    async def flow() -> None:
        try:
            bail("enough")
        finally:
            await too_late()

    ran = await run(flow())
    assert ran.result.status is RunStatus.BAILED
    assert called == []
    assert await ran.ops() == []


async def test_bail_with_an_output_that_cannot_be_stored_fails_the_body() -> None:
    @workflow
    async def flow() -> None:
        bail("with a socket", object())

    ran = await run(flow())
    assert isinstance(ran.result.error, perdure.NotSerializable)


async def test_checkpoint_is_awaited_and_leaves_a_mark() -> None:
    @workflow
    async def flow() -> int:
        value = await charge(1)
        await checkpoint()
        return value + await charge(2)

    ran = await run(flow())
    assert ran.output == 3
    assert [e.op for e in await ran.events() if isinstance(e, ValueRecorded)] == ["checkpoint:0"]
    await go_on_from_everywhere(flow(), ran)


# --- outside a workflow ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("now()", now),
        ("uuid4()", uuid4),
        ("random()", random),
        ("checkpoint()", checkpoint),
        ("sleep()", lambda: sleep(1)),
        ("sleep_until()", lambda: sleep_until(datetime.now(UTC))),
        ("step_inline()", lambda: step_inline("x", lambda: 1)),
    ],
)
async def test_an_op_outside_a_workflow_says_so(name: str, function: Callable[[], Any]) -> None:
    with pytest.raises(PerdureError, match="only inside a workflow") as caught:
        result = function()
        if isinstance(result, Awaitable):
            await result
    assert str(caught.value).startswith(name)


@pytest.mark.parametrize("function", [now, uuid4, random, checkpoint])
def test_an_op_without_any_loop_says_so_too(function: Callable[[], Any]) -> None:
    with pytest.raises(PerdureError, match="only inside a workflow"):
        function()


async def test_an_op_inside_a_step_says_so_because_a_step_is_not_the_body() -> None:
    @step
    async def asynchronous() -> None:
        now()

    @step
    def threaded() -> None:
        uuid4()

    @workflow
    async def flow() -> list[str]:
        results = await asyncio.gather(asynchronous(), threaded(), return_exceptions=True)
        return [type(r).__name__ for r in results]

    assert (await run(flow())).output == ["PerdureError", "PerdureError"]


# --- paths -----------------------------------------------------------------------------------------------------------


async def test_ops_of_the_body_are_numbered_by_name() -> None:
    @workflow
    async def flow() -> None:
        await charge(1)
        await refund(1)
        await charge(2)
        await step_inline("note", lambda: None)
        await sleep(0)

    ran = await run(flow())
    assert await ran.ops() == ["charge:0", "refund:0", "charge:1", "note:0"]
    assert [e.op for e in await ran.events() if isinstance(e, WaitOpened)] == ["sleep:0"]


async def test_each_task_has_a_scope_of_its_own() -> None:
    @workflow
    async def flow() -> None:
        async def branch(n: int) -> None:
            await charge(n)
            await charge(n)

        await asyncio.gather(branch(1), branch(2))
        await asyncio.create_task(branch(3))
        await charge(4)

    ops = await (await run(flow())).ops()
    assert sorted(ops) == [
        "branch:0/charge:0",
        "branch:0/charge:1",
        "branch:1/charge:0",
        "branch:1/charge:1",
        "branch:2/charge:0",
        "branch:2/charge:1",
        "charge:0",
    ]


async def test_scopes_nest() -> None:
    @workflow
    async def flow() -> None:
        async def leaf() -> None:
            await charge(1)

        async def branch() -> None:
            await asyncio.gather(leaf(), leaf())

        await asyncio.gather(branch(), branch())

    ops = await (await run(flow())).ops()
    assert sorted(ops) == [f"branch:{b}/leaf:{n}/charge:0" for b in (0, 1) for n in (0, 1)]


@pytest.mark.parametrize("first", ["a", "b"])
async def test_paths_do_not_depend_on_which_branch_is_faster(first: str) -> None:
    gates = {"a": asyncio.Event(), "b": asyncio.Event()}

    @step
    async def part(name: str) -> str:
        await gates[name].wait()
        gates["b" if name == "a" else "a"].set()
        return name

    @workflow
    async def flow() -> None:
        async def branch(name: str) -> None:
            await part(name)
            await charge(1)

        await asyncio.gather(branch("a"), branch("b"))

    gates[first].set()
    ran = await run(flow())
    assert sorted(await ran.ops()) == [
        "branch:0/charge:0",
        "branch:0/part:0",
        "branch:1/charge:0",
        "branch:1/part:0",
    ]


async def test_steps_given_to_gather_are_ops_of_the_caller() -> None:
    @workflow
    async def flow() -> None:
        await asyncio.gather(charge(1), charge(2))
        async with asyncio.TaskGroup() as group:
            group.create_task(charge(3))
        await asyncio.wait_for(charge(4), 3600)

    assert await (await run(flow())).ops() == ["charge:0", "charge:1", "charge:2", "charge:3"]


async def test_a_step_may_have_another_name_than_its_function() -> None:
    @step(name="take money")
    async def take(n: int) -> int:
        return n

    @workflow
    async def flow() -> int:
        return await take(1)

    assert await (await run(flow())).ops() == ["take money:0"]


async def test_a_journal_names_the_line_that_asked_for_a_step_and_a_timer() -> None:
    @workflow
    async def flow() -> None:
        await charge(1)
        await sleep(0)

    store = MemoryStore()
    async with Engine(store, [flow], recovery=AT_ONCE) as engine:
        result = await engine.run(flow(), id="it")
        assert result.error is None
        [view] = await engine.steps("it")
        [opened] = [e.event for e in await engine.journal("it") if isinstance(e.event, WaitOpened)]
    line = flow.fn.__code__.co_firstlineno + 2
    assert view.source == f"tests/authoring/code/test_ops.py:{line}"
    assert opened.source == f"tests/authoring/code/test_ops.py:{line + 1}"
