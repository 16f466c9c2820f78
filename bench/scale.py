"""What grows with the number of runs: memory and waking of a million sleepers, opening beside a million finished runs,
children of one run, and what telemetry adds to a step.

    python -m bench.scale million-sleeping [--quick]

Through the public contract only. Each workload runs once in a fresh folder and prints one JSON line.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Sampler, SamplingResult, TraceIdRatioBased

from bench.engine import alarm, sequence, sleeper, until_waiting, work
from bench.workloads import MANY_AT_ONCE, SETTLE_SECONDS, START_BATCH, WAKING_RUNS, Value, emit, memory_mb
from perdure import Client, Engine, Invocation, Program, RunHandle, Telemetry, connect, workflow

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scale:
    """How many there are of each."""

    sleeping: int = 1_000_000
    finished: int = 1_000_000
    waking: int = WAKING_RUNS
    children: tuple[int, int] = (1_000, 10_000)
    runs: int = 1_000
    # How often what varies is measured.
    turns: int = 5
    # How long the alarms of the sleepers are set ahead: a restart has to be over by then.
    ahead: float = 60.0
    # Whether a restart that takes longer ends the measurement.
    strict: bool = True


OFF = Telemetry()
FULL = Scale()
# To see that the benchmarks work; the figures mean nothing.
QUICK = Scale(sleeping=300, finished=300, waking=20, children=(10, 20), runs=20, turns=1, ahead=1.0, strict=False)


@workflow
async def below(i: int) -> Value:
    return await work(i)


@workflow
async def family(children: int) -> int:
    return len(await asyncio.gather(*[below(i) for i in range(children)]))


PROGRAMS: list[Program] = [sequence, sleeper, alarm, below, family]


@dataclass(frozen=True, slots=True)
class Place:
    """Where one workload is measured, and with which durability."""

    folder: Path
    durability: str

    def url(self, name: str = "bench") -> str:
        return f"sqlite:///{self.folder / name}.db"

    def engine(self, name: str = "bench", telemetry: Telemetry = OFF) -> Engine:
        return Engine(self.url(name), PROGRAMS, name="bench", durability=self.durability, telemetry=telemetry)


async def start_all(engine: Engine, made: Callable[[], Invocation[T]], count: int) -> AsyncIterator[list[RunHandle[T]]]:
    """Start so many runs, a thousand in each call, and give their handles."""
    for first in range(0, count, START_BATCH):
        report = await engine.start_many([made() for _ in range(min(START_BATCH, count - first))])
        handles = [item.result for item in report.items if item.result is not None]
        if len(handles) < len(report.items):
            raise SystemExit("a run could not be started")
        yield handles


async def listing_seconds(client: Client, turns: int) -> float:
    """How long the first page of the list of runs takes."""
    seconds = []
    for _ in range(turns):
        began = time.perf_counter()
        await client.list(limit=50)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


async def million_sleeping(place: Place, scale: Scale) -> None:
    """Sleepers: what they hold in memory, how soon an engine is open beside them, and wakes a thousand of them."""
    alarms = [f"alarm-{k}" for k in range(scale.waking)]
    began = time.perf_counter()
    async with place.engine() as engine:
        async for _ in start_all(engine, sleeper, scale.sleeping):
            pass
        seconds = time.perf_counter() - began
        moment = datetime.now(UTC) + timedelta(seconds=scale.ahead)
        await asyncio.gather(*[engine.start(alarm(moment), id=id) for id in alarms])
        await until_waiting(engine, alarms)
        await asyncio.sleep(SETTLE_SECONDS)
        asleep_mb = memory_mb()
    began = time.perf_counter()
    async with place.engine() as engine:
        restarted = time.perf_counter() - began
        runs = await asyncio.gather(*[engine.start(alarm(moment), id=id) for id in alarms])
        if scale.strict and datetime.now(UTC) >= moment:
            raise SystemExit("the alarms rang during the restart: set them further ahead")
        await asyncio.gather(*[run.result() for run in runs])
        woken = (datetime.now(UTC) - moment).total_seconds()
        restarted_mb = memory_mb()
    async with connect(place.url()) as client:
        listed = await listing_seconds(client, scale.turns)
    emit(
        "engine",
        "million-sleeping",
        scale.sleeping,
        seconds,
        durability=place.durability,
        rss_mb=max(asleep_mb, restarted_mb),
        rss_peak_mb=memory_mb("VmHWM"),
        restart_seconds=round(restarted, 3),
        wake_seconds=round(woken, 3),
        list_seconds=round(listed, 4),
    )


async def opening_seconds(place: Place, name: str) -> float:
    """How long an engine takes to open, with a first run to show that it works."""
    began = time.perf_counter()
    async with place.engine(name) as engine:
        await engine.run(sequence(1))
        return time.perf_counter() - began


async def million_finished(place: Place, scale: Scale) -> None:
    """Finished runs: how soon an engine is open beside them, and on a store without any, in turn."""
    began = time.perf_counter()
    async with place.engine("full") as engine:
        async for handles in start_all(engine, lambda: sequence(1), scale.finished):
            await asyncio.gather(*[handle.result() for handle in handles])
    seconds = time.perf_counter() - began
    await opening_seconds(place, "empty")
    full, empty = [], []
    for _ in range(scale.turns):
        full.append(await opening_seconds(place, "full"))
        empty.append(await opening_seconds(place, "empty"))
    async with connect(place.url("full")) as client:
        listed = await listing_seconds(client, scale.turns)
    emit(
        "engine",
        "million-finished",
        scale.finished,
        seconds,
        durability=place.durability,
        open_seconds=round(statistics.median(full), 4),
        open_empty_seconds=round(statistics.median(empty), 4),
        list_seconds=round(listed, 4),
    )


async def children(place: Place, scale: Scale) -> None:
    """One run with many awaited children of a step each: what a child costs among few and among many."""
    each: dict[int, list[float]] = {count: [] for count in scale.children}
    async with place.engine() as engine:
        await engine.run(family(scale.children[0]))
        for _ in range(scale.turns):
            for count in scale.children:
                began = time.process_time()
                await engine.run(family(count))
                each[count].append((time.process_time() - began) / count)
    small, large = (statistics.median(each[count]) * 1e6 for count in scale.children)
    figures = {"small_us": round(small, 2), "large_us": round(large, 2)}
    seconds = large * scale.children[-1] / 1e6
    emit("engine", "children", scale.children[-1], seconds, durability=place.durability, **figures)


class Share(Sampler):
    """Samples a share of the runs, which may change: OpenTelemetry has one provider in a process."""

    def __init__(self) -> None:
        self.sampler = TraceIdRatioBased(0.0)

    def should_sample(self, *arguments: Any, **named: Any) -> SamplingResult:
        return self.sampler.should_sample(*arguments, **named)

    def get_description(self) -> str:
        return "a share of the runs"


class Discard(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


async def telemetry(place: Place, scale: Scale) -> None:
    """Short runs, a hundred at a time, with telemetry off, metrics on, and spans of a hundredth and of all runs, in
    turn: microseconds of a step."""
    share = Share()
    provider = TracerProvider(sampler=share)
    provider.add_span_processor(BatchSpanProcessor(Discard()))
    trace.set_tracer_provider(provider)
    spans = Telemetry(spans=True)
    settings = {
        "off": (OFF, 0.0),
        "on": (Telemetry(metrics=True), 0.0),
        "sampled": (spans, 0.01),
        "traced": (spans, 1.0),
    }
    each: dict[str, list[float]] = {name: [] for name in settings}
    steps = 10

    async def some(engine: Engine) -> None:
        for first in range(0, scale.runs, MANY_AT_ONCE):
            number = min(MANY_AT_ONCE, scale.runs - first)
            await asyncio.gather(*[engine.run(sequence(steps)) for _ in range(number)])

    for _ in range(scale.turns):
        for name, (setting, sampled) in settings.items():
            share.sampler = TraceIdRatioBased(sampled)
            async with place.engine(name, setting) as engine:
                await engine.run(sequence(steps))
                began = time.process_time()
                await some(engine)
                each[name].append((time.process_time() - began) / (scale.runs * steps))
    costs = {name: statistics.median(each[name]) * 1e6 for name in settings}
    figures = {f"{name}_us": round(cost, 2) for name, cost in costs.items()}
    seconds = costs["on"] * scale.runs * steps / 1e6
    emit("engine", "telemetry", scale.runs * steps, seconds, durability=place.durability, **figures)


WORKLOADS: dict[str, Callable[[Place, Scale], Awaitable[None]]] = {
    "million-sleeping": million_sleeping,
    "million-finished": million_finished,
    "children": children,
    "telemetry": telemetry,
}


async def measure(workload: str, durability: str, scale: Scale) -> None:
    """Run one workload once, in a fresh folder."""
    with tempfile.TemporaryDirectory() as folder:
        await WORKLOADS[workload](Place(Path(folder), durability), scale)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="One workload of many runs on perdure.")
    parser.add_argument("workload", choices=list(WORKLOADS))
    parser.add_argument("--durability", choices=["sync", "relaxed", "async", "exit"], default="sync")
    parser.add_argument("--quick", action="store_true", help="a few of each, to see that it works")
    options = parser.parse_args(arguments)
    asyncio.run(measure(options.workload, options.durability, QUICK if options.quick else FULL))


if __name__ == "__main__":
    main()
