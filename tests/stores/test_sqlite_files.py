"""Files that are no store of ours: refused with the cause and a cure, and left as they were."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from perdure.errors import InvalidStoreUrl, NotAStore, PerdureError, SchemaMismatch, StoreError, StoreUnavailable
from perdure.stores.sqlite.migrating import APPLICATION_ID, MIGRATIONS
from perdure.stores.sqlite.store import SqliteStore
from perdure.testing.conformance.history import History, write, write_all

Snapshot = dict[str, tuple[bytes, int]]


def snapshot(folder: Path) -> Snapshot:
    """Every file of a folder with its bytes and the time of its last change. The index of a log may note readers."""
    return {
        file.name: (file.read_bytes(), file.stat().st_mtime_ns) if file.is_file() else (b"", 0)
        for file in folder.iterdir()
        if not file.name.endswith("-shm")
    }


async def refused(path: Path, kind: type[PerdureError], *, migrate: bool = True, vfs: str | None = None) -> str:
    """What opening this file is answered with, having left everything as it was."""
    before = snapshot(path.parent) if path.parent.is_dir() else None
    store = SqliteStore(str(path), vfs=vfs)
    with pytest.raises(kind) as caught:
        await store.open(migrate=migrate)
    assert before is None or snapshot(path.parent) == before
    with pytest.raises(StoreUnavailable, match="closed"):
        await write(store, History("r1").begin())
    return str(caught.value)


async def make(path: Path) -> None:
    """A store with one run in it."""
    store = SqliteStore(str(path))
    await store.open(migrate=True)
    await write_all(store, History("r1").begin())
    await store.close()


def foreign(path: Path, mode: str) -> apsw.Connection:
    """A database of somebody else."""
    db = apsw.Connection(str(path))
    db.pragma("journal_mode", mode)
    db.execute("create table customers (name); insert into customers values ('Zoë')")
    return db


@pytest.mark.parametrize(
    "content",
    [b"x", b"hello, world\n" * 1000, b"\x89PNG\r\n\x1a\n" + bytes(5000), bytes(8192), b"SQLite format 2\0" * 9],
)
async def test_a_file_that_is_no_database_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    message = await refused(path, NotAStore)
    assert "it is not an SQLite database" in message
    assert "name another file" in message


async def test_a_directory_is_refused(path: Path) -> None:
    path.mkdir()
    assert "it is a directory; name another file" in await refused(path, NotAStore)


@pytest.mark.parametrize("mode", ["delete", "wal"])
async def test_a_database_of_another_application_is_refused(path: Path, mode: str) -> None:
    foreign(path, mode).close()
    message = await refused(path, NotAStore)
    assert "of another application; name another file" in message


async def test_a_database_that_another_application_has_open_is_refused(path: Path) -> None:
    db = foreign(path, "wal")  # its rows are in the write-ahead log only
    message = await refused(path, NotAStore)
    assert "of another application" in message
    assert db.execute("select name from customers").get == "Zoë"
    db.close()


async def test_a_database_that_another_application_left_in_a_crash_is_refused(path: Path, tmp_path: Path) -> None:
    db = foreign(tmp_path / "theirs.db", "wal")
    for suffix in ("", "-wal"):
        Path(f"{path}{suffix}").write_bytes(Path(f"{tmp_path / 'theirs.db'}{suffix}").read_bytes())
    db.close()
    store = SqliteStore(str(path))
    before = {suffix: Path(f"{path}{suffix}").read_bytes() for suffix in ("", "-wal")}
    with pytest.raises(NotAStore, match="another application"):
        await store.open(migrate=True)
    assert {suffix: Path(f"{path}{suffix}").read_bytes() for suffix in ("", "-wal")} == before


async def test_a_store_of_a_newer_version_is_refused(path: Path) -> None:
    await make(path)
    with apsw.Connection(str(path)) as db:
        db.pragma("user_version", len(MIGRATIONS) + 1)
    db.close()
    message = await refused(path, SchemaMismatch)
    assert "upgrade perdure" in message


async def test_a_store_of_a_newer_version_that_is_open_elsewhere_is_refused(path: Path) -> None:
    await make(path)
    db = apsw.Connection(str(path))
    db.pragma("user_version", len(MIGRATIONS) + 1)
    message = await refused(path, SchemaMismatch)
    assert f"has schema {len(MIGRATIONS) + 1}, and this perdure works with schema {len(MIGRATIONS)}" in message
    db.close()


async def test_a_client_migrates_nothing(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.pragma("application_id", APPLICATION_ID)
    db.close()
    message = await refused(path, SchemaMismatch, migrate=False)
    assert "open it once with an Engine" in message


async def test_a_directory_that_does_not_exist_is_named(tmp_path: Path) -> None:
    message = await refused(tmp_path / "missing" / "runs.db", InvalidStoreUrl)
    assert f"the directory {tmp_path / 'missing'} does not exist; create it first" in message
    assert not (tmp_path / "missing").exists()


async def test_a_client_creates_no_file(path: Path) -> None:
    message = await refused(path, InvalidStoreUrl, migrate=False)
    assert "there is no such file; start a run with an Engine to create it" in message


@pytest.mark.parametrize("content", [b"", None])
async def test_an_empty_file_becomes_a_store(path: Path, content: bytes | None) -> None:
    if content is None:  # a database that has no tables
        db = apsw.Connection(str(path))
        db.pragma("journal_mode", "wal")
        db.close()
    else:
        path.write_bytes(content)
    await make(path)
    with apsw.Connection(str(path)) as db:
        assert (db.pragma("application_id"), db.pragma("user_version")) == (APPLICATION_ID, len(MIGRATIONS))
    db.close()


async def test_a_store_says_which_migrations_it_has(path: Path) -> None:
    await make(path)
    with apsw.Connection(str(path)) as db:
        found = db.execute("select number, name, length(checksum) from perdure_migrations").fetchall()
    db.close()
    assert found == [(one.number, one.name, 64) for one in MIGRATIONS]


# --- files that may not be written --------------------------------------------------------------------------------


class Protected(apsw.VFS):
    """A disk on which files may only be read. Permissions of real files mean nothing to root."""

    def __init__(self) -> None:
        super().__init__("protected", "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        flags[0] = flags[0] & ~(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE) | apsw.SQLITE_OPEN_READONLY
        return super().xOpen(name, flags)


@pytest.fixture
def protected() -> Iterator[str]:
    vfs = Protected()
    yield "protected"
    vfs.unregister()


async def test_a_read_only_file_is_refused(path: Path, protected: str) -> None:
    await make(path)
    keep = SqliteStore(str(path))  # with its log and index in place, a file can be read without writing
    await keep.open(migrate=True)
    message = await refused(path, StoreUnavailable, vfs=protected)
    assert "read-only; make both writable, or name another file" in message
    await keep.close()


async def test_a_read_only_file_can_be_looked_at(path: Path, protected: str) -> None:
    await make(path)
    keep = SqliteStore(str(path))
    await keep.open(migrate=True)
    store = SqliteStore(str(path), vfs=protected)
    await store.open(migrate=False)
    assert [batch.seq for batch in await store.journal.read("r1")] == [0]
    with pytest.raises(StoreUnavailable, match="read-only; make both writable"):
        await write(store, History("r2").begin())
    await store.close()
    await keep.close()


async def test_a_read_only_directory_is_refused(path: Path, protected: str) -> None:
    path.write_bytes(b"")
    message = await refused(path, StoreError, vfs=protected)
    assert "read-only" in message


async def test_an_unreadable_file_is_refused(path: Path) -> None:
    os.symlink(path.parent / "nowhere" / "runs.db", path)  # leads to a directory that does not exist
    message = await refused(path, StoreUnavailable)
    assert "check that it is a file you may read and write" in message
