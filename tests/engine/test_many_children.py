"""Many children of one workflow: each costs what it costs among few."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, child, step, wait_signal, workflow


@step
async def double(x: int) -> int:
    return x * 2


@workflow
async def one(x: int) -> int:
    return await double(x)


@workflow
async def together(count: int) -> int:
    found = await asyncio.gather(*(child(one(x)) for x in range(count)))
    await wait_signal("go")
    return sum(found)


@workflow
async def in_turn(count: int) -> int:
    found = [await child(one(x)) for x in range(count)]
    await wait_signal("go")
    return sum(found)


def lines_of(work: Any) -> int:
    """How many lines of Python some work executes; each round of a loop is at least one."""
    count = 0

    def traced(frame: Any, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        asyncio.run(work)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("parent", [together, in_turn])
def test_the_children_of_a_workflow_cost_the_same_each_however_many_there_are(tmp_path: Path, parent: Any) -> None:
    async def run(count: int) -> None:
        async with Engine(f"sqlite:///{tmp_path}/{count}.db", [parent, one]) as engine:
            result = await engine.run(parent(count), id="r", until="rest")
            assert result.interrupted

    async def go_on(count: int) -> None:
        async with Engine(f"sqlite:///{tmp_path}/{count}.db", [parent, one]) as engine:
            await engine.signal("r", "go")
            assert await engine.handle("r").result() == sum(range(count)) * 2

    few, many = 100, 600
    run_few, run_many = [lines_of(run(count)) / count for count in (few, many)]
    assert run_many < 1.15 * run_few
    # The signal may come before the journal is read, or after: then it is replayed twice.
    replayed_few, replayed_many = [lines_of(go_on(count)) / count for count in (few, many)]
    assert replayed_many < 2.3 * replayed_few
