"""The log lines that the guide to operation explains are lines that perdure logs."""

from __future__ import annotations

import ast
import re

from tests.docs.markdown import ROOT, table

GUIDE = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
# What stands for something else in a line: NAME, N, or a part that is left out.
PLACEHOLDER = re.compile(r"'?\bNAME\b'?|\bN\b|\.\.\.")


def texts() -> list[str]:
    """Every string constant of the source; adjacent ones are one."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "src" / "perdure").rglob("*.py"))
    nodes = (node for tree in trees for node in ast.walk(tree))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def test_every_log_line_of_the_guide_is_in_the_source() -> None:
    lines = [line for cell, _ in table(GUIDE, "line") for line in re.findall(r"`([^`]+)`", cell)]
    patterns = {line: ".*".join(re.escape(part) for part in PLACEHOLDER.split(line)) for line in lines}
    source = texts()
    assert lines
    assert [line for line, pattern in patterns.items() if not any(re.search(pattern, text) for text in source)] == []
