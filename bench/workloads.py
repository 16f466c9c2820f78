"""Define the work that every measured system does, and how it is reported. Imports no system and nothing to install."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TypedDict

SEQ_STEPS = 1_000
MANY_RUNS = 1_000
MANY_STEPS = 10
MANY_AT_ONCE = 100
FANOUT_STEPS = 1_000
START_RUNS = 200
RECOVER_RUNS = 1_000
RECOVER_STEPS = 10
PARKED_STEP = 6
LONG_STEPS = 10_000
LONG_MARK = 1_000
SLEEPING_RUNS = 100_000
WAKING_RUNS = 1_000
START_BATCH = 1_000
IDLE_RUNS = 1000
IDLE_SCHEDULES = 10
IDLE_SECONDS = 65.0  # covers two searches for orphans
TICK_SCHEDULES = 20
TICKS_EACH = 100
QUEUE_RUNS = 2_000
QUEUE_KEYS = 100
QUEUE_AT_ONCE = 100
STREAM_CHUNKS = 20_000
STREAM_LATENCIES = 500


@dataclass(frozen=True, slots=True)
class GraphSizes:
    """How large the graphs are: beside code and peers, when they grow to `many_nodes`, and their maps."""

    nodes: int = 1_000
    many_nodes: int = 10_000
    items: tuple[int, int, int] = (1_000, 10_000, 100_000)
    # How often a process measures each of what it compares.
    turns: int = 3


FULL = GraphSizes()
# To see that the benchmarks work; the figures mean nothing.
QUICK = GraphSizes(nodes=20, many_nodes=200, items=(20, 200, 2_000), turns=1)

TEXT = "x" * 100
PARK_SECONDS = 3600.0
SETTLE_SECONDS = 1.0


class Value(TypedDict):
    """What every step returns."""

    i: int
    text: str


def value(i: int) -> Value:
    """Return the step's result, the same in every system."""
    return {"i": i, "text": TEXT}


def emit(system: str, workload: str, n: int, seconds: float, **extra: object) -> None:
    """Print one measurement as one JSON line; the only thing a benchmark writes to standard output."""
    line = {
        "system": system,
        "workload": workload,
        "n": n,
        "seconds": round(seconds, 4),
        "per_second": round(n / seconds, 1) if seconds else None,
        **extra,
    }
    print(json.dumps(line), flush=True)


def columns(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Lay rows out in columns, those with the numbers in `right` flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the sample below which `share` of the others lie (nearest rank); refuses an empty sequence."""
    if not samples:
        raise ValueError("no samples to take a percentile of")
    return sorted(samples)[min(len(samples) - 1, int(len(samples) * share))]


def latencies_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Return the median and the 99th percentile in milliseconds, named as they are reported."""
    return {
        "p50_ms": round(statistics.median(seconds) * 1000, 3),
        "p99_ms": round(percentile(seconds, 0.99) * 1000, 3),
    }


def disk_bytes(folder: Path) -> int:
    """Return the size of all files under `folder`, write-ahead logs included."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def memory_mb(field: str = "VmRSS") -> float:
    """Return this process's memory in MB from /proc: `VmRSS` is now, `VmHWM` the peak. Linux only."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return round(int(rest.split()[0]) / 1024, 1)
    raise LookupError(f"/proc/self/status has no {field}")


@dataclass(frozen=True, slots=True)
class OnceCheck:
    """How often the steps before, at and after the parked one ran, over all runs."""

    runs: int
    early_again: int
    early_missing: int
    late_again: int
    late_missing: int
    ok: bool


class StepLog:
    """Which steps ran, one line each, kept by the operating system when the process is killed.

    Belongs to a folder, not to a process: the killed process and its successor write to the same log. Power loss is
    not its concern.
    """

    def __init__(self, folder: Path) -> None:
        self._lines = folder / "steps.log"
        self._released = folder / "released"

    def record(self, run: str, i: int) -> None:
        """Add one line in one write, so that lines of several writers never mix."""
        descriptor = os.open(self._lines, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, f"{run} {i}\n".encode())
        finally:
            os.close(descriptor)

    def parks(self, i: int) -> bool:
        """Whether step `i` must block now: the parked step does until `release`."""
        return i == PARKED_STEP and not self._released.exists()

    def release(self) -> None:
        """Let the parked step pass from now on."""
        self._released.touch()

    def parked(self) -> int:
        """Count the runs that have reached the parked step."""
        return sum(i == PARKED_STEP for _, i in self._read())

    def check_once(self, runs: int) -> OnceCheck:
        """Compare with what recovery owes: steps before the parked one ran once, all others at least once."""
        counts = self._read()
        early = [count for (_, i), count in counts.items() if i < PARKED_STEP]
        late = [count for (_, i), count in counts.items() if i >= PARKED_STEP]
        early_again = sum(count > 1 for count in early)
        early_missing = runs * (PARKED_STEP - 1) - len(early)
        late_missing = runs * (RECOVER_STEPS - PARKED_STEP + 1) - len(late)
        return OnceCheck(
            runs=len({run for run, _ in counts}),
            early_again=early_again,
            early_missing=early_missing,
            late_again=sum(count > 1 for (_, i), count in counts.items() if i > PARKED_STEP),
            late_missing=late_missing,
            ok=early_again == early_missing == late_missing == 0,
        )

    def _read(self) -> Counter[tuple[str, int]]:
        if not self._lines.exists():
            return Counter()
        words = (line.split() for line in self._lines.read_text().splitlines())
        return Counter((run, int(i)) for run, i in words)


def wait_until(condition: Callable[[], bool], process: "subprocess.Popen[str]", *, timeout: float) -> None:
    """Wait for something that another process does; raises when that process has ended."""
    deadline = time.monotonic() + timeout
    while not condition():
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with status {process.returncode} before it was due")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{process.args!r} did not get there within {timeout:.0f} s")
        time.sleep(0.02)


def kill_hard(process: "subprocess.Popen[str]") -> None:
    """Send SIGKILL, which nothing can catch, and wait until the process is gone."""
    process.kill()
    process.wait()


def measure_recovery(system: str, module: str, folder: Path, arguments: Sequence[str] = ()) -> None:
    """Park all runs in one process, kill it, and time a second one from its start until every run has its result.

    `module` is run as `python -m module recover-park|recover-finish --folder FOLDER`; the finishing child prints one
    line when it has every result. Its interpreter's start and imports count, its shutdown does not.
    """
    log = StepLog(folder)
    began = time.perf_counter()
    with _child(module, "recover-park", folder, arguments) as parking:
        try:
            wait_until(lambda: log.parked() >= RECOVER_RUNS, parking, timeout=600)
            parked_after = time.perf_counter() - began
            # The last line proves that a step was entered, not that the process is idle. Wait until it is, so that
            # every system is restarted from the same state.
            time.sleep(SETTLE_SECONDS)
        finally:
            kill_hard(parking)
    log.release()

    began = time.perf_counter()
    with _child(module, "recover-finish", folder, arguments) as finishing:
        answer = _answer(finishing)
        seconds = time.perf_counter() - began
        finishing.wait()
    if not answer:
        raise RuntimeError(f"{module} ended with status {finishing.returncode} before every run had its result")
    check = log.check_once(RECOVER_RUNS)
    emit(system, "recover", RECOVER_RUNS, seconds, parked_after=round(parked_after, 2), **asdict(check))


def _child(module: str, phase: str, folder: Path, arguments: Sequence[str]) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", module, phase, "--folder", str(folder), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent)


def _answer(process: "subprocess.Popen[str]") -> str:
    output: IO[str] | None = process.stdout
    assert output is not None  # opened as a pipe in _child
    return output.readline()
