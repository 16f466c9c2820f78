"""`run_context()`: which run code is part of, wherever that code is executed, and the same on every replay."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Engine,
    PerdureError,
    RunContext,
    child,
    connect,
    continue_as,
    run_context,
    step,
    step_context,
    step_inline,
    wait_signal,
    workflow,
)
from tests.engine.cpu_steps import whose_run
from tests.engine.harness import AT_ONCE, PATIENCE, FakeClock


@step
async def in_loop() -> RunContext:
    assert step_context().run == run_context()
    return run_context()


@step
def in_thread() -> RunContext:
    return run_context()


@step
def in_generator() -> Iterator[RunContext]:
    yield run_context()


@step(queue="elsewhere")
async def remote() -> RunContext:
    return run_context()


@workflow(version="7")
async def everywhere() -> list[RunContext]:
    (generated,) = await in_generator()
    return [
        run_context(),
        await in_loop(),
        await in_thread(),
        generated,
        await whose_run(),
        await step_inline("inline", run_context),
        await remote(),
    ]


async def test_every_kind_of_step_and_the_body_see_the_same_run(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/runs.db", [everywhere], steps=[remote]) as engine:
        run = await engine.start(everywhere(), id="r", tags={"team": "billing"}, queue="mail")
        found = await run.result(PATIENCE)
    assert found[0] == RunContext(
        id="r",
        run_id=run.run_id,
        program="everywhere",
        version="7",
        root=run.run_id,
        tags={"team": "billing"},
        queue="mail",
    )
    assert found == [found[0]] * 7


@workflow(version="2")
async def inner() -> list[RunContext]:
    return [run_context(), await in_thread(), await remote()]


@workflow
async def middle() -> list[RunContext]:
    return [run_context(), *await inner()]


@workflow
async def outer() -> list[RunContext]:
    named = asyncio.create_task(child(inner(), id="named"))
    return [run_context(), *await middle(), *await named, await in_loop()]


async def test_a_child_sees_itself_its_parent_and_its_root() -> None:
    async with Engine("memory://", [outer, middle, inner], steps=[remote]) as engine:
        run = await engine.start(outer(), id="r", tags={"a": "b"})
        top, second, *rest = await run.result(PATIENCE)
        assert (top.id, top.parent, top.root, top.program) == ("r", None, run.run_id, "outer")
        assert (second.run_id, second.parent, second.root) == (f"{run.run_id}/middle:0", run.run_id, run.run_id)
        assert rest[:3] == [rest[0]] * 3
        assert (rest[0].id, rest[0].parent, rest[0].version) == ("r/middle:0/inner:0", second.run_id, "2")
        assert rest[3:6] == [rest[3]] * 3
        assert (rest[3].id, rest[3].parent, rest[3].tags) == ("named", run.run_id, {"a": "b"})
        assert rest[6] == top
        view = await engine.get("named")
        assert view is not None
        assert (view.run_id, view.parent, view.root) == (rest[3].run_id, rest[3].parent, rest[3].root)


async def test_a_detached_child_is_a_root_with_a_parent() -> None:
    @workflow
    async def apart() -> RunContext:
        return run_context()

    @workflow
    async def begins() -> str:
        return await child(apart(), id="apart", detached=True)

    async with Engine("memory://", [begins, apart]) as engine:
        run = await engine.start(begins())
        run_id = await run.result(PATIENCE)
        found = await engine.handle("apart", apart).result(PATIENCE)
        assert (found.id, found.run_id, found.root, found.parent) == ("apart", run_id, run_id, run.run_id)


async def test_a_replay_elsewhere_sees_the_same_run(tmp_path: Path) -> None:
    @workflow
    async def waits() -> list[Any]:
        before = run_context()
        await in_loop()
        await wait_signal("go")
        return [before, run_context()]

    url = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url, [waits], name="one", recovery=AT_ONCE) as engine:
        run = await engine.start(waits(), id="r", tags={"a": "b"})
        await asyncio.sleep(0)
    async with Engine(url, [waits], name="two") as engine:
        await engine.signal("r", "go")
        before, after = await engine.handle("r", waits).result(PATIENCE)
        assert before == after
        assert before["run_id"] == run.run_id


async def test_a_run_started_by_name_knows_the_version_that_executes_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url, [everywhere], steps=[remote]) as engine, connect(url) as client:
        from perdure import call

        run = await client.start(call("everywhere"))
        found = await engine.handle(run.id, everywhere).result(PATIENCE)
        assert {context.version for context in found} == {"7"}


# --- incarnations ---------------------------------------------------------------------------------------------------


async def test_an_attempt_counts_the_runs_under_one_id() -> None:
    @workflow
    async def loops(n: int) -> int:
        if n:
            continue_as(n - 1)
        return run_context().attempt

    async with Engine("memory://", [loops]) as engine:
        assert (await engine.run(loops(2), id="r")).output == 3
        assert (await engine.run(loops(0), id="r", reuse="terminate_running")).output == 4


async def test_a_retried_run_repeats_what_it_did_as_what_it_was() -> None:
    """Steps that were given the run's ids are not made again, and do not keep the run from going on."""
    seen: list[tuple[str, int]] = []
    broken = [True]

    @step
    async def note(run_id: str, attempt: int) -> str:
        seen.append((run_id, attempt))
        return run_id

    @step
    async def fails() -> RunContext:
        if broken[0]:
            raise ValueError("no")
        return run_context()

    @workflow
    async def notes() -> tuple[str, RunContext, RunContext]:
        first = await note(run_context().run_id, run_context().attempt)
        within = await fails()
        return first, run_context(), within

    async with Engine("memory://", [notes]) as engine:
        first = await engine.start(notes(), id="r")
        with pytest.raises(ValueError, match="no"):
            await first.result(PATIENCE)
        second = await engine.retry("r")
        with pytest.raises(ValueError, match="no"):
            await second.result(PATIENCE)
        broken[0] = False
        third = await engine.retry("r")
        noted, after, within = await third.result(PATIENCE)
        assert seen == [(first.run_id, 1)]
        assert noted == first.run_id
        # The body goes on as what it was, since it may be given what it had before wherever it is; a step runs now.
        assert (after.run_id, after.attempt) == (first.run_id, 1)
        assert (within.run_id, within.attempt) == (third.run_id, 3)


async def test_a_fork_of_a_queued_child_of_nobody_repeats_its_past_under_the_ids_of_its_origin() -> None:
    @step
    async def note(id: str, queue: str | None) -> str:
        return f"{id} in {queue}"

    @workflow
    async def part() -> str:
        return await note(run_context().id, run_context().queue)

    @workflow
    async def whole() -> list[str | None]:
        one = await note(run_context().id, run_context().queue)
        two = await part()
        await in_loop()
        return [one, two, run_context().id, run_context().queue]

    async with Engine("memory://", [whole, part]) as engine:
        origin = await engine.start(whole(), id="a", queue="q")
        assert await origin.result(PATIENCE) == ["a in q", "a/part:0 in None", "a", "q"]
        forked = await engine.fork("a", at="in_loop:0", new_id="b")
        assert await forked.result(PATIENCE) == ["a in q", "a/part:0 in None", "b", None]
        again = await engine.fork("b", at="in_loop:0", new_id="c")
        assert await again.result(PATIENCE) == ["a in q", "a/part:0 in None", "c", None]


# --- schedules ------------------------------------------------------------------------------------------------------


@workflow
async def report() -> list[RunContext]:
    return [run_context(), await in_thread(), *await inner()]


async def test_a_run_of_a_schedule_knows_its_tick_however_late_it_is() -> None:
    clock = FakeClock(datetime(2030, 1, 5, 12, tzinfo=UTC).timestamp())
    async with Engine("memory://", [report, inner], steps=[remote], clock=clock) as engine:
        nightly = await engine.schedule("nightly", report(), cron="30 2 * * *", tags={"team": "ops"}, jitter=60)
        ids = await nightly.backfill(datetime(2030, 1, 2, tzinfo=UTC), datetime(2030, 1, 4, tzinfo=UTC))
        assert len(ids) == 2
        for day, id in enumerate(ids, 2):
            async with asyncio.timeout(PATIENCE):
                while await engine.get(id) is None:
                    await asyncio.sleep(0.01)
            for context in await engine.handle(id, report).result(PATIENCE):
                assert context.schedule == "nightly"
                assert context.scheduled_at == datetime(2030, 1, day, 2, 30, tzinfo=UTC)
                assert context.tags["team"] == "ops"


async def test_a_run_that_was_triggered_by_hand_has_a_schedule_and_no_tick() -> None:
    async with Engine("memory://", [report, inner], steps=[remote]) as engine:
        nightly = await engine.schedule("nightly", report(), every=timedelta(days=1))
        id = await nightly.trigger()
        async with asyncio.timeout(PATIENCE):
            while await engine.get(id) is None:
                await asyncio.sleep(0.01)
        found = (await engine.handle(id, report).result(PATIENCE))[0]
        assert (found.schedule, found.scheduled_at) == ("nightly", None)


async def test_a_tag_by_the_name_of_schedule_makes_no_schedule() -> None:
    async with Engine("memory://", [report, inner], steps=[remote]) as engine:
        found = (await engine.run(report(), tags={"schedule": "mine"})).output
        assert found is not None
        assert (found[0].schedule, found[0].tags) == (None, {"schedule": "mine"})


# --- elsewhere ------------------------------------------------------------------------------------------------------


def test_outside_of_a_run_it_says_where_it_works() -> None:
    with pytest.raises(PerdureError, match="only inside a workflow, or a step that a workflow called"):
        run_context()


async def test_a_step_that_is_called_plainly_is_outside_of_a_run() -> None:
    with pytest.raises(PerdureError, match=r"run_context\(\) works only"):
        in_thread.fn()


async def test_what_is_done_to_its_tags_changes_nothing_of_the_run() -> None:
    @workflow
    async def meddles() -> dict[str, str]:
        run_context().tags["a"] = "c"
        return run_context().tags

    async with Engine("memory://", [meddles]) as engine:
        assert (await engine.run(meddles(), id="r", tags={"a": "b"})).output == {"a": "b"}
        view = await engine.get("r")
        assert view is not None
        assert view.tags == {"a": "b"}
