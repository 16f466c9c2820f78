"""A workflow that is defined again under its name: an engine never runs the old code without a word."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, RunStatus, UsageError, blocking, step, wait_signal, workflow
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE

CELL = """
from perdure import step, workflow

@step
async def say() -> str:
    return {said!r}

@workflow
async def inner() -> str:
    return await say()

@workflow
async def flow() -> str:
    return await say()

@workflow
async def outer() -> str:
    return "outer " + await inner()
"""


def run_cell(said: str, notebook: dict[str, Any]) -> dict[str, Any]:
    """Run a cell of a notebook, where all names are those of one module."""
    exec(compile(CELL.format(said=said), "<cell>", "exec"), notebook)  # noqa: S102
    return notebook


async def test_a_cell_that_is_run_twice_is_what_an_open_engine_runs(caplog: pytest.LogCaptureFixture) -> None:
    notebook = run_cell("old", {"__name__": "__main__"})
    async with Engine("memory://", [notebook["flow"]], recovery=AT_ONCE) as engine:
        before = notebook["flow"]()
        assert (await engine.run(notebook["flow"]())).output == "old"
        run_cell("new", notebook)
        assert (await engine.run(notebook["flow"]())).output == "new"
        assert (await engine.run(notebook["flow"]())).output == "new"
        told = [r for r in caplog.records if "was defined again" in r.getMessage()]
        assert len(told) == 1
        assert "'flow'" in told[0].getMessage()
        # An invocation that was made before does not bring the old code back.
        assert (await engine.run(before)).output == "new"


async def test_a_child_that_is_defined_again_is_what_its_parent_runs() -> None:
    notebook = run_cell("old", {"__name__": "__main__"})
    async with Engine("memory://", [notebook["outer"], notebook["inner"]], recovery=AT_ONCE) as engine:
        assert (await engine.run(notebook["outer"]())).output == "outer old"
        run_cell("new", notebook)
        assert (await engine.run(notebook["outer"]())).output == "outer new"


async def test_a_run_under_way_keeps_its_code_until_it_is_loaded_again() -> None:
    def cell(said: str) -> Any:
        @step
        async def say() -> str:
            return said

        @workflow
        async def flow() -> str:
            await wait_signal("go")
            return await say()

        return flow

    old, new = cell("old"), cell("new")
    store = MemoryStore()
    async with Engine(store, [old], recovery=AT_ONCE) as engine:
        waiting = await engine.start(old(), id="waiting")
        _ = await engine.start(new(), id="fresh")
        await engine.signal("fresh", "go")
        assert await engine.handle("fresh").result(PATIENCE) == "new"
        await engine.signal("waiting", "go")
        assert await waiting.result(PATIENCE) in ("old", "new")  # whether it was in memory is a matter of moments


def test_a_blocking_engine_runs_the_new_code_too() -> None:
    notebook = run_cell("old", {"__name__": "__main__"})
    with blocking.Engine("memory://", [notebook["flow"]], recovery=AT_ONCE) as engine:
        assert engine.run(notebook["flow"]()).output == "old"
        run_cell("new", notebook)
        assert engine.run(notebook["flow"]()).output == "new"


async def test_a_module_that_is_loaded_anew_is_what_an_open_engine_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "reloaded_flows.py"
    file.write_text(CELL.format(said="old"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = importlib.import_module("reloaded_flows")
    async with Engine("memory://", [module.flow], recovery=AT_ONCE) as engine:
        assert (await engine.run(module.flow())).output == "old"
        file.write_text(CELL.format(said="brand new"))
        importlib.invalidate_caches()
        module = importlib.reload(module)
        assert (await engine.run(module.flow())).output == "brand new"
    monkeypatch.delitem(sys.modules, "reloaded_flows")


async def test_another_workflow_of_the_same_name_is_refused_and_says_where_both_are() -> None:
    @workflow(name="flow")
    async def one() -> str:
        return "one"

    @workflow(name="flow")
    async def two() -> str:
        return "two"

    with pytest.raises(UsageError, match="two programs are version '1' of 'flow'"):
        _ = Engine("memory://", [one, two])
    async with Engine("memory://", [one], recovery=AT_ONCE) as engine:
        with pytest.raises(UsageError, match=r"another program named 'flow'.*test_redefined\.py:\d+"):
            await engine.run(two())
        assert (await engine.run(one())).output == "one"


async def test_a_new_engine_runs_the_new_code_and_parks_what_does_not_fit_it() -> None:
    notebook = run_cell("old", {"__name__": "__main__"})
    store = MemoryStore()
    async with Engine(store, [notebook["flow"]], recovery=AT_ONCE) as engine:
        result = await engine.run(notebook["flow"]())
        assert result.status is RunStatus.COMPLETED
    run_cell("new", notebook)
    async with Engine(store, [notebook["flow"]], recovery=AT_ONCE) as engine:
        assert (await engine.run(notebook["flow"]())).output == "new"
