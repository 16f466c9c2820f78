"""`perdure prune` and `perdure rebuild`: what they say and do."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from tests.cli.conftest import Cli


@pytest.fixture
def filled(cli: Cli) -> Cli:
    for number in range(3):
        assert cli("run", "flows.py:early", "--input", str(number), "--id", f"e{number}", "--store", cli.url).code == 0
    order = '[{"id": "o", "total": -1}]'
    assert cli("run", "flows.py:checkout", "--input", order, "--id", "failed", "--store", cli.url).code == 1
    return cli


def left(cli: Cli) -> list[str]:
    return sorted(run["id"] for run in cli("runs", "ls", "--json", "--store", cli.url).json["runs"])


def test_what_is_old_enough_is_pruned(filled: Cli) -> None:
    assert filled("prune", "--older-than", "30d", "--grace", "4", "--store", filled.url, "--json").json["runs"] == 0
    dry = filled("prune", "--older-than", "0s", "--dry-run", "--store", filled.url)
    assert dry.code == 0
    assert "3 runs would be pruned" in dry.err
    assert len(left(filled)) == 4
    ended = filled("prune", "--older-than", "0s", "--store", filled.url)
    assert ended.code == 0
    assert "3 runs pruned" in ended.err
    assert left(filled) == ["failed"]
    report = filled("prune", "--older-than", "0s", "--status", "completed,failed", "--store", filled.url, "--json").json
    assert (report["runs"], report["dry_run"], report["kept"]) == (1, False, [])


def test_pruned_runs_are_in_the_archive(filled: Cli, tmp_path: Path) -> None:
    ended = filled("prune", "--older-than", "0s", "--archive", str(tmp_path / "archive"), "--store", filled.url)
    assert ended.code == 0
    assert "3 of them archived" in ended.err
    files = sorted((tmp_path / "archive").iterdir())
    assert len(files) == 3
    assert filled("import", str(files[0]), "--store", filled.url).code == 0
    assert "e0" in left(filled)


def test_a_run_that_cannot_be_archived_stays_and_the_command_says_so(filled: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    # Wherever its file is to be, there is a directory already.
    for run in filled("runs", "ls", "--json", "--store", filled.url).json["runs"]:
        (folder / f"{run['run_id']}-{run['id']}.capsule").mkdir(parents=True)
    ended = filled("prune", "--older-than", "0s", "--archive", str(folder), "--store", filled.url)
    assert ended.code == 1
    assert "run 'e0'" in ended.err
    assert "is kept: it could not be archived" in ended.err
    assert len(left(filled)) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--older-than", "30"], "--older-than '30' would be seconds, and what is removed is gone; write 30s, or 30d"),
        (["--older-than=-1d"], "must not be negative"),
        (["--older-than", "1d", "--grace", "soon"], "--grace 'soon' is not a duration"),
        (["--older-than", "1d", "--status", "running"], "only runs that have ended can be pruned"),
        ([], "older-than"),
    ],
)
def test_what_makes_no_sense_is_refused(cli: Cli, arguments: list[str], message: str) -> None:
    assert cli("migrate", "--store", cli.url).code == 0
    ended = cli("prune", *arguments, "--store", cli.url)
    assert ended.code == 2
    assert message in ended.err


def test_rebuild_tells_and_mends(filled: Cli) -> None:
    db = apsw.Connection(filled.url.removeprefix("sqlite:///"))
    db.execute("delete from perdure_runs where id = 'e1'")
    db.close()
    dry = filled("rebuild", "--dry-run", "--store", filled.url)
    assert dry.code == 1
    assert dry.out.split()[:5] == ["RUN", "RUN_ID", "COLUMN", "STORED", "COMPUTED"]
    assert "4 journals read, 1 run would be repaired" in dry.err
    report = filled("rebuild", "--json", "--store", filled.url).json
    assert [(d["id"], d["column"], d["stored"]) for d in report["differences"]] == [("e1", "row", "missing")]
    clean = filled("rebuild", "--store", filled.url)
    assert (clean.code, clean.out) == (0, "")
    assert len(left(filled)) == 4


def test_rebuild_tells_of_damaged_journals(filled: Cli) -> None:
    db = apsw.Connection(filled.url.removeprefix("sqlite:///"))
    db.execute("update perdure_journal set at = 1.0 where run_id = (select run_id from perdure_runs where id = 'e1')")
    db.close()
    ended = filled("rebuild", "--store", filled.url)
    assert ended.code == 1
    assert "is damaged: its checksum does not match" in ended.err
