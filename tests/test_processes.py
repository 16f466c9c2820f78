"""The suite tests itself: signals reach the children of tests, and a failed test does not wait for its child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# As nohup, cron and service managers do, and worse: everything is ignored or blocked.
UNATTENDED = """
import os, signal, sys
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGCHLD"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM, signal.SIGALRM])
os.execv(sys.argv[1], sys.argv[1:])
"""
SIGNALS = """
import os, signal, subprocess
import pytest

@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"])
def test_it(name):
    number = getattr(signal, name)
    os.kill(os.getpid(), number)  # the suite itself goes on ignoring it
    with subprocess.Popen(["sleep", "600"]) as child:
        child.send_signal(number)
        assert child.wait(300) == -number
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_signals_reach_the_children_of_tests_when_the_suite_was_started_unattended(
    tmp_path: Path, workers: str
) -> None:
    (tmp_path / "test_signals.py").write_text(SIGNALS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.processes",
        "-p",
        "xdist",
        "-p",
        "no:cacheprovider",
        "-n",
        workers,
    ]
    ended = subprocess.run(
        [sys.executable, "-c", UNATTENDED, *command, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert "4 passed" in ended.stdout, ended.stdout + ended.stderr


def test_a_test_that_fails_does_not_wait_for_its_child() -> None:
    command = ["sleep", "600"]
    with pytest.raises(ZeroDivisionError), subprocess.Popen(command) as child:
        _ = 1 / 0
    assert child.returncode == -signal.SIGKILL
