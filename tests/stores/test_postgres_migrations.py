"""Migrations of a PostgreSQL store: applied once whoever comes, tried without a trace, and as a script for people."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from perdure.errors import SchemaMismatch
from perdure.stores.postgres import migrating, store
from perdure.stores.postgres.store import PostgresStore
from perdure.stores.sqlshared.schema import migration
from perdure.testing.conformance.history import History, write_all
from tests.services.binaries import binaries
from tests.stores.postgres import opened, sql

TABLES = "select tablename from pg_tables where schemaname = 'flows' order by 1"


@pytest.fixture
def url(bare_url: str) -> str:
    return f"{bare_url}?schema=flows&table_prefix=Of_"


async def test_a_store_is_set_up_with_its_schema(url: str) -> None:
    migrations = PostgresStore(url).migrations
    assert list(await migrations.applied()) == []
    assert [one.name for one in await migrations.pending()] == [one.name for one in migrating.MIGRATIONS]
    assert [one.name for one in await migrations.apply()] == [one.name for one in migrating.MIGRATIONS]
    assert [one.name for one in await migrations.applied()] == [one.name for one in migrating.MIGRATIONS]
    assert list(await migrations.apply()) == []
    assert all(table.startswith("Of_") for (table,) in await sql(url, TABLES))


async def test_a_dry_run_leaves_nothing_behind(url: str) -> None:
    migrations = PostgresStore(url).migrations
    assert len(await migrations.apply(dry_run=True)) == len(migrating.MIGRATIONS)
    assert await sql(url, "select 1 from pg_namespace where nspname = 'flows'") == []


async def test_of_many_that_migrate_at_once_one_does_it(url: str) -> None:
    done = await asyncio.gather(*(PostgresStore(url).migrations.apply() for _ in range(8)))
    assert sorted(len(one) for one in done) == [0] * 7 + [len(migrating.MIGRATIONS)]


async def test_the_script_does_what_applying_does(url: str, bare_url: str) -> None:
    migrations = PostgresStore(url).migrations
    script = await migrations.sql()
    await _execute(bare_url, script)
    assert list(await migrations.pending()) == []
    assert await migrations.sql() == ""
    async with opened(url, migrate=False) as by_hand:
        await write_all(by_hand, History("r1").begin())


async def _execute(url: str, script: str) -> None:
    import asyncpg  # type: ignore[import-untyped]

    connection = await asyncpg.connect(url)
    try:
        await connection.execute(script)
    finally:
        await connection.close()


async def test_an_older_store_is_not_migrated_by_opening_it(bare_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(bare_url):
        pass
    name = f"{len(migrating.MIGRATIONS) + 1:04}_later"
    later = migration(f"{name}.sql", "-- works with: 1\ncreate table perdure_later (x int);")
    known = [*migrating.MIGRATIONS, later]
    monkeypatch.setattr(migrating, "MIGRATIONS", known)
    monkeypatch.setattr(store, "MIGRATIONS", known)
    for migrate in (True, False):
        with pytest.raises(SchemaMismatch, match=r"bring it up to date with `perdure migrate --store postgresql://"):
            await PostgresStore(bare_url).open(migrate=migrate)
    assert [one.name for one in await PostgresStore(bare_url).ensure_schema()] == [name]
    async with opened(bare_url):
        pass
    # The version before works on it too, since the migration says so.
    monkeypatch.undo()
    async with opened(bare_url) as before:
        await write_all(before, History("r1").begin())


async def test_an_engine_migrates_an_older_store_when_its_url_says_so(
    bare_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(migrating, "MIGRATIONS", migrating.MIGRATIONS[:1])
        await PostgresStore(bare_url).migrations.apply()
    for options in ("", "?migrate=false"):
        with pytest.raises(SchemaMismatch, match="perdure migrate --store"):
            await PostgresStore(f"{bare_url}{options}").open(migrate=True)
    with pytest.raises(SchemaMismatch, match="perdure migrate --store"):
        # A client changes no schema, whatever engines may do.
        await PostgresStore(f"{bare_url}?migrate=true").open(migrate=False)
    async with opened(f"{bare_url}?migrate=true") as store:
        await write_all(store, History("r1").begin())
        assert list(await store.migrations.pending()) == []


async def test_an_engine_sets_no_store_up_where_it_may_not(url: str) -> None:
    with pytest.raises(SchemaMismatch, match="set the store up with `perdure migrate --store"):
        await PostgresStore(f"{url}&migrate=false").open(migrate=True)
    await PostgresStore(f"{url}&migrate=false").migrations.apply()
    async with opened(f"{url}&migrate=false") as store:
        await write_all(store, History("r1").begin())


async def test_settings_of_the_session_in_the_url_go_before_ours(bare_url: str) -> None:
    async with opened(f"{bare_url}?application_name=shop&jit=on") as store:
        rows = await store._database.query("select current_setting('application_name'), current_setting('jit')")
        assert [tuple(row) for row in rows] == [("shop", "on")]


# --- by hand ---------------------------------------------------------------------------------------------------------

FILES = [Path(migrating.__file__).parent / "migrations" / f"{one.name}.sql" for one in migrating.MIGRATIONS]


def psql(url: str, *files: Path, schema: str = "public") -> str:
    """What `psql -f` says to these files."""
    program = binaries("postgres") / "psql"
    said = []
    for file in files:
        done = subprocess.run(
            [str(program) if program.exists() else "psql", url.partition("?")[0], "-f", str(file)],
            env={**os.environ, "PGOPTIONS": f"-c search_path={schema}"},
            capture_output=True,
            text=True,
            check=True,
        )
        said.append(done.stdout + done.stderr)
    return "\n".join(said)


async def test_the_files_are_what_their_migrations_say() -> None:
    assert [file.read_text() for file in FILES] == [migrating.file_of(one) for one in migrating.MIGRATIONS]


async def test_the_files_can_be_applied_by_hand_one_after_the_other(bare_url: str) -> None:
    migrations = PostgresStore(bare_url).migrations
    for number, file in enumerate(FILES, 1):
        assert "ERROR" not in psql(bare_url, file)
        assert [one.number for one in await migrations.applied()] == list(range(1, number + 1))
        assert len(await migrations.pending()) == len(FILES) - number
    assert list(await migrations.apply()) == []
    async with opened(bare_url) as store:
        await write_all(store, History("r1").begin())


async def test_some_files_by_hand_and_the_rest_by_the_command(bare_url: str) -> None:
    psql(bare_url, FILES[0])
    applied = await PostgresStore(bare_url).migrations.apply()
    assert [one.number for one in applied] == list(range(2, len(FILES) + 1))
    async with opened(bare_url) as store:
        await write_all(store, History("r1").begin())


async def test_files_that_are_applied_twice_or_out_of_order_change_nothing(bare_url: str) -> None:
    assert "ERROR" in psql(bare_url, *FILES[1:])
    assert list(await PostgresStore(bare_url).migrations.applied()) == []
    psql(bare_url, FILES[0])
    assert "ERROR" in psql(bare_url, FILES[2])
    assert [one.number for one in await PostgresStore(bare_url).migrations.applied()] == [1]
    psql(bare_url, *FILES[1:])
    async with opened(bare_url) as store:
        await write_all(store, History("r1").begin())
    assert psql(bare_url, *FILES).count("ROLLBACK") == len(FILES)
    async with opened(bare_url) as store:
        assert await store.journal.head("r1") is not None


async def test_the_files_serve_another_schema_and_another_prefix(bare_url: str, tmp_path: Path) -> None:
    await sql(bare_url, "create schema flows")
    for file in FILES:
        (tmp_path / file.name).write_text(file.read_text().replace("perdure_", "of_"))
    psql(bare_url, *(tmp_path / file.name for file in FILES), schema="flows")
    by_hand = f"{bare_url}?schema=flows&table_prefix=of_"
    assert list(await PostgresStore(by_hand).migrations.pending()) == []
    async with opened(by_hand) as store:
        await write_all(store, History("r1").begin())


async def test_tables_without_a_note_of_their_migration_are_left_alone(bare_url: str) -> None:
    await sql(bare_url, "create table perdure_journal (x int)")
    for migrate in (PostgresStore(bare_url).migrations.apply(), PostgresStore(bare_url).open(migrate=True)):
        with pytest.raises(SchemaMismatch, match='"perdure_journal" already exists, and no recorded migration'):
            await migrate
