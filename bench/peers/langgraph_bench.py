"""Do the work of a chain and a fan-out of nodes on LangGraph with its SQLite saver. Never tunes it, never handicaps it.

Runs from its own environment (`bench/requirements-peers.txt`), without perdure:

    .venv-peers/bin/python -m bench.peers.langgraph_bench graph-chain

`durability="sync"`: as in the engine, a step is stored before the next one begins. The state is as small as it can be:
a chain keeps its last value only. The chain uses its blocking functions, the fan-out asyncio, which is its faster side
for each.
"""

# LangGraph is not installed where the project is checked.
# mypy: disable-error-code="import-not-found"

import argparse
import asyncio
import operator
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

from bench.workloads import FULL, QUICK, Value, emit, value

# Runs once before the clock starts, with few nodes.
WARM_UP = 10


class Chain(TypedDict):
    last: Value


class Fanout(TypedDict):
    start: Value
    done: Annotated[list[Value], operator.add]


def follow(state: Chain) -> Chain:
    return {"last": value(state["last"]["i"] + 1)}


async def work(state: Fanout) -> dict[str, list[Value]]:
    return {"done": [value(state["start"]["i"] + 1)]}


def chain_of(nodes: int) -> Any:
    """Each node takes the value of the one before it."""
    names = [f"n{i}" for i in range(nodes)]
    graph = StateGraph(Chain)
    for before, name in zip([START, *names], names, strict=False):
        graph.add_node(name, follow)
        graph.add_edge(before, name)
    return graph.add_edge(names[-1], END)


def fanout_of(nodes: int) -> Any:
    """Every node takes the value that the run starts with."""
    graph = StateGraph(Fanout)
    for name in [f"n{i}" for i in range(nodes)]:
        graph.add_node(name, work)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    return graph


def options(nodes: int) -> dict[str, Any]:
    """A thread of its own, and as many rounds as the graph has."""
    return {
        "config": {"configurable": {"thread_id": f"run-{nodes}"}, "recursion_limit": nodes + 10},
        "durability": "sync",
    }


def chain(folder: Path, nodes: int) -> None:
    with SqliteSaver.from_conn_string(str(folder / "langgraph.db")) as saver:
        for n in (WARM_UP, nodes):
            graph = chain_of(n).compile(checkpointer=saver)
            began = time.perf_counter()
            state = graph.invoke({"last": value(0)}, **options(n))
            seconds = time.perf_counter() - began
    assert state == {"last": value(nodes)}, state
    emit("langgraph", "graph-chain", nodes, seconds)


def fanout(folder: Path, nodes: int) -> None:
    async def both() -> None:
        async with AsyncSqliteSaver.from_conn_string(str(folder / "langgraph.db")) as saver:
            for n in (WARM_UP, nodes):
                graph = fanout_of(n).compile(checkpointer=saver)
                began = time.perf_counter()
                state = await graph.ainvoke({"start": value(0), "done": []}, **options(n))
                seconds = time.perf_counter() - began
        assert state["done"] == [value(1)] * nodes, state
        emit("langgraph", "graph-fanout", nodes, seconds)

    asyncio.run(both())


WORKLOADS: dict[str, Callable[[Path, int], None]] = {"graph-chain": chain, "graph-fanout": fanout}


def main() -> None:
    parser = argparse.ArgumentParser(description="One workload on LangGraph.")
    parser.add_argument("workload", choices=list(WORKLOADS))
    parser.add_argument("--quick", action="store_true", help="few nodes, to see that it works")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        WORKLOADS[given.workload](Path(folder), (QUICK if given.quick else FULL).nodes)


if __name__ == "__main__":
    main()
