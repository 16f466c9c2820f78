"""The walks of docs/inside.md are those of the code: its classes and functions exist where it says, and are called."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from perdure import Engine, step, workflow
from tests.docs.markdown import ROOT, prose

SOURCE = ROOT / "src" / "perdure"
INSIDE = prose((ROOT / "docs" / "inside.md").read_text(encoding="utf-8"))
# `Driver.accept`, `StepStarted("ship:0")`: a class, perhaps with one of its attributes.
NAME = re.compile(r"`([A-Z][A-Za-z]+(?:\.\w+)?)(?:\([^`]*\))?`")
# `Loader.enter` (`orchestrator/loader.py`)
PLACE = re.compile(r"`([A-Za-z]\w*(?:\.\w+)?)(?:\([^`]*\))?`\s+\(`([\w/]+\.py)`")


def defined(file: Path) -> Iterator[str]:
    """The classes and functions of a module, and the methods and fields of its classes as `Class.name`."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}.{part.name}"
                elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    yield f"{node.name}.{part.target.id}"


def test_what_the_walks_name_exists() -> None:
    known = {name for file in SOURCE.rglob("*.py") for name in defined(file)}
    named = set(NAME.findall(INSIDE))
    assert len(named) > 50
    assert named - known == set()


def test_what_the_walks_name_is_in_the_file_that_they_give() -> None:
    places = PLACE.findall(INSIDE)
    assert len(places) > 20
    assert [(name, file) for name, file in places if name not in set(defined(SOURCE / file))] == []


@step
async def charge(order: str) -> int:
    return 42


@workflow
async def fulfil(order: str) -> int:
    return await charge(order)


async def test_the_first_walk_goes_where_a_step_goes(tmp_path: Path) -> None:
    """Every method that sections 1 to 6 name is called for one step."""
    walk = INSIDE[INSIDE.index("## 1. ") : INSIDE.index("## A crash")]
    methods = {name for name in NAME.findall(walk) if "." in name}
    called: set[str] = set()

    def note(frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            called.add(frame.f_code.co_qualname)

    async with Engine(f"sqlite:///{tmp_path}/inside.db", [fulfil]) as engine:
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            assert await (await engine.start(fulfil("order-1"), id="order-1")).result() == 42
        finally:
            sys.setprofile(before)
    assert len(methods) > 5
    assert methods - called == set()
