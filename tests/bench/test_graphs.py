"""The benchmarks of graphs and flows work, and print what the bars judge."""

from __future__ import annotations

import json

import pytest

from bench import flows, graphs
from bench.run import BARS, FLOWS, GRAPHS, PEERS, Figure, command, judge, table
from bench.workloads import GraphSizes

SMALL = GraphSizes(nodes=3, many_nodes=6, items=(1, 2, 4), turns=1)


async def test_every_workload_prints_what_its_bars_judge(capsys: pytest.CaptureFixture[str]) -> None:
    lines = {}
    for workload in (*GRAPHS, *FLOWS):
        module = graphs if workload in GRAPHS else flows
        await module.measure(workload, "relaxed", SMALL)
        lines["engine", workload] = [json.loads(capsys.readouterr().out)]
    bars = [bar for bar in BARS if bar.figure.workload in (*GRAPHS, *FLOWS)]
    verdicts = [judge(bar, lines) for bar in bars]
    missing = {verdict.bar.reference for verdict in verdicts if verdict.judged is None}
    assert missing == {Figure("langgraph", "graph-chain"), Figure("langgraph", "graph-fanout")}
    assert len(table(verdicts).splitlines()) == len(bars) + 1


def test_every_measurement_of_a_graph_or_a_flow_can_be_small() -> None:
    for bar in BARS:
        for system, workload in bar.systems:
            small = command(system, workload, "sync", "", quick=True)
            assert ("--quick" in small) == (workload in (*GRAPHS, *FLOWS)), small
            assert ("bench.peers" in " ".join(small)) == (system in PEERS)
