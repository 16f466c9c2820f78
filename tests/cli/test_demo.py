"""`perdure demo`: what it shows is what happened."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest

from tests.cli.conftest import Cli


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_no_step_runs_twice_though_its_process_is_killed(cli: Cli, temporary: Path) -> None:
    ended = cli("demo", "--json")
    told = ended.json
    assert (ended.code, ended.err, told["status"]) == (0, "", "completed")
    assert told["result"] == {
        "order": "order-42",
        "payment": "payment-of-order-42",
        "parcel": "parcel-of-order-42",
    }
    assert told["processes"] == [
        {"ran": ["reserve", "charge"], "not_run_again": [], "exit_code": -signal.SIGKILL},
        {"ran": ["ship"], "not_run_again": ["reserve", "charge"], "exit_code": 0},
    ]


def test_people_see_it_in_a_few_lines_and_nothing_is_left_behind(cli: Cli, temporary: Path) -> None:
    ended = cli("demo")
    assert (ended.code, ended.err) == (0, "")
    assert len(ended.out.splitlines()) < 20
    assert ended.out.count("not run again") == 2
    assert "killed with SIGKILL" in ended.out
    assert "Run order-42 completed" in ended.out
    assert os.listdir(temporary) == []
    assert set(os.listdir(cli.folder)) == {"flows.py", "temporary"}


def test_a_store_of_the_user_is_not_touched(cli: Cli, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_STORE", cli.url)
    assert cli("demo").code == 0
    assert not (cli.folder / "perdure.db").exists()


def test_no_step_of_a_flow_runs_twice_either(cli: Cli, temporary: Path) -> None:
    told = cli("demo", "--flow", "--json").json
    assert (told["status"], told["result"]) == ("completed", {"date": "2026-11-15", "total": 42})
    assert told["processes"] == [
        {"ran": ["pull", "clean"], "not_run_again": [], "exit_code": -signal.SIGKILL},
        {"ran": ["total", "load"], "not_run_again": ["pull", "clean"], "exit_code": 0},
    ]
    ended = cli("demo", "--flow")
    assert (ended.code, ended.err) == (0, "")
    assert "Run nightly-2026-11-15 completed" in ended.out
    assert os.listdir(temporary) == []
