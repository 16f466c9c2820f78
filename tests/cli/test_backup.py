"""`perdure backup`: a copy that is whole, or none."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import apsw
import pytest

from perdure import Engine, connect, step, workflow
from perdure.errors import Corrupt
from perdure.stores.sqlite import backup
from perdure.stores.sqlite.store import SqliteStore
from tests.cli.conftest import Cli


@step
async def work(number: int) -> str:
    return "x" * number


@workflow
async def flow(number: int) -> int:
    return len(await work(number)) + len(await work(number))


@pytest.fixture
def filled(cli: Cli) -> Cli:
    for number in range(3):
        assert cli("run", "flows.py:early", "--input", str(number), "--id", f"e{number}", "--store", cli.url).code == 0
    return cli


def test_a_copy_is_a_store_with_every_run(filled: Cli, tmp_path: Path) -> None:
    copy = tmp_path / "copies" / "copy.db"
    copy.parent.mkdir()
    ended = filled("backup", str(copy), "--store", filled.url)
    assert ended.code == 0
    assert f"3 runs copied to {copy}" in ended.err
    assert [file.name for file in copy.parent.iterdir()] == ["copy.db"]
    runs = filled("runs", "ls", "--json", "--store", f"sqlite:///{copy}").json["runs"]
    assert sorted(run["id"] for run in runs) == ["e0", "e1", "e2"]
    report = filled("backup", str(copy), "--force", "--json", "--store", filled.url).json
    assert report == {"path": str(copy), "bytes": copy.stat().st_size, "runs": 3}


def test_a_file_that_exists_is_left_alone(filled: Cli, tmp_path: Path) -> None:
    taken = tmp_path / "taken.db"
    taken.write_text("mine")
    ended = filled("backup", str(taken), "--store", filled.url)
    assert ended.code == 2
    assert "exists already; name another file, or add --force" in ended.err
    assert taken.read_text() == "mine"
    assert filled("backup", str(taken), "--force", "--store", filled.url).code == 0
    with apsw.Connection(str(taken)) as db:
        assert db.pragma("integrity_check") == "ok"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nowhere/copy.db", "nowhere does not exist; create it first"),
        (".", "is a directory; name a file in it"),
        ("open.db", "is open, or was not closed cleanly"),
    ],
)
def test_a_place_that_cannot_be_is_refused(filled: Cli, tmp_path: Path, target: str, said: str) -> None:
    for name in ("open.db", "open.db-wal"):
        (tmp_path / name).write_text("x")
    before = sorted(tmp_path.rglob("*"))
    ended = filled("backup", str(tmp_path / target), "--force", "--store", filled.url)
    assert ended.code == 2
    assert said in ended.err
    assert sorted(tmp_path.rglob("*")) == before


def test_the_store_is_not_copied_onto_itself(filled: Cli) -> None:
    path = filled.url.removeprefix("sqlite:///")
    ended = filled("backup", path, "--force", "--store", filled.url)
    assert ended.code == 2
    assert "is the store itself; name another file" in ended.err


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://me:s3cret@db/flows", "use pg_dump"),
        ("redis://cache/0", "redis-cli BGSAVE"),
        ("file:///flows", "copy the directory"),
        ("memory://", "nothing in it outlives its process"),
        ("sqlite:///none.db", "does not exist: there is nothing to copy"),
    ],
)
def test_other_stores_are_copied_otherwise(cli: Cli, tmp_path: Path, url: str, said: str) -> None:
    ended = cli("backup", str(tmp_path / "copy.db"), "--store", url)
    assert ended.code == 2
    assert said in ended.err
    assert "s3cret" not in ended.err
    assert not (tmp_path / "copy.db").exists()


def test_a_copy_that_is_not_whole_gets_no_name(filled: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "the disk is broken")

    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(backup, "_sync", fail)
    ended = filled("backup", str(tmp_path / "copy.db"), "--store", filled.url)
    assert ended.code == 2
    assert "the disk is broken" in ended.err
    assert sorted(tmp_path.rglob("*")) == before


async def test_a_damaged_store_is_not_taken_for_a_backup(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with Engine(f"sqlite:///{path}", [flow]) as engine:
        for number in range(20):
            await engine.run(flow(2000), id=f"r{number}")
    data = bytearray(path.read_bytes())
    page = len(data) // 4096 // 2 * 4096
    data[page : page + 4096] = bytes(range(256)) * 16
    path.write_bytes(data)
    with pytest.raises(Corrupt, match="damaged"):
        await SqliteStore(str(path)).backup(tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()


async def test_what_was_acknowledged_before_a_copy_began_is_in_it(tmp_path: Path) -> None:
    url, done, copies = f"sqlite:///{tmp_path / 'runs.db'}", list[str](), 6

    async def keep_busy(engine: Engine, worker: int) -> None:
        for number in range(10_000):
            id = f"{worker}-{number}"
            await engine.run(flow(3000), id=id)
            done.append(id)

    async with Engine(url, [flow]) as engine:
        busy = [asyncio.create_task(keep_busy(engine, worker)) for worker in range(8)]
        expected = []
        for number in range(copies):
            while len(done) < 40 * (number + 1):
                await asyncio.sleep(0)
            expected.append(set(done))
            made = await SqliteStore(str(tmp_path / "runs.db")).backup(tmp_path / f"copy-{number}.db")
            assert made.runs >= len(expected[-1])
        for task in busy:
            task.cancel()
        await asyncio.wait(busy)
    for number, ids in enumerate(expected):
        async with connect(f"sqlite:///{tmp_path / f'copy-{number}.db'}") as client:
            for id in ids:
                view = await client.get(id)
                assert view is not None
                assert view.output == 6000


async def test_a_copy_has_the_rights_of_its_store(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    await SqliteStore(str(path)).migrations.apply()
    path.chmod(0o600)
    await SqliteStore(str(path)).backup(tmp_path / "copy.db")
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600
