"""How the SQLite store commits: few statements, on the loop or in the thread, as durable as was asked for."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest
from msgspec import Raw

from perdure.errors import StoreUnavailable
from perdure.kernel.events import Batch
from perdure.ports.journal import Append, Appended, Conflict
from perdure.ports.leases import Renewal
from perdure.stores.sqlite import database
from perdure.stores.sqlite.store import SqliteStore
from perdure.testing.conformance.history import History, numbered, step, write, write_all


def words(statements: list[str]) -> list[str]:
    """The statements by their first words, in order, each once for all rows it is repeated for."""
    return [key for key, _ in itertools.groupby(" ".join(one.split()[:3]) for one in statements)]


async def traced(store: SqliteStore, *appends: Append) -> list[str]:
    """What is sent to the file for these appends."""
    seen: list[str] = []
    store.trace(seen.append)
    await write(store, *appends)
    store.trace(None)
    return words(seen)


CREATE = ["insert into perdure_heads", "insert into perdure_runs", "insert into perdure_journal"]
SWAP = ["update perdure_heads set", "insert into perdure_journal"]


async def test_creating_a_run_takes_three_statements_and_a_commit(store: SqliteStore) -> None:
    assert await traced(store, History("r1").begin_as("a")) == ["begin immediate", *CREATE, "commit"]


async def test_a_step_takes_two_statements_and_a_commit(store: SqliteStore) -> None:
    await write_all(store, History("r1").begin_as("a"))
    append = Append("r1", 2, [Batch(2, 1.0, step(0))])
    assert await traced(store, append) == ["begin immediate", *SWAP, "commit"]


async def test_a_change_of_the_row_takes_one_statement_more(store: SqliteStore) -> None:
    run = History("r1")
    await write_all(store, run.begin_as("a"))
    assert await traced(store, run.then(*step(0))) == ["begin immediate", *SWAP, "update perdure_runs set", "commit"]


async def test_a_group_takes_one_commit(store: SqliteStore) -> None:
    runs = [History(f"r{i}") for i in range(50)]
    assert await traced(store, *(run.begin_as("a") for run in runs)) == ["begin immediate", *CREATE, "commit"]
    steps = [Append(run.run_id, 2, [Batch(2, 1.0, step(0))]) for run in runs]
    assert await traced(store, *steps) == ["begin immediate", *SWAP, "commit"]


async def test_a_conflict_costs_the_others_one_more_try_and_no_commit(store: SqliteStore) -> None:
    await write_all(store, History("r1").begin())
    seen = await traced(store, Append("r1", 7, [Batch(7, 1.0, step(0))]), History("r2").begin())
    assert seen.count("commit") == 1
    assert (seen[0], seen[-1]) == ("begin immediate", "commit")


async def test_reading_begins_no_transaction(store: SqliteStore) -> None:
    await write_all(store, History("r1").begin())
    seen: list[str] = []
    store.trace(seen.append)
    await store.journal.read("r1")
    await store.journal.head("r1")
    await store.runs.get("r1")
    await store.timers.due(1.0, 10, ["checkout"], [])
    await store.leases.get("k", 1.0)
    assert [one.split()[0] for one in seen] == ["select"] * 5


async def test_only_what_is_large_is_read_in_the_thread(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = History("r1"), History("r2", input=Raw(b'["' + b"x" * 40_000 + b'"]'))
    await write_all(store, small.begin_as("a"), large.begin_as("a"))
    hops: list[Any] = []
    read = store._database.read

    async def counted(sql: str, bindings: Any = ()) -> Any:
        hops.append(bindings)
        return await read(sql, bindings)

    monkeypatch.setattr(store._database, "read", counted)
    assert len(await numbered(store.journal, "r1")) == 2
    assert list(await store.journal.read_many(["r1"])) == ["r1"]
    assert hops == []
    assert len(await numbered(store.journal, "r2")) == 2
    assert list(await store.journal.read_many(["r1", "r2"])) == ["r1", "r2"]
    assert len(hops) == 2


async def test_a_sign_of_life_is_one_statement(store: SqliteStore) -> None:
    await store.leases.acquire("k", "a", 30.0, 1.0)
    seen: list[str] = []
    store.trace(seen.append)
    await store.leases.renew_all([Renewal("k", "a", 30.0)], 2.0)
    assert words(seen) == ["update perdure_leases set"]


async def test_asking_for_the_version_is_no_statement(store: SqliteStore) -> None:
    seen: list[str] = []
    store.trace(seen.append)
    store.version()
    assert seen == []


# --- on the loop or in the thread -----------------------------------------------------------------------------------


async def test_a_fast_commit_answers_at_once(store: SqliteStore) -> None:
    store._database._commit_seconds = 0.0
    assert store.journal.append([History("r1").begin()]) == [Appended()]


async def test_a_conflict_answers_at_once_too(store: SqliteStore) -> None:
    await write_all(store, History("r1").begin())
    store._database._commit_seconds = 0.0
    assert store.journal.append([Append("r1", 5, [Batch(5, 1.0, step(0))])]) == [Conflict(1)]


async def test_a_lock_that_is_taken_in_the_middle_of_a_conflict_is_waited_for_in_the_thread(
    store: SqliteStore, path: Path
) -> None:
    await write_all(store, History("r1").begin())
    store._database._commit_seconds = 0.0
    other = apsw.Connection(str(path))
    begun = 0

    def between(sql: str) -> None:
        nonlocal begun
        begun += sql == "begin immediate"
        if begun == 2 and sql == "begin immediate":  # tried again one by one, after giving up the lock
            other.execute("begin immediate")

    store.trace(between)
    outcome = store.journal.append([Append("r1", 5, [Batch(5, 1.0, step(0))])])
    assert isinstance(outcome, Awaitable)
    other.execute("rollback")
    other.close()
    assert await outcome == [Conflict(1)]


async def test_a_slow_disk_sends_commits_to_the_thread(store: SqliteStore) -> None:
    store._database._commit_seconds = 1.0
    outcome = store.journal.append([History("r1").begin()])
    assert isinstance(outcome, Awaitable)
    assert await outcome == [Appended()]


async def test_commits_come_back_to_the_loop_when_the_disk_is_fast_again(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    took = 0.5
    ticks = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: next(ticks) * took, time=time.time)
    monkeypatch.setattr(database, "time", clock)
    run = History("r1")
    await write_all(store, run.begin())
    slow = store.journal.append([run.then(*step(0))])
    assert isinstance(slow, Awaitable)
    await slow
    took, ticks = 0.0, itertools.count()
    in_thread = 0
    while isinstance(outcome := store.journal.append([run.then(*step(in_thread))]), Awaitable):
        assert await outcome == [Appended()]
        in_thread += 1
    assert outcome == [Appended()]
    assert in_thread > 5  # one slow commit is enough to leave the loop, and it takes several fast ones to return


async def test_commits_in_the_thread_keep_their_order(store: SqliteStore) -> None:
    store._database._commit_seconds = 1.0
    run = History("r1")
    outcomes = [store.journal.append([append]) for append in (run.begin(), run.then(*step(0)), run.then(*step(1)))]
    assert [await outcome for outcome in outcomes if isinstance(outcome, Awaitable)] == [[Appended()]] * 3
    assert len(await numbered(store.journal, "r1")) == 5


async def test_an_error_in_the_thread_comes_back_as_one_of_ours(store: SqliteStore, path: Path) -> None:
    store._database._commit_seconds = 1.0
    db = apsw.Connection(str(path))
    db.execute("create trigger full before insert on perdure_blobs begin select raise(abort, 'no'); end")
    db.close()
    with pytest.raises(StoreUnavailable, match="ConstraintError: no"):
        await store.blobs.put(b"x")
    assert await write(store, History("r1").begin()) == [Appended()]


async def test_a_closed_store_says_so(path: Path) -> None:
    store = SqliteStore(str(path))
    await store.open(migrate=True)
    await store.close()
    with pytest.raises(StoreUnavailable, match="it is closed"):
        store.journal.append([History("r1").begin()])
    with pytest.raises(StoreUnavailable, match="it is closed"):
        await store.journal.read("r1")
    with pytest.raises(StoreUnavailable, match="it is closed"):
        await store.runs.get("r1")
    with pytest.raises(StoreUnavailable, match="it is closed"):
        await store.leases.renew_all([Renewal("k", "a", 1.0)], 1.0)


async def test_a_store_can_be_opened_again(path: Path) -> None:
    store = SqliteStore(str(path))
    for i in range(3):
        await store.open(migrate=True)
        await write_all(store, History(f"r{i}").begin())
        await store.close()
    await store.open(migrate=False)
    assert [await store.journal.head(f"r{i}") is not None for i in range(3)] == [True] * 3
    await store.close()


async def test_closing_waits_for_what_is_being_written(path: Path) -> None:
    store = SqliteStore(str(path))
    await store.open(migrate=True)
    store._database._commit_seconds = 1.0
    outcome = store.journal.append([History("r1").begin()])
    await store.close()
    assert isinstance(outcome, Awaitable)
    assert await outcome == [Appended()]
    await store.open(migrate=False)
    assert await store.journal.head("r1") is not None
    await store.close()


# --- how durable ----------------------------------------------------------------------------------------------------


class Counting(apsw.VFS):
    """A disk that counts how often it is told to keep what it has."""

    def __init__(self) -> None:
        self.syncs = 0
        super().__init__("counting", "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return CountingFile(self, name, flags)


class CountingFile(apsw.VFSFile):
    def __init__(self, disk: Counting, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        super().__init__("", name, flags)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.syncs += 1
        super().xSync(flags)


@pytest.fixture
def disk() -> Iterator[Counting]:
    disk = Counting()
    yield disk
    disk.unregister()


async def test_a_commit_reaches_the_disk_when_that_was_asked_for(path: Path, disk: Counting) -> None:
    store = SqliteStore(str(path), vfs="counting")
    await store.open(migrate=True)
    run, before = History("r1"), disk.syncs
    await write_all(store, run.begin())
    assert disk.syncs > before
    before = disk.syncs
    await write_all(store, run.then(*step(0), fsync=False), History("r2").begin())
    assert disk.syncs > before  # one append of the group asks for it, so all have it
    before = disk.syncs
    await write_all(store, run.then(*step(1), fsync=False))
    assert disk.syncs == before
    await write_all(store, run.then(*step(2)))
    assert disk.syncs > before
    await store.close()


# --- the log --------------------------------------------------------------------------------------------------------


def log_size(path: Path) -> int:
    return os.stat(f"{path}-wal").st_size


async def test_the_log_is_folded_when_it_has_been_quiet(store: SqliteStore, path: Path) -> None:
    await write_all(store, History("r1").begin())
    assert log_size(path) > 0
    store._database._last_write = float("-inf")
    store._database._fold_if_quiet()
    hop = store._database._hop
    assert hop is not None
    await asyncio.wrap_future(hop)
    assert log_size(path) == 0
    assert await store.journal.head("r1") is not None


async def test_the_log_is_not_folded_while_there_is_work(store: SqliteStore, path: Path) -> None:
    await write_all(store, History("r1").begin())
    store._database._last_write = float("inf")
    store._database._fold_if_quiet()
    assert store._database._hop is None
    assert log_size(path) > 0


async def test_an_append_while_the_log_is_folded_waits_for_its_turn(store: SqliteStore) -> None:
    run = History("r1")
    await write_all(store, run.begin())
    store._database._last_write = float("-inf")
    for i in range(50):
        store._database._fold_if_quiet()
        assert await write(store, run.then(*step(i))) == [Appended()]
        store._database._last_write = float("-inf")


async def test_a_reader_keeps_the_log_from_being_folded_and_nothing_else(store: SqliteStore, path: Path) -> None:
    run = History("r1")
    await write_all(store, run.begin())
    reader = apsw.Connection(str(path))
    reader.execute("begin")
    assert reader.execute("select count(*) from perdure_heads").get == 1
    await write_all(store, run.then(*step(0)))
    store._database._checkpoint()
    assert log_size(path) > 0
    await write_all(store, run.then(*step(1)))
    reader.execute("commit")
    store._database._checkpoint()
    assert log_size(path) == 0
    reader.close()


async def test_the_last_to_leave_leaves_one_file(path: Path) -> None:
    one, other = SqliteStore(str(path)), SqliteStore(str(path))
    await one.open(migrate=True)
    await other.open(migrate=True)
    await write_all(one, History("r1").begin())
    await one.close()
    assert Path(f"{path}-wal").exists()
    await other.close()
    assert [file.name for file in path.parent.iterdir()] == ["runs.db"]


# --- what others write ----------------------------------------------------------------------------------------------


def settle(path: Path) -> None:
    """Let the last commit be a while ago."""
    old = time.time() - 60
    os.utime(f"{path}-wal", (old, old))


async def test_the_version_changes_when_somebody_writes(store: SqliteStore, path: Path) -> None:
    other = SqliteStore(str(path))
    await other.open(migrate=True)
    settle(path)
    before = store.version()
    assert store.version() == before
    await write_all(other, History("r1").begin())
    assert store.version() != before
    await other.close()


async def test_two_commits_in_one_tick_of_the_file_system_are_not_taken_for_one(store: SqliteStore, path: Path) -> None:
    # Seen right after a commit, the version is not final: another commit could follow and leave the same time.
    await write_all(store, History("r1").begin())
    os.utime(f"{path}-wal")
    fresh = store.version()
    size, at = log_size(path), os.stat(f"{path}-wal").st_mtime_ns
    settle(path)
    old = os.stat(f"{path}-wal").st_mtime_ns
    settled = store.version()
    assert isinstance(fresh, tuple)
    assert isinstance(settled, tuple)
    assert (fresh[:2], settled[:2]) == ((at, size), (old, size))
    assert fresh[2:] != settled[2:]


async def test_the_version_of_a_store_that_is_gone_is_none(path: Path) -> None:
    assert SqliteStore(str(path)).version() is None
