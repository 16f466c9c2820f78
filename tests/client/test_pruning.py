"""What ended long ago goes when somebody says so, wholly and with what only it needed; nothing else ever does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Engine,
    Limits,
    NoSuchRun,
    Program,
    PruneReport,
    Queue,
    RunStatus,
    UsageError,
    bail,
    blocking,
    child,
    connect,
    continue_as,
    sleep,
    step,
    wait_signal,
    workflow,
)
from perdure.client import pruning
from perdure.client.subscriptions import SubscriptionsConfig
from perdure.kernel.history.capsule import decode_capsule
from perdure.ports.store import Store
from tests.engine.harness import FakeClock
from tests.services.plugin import on_two_stores

DAY = 86400.0


@step
def enlarge(letter: str) -> str:
    return letter * 5000


@step
def fail() -> None:
    raise ValueError("no")


@workflow
async def part(letter: str) -> str:
    return await enlarge(letter)


@workflow
async def large(letter: str) -> str:
    return (await enlarge(letter))[:3] + (await part(letter.upper()))[:3]


@workflow
async def broken() -> None:
    await fail()


@workflow
async def early() -> None:
    bail("enough")


@workflow
async def patient(word: str = "go") -> str:
    return str(await wait_signal(word))


@workflow
async def again(left: int) -> str:
    if left:
        continue_as(left - 1)
    return str(await wait_signal("go"))


@workflow
async def parent() -> str:
    return await child(patient(), id="detached", detached=True)


@workflow
async def nap() -> None:
    await sleep(1e6)


PROGRAMS: list[Program] = [large, part, broken, early, patient, again, parent, nap]


@pytest.fixture
async def engine(any_store: Store) -> AsyncIterator[Engine]:
    async with Engine(any_store, PROGRAMS, clock=FakeClock(), limits=Limits(blob=1000), queues=[Queue("q")]) as engine:
        yield engine


def pass_time(engine: Engine, seconds: float) -> None:
    assert isinstance(engine.clock, FakeClock)
    engine.clock.advance(seconds)


async def ids(engine: Engine) -> list[str]:
    return sorted(view.id for view in await engine.list())


async def test_only_what_completed_long_enough_ago_goes(engine: Engine) -> None:
    await engine.run(large("a"), id="old")
    await engine.run(broken(), id="failed")
    await engine.run(early(), id="bailed")
    waiting = await engine.start(patient(), id="waiting")
    pass_time(engine, 31 * DAY)
    await engine.run(large("b"), id="new")
    before = await engine.journal("old")
    dry = await engine.prune(timedelta(days=30), dry_run=True)
    assert (dry.runs, dry.dry_run) == (1, True)
    assert dry.bytes > 0
    assert await engine.journal("old") == before
    report = await engine.prune(timedelta(days=30))
    assert (report.runs, report.bytes, report.kept) == (1, dry.bytes, [])
    assert await engine.get("old") is None
    assert await ids(engine) == ["bailed", "failed", "new", "new/part:0", "waiting"]
    with pytest.raises(NoSuchRun):
        await engine.journal("old")
    await engine.signal("waiting", "go", "on")
    assert await waiting.result() == "on"
    assert (await engine.prune(timedelta(days=30))).runs == 0


async def test_statuses_say_what_else_goes(engine: Engine) -> None:
    for number, workflow_ in enumerate((broken, early)):
        await engine.run(workflow_(), id=str(number))
    cancelled = await engine.start(patient(), id="cancelled")
    await engine.cancel("cancelled")
    assert await cancelled.outcome() is not None
    pass_time(engine, 1)
    assert (await engine.prune(0, "failed")).runs == 1
    assert await ids(engine) == ["1", "cancelled"]
    assert (await engine.prune(0, [RunStatus.BAILED, "cancelled"])).runs == 2
    assert await ids(engine) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"older_than": -1}, "older_than=-1"),
        ({"older_than": "30d"}, "older_than='30d' must be a number of seconds or a timedelta"),
        ({"older_than": 1, "statuses": "running"}, "only runs that have ended can be pruned; give some of bailed"),
        ({"older_than": 1, "statuses": ["completed", "parked"]}, "statuses='parked'"),
        ({"older_than": 1, "statuses": "done"}, "statuses='done'"),
        ({"older_than": 1, "statuses": []}, "statuses is empty"),
        ({"older_than": 1, "grace": -1}, "grace=-1"),
        ({"older_than": 1, "archive": "/dev/null/x"}, "is not a directory that can be written to"),
    ],
)
@on_two_stores
async def test_what_makes_no_sense_is_refused(engine: Engine, arguments: dict[str, Any], message: str) -> None:
    await engine.run(large("a"), id="a")
    pass_time(engine, DAY)
    with pytest.raises(UsageError, match=message):
        await engine.prune(**arguments)
    assert await ids(engine) == ["a", "a/part:0"]


async def test_large_values_go_with_the_last_run_that_refers_to_them(engine: Engine) -> None:
    await engine.run(large("a"), id="one")
    pass_time(engine, DAY)
    await engine.run(large("a"), id="two")
    by_hand = await engine.blobs.put(b"put by hand")
    assert (await engine.prune(3600, grace=0)).blobs == 0
    assert (await engine.steps("two"))[0].output == "a" * 5000
    pass_time(engine, DAY)
    report = await engine.prune(3600, grace=0)
    assert report.blobs > 0
    assert report.blob_bytes > 10_000
    assert await engine.blobs.get(by_hand) == b"put by hand", "what refers to it is not for the store to know"
    assert (await engine.prune(3600, grace=0)) == PruneReport()


async def test_a_value_that_was_put_lately_is_left_alone(engine: Engine) -> None:
    await engine.run(large("a"), id="one")
    pass_time(engine, DAY)
    report = await engine.prune(0)
    assert (report.runs, report.blobs) == (1, 0)
    assert (await engine.prune(0, dry_run=True, grace=0)).blobs > 0


async def test_a_fork_outlives_the_run_that_it_was_forked_from(engine: Engine) -> None:
    await engine.run(large("a"), id="origin")
    pass_time(engine, DAY)
    fork = await engine.fork("origin", at="part:0", new_id="fork")
    # It writes blobs that nothing refers to yet: the grace is what keeps them.
    assert (await engine.prune(3600, grace=60)).runs == 1
    assert await fork.result() == "aaaAAA"
    assert (await engine.prune(3600, grace=0)).runs == 0
    assert (await engine.steps("fork"))[0].output == "a" * 5000
    view = await engine.get("fork")
    assert view is not None
    assert view.forked_from, "it still says where it comes from, though that is gone"
    assert await engine.fork("fork", new_id="another") is not None


async def test_a_fork_that_is_made_while_its_origin_is_pruned_has_its_values(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.run(large("a"), id="origin")
    pass_time(engine, DAY)
    append = engine._base.append

    async def after_pruning(*arguments: Any) -> bool:
        await engine.store.upkeep.remove([(await engine._base.require("origin"))[0].run_id])
        assert (await engine.store.upkeep.collect(3600, 100)).blobs == 0
        return await append(*arguments)

    monkeypatch.setattr(engine._base, "append", after_pruning)
    fork = await engine.fork("origin", at="part:0", new_id="fork")
    assert await fork.result() == "aaaAAA"


async def test_incarnations_that_were_continued_go_and_the_last_one_goes_on(engine: Engine) -> None:
    run = await engine.start(again(3), id="endless")
    while (await engine._base.require("endless"))[0].incarnation < 4:
        await asyncio.sleep(0)
    pass_time(engine, DAY)
    assert (await engine.prune(3600)).runs == 3
    await engine.signal("endless", "go", "done")
    view = await engine.get("endless")
    assert view is not None
    assert await run.status() is not RunStatus.FAILED, "its handle finds the one that goes on"


async def test_a_detached_child_stays_when_its_parent_goes(engine: Engine) -> None:
    await engine.run(parent(), id="parent")
    pass_time(engine, DAY)
    assert (await engine.prune(3600)).runs == 1
    assert await ids(engine) == ["detached"]
    await engine.signal("detached", "go", "on")
    view = await engine.get("detached")
    assert view is not None
    assert view.parent


async def test_an_id_is_free_again(engine: Engine) -> None:
    first = await engine.start(large("a"), id="order-1")
    await first.result()
    assert (await engine.start(large("b"), id="order-1")).run_id == first.run_id
    pass_time(engine, DAY)
    await engine.prune(3600)
    again_ = await engine.start(large("b"), id="order-1")
    assert await again_.result() == "bbbBBB"
    assert again_.run_id != first.run_id


async def test_the_latest_run_of_an_id_stays_while_an_earlier_one_does(engine: Engine) -> None:
    await engine.run(broken(), id="order-1")
    await engine.run(large("a"), id="order-1", reuse="allow_if_failed")
    pass_time(engine, DAY)
    report = await engine.prune(3600)
    assert report.runs == 0
    assert [(kept.id, "an earlier run under the id" in kept.reason) for kept in report.kept] == [("order-1", True)]
    assert (await engine.prune(3600, ["completed", "failed"])).runs == 2


async def test_a_finished_schedule_and_its_runs_can_go(engine: Engine) -> None:
    schedule = await engine.schedule("nightly", early(), cron="0 3 * * *")
    await engine.run(early(), id="other")
    pass_time(engine, DAY)
    assert (await engine.prune(3600, ["completed", "cancelled", "bailed"])).runs == 1
    assert [view.id for view in await engine.schedules()] == ["nightly"], "a schedule that goes on has not ended"
    await schedule.delete()
    pass_time(engine, DAY)
    assert (await engine.prune(3600, ["completed", "cancelled", "bailed", "failed"])).runs >= 1
    assert await engine.schedules() == []


async def test_runs_are_pruned_in_small_commits(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "BATCH", 3)
    handles = [await engine.start(early(), id=str(number)) for number in range(10)]
    for handle in handles:
        await handle.outcome()
    pass_time(engine, 1)
    sizes: list[int] = []
    remove = engine.store.upkeep.remove

    async def counted(run_ids: list[str]) -> Any:
        sizes.append(len(run_ids))
        return await remove(run_ids)

    monkeypatch.setattr(engine.store.upkeep, "remove", counted)
    assert (await engine.prune(0, "bailed")).runs == 10
    assert sizes == [3, 3, 3, 1]
    assert await ids(engine) == []


async def test_a_commit_takes_few_bytes_however_large_the_runs_are(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "BATCH_BYTES", 1)
    for number in range(3):
        await engine.run(early(), id=str(number))
    pass_time(engine, 1)
    calls: list[int] = []
    remove = engine.store.upkeep.remove

    async def counted(run_ids: list[str]) -> Any:
        calls.append(len(run_ids))
        return await remove(run_ids)

    monkeypatch.setattr(engine.store.upkeep, "remove", counted)
    assert (await engine.prune(0, "bailed")).runs == 3
    assert calls == [1, 1, 1]


async def test_two_that_prune_at_once_do_not_disturb_each_other(engine: Engine) -> None:
    for number in range(20):
        await engine.run(early(), id=str(number))
    pass_time(engine, 1)
    reports = await asyncio.gather(*(engine.prune(0, "bailed") for _ in range(3)))
    assert sum(report.runs for report in reports) == 20
    assert [report.kept for report in reports] == [[], [], []]


# --- archives -----------------------------------------------------------------------------------------------------


async def test_an_archived_run_can_be_imported_again(engine: Engine, tmp_path: Path) -> None:
    await engine.run(large("a"), id="order/1 Zoë")
    before = await engine.journal("order/1 Zoë")
    pass_time(engine, DAY)
    folder = tmp_path / "archive"
    assert (await engine.prune(3600, dry_run=True, archive=folder)).archived == 0
    assert not folder.exists()
    report = await engine.prune(3600, archive=folder, grace=0)
    assert (report.runs, report.archived) == (1, 1)
    (file,) = folder.iterdir()
    assert file.name.endswith("-order_1_Zo_.capsule")
    assert decode_capsule(file.read_bytes()).id == "order/1 Zoë"
    view = await engine.import_run(file.read_bytes())
    assert (view.status, view.output) == (RunStatus.COMPLETED, "aaaAAA")
    assert await engine.journal("order/1 Zoë") == before
    assert (await engine.steps("order/1 Zoë"))[0].output == "a" * 5000


async def test_a_run_that_cannot_be_archived_is_kept(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for letter in "abc":
        await engine.run(large(letter), id=letter)
    pass_time(engine, DAY)
    write = pruning.write_whole

    def full(path: str, data: bytes) -> None:
        if path.endswith("-b.capsule"):
            raise OSError(28, "No space left on device")
        write(path, data)

    monkeypatch.setattr(pruning, "write_whole", full)
    report = await engine.prune(3600, archive=tmp_path / "archive", grace=0)
    assert (report.runs, report.archived) == (2, 2)
    assert [(kept.id, "No space left on device" in kept.reason) for kept in report.kept] == [("b", True)]
    assert (await engine.steps("b"))[0].output == "b" * 5000
    monkeypatch.undo()
    assert (await engine.prune(3600, archive=tmp_path / "archive")).runs == 1
    assert len(list((tmp_path / "archive").iterdir())) == 3


async def missing(blob_id: str) -> None:
    return None


async def test_a_run_whose_value_is_missing_is_not_archived_and_stays(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.run(large("a"), id="a")
    pass_time(engine, DAY)
    monkeypatch.setattr(engine.store.blobs, "get", missing)
    report = await engine.prune(3600, archive=tmp_path / "archive")
    assert report.runs == 0
    assert "is missing" in report.kept[0].reason
    assert await engine.get("a") is not None


# --- those who wait -----------------------------------------------------------------------------------------------


async def test_whoever_waits_for_a_run_that_is_gone_is_told(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/runs.db", PROGRAMS, clock=FakeClock()) as engine:
        run = await engine.start(early(), id="a")
        await run.outcome()
        pass_time(engine, 1)
        async with connect(engine.store.url) as client:
            client.watch._config = SubscriptionsConfig(existence_interval=0.0)
            waiting = asyncio.ensure_future(client.watch.wait_for_end(run.run_id + "x"))
            with pytest.raises(NoSuchRun):
                await waiting
            await engine.prune(0, "bailed")
            with pytest.raises(NoSuchRun):
                await client.watch.wait_for_end(run.run_id)


def test_code_that_does_not_await_prunes_as_well(tmp_path: Path) -> None:
    clock = FakeClock()
    with blocking.Engine(f"sqlite:///{tmp_path}/runs.db", PROGRAMS, clock=clock) as engine:
        engine.start(early(), id="a").outcome()
        clock.advance(1)
        assert engine.prune(0, "bailed").runs == 1
        assert engine.rebuild().journals == 0
