"""Which ops the code of a workflow mentions, and at which lines."""

from __future__ import annotations

import ast
import asyncio
import os
import signal
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import (
    Engine,
    call,
    checkpoint,
    child,
    lock,
    now,
    random,
    set_state,
    sleep,
    step,
    step_inline,
    uuid4,
    wait_signal,
    workflow,
)
from perdure.authoring.code import source_map
from perdure.authoring.code.loop import from_here, short
from perdure.kernel.divergence.explain import recorded_op
from tests.patience import PATIENCE


@step
async def charge(n: int) -> int:
    return n


@step(name="ship-it")
async def ship(n: int) -> int:
    return n


@workflow
async def inner(n: int) -> int:
    return await charge(n)


async def helper(n: int) -> int:
    return await ship(n)


@workflow
async def order(n: int) -> int:
    await charge(n)
    if n > 5:
        await helper(n)
    else:
        await inner(n)
    await sleep(1)
    await asyncio.sleep(1)
    await perdure.wait_signal("packed")
    async with lock("stock"):
        now()
    return n


FIRST = order.fn.__code__.co_firstlineno
FILE = "tests/authoring/code/test_source_map.py"


def at(*offsets: int) -> tuple[str, ...]:
    return tuple(f"{FILE}:{FIRST + offset}" for offset in offsets)


def test_names_of_ops_are_found_with_their_lines() -> None:
    found = order.source_map()
    assert found.known
    inside = f"{FILE}:{inner.fn.__code__.co_firstlineno + 2}"
    assert set(found.lines["charge"]) == {*at(2), inside}
    assert found.lines["ship-it"] == (f"{FILE}:{helper.__code__.co_firstlineno + 1}",)
    assert found.lines["inner"] == at(6)
    assert found.lines["sleep"] == at(7)
    assert found.lines["timer"] == at(8)
    assert found.lines["packed"] == at(9)
    assert found.lines["lock"] == at(10)
    assert found.lines["now"] == at(11)


def test_the_text_and_the_arms_of_lines_are_found() -> None:
    found = order.source_map()
    [line] = at(4)
    assert found.code[line] == "await helper(n)"
    assert found.arms[line] == ((FIRST + 3, 0),)
    assert found.arms[at(6)[0]] == ((FIRST + 3, 1),)
    assert found.arms[at(7)[0]] == ()


# --- the lines that are recorded --------------------------------------------------------------------------------------


@workflow
async def everything(n: int) -> int:
    set_state("n", n)
    now(), uuid4(), random()
    await checkpoint()
    await asyncio.gather(
        inner(1),
        charge(2),
        sleep(0.001),
        asyncio.create_task(wait_signal("go")),
    )
    await child(inner(3))
    await child(inner(4), detached=True)
    await call("inner", 5)
    await step_inline("weigh", abs, 6)
    async with lock("stock"):
        pass
    async with asyncio.timeout(60):
        await charge(7)
    return n


async def test_every_op_records_the_line_that_asked_for_it() -> None:
    async with Engine("memory://", [everything, inner]) as engine:
        run = await engine.start(everything(1), id="it")
        await engine.signal("it", "go")
        assert await run.result(PATIENCE) == 1
        entries = await engine.journal("it")
    first = everything.fn.__code__.co_firstlineno
    lines = {}
    for entry in entries:
        op = recorded_op(entry.event)
        if op is not None:
            file, _, line = op.source.rpartition(":")
            assert file == FILE, op
            lines[op.path] = int(line) - first
    inside = inner.fn.__code__.co_firstlineno + 2 - first
    assert lines == {
        "state:0": 2,
        "now:0": 3,
        "uuid:0": 3,
        "random:0": 3,
        "checkpoint:0": 4,
        # What gather makes tasks of is asked for at the line of the gather.
        "inner:0": 5,
        "inner:0/charge:0": inside,
        "charge:0": 7,
        "sleep:0/sleep:0": 5,
        "wait_signal:0/go:0": 9,
        "inner:1": 11,
        "inner:1/charge:0": inside,
        "inner:2": 12,
        "inner:3": 13,
        "inner:3/charge:0": inside,
        "weigh:0": 14,
        "lock:0": 15,
        "lock:0/unlock": 15,
        "timer:0": 17,
        "charge:1": 18,
    }


@pytest.fixture
def unread() -> None:
    """No file has been read before."""
    source_map._read_structure.cache_clear()


@pytest.mark.usefixtures("unread")
def test_source_can_be_parsed_in_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    real, troubles = ast.parse, [SystemError("AST constructor recursion depth mismatch (before=75, after=73)")]

    def disturbed(*args: Any, **options: Any) -> Any:
        if troubles:
            raise troubles.pop()
        return real(*args, **options)

    monkeypatch.setattr(ast, "parse", disturbed)
    assert source_map._structure("if x:\n    y()\n")[0][2] == ((1, 0),)


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("trouble", [SystemError, RecursionError, MemoryError, SyntaxError])
def test_source_that_cannot_be_parsed_is_no_source(trouble: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def disturbed(*args: Any, **options: Any) -> Any:
        raise trouble("no")

    monkeypatch.setattr(ast, "parse", disturbed)
    assert source_map._structure("if x:\n    y()\n")[0] == {}


def test_an_expression_of_very_many_terms_keeps_the_lines_before_it() -> None:
    source = "if x:\n    y()\nz = " + "+".join(["1"] * 3000) + "\n"
    assert source_map._structure(source)[0].get(2, ((1, 0),)) == ((1, 0),)


def test_threads_that_parse_at_once_do_not_disturb_each_other() -> None:
    source = "x = " + "(" * 40 + "1" + ")" * 40 + "\n" + "if x:\n    y(1 + 2 * 3, [4, (5, 6)])\n" * 300
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda n: source_map._structure(f"{source}# {n}\n")[0], range(24)))
    assert all(one == found[0] and one for one in found)


@pytest.mark.usefixtures("unread")
def test_a_child_that_was_forked_while_another_thread_parsed_can_parse() -> None:
    with source_map._PARSING, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)
            os._exit(0 if source_map._structure("if x:\n    y()\n")[0] else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_file_is_named_from_here_or_from_the_top_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").touch()
    for folder in ("shop", "tools/bin"):
        (tmp_path / folder).mkdir(parents=True)
    file = tmp_path / "shop" / "flows.py"
    for here, name in ((tmp_path, "shop/flows.py"), (tmp_path / "shop", "flows.py")):
        monkeypatch.chdir(here)
        assert (short(str(file)), from_here(str(file))) == (name, name)
    monkeypatch.chdir(tmp_path / "tools" / "bin")
    assert (short(str(file)), from_here(str(file))) == ("shop/flows.py", str(file))
    assert short("/elsewhere/flows.py") == "/elsewhere/flows.py"
