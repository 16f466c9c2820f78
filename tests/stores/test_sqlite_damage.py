"""Bytes that are not what was written: noticed, named, and the trouble of one run alone."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from perdure.errors import Corrupt
from perdure.kernel.projection import RunRow
from perdure.ports.runs import RunFilter
from perdure.stores.sqlite.store import SqliteStore
from perdure.testing.conformance.history import History, finished, numbered, step, write_all

RUNS = ("r1", "r2", "r3")


@pytest.fixture
async def store(store: SqliteStore) -> SqliteStore:
    """Three runs that have ended, each with three batches."""
    for run_id in RUNS:
        run = History(run_id, id=f"order-{run_id}", tags={"team": "a"})
        for append in (run.begin_as("a"), run.then(*step(0)), run.then(*step(1), finished())):
            await write_all(store, append)
    return store


def damage(path: Path, sql: str) -> None:
    """Change the file behind the store's back."""
    db = apsw.Connection(str(path))
    db.execute(sql)
    assert db.changes() == 1
    db.close()


EVENTS = [
    "update perdure_journal set events = replace(events, 'work:1', 'work:2') where run_id = 'r2' and seq = 4",
    "update perdure_journal set events = 'x' where run_id = 'r2' and seq = 2",
    "update perdure_journal set events = cast(x'ff00fe' as text) where run_id = 'r2' and seq = 2",
    "update perdure_journal set events = '' where run_id = 'r2' and seq = 2",
    "update perdure_journal set at = at + 1 where run_id = 'r2' and seq = 2",
    "update perdure_journal set checksum = checksum + 1 where run_id = 'r2' and seq = 2",
    "delete from perdure_journal where run_id = 'r2' and seq = 2",
    "update perdure_journal set seq = 99 where run_id = 'r2' and seq = 2",
]


@pytest.mark.parametrize("sql", EVENTS)
async def test_damaged_events_are_the_trouble_of_their_run_alone(store: SqliteStore, path: Path, sql: str) -> None:
    damage(path, sql)
    with pytest.raises(Corrupt, match="r2") as caught:
        await store.journal.read("r2")
    assert "Restore the file from a backup" in str(caught.value)
    journals = await store.journal.read_many(RUNS)
    assert isinstance(journals["r2"], Corrupt)
    for run_id in ("r1", "r3"):
        assert journals[run_id] == await store.journal.read(run_id)
        assert len(await numbered(store.journal, run_id)) == 7


async def test_events_that_were_moved_to_another_run_are_noticed(store: SqliteStore, path: Path) -> None:
    damage(path, "delete from perdure_journal where run_id = 'r1' and seq = 2")
    damage(path, "update perdure_journal set run_id = 'r1' where run_id = 'r2' and seq = 2")
    journals = await store.journal.read_many(RUNS)
    assert [type(journals[run_id]) for run_id in RUNS] == [Corrupt, Corrupt, list]


async def test_what_lies_before_the_damage_can_still_be_read(store: SqliteStore, path: Path) -> None:
    damage(path, EVENTS[0])
    assert len(await numbered(store.journal, "r2", 0, 1)) == 1


ROWS = [
    "update perdure_runs set output = '\"other\"' where run_id = 'r2'",
    "update perdure_runs set output = cast(x'ff00fe' as text) where run_id = 'r2'",
    "update perdure_runs set input = '[1]' where run_id = 'r2'",
    "update perdure_runs set error = '{' where run_id = 'r2'",
    'update perdure_runs set tags = \'{"team":"a","x":"y"}\' where run_id = \'r2\'',
    "update perdure_runs set checksum = checksum + 1 where run_id = 'r2'",
    "update perdure_runs set reason = 'other' where run_id = 'r2'",
    "update perdure_runs set reason = cast(x'ff00fe' as text) where run_id = 'r2'",
    "update perdure_runs set status = 'nonsense' where run_id = 'r2'",
    "update perdure_runs set version = '7' where run_id = 'r2'",
    "update perdure_runs set owner = null where run_id = 'r2'",
    "update perdure_runs set wake_at = 'soon' where run_id = 'r2'",
    "update perdure_runs set epoch = x'00' where run_id = 'r2'",
    "update perdure_runs set output_blob = 'abc' where run_id = 'r2'",
]


@pytest.mark.parametrize("sql", ROWS)
async def test_a_damaged_row_is_the_trouble_of_its_run_alone(store: SqliteStore, path: Path, sql: str) -> None:
    damage(path, sql)
    with pytest.raises(Corrupt, match="order-r2"):
        await store.runs.get("r2")
    with pytest.raises(Corrupt, match="order-r2"):
        await store.runs.find("order-r2")
    for run_id in ("r1", "r3"):
        assert isinstance(await store.runs.get(run_id), RunRow)
    told = await store.runs.finished(RUNS)
    assert {one.run_id for one in told if isinstance(one, RunRow)} == {"r1", "r3"}
    assert [one.run_id for one in told if isinstance(one, Corrupt)] == ["r2"]


@pytest.mark.parametrize("sql", ROWS)
async def test_a_damaged_row_is_listed_with_what_is_wrong(store: SqliteStore, path: Path, sql: str) -> None:
    damage(path, sql)
    found = {row.run_id: row for row, _ in await store.runs.list(RunFilter())}
    assert set(found) == set(RUNS)
    assert "is damaged" in found["r2"].reason
    assert found["r1"].reason == found["r3"].reason == ""


async def test_a_damaged_row_does_not_keep_its_journal_from_being_read(store: SqliteStore, path: Path) -> None:
    damage(path, ROWS[0])
    assert len(await numbered(store.journal, "r2")) == 7


async def test_a_damaged_blob_is_the_trouble_of_who_reads_it(store: SqliteStore, path: Path) -> None:
    good, bad = await store.blobs.put(b"good"), await store.blobs.put(b"bad")
    damage(path, "update perdure_blobs set data = x'00' where data = x'626164'")
    with pytest.raises(Corrupt, match=bad):
        await store.blobs.get(bad)
    assert await store.blobs.get(good) == b"good"


async def test_a_store_without_its_tables_is_damaged(store: SqliteStore, path: Path) -> None:
    db = apsw.Connection(str(path))
    db.execute("drop table perdure_blobs")
    db.close()
    with pytest.raises(Corrupt, match="no such table"):
        await store.blobs.get("0" * 64)
