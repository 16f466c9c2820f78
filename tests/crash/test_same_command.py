"""The promise of the first page: kill it, run the same command again, it goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.crash.harness import PATIENCE, ROOT, audit, check_executions, read_effects


def test_the_same_command_goes_on_after_each_death_until_it_is_done(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.crash.same_command", str(tmp_path / "runs.db"), str(tmp_path / "effects")]
    for _ in range(4):
        died = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
        assert died.returncode == -signal.SIGKILL, died.stderr
        assert died.stdout == ""
    # Done now, and still the same when it is asked once more.
    for _ in range(2):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "[1, 2]\n"
    journal = audit(tmp_path / "runs.db")["gathering"]
    executed = check_executions(journal, read_effects(tmp_path / "effects"))
    assert executed == {"fetch:0": 2, "store:0": 2, "fetch:1": 2, "store:1": 2}
