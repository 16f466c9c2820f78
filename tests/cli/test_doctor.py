"""`perdure doctor`: every check finds what it is for, and says what to do."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure import Engine, connect, sleep, step, workflow
from perdure import doctor as examined
from perdure.cli import doctor
from perdure.kernel.events import StepStarted
from perdure.stores.open import open_store
from tests.cli.conftest import Cli
from tests.engine.harness import AT_ONCE, Recorded


@workflow
async def nap(hours: float) -> None:
    await sleep(hours * 3600)


async def start_naps(url: str, *ids: str) -> None:
    async with Engine(url, [nap]) as engine:
        for id in ids:
            _ = await engine.start(nap(1), id=id)


@pytest.fixture
def napping(cli: Cli) -> Cli:
    """A store with two runs that sleep, and no engine."""
    asyncio.run(start_naps(cli.url, "one", "two"))
    return cli


def verdicts(document: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["verdict"] for check in document["checks"]}


def check(document: dict[str, Any], name: str) -> dict[str, str]:
    return next(check for check in document["checks"] if check["name"] == name)


def test_a_healthy_store_passes_every_check(napping: Cli) -> None:
    ended = napping("doctor", "flows.py", "--json")
    assert ended.code == 0
    assert ended.json["ok"] is True
    assert verdicts(ended.json) == dict.fromkeys(
        [
            "python",
            "perdure",
            "sqlite",
            "disk",
            "wal",
            "store",
            "schema",
            "integrity",
            "orchestrators",
            "open runs",
            "journals",
            "owners",
            "parked",
            "programs",
        ],
        "ok",
    )
    assert check(ended.json, "open runs")["found"] == "2 waiting"


def test_people_get_a_table_and_what_to_do_below_it(napping: Cli) -> None:
    napping.write("other.py", "from perdure import workflow\n@workflow\nasync def other(): ...\n")
    ended = napping("doctor", "other.py")
    assert ended.code == 0
    table, _, advice = ended.out.partition("\n\n")
    assert [line.split()[0] for line in table.splitlines()][:4] == ["CHECK", "python", "perdure", "sqlite"]
    assert advice == "programs: it has other; add the missing programs, or give them their former names\n"


def test_a_store_that_nobody_used_yet_is_a_warning_and_is_not_created(cli: Cli) -> None:
    ended = cli("doctor", "--json")
    assert (ended.code, check(ended.json, "store")["verdict"]) == (0, "warn")
    assert os.listdir(cli.folder) == ["flows.py"]


@pytest.mark.parametrize("url", ["sqlite:///flows.py", "sqlite:///missing/x.db"])
def test_something_that_is_no_store_is_a_failure(cli: Cli, url: str) -> None:
    ended = cli("doctor", "--json", "--store", url)
    assert (ended.code, check(ended.json, "store")["verdict"]) == (1, "fail")


def test_a_damaged_journal_is_found_and_named(napping: Cli) -> None:
    db = apsw.Connection("perdure.db")
    with db:
        db.execute(
            "update perdure_journal set events = replace(events, 'sleep', 'sleet') where run_id = ?1", (find(db),)
        )
    db.close()
    ended = napping("doctor", "--json")
    found = check(ended.json, "journals")
    assert (ended.code, found["verdict"], found["found"]) == (1, "fail", "1 of 2 are damaged")
    assert "two: " in found["fix"]


def test_a_damaged_row_is_found_and_named(napping: Cli) -> None:
    db = apsw.Connection("perdure.db")
    db.execute("update perdure_runs set input = '{}' where id = 'one'")
    db.close()
    found = check(napping("doctor", "--json").json, "journals")
    assert (found["verdict"], found["found"]) == ("fail", "1 of 2 are damaged")
    assert "one: " in found["fix"]


def find(db: apsw.Connection) -> str:
    return str(db.execute("select run_id from perdure_runs where id = 'two'").get)


def test_a_damaged_file_is_found(napping: Cli) -> None:
    path = Path("perdure.db")
    data = bytearray(path.read_bytes())
    # The header says how many pages are free; a wrong number there is damage that no query meets.
    data[36:40] = b"\x00\x00\x00\x07"
    path.write_bytes(data)
    ended = napping("doctor", "--json")
    assert (ended.code, check(ended.json, "integrity")["verdict"]) == (1, "fail")


def test_a_schema_of_a_newer_perdure_is_a_failure_that_says_to_upgrade(napping: Cli) -> None:
    db = apsw.Connection("perdure.db")
    db.pragma("user_version", 999)
    db.close()
    ended = napping("doctor", "--json")
    assert ended.code == 1
    assert "upgrade perdure" in check(ended.json, "store")["fix"]


KILLED = """
import asyncio, os, sys
from perdure import Engine, step, workflow

@step
def die():
    os.kill(os.getpid(), 9)

@workflow
async def dying():
    await die()

async def main():
    async with Engine(sys.argv[1], [dying]) as engine:
        await engine.run(dying(), id="orphan")

asyncio.run(main())
"""


def test_runs_that_nobody_advances_are_a_warning_that_names_their_program(cli: Cli) -> None:
    process = subprocess.run([sys.executable, "-c", KILLED, cli.url])
    assert process.returncode == -signal.SIGKILL
    ended = cli("doctor", "--json")
    found = check(ended.json, "owners")
    assert (ended.code, found["verdict"]) == (0, "warn")
    assert "1 run (orphan)" in found["found"]
    assert "dying" in found["fix"]


async def test_runs_of_a_living_engine_are_no_warning(tmp_path: Path) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @step
    async def wait() -> None:
        begun.set()
        await go.wait()

    @workflow
    async def waits() -> None:
        await wait()

    url = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url, [waits]) as engine:
        run = await engine.start(waits())
        await begun.wait()
        async with connect(url) as client:
            checks = {check.name: check for check in await examined._runs(client, None)}
        assert checks["owners"].verdict == "ok"
        assert checks["orchestrators"].found == f"1 alive: {engine.name}"
        go.set()
        await run.result()


def test_a_parked_run_is_a_warning_with_its_reason(cli: Cli) -> None:
    imports = "import os\nfrom perdure import step, workflow\n"
    flow = imports + "@step\ndef a(): os.kill(os.getpid(), 9)\n@step\ndef b(): ...\n"
    cli.write("parks.py", flow + "@workflow\nasync def parks(): await a()\n")
    words = [sys.executable, "-m", "perdure.cli", "run", "parks.py", "--id", "p"]
    subprocess.run(words, cwd=cli.folder)
    # Of another length: compiled code of a file that has changed within a second, and not in length, is used again.
    cli.write("parks.py", flow + "@workflow\nasync def parks() -> None: await b()\n")
    assert subprocess.run(words, cwd=cli.folder, capture_output=True).returncode == 5
    found = check(cli("doctor", "--json").json, "parked")
    assert found["verdict"] == "warn"
    assert "p: " in found["fix"]


Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(("free", "verdict", "code"), [(10**7, "fail", 1), (10**8, "warn", 0), (10**11, "ok", 0)])
def test_a_disk_that_fills_up_is_noticed(
    napping: Cli, monkeypatch: pytest.MonkeyPatch, free: int, verdict: str, code: int
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(10**12, 0, free))
    ended = napping("doctor", "--json")
    assert (ended.code, check(ended.json, "disk")["verdict"]) == (code, verdict)


def test_a_large_write_ahead_log_is_a_warning(napping: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("perdure.db-wal").touch()
    monkeypatch.setattr(examined, "LARGE_WAL", -1)
    assert check(napping("doctor", "--json").json, "wal")["verdict"] == "warn"


def test_a_system_on_which_sqlite3_beside_an_engine_loses_commits_is_warned_of(
    napping: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "guard" not in verdicts(napping("doctor", "--json").json)
    monkeypatch.setattr(examined, "guarded", lambda: False)
    ended = napping("doctor", "--json")
    assert (ended.code, check(ended.json, "guard")["verdict"]) == (0, "warn")
    assert "never with sqlite3" in check(ended.json, "guard")["fix"]


def test_an_old_sqlite_is_a_failure(napping: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examined, "OLDEST_SQLITE", (99, 0, 0))
    ended = napping("doctor", "--json")
    assert (ended.code, check(ended.json, "sqlite")["verdict"]) == (1, "fail")


def test_a_module_that_cannot_be_imported_is_wrong_usage(napping: Cli) -> None:
    assert napping("doctor", "nothing.py").code == 2


@step
async def hang() -> None:
    await asyncio.Event().wait()


@workflow
async def part() -> None:
    await hang()


@workflow
async def whole() -> None:
    await part()


async def test_a_child_at_work_is_not_without_an_owner(tmp_path: Path) -> None:
    recorded = Recorded()
    url = f"sqlite:///{tmp_path}/perdure.db"
    async with Engine(url, [whole, part], on_commit=recorded, recovery=AT_ONCE) as engine:
        _ = await engine.start(whole(), id="it")
        await recorded.until(lambda e: isinstance(e, StepStarted))
        found = {check.name: check for check in await doctor._store(open_store(url), ["whole", "part"])}
    assert found["open runs"].found == "1 running"
    assert {found[name].verdict for name in ("owners", "parked", "journals")} == {"ok"}
