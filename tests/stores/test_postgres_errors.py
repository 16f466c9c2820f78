"""What people see when something is wrong with their PostgreSQL: the cause, the place, the cure, and no password."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from perdure import Engine, connect, step, workflow
from perdure.errors import InvalidStoreUrl, PerdureError, SchemaMismatch, StoreUnavailable, UsageError
from perdure.kernel.policies.durability import durability
from perdure.stores.postgres.migrating import MIGRATIONS
from perdure.stores.postgres.store import PostgresStore
from perdure.testing.conformance.history import History, numbered, write, write_all
from perdure.testing.conformance.history import step as steps
from tests.services.plugin import Servers
from tests.services.servers import free_port
from tests.stores.postgres import opened, sql

READ_ONLY = (
    "create role looker login password 'pw'",
    "grant usage on schema public to looker",
    "grant select on all tables in schema public to looker",
)


async def refused(url: str, *, migrate: bool = True) -> PerdureError:
    """Why a store cannot be opened."""
    store = PostgresStore(url)
    with pytest.raises(PerdureError) as caught:
        await store.open(migrate=migrate)
    assert f":{urlsplit(url).password}@" not in str(caught.value)
    return caught.value


def instead(url: str, **parts: str | int) -> str:
    """A URL with other parts."""
    old = urlsplit(url)
    user, password = parts.get("user", old.username), parts.get("password", old.password)
    host, port, path = parts.get("host", old.hostname), parts.get("port", old.port), parts.get("path", old.path)
    return f"postgresql://{user}:{password}@{host}:{port}{path}"


async def test_a_server_that_is_not_there(postgres_url: str) -> None:
    error = await refused(instead(postgres_url, port=free_port()))
    assert isinstance(error, StoreUnavailable)
    assert "nothing listens there" in str(error)


async def test_a_host_that_is_not_known(postgres_url: str) -> None:
    error = await refused(instead(postgres_url, host="no-such-host.invalid"))
    assert isinstance(error, StoreUnavailable)
    assert "host" in str(error)


async def test_a_wrong_password(postgres_url: str) -> None:
    error = await refused(instead(postgres_url, password="mistaken"))
    assert isinstance(error, StoreUnavailable)
    assert "check user and password in the URL" in str(error)


async def test_a_database_that_does_not_exist(postgres_url: str) -> None:
    error = await refused(instead(postgres_url, path="/nowhere"))
    assert isinstance(error, InvalidStoreUrl)
    assert 'database "nowhere" does not exist' in str(error)
    assert "createdb" in str(error)


async def test_an_option_that_does_not_exist(postgres_url: str) -> None:
    error = await refused(f"{postgres_url}?flavour=sweet")
    assert isinstance(error, InvalidStoreUrl)
    assert "flavour" in str(error)
    assert "schema, table_prefix, pool and migrate" in str(error)


@pytest.mark.parametrize("url", ["postgresql://u:p/w@host/db", "postgresql://u:pw@host:port/db"])
async def test_a_url_that_cannot_be_understood(url: str) -> None:
    error = await refused(url)
    assert "%2F" in str(error) or "host" in str(error)
    assert "p/w" not in str(error)


async def test_a_client_of_an_empty_database_is_told_how_to_set_it_up(bare_url: str) -> None:
    with pytest.raises(SchemaMismatch, match=r"has no tables of perdure.*`perdure migrate --store postgresql://"):
        _ = await connect(bare_url).open()
    await refused(bare_url, migrate=False)


async def test_a_schema_that_does_not_exist(postgres_url: str) -> None:
    url = f"{postgres_url}?schema=nowhere"
    for migrate in (True, False):
        error = await refused(url, migrate=migrate)
        assert isinstance(error, SchemaMismatch)
        assert "the schema nowhere does not exist" in str(error)
        assert "perdure migrate" in str(error)
    await PostgresStore(url).ensure_schema()
    async with opened(url, migrate=False) as store:
        assert await store.runs.programs() == []


async def test_a_newer_schema_that_shuts_this_version_out(postgres_url: str) -> None:
    async with opened(postgres_url):
        pass
    await sql(
        postgres_url,
        "insert into perdure_migrations "
        "select max(number) + 1, 'later', 'x', max(number) + 1, 0 from perdure_migrations",
    )
    error = await refused(postgres_url)
    assert isinstance(error, SchemaMismatch)
    assert "upgrade perdure" in str(error)
    await sql(postgres_url, "update perdure_migrations set works_with = 1 where name = 'later'")
    async with opened(postgres_url) as store:
        assert await store.runs.programs() == []


async def test_a_changed_migration_is_noticed(postgres_url: str) -> None:
    async with opened(postgres_url):
        pass
    await sql(postgres_url, "update perdure_migrations set checksum = 'other'")
    assert isinstance(await refused(postgres_url), SchemaMismatch)


async def test_a_role_that_may_only_read_can_look_and_not_write(postgres_url: str) -> None:
    run = History("r1")
    async with opened(postgres_url) as store:
        await write_all(store, run.begin())
    await sql(postgres_url, *READ_ONLY)
    url = instead(postgres_url, user="looker", password="pw")
    try:
        async with opened(url, migrate=False) as looking:
            assert len(await numbered(looking.journal, "r1")) == 1
            with pytest.raises(StoreUnavailable, match=r"permission denied for table .*grant") as caught:
                await write(looking, run.then(*steps(0)))
            assert "pw" not in str(caught.value)
        with pytest.raises(StoreUnavailable, match="permission denied"):
            _ = await Engine(url, []).open()
    finally:
        await sql(postgres_url, "drop owned by looker", "drop role looker")


async def test_a_role_that_may_not_create_tables_is_told_what_it_lacks(postgres_url: str) -> None:
    await sql(postgres_url, "revoke create on schema public from public", "create role weak login password 'pw'")
    try:
        error = await refused(instead(postgres_url, user="weak", password="pw"))
        assert isinstance(error, StoreUnavailable)
        assert "grant usage, create on schema" in str(error)
    finally:
        await sql(postgres_url, "drop role weak")


async def test_a_database_that_is_read_only(postgres_url: str) -> None:
    async with opened(postgres_url):
        pass
    url = f"{postgres_url}?default_transaction_read_only=on"
    async with opened(url, migrate=False) as store:
        with pytest.raises(StoreUnavailable, match=r"read-only.*target_session_attrs"):
            await write(store, History("r1").begin())


async def test_a_database_that_cannot_hold_every_text(postgres_url: str) -> None:
    await sql(postgres_url, "create database latin encoding 'LATIN1' template template0 lc_collate 'C' lc_ctype 'C'")
    try:
        error = await refused(instead(postgres_url, path="/latin"))
        assert "LATIN1" in str(error)
        assert "--encoding UTF8" in str(error)
    finally:
        await sql(postgres_url, "drop database latin")


@step
async def work() -> int:
    return 1


@workflow
async def flow() -> int:
    return await work() + await work()


async def test_work_waits_for_a_full_disk_and_goes_on(postgres_url: str) -> None:
    async with Engine(postgres_url, [flow]) as engine:
        await sql(
            postgres_url,
            "create function full_disk() returns trigger language plpgsql as $$ begin "
            "raise exception 'could not extend file' using errcode = '53100'; end $$",
            "create trigger full_disk before insert on perdure_journal execute function full_disk()",
        )
        with pytest.raises(StoreUnavailable, match="disk is full; free some space there"):
            _ = await engine.start(flow(), id="refused")
        await sql(postgres_url, "drop trigger full_disk on perdure_journal")
        run = await engine.start(flow(), id="it")
        assert await run.result() == 2
        assert await engine.store.runs.find("refused") is None


@pytest.mark.parametrize("setting", ["fsync", "synchronous_commit"])
async def test_a_careless_server_cannot_promise_sync(servers: Servers, setting: str) -> None:
    with servers.postgres({setting: "off"}) as server:
        with pytest.raises(UsageError, match=rf"{setting}=off; set it to on .*durability=\"relaxed\""):
            _ = await Engine(server.url, [flow]).open()
        async with Engine(server.url, [flow], durability="relaxed") as engine:
            assert await (await engine.start(flow())).result() == 2
            with pytest.raises(UsageError, match=setting):
                _ = await engine.start(flow(), durability="sync")


async def test_a_careful_server_promises_sync(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        assert store.survives == "power_loss"
        store.check_durability(durability("sync"))
        await sql(postgres_url, "alter database " + urlsplit(postgres_url).path[1:] + " set synchronous_commit = off")
    async with opened(postgres_url) as store:
        assert store.survives == "kill"


async def test_two_processes_that_set_a_store_up_at_once_both_find_it_set_up(postgres_url: str) -> None:
    stores = [PostgresStore(postgres_url) for _ in range(6)]
    await asyncio.gather(*(store.open(migrate=True) for store in stores))
    assert [len(await store.runs.programs()) for store in stores] == [0] * 6
    await asyncio.gather(*(store.close() for store in stores))
    assert len(await sql(postgres_url, "select * from perdure_migrations")) == len(MIGRATIONS)


async def test_a_damaged_row_is_named_and_hides_no_other(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await write_all(store, History("r1").begin(), History("r2").begin())
        await sql(postgres_url, "update perdure_journal set events = '[]' where run_id = 'r1'")
        found = await store.journal.read_many(["r1", "r2"])
        assert isinstance(found["r1"], PerdureError)
        assert isinstance(found["r2"], list)
