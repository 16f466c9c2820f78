"""Flows: what a step costs beside a node of a graph, how long one takes to read and to check, what a batch holds.

Each call runs one workload once and prints one JSON line, like `bench/graphs.py`:

    python -m bench.flows flow-chain --durability sync
"""

import argparse
import asyncio
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from bench.engine import Setting
from bench.graphs import START, Task, chain, in_turn, open_engine, run_of, work
from bench.workloads import FULL, QUICK, GraphSizes, Value, emit, memory_mb, value
from perdure import Engine
from perdure.flow import Flow, load_flow

# How often the command is started, of which the median counts.
STARTS = 5

# What a batch runs for each row: a function, and a value that is made of its result.
ROW_TEXT = """
perdure: 1
name: row
inputs: {number: integer}
steps:
  - {id: made, use: make, with: {number: "${{ input.number }}"}}
  - {id: said, use: value, with: "row ${{ steps.made.i }}"}
output: {i: "${{ steps.made.i }}", said: "${{ steps.said }}"}
"""


def chain_text(steps: int, name: str = "") -> str:
    """A flow in which each step takes the result of the one before."""
    lines = [f"perdure: 1\nname: {name or f'flow-{steps}'}\ninputs: {{start: object}}\nsteps:\n"]
    for i in range(steps):
        before = f"steps.n{i - 1}" if i else "input.start"
        lines.append(f'  - {{id: n{i}, use: follow, with: {{before: "${{{{ {before} }}}}"}}}}\n')
    return "".join([*lines, f"output: ${{{{ steps.n{steps - 1} }}}}\n"])


def typical_text(steps: int) -> str:
    """A flow as people write them: expressions in texts, conditions, retries."""
    lines = ["perdure: 1\nname: typical\ninputs: {date: {type: string}, n: {type: integer, default: 3}}\nsteps:\n"]
    for i in range(steps):
        number = f"steps.n{i - 1}.number | default(0)" if i else "input.n"
        lines.append(f"""\
  - id: n{i}
    use: value
    with:
      text: "step {i} of ${{{{ input.date }}}}"
      number: ${{{{ {number} }}}}
      list: [1, two, true]
    when: ${{{{ input.n > {i % 5} }}}}
    retry: {{attempts: 3, initial: 1s}}
""")
    return "".join(lines)


def flow_of(text: str, components: Mapping[str, Callable[..., Any]]) -> Flow:
    """The flow of a text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "flow.yaml"
        path.write_text(text, encoding="utf-8")
        return load_flow(path, python=(), http=(), shell=False, profile="", components=components)


async def flow_chain(setting: Setting, sizes: GraphSizes) -> None:
    """A flow, and the graph that does the same, in turn."""
    n = sizes.nodes
    flow, graph = flow_of(chain_text(n), {"follow": work.fn}), run_of(chain(n), n)
    same = Task(flow, {"start": START}, value(n))
    async with open_engine(setting, flow, graph.program) as engine:
        await in_turn(engine, [same, graph], 1)  # warm up
        seconds, in_graph = await in_turn(engine, [same, graph], sizes.turns)
    rate = round(n / in_graph, 1)
    emit("engine", "flow-chain", n, seconds, durability=setting.durability, graph_per_second=rate)


async def flow_load(setting: Setting, sizes: GraphSizes) -> None:
    """Read, check and compile a flow, in seconds of the processor: nothing waits here."""
    path = setting.folder / "typical.yaml"
    path.write_text(typical_text(sizes.nodes), encoding="utf-8")
    figures = []
    for _ in range(sizes.turns + 1):
        began = time.process_time()
        load_flow(path, python=(), http=(), shell=False, profile="")
        figures.append(time.process_time() - began)
    emit("engine", "flow-load", sizes.nodes, min(figures), ms=round(min(figures) * 1000, 1))


async def flow_check(setting: Setting, sizes: GraphSizes) -> None:
    """`perdure flow check` of a small file, with the start of Python."""
    path = setting.folder / "small.yaml"
    path.write_text(chain_text(5).replace("use: follow", "use: value"), encoding="utf-8")
    command = [sys.executable, "-m", "perdure.cli", "flow", "check", str(path)]
    # An installed package has its bytecode; the first start writes it.
    given = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    given["PYTHONPYCACHEPREFIX"] = str(setting.folder / "bytecode")
    seconds = []
    for _ in range(1 + STARTS):
        began = time.perf_counter()
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, env=given)
        seconds.append(time.perf_counter() - began)
    emit("engine", "flow-check", 1, statistics.median(seconds[1:]))


async def make(number: int) -> Value:
    return value(number)


async def batch_of(engine: Engine, flow: Flow, rows: int) -> float:
    """Run a flow once for each of so many rows; says how many seconds that took, and checks every result."""
    began = time.perf_counter()
    handle = await engine.start_batch(flow, ({"number": number} for number in range(rows)))
    results = await handle.result()
    seconds = time.perf_counter() - began
    wrong = [i for i, found in enumerate(results) if found != {"i": i, "said": f"row {i}"}]
    if wrong or len(results) != rows:
        raise SystemExit(f"a batch of {rows} rows gave {len(results)} results, {len(wrong)} of them wrong: {wrong[:5]}")
    return seconds


async def flow_batch(setting: Setting, sizes: GraphSizes) -> None:
    """A batch of a flow with the most rows: the peak of the process above what it takes after a small batch."""
    flow = flow_of(ROW_TEXT, {"make": make})
    async with open_engine(setting, flow) as engine:
        await batch_of(engine, flow, sizes.items[0])
        gc.collect()
        idle = memory_mb()
        seconds = await batch_of(engine, flow, sizes.items[-1])
        peak = memory_mb("VmHWM")
    figures = {"idle_mb": idle, "peak_mb": peak, "above_idle_mb": round(peak - idle, 1)}
    emit("engine", "flow-batch", sizes.items[-1], seconds, durability=setting.durability, **figures)


WORKLOADS: dict[str, Callable[[Setting, GraphSizes], Awaitable[None]]] = {
    "flow-chain": flow_chain,
    "flow-load": flow_load,
    "flow-check": flow_check,
    "flow-batch": flow_batch,
}


async def measure(workload: str, durability: str, sizes: GraphSizes) -> None:
    """Run one workload once, in a fresh folder."""
    with tempfile.TemporaryDirectory() as folder:
        await WORKLOADS[workload](Setting(Path(folder), durability, wake_after=0.0), sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description="One workload of flows on perdure.")
    parser.add_argument("workload", choices=list(WORKLOADS))
    parser.add_argument("--durability", choices=["sync", "relaxed", "async", "exit"], default="sync")
    parser.add_argument("--quick", action="store_true", help="a fiftieth of the size, to see that it works")
    options = parser.parse_args()
    asyncio.run(measure(options.workload, options.durability, QUICK if options.quick else FULL))


if __name__ == "__main__":
    main()
