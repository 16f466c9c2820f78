"""SQLite files of older schemas: brought up to date with what they hold, and shared with code that is still older."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
import time
from pathlib import Path

import apsw
import msgspec
import pytest

from perdure.errors import Corrupt, SchemaMismatch
from perdure.kernel.events import NULL, StepStarted, StepSucceeded, encode_events
from perdure.ports.journal import Append
from perdure.ports.upkeep import Collected
from perdure.stores.sqlite import migrating
from perdure.stores.sqlite.journal import INSERT_RUN
from perdure.stores.sqlite.migrating import APPLICATION_ID, MIGRATIONS
from perdure.stores.sqlite.store import SqliteStore
from perdure.stores.sqlshared.entries import checksum
from perdure.stores.sqlshared.rows import run_bindings
from perdure.stores.sqlshared.schema import migration
from perdure.testing.conformance.history import History, finished, write_all


class FirstSchema:
    """A store as the code of the first schema knows it, statement by statement."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.db = apsw.Connection(str(path))
        self.db.pragma("journal_mode", "wal")
        if create:
            first = MIGRATIONS[0]
            self.db.execute(first.sql)
            applied = (1, first.name, first.checksum, 1.0)
            self.db.execute("insert into perdure_migrations values (?, ?, ?, ?)", applied)
            self.db.pragma("user_version", 1)
            self.db.pragma("application_id", APPLICATION_ID)

    def put(self, data: bytes) -> str:
        id = hashlib.sha256(data).hexdigest()
        self.db.execute("insert into perdure_blobs (id, data) values (?, ?) on conflict (id) do nothing", (id, data))
        return id

    def append(self, append: Append) -> None:
        run_id, batch = append.run_id, append.batches[0]
        data = encode_events(batch.events)
        entry = (run_id, batch.seq, batch.at, checksum(run_id, batch.seq, batch.at, data), data.decode())
        with self.db:
            self.db.execute(
                "insert into perdure_heads (run_id, next_seq, at, size) values (?1, ?2, ?3, ?4) on conflict (run_id) "
                "do update set next_seq = ?2, at = ?3, size = size + ?4",
                (run_id, append.next_seq, batch.at, len(data)),
            )
            self.db.execute(
                "insert into perdure_journal (run_id, seq, at, checksum, events) values (?, ?, ?, ?, ?)", entry
            )
            assert append.row is not None
            self.db.execute("delete from perdure_runs where run_id = ?", (run_id,))
            self.db.execute(INSERT_RUN, run_bindings(append.row))


async def opened(path: Path) -> SqliteStore:
    store = SqliteStore(str(path))
    await store.open(migrate=True)
    return store


async def test_a_file_of_the_first_schema_is_brought_up_to_date_with_its_runs(path: Path) -> None:
    old, history = FirstSchema(path), History("r1")
    old.append(history.begin_as("node-1"))
    before = old.db.execute("select * from perdure_runs").fetchall()
    old.db.close()
    store = await opened(path)
    await write_all(store, history.then(StepStarted("w:0")), history.then(finished()))
    assert [len(batch.events) for batch in await store.journal.read("r1")] == [2, 1, 1]
    await store.close()
    db = apsw.Connection(str(path))
    assert db.pragma("user_version") == len(MIGRATIONS)
    assert db.execute("select run_id, id from perdure_runs").fetchall() == [row[:2] for row in before]
    db.close()


async def test_blobs_that_old_journals_refer_to_are_known_after_the_migration(path: Path) -> None:
    old, history = FirstSchema(path), History("r1")
    blob, by_hand = old.put(b"a result"), old.put(b"put by hand")
    old.append(history.begin_as("n", StepStarted("w:0"), StepSucceeded("w:0", NULL, blob=blob)))
    old.db.close()
    store = await opened(path)
    assert await store.upkeep.collect(0, 100) == Collected(0, 0)
    await write_all(store, history.then(finished()))
    await store.upkeep.remove(["r1"])
    assert await store.upkeep.collect(0, 100) == Collected(1, 8)
    assert await store.blobs.get(blob) is None
    assert await store.blobs.get(by_hand) == b"put by hand", "nobody knows what refers to it"
    await store.close()


async def test_code_of_the_first_schema_that_goes_on_writing_loses_nothing(path: Path) -> None:
    old = FirstSchema(path)
    store = await opened(path)
    blob, history = old.put(b"a result"), History("r1")
    old.append(history.begin_as("n", StepStarted("w:0"), StepSucceeded("w:0", NULL, blob=blob)))
    assert await store.upkeep.collect(0, 100) == Collected(0, 0)
    assert await store.blobs.get(blob) == b"a result"
    old.append(history.then(finished()))
    await store.upkeep.remove(["r1"])
    # Somebody is about to refer to it once more, and does not say that it was put again.
    await store.upkeep.collect(3600, 100)
    store_db = apsw.Connection(str(path))
    store_db.execute("update perdure_blob_puts set put_at = 1.0")
    old.put(b"a result")
    assert await store.upkeep.collect(3600, 100) == Collected(0, 0)
    again = History("r2", input=NULL, input_blob=blob)
    old.append(again.begin())
    assert await store.upkeep.collect(0, 100) == Collected(0, 0)
    assert await store.blobs.get(blob) == b"a result"
    at = store_db.execute("select put_at from perdure_blob_puts").get
    assert isinstance(at, float)
    assert abs(at - time.time()) < 3600, "the clock of a trigger is the clock of the machine"
    store_db.close()
    old.db.close()
    await store.close()


async def test_nothing_is_collected_while_an_old_journal_cannot_be_read(path: Path) -> None:
    old, history = FirstSchema(path), History("r1")
    blob = old.put(b"x")
    old.append(history.begin_as("n", StepStarted("w:0"), StepSucceeded("w:0", NULL, blob=blob)))
    old.db.execute("update perdure_journal set events = substr(events, 2)")
    old.db.close()
    store = await opened(path)
    unused = await store.blobs.put(b"unused")
    with pytest.raises(Corrupt, match="the journal of run_id r1"):
        await store.upkeep.collect(0, 100)
    assert await store.blobs.get(unused) == b"unused"
    await store.close()


# --- a database that is newer than the code -----------------------------------------------------------------------


@pytest.fixture
def newer(path: Path, monkeypatch: pytest.MonkeyPatch) -> apsw.Connection:
    """A file that a newer perdure has migrated, which says that it works with this one."""
    known = list(MIGRATIONS)
    mild = migration(f"{len(known) + 1:04}_more.sql", f"-- works with: {len(known)}\ncreate table more (x);")
    monkeypatch.setattr(migrating, "MIGRATIONS", [*known, mild])
    store = SqliteStore(str(path))
    store._database.open(migrate=True)
    store._database.close()
    monkeypatch.setattr(migrating, "MIGRATIONS", known)
    return apsw.Connection(str(path))


async def test_code_works_on_a_newer_database_that_says_so(path: Path, newer: apsw.Connection) -> None:
    store = await opened(path)
    await write_all(store, History("r1").begin())
    await store.close()
    client = SqliteStore(str(path))
    await client.open(migrate=False)
    assert len(await client.journal.read("r1")) == 1
    await client.close()
    assert newer.pragma("user_version") == len(MIGRATIONS) + 1
    newer.close()


async def test_code_is_refused_by_a_newer_database_that_shuts_it_out(path: Path, newer: apsw.Connection) -> None:
    newer.execute("update perdure_migrations set works_with = number where number > ?", (len(MIGRATIONS),))
    newer.close()
    for migrate in (True, False):
        with pytest.raises(SchemaMismatch, match="upgrade perdure"):
            await SqliteStore(str(path)).open(migrate=migrate)


async def test_a_file_whose_migration_is_another_one_is_refused(path: Path) -> None:
    await (await opened(path)).close()
    db = apsw.Connection(str(path))
    db.execute("update perdure_migrations set checksum = 'other' where number = 1")
    db.close()
    with pytest.raises(
        SchemaMismatch, match="0001_initial is not the one that this version of perdure has under that number"
    ):
        await SqliteStore(str(path)).open(migrate=True)


# --- perdure migrate ----------------------------------------------------------------------------------------------


async def test_a_file_that_is_not_there_needs_every_migration(path: Path) -> None:
    migrations = SqliteStore(str(path)).migrations
    assert list(await migrations.applied()) == []
    assert list(await migrations.pending()) == MIGRATIONS
    assert list(await migrations.apply(dry_run=True)) == MIGRATIONS
    assert not path.exists()
    assert list(await migrations.apply()) == MIGRATIONS
    assert list(await migrations.apply()) == []
    assert [one.number for one in await migrations.applied()] == [one.number for one in MIGRATIONS]
    store = SqliteStore(str(path))
    await store.open(migrate=False)
    await store.close()


async def test_trying_a_migration_leaves_the_file_as_it_was(path: Path) -> None:
    old = FirstSchema(path)
    old.append(History("r1").begin())
    old.db.close()
    before = path.read_bytes()
    migrations = SqliteStore(str(path)).migrations
    assert [one.number for one in await migrations.apply(dry_run=True)] == [one.number for one in MIGRATIONS[1:]]
    assert path.read_bytes() == before


async def test_the_script_does_what_migrating_does(path: Path, tmp_path: Path) -> None:
    FirstSchema(path).db.close()
    by_hand = apsw.Connection(str(path))
    by_hand.execute(await SqliteStore(str(path)).migrations.sql())
    by_hand.close()
    other = tmp_path / "other.db"
    await SqliteStore(str(other)).migrations.apply()
    dumps = []
    for file in (path, other):
        db = apsw.Connection(str(file))
        schema = db.execute("select type, name, sql from sqlite_schema order by name").fetchall()
        rows = db.execute("select number, name, checksum, works_with from perdure_migrations").fetchall()
        dumps.append((schema, rows, db.pragma("user_version"), db.pragma("application_id")))
        db.close()
    assert dumps[0] == dumps[1]
    assert await SqliteStore(str(path)).migrations.sql() == ""


async def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await (await opened(path)).close()
    before = path.read_bytes()
    broken = migration(f"{len(MIGRATIONS) + 1:04}_broken.sql", "create table more (x); select no_such_function();")
    monkeypatch.setattr(migrating, "MIGRATIONS", [*MIGRATIONS, broken])
    with pytest.raises(Corrupt, match="no_such_function"):
        await SqliteStore(str(path)).migrations.apply()
    assert path.read_bytes() == before


async def test_processes_that_migrate_at_once_do_it_once(path: Path) -> None:
    old = FirstSchema(path)
    old.append(History("r1").begin())
    command = [sys.executable, "-m", "perdure.cli", "migrate", "--json", "--store", f"sqlite:///{path}"]
    processes = [await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE) for _ in range(4)]
    told = [msgspec.json.decode((await process.communicate())[0])["applied"] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert sorted(told) == [[], [], [], [one.name for one in MIGRATIONS[1:]]]
    assert old.db.execute("select number from perdure_migrations").fetchall() == [(one.number,) for one in MIGRATIONS]
    old.db.close()
    store = await opened(path)
    assert len(await store.journal.read("r1")) == 1
    await store.close()


# --- by hand ---------------------------------------------------------------------------------------------------------

FILES = [Path(migrating.__file__).parent / "migrations" / f"{one.name}.sql" for one in migrating.MIGRATIONS]


def shell(path: Path, *files: Path) -> list[int]:
    """Feed files to SQLite's shell, and say how it ended each time."""
    command = [sys.executable, "-m", "apsw", str(path)]
    return [subprocess.run(command, input=file.read_bytes(), capture_output=True).returncode for file in files]


def test_the_files_are_what_their_migrations_say() -> None:
    assert [file.read_text() for file in FILES] == [migrating.file_of(one) for one in migrating.MIGRATIONS]


async def test_the_files_can_be_applied_by_hand_one_after_the_other(path: Path) -> None:
    migrations = SqliteStore(str(path)).migrations
    for number, file in enumerate(FILES, 1):
        assert shell(path, file) == [0]
        assert [one.number for one in await migrations.applied()] == list(range(1, number + 1))
    assert list(await migrations.apply()) == []
    store = SqliteStore(str(path))
    await store.open(migrate=True)
    await write_all(store, History("r1").begin())
    await store.close()


async def test_some_files_by_hand_and_the_rest_by_an_engine(path: Path) -> None:
    assert shell(path, *FILES[:2]) == [0, 0]
    store = SqliteStore(str(path))
    await store.open(migrate=True)
    await write_all(store, History("r1").begin())
    await store.close()
    assert [one.number for one in await store.migrations.applied()] == list(range(1, len(FILES) + 1))


async def test_files_that_are_applied_twice_or_out_of_order_change_nothing(path: Path) -> None:
    migrations = SqliteStore(str(path)).migrations
    assert shell(path, FILES[0]) == [0]
    assert 0 not in shell(path, *FILES[2:])
    assert [one.number for one in await migrations.applied()] == [1]
    assert shell(path, *FILES[1:]) == [0] * (len(FILES) - 1)
    assert 0 not in shell(path, *FILES)
    assert [one.number for one in await migrations.applied()] == list(range(1, len(FILES) + 1))
    assert list(await migrations.pending()) == []
