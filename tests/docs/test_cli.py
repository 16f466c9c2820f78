"""The guide to the command line names every command and every exit code."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO

from perdure.cli.exits import Exit
from perdure.cli.main import COMMANDS, main
from tests.docs.markdown import ROOT, table

GUIDE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def commands(*group: str) -> set[str]:
    """The commands that the help of a group lists."""
    with redirect_stdout(StringIO()) as text:
        assert main([*group, "--help"]) == 0
    names = re.findall(r"^. ([a-z][a-z-]+) +[A-Z]", text.getvalue(), flags=re.MULTILINE)
    return {" ".join(["perdure", *group, name]) for name in names}


def test_every_command_is_in_the_guide_and_no_other() -> None:
    listed = re.findall(r"^\| `(perdure [^`]+)` \|", GUIDE, flags=re.MULTILINE)
    named = {re.sub(r" [A-Z]+", "", command) for command in listed}
    groups = [name for name, (path, _) in COMMANDS.items() if path.endswith(":app")]
    inner = {command for group in groups for command in commands(group)}
    assert named == commands() - {f"perdure {group}" for group in groups} | inner


def test_every_exit_code_is_in_the_guide_and_no_other() -> None:
    assert [int(code) for code, _ in table(GUIDE, "code")] == sorted(Exit)
