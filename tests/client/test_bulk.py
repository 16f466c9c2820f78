"""Many runs at once: started in few commits, told by filter, and a report of what became of each."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Accepted,
    AlreadyExists,
    BulkReport,
    CannotRetry,
    Duplicate,
    Engine,
    Finished,
    InvalidId,
    Invocation,
    NoSuchRun,
    NotSerializable,
    RunStatus,
    Start,
    UsageError,
    blocking,
    call,
    child,
    connect,
    step,
    wait_signal,
    workflow,
)
from perdure.client import bulk
from perdure.ports.store import Store
from tests.engine.harness import PATIENCE, Recorded
from tests.services.plugin import on_two_stores


@step
async def double(n: int) -> int:
    return n * 2


@workflow
async def doubled(n: int) -> int:
    return await double(n)


@workflow
async def waits(n: int = 0) -> str:
    return await wait_signal("go", type=str)


class Switch:
    broken = True


@step
async def work() -> str:
    if Switch.broken:
        raise ValueError("broken")
    return "worked"


@workflow
async def fragile() -> str:
    return await work()


@workflow
async def family() -> str:
    try:
        return await child(waits(), id="the-child")
    except Exception as error:
        return f"caught {type(error).__name__}"


@pytest.fixture(autouse=True)
def broken() -> None:
    Switch.broken = True


async def until_waiting(engine: Engine, count: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while len(await engine.list(status="waiting", limit=10_000)) < count:
            await asyncio.sleep(0.005)


# --- starting -------------------------------------------------------------------------------------------------------


@on_two_stores
async def test_many_runs_are_started_and_each_has_a_handle(any_store: Store) -> None:
    async with Engine(any_store, [doubled]) as engine:
        report = await engine.start_many([doubled(n) for n in range(20)])
        assert [await handle.result(PATIENCE) for handle in report.done] == [n * 2 for n in range(20)]
        assert (len(report), report.failed, report.skipped, report.cursor) == (20, [], [], None)
        assert [item.index for item in report] == list(range(20))


async def test_runs_that_are_started_together_share_a_commit() -> None:
    seen = Recorded()
    async with Engine("memory://", [waits], on_commit=seen) as engine:
        writer = engine._orchestrator.services.writer  # type: ignore[union-attr]
        commits = Counter[int]()
        append = engine.store.journal.append

        def counted(appends: Any) -> Any:
            commits[len(appends)] += 1
            return append(appends)

        engine.store.journal.append = counted  # type: ignore[method-assign]
        _ = await engine.start_many([waits(n) for n in range(300)])
        assert writer is not None
        assert sum(commits.values()) <= 3
        assert sum(size * times for size, times in commits.items()) >= 300


async def test_runs_that_a_client_starts_together_share_a_commit(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url, [doubled]) as engine, connect(url) as client:
        commits: list[int] = []
        append = client.store.journal.append

        def counted(appends: Any) -> Any:
            commits.append(len(appends))
            return append(appends)

        client.store.journal.append = counted  # type: ignore[method-assign]
        report = await client.start_many([Start(call("doubled", n), id=f"r{n}") for n in range(50)])
        assert commits == [50]
        assert [await engine.handle(handle.id).result(PATIENCE) for handle in report.done] == [n * 2 for n in range(50)]


@on_two_stores
async def test_each_run_has_options_of_its_own(any_store: Store) -> None:
    async with Engine(any_store, [doubled]) as engine:
        starts: list[Invocation[int] | Start[int]] = [
            Start(doubled(1), id="a", tags={"x": "1"}),
            Start(doubled(2), id="b", queue="mail", key="k", priority=3),
            Start(doubled(3), id="c", delay=0.01),
            doubled(4),
        ]
        report = await engine.start_many(starts)
        assert [await handle.result(PATIENCE) for handle in report.done] == [2, 4, 6, 8]
        a, b = await engine.get("a"), await engine.get("b")
        assert a is not None
        assert b is not None
        assert (a.tags, b.queue, b.key, b.priority) == ({"x": "1"}, "mail", "k", 3)


async def test_what_cannot_be_started_is_reported_and_keeps_no_other_back() -> None:
    async with Engine("memory://", [doubled, waits]) as engine:
        _ = await engine.start(waits(), id="taken")
        starts: list[Invocation[Any] | Start[Any]] = [
            Start(doubled(1), id="fine"),
            Start(call("doubled", object()), id="odd"),
            Start(doubled(2), id=""),
            Start(doubled(3), id="taken"),
            Start(waits(), id="taken", reuse="reject_duplicate"),
            Start(doubled(4), priority=3),
            doubled(5),
        ]
        report = await engine.start_many(starts)
        assert [type(item.error) for item in report] == [
            type(None),
            NotSerializable,
            InvalidId,
            AlreadyExists,
            AlreadyExists,
            UsageError,
            type(None),
        ]
        assert [item.id for item in report.failed] == ["odd", "", "taken", "taken", ""]
        assert [await handle.result(PATIENCE) for handle in report.done] == [2, 10]
        with pytest.raises(ExceptionGroup, match="5 of 7 runs") as raised:
            report.raise_failed()
        assert len(raised.value.exceptions) == 5


@on_two_stores
async def test_several_under_one_id_are_one_run_as_reuse_says(any_store: Store) -> None:
    async with Engine(any_store, [doubled, waits]) as engine:
        same = await engine.start_many(Start(doubled(n), id="r") for n in (1, 2, 3))
        assert len({handle.run_id for handle in same.done}) == 1
        assert await same.done[2].result(PATIENCE) == 2
        strict = await engine.start_many([Start(waits(), id="s", reuse="reject_duplicate")] * 3)
        assert [type(item.error) for item in strict] == [type(None), AlreadyExists, AlreadyExists]
        last = await engine.start_many([Start(waits(n), id="t", reuse="terminate_running") for n in range(3)])
        assert len({handle.run_id for handle in last.done}) == 3
        assert [(await handle.status()).finished for handle in last.done] == [True, True, False]


async def test_what_is_no_invocation_is_refused_before_anything_is_started() -> None:
    async with Engine("memory://", [doubled]) as engine:
        with pytest.raises(UsageError, match="takes invocations such as fulfil"):
            await engine.start_many([doubled(1), doubled])  # type: ignore[arg-type]
        assert await engine.list() == []
        assert len(await engine.start_many([])) == 0


async def test_more_runs_than_fit_into_one_commit_are_started_in_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.client.starts.STARTS_AT_ONCE", 7)
    async with Engine("memory://", [doubled]) as engine:
        report = await engine.start_many(doubled(n) for n in range(30))
        assert [await handle for handle in report.done] == [n * 2 for n in range(30)]


# --- telling --------------------------------------------------------------------------------------------------------


@on_two_stores
async def test_failed_runs_are_retried_by_filter(any_store: Store) -> None:
    async with Engine(any_store, [fragile, doubled]) as engine:
        for n in range(3):
            _ = await engine.run(fragile(), id=f"f{n}", tags={"n": str(n)})
        _ = await engine.run(doubled(1), id="good")
        shown = await engine.retry_many(program="fragile", dry_run=True)
        assert ([item.id for item in shown], shown.done, shown.dry_run) == (["f2", "f1", "f0"], [], True)
        Switch.broken = False
        one = await engine.retry_many(tags={"n": "1"})
        assert [await handle.result(PATIENCE) for handle in one.done] == ["worked"]
        rest = await engine.retry_many(program="fragile")
        assert [item.id for item in rest] == ["f2", "f0"]
        assert [await handle.result(PATIENCE) for handle in rest.done] == ["worked"] * 2
        assert len(await engine.retry_many(program="fragile")) == 0


async def test_what_cannot_be_retried_is_reported_with_the_reason() -> None:
    async with Engine("memory://", [fragile, doubled]) as engine:
        _ = await engine.run(fragile(), id="f")
        _ = await engine.run(doubled(1), id="good")
        Switch.broken = False
        report = await engine.retry_many(status=["failed", "completed"])
        assert [(item.id, type(item.error)) for item in report] == [("good", CannotRetry), ("f", type(None))]
        named = await engine.retry_many(ids=["good", "missing", "good"])
        assert [(item.id, type(item.error)) for item in named] == [("good", CannotRetry), ("missing", NoSuchRun)]


@on_two_stores
async def test_runs_are_cancelled_paused_resumed_and_signalled_by_filter(any_store: Store) -> None:
    async with Engine(any_store, [waits, doubled]) as engine:
        _ = await engine.start_many([Start(waits(), id=f"w{n}", tags={"odd": str(n % 2)}) for n in range(4)])
        await until_waiting(engine, 4)
        paused = await engine.pause_many("lunch", tags={"odd": "0"})
        assert [(item.id, item.result) for item in paused] == [("w2", Accepted()), ("w0", Accepted())]
        assert {run.id for run in await engine.list(status="paused")} == {"w0", "w2"}
        assert [item.id for item in await engine.resume_many(program="waits")] == ["w2", "w0"]
        sent = await engine.signal_many("go", "went", "s1", tags={"odd": "0"})
        assert sent.done == [Accepted()] * 2
        for id in ("w0", "w2"):
            assert await engine.handle(id, waits).result(PATIENCE) == "went"
        cancelled = await engine.cancel_many("enough", program="waits")
        assert [item.id for item in cancelled] == ["w3", "w1"]
        for id in ("w1", "w3"):
            assert (await engine.handle(id).outcome(PATIENCE)).status is RunStatus.CANCELLED


async def test_there_is_nothing_to_do_for_a_run_that_ended_or_was_told_before() -> None:
    async with Engine("memory://", [waits, doubled]) as engine:
        _ = await engine.run(doubled(1), id="good")
        _ = await engine.start(waits(), id="w")
        assert (await engine.signal_many("later", 1, "once", ids=["w"])).done == [Accepted()]
        report = await engine.signal_many("later", 1, "once", ids=["w", "good"])
        assert (report.done, report.failed) == ([], [])
        assert [item.result for item in report.skipped] == [Duplicate(), Finished(RunStatus.COMPLETED)]
        assert [item.id for item in (await engine.cancel_many(status="completed")).skipped] == ["good"]


async def test_a_bulk_call_is_bounded_and_goes_on_from_its_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "AT_ONCE", 3)
    async with Engine("memory://", [waits]) as engine:
        _ = await engine.start_many([Start(waits(), id=f"w{n:02}") for n in range(10)])
        await until_waiting(engine, 10)
        told: list[str] = []
        cursor: str | None = None
        while True:
            report: BulkReport[Any] = await engine.cancel_many(program="waits", limit=4, cursor=cursor)
            told += [item.id for item in report]
            assert len(report) <= 4
            cursor = report.cursor
            if cursor is None:
                break
        assert told == [f"w{n:02}" for n in reversed(range(10))]


async def test_a_child_is_left_to_its_root_when_that_matches_too() -> None:
    async with Engine("memory://", [family, waits]) as engine:
        root = await engine.start(family(), id="root")
        await until_waiting(engine, 1)
        report = await engine.cancel_many(status=["running", "waiting"])
        assert [item.id for item in report] == ["root"]
        assert (await root.outcome(PATIENCE)).status is RunStatus.CANCELLED


async def test_a_child_is_told_when_it_is_what_the_filter_names() -> None:
    async with Engine("memory://", [family, waits]) as engine:
        root = await engine.start(family(), id="root")
        await until_waiting(engine, 1)
        assert [item.id for item in (await engine.cancel_many(program="waits"))] == ["the-child"]
        assert await root.result(PATIENCE) == "caught RunCancelled"


async def test_schedules_are_no_runs_of_a_bulk_call() -> None:
    async with Engine("memory://", [doubled]) as engine:
        _ = await engine.schedule("s", doubled(1), every=3600)
        report = await engine.cancel_many(status=["running", "waiting", "queued"])
        assert len(report) == 0
        assert len(await engine.schedules()) == 1


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({}, "without a filter would select every run"),
        ({"program": None}, "without a filter would select every run"),
        ({"tags": {}}, "without a filter would select every run"),
        ({"id_prefix": "", "roots": False, "search": ""}, "without a filter would select every run"),
        ({"status": []}, "names no status"),
        ({"status": [], "program": "doubled"}, "names no status"),
        ({"status": [None]}, "names no status"),
        ({"programme": "x"}, "has no filter 'programme'; it has ids, status, program"),
        ({"ids": "abc"}, "is one string; give a list"),
        ({"ids": ["a"], "program": "x"}, "leave out other filters"),
        ({"program": "x", "limit": 0}, "give a maximum number of runs"),
        ({"status": "asleep"}, "'asleep' is not a status"),
        ({"ids": ["a", "b"], "limit": 1}, "names 2 runs, more than limit=1"),
    ],
)
async def test_a_bulk_call_says_what_is_wrong_with_its_filters(filters: dict[str, Any], message: str) -> None:
    async with Engine("memory://", [doubled]) as engine:
        for many in (engine.retry_many, engine.cancel_many, engine.pause_many, engine.resume_many):
            with pytest.raises(UsageError, match=message):
                await many(**filters)
        with pytest.raises(UsageError, match=message):
            await engine.signal_many("go", **filters)


async def test_a_bulk_call_with_no_ids_does_nothing() -> None:
    async with Engine("memory://", [doubled]) as engine:
        later = await engine.start(doubled(1), delay=3600)
        assert len(await engine.cancel_many(ids=[])) == 0
        assert await later.status() is RunStatus.QUEUED


def test_blocking_code_does_the_same(tmp_path: Path) -> None:
    with blocking.Engine(f"sqlite:///{tmp_path}/runs.db", [doubled, fragile]) as engine:
        report = engine.start_many([Start(doubled(1), id="a"), Start(doubled(2))])
        assert [handle.result() for handle in report.done] == [2, 4]
        _ = engine.run(fragile(), id="f")
        Switch.broken = False
        assert [handle.result() for handle in engine.retry_many(program="fragile").done] == ["worked"]
        assert len(engine.cancel_many(program="doubled")) == 0
