"""Flows in the storm: a map, a flow in a flow, sleeps, waits that time out, and steps that fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from perdure import RunStatus
from perdure.flow import Flow, load_flow
from perdure.testing.simulation import STORMY, Crash, Faults, Pause, Report, Simulation
from tests.simulation.grammar import LIMITS

SIDES: tuple[Literal["before", "during", "after"], ...] = ("before", "during", "after")
INNER = """
perdure: 1
name: inner
inputs: {n: integer}
steps:
  - {id: nap, use: sleep, with: {for: 20s}}
  - {id: made, use: work, with: {n: "${{ input.n + 1 }}"}, after: [nap]}
output: ${{ steps.made }}
"""
OUTER = """
perdure: 1
name: outer
inputs: {n: integer}
steps:
  - {id: base, use: work, with: {n: "${{ input.n }}"}}
  - {id: each, map: {over: "${{ [1, 2, 3] }}", limit: 2}, use: work, with: {n: "${{ item * steps.base }}"}}
  - {id: inner, use: "flow:./inner.yaml", with: {n: "${{ steps.base }}"}}
  - {id: wait, use: signal, with: {name: never}, timeout: 1m, on_timeout: {value: 5}}
  - {id: fails, use: broken, with: {n: 1}, retry: {attempts: 2, initial: 1s}, on_error: {value: "${{ steps.base }}"}}
  - {id: skipped, use: broken, with: {n: 2}, when: "${{ steps.base > 100 }}"}
  - {id: wrong, use: work, with: {n: "${{ steps.each[9] }}"}, on_error: skip}
  - id: last
    use: work
    with: {n: "${{ steps.each | sum + steps.inner + steps.wait + steps.fails + steps.skipped | default(1) }}"}
    after: [wrong]
output: {last: "${{ steps.last }}", wrong: "${{ steps.wrong | default('none') }}"}
"""


async def work(n: int) -> int:
    return n


async def broken(n: int) -> int:
    raise ValueError(n)


@pytest.fixture
def flow(tmp_path: Path) -> Flow:
    (tmp_path / "inner.yaml").write_text(INNER)
    (tmp_path / "outer.yaml").write_text(OUTER)
    return load_flow(
        tmp_path / "outer.yaml", python=(), http=(), shell=False, components={"work": work, "broken": broken}
    )


def run(flow: Flow, seed: int, faults: Faults | None = None, **options: Any) -> Report:
    report = Simulation(seed, faults=faults or Faults()).run(
        flow(n=7), programs=[flow], limit=50_000.0, limits=LIMITS, **options
    )
    (result,) = report.results.values()
    assert result.status is RunStatus.COMPLETED, result
    assert result.output == {"last": 7 * 6 + 8 + 5 + 7 + 1, "wrong": "none"}
    return report


def test_a_crash_at_any_append_loses_nothing_of_a_flow(flow: Flow) -> None:
    appends = run(flow, 5).appends
    assert appends > 8
    for number in range(appends):
        for when in SIDES:
            run(flow, 5, crashes=[Crash(number, when)])


def test_a_zombie_adds_nothing_to_a_flow(flow: Flow) -> None:
    appends = run(flow, 3, engines=2).appends
    for number in range(1, appends, 4):
        run(flow, 3, engines=2, pauses=[Pause(number, 60.0, ("before", "after")[number % 2])])


def test_lost_replies_conflicts_and_machines_that_die_in_turn(flow: Flow) -> None:
    for seed in range(12):
        pauses = [Pause(2, 20.0, "after"), Pause(9, 20.0, "before")]
        run(flow, seed, STORMY, engines=2, pauses=pauses, crashes=[Crash(5, "during"), Crash(14)])
