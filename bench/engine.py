"""Do the durable work on perdure, through its public contract only. One exception is named: `count_statements`.

Each call runs one workload once in a fresh temporary directory and prints one JSON line:

    python -m bench.engine seq --durability sync
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from bench import waiting
from bench.workloads import (
    FANOUT_STEPS,
    IDLE_RUNS,
    IDLE_SCHEDULES,
    IDLE_SECONDS,
    LONG_MARK,
    LONG_STEPS,
    MANY_AT_ONCE,
    MANY_RUNS,
    MANY_STEPS,
    PARK_SECONDS,
    QUEUE_AT_ONCE,
    QUEUE_KEYS,
    QUEUE_RUNS,
    RECOVER_RUNS,
    RECOVER_STEPS,
    SEQ_STEPS,
    SETTLE_SECONDS,
    SLEEPING_RUNS,
    START_BATCH,
    START_RUNS,
    STREAM_CHUNKS,
    STREAM_LATENCIES,
    TICK_SCHEDULES,
    TICKS_EACH,
    WAKING_RUNS,
    StepLog,
    Value,
    disk_bytes,
    emit,
    latencies_ms,
    measure_recovery,
    memory_mb,
    value,
)
from perdure import Engine, Program, Queue, connect, sleep, sleep_until, step, step_context, workflow

T = TypeVar("T")

MODULE = "bench.engine"
POLL_SECONDS = 0.05
FAR_AWAY = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and how one workload is measured."""

    folder: Path
    durability: str
    wake_after: float
    # The URL of a server's empty database; without one, a file in the folder.
    store: str = ""

    @property
    def url(self) -> str:
        return self.store or f"sqlite:///{self.folder / 'bench.db'}"

    @property
    def arguments(self) -> list[str]:
        """The arguments for a process that measures in the same way."""
        return ["--durability", self.durability, *(["--store", self.store] if self.store else [])]


@step
async def work(i: int) -> Value:
    return value(i)


@step
async def stamp() -> float:
    """Return the current time, as a recorded value that the body may use."""
    return time.perf_counter()


@step
async def logged_work(folder: str, run: str, i: int) -> Value:
    log = StepLog(Path(folder))
    log.record(run, i)
    if log.parks(i):
        await asyncio.sleep(PARK_SECONDS)
    return value(i)


@step
async def gate() -> None:
    """Block the run in the first process, and let it pass in the next."""
    if step_context().attempt == 1:
        await asyncio.sleep(PARK_SECONDS)


@workflow
async def sequence(steps: int) -> int:
    for i in range(steps):
        await work(i)
    return steps


@workflow
async def fan_out(steps: int) -> int:
    return len(await asyncio.gather(*[work(i) for i in range(steps)]))


@workflow
async def recovering(folder: str, run: str) -> int:
    for i in range(1, RECOVER_STEPS + 1):
        await logged_work(folder, run, i)
    return RECOVER_STEPS


@workflow
async def long_sequence(steps: int) -> list[float]:
    """Run every step, pass the gate, and return the start times of each thousand and the end of the last."""
    stamps: list[float] = []
    for i in range(steps):
        if i % LONG_MARK == 0:
            stamps.append(await stamp())
        await work(i)
    stamps.append(await stamp())
    await gate()
    return stamps


@workflow
async def sleeper() -> None:
    await sleep(FAR_AWAY)


@workflow
async def alarm(moment: datetime) -> None:
    await sleep_until(moment)


@step
async def chunks(n: int) -> AsyncIterator[str]:
    for _ in range(n):
        yield "token"


@step
async def stamped(n: int) -> None:
    """Emit the current time repeatedly, with a pause in which a reader can receive it."""
    for _ in range(n):
        step_context().emit(time.perf_counter())
        await asyncio.sleep(0.002)


@workflow
async def streaming(n: int) -> int:
    return len(await chunks(n))


@workflow
async def stamping(n: int) -> None:
    await stamped(n)


PROGRAMS: list[Program] = [streaming, stamping, sequence, fan_out, recovering, long_sequence, sleeper, alarm]
PROGRAMS += waiting.PROGRAMS


def open_engine(setting: Setting) -> Engine:
    """An engine on the store of this measurement, always under the same name, so that it recovers its runs."""
    return Engine(setting.url, PROGRAMS, name="bench", durability=setting.durability)


def count_statements(engine: Engine, callback: Callable[[str], None]) -> None:
    """Call back with every SQL statement from now on. The one use of a private API."""
    engine.store.trace(callback)


async def in_batches(call: Callable[[str], Awaitable[T]], ids: Sequence[str]) -> list[T]:
    """Await the call for every id, START_BATCH of them at a time, and return the results in order."""
    results: list[T] = []
    for first in range(0, len(ids), START_BATCH):
        results += await asyncio.gather(*[call(id) for id in ids[first : first + START_BATCH]])
    return results


async def until_waiting(engine: Engine, ids: Iterable[str]) -> None:
    """Return when each of these runs waits for a timer."""
    for id in ids:
        while (view := await engine.get(id)) is None or view.status != "waiting":
            await asyncio.sleep(POLL_SECONDS)


async def at_the_gate(engine: Engine, id: str) -> None:
    """Return when a run has reached its gate."""
    # Read from the number at which its steps end, two events each: a concurrent reader would be measured too.
    async for entry in engine.follow(id, 2 * LONG_STEPS):
        if getattr(entry.event, "op", "") == "gate:0":
            return


async def seq(setting: Setting) -> None:
    """One run, one step after another."""
    async with open_engine(setting) as engine:
        began = time.perf_counter()
        run = await engine.start(sequence(SEQ_STEPS), id="seq")
        steps = await run.result()
        seconds = time.perf_counter() - began
    emit("engine", "seq", steps, seconds, durability=setting.durability)


async def many_runs(engine: Engine) -> int:
    """Many short runs, a hundred at a time, to their ends; returns the number of steps."""
    at_once = asyncio.Semaphore(MANY_AT_ONCE)

    async def one(i: int) -> int:
        async with at_once:
            run = await engine.start(sequence(MANY_STEPS), id=f"many-{i}")
            return await run.result()

    return sum(await asyncio.gather(*[one(i) for i in range(MANY_RUNS)]))


async def many(setting: Setting) -> None:
    """Throughput of many runs; then their size on disk, with the engine open and closed."""
    async with open_engine(setting) as engine:
        before = disk_bytes(setting.folder)
        began = time.perf_counter()
        steps = await many_runs(engine)
        seconds = time.perf_counter() - began
        grown = disk_bytes(setting.folder) - before
    emit(
        "engine",
        "many",
        steps,
        seconds,
        durability=setting.durability,
        bytes_per_step_open=round(grown / steps, 1),
        # The whole folder, including what an empty store takes.
        bytes_per_step_closed=round(disk_bytes(setting.folder) / steps, 1),
    )


async def fanout(setting: Setting) -> None:
    """One run, all steps at once."""
    async with open_engine(setting) as engine:
        began = time.perf_counter()
        run = await engine.start(fan_out(FANOUT_STEPS), id="fanout")
        steps = await run.result()
        seconds = time.perf_counter() - began
    emit("engine", "fanout", steps, seconds, durability=setting.durability)


async def start(setting: Setting) -> None:
    """Runs of one step, one after another: from the call of `start` to the result."""
    samples = []
    async with open_engine(setting) as engine:
        await (await engine.start(sequence(1))).result()
        for i in range(START_RUNS):
            began = time.perf_counter()
            run = await engine.start(sequence(1), id=f"start-{i}")
            await run.result()
            samples.append(time.perf_counter() - began)
    emit("engine", "start", START_RUNS, sum(samples), durability=setting.durability, **latencies_ms(samples))


async def recover(setting: Setting) -> None:
    """Runs parked in step 6 of 10, their process killed: from the next process's start until all have a result."""
    await asyncio.to_thread(measure_recovery, "engine", MODULE, setting.folder, setting.arguments)


async def recover_park(setting: Setting) -> None:
    """Start every run and stay until killed."""
    async with open_engine(setting) as engine:
        for k in range(RECOVER_RUNS):
            _ = await engine.start(recovering(str(setting.folder), f"run-{k}"), id=f"run-{k}")
        await asyncio.sleep(PARK_SECONDS)


async def recover_finish(setting: Setting) -> None:
    """Start every run again, which returns the existing run, and report when each has its result."""
    async with open_engine(setting) as engine:

        async def result(id: str) -> int:
            run = await engine.start(recovering(str(setting.folder), id), id=id)
            return await run.result()

        results = await asyncio.gather(*[result(f"run-{k}") for k in range(RECOVER_RUNS)])
        if results != [RECOVER_STEPS] * RECOVER_RUNS:
            raise SystemExit("a recovered run returned something else than its result")
        print("finished", flush=True)


async def long(setting: Setting) -> None:
    """One run of 10,000 steps: does it slow down, and how fast is it rebuilt from its journal?

    The replay is timed from outside: from opening the engine on the stored run until the result of that run, whose
    body has only a gate left to pass. Opening, reading, decoding and the last commits are all in it.
    """
    async with open_engine(setting) as engine:
        began = time.perf_counter()
        _ = await engine.start(long_sequence(LONG_STEPS), id="long")
        await at_the_gate(engine, "long")
        seconds = time.perf_counter() - began
    began = time.perf_counter()
    async with open_engine(setting) as engine:
        opened = time.perf_counter() - began
        run = await engine.start(long_sequence(LONG_STEPS), id="long")
        stamps = await run.result()
        replayed = time.perf_counter() - began
        view = await engine.get("long")
        events = view.next_seq if view else 0
    emit(
        "engine",
        "long",
        LONG_STEPS,
        seconds,
        durability=setting.durability,
        first_per_second=round(LONG_MARK / (stamps[1] - stamps[0]), 1),
        last_per_second=round(LONG_MARK / (stamps[-1] - stamps[-2]), 1),
        events=events,
        open_seconds=round(opened, 4),
        replay_seconds=round(replayed, 4),
        replay_events_per_second=round(events / replayed, 1),
    )


async def sleeping(setting: Setting) -> None:
    """Runs that sleep: what they hold in memory, whether a restart keeps them, how fast a thousand wake at once."""
    sleepers = [f"sleep-{k}" for k in range(SLEEPING_RUNS - WAKING_RUNS)]
    alarms = [f"alarm-{k}" for k in range(WAKING_RUNS)]
    async with open_engine(setting) as engine:

        async def fall_asleep(id: str) -> None:
            # Drop the handle, which would otherwise count as memory of the engine.
            _ = await engine.start(sleeper(), id=id)

        began = time.perf_counter()
        await in_batches(fall_asleep, sleepers)
        seconds = time.perf_counter() - began
        # Computed now: the restart must be over by then, however long the other runs took to start.
        moment = datetime.now(UTC) + timedelta(seconds=setting.wake_after)
        await asyncio.gather(*[engine.start(alarm(moment), id=id) for id in alarms])
        await until_waiting(engine, alarms)
        await asyncio.sleep(SETTLE_SECONDS)
        asleep_mb = memory_mb()
    began = time.perf_counter()
    async with open_engine(setting) as engine:
        restarted = time.perf_counter() - began
        runs = await asyncio.gather(*[engine.start(alarm(moment), id=id) for id in alarms])
        restarted_mb = memory_mb()
        if datetime.now(UTC) >= moment:
            raise SystemExit(f"the alarms rang during the restart: pass more than --wake-after {setting.wake_after:g}")
        await asyncio.gather(*[run.result() for run in runs])
        woken = (datetime.now(UTC) - moment).total_seconds()
        if woken < 0:
            raise SystemExit(f"the last alarm rang {-woken:.3f} s before its time")

        async def still_asleep(id: str) -> bool:
            view = await engine.get(id)
            return view is not None and view.status == "waiting"

        kept = sum(await in_batches(still_asleep, sleepers))
    emit(
        "engine",
        "sleeping",
        len(sleepers),
        seconds,
        durability=setting.durability,
        rss_mb=max(asleep_mb, restarted_mb),
        rss_asleep_mb=asleep_mb,
        rss_restarted_mb=restarted_mb,
        rss_peak_mb=memory_mb("VmHWM"),
        restart_seconds=round(restarted, 3),
        wake_seconds=round(woken, 3),
        lost=len(sleepers) - kept,
    )


async def stream(setting: Setting) -> None:
    """One stream as fast as it goes, with a reader; then how long a chunk takes from the step to the reader."""
    async with open_engine(setting) as engine:
        began = time.perf_counter()
        run = await engine.start(streaming(STREAM_CHUNKS), id="stream")
        read = [chunk.index async for chunk in run.stream()]
        seconds = time.perf_counter() - began
        run_again = await engine.start(stamping(STREAM_LATENCIES), id="stamped")
        latencies = [time.perf_counter() - chunk.value async for chunk in run_again.stream()]
    emit(
        "engine",
        "stream",
        STREAM_CHUNKS,
        seconds,
        durability=setting.durability,
        lost=STREAM_CHUNKS - len(read) if read == list(range(len(read))) else STREAM_CHUNKS,
        **latencies_ms(latencies),
    )


async def queue(setting: Setting) -> None:
    """One-step runs in a queue with many keys: throughput, and how many ran beyond the limit."""
    url = f"sqlite:///{setting.folder}/queue.db"
    async with Engine(url):
        pass
    async with connect(url) as client:

        async def put(id: str) -> None:
            key = f"key-{int(id) % QUEUE_KEYS}"
            _ = await client.start(sequence(1), id=id, queue="q", key=key, durability=setting.durability)

        began = time.perf_counter()
        await in_batches(put, [str(i) for i in range(QUEUE_RUNS)])
        queued = time.perf_counter() - began
        limits = Queue("q", concurrency=QUEUE_AT_ONCE, per_key=QUEUE_AT_ONCE // QUEUE_KEYS)
        most = 0
        began = time.perf_counter()
        async with Engine(url, [sequence], queues=[limits]) as engine:
            while (views := await engine.queues())[0].queued or views[0].running:
                most = max(most, views[0].running)
                await asyncio.sleep(POLL_SECONDS)
        seconds = time.perf_counter() - began
    emit(
        "engine",
        "queue",
        QUEUE_RUNS,
        seconds,
        durability=setting.durability,
        queued_per_second=round(QUEUE_RUNS / queued),
        too_many=max(0, most - QUEUE_AT_ONCE),
    )


async def ticks(setting: Setting) -> None:
    """Ticks of schedules, all due at once: runs started per second, and whether any is missing."""
    end = datetime.now(UTC).replace(microsecond=0)
    start = end - timedelta(seconds=TICKS_EACH)
    async with open_engine(setting) as engine:
        names = [f"schedule-{k}" for k in range(TICK_SCHEDULES)]
        made = [await engine.schedule(name, sequence(1), every=1, overlap="allow", pause=True) for name in names]
        began = time.perf_counter()
        wanted = [id for one in made for id in await one.backfill(start, end)]
        while sum([(await one.view()).fired for one in made]) < len(wanted):
            await asyncio.sleep(POLL_SECONDS)
        seconds = time.perf_counter() - began
        runs = [await engine.get(id) for id in wanted]
    emit(
        "engine",
        "ticks",
        len(wanted),
        seconds,
        durability=setting.durability,
        lost=sum(run is None for run in runs),
    )


async def signal(setting: Setting) -> None:
    """Signals: from the call until the body continues, in one process and across two."""
    sync = {"sync": "full"}.get(setting.durability, "normal")
    began = time.perf_counter()
    async with open_engine(setting) as engine:
        figures = await waiting.signal(engine, setting.folder, sync)
    figures |= await waiting.signal_across(f"sqlite:///{setting.folder / 'across.db'}", setting.folder)
    seconds = time.perf_counter() - began
    emit("engine", "signal", 2 * waiting.SIGNALS, seconds, durability=setting.durability, **figures)


async def timers(setting: Setting) -> None:
    """Many runs that are due within one second."""
    began = time.perf_counter()
    async with open_engine(setting) as engine:
        figures = await waiting.timers(engine, setting.wake_after + 20.0)
    seconds = time.perf_counter() - began
    emit("engine", "timers", waiting.TIMERS, seconds, durability=setting.durability, **figures)


async def idle(setting: Setting) -> None:
    """An idle engine with waiting runs and schedules: how many SQL statements does it run?"""
    statements: list[str] = []
    async with open_engine(setting) as engine:
        await waiting.wait_idly(engine)
        await (await engine.start(sequence(1), id="before")).result()
        await asyncio.gather(*[engine.start(sleeper(), id=f"sleep-{k}") for k in range(IDLE_RUNS)])
        for k in range(IDLE_SCHEDULES):
            await engine.schedule(f"schedule-{k}", sequence(1), cron="0 0 1 1 *", jitter=60)
        await asyncio.sleep(SETTLE_SECONDS)
        count_statements(engine, statements.append)
        await asyncio.sleep(IDLE_SECONDS)
        count = len(statements)
        # Check that the trace works: without it, a broken trace would look like an idle engine.
        await (await engine.start(sequence(1), id="after")).result()
        if len(statements) == count:
            raise SystemExit("the trace saw no statement of a run that was executed: adapt `count_statements`")
    emit(
        "engine",
        "idle",
        count,
        IDLE_SECONDS,
        durability=setting.durability,
        per_five_seconds=count / IDLE_SECONDS * 5,
        statements=statements[: min(count, 20)],
    )


WORKLOADS: dict[str, Callable[[Setting], Awaitable[None]]] = {
    "seq": seq,
    "many": many,
    "fanout": fanout,
    "start": start,
    "recover": recover,
    "long": long,
    "sleeping": sleeping,
    "stream": stream,
    "queue": queue,
    "ticks": ticks,
    "idle": idle,
    "signal": signal,
    "timers": timers,
}
PHASES: dict[str, Callable[[Setting], Awaitable[None]]] = {
    "recover-park": recover_park,
    "recover-finish": recover_finish,
}


async def measure(workload: str, setting: Setting) -> None:
    """Run one workload once, in a fresh folder unless this is a phase that was given one."""
    if workload in PHASES:
        await PHASES[workload](setting)
        return
    with tempfile.TemporaryDirectory() as folder:
        await WORKLOADS[workload](replace(setting, folder=Path(folder)))


def main() -> None:
    parser = argparse.ArgumentParser(description="One workload on perdure.")
    parser.add_argument("workload", choices=[*WORKLOADS, *PHASES])
    parser.add_argument("--durability", choices=["sync", "relaxed", "async", "exit"], default="sync")
    parser.add_argument("--folder", type=Path, default=Path(), help="where a phase of `recover` finds its store")
    parser.add_argument("--wake-after", type=float, default=20.0, help="`sleeping`: seconds until the alarms ring")
    parser.add_argument("--store", default="", help="the URL of an empty database, in place of a file")
    options = parser.parse_args()
    setting = Setting(options.folder, options.durability, options.wake_after, options.store)
    asyncio.run(measure(options.workload, setting))


if __name__ == "__main__":
    main()
