"""Every code of a problem is explained in docs/http-api.md, with its status."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from perdure.server import problems

ROOT = Path(__file__).parents[2]


def raised() -> set[tuple[str, int]]:
    """The code and status of every problem that the server raises."""
    found = {(code, status) for _, status, code in problems._OF}
    for path in (ROOT / "src/perdure/server").glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Problem":
                first, second = [one.value if isinstance(one, ast.Constant) else None for one in call.args[:2]]
                if isinstance(first, int) and isinstance(second, str):
                    found.add((second, first))
                else:
                    assert path.name == "problems.py", f"{path.name}:{call.lineno}: write the code of a problem out"
    return found | {("cross_site", 403)}


def test_every_code_is_explained_with_its_status() -> None:
    text = (ROOT / "docs/http-api.md").read_text()
    table = text.partition("<!-- problems -->")[2].partition("<!-- end of problems -->")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([\d, ]+) \| \S", table, re.MULTILINE)
    explained = {(code, int(status)) for code, given in rows for status in given.split(",")}
    assert explained == raised()
    assert [code for code, _ in rows] == sorted(code for code, _ in rows)
