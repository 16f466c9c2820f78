"""Between two steps of a rolling upgrade old and new code work side by side on one database, migrated once."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from perdure import Engine, Program, SchemaMismatch, connect, step, workflow
from perdure.stores.open import open_store
from perdure.stores.postgres import migrating as postgres_migrating
from perdure.stores.postgres import store as postgres_store
from perdure.stores.sqlite import migrating as sqlite_migrating
from perdure.stores.sqlshared.schema import Migration, Migrations, migration, migrations_of


@step
def double(number: int) -> int:
    return 2 * number


@workflow
async def flow(number: int) -> int:
    return await double(await double(number))


PROGRAMS: list[Program] = [flow]


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, ModuleType]:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/runs.db", sqlite_migrating
    return request.getfixturevalue("bare_url"), postgres_migrating


def migrations(url: str) -> Migrations:
    found = migrations_of(open_store(url))
    assert found is not None
    return found


def knows(monkeypatch: pytest.MonkeyPatch, module: ModuleType, known: list[Migration]) -> None:
    """Let what is opened from now on be code that knows these migrations."""
    monkeypatch.setattr(module, "MIGRATIONS", known)
    monkeypatch.setattr(postgres_store, "MIGRATIONS", known)


async def works(engine: Engine, id: str) -> None:
    assert (await engine.run(flow(3), id=id)).output == 12


async def test_engines_of_two_versions_work_side_by_side(
    place: tuple[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, module = place
    old = list(module.MIGRATIONS)
    new = migration(f"{len(old) + 1:04}_more.sql", f"-- works with: {len(old)}\ncreate table perdure_more (x integer);")
    await migrations(url).apply()
    async with Engine(url, PROGRAMS, name="old") as before:
        await works(before, "before")
        knows(monkeypatch, module, [*old, new])
        with pytest.raises(SchemaMismatch, match="perdure migrate"):
            _ = await connect(url).open()
        assert list(await migrations(url).apply()) == [new]
        async with Engine(url, PROGRAMS, name="new") as after:
            await asyncio.gather(*(works(engine, f"{engine.name}-{n}") for n in range(5) for engine in (before, after)))
            knows(monkeypatch, module, old)
            assert list(await migrations(url).pending()) == []
            async with Engine(url, PROGRAMS, name="restarted") as restarted:
                await works(restarted, "restarted")
                await works(after, "after")
                assert len(await restarted.list()) == 13
                report = await restarted.rebuild()
                assert (report.differences, report.damaged) == ([], [])


async def test_old_code_is_shut_out_by_a_migration_that_says_nothing(
    place: tuple[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, module = place
    old = list(module.MIGRATIONS)
    harsh = migration(f"{len(old) + 1:04}_harsh.sql", "create table perdure_more (x integer);")
    knows(monkeypatch, module, [*old, harsh])
    await migrations(url).apply()
    knows(monkeypatch, module, old)
    for opening in (Engine(url, PROGRAMS), connect(url)):
        with pytest.raises(SchemaMismatch, match=rf"schema {len(old) + 1}.*upgrade perdure"):
            _ = await opening.open()


async def test_processes_that_migrate_at_once_do_it_once(place: tuple[str, ModuleType]) -> None:
    url, module = place
    command = [sys.executable, "-m", "perdure.cli", "migrate", "--json", "--store", url]
    processes = [await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE) for _ in range(4)]
    told = [msgspec.json.decode((await process.communicate())[0])["applied"] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert sorted(told) == [[], [], [], [one.name for one in module.MIGRATIONS]]
    assert [one.checksum for one in await migrations(url).applied()] == [one.checksum for one in module.MIGRATIONS]


async def test_the_script_is_what_migrating_does(place: tuple[str, ModuleType]) -> None:
    url, module = place
    script = await migrations(url).sql()
    for one in module.MIGRATIONS:
        assert one.checksum in script
    assert list(await migrations(url).apply(dry_run=True)) == module.MIGRATIONS
    assert list(await migrations(url).applied()) == []
    await migrations(url).apply()
    assert await migrations(url).sql() == ""
