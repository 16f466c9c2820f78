"""What one run, one step and one idle orchestrator cost a store: bytes, statements, commits. Never how long it takes.

    python -m bench.capacity [--stores sqlite,postgres,redis] [--runs 1000] [--idle 60] [--json FILE]

These hardly depend on the machine, so what a million runs or a hundred orchestrators need can be computed from them
(docs/capacity.md). Servers are started as for the tests, and stopped. Reaches behind the public contract in one place,
the store's trace of statements.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from perdure import Engine, Recovery, sleep, step, workflow

AT_ONCE = 100
STEPS = 10
TEXT = "x" * 100
ACTIVE, ASLEEP = 1_000, 10_000
LEFT_MEMORY_SECONDS = 2.5
RECOVERED = 100
LEASE = 2.0
WAITING = 1_000
STORES = ("sqlite", "postgres", "redis")


@step
async def work(i: int) -> dict[str, Any]:
    return {"i": i, "text": TEXT}


@workflow
async def sequence(n: int) -> int:
    for i in range(n):
        await work(i)
    return n


@step
async def hang(folder: str) -> None:
    """Print a line, and wait until the process is killed or gets a line on standard input."""
    HUNG.append(folder)
    while not folder or not (Path(folder) / "go").exists():
        await asyncio.sleep(0.05 if folder else 3600)


HUNG: list[str] = []


@workflow
async def hanging(folder: str) -> None:
    for i in range(STEPS // 2):
        await work(i)
    await hang(folder)


@workflow
async def sleeper() -> None:
    await sleep(86_400)


PROGRAMS: list[Any] = [sequence, hanging, sleeper]


async def run_many(engine: Engine, runs: int, steps: int, at_once: int = AT_ONCE) -> None:
    """Execute `runs` runs, a hundred at a time."""
    room = asyncio.Semaphore(at_once)

    async def one(number: int) -> None:
        async with room:
            await (await engine.start(sequence(steps), id=f"order-{steps}-{number}")).result()

    await asyncio.gather(*[one(number) for number in range(runs)])


# --- the size of a store ---------------------------------------------------------------------------------------------


async def taken(url: str) -> dict[str, int]:
    """The size of the store with its indexes; on PostgreSQL also its WAL and its transactions."""
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        import apsw

        db = apsw.Connection(url.removeprefix("sqlite:///"))
        # Checkpoint, so that the write-ahead log is counted in the file.
        size = db.pragma("page_count") * db.pragma("page_size")
        db.close()
        return {"bytes": size}
    if scheme == "postgresql":
        import asyncpg  # type: ignore[import-untyped]

        connection = await asyncpg.connect(url)
        size = "select coalesce(sum(pg_total_relation_size(oid)), 0)::bigint from pg_class where relkind = 'r'"
        size += " and relname like 'perdure%'"
        found = {"bytes": await connection.fetchval(size)}
        found["wal"] = await connection.fetchval("select pg_current_wal_lsn() - '0/0'::pg_lsn")
        found["transactions"] = await connection.fetchval("select pg_current_xact_id()::text::bigint")
        await connection.close()
        return {name: int(value) for name, value in found.items()}
    import redis

    with redis.Redis.from_url(url) as server:
        return {"bytes": int(server.info("memory")["used_memory"])}


async def sizes(url: str, runs: int, steps: int) -> dict[str, float]:
    """The bytes, round trips and commits of `runs` runs with `steps` steps each."""
    counted: Counter[str] = Counter()
    async with Engine(url, PROGRAMS, name="capacity") as engine:
        await run_many(engine, 1, 1)  # connections, prepared statements
        before = await taken(url)
        engine.store.trace(lambda statement: counted.update([kind(statement)]))
        await run_many(engine, runs, steps)
        engine.store.trace(None)
        after = await taken(url)
    found = {name: (after[name] - before[name]) / runs for name in after}
    found["trips"] = sum(counted.values()) / runs
    commits = {"sqlite": counted["commit"], "redis": counted["evalsha"] + counted["fcall"]}
    scheme = url.partition("://")[0]
    found["commits"] = found.get("transactions", commits.get(scheme, 0) / runs)
    return found


def kind(statement: str) -> str:
    return statement.split(None, 1)[0].lower().rstrip(";")


# --- orchestrators ---------------------------------------------------------------------------------------------------


async def idle(url: str, seconds: float) -> float:
    """Statements per minute of an idle orchestrator with a thousand sleeping runs."""
    count = 0

    def note(_: str) -> None:
        nonlocal count
        count += 1

    async with Engine(url, PROGRAMS, name="idle") as engine:
        for first in range(0, WAITING, AT_ONCE):
            ids = [f"sleeper-{number}" for number in range(first, first + AT_ONCE)]
            await asyncio.gather(*[engine.start(sleeper(), id=id) for id in ids])
        await asyncio.sleep(LEFT_MEMORY_SECONDS + 1)
        engine.store.trace(note)
        await asyncio.sleep(seconds)
        return count * 60 / seconds


async def hold(url: str, name: str, folder: str) -> None:
    """For `recovery`: runs in their sixth step of six, until this process is killed."""
    async with Engine(url, PROGRAMS, name=name, recovery=Recovery(lease=LEASE)) as engine:
        for number in range(RECOVERED):
            _ = await engine.start(hanging(folder), id=f"hanging-{number}")
        while len(HUNG) < RECOVERED:
            await asyncio.sleep(0.01)
        print("ready", flush=True)
        await asyncio.sleep(600)


async def recovery(url: str, folder: Path) -> dict[str, float]:
    """Round trips per run until a restarted orchestrator, or another one, executes the steps interrupted by kill -9."""
    found = {}
    for successor in ("node", "other"):
        place = folder / successor
        place.mkdir()
        command = [sys.executable, "-m", "bench.capacity", "--hold", url, "node", str(place)]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        if await process.stdout.readline() != b"ready\n":
            raise SystemExit("the process to be killed did not get ready")
        process.kill()
        await process.wait()
        count = 0

        def note(_: str) -> None:
            nonlocal count
            count += 1

        HUNG.clear()
        engine = Engine(
            url, PROGRAMS, name=successor, recovery=Recovery(lease=LEASE, check_interval=0.5, max_claims=RECOVERED)
        )
        engine.store.trace(note)
        async with engine:
            while len(HUNG) < RECOVERED:
                await asyncio.sleep(0.01)
            found[successor] = count / RECOVERED
            engine.store.trace(None)
            (place / "go").touch()
            for number in range(RECOVERED):
                await (await engine.start(hanging(""), id=f"hanging-{number}")).outcome()
        if successor == "node":
            await forget(url)
    return found


async def forget(url: str) -> None:
    from perdure import connect

    async with connect(url) as client:
        await client.prune(older_than=0)


def memory() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise LookupError("/proc/self/status has no VmRSS")


async def weigh(what: str, folder: str) -> None:
    """Print the memory that one more run takes, active or asleep, from the growth in the second half of the runs."""
    each = ACTIVE if what == "active" else ASLEEP
    async with Engine(f"sqlite:///{folder}/weigh.db", PROGRAMS, max_concurrency=10**6) as engine:
        weights = []
        for first in (0, each, 2 * each):
            for batch in range(first, first + each, AT_ONCE):
                ids = [f"{what}-{number}" for number in range(batch, batch + AT_ONCE)]
                await asyncio.gather(
                    *[engine.start(hanging("") if what == "active" else sleeper(), id=id) for id in ids]
                )
            if what == "active":
                while len(HUNG) < first + each:
                    await asyncio.sleep(0.01)
            else:
                await asyncio.sleep(LEFT_MEMORY_SECONDS + 1)
            weights.append(memory())
        print((weights[2] - weights[0]) / (2 * each), flush=True)
        # Skip the graceful shutdown, which would hand over every run.
        os.kill(os.getpid(), signal.SIGKILL)


# --- everything ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def stores(kind: str, shared: Any, folder: Path) -> Iterator[Make]:
    """Creates empty stores of one kind."""
    from tests.services.shared import empty_postgres, empty_redis

    numbers = iter(range(10**6))

    @contextlib.contextmanager
    def sqlite() -> Iterator[str]:
        yield f"sqlite:///{folder}/{next(numbers)}.db"

    yield {"sqlite": sqlite, "postgres": lambda: empty_postgres(shared), "redis": lambda: empty_redis(shared)}[kind]


Make = Callable[[], contextlib.AbstractContextManager[str]]


async def stored(make: Make, runs: int) -> dict[str, float]:
    """The bytes, statements and commits of a step and of a run in a store."""
    with make() as url:
        short = await sizes(url, runs, 1)
    with make() as url:
        long = await sizes(url, runs, 1 + STEPS)
    with make() as url:
        alone = await sizes(url, 1, 20 * STEPS)
    per_step = {name: (long[name] - short[name]) / STEPS for name in short}
    per_run = {name: short[name] - per_step[name] for name in short}
    found = {
        "bytes per step": per_step["bytes"],
        "bytes per run, without its steps": per_run["bytes"],
        "statements per step, 100 runs at a time": per_step["trips"],
        "statements per run, without its steps": per_run["trips"],
        "statements per step, one run alone": alone["trips"] / (20 * STEPS),
        "commits per step, 100 runs at a time": per_step["commits"],
        "commits per step, one run alone": alone["commits"] / (20 * STEPS),
    }
    if "wal" in per_step:
        found["write-ahead log per step, bytes"] = per_step["wal"]
        found["write-ahead log per run, without its steps, bytes"] = per_run["wal"]
    return found


async def measure(kind: str, shared: Any, folder: Path, runs: int, seconds: float) -> dict[str, float]:
    """Every unit cost of one kind of store."""
    with stores(kind, shared, folder) as make:
        found = await stored(make, runs)
        with make() as url:
            found["statements a minute, idle"] = await idle(url, seconds)
        with make() as url:
            recovered = await recovery(url, Path(tempfile.mkdtemp(dir=folder)))
    found["statements per run recovered, same name"] = recovered["node"]
    found["statements per run recovered, by another"] = recovered["other"]
    return found


def weights() -> dict[str, float]:
    found = {}
    for what in ("active", "asleep"):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "bench.capacity", "--weigh", what, folder]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            found[f"bytes of memory per run {what}"] = float(done.stdout)
    return found


def table(found: dict[str, dict[str, float]]) -> str:
    names = list(dict.fromkeys(name for values in found.values() for name in values))
    lines = [f"| unit | {' | '.join(found)} |", f"| --- |{' ---: |' * len(found)}"]
    for name in names:
        cells = [f"{values[name]:,.{digits(values[name])}f}" if name in values else "" for values in found.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def digits(value: float) -> int:
    return 0 if abs(value) >= 20 else 1 if abs(value) >= 3 else 3


@contextlib.asynccontextmanager
async def servers() -> AsyncIterator[Any]:
    from tests.services.shared import Shared

    shared = Shared.make()
    try:
        yield shared
    finally:
        shared.end()


async def main(kinds: list[str], runs: int, seconds: float, file: str | None) -> None:
    found = {}
    async with servers() as shared:
        with tempfile.TemporaryDirectory() as folder:
            for kind in kinds:
                found[kind] = await measure(kind, shared, Path(folder), runs, seconds)
    print(table(found), flush=True)
    print()
    process = weights()
    print(table({"process": process}))
    if file is not None:
        Path(file).write_text(json.dumps({"stores": found, "process": process}, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--stores", default=",".join(STORES))
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--idle", type=float, default=60)
    parser.add_argument("--json")
    parser.add_argument("--hold", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--weigh", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.hold:
        asyncio.run(hold(*given.hold))
    elif given.weigh:
        asyncio.run(weigh(*given.weigh))
    else:
        asyncio.run(main(given.stores.split(","), given.runs, given.idle, given.json))
