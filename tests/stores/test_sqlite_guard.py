"""Other code on the store's file: what it cannot do, and what is noticed when it was done by hand."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure.errors import StoreUnavailable
from perdure.ports.journal import Appended, Conflict
from perdure.stores.sqlite import guard
from perdure.stores.sqlite.config import SqliteConfig
from perdure.stores.sqlite.store import SqliteStore
from perdure.testing.conformance.history import History, step, write, write_all

Start = Callable[..., Any]


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


async def settle(store: SqliteStore) -> None:
    """Commit until the directory has not changed for so long that the guard relies on it."""
    held = store._database._guard
    assert held is not None
    while held._unchanged is None:
        await store._database.commit(lambda db: None)


@pytest.fixture(params=["right after a change of its directory", "long after one"])
async def settled(request: pytest.FixtureRequest, store: SqliteStore) -> SqliteStore:
    """A store whose file was made just now, or whose guard relies on the directory by now."""
    if request.param == "long after one":
        await settle(store)
    return store


def glance(path: Path) -> int:
    with closing(sqlite3.connect(path)) as other:
        return int(other.execute("select count(*) from perdure_runs").fetchone()[0])


async def test_the_other_library_reads_and_its_closing_leaves_the_log(store: SqliteStore, path: Path) -> None:
    for number in range(5):
        await write_all(store, History(f"r{number}").begin())
        before = os.stat(log_of(path)).st_ino
        assert glance(path) == number + 1
        assert os.stat(log_of(path)).st_ino == before
    # As another process would find it if this one were killed now.
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    shutil.copy(log_of(path), log_of(copy))
    with closing(apsw.Connection(str(copy))) as other:
        assert other.execute("select count(*) from perdure_runs").get == 5


async def test_the_other_library_cannot_write_beside_ours(store: SqliteStore, path: Path) -> None:
    await write_all(store, History("r1").begin())
    with closing(sqlite3.connect(path, timeout=0)) as other:
        for statement in ("create table mine (a)", "vacuum", "pragma journal_mode=delete", "begin immediate"):
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute(statement)
    await write_all(store, History("r2").begin())


async def test_ours_waits_for_a_transaction_of_the_other_library(path: Path) -> None:
    store = SqliteStore(str(path))
    await store.migrations.apply()
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        client = SqliteStore(str(path))
        await client.open(migrate=False)  # a client does not write by itself
        other.execute("begin immediate")
        other.execute("create table mine (a)")
        await store.open(migrate=True)
        config, store._database.config = store._database.config, SqliteConfig(busy=0.0)
        with pytest.raises(StoreUnavailable, match=r"the standard library's sqlite3.*give it a file of its own"):
            await write(store, History("r1").begin())
        store._database.config = config
        writing = asyncio.ensure_future(write(store, History("r1").begin()))
        await asyncio.sleep(0)
        other.execute("commit")
        assert await writing == [Appended()]
        await client.close()
    assert glance(path) == 1
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("select count(*) from mine").fetchone() == (0,)
    await store.close()


async def test_other_processes_write_although_the_other_library_is_kept_from_it(
    store: SqliteStore, path: Path, child: Start
) -> None:
    await write_all(store, History("r1").begin())
    assert child("visit", path).ended() == "0"
    append = child("append", path, "a", 5)
    assert append.hear() == "ready"
    append.go_on()
    assert append.ended() == "done"
    await write_all(store, History("r2").begin())


async def test_closing_a_file_of_python_leaves_the_log_to_us(store: SqliteStore, path: Path, child: Start) -> None:
    # Whatever closes a file drops the locks that the process has on it.
    run = History("r1")
    await write_all(store, run.begin())
    for number in range(3):
        for file in (path, log_of(path), path.with_name(f"{path.name}-shm")):
            file.read_bytes()
        before = os.stat(log_of(path)).st_ino
        assert child("visit", path).ended() == "0"
        assert os.stat(log_of(path)).st_ino == before
        await write_all(store, run.then(*step(number)))


async def test_a_second_store_of_the_process_that_closes_leaves_the_first_protected(
    store: SqliteStore, path: Path, child: Start
) -> None:
    await write_all(store, History("r1").begin())
    second = SqliteStore(str(path))
    await second.open(migrate=False)
    await second.close()
    before = os.stat(log_of(path)).st_ino
    assert glance(path) == 1
    assert child("visit", path).ended() == "0"
    assert os.stat(log_of(path)).st_ino == before


async def test_the_log_is_folded_and_the_files_are_tidied_as_ever(path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        store = SqliteStore(str(path))
        await store.open(migrate=True)
        await write(store, History("r1").begin())
        glance(path)
        store._database._checkpoint()
        assert os.stat(log_of(path)).st_size == 0
        await store.close()
        assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert set(os.listdir("/proc/self/fd")) == before


async def test_a_deleted_log_is_noticed_before_the_next_commit_and_nothing_is_lost(
    settled: SqliteStore, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = settled
    run = History("r1")
    await write_all(store, run.begin())
    for number in range(3):
        os.unlink(log_of(path))
        with caplog.at_level(logging.ERROR, "perdure"):
            await write_all(store, run.then(*step(number)))
        with closing(apsw.Connection(str(path))) as other:
            assert other.execute("select next_seq from perdure_heads").get == 3 + 2 * number
    assert caplog.text.count("its write-ahead log was removed or replaced while the store was open") == 3


async def test_a_deleted_log_is_noticed_by_a_process_that_only_renews_its_leases(
    settled: SqliteStore, path: Path
) -> None:
    store = settled
    await write_all(store, History("r1").begin())
    await store.leases.acquire("orchestrator:a", "a", 30.0, 100.0)
    os.unlink(log_of(path))
    await store.leases.release("orchestrator:a", "a")
    with closing(apsw.Connection(str(path))) as other:
        assert other.execute("select count(*) from perdure_runs").get == 1
        assert other.execute("select owner from perdure_leases").get == ""


async def test_a_deleted_log_is_begun_anew_for_every_store_of_the_process(store: SqliteStore, path: Path) -> None:
    second = SqliteStore(str(path))
    await second.open(migrate=False)
    run = History("r1")
    await write_all(store, run.begin())
    for number in range(4):
        os.unlink(log_of(path))
        writing, reading = (store, second) if number % 2 else (second, store)
        await write_all(writing, run.then(*step(number)))
        head = await reading.journal.head("r1")
        assert head is not None
        assert head.next_seq == 3 + 2 * number
    await second.close()


async def test_a_deleted_log_is_saved_once_a_checkpoint_beside_it_has_ended(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = SqliteStore(str(path))
    await second.open(migrate=False)
    run = History("r1")
    await write_all(store, run.begin())
    os.unlink(log_of(path))
    await write_all(store, run.then(*step(0)))
    # Where SQLite locks the shared memory for a checkpoint.
    place, held = (121, 1), os.open(f"{path}-shm", os.O_RDWR)
    guard._lock(held, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, place)
    os.unlink(log_of(path))
    waits = list[float]()

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        guard._lock(held, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, place)

    with monkeypatch.context() as patch:
        patch.setattr("perdure.stores.sqlite.database.time.sleep", sleep)
        head = await second.journal.head("r1")
    assert (head and head.next_seq, len(waits)) == (3, 1)
    os.close(held)
    await second.close()


async def test_a_process_beside_ours_goes_on_when_the_log_was_begun_anew(
    store: SqliteStore, path: Path, child: Start
) -> None:
    await write_all(store, History("r1").begin())
    other = child("append", path, "a", 3)
    assert other.hear() == "ready"
    os.unlink(log_of(path))
    await write_all(store, History("r2").begin())
    other.go_on()
    assert other.ended() == "done"
    assert await store.journal.head("own-a") is not None
    await write_all(store, History("r3").begin())
    assert child("visit", path).ended().isdigit()


async def test_nothing_is_acknowledged_while_the_file_is_gone_and_it_goes_on_when_it_is_back(
    settled: SqliteStore, path: Path
) -> None:
    store = settled
    run = History("r1")
    await write_all(store, run.begin())
    away = path.with_name("away.db")
    path.rename(away)
    with pytest.raises(
        StoreUnavailable, match="the file was removed or replaced while the store was open; put it back"
    ):
        await write(store, History("r2").begin())
    assert not path.exists()
    away.rename(path)
    await write_all(store, History("r2").begin())
    with closing(apsw.Connection(str(path))) as other:
        assert other.execute("select count(*) from perdure_runs").get == 2


async def test_a_file_that_was_replaced_by_another_store_is_opened(
    settled: SqliteStore, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = settled
    run = History("r1")
    await write_all(store, run.begin())
    other = SqliteStore(str(path.with_name("other.db")))
    await other.open(migrate=True)
    await write_all(other, History("r9").begin())
    await other.close()
    path.with_name("other.db").rename(path)
    log_of(path).unlink()
    path.with_name(f"{path.name}-shm").unlink()
    assert await write(store, run.then(*step(0))) == [Conflict(0)], "that file has no such run"
    assert await store.journal.head("r9") is not None
    assert "the file was removed or replaced" in caplog.text
    await write_all(store, History("r2").begin())


async def test_a_commit_asks_for_the_directory_alone_and_sends_no_statement_more(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, asked = History("r1"), list[str]()
    await write_all(store, run.begin())

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def readlink(self, path: Any) -> str:
            asked.append("name")
            return str(os.readlink(path))

        def stat(self, path: Any) -> os.stat_result:
            asked.append(str(path))
            return os.stat(path)

    await settle(store)
    monkeypatch.setattr(guard, "os", Counting())
    statements: list[str] = []
    store.trace(statements.append)
    await write_all(store, run.then(*step(0)))
    store.trace(None)
    folder = str(path.parent)
    assert asked == [folder]  # that of the log would make the next commit slower
    assert [one.split()[0] for one in statements] == ["begin", "update", "insert", "update", "commit"]
    path.with_name("another").touch()
    asked.clear()
    await write_all(store, run.then(*step(1)))
    assert asked == [folder, "name", "name"]


async def test_a_file_that_was_replaced_is_noticed_although_the_time_of_its_directory_was_set_back(
    store: SqliteStore, path: Path
) -> None:
    await write_all(store, History("r1").begin())
    await settle(store)
    before = os.stat(path.parent)
    path.rename(path.with_name("away.db"))
    os.utime(path.parent, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(StoreUnavailable, match="the file was removed or replaced"):
        await write(store, History("r2").begin())


async def test_a_directory_that_was_moved_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    store = SqliteStore(str(tmp_path / "a" / "b" / "runs.db"))
    await store.open(migrate=True)
    await settle(store)
    (tmp_path / "a").rename(tmp_path / "c")
    with pytest.raises(StoreUnavailable, match="the file was removed or replaced"):
        await write(store, History("r1").begin())
    (tmp_path / "c").rename(tmp_path / "a")
    await write_all(store, History("r1").begin())
    await store.close()


async def test_a_forked_child_closes_what_it_inherits(store: SqliteStore, path: Path) -> None:
    await write_all(store, History("r1").begin())
    held = {os.readlink(f"/proc/self/fd/{file}") for file in os.listdir("/proc/self/fd") if _ours(file, path)}
    assert held
    files = [file for file, _ in store._database._guard._locks]  # type: ignore[union-attr]
    child = os.fork()
    if not child:
        open_still = [file for file in files if os.path.exists(f"/proc/self/fd/{file}")]
        os._exit(len(open_still))
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def _ours(file: str, path: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{file}").startswith(str(path))
    except OSError:
        return False


async def test_a_connection_that_was_there_before_the_store_does_no_harm(path: Path, child: Start) -> None:
    first = SqliteStore(str(path))
    await first.open(migrate=True)
    await write_all(first, History("r1").begin())
    await first.close()
    other = sqlite3.connect(path)
    assert other.execute("select count(*) from perdure_runs").fetchone() == (1,)
    store = SqliteStore(str(path))
    await store.open(migrate=True)
    await write_all(store, History("r2").begin())
    assert other.execute("select count(*) from perdure_runs").fetchone() == (2,)
    before = os.stat(log_of(path)).st_ino
    other.close()
    assert child("visit", path).ended() == "0"
    assert os.stat(log_of(path)).st_ino == before
    await write_all(store, History("r3").begin())
    await store.close()
    assert glance(path) == 3


async def test_the_other_library_folds_no_log(store: SqliteStore, path: Path) -> None:
    run = History("r1")
    await write_all(store, run.begin(), run.then(*step(0)))
    size = os.stat(log_of(path)).st_size
    with closing(sqlite3.connect(path, timeout=0)) as other:
        for mode in ("passive", "full", "restart", "truncate"):
            _, frames, folded = other.execute(f"pragma wal_checkpoint({mode})").fetchone()
            assert frames > folded, "it is not allowed to"
    assert os.stat(log_of(path)).st_size == size
    store._database._checkpoint()
    assert os.stat(log_of(path)).st_size == 0, "we are"
