"""What steps and runs cost, counted and not timed, does not grow: bench/budget.json has the figures."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bench import budget
from perdure import Engine, step, workflow
from tests.docs.markdown import ROOT


def test_no_cost_has_grown() -> None:
    # In a process of its own: what other tests have left in this one would be counted.
    done = subprocess.run(
        [sys.executable, "-m", "bench.budget"],
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_table_has_every_workload() -> None:
    table = budget.read()
    for entry in table.values():
        assert set(entry) >= set(budget.WORKLOADS)


def test_what_has_grown_is_named_and_what_has_shrunk_passes() -> None:
    costs: dict[str, budget.Costs] = {"seq": {"step": {"calls": 100, "commits": 1}, "run": {"calls": 300}}}
    table = budget.updated({budget.ANY: {"start on PostgreSQL": {"run": {"statements": 3}}}}, costs)
    assert table == {
        budget.ANY: {
            "start on PostgreSQL": {"run": {"statements": 3}},
            "seq": {"step": {"commits": 1}, "run": {}},
        },
        budget.PYTHON: {"seq": {"step": {"calls": 100}, "run": {"calls": 300}}},
    }
    assert budget.grown(table, costs) == []
    assert "0.5 (1)" in budget.shown(table, {"seq": {"step": {"calls": 99, "commits": 0.5}}})
    more: dict[str, budget.Costs] = {"seq": {"step": {"calls": 101, "commits": 2}, "run": {"calls": 299}}}
    assert budget.grown(table, more) == [
        "seq: 101 calls per step, 100 in the table",
        "seq: 2 commits per step, 1 in the table",
    ]
    # A version of Python that has no entry.
    del table[budget.PYTHON]
    assert budget.grown(table, more) == ["seq: 2 commits per step, 1 in the table"]


@pytest.mark.parametrize("any_url", ["postgres"], indirect=True)
async def test_a_step_and_a_run_on_postgres_take_no_more_statements(any_url: str) -> None:
    asked: list[str] = []
    in_step: list[int] = []
    in_run: list[int] = []

    @step
    async def charge(amount: int) -> int:
        return amount + 1

    @workflow
    async def shop(steps: int) -> int:
        amount = 0
        for _ in range(steps):
            before = len(asked)
            amount = await charge(amount)
            in_step.append(len(asked) - before)
        return amount

    async with Engine(any_url, [shop]) as engine:
        await engine.run(shop(10))
        engine.store.trace(asked.append)
        await engine.run(shop(10))
        for number in range(10):
            before = len(asked)
            await engine.run(shop(1), id=f"order-{number}")
            in_run.append(len(asked) - before)
        engine.store.trace(None)

    # The engine's own polling falls into some of them.
    costs: dict[str, budget.Costs] = {
        "seq on PostgreSQL": {"step": {"statements": min(in_step[10:])}},
        "start on PostgreSQL": {"run": {"statements": min(in_run)}},
    }
    assert budget.grown(budget.read(), costs) == [], asked
