"""Commands find their store in the settings: an option goes over a variable, and a variable over the file."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perdure import connect
from tests.cli.conftest import Cli
from tests.patience import PATIENCE

FLOWS = """
from perdure import Queue, step, workflow

emails = Queue("emails", concurrency=5)

@workflow
async def greet() -> str:
    return "hello"
"""


@pytest.fixture(autouse=True)
def place(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with workflows, and with settings that name a store."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PERDURE_STORE", raising=False)
    (folder / "greetings.py").write_text(FLOWS)
    (folder / "perdure.yaml").write_text("store: sqlite:///mine.db\n")
    return folder


def test_a_file_in_the_current_directory_names_the_store(cli: Cli, place: Path) -> None:
    assert cli("run", "greetings.py:greet", "--id", "one").code == 0
    assert (place / "mine.db").exists()
    assert not (place / "perdure.db").exists()
    assert [run["id"] for run in cli("runs", "ls", "--json").json["runs"]] == ["one"]


def test_an_option_goes_over_a_variable_and_that_over_the_file(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "other.yaml").write_text("store: sqlite:///other.db\n")
    assert cli("run", "greetings.py:greet", "--id", "one", "--config", "other.yaml").code == 0
    assert (place / "other.db").exists()
    assert [run["id"] for run in cli("runs", "ls", "--json", "--config=other.yaml").json["runs"]] == ["one"]
    assert cli("runs", "ls").code == 4  # mine.db is not there
    monkeypatch.setenv("PERDURE_STORE", "sqlite:///other.db")
    assert cli("runs", "ls").code == 0
    assert cli("runs", "ls", "--store", "sqlite:///mine.db").code == 4
    monkeypatch.delenv("PERDURE_STORE")
    monkeypatch.setenv("PERDURE_CONFIG", "other.yaml")
    assert cli("runs", "ls").code == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stor: x\n", "perdure.yaml, line 1: there is no setting 'stor'; did you mean 'store'?"),
        ("recovery:\n  lease: soon\n", "perdure.yaml, line 2: recovery.lease is a number of seconds"),
    ],
)
def test_settings_that_make_no_sense_are_wrong_usage(cli: Cli, place: Path, text: str, said: str) -> None:
    (place / "perdure.yaml").write_text(text)
    ended = cli("runs", "ls")
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    # A command that is told its store does not need them to find it, and still says that they are wrong.
    assert cli("worker", "greetings.py", "--store", "sqlite:///x.db").code == 2


def test_a_config_that_is_not_there_or_not_named_is_told_of(cli: Cli) -> None:
    assert "none.yaml: there is no such file" in cli("runs", "ls", "--config", "none.yaml").err
    assert "--config needs a file" in cli("runs", "ls", "--config").err


def test_a_worker_without_a_module_says_where_to_name_it(cli: Cli) -> None:
    ended = cli("worker")
    assert ended.code == 2
    assert "perdure worker flows.py, or `module: flows` in the settings" in ended.err


def test_a_worker_is_set_up_by_its_file(place: Path, etcd_url: str) -> None:
    (place / "worker.yaml").write_text(
        f"store: sqlite:///flows.db\nleases: {etcd_url}\nmodule: greetings\nname: from-file\n"
        "queues:\n  emails: {concurrency: 2}\nserves: emails\n"
    )
    source = Path(__file__).parents[2] / "src"
    with subprocess.Popen(
        [sys.executable, "-m", "perdure.cli", "worker", "--config", "worker.yaml"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(source)},
    ) as worker:
        assert worker.stderr is not None
        said = worker.stderr.readline() + worker.stderr.readline()
        assert "from-file serves the queue emails of greet in sqlite:///flows.db" in said
        assert "queue emails: 2 at once" in said

        async def names() -> list[str]:
            async with connect("sqlite:///flows.db", leases=etcd_url) as client:
                return [lease.key for lease in await client.store.leases.live("orchestrator:", client.clock.now())]

        assert asyncio.run(names()) == ["orchestrator:from-file"]
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=PATIENCE)
    assert worker.returncode == 0


def test_the_doctor_looks_at_leases_beside_the_store(cli: Cli, place: Path, etcd_url: str) -> None:
    (place / "perdure.yaml").write_text(f"store: sqlite:///mine.db\nleases: {etcd_url}\n")
    assert cli("run", "greetings.py:greet").code == 0
    found = {check["name"]: check for check in cli("doctor", "--json").json["checks"]}
    assert found["leases"]["found"] == f"{etcd_url}, 0 orchestrators alive"
    assert cli("orchestrators", "ls", "--json").json["orchestrators"] == []
    (place / "perdure.yaml").write_text("store: sqlite:///mine.db\nleases: etcd://127.0.0.1:9\n")
    ended = cli("doctor", "--json")
    assert ended.code == 1
    found = {check["name"]: check for check in ended.json["checks"]}
    assert found["leases"]["verdict"] == "fail"
    assert "no member of etcd responds" in found["leases"]["fix"]


def test_locks_are_listed_where_the_settings_keep_them(cli: Cli, place: Path, etcd_url: str) -> None:
    (place / "perdure.yaml").write_text(f"store: sqlite:///mine.db\nleases: {etcd_url}\n")
    assert cli("run", "greetings.py:greet").code == 0

    async def hold() -> None:
        async with connect("sqlite:///mine.db", leases=etcd_url) as client:
            await client.locks.acquire("account:7", owner="me", ttl=600)

    asyncio.run(hold())
    assert [lock["key"] for lock in cli("locks", "ls", "--json").json["locks"]] == ["account:7"]
    (place / "perdure.yaml").write_text("store: sqlite:///mine.db\n")
    assert cli("locks", "ls", "--json").json["locks"] == []
