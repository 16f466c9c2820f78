"""Workloads that only make sense on a server: commits by hand, round trips, and several worker processes.

python -m bench.server raw|trips|workers --store postgresql://...
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import msgspec

from bench.engine import PROGRAMS, Setting, count_statements, many_runs, open_engine, sequence
from bench.workloads import MANY_STEPS, PARK_SECONDS, SEQ_STEPS, START_BATCH, emit, value
from perdure import Engine, Queue, connect

MODULE = "bench.server"
WORKER_RUNS = 2_000
POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSetting(Setting):
    """Where and how one workload is measured; `round` is how many workers share the work."""

    round: int = field(default=1)


async def raw(setting: ServerSetting) -> None:
    """As many single-row commits as `seq` has steps, on one connection, one after another."""
    connection = await asyncpg.connect(setting.store)
    try:
        await connection.execute("create table raw (run bigint, seq bigint, name text, output text)")
        insert = await connection.prepare("insert into raw values ($1, $2, $3, $4)")
        began = time.perf_counter()
        for i in range(SEQ_STEPS):
            await insert.fetchval(1, i, "step", msgspec.json.encode(value(i)).decode())
        emit("raw", "seq", SEQ_STEPS, time.perf_counter() - began)
    finally:
        await connection.close()


async def trips(setting: ServerSetting) -> None:
    """Round trips of `many`, measured separately because counting takes time."""
    asked: list[str] = []
    async with open_engine(setting) as engine:
        count_statements(engine, asked.append)
        began = time.perf_counter()
        steps = await many_runs(engine)
        seconds = time.perf_counter() - began
    emit("engine", "trips", steps, seconds, durability=setting.durability, per_step=round(len(asked) / steps, 4))


async def workers(setting: ServerSetting) -> None:
    """Queued runs executed by one process, then by two: does the second add what a second core can?"""
    rates = [await asyncio.to_thread(measure_workers, setting, count) for count in (1, 2)]
    steps = WORKER_RUNS * MANY_STEPS
    emit(
        "engine",
        "workers",
        steps,
        steps / rates[1],
        durability=setting.durability,
        one_per_second=round(rates[0], 1),
        two_to_one=round(rates[1] / rates[0], 3),
    )


def measure_workers(setting: ServerSetting, count: int) -> float:
    """Steps per second of `workers` processes, from their start signal until the queue is empty."""
    asyncio.run(enqueue(setting, count))
    places = ["--folder", str(setting.folder), "--round", str(count)]
    command = [sys.executable, "-m", MODULE, "work", *setting.arguments, *places]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    try:
        lines = [process.stdout for process in processes if process.stdout is not None]
        for line in lines:
            line.readline()  # it is ready
        began = time.time()
        (setting.folder / f"go-{count}").touch()
        ended = max(float(line.readline()) for line in lines)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return WORKER_RUNS * MANY_STEPS / (ended - began)


async def enqueue(setting: ServerSetting, count: int) -> None:
    """Put the runs of one round into a queue, before any worker serves it."""
    async with Engine(setting.url):
        pass  # the first engine creates the schema
    async with connect(setting.url) as client:
        for first in range(0, WORKER_RUNS, START_BATCH):
            ids = [f"work-{count}-{i}" for i in range(first, min(first + START_BATCH, WORKER_RUNS))]
            starts = [
                client.start(sequence(MANY_STEPS), id=id, queue=f"round-{count}", durability=setting.durability)
                for id in ids
            ]
            await asyncio.gather(*starts)


async def work(setting: ServerSetting) -> None:
    """One worker: report ready, work until the queue is empty, and report when that was."""
    name = f"round-{setting.round}"
    print("ready", flush=True)
    while not (setting.folder / f"go-{setting.round}").exists():
        await asyncio.sleep(0.005)
    async with Engine(setting.url, PROGRAMS, durability=setting.durability, serves=[name], queues=[Queue(name)]) as one:
        while any(view.queued or view.running for view in await one.queues()):
            await asyncio.sleep(POLL_SECONDS)
        print(time.time(), flush=True)
        await asyncio.sleep(PARK_SECONDS)


WORKLOADS: dict[str, Callable[[ServerSetting], Awaitable[None]]] = {
    "raw": raw,
    "trips": trips,
    "workers": workers,
    "work": work,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="One workload on a server.")
    parser.add_argument("workload", choices=list(WORKLOADS))
    parser.add_argument("--store", required=True, help="the URL of an empty database")
    parser.add_argument("--durability", choices=["sync", "relaxed"], default="sync")
    parser.add_argument("--folder", type=Path, help="`work`: where the others are")
    parser.add_argument("--round", type=int, default=1, help="`work`: how many share the work")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as fresh:
        setting = ServerSetting(
            folder=options.folder or Path(fresh),
            durability=options.durability,
            wake_after=0.0,
            store=options.store,
            round=options.round,
        )
        asyncio.run(WORKLOADS[options.workload](setting))


if __name__ == "__main__":
    main()
