"""Waiting runs: how soon a signal reaches the body, many timers at once, and what waiting costs.

Through the public contract only, like `bench/engine.py`, of which these are workloads:

    python -m bench.engine signal
"""

import asyncio
import contextlib
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import apsw

from bench.workloads import percentile
from perdure import Engine, Program, connect, sleep_until, wait_signal, workflow

SIGNALS = 500
SIGNALS_ACROSS = 100
COMMITS_BETWEEN = 2
LEFT_MEMORY_SECONDS = 2.5
TIMERS = 20_000
WAITING_RUNS = 1_000

# When bodies continued, by signal. A body must not read a clock; these do so only for the measurement.
GOING: dict[str, float] = {}


def go_on(what: str) -> None:
    """Record the time, but only once: a replay passes here again."""
    GOING.setdefault(what, time.perf_counter())


@workflow
async def once(number: int) -> None:
    await wait_signal("go")
    go_on(f"cold-{number}")


@workflow
async def again(count: int) -> None:
    for n in range(count):
        await wait_signal("go")
        go_on(f"hot-{n}")


@workflow
async def across(count: int, path: str) -> None:
    for n in range(count):
        await wait_signal("go")
        if f"across-{n}" not in GOING:
            go_on(f"across-{n}")
            with open(path, "a") as file:
                file.write(f"{n} {GOING[f'across-{n}']}\n")


@workflow
async def ring(at: datetime) -> None:
    await sleep_until(at)


PROGRAMS: list[Program] = [once, again, across, ring]


class Commits:
    """A separate database on the same disk, to measure a commit under the same conditions."""

    def __init__(self, folder: Path, sync: str) -> None:
        self._db = apsw.Connection(str(folder / "commits.db"))
        self._db.pragma("journal_mode", "wal")
        self._db.pragma("synchronous", sync)
        self._db.execute("create table t (id integer primary key, text text)")
        self.seconds: list[float] = []

    def sample(self) -> None:
        """Commit a row, and note how long that takes."""
        for _ in range(COMMITS_BETWEEN):
            began = time.perf_counter()
            self._db.execute("begin immediate; insert into t (text) values (?); commit", ("x" * 200,))
            self.seconds.append(time.perf_counter() - began)


def in_commits(name: str, samples: Sequence[float], commit: float) -> dict[str, float]:
    """The percentiles of some latencies, in milliseconds and in commits."""
    p50, p99 = statistics.median(samples), percentile(samples, 0.99)
    return {
        f"{name}_p50_ms": round(p50 * 1000, 3),
        f"{name}_p99_ms": round(p99 * 1000, 3),
        f"{name}_p50_commits": round(p50 / commit, 2),
        f"{name}_p99_commits": round(p99 / commit, 2),
    }


async def signal(engine: Engine, folder: Path, sync: str) -> dict[str, float]:
    """From the call of `signal` until the body continues: a run in memory, and evicted runs."""
    commits = Commits(folder, sync)
    for n in range(SIGNALS):
        _ = await engine.start(once(n), id=f"cold-{n}")
    hot = await engine.start(again(SIGNALS), id="hot")
    await asyncio.sleep(LEFT_MEMORY_SECONDS)

    async def send(id: str, what: str) -> float:
        commits.sample()
        began = time.perf_counter()
        await engine.signal(id, "go")
        while what not in GOING:
            await asyncio.sleep(0)
        return GOING[what] - began

    cold = [await send(f"cold-{n}", f"cold-{n}") for n in range(SIGNALS)]
    chatty = [await send("hot", f"hot-{n}") for n in range(SIGNALS)]
    await hot.result()
    commit = statistics.median(commits.seconds)
    return {
        "commit_ms": round(commit * 1000, 3),
        "commit_p99_ms": round(percentile(commits.seconds, 0.99) * 1000, 3),
        **in_commits("in_memory", chatty, commit),
        **in_commits("left_memory", cold, commit),
    }


async def serve_across(url: str, folder: Path) -> None:
    """The other process: executes the run until it is killed."""
    async with Engine(url, PROGRAMS) as engine:
        run = await engine.start(across(SIGNALS_ACROSS, str(folder / "going")), id="across")
        print("ready", flush=True)
        await run.result()


async def signal_across(url: str, folder: Path) -> dict[str, float]:
    """From the call of `signal` in one process until the body continues in another, on one file."""
    chance, sent = random.Random(1), []
    command = [sys.executable, "-m", "bench.waiting", url, str(folder)]
    process = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs on this loop
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent
    )
    try:
        assert process.stdout is not None
        await asyncio.to_thread(process.stdout.readline)
        async with connect(url) as client:
            for _ in range(SIGNALS_ACROSS):
                await asyncio.sleep(chance.uniform(0.02, 0.4))
                sent.append(time.perf_counter())  # one clock for all processes of a machine
                await client.signal("across", "go")
        await asyncio.to_thread(process.wait, 60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
    went_on = dict(line.split() for line in (folder / "going").read_text().splitlines())
    late = [float(went_on[str(n)]) - began for n, began in enumerate(sent)]
    return {
        "across_p50_ms": round(statistics.median(late) * 1000, 1),
        "across_p99_ms": round(percentile(late, 0.99) * 1000, 1),
    }


async def timers(engine: Engine, wake_after: float) -> dict[str, float]:
    """Runs that are all due within one second: how late is the last, and is any early, lost or woken twice?"""
    moment = datetime.now(UTC) + timedelta(seconds=wake_after)
    moments = [moment + timedelta(seconds=n / TIMERS) for n in range(TIMERS)]
    runs = []
    for first in range(0, TIMERS, 1000):
        batch = range(first, min(first + 1000, TIMERS))
        runs += await asyncio.gather(*[engine.start(ring(moments[n]), id=f"ring-{n}") for n in batch])
    if datetime.now(UTC) >= moment:
        raise SystemExit(f"the timers were due before all had been set: pass more than --wake-after {wake_after:g}")
    await asyncio.gather(*[run.result() for run in runs])
    last = (datetime.now(UTC) - moments[-1]).total_seconds()
    early = twice = 0
    late = []
    for n in range(TIMERS):
        fired = [e.at for e in await engine.journal(f"ring-{n}") if type(e.event).__name__ == "WaitResolved"]
        twice += len(fired) != 1
        early += fired[0] < moments[n]
        late.append((fired[0] - moments[n]).total_seconds())
    return {
        "late_p50_s": round(statistics.median(late), 3),
        "late_max_s": round(max(late), 3),
        "last_result_s": round(last, 3),
        "early": early,
        "not_once": twice,
    }


async def wait_idly(engine: Engine) -> None:
    """Start runs that wait for signals."""
    for first in range(0, WAITING_RUNS, 100):
        await asyncio.gather(*[engine.start(once(n), id=f"idle-{n}") for n in range(first, first + 100)])
    await asyncio.sleep(LEFT_MEMORY_SECONDS)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    asyncio.run(serve_across(sys.argv[1], Path(sys.argv[2])))
