"""Run engine, limit and peers in turn and compare medians with the bars. Measures nothing itself.

    python -m bench.run [--store postgres] [--rounds 5] [--only seq,many|graphs|flows|scale] [--quick] [--json FILE]
        [--peers]

Every measurement is a process of its own. The systems alternate within each round, so that a slow minute of the
machine falls on all of them. The exit status is 1 when a bar is missed or a measurement failed.
"""

import argparse
import asyncio
import itertools
import json
import operator
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.workloads import columns

ROOT = Path(__file__).resolve().parent.parent
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
SYNC = {"sync": "FULL", "relaxed": "NORMAL"}
TIMEOUT_SECONDS = 1800
SHIPPED = {"shared_buffers": "128MB", "max_wal_size": "1GB"}

# Measured once: they take long and vary little.
ONCE = frozenset(
    {"sleeping", "idle", "timers", "graph-memory", "million-sleeping", "million-finished", "children", "telemetry"}
)
PEERS = frozenset({"dbos", "langgraph"})
# Rounds of a peer, which takes minutes where the engine takes seconds.
PEER_ROUNDS = 3
# Fields about correctness: their worst round is judged, because a lost run must not be averaged away.
CORRECTNESS = frozenset({"early_again", "ok", "lost", "early", "not_once"})


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of one measurement: which system's, of which workload, in which field of its JSON line."""

    system: str
    workload: str
    field: str = "per_second"


@dataclass(frozen=True, slots=True)
class Bar:
    """A promise about speed: the engine's figure, alone or as a ratio to a reference, against a bound.

    `ratio` is engine over reference, or the reverse where `inverted` says that less is better for a factor.
    """

    figure: Figure
    at_least: bool
    bound: float
    unit: str
    reference: Figure | None = None
    inverted: bool = False

    @property
    def systems(self) -> frozenset[tuple[str, str]]:
        """The measurements this bar needs, as (system, workload)."""
        figures = [self.figure] if self.reference is None else [self.figure, self.reference]
        return frozenset((figure.system, figure.workload) for figure in figures)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A bar beside what was measured; `judged` is the number the bound was applied to, None where one is missing."""

    bar: Bar
    engine: float | None
    reference: float | None
    judged: float | None
    ok: bool


def engine(workload: str, field: str = "per_second") -> Figure:
    return Figure("engine", workload, field)


def against(workload: str, system: str, factor: float, unit: str = "steps/s") -> Bar:
    """At least `factor` times the other system's rate in the same workload."""
    return Bar(engine(workload), True, factor, unit, reference=Figure(system, workload))


def beside_code(workload: str) -> Bar:
    """A node costs at most what a step of code does."""
    return Bar(engine(workload), True, 1, "nodes/s / steps of code/s", reference=engine(workload, "code_per_second"))


def linear(workload: str, large: str, small: str, unit: str) -> Bar:
    """What one costs among many, beside what it costs among few."""
    return Bar(engine(workload, large), False, 1.15, f"µs/{unit}", reference=engine(workload, small))


BARS: Sequence[Bar] = (
    against("seq", "limit", 0.95),
    against("many", "limit", 0.75),
    against("many", "dbos", 60),
    Bar(engine("many", "bytes_per_step_open"), False, 300, "bytes/step, open"),
    Bar(engine("many", "bytes_per_step_closed"), False, 300, "bytes/step, closed"),
    against("fanout", "limit", 0.65),
    against("fanout", "dbos", 100),
    Bar(engine("start", "p50_ms"), False, 3, "ms p50 / commit", reference=Figure("limit", "commit", "ms")),
    Bar(engine("start", "p50_ms"), True, 8, "ms p50", reference=Figure("dbos", "start", "p50_ms"), inverted=True),
    Bar(engine("recover", "early_again"), False, 0, "steps 1-5 again"),
    Bar(engine("recover", "ok"), True, 1, "all steps taken"),
    Bar(engine("recover", "seconds"), False, 1, "s for 1,000 half-done runs"),
    Bar(engine("recover", "seconds"), True, 30, "s", reference=Figure("dbos", "recover", "seconds"), inverted=True),
    Bar(
        engine("long", "last_per_second"),
        True,
        0.85,
        "steps/s, last 1,000 / first",
        reference=engine("long", "first_per_second"),
    ),
    Bar(engine("long", "replay_events_per_second"), True, 150_000, "events/s replayed"),
    Bar(engine("sleeping", "rss_mb"), False, 300, "MB RSS"),
    Bar(engine("sleeping", "wake_seconds"), False, 2, "s to wake 1,000"),
    Bar(engine("sleeping", "lost"), False, 0, "runs lost"),
    Bar(engine("stream"), True, 20_000, "chunks/s"),
    Bar(engine("stream", "lost"), False, 0, "chunks lost"),
    Bar(engine("stream", "p50_ms"), False, 6, "ms p50 / commit", reference=Figure("limit", "commit", "ms")),
    Bar(engine("queue"), True, 500, "runs/s through a queue"),
    Bar(engine("queue", "too_many"), False, 0, "runs too many"),
    Bar(engine("ticks"), True, 150, "ticks/s"),
    Bar(engine("ticks", "lost"), False, 0, "ticks lost"),
    Bar(engine("idle", "per_five_seconds"), False, 1, "statements in 5 s"),
    Bar(engine("signal", "in_memory_p99_commits"), False, 5, "commits p99, run in memory"),
    Bar(engine("signal", "left_memory_p99_commits"), False, 5, "commits p99, run asleep"),
    Bar(engine("signal", "across_p99_ms"), False, 250, "ms p99, two processes"),
    Bar(engine("timers", "late_max_s"), False, 1.5, "s late at most, 20,000 timers"),
    Bar(engine("timers", "early"), False, 0, "timers early"),
    Bar(engine("timers", "not_once"), False, 0, "timers not fired once"),
    beside_code("graph-chain"),
    against("graph-chain", "langgraph", 10, "nodes/s"),
    beside_code("graph-fanout"),
    against("graph-fanout", "langgraph", 10, "nodes/s"),
    linear("graph-growth", "chain_large_us", "chain_small_us", "node, chain of 10,000 / 1,000"),
    linear("graph-growth", "fanout_large_us", "fanout_small_us", "node, fan-out of 10,000 / 1,000"),
    linear("graph-growth", "random_large_us", "random_small_us", "node, random 10,000 / 1,000"),
    linear("graph-map", "middle_us", "small_us", "item, 10,000 / 1,000"),
    linear("graph-map", "large_us", "small_us", "item, 100,000 / 1,000"),
    Bar(engine("graph-memory", "above_idle_mb"), False, 100, "MB above idle, 100,000 items"),
    Bar(engine("graph-build", "seconds"), False, 1, "s to build 10,000 nodes"),
    Bar(
        engine("flow-chain"),
        True,
        1 / 1.1,
        "steps/s / nodes of a graph/s",
        reference=engine("flow-chain", "graph_per_second"),
    ),
    Bar(engine("flow-load", "ms"), False, 150, "ms to read and compile 1,000 steps"),
    Bar(engine("flow-check", "seconds"), False, 0.25, "s for `flow check`, with start-up"),
    Bar(engine("flow-batch", "above_idle_mb"), False, 100, "MB above idle, 100,000 rows"),
    Bar(engine("million-sleeping", "rss_mb"), False, 500, "MB RSS, a million sleepers"),
    Bar(engine("million-sleeping", "wake_seconds"), False, 0.3, "s to wake 1,000 of a million"),
    Bar(engine("million-sleeping", "list_seconds"), False, 0.3, "s to list runs"),
    Bar(engine("million-finished", "list_seconds"), False, 0.3, "s to list runs"),
    Bar(
        engine("million-finished", "open_seconds"),
        False,
        1.15,
        "s to open beside a million runs / none",
        reference=engine("million-finished", "open_empty_seconds"),
    ),
    linear("children", "large_us", "small_us", "child, 10,000 / 1,000"),
    Bar(engine("telemetry", "on_us"), False, 1.03, "µs/step, metrics / off", reference=engine("telemetry", "off_us")),
    Bar(
        engine("telemetry", "sampled_us"),
        False,
        1.03,
        "µs/step, spans of 1% / off",
        reference=engine("telemetry", "off_us"),
    ),
)
# On a server: `raw` commits the rows of `seq` one by one on one connection.
POSTGRES_BARS: Sequence[Bar] = (
    against("seq", "raw", 0.80),
    against("seq", "dbos", 4),
    against("many", "dbos", 60),
    against("fanout", "dbos", 100),
    Bar(engine("trips", "per_step"), False, 0.1, "round trips/step"),
    Bar(engine("recover", "early_again"), False, 0, "steps 1-5 again"),
    Bar(engine("recover", "ok"), True, 1, "all steps taken"),
    Bar(engine("recover", "seconds"), True, 10, "s", reference=Figure("dbos", "recover", "seconds"), inverted=True),
    Bar(engine("workers", "two_to_one"), True, 1.8, "two processes / one"),
    Bar(engine("idle", "per_five_seconds"), False, 1, "statements in 5 s"),
)
STORES = {"sqlite": BARS, "postgres": POSTGRES_BARS}
WORKLOADS = tuple(dict.fromkeys(bar.figure.workload for bars in STORES.values() for bar in bars))
ON_SERVERS = frozenset({"trips", "workers"})
GRAPHS = tuple(workload for workload in WORKLOADS if workload.startswith("graph-"))
FLOWS = tuple(workload for workload in WORKLOADS if workload.startswith("flow-"))
# They take long: measured only when they are asked for.
SCALE = ("million-sleeping", "million-finished", "children", "telemetry")
GROUPS = {"graphs": GRAPHS, "flows": FLOWS, "scale": SCALE}
# The modules of workloads that can be small.
MODULES = {
    **dict.fromkeys(GRAPHS, "bench.graphs"),
    **dict.fromkeys(FLOWS, "bench.flows"),
    **dict.fromkeys(SCALE, "bench.scale"),
}


class MeasurementFailed(Exception):
    """A benchmark process did not print its JSON line; carries its output."""

    def __init__(self, system: str, workload: str, said: str) -> None:
        super().__init__(f"{system} {workload} printed no measurement:\n{said}")


Line = Mapping[str, Any]
Lines = dict[tuple[str, str], list[Line]]


@contextmanager
def databases(store: str) -> Iterator[Callable[[], str]]:
    """A function that creates an empty database for a measurement, on a server that runs inside this context."""
    if store == "sqlite":
        yield lambda: ""
        return
    # Imported here, because measurements on files need no server.
    import asyncpg  # type: ignore[import-untyped]

    from tests.services.servers import Postgres

    made = itertools.count(1)
    # On a disk and with default settings, as users have it.
    with tempfile.TemporaryDirectory() as folder, Postgres(Path(folder) / "server", settings=SHIPPED) as server:

        async def create(name: str) -> None:
            connection = await asyncpg.connect(server.url)
            try:
                await connection.execute(f"create database {name}")
            finally:
                await connection.close()

        def fresh() -> str:
            name = f"bench_{next(made)}"
            asyncio.run(create(name))
            return server.url_of(name)

        yield fresh


def command(system: str, workload: str, durability: str, store: str, quick: bool = False) -> list[str]:
    """Return the command that measures one workload once; `store` is the URL of an empty database of a server."""
    on = ["--store", store] if store else []
    small = ["--quick"] if quick and workload in MODULES else []
    match system:
        case "engine" if workload in MODULES:
            return [sys.executable, "-m", MODULES[workload], workload, "--durability", durability, *small]
        case "engine":
            module = "bench.server" if workload in ON_SERVERS else "bench.engine"
            return [sys.executable, "-m", module, workload, "--durability", durability, *on]
        case "limit":
            return [sys.executable, "-m", "bench.limit", workload, "--sync", SYNC[durability]]
        case "raw":
            return [sys.executable, "-m", "bench.server", "raw", *on]
        case "dbos":
            return [str(PEERS_PYTHON), "-m", "bench.peers.dbos_bench", workload, *on]
        case "langgraph":
            return [str(PEERS_PYTHON), "-m", "bench.peers.langgraph_bench", workload, *small]
    raise ValueError(f"no such system: {system}")


def measure(system: str, workload: str, durability: str, store: str, quick: bool = False) -> Line:
    """Run one measurement in a new process and return its JSON line; raises MeasurementFailed without one."""
    try:
        done = subprocess.run(
            command(system, workload, durability, store, quick),
            check=False,  # a failure is reported with the output of the process
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise MeasurementFailed(system, workload, f"nothing within {TIMEOUT_SECONDS} s") from error
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        raise MeasurementFailed(system, workload, f"exit status {done.returncode}\n{done.stderr[-4000:]}")
    line: Line = json.loads(lines[-1])
    return line


def measure_all(
    bars: Sequence[Bar], rounds: int, durability: str, fresh: Callable[[], str], quick: bool = False
) -> Lines:
    """Measure what the bars need, workload by workload, the systems in turn; a failed system is not tried again.

    `fresh` makes an empty database and returns its URL, "" where each measurement makes a file of its own.
    """
    lines: Lines = {}
    for workload in dict.fromkeys(bar.figure.workload for bar in bars):
        needed = {key for bar in bars if bar.figure.workload == workload for key in bar.systems}
        keys = sorted(needed, key=lambda key: ("engine", "limit", "raw", "dbos", "langgraph").index(key[0]))
        failed: set[tuple[str, str]] = set()
        for turn in range(1 if workload in ONCE else rounds):
            for key in keys:
                if key in failed or (key[0] in PEERS and turn >= PEER_ROUNDS):
                    continue
                show_progress(f"{workload}: round {turn + 1}, {key[0]}")
                try:
                    lines.setdefault(key, []).append(measure(*key, durability, fresh(), quick))
                except MeasurementFailed as failure:
                    failed.add(key)
                    lines.pop(key, None)
                    show_progress("")
                    print(failure, file=sys.stderr)
    show_progress("")
    return lines


def show_progress(text: str) -> None:
    """Replace the progress line of a terminal; writes nothing to a file or a pipe."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def median(lines: Lines, figure: Figure) -> float | None:
    """Return the median of one figure over the rounds, None when it was not measured."""
    found = [float(line[figure.field]) for line in lines.get((figure.system, figure.workload), [])]
    return statistics.median(found) if found else None


def worst(lines: Lines, bar: Bar) -> float | None:
    """Return the engine's figure in the round that is furthest from the bar, None when it was not measured."""
    found = [float(line[bar.figure.field]) for line in lines.get((bar.figure.system, bar.figure.workload), [])]
    choose: Callable[[Iterable[float]], float] = min if bar.at_least else max
    return choose(found) if found else None


def judge(bar: Bar, lines: Lines) -> Verdict:
    """Apply the bound to the medians; a figure that is missing misses its bar."""
    measured = worst(lines, bar) if bar.figure.field in CORRECTNESS else median(lines, bar.figure)
    if bar.reference is None:
        reference, judged = None, measured
    else:
        reference = median(lines, bar.reference)
        above, below = (reference, measured) if bar.inverted else (measured, reference)
        judged = None if above is None or below is None or below == 0 else above / below
    meets = operator.ge if bar.at_least else operator.le
    return Verdict(bar, measured, reference, judged, judged is not None and meets(judged, bar.bound))


def number(value: float | None) -> str:
    """Write a figure with the digits that matter at its size."""
    if value is None:
        return "-"
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


def table(verdicts: Sequence[Verdict]) -> str:
    """Lay the verdicts out in columns, one line per bar."""
    rows = [("workload", "what", "engine", "against", "", "ratio", "bar", "ok?")]
    for verdict in verdicts:
        bar, reference = verdict.bar, verdict.bar.reference
        rows.append(
            (
                bar.figure.workload,
                bar.unit,
                number(verdict.engine),
                "" if reference is None else "itself" if reference.system == "engine" else reference.system,
                "" if reference is None else number(verdict.reference),
                "" if reference is None else number(verdict.judged),
                f"{'>=' if bar.at_least else '<='} {number(bar.bound)}{'x' if reference else ''}",
                "ok" if verdict.ok else "MISSED",
            )
        )
    return columns(rows, right={2, 4, 5})


def report(verdicts: Sequence[Verdict], lines: Lines) -> dict[str, object]:
    """Return all that was measured and decided, ready for JSON."""
    return {
        "bars": [asdict(verdict) for verdict in verdicts],
        "measurements": [line for measured in lines.values() for line in measured],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the engine with the limit and with peers.")
    parser.add_argument("--store", choices=list(STORES), default="sqlite", help="what the engine and the peers run on")
    parser.add_argument("--rounds", type=int, default=5, help="how often each system is measured")
    parser.add_argument(
        "--only", default="", help=f"some of {','.join(WORKLOADS)}; `graphs`, `flows` and `scale` are all of those"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one round, small graphs, flows and numbers of runs: do the benchmarks work?",
    )
    parser.add_argument("--durability", choices=list(SYNC), default="sync")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement and verdict here")
    parser.add_argument("--peers", action="store_true", help="measure the peers too (make bench-peers, once)")
    options = parser.parse_args()
    words = options.only.split(",") if options.only else [one for one in WORKLOADS if one not in SCALE]
    only = [workload for word in words for workload in GROUPS.get(word, (word,))]
    if unknown := set(only) - set(WORKLOADS):
        parser.error(f"no such workload: {', '.join(sorted(unknown))}")
    if options.rounds < 1:
        parser.error("--rounds takes 1 or more")
    if options.peers and not PEERS_PYTHON.exists():
        parser.error(f"{PEERS_PYTHON} is missing: run `make bench-peers`")
    every = STORES[options.store]
    peerless = [bar for bar in every if all(system not in PEERS for system, _ in bar.systems)]
    bars = [bar for bar in (every if options.peers else peerless) if bar.figure.workload in only]
    with databases(options.store) as fresh:
        rounds = 1 if options.quick else options.rounds
        lines = measure_all(bars, rounds, options.durability, fresh, options.quick)
    verdicts = [judge(bar, lines) for bar in bars]
    print(table(verdicts))
    within = True
    if options.store == "sqlite":
        print(flush=True)
        within = subprocess.run([sys.executable, "-m", "bench.budget"], check=False, cwd=ROOT).returncode == 0
    if options.json:
        options.json.write_text(json.dumps(report(verdicts, lines), indent=2) + "\n")
    # Small sizes say nothing about the bars, only whether everything was measured.
    met = all(verdict.ok or (options.quick and verdict.judged is not None) for verdict in verdicts)
    return 0 if met and within else 1


if __name__ == "__main__":
    sys.exit(main())
