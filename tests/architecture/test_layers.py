"""The shape of the source: what import-linter cannot see, such as purity and how SQL is written."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "perdure"
MODULES = sorted(SOURCE.rglob("*.py"))
KERNEL = [path for path in MODULES if path.is_relative_to(SOURCE / "kernel")]

EXECUTES = {"execute", "executemany", "executescript"}
CLOCKS_AND_ENTROPY = {"now", "utcnow", "today", "uuid1", "uuid4", "token_bytes", "token_hex"}


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def places(path: Path, nodes: Iterator[ast.expr | ast.stmt]) -> list[str]:
    """Where the nodes stand, as `kernel/plan.py:12`, so that a failure can be clicked on."""
    return [f"{path.relative_to(SOURCE)}:{node.lineno}" for node in nodes]


def called_name(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def test_the_kernel_never_awaits() -> None:
    asynchronous = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
    found = []
    for path in KERNEL:
        found += places(path, (node for node in ast.walk(parse(path)) if isinstance(node, asynchronous)))
    assert found == []


def test_the_kernel_asks_no_clock_and_rolls_no_dice() -> None:
    found = []
    for path in KERNEL:
        calls = (node for node in ast.walk(parse(path)) if isinstance(node, ast.Call))
        found += places(path, (call for call in calls if called_name(call) in CLOCKS_AND_ENTROPY))
    assert found == []


def test_stored_bytes_can_never_become_code() -> None:
    """No pickle or marshal, no eval, exec: a journal is data, whoever wrote it."""
    found = []
    for path in MODULES:
        for node in ast.walk(parse(path)):
            match node:
                case ast.Import(names=names):
                    imported = {alias.name.partition(".")[0] for alias in names}
                case ast.ImportFrom(module=str(module)):
                    imported = {module.partition(".")[0]}
                case ast.Call(func=ast.Name(id="eval" | "exec")):
                    found += places(path, iter([node]))
                    continue
                case _:
                    continue
            if imported & {"pickle", "marshal", "shelve", "dill", "cloudpickle"}:
                found += places(path, iter([node]))
    assert found == []


def is_built_text(node: ast.expr) -> bool:
    match node:
        case ast.JoinedStr(values=values):
            return any(isinstance(value, ast.FormattedValue) for value in values)
        case ast.BinOp(op=ast.Mod() | ast.Add()):
            return True
        case ast.Call(func=ast.Attribute(attr="format" | "join" | "replace")):
            return True
        case _:
            return False


def built_sql(module: ast.Module) -> Iterator[ast.Call]:
    """Calls that execute SQL made by formatting or joining strings, in place of bound parameters."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and called_name(node) in EXECUTES and node.args and is_built_text(node.args[0]):
            yield node


def test_sql_is_never_built_from_strings() -> None:
    found = []
    for path in MODULES:
        found += places(path, built_sql(parse(path)))
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        'db.execute(f"DELETE FROM {table}")',
        'db.execute("DELETE FROM %s" % table)',
        'db.executemany("DELETE FROM " + table, rows)',
        'db.execute("DELETE FROM {}".format(table))',
    ],
)
def test_the_check_for_built_sql_sees_every_way_of_building_it(code: str) -> None:
    assert list(built_sql(ast.parse(code)))


def test_the_check_for_built_sql_accepts_bound_parameters() -> None:
    assert not list(built_sql(ast.parse('db.execute("DELETE FROM runs WHERE id = ?", (id,))')))
