"""Rows are computed from their journals anew: what differs is told and mended, beside engines that are at work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from perdure import Difference, Engine, Limits, Queue, RebuildReport, RunStatus, connect
from perdure.kernel.events import RunStatus as Status
from perdure.ports.store import Store
from perdure.stores.sqlite.upkeep import SqlUpkeep
from tests.client.test_pruning import PROGRAMS, again, broken, early, large, nap, parent, patient


async def fill(engine: Engine) -> None:
    """Runs of every kind, and what can be done to them."""
    await engine.run(large("a"), id="large", tags={"kind": "big"})
    await engine.run(broken(), id="broken")
    await engine.run(early(), id="early")
    _ = await engine.start(nap(), id="nap")
    _ = await engine.start(nap(), id="queued", queue="q", key="k", priority=3, delay=9)
    _ = await engine.start(patient("a"), id="paused")
    await engine.pause("paused", "for now")
    _ = await engine.start(patient("b"), id="cancelled")
    await engine.cancel("cancelled", "no more")
    _ = await engine.fork("large", at="part:0", new_id="fork")
    await engine.run(parent(), id="parent")
    run = await engine.start(again(2), id="again")
    await engine.signal("again", "go", "done")
    assert await run.result() == "done"
    await (await engine.schedule("nightly", early(), cron="0 3 * * *")).pause()
    retried = await engine.retry("broken")
    assert (await retried.outcome()).status is RunStatus.FAILED


async def test_a_store_that_is_as_it_should_be_has_no_differences(any_store: Store) -> None:
    async with Engine(any_store, PROGRAMS, limits=Limits(blob=1000), queues=[Queue("q")]) as engine:
        await fill(engine)
        for dry_run in (True, False):
            report = await engine.rebuild(dry_run=dry_run)
            assert report == RebuildReport(report.journals, dry_run=dry_run)
            assert report.journals >= 12


@pytest.fixture
async def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url, PROGRAMS, limits=Limits(blob=1000)) as engine:
        await engine.run(large("a"), id="large", tags={"kind": "big"})
        await engine.run(early(), id="early")
        _ = await engine.start(nap(), id="nap")
    return url


def change(url: str, sql: str) -> None:
    db = apsw.Connection(url.removeprefix("sqlite:///"))
    db.execute(sql)
    db.close()


async def test_a_row_that_was_changed_is_told_and_mended(url: str) -> None:
    change(url, "update perdure_runs set status = 'failed' where id = 'early'")
    async with connect(url) as client:
        run_id = (await client.list(limit=3))[1].run_id
        dry = await client.rebuild(dry_run=True)
        assert [(d.id, d.column, d.stored.partition(":")[0]) for d in dry.differences] == [("early", "row", "damaged")]
        assert dry == await client.rebuild(dry_run=True), "a dry run mends nothing"
        report = await client.rebuild()
        assert (report.mended, report.differences, report.damaged) == (1, dry.differences, [])
        assert report.differences[0].run_id == run_id
        view = await client.get("early")
        assert view is not None
        assert view.status is RunStatus.BAILED
        assert (await client.rebuild()).differences == []


async def test_the_columns_that_differ_are_told(url: str) -> None:
    async with connect(url) as client:
        row, head = await client._base.require("nap")
        wrong = msgspec.structs.replace(row, status=Status.PARKED, wake_at=None, tags={"a": "b"})
        assert await client.store.upkeep.reproject(row.run_id, head.next_seq, [wrong])
        report = await client.rebuild()
        assert report.differences == [
            Difference("nap", row.run_id, "status", "parked", row.status.value),
            Difference("nap", row.run_id, "wake_at", None, row.wake_at),
            Difference("nap", row.run_id, "tags", {"a": "b"}, {}),
        ]
        assert await client.store.runs.get(row.run_id) == row


async def test_rows_that_are_missing_are_made_again_children_included(url: str) -> None:
    change(url, "delete from perdure_runs")
    async with connect(url) as client:
        assert list(await client.list()) == []
        report = await client.rebuild()
        assert {(d.id, d.column, d.stored) for d in report.differences} == {
            (id, "row", "missing") for id in ("large", "large/part:0", "early", "nap")
        }
        assert sorted(view.id for view in await client.list()) == ["early", "large", "large/part:0", "nap"]
        found = await client.list(tags={"kind": "big"})
        assert [view.id for view in found] == ["large/part:0", "large"]
    async with Engine(url, PROGRAMS) as engine:
        assert (await engine.start(early(), id="early")).run_id


async def test_a_damaged_journal_is_told_and_the_others_are_mended(url: str) -> None:
    change(
        url, "update perdure_journal set at = at + 1 where run_id = (select run_id from perdure_runs where id='large')"
    )
    change(url, "delete from perdure_runs where id = 'early'")
    async with connect(url) as client:
        report = await client.rebuild()
        assert [("checksum" in one.reason) for one in report.damaged] == [True]
        assert [d.id for d in report.differences] == ["early"]
        assert await client.get("early") is not None


async def test_a_journal_without_entries_is_told(url: str) -> None:
    change(url, "delete from perdure_journal where run_id = (select run_id from perdure_runs where id='early')")
    async with connect(url) as client:
        report = await client.rebuild()
        assert [one.reason for one in report.damaged] == ["it has a head and no entries"]


async def test_a_run_that_goes_on_meanwhile_is_looked_at_anew(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(url, "delete from perdure_runs where id = 'nap'")
    reproject = SqlUpkeep.reproject
    tries: list[int] = []

    async def busy(self: SqlUpkeep, run_id: str, expected_next: int, rows: Any) -> bool:
        tries.append(expected_next)
        return len(tries) > busy_for and await reproject(self, run_id, expected_next, rows)

    monkeypatch.setattr(SqlUpkeep, "reproject", busy)
    async with connect(url) as client:
        busy_for = 2
        assert [d.id for d in (await client.rebuild()).differences] == ["nap"]
        assert len(tries) == 3
        assert await client.get("nap") is not None
    change(url, "delete from perdure_runs where id = 'nap'")
    async with connect(url) as client:
        busy_for = 1000
        report = await client.rebuild()
        assert (report.differences, len(report.busy), report.mended) == ([], 1, 0)
