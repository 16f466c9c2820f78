"""Graphs: what a node costs beside a step of code, how cost grows with size, memory, and the time to build.

Through the public contract only, like `bench/engine.py`. Each call runs one workload once and prints one JSON line:

    python -m bench.graphs graph-chain --durability sync
"""

import argparse
import asyncio
import gc
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.engine import Setting
from bench.workloads import FULL, QUICK, GraphSizes, Value, emit, memory_mb, value
from perdure import Engine, Invocation, Step, step, workflow
from perdure.graph import Graph, Items, node

SEED = 7
# How many values a node of a random graph takes at most, and how far back they may be.
MOST_SOURCES = 3
REACH = 100
START = value(0)


@dataclass(frozen=True, slots=True)
class Task:
    """What to run, and the result that it must have."""

    program: Callable[..., Invocation[Any]]
    inputs: Mapping[str, object]
    expected: object


@step
async def work(before: Value) -> Value:
    return value(before["i"] + 1)


@step
async def meet(before: list[Value]) -> Value:
    return value(1)


@workflow
async def chain_in_code(steps: int, start: Value) -> Value:
    for _ in range(steps):
        start = await work(start)
    return start


@workflow
async def fanout_in_code(steps: int, start: Value) -> Value:
    return (await asyncio.gather(*[work(start) for _ in range(steps)]))[0]


def chain(nodes: int) -> Graph[..., Value]:
    """Each node takes the value of the one before it."""
    sources = ["start", *(f"n{i}" for i in range(nodes - 1))]
    made = [node(work, name=f"n{i}", inputs={"before": source}) for i, source in enumerate(sources)]
    return Graph(made, name=f"chain-{nodes}", output=made[-1])


def fanout(nodes: int) -> Graph[..., Value]:
    """Every node takes the value that the run starts with."""
    made = [node(work, name=f"n{i}", inputs={"before": "start"}) for i in range(nodes)]
    return Graph(made, name=f"fanout-{nodes}", output=made[0])


def tangle(nodes: int) -> Graph[..., Value]:
    """Each node takes a few values of nodes before it, chosen at random, but the same in every process."""
    chosen = random.Random(SEED)
    made: list[Step[..., Value]] = [node(work, name="n0", inputs={"before": "start"})]
    for i in range(1, nodes):
        near = range(max(0, i - REACH), i)
        sources = chosen.sample(near, min(len(near), chosen.randint(1, MOST_SOURCES)))
        made.append(node(meet, name=f"n{i}", inputs={"before": [f"n{k}" for k in sources]}))
    return Graph(made, name=f"random-{nodes}", output=made[-1])


SHAPES: dict[str, Callable[[int], Graph[..., Value]]] = {"chain": chain, "fanout": fanout, "random": tangle}


@node
async def rows(n: int) -> list[int]:
    return list(range(n))


@node(outputs="done", inputs={"row": "rows"})
async def each(row: int) -> Value:
    return value(row)


@node
async def count(done: Items[Value]) -> int:
    return sum(1 for _ in done)


mapped = Graph([rows, each.map_over("row"), count], name="map", output=count)


def run_of(graph: Graph[..., Value], number: int) -> Task:
    """A run of one of the shapes; `number` is that in its result."""
    return Task(graph, {"start": START}, value(number))


def map_of(items: int) -> Task:
    """A map over so many items."""
    return Task(mapped, {"n": items}, items)


async def in_turn(engine: Engine, tasks: Sequence[Task], turns: int) -> list[float]:
    """Run the tasks one after another, several times, and return the median seconds of each, from start to result."""
    samples: list[list[float]] = [[] for _ in tasks]
    for _ in range(turns):
        for task, seconds in zip(tasks, samples, strict=True):
            began = time.perf_counter()
            run = await engine.start(task.program(**task.inputs))
            result = await run.result()
            seconds.append(time.perf_counter() - began)
            if result != task.expected:
                raise SystemExit(f"{task.program!r} returned {result!r:.200}, not {task.expected!r:.200}")
    return [statistics.median(seconds) for seconds in samples]


def open_engine(setting: Setting, *programs: Any) -> Engine:
    """An engine on the store of this measurement."""
    return Engine(setting.url, programs, name="bench", durability=setting.durability)


async def beside_code(setting: Setting, sizes: GraphSizes, workload: str, graph: Task, code: Task) -> None:
    """A graph, and the workflow that does the same, in turn."""
    async with open_engine(setting, graph.program, code.program) as engine:
        await in_turn(engine, [graph, code], 1)  # warm up
        seconds, in_code = await in_turn(engine, [graph, code], sizes.turns)
    rate = round(sizes.nodes / in_code, 1)
    emit("engine", workload, sizes.nodes, seconds, durability=setting.durability, code_per_second=rate)


async def graph_chain(setting: Setting, sizes: GraphSizes) -> None:
    """One node after another, beside one step after another."""
    n = sizes.nodes
    code = Task(chain_in_code, {"steps": n, "start": START}, value(n))
    await beside_code(setting, sizes, "graph-chain", run_of(chain(n), n), code)


async def graph_fanout(setting: Setting, sizes: GraphSizes) -> None:
    """All nodes at once, beside all steps at once."""
    n = sizes.nodes
    code = Task(fanout_in_code, {"steps": n, "start": START}, value(1))
    await beside_code(setting, sizes, "graph-fanout", run_of(fanout(n), 1), code)


async def graph_growth(setting: Setting, sizes: GraphSizes) -> None:
    """Small and large graphs of each shape in turn: microseconds per node."""
    figures: dict[str, float] = {}
    began = time.perf_counter()
    for shape, made in SHAPES.items():
        small, large = made(sizes.nodes), made(sizes.many_nodes)
        numbers = (sizes.nodes, sizes.many_nodes) if shape == "chain" else (1, 1)
        tasks = [run_of(graph, number) for graph, number in zip((small, large), numbers, strict=True)]
        async with open_engine(setting, small, large) as engine:
            await in_turn(engine, tasks[:1], 1)  # warm up
            seconds = await in_turn(engine, tasks, sizes.turns)
        for size, nodes, total in zip(("small", "large"), (sizes.nodes, sizes.many_nodes), seconds, strict=True):
            figures[f"{shape}_{size}_us"] = round(total / nodes * 1e6, 2)
    seconds_in_all = time.perf_counter() - began
    emit("engine", "graph-growth", sizes.many_nodes, seconds_in_all, durability=setting.durability, **figures)


async def graph_map(setting: Setting, sizes: GraphSizes) -> None:
    """Maps of growing size in turn: microseconds per item."""
    async with open_engine(setting, mapped) as engine:
        await in_turn(engine, [map_of(sizes.items[0])], 1)  # warm up
        seconds = await in_turn(engine, [map_of(items) for items in sizes.items], sizes.turns)
    small, middle, large = (round(total / n * 1e6, 2) for n, total in zip(sizes.items, seconds, strict=True))
    figures = {"small_us": small, "middle_us": middle, "large_us": large}
    emit("engine", "graph-map", sizes.items[-1], seconds[-1], durability=setting.durability, **figures)


async def graph_memory(setting: Setting, sizes: GraphSizes) -> None:
    """The largest map: the peak of the process above what it takes with an engine that has done a small one."""
    async with open_engine(setting, mapped) as engine:
        await in_turn(engine, [map_of(sizes.items[0])], 1)
        gc.collect()
        idle = memory_mb()
        (seconds,) = await in_turn(engine, [map_of(sizes.items[-1])], 1)
        peak = memory_mb("VmHWM")
    figures = {"idle_mb": idle, "peak_mb": peak, "above_idle_mb": round(peak - idle, 1)}
    emit("engine", "graph-memory", sizes.items[-1], seconds, durability=setting.durability, **figures)


async def graph_build(setting: Setting, sizes: GraphSizes) -> None:
    """Nodes and their graph, of the shape that takes longest, in seconds of the processor: nothing waits here."""
    figures: dict[str, float] = {}
    for shape, made in SHAPES.items():
        began = time.process_time()
        made(sizes.many_nodes)
        figures[f"{shape}_seconds"] = round(time.process_time() - began, 4)
    emit("engine", "graph-build", sizes.many_nodes, max(figures.values()), **figures)


WORKLOADS: dict[str, Callable[[Setting, GraphSizes], Awaitable[None]]] = {
    "graph-chain": graph_chain,
    "graph-fanout": graph_fanout,
    "graph-growth": graph_growth,
    "graph-map": graph_map,
    "graph-memory": graph_memory,
    "graph-build": graph_build,
}


async def measure(workload: str, durability: str, sizes: GraphSizes) -> None:
    """Run one workload once, in a fresh folder."""
    with tempfile.TemporaryDirectory() as folder:
        await WORKLOADS[workload](Setting(Path(folder), durability, wake_after=0.0), sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description="One workload of graphs on perdure.")
    parser.add_argument("workload", choices=list(WORKLOADS))
    parser.add_argument("--durability", choices=["sync", "relaxed", "async", "exit"], default="sync")
    parser.add_argument("--quick", action="store_true", help="a fiftieth of the size, to see that it works")
    options = parser.parse_args()
    asyncio.run(measure(options.workload, options.durability, QUICK if options.quick else FULL))


if __name__ == "__main__":
    main()
