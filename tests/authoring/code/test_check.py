"""`check_source` over a folder of small bodies, with the expected findings in comments."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perdure.authoring.code.check import check_source

BODIES = sorted((Path(__file__).parent / "bodies").glob("*.py"))


@pytest.mark.parametrize("path", BODIES, ids=lambda path: path.stem)
def test_exactly_the_marked_lines_are_found(path: Path) -> None:
    source = path.read_text()
    wanted = [
        (number, match[1])
        for number, line in enumerate(source.splitlines(), 1)
        if (match := re.search(r"# expect: (\S+)", line))
    ]
    assert [(f.line, f.kind) for f in check_source(source, path.name)] == wanted


def test_a_finding_names_the_place_and_what_to_use_instead() -> None:
    source = "import time\nfrom perdure import workflow\n\n@workflow\nasync def flow():\n    return time.time()\n"
    [found] = check_source(source, "flows.py")
    assert (found.file, found.line, found.workflow, found.what) == ("flows.py", 6, "flow", "it calls time.time()")
    assert "now() of perdure" in found.instead


def test_source_that_is_not_python_is_an_error() -> None:
    with pytest.raises(SyntaxError):
        check_source("def (", "x.py")


def test_names_are_seen_through_a_star_import() -> None:
    source = """
from perdure import *
from time import *

@step
async def work() -> int:
    return 1

@workflow
async def flow() -> None:
    sleep_until(3)
    call("kid", 1)
    lock("x")
    monotonic()
    random()
    async with lock("y"):
        await work()
"""
    found = [(finding.line, finding.what, finding.instead) for finding in check_source(source, "flow.py")]
    assert [line for line, _, _ in found] == [11, 12, 13, 14]
    assert found[2][1:] == ("it does not await lock()", "write `async with lock(...):`")
    assert found[3][1] == "it calls time.monotonic()"
