"""A store on the connections of a pool that the application has made."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import pytest

from perdure import Engine, connect, step, wait_signal, workflow
from perdure.errors import SchemaMismatch, StoreUnavailable, UsageError
from perdure.stores.postgres.config import PostgresConfig
from perdure.stores.postgres.store import PostgresStore
from perdure.testing.conformance.history import History, write_all
from perdure.testing.conformance.history import step as steps
from tests.patience import PATIENCE
from tests.stores.postgres import sql


@step
async def work(number: int) -> int:
    return number


@workflow
async def flow(count: int) -> int:
    return sum([await work(number) for number in range(count)])


@workflow
async def waiting() -> str:
    return str(await wait_signal("go"))


@pytest.fixture
async def pool(postgres_url: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=8) as pool:
        yield pool


async def test_an_engine_works_on_the_pool_and_leaves_it_as_it_was(pool: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the driver warns of listeners that are left behind
        for number in range(2):
            async with Engine(PostgresStore.from_pool(pool), [flow, waiting]) as engine:
                assert (await engine.run(flow(5), id=f"r{number}")).output == 10
                handle = await engine.start(waiting(), id=f"w{number}")
                async with connect(PostgresStore.from_pool(pool)) as client:
                    await client.signal(f"w{number}", "go", "on")
                assert await handle.result(PATIENCE) == "on"
            assert pool.get_size() - pool.get_idle_size() == 0, "all connections are back"
    async with pool.acquire() as mine:
        assert await mine.fetchval("select current_setting('enable_seqscan')") == "on"
        assert await mine.fetchval("select count(*) from perdure_runs") == 4


async def lent(pool: Any, count: int) -> None:
    """Wait until so many connections are in use."""
    async with asyncio.timeout(PATIENCE):
        while pool.get_size() - pool.get_idle_size() != count:
            await asyncio.sleep(0)


async def test_connections_for_reading_at_once_go_back_when_they_are_not_needed(pool: Any) -> None:
    store = PostgresStore.from_pool(pool)
    await store.open(migrate=True)
    for _ in range(3):
        await asyncio.gather(*(store.journal.head(f"r{number}") for number in range(20)))
        await lent(pool, 3)
    reads = [asyncio.ensure_future(store.journal.head(f"r{number}")) for number in range(20)]
    await lent(pool, 6)
    for read in reads[::2]:
        read.cancel()
    await asyncio.gather(*reads, return_exceptions=True)
    await store.journal.head("r1")
    await lent(pool, 3)
    await asyncio.gather(*(store.journal.head(f"r{number}") for number in range(20)))
    await store.close()
    assert pool.get_size() - pool.get_idle_size() == 0, "also those that were on their way back"


async def test_stores_share_a_pool_that_has_one_connection_to_spare(postgres_url: str) -> None:
    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=7) as pool:
        stores = [PostgresStore.from_pool(pool) for _ in range(2)]
        for store in stores:
            await store.open(migrate=True)
        runs = [History(f"r{number}") for number in range(10)]
        for _ in range(3):
            await asyncio.gather(*(store.journal.head(run.run_id) for store in stores for run in runs))
        await asyncio.gather(*(write_all(stores[number % 2], run.begin()) for number, run in enumerate(runs)))
        for store in stores:
            heads = await asyncio.gather(*(store.journal.head(run.run_id) for run in runs))
            assert all(head is not None for head in heads)
            await store.close()
        assert pool.get_size() - pool.get_idle_size() == 0


async def test_the_store_and_the_application_share_the_pool(pool: Any) -> None:
    async with Engine(PostgresStore.from_pool(pool), [flow]) as engine:

        async def ask(number: int) -> int:
            async with pool.acquire() as mine:
                return int(await mine.fetchval("select $1::int", number))

        runs = [engine.run(flow(3), id=f"r{number}") for number in range(20)]
        asked = asyncio.gather(*(ask(number) for number in range(50)))
        assert [one.output for one in await asyncio.gather(*runs)] == [3] * 20
        assert await asked == list(range(50))


async def test_the_options_are_those_of_the_url(pool: Any, postgres_url: str) -> None:
    with pytest.raises(SchemaMismatch, match="the schema flows does not exist"):
        await PostgresStore.from_pool(pool, schema="flows", table_prefix="of_", migrate=False).open(migrate=True)
    store = PostgresStore.from_pool(pool, schema="flows", table_prefix="of_")
    await store.migrations.apply()
    await store.open(migrate=True)
    await write_all(store, History("r1").begin())
    await store.close()
    assert [tuple(row) for row in await sql(postgres_url, "select run_id from flows.of_heads")] == [("r1",)]
    assert pool.get_size() - pool.get_idle_size() == 0


async def test_connections_that_end_are_replaced(pool: Any, postgres_url: str) -> None:
    store = PostgresStore.from_pool(pool)
    await store.open(migrate=True)
    run = History("r1")
    await write_all(store, run.begin())
    for number in range(3):
        await sql(
            postgres_url,
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where pid <> pg_backend_pid() and datname = current_database()",
        )
        await write_all(store, run.then(*steps(number)))
        head = await store.journal.head("r1")
        assert head is not None
        assert head.next_seq == 3 + 2 * number
    await store.close()
    assert pool.get_size() - pool.get_idle_size() == 0


async def test_a_pool_that_cannot_do_is_refused(postgres_url: str) -> None:
    with pytest.raises(UsageError, match="max_size=3, and perdure needs 4 connections"):
        PostgresStore.from_pool(asyncpg.create_pool(postgres_url, min_size=1, max_size=3))
    with pytest.raises(UsageError, match=r"give the pool that asyncpg.create_pool\(\) returns"):
        PostgresStore.from_pool(postgres_url)
    with pytest.raises(UsageError, match="table_prefix"):
        PostgresStore.from_pool(asyncpg.create_pool(postgres_url), table_prefix="a b")
    with pytest.raises(UsageError, match=r"is not open; write `async with asyncpg.create_pool"):
        await PostgresStore.from_pool(asyncpg.create_pool(postgres_url)).open(migrate=True)
    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=4) as closed:
        pass
    with pytest.raises(UsageError, match="open the engine or the client in that block"):
        await PostgresStore.from_pool(closed).open(migrate=True)
    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=4) as pool:
        taken = [await pool.acquire() for _ in range(4)]
        with pytest.raises(StoreUnavailable, match=r"no free connection for 0.1 s; raise its max_size"):
            store = PostgresStore.from_pool(pool)
            store._database.config = PostgresConfig(connect=0.1)
            await store.open(migrate=True)
        for one in taken:
            await pool.release(one)
