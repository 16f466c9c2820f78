"""The servers of one test session: each is started for the first test that asks, and ends with the session.

A server that exists already is used where the environment names it, as for one made by `compose.yaml`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
import urllib.parse
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.services.binaries import ServerMissing
from tests.services.servers import KINDS, Server, ServerFailed, locked, temporary_directory

T = TypeVar("T")

# Servers that exist already, as URLs: PERDURE_TEST_POSTGRES, PERDURE_TEST_REDIS, PERDURE_TEST_ETCD.
EXISTING = "PERDURE_TEST_"

# What a database is made of besides rows: a change of a definition of ours, a setting or the statistics shows in it.
DEFINITIONS = """
    select concat_ws(',',
        (select concat(count(*), ' ', sum(xmin::text::bigint), ' ', sum(reltuples)) from pg_class where oid > 16383),
        (select concat(count(*), ' ', sum(xmin::text::bigint)) from pg_proc where oid > 16383),
        (select concat(count(*), ' ', sum(xmin::text::bigint)) from pg_namespace),
        (select count(*) from pg_db_role_setting join pg_database d on setdatabase = d.oid
            where datname = current_database()),
        (select md5(string_agg(perdure_migrations::text, ',' order by name)) from perdure_migrations))
"""
# Without foreign keys and triggers, so that the order does not matter.
OTHERS = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
EMPTY = """
    select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid();
    set session_replication_role = replica;
    do $$ declare one name; begin
        for one in select tablename from pg_tables
            where schemaname = 'public' and tablename <> 'perdure_migrations'
        loop
            execute format('delete from %I', one);
        end loop;
    end $$;
    select setval('perdure_epochs', 1, false);
"""


class Shared:
    """The servers of a session, which belong to its first process (`watch`) and lie in `directory`."""

    def __init__(self, directory: Path, watch: int) -> None:
        self.directory, self.watch = directory, watch
        # Databases with empty tables, which tests of this process have left.
        self.emptied: list[str] = []

    @classmethod
    def make(cls) -> Shared:
        """For a session that begins, in this process. It costs nothing until somebody asks for a server."""
        return cls(temporary_directory(), os.getpid())

    def server(self, kind: str) -> Server:
        """The server of this kind, started if it has not been. What failed once fails for all, at once."""
        state = self.directory / f"{kind}.json"
        self.directory.mkdir(exist_ok=True)
        with locked(self.directory / f"{kind}.lock"):
            if not state.exists():
                server = KINDS[kind](self.directory / kind, watch=self.watch)
                server.remove = self.directory
                try:
                    told = server.start().describe()
                except (ServerMissing, ServerFailed, OSError) as error:
                    told = {"failed": f"{type(error).__name__}: {error}"}
                state.write_text(json.dumps(told))
            told = json.loads(state.read_text())
        if "failed" in told:
            raise ServerFailed(told["failed"])
        return KINDS[kind].attach(told)

    def end(self) -> None:
        """End those that were started, and leave nothing behind."""
        for kind in KINDS:
            state = self.directory / f"{kind}.json"
            if state.exists() and "failed" not in (told := json.loads(state.read_text())):
                KINDS[kind].attach(told).end()
        shutil.rmtree(self.directory, ignore_errors=True)


def existing(kind: str) -> str | None:
    """The URL of a server that exists already, if the environment names one."""
    return os.environ.get(EXISTING + kind.upper()) or None


@contextmanager
def empty_postgres(shared: Shared, *, tables: bool = False) -> Iterator[str]:
    """The URL of an empty database; with `tables`, of one with the empty tables of a store.

    A copy of tables is made in less time than tables are, and in less still are those of an earlier test emptied,
    unless it changed more than rows.
    """
    # Here, as below, so that sessions without a server do not pay for its library.
    import asyncpg  # type: ignore[import-untyped]

    url = existing("postgres")
    template = "template1"
    if url is None:
        url = shared.server("postgres").url
        if tables:
            template = "tables"

    def at(database: str) -> str:
        return urllib.parse.urlsplit(url)._replace(path=f"/{database}").geturl()

    async def execute(statement: str) -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    async def make_tables() -> str:
        from perdure.stores.postgres.store import PostgresStore

        await execute("create database tables")
        store = PostgresStore(at("tables"))
        await store.open(migrate=True)
        await store.close()
        connection = await asyncpg.connect(at("tables"))
        try:
            return str(await connection.fetchval(DEFINITIONS))
        finally:
            await connection.close()

    async def emptied(name: str) -> bool:
        connection = await asyncpg.connect(at(name))
        try:
            # A session that a test left behind could still write.
            if await connection.fetchval(OTHERS) or await connection.fetchval(DEFINITIONS) != made.read_text():
                return False
            await connection.execute(EMPTY)
            return True
        finally:
            await connection.close()

    made = shared.directory / "tables.made"
    if template == "tables":
        with locked(shared.directory / "tables.lock"):
            if not made.exists():
                made.write_text(_in_thread(make_tables))
    if template == "tables" and shared.emptied:
        name = shared.emptied.pop()
    else:
        name = f"test_{uuid.uuid4().hex[:16]}"
        _in_thread(lambda: execute(f'create database "{name}" template {template}'))
    try:
        yield at(name)
    finally:
        if template == "tables" and _in_thread(lambda: emptied(name)):
            shared.emptied.append(name)
        else:
            _in_thread(lambda: execute(f'drop database "{name}" with (force)'))


@contextmanager
def empty_redis(shared: Shared) -> Iterator[str]:
    """The URL of an empty database, which is emptied afterwards."""
    import redis

    url = existing("redis")
    if url is None:
        url = shared.server("redis").url
    with redis.Redis.from_url(url) as first:
        # The first database only counts the others, which are used in turn.
        databases = int(first.config_get("databases")["databases"])
        number = 1 + int(first.incr("perdure:test:databases")) % (databases - 1)
    mine = urllib.parse.urlsplit(url)._replace(path=f"/{number}").geturl()
    with redis.Redis.from_url(mine) as connection:
        connection.flushdb()
        try:
            yield mine
        finally:
            connection.flushdb()


def empty_etcd(shared: Shared) -> str:
    """The URL of a part of the keys that nobody else uses."""
    url = existing("etcd")
    if url is None:
        url = shared.server("etcd").url
    return f"{url}/test-{uuid.uuid4().hex[:16]}"


def _in_thread(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end beside whatever loop this thread may have."""
    answer: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(asyncio.run(make()))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return answer[0]
