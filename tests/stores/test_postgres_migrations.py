"""Migrations of a PostgreSQL store: applied once whoever comes, tried without a trace, and as a script for people."""

from __future__ import annotations

import asyncio

import pytest

from perdure.errors import SchemaMismatch
from perdure.stores.postgres import migrating, store
from perdure.stores.postgres.store import PostgresStore
from perdure.stores.sql.schema import migration
from perdure.testing.conformance.history import History, write_all
from tests.stores.postgres import opened, sql

TABLES = "select tablename from pg_tables where schemaname = 'flows' order by 1"


@pytest.fixture
def url(postgres_url: str) -> str:
    return f"{postgres_url}?schema=flows&table_prefix=Of_"


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


async def test_the_script_does_what_applying_does(url: str, postgres_url: str) -> None:
    migrations = PostgresStore(url).migrations
    script = await migrations.sql()
    await _execute(postgres_url, script)
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


async def test_an_older_store_is_not_migrated_by_opening_it(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(postgres_url):
        pass
    name = f"{len(migrating.MIGRATIONS) + 1:04}_later"
    later = migration(f"{name}.sql", "-- works with: 1\ncreate table perdure_later (x int);")
    known = [*migrating.MIGRATIONS, later]
    monkeypatch.setattr(migrating, "MIGRATIONS", known)
    monkeypatch.setattr(store, "MIGRATIONS", known)
    for migrate in (True, False):
        with pytest.raises(SchemaMismatch, match=r"bring it up to date with `perdure migrate --store postgresql://"):
            await PostgresStore(postgres_url).open(migrate=migrate)
    assert [one.name for one in await PostgresStore(postgres_url).ensure_schema()] == [name]
    async with opened(postgres_url):
        pass
    # The version before works on it too, since the migration says so.
    monkeypatch.undo()
    async with opened(postgres_url) as before:
        await write_all(before, History("r1").begin())


async def test_an_engine_migrates_an_older_store_when_its_url_says_so(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(migrating, "MIGRATIONS", migrating.MIGRATIONS[:1])
        await PostgresStore(postgres_url).migrations.apply()
    for options in ("", "?migrate=false"):
        with pytest.raises(SchemaMismatch, match="perdure migrate --store"):
            await PostgresStore(f"{postgres_url}{options}").open(migrate=True)
    with pytest.raises(SchemaMismatch, match="perdure migrate --store"):
        # A client changes no schema, whatever engines may do.
        await PostgresStore(f"{postgres_url}?migrate=true").open(migrate=False)
    async with opened(f"{postgres_url}?migrate=true") as store:
        await write_all(store, History("r1").begin())
        assert list(await store.migrations.pending()) == []


async def test_an_engine_sets_no_store_up_where_it_may_not(url: str) -> None:
    with pytest.raises(SchemaMismatch, match="set the store up with `perdure migrate --store"):
        await PostgresStore(f"{url}&migrate=false").open(migrate=True)
    await PostgresStore(f"{url}&migrate=false").migrations.apply()
    async with opened(f"{url}&migrate=false") as store:
        await write_all(store, History("r1").begin())


async def test_settings_of_the_session_in_the_url_go_before_ours(postgres_url: str) -> None:
    async with opened(f"{postgres_url}?application_name=shop&jit=on") as store:
        rows = await store._database.ask("select current_setting('application_name'), current_setting('jit')")
        assert [tuple(row) for row in rows] == [("shop", "on")]
