"""Starting runs: ids and reuse policies with their races, tags, delays, deadlines."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import AlreadyExists, DeadlineExceeded, Engine, RunCancelled, RunStatus, UsageError, sleep, step, workflow
from perdure.kernel.events import WaitOpened
from perdure.kernel.program import Program
from perdure.stores.open import open_store
from tests.engine.harness import AT_ONCE, PATIENCE, FakeClock, Gates, Recorded, eventually


class Jobs:
    """A workflow that notes its runs, and one that waits for the test."""

    def __init__(self) -> None:
        self.called: list[Any] = []
        self.gates = Gates()
        jobs = self

        @step
        async def work(n: int) -> int:
            jobs.called.append(n)
            if n < 0:
                raise ValueError("negative")
            return n

        @step
        async def hold(name: str) -> str:
            jobs.called.append(name)
            jobs.gates.open(f"{name} runs")
            await jobs.gates.wait(name)
            return name

        @workflow
        async def quick(n: int) -> int:
            return await work(n)

        @workflow
        async def slow(name: str) -> str:
            return await hold(name)

        @workflow
        async def asleep() -> str:
            await sleep(timedelta(days=1))
            return "awake"

        self.quick, self.slow, self.asleep = quick, slow, asleep
        self.all: list[Program] = [quick, slow, asleep]


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


# --- ids -------------------------------------------------------------------------------------------------------------


async def test_an_id_is_made_when_none_is_given(jobs: Jobs) -> None:
    async with Engine("memory://", jobs.all) as engine:
        handles = [await engine.start(jobs.quick(n)) for n in range(50)]
        assert len({h.id for h in handles}) == 50
        assert all(h.id == h.run_id for h in handles)
        assert [await h for h in handles] == list(range(50))


async def test_an_id_of_the_caller_is_kept_beside_the_run_id(jobs: Jobs) -> None:
    async with Engine("memory://", jobs.all) as engine:
        handle = await engine.start(jobs.quick(1), id="order 7/ü 🙂")
        await handle
        assert handle.id == "order 7/ü 🙂"
        assert handle.run_id != handle.id
        by_id, by_run_id = await engine.get(handle.id), await engine.get(handle.run_id)
        assert by_id == by_run_id


# --- reuse -----------------------------------------------------------------------------------------------------------


async def test_return_existing_gives_the_run_there_is_whatever_its_state(jobs: Jobs) -> None:
    async with Engine("memory://", jobs.all, recovery=AT_ONCE) as engine:
        first = await engine.start(jobs.slow("a"), id="it")
        second = await engine.start(jobs.slow("b"), id="it")
        assert first.run_id == second.run_id
        jobs.gates.open("a")
        assert await second.result(PATIENCE) == "a"
        third = await engine.start(jobs.slow("c"), id="it")
        assert await third.result(PATIENCE) == "a"
        failed = await engine.run(jobs.quick(-1), id="failed")
        again = await engine.run(jobs.quick(1), id="failed")
        assert again.run_id == failed.run_id
        assert again.status is RunStatus.FAILED
    assert jobs.called == ["a", -1]


@pytest.mark.parametrize("state", ["running", "completed", "failed"])
async def test_reject_duplicate_refuses_whatever_its_state(jobs: Jobs, state: str) -> None:
    async with Engine("memory://", jobs.all, recovery=AT_ONCE) as engine:
        if state == "running":
            _ = await engine.start(jobs.slow("a"), id="it")
        else:
            await engine.run(jobs.quick(1 if state == "completed" else -1), id="it")
        with pytest.raises(AlreadyExists, match=state) as caught:
            _ = await engine.start(jobs.quick(2), id="it", reuse="reject_duplicate")
        assert (caught.value.id, caught.value.status) == ("it", state)
        await engine.run(jobs.quick(3), id="another", reuse="reject_duplicate")


@pytest.mark.parametrize(
    ("state", "allowed"), [("running", False), ("waiting", False), ("completed", False), ("failed", True)]
)
async def test_allow_if_failed_allows_only_after_a_failure(jobs: Jobs, state: str, allowed: bool) -> None:
    recorded = Recorded()
    async with Engine("memory://", jobs.all, recovery=AT_ONCE, on_commit=recorded) as engine:
        if state == "running":
            _ = await engine.start(jobs.slow("a"), id="it")
        elif state == "waiting":
            _ = await engine.start(jobs.asleep(), id="it")
            await recorded.until(lambda e: isinstance(e, WaitOpened))
        else:
            await engine.run(jobs.quick(1 if state == "completed" else -1), id="it")
        first = await engine.get("it")
        assert first is not None
        assert first.status == state
        if not allowed:
            with pytest.raises(AlreadyExists):
                _ = await engine.start(jobs.quick(2), id="it", reuse="allow_if_failed")
            return
        handle = await engine.start(jobs.quick(2), id="it", reuse="allow_if_failed")
        assert await handle.result(PATIENCE) == 2
        assert handle.run_id != first.run_id
        # The id now means the new one; the old one is found by its run_id.
        latest, old = await engine.get("it"), await engine.get(first.run_id)
        assert latest is not None
        assert old is not None
        assert (latest.run_id, latest.status) == (handle.run_id, RunStatus.COMPLETED)
        assert old.status is RunStatus.FAILED


async def test_allow_if_failed_allows_after_a_cancel(jobs: Jobs) -> None:
    async with Engine("memory://", jobs.all, recovery=AT_ONCE) as engine:
        first = await engine.start(jobs.slow("a"), id="it")
        second = await engine.start(jobs.slow("b"), id="it", reuse="terminate_running")
        assert await first.status() is RunStatus.CANCELLED
        third = await engine.start(jobs.quick(3), id="it", reuse="terminate_running")
        assert await second.status() is RunStatus.CANCELLED
        assert await third.result(PATIENCE) == 3


async def test_terminate_running_ends_a_run_in_memory_and_starts_anew(jobs: Jobs) -> None:
    async with Engine("memory://", jobs.all, recovery=AT_ONCE) as engine:
        first = await engine.start(jobs.slow("a"), id="it")
        waiting = asyncio.create_task(first.result())
        await jobs.gates.wait("a runs")
        second = await engine.start(jobs.slow("b"), id="it", reuse="terminate_running")
        with pytest.raises(RunCancelled, match="another run was started"):
            await waiting
        assert first.run_id != second.run_id
        jobs.gates.open("a")
        jobs.gates.open("b")
        assert await second.result(PATIENCE) == "b"
        assert await first.status() is RunStatus.CANCELLED
        old = await engine.steps(first.run_id)
    assert [s.status for s in old] != ["succeeded"]


async def test_terminate_running_ends_a_run_that_left_memory(jobs: Jobs) -> None:
    recorded = Recorded()
    async with Engine("memory://", jobs.all, on_commit=recorded) as engine:
        first = await engine.start(jobs.asleep(), id="it")
        await recorded.until(lambda e: isinstance(e, WaitOpened))
        orchestrator = engine._orchestrator
        assert orchestrator is not None
        await eventually(lambda: not orchestrator.active)
        waiting = asyncio.create_task(first.outcome(PATIENCE))
        second = await engine.start(jobs.quick(1), id="it", reuse="terminate_running")
        assert (await waiting).status is RunStatus.CANCELLED
        assert await second.result(PATIENCE) == 1


@pytest.mark.parametrize("turns", range(10))
async def test_terminate_running_meets_a_run_that_is_just_leaving_memory(jobs: Jobs, turns: int) -> None:
    """Whatever the run does in the turns of the loop in which it is being ended."""

    @workflow
    async def then_asleep() -> str:
        await hold()
        await sleep(timedelta(days=1))
        return "awake"

    @step
    async def hold() -> None:
        await jobs.gates.wait("hold")

    recorded = Recorded()
    async with Engine("memory://", [*jobs.all, then_asleep], recovery=AT_ONCE, on_commit=recorded) as engine:
        first = await engine.start(then_asleep(), id="it")
        await recorded.until_started("hold:0")
        jobs.gates.open("hold")
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE):
            second = await engine.start(jobs.quick(1), id="it", reuse="terminate_running")
        assert await second.result(PATIENCE) == 1
        assert await first.status() is RunStatus.CANCELLED


@pytest.mark.parametrize("state", ["completed", "failed"])
async def test_terminate_running_starts_anew_after_an_end(jobs: Jobs, state: str) -> None:
    async with Engine("memory://", jobs.all) as engine:
        first = await engine.run(jobs.quick(1 if state == "completed" else -1), id="it")
        second = await engine.run(jobs.quick(2), id="it", reuse="terminate_running")
        assert second.output == 2
        assert first.run_id != second.run_id


async def test_a_policy_that_does_not_exist_is_refused(jobs: Jobs) -> None:
    async with Engine("memory://", jobs.all) as engine:
        with pytest.raises((UsageError, ValueError), match="return_existing"):
            _ = await engine.start(jobs.quick(1), id="it", reuse="replace")  # type: ignore[arg-type]
        assert await engine.get("it") is None


# --- races -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["memory", "sqlite"])
async def test_many_starts_of_one_id_at_once_make_one_run(jobs: Jobs, where: str, tmp_path: Any) -> None:
    url = "memory://" if where == "memory" else f"sqlite:///{tmp_path}/x.db"
    async with Engine(url, jobs.all) as engine:
        handles = await asyncio.gather(*(engine.start(jobs.quick(7), id="it") for _ in range(20)))
        assert len({h.run_id for h in handles}) == 1
        assert await asyncio.gather(*(h.result(PATIENCE) for h in handles)) == [7] * 20
        assert len(await engine.list()) == 1
    assert jobs.called == [7]


@pytest.mark.parametrize("where", ["memory", "sqlite"])
async def test_two_engines_that_start_one_id_at_once_make_one_run(jobs: Jobs, where: str, tmp_path: Any) -> None:
    memory = open_store("memory://")

    def store() -> Any:
        return memory if where == "memory" else f"sqlite:///{tmp_path}/x.db"

    async with Engine(store(), jobs.all, name="a") as a, Engine(store(), jobs.all, name="b") as b:
        handles = await asyncio.gather(*(e.start(jobs.quick(7), id="it") for e in (a, b, a, b)))
        assert len({h.run_id for h in handles}) == 1
        assert await asyncio.gather(*(h.result(PATIENCE) for h in handles)) == [7] * 4
    assert jobs.called == [7]


async def test_of_many_starts_that_reject_duplicates_one_succeeds(jobs: Jobs) -> None:
    async with Engine("memory://", jobs.all) as engine:
        results = await asyncio.gather(
            *(engine.start(jobs.quick(7), id="it", reuse="reject_duplicate") for _ in range(20)),
            return_exceptions=True,
        )
        assert len([r for r in results if isinstance(r, AlreadyExists)]) == 19
        [handle] = [r for r in results if not isinstance(r, BaseException)]
        assert await handle.result(PATIENCE) == 7
    assert jobs.called == [7]


async def test_of_many_starts_after_a_failure_one_succeeds(jobs: Jobs) -> None:
    async with Engine("memory://", jobs.all) as engine:
        await engine.run(jobs.quick(-1), id="it")
        results = await asyncio.gather(
            *(engine.start(jobs.quick(7), id="it", reuse="allow_if_failed") for _ in range(20)),
            return_exceptions=True,
        )
        assert len([r for r in results if isinstance(r, AlreadyExists)]) == 19
    assert jobs.called == [-1, 7]


async def test_many_starts_that_terminate_each_other_leave_one_run(jobs: Jobs) -> None:
    async with Engine("memory://", jobs.all, recovery=AT_ONCE) as engine:
        await asyncio.gather(
            *(engine.start(jobs.slow("a"), id="it", reuse="terminate_running") for _ in range(10)),
        )
        runs = await engine.list()
        open_runs = [r for r in runs if not r.status.finished]
        assert len(open_runs) == 1
        jobs.gates.open("a")
        latest = await engine.get("it")
        assert latest is not None
        assert latest.run_id == open_runs[0].run_id
        handle = await engine.start(jobs.slow("a"), id="it")
        assert await handle.result(PATIENCE) == "a"


# --- options ---------------------------------------------------------------------------------------------------------


async def test_tags_are_kept_and_listed(jobs: Jobs) -> None:
    async with Engine("memory://", jobs.all) as engine:
        await engine.run(jobs.quick(1), id="a", tags={"team": "red", "env": "prod"})
        await engine.run(jobs.quick(2), id="b", tags={"team": "blue"})
        await engine.run(jobs.quick(3), id="c")
        assert [r.id for r in await engine.list(tags={"team": "red"})] == ["a"]
        assert [r.id for r in await engine.list(tags={"team": "red", "env": "dev"})] == []
        view = await engine.get("a")
    assert view is not None
    assert view.tags == {"team": "red", "env": "prod"}


@pytest.mark.parametrize("tags", [{"a": 1}, {1: "a"}, ["a"], "a=b"])
async def test_tags_that_are_not_text_are_refused(jobs: Jobs, tags: Any) -> None:
    async with Engine("memory://", jobs.all) as engine:
        with pytest.raises(UsageError, match="tags"):
            _ = await engine.start(jobs.quick(1), tags=tags)


async def test_a_run_fails_at_its_deadline_and_its_step_is_cancelled(jobs: Jobs) -> None:
    cancelled = asyncio.Event()

    @step
    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    @workflow
    async def late() -> None:
        await endless()

    async with Engine("memory://", [late], recovery=AT_ONCE) as engine:
        for deadline in (0.02, timedelta(seconds=0.02), datetime.now(UTC) + timedelta(seconds=0.02)):
            handle = await engine.start(late(), deadline=deadline)
            result = await handle.outcome(PATIENCE)
            assert result.status is RunStatus.FAILED
            assert isinstance(result.error, DeadlineExceeded)
            assert handle.id in str(result.error)
    assert cancelled.is_set()


async def test_a_deadline_cannot_be_caught_by_the_body(jobs: Jobs) -> None:
    @step
    async def endless() -> None:
        await asyncio.Event().wait()

    @workflow
    async def stubborn() -> str:
        while True:
            try:
                await endless()
            except Exception:
                continue

    async with Engine("memory://", [stubborn], recovery=AT_ONCE) as engine:
        handle = await engine.start(stubborn(), deadline=0.02)
        assert isinstance((await handle.outcome(PATIENCE)).error, DeadlineExceeded)


async def test_a_deadline_that_is_not_reached_has_no_effect(jobs: Jobs) -> None:
    async with Engine("memory://", jobs.all) as engine:
        assert (await engine.run(jobs.quick(1), deadline=3600)).output == 1


async def test_a_deadline_without_a_zone_is_refused(jobs: Jobs) -> None:
    async with Engine("memory://", jobs.all) as engine:
        with pytest.raises(UsageError, match="time zone"):
            _ = await engine.start(jobs.quick(1), deadline=datetime(2030, 1, 1))  # noqa: DTZ001 - the mistake under test


@pytest.mark.parametrize("delay", [30, timedelta(seconds=30)])
async def test_a_delayed_run_is_queued_until_its_time(jobs: Jobs, delay: Any) -> None:
    clock = FakeClock()
    async with Engine("memory://", jobs.all, clock=clock) as engine:
        handle = await engine.start(jobs.quick(1), delay=delay, id="it")
        assert await handle.status() is RunStatus.QUEUED
        view = await engine.get("it")
        assert view is not None
        assert (view.owner, view.epoch) == (None, 0)
        clock.advance(29)
        with pytest.raises(TimeoutError):
            await handle.result(0.1)
        assert jobs.called == []
        clock.advance(1)
        assert await handle.result(PATIENCE) == 1


async def test_a_delayed_run_may_be_replaced_before_it_begins(jobs: Jobs) -> None:
    clock = FakeClock()
    async with Engine("memory://", jobs.all, clock=clock) as engine:
        first = await engine.start(jobs.quick(1), delay=3600, id="it")
        second = await engine.start(jobs.quick(2), id="it", reuse="terminate_running")
        assert await second.result(PATIENCE) == 2
        assert await first.status() is RunStatus.CANCELLED
        clock.advance(7200)
        assert jobs.called == [2]


@pytest.mark.parametrize(
    "options",
    [{"delay": -1}, {"delay": "1"}, {"deadline": float("nan")}, {"max_concurrency": 0}, {"max_concurrency": 1.5}],
)
async def test_options_that_make_no_sense_are_refused_and_nothing_is_written(jobs: Jobs, options: Any) -> None:
    async with Engine("memory://", jobs.all) as engine:
        with pytest.raises(UsageError):
            _ = await engine.start(jobs.quick(1), id="it", **options)
        assert await engine.get("it") is None


# --- the engine's own policy ----------------------------------------------------------------------------------------


@workflow
async def echo(n: int) -> int:
    return n


async def test_the_engine_says_what_becomes_of_an_id_that_exists_unless_the_start_does() -> None:
    async with Engine("memory://", [echo], reuse="reject_duplicate") as engine:
        _ = await engine.run(echo(1), id="r")
        with pytest.raises(AlreadyExists, match="reject_duplicate"):
            _ = await engine.start(echo(2), id="r")
        assert (await engine.run(echo(2), id="r", reuse="return_existing")).output == 1
    with pytest.raises(ValueError, match="reuse='maybe' is none of"):
        _ = Engine("memory://", reuse="maybe")  # type: ignore[arg-type]
