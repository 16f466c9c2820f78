"""What a newcomer meets first: the README, and its short file that survives kill -9."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.docs.markdown import README, blocks, prose, table
from tests.patience import PATIENCE


def code() -> str:
    return next(block.text for block in blocks(README.read_text(encoding="utf-8")) if block.saved_as == "order.py")


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "order.py"], cwd=folder, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def test_the_readme_has_its_sections_in_order_and_at_most_ten_rows_of_figures() -> None:
    text = README.read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", prose(text), flags=re.MULTILINE) == [
        "Quickstart",
        "What exists",
        "Guides",
        "The promises",
        "Speed",
        "How it works",
        "Licence",
    ]
    groups = re.findall(r"^\*\*(\w+)\*\*$", prose(text), flags=re.MULTILINE)
    assert groups == ["Start", "Write", "Run", "Change", "Operate", "Inside"]
    assert 0 < len(table(text, "workload")) <= 10


def test_the_quickstart_has_at_most_12_lines_and_one_call_to_run() -> None:
    assert len(code().splitlines()) <= 12
    assert code().count("perdure.run(") == 1


def test_the_quickstart_goes_on_after_kill_9_with_the_step_that_was_under_way(tmp_path: Path) -> None:
    (tmp_path / "order.py").write_text(code(), encoding="utf-8")

    with start(tmp_path) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "packing book\n"
        assert first.stdout.readline() == "packing lamp\n"  # so the first step is done, and the second under way
        os.kill(first.pid, signal.SIGKILL)
        rest, _ = first.communicate(timeout=PATIENCE)
    assert (first.returncode, rest) == (-signal.SIGKILL, "")

    assert outcome(start(tmp_path)) == ["packing lamp", "packing vase", RESULT]
    assert outcome(start(tmp_path)) == [RESULT]


RESULT = "['box of book', 'box of lamp', 'box of vase']"


def outcome(process: subprocess.Popen[str]) -> list[str]:
    with process:
        printed, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    return printed.splitlines()
