"""The benchmarks of graphs, flows and many runs work, and print what the bars judge."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bench import flows, graphs, scale
from bench.run import BARS, FLOWS, GRAPHS, MODULES, PEERS, SCALE, Figure, command, judge, table
from bench.workloads import GraphSizes

FEW = replace(scale.QUICK, sleeping=20, finished=20, waking=2, children=(2, 4), runs=4)
SMALL = GraphSizes(nodes=3, many_nodes=6, items=(1, 2, 4), turns=1)


async def test_every_workload_prints_what_its_bars_judge(capsys: pytest.CaptureFixture[str]) -> None:
    lines = {}
    for workload in (*GRAPHS, *FLOWS):
        module = graphs if workload in GRAPHS else flows
        await module.measure(workload, "relaxed", SMALL)
        lines["engine", workload] = [json.loads(capsys.readouterr().out)]
    for workload in SCALE:
        await scale.measure(workload, "relaxed", FEW)
        lines["engine", workload] = [json.loads(capsys.readouterr().out)]
    bars = [bar for bar in BARS if bar.figure.workload in MODULES]
    verdicts = [judge(bar, lines) for bar in bars]
    missing = {verdict.bar.reference for verdict in verdicts if verdict.judged is None}
    assert missing == {Figure("langgraph", "graph-chain"), Figure("langgraph", "graph-fanout")}
    assert len(table(verdicts).splitlines()) == len(bars) + 1


def test_every_measurement_that_takes_long_can_be_small() -> None:
    for bar in BARS:
        for system, workload in bar.systems:
            small = command(system, workload, "sync", "", quick=True)
            assert ("--quick" in small) == (workload in MODULES), small
            assert ("bench.peers" in " ".join(small)) == (system in PEERS)
