"""Count what steps and runs cost: function calls, memory that stays, SQL statements and commits. Times nothing.

The figures are the same on every run, and on every machine with the same version of Python: while they are counted, the
clocks stand still, so that no timer fires; the store works on the loop, in no thread; the garbage collector is off.

    python -m bench.budget              # count, beside the table in budget.json
    python -m bench.budget --update     # write the table; the commit says why a figure has grown
    python -m bench.budget --calls seq  # which functions each step of `seq` calls
"""

import argparse
import asyncio
import cProfile
import gc
import itertools
import json
import math
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import perdure
from bench.flows import chain_text, flow_of
from bench.workloads import Value, columns, value
from perdure import Engine, Invocation, Program, Recovery, step, wait_signal, workflow
from perdure.graph import Graph, node
from perdure.stores.sqlite import database
from perdure.stores.sqlite.config import SqliteConfig
from perdure.stores.sqlite.store import SqliteStore

TABLE = Path(__file__).with_name("budget.json")
SOURCE = str(Path(perdure.__file__).parent) + "/"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
# The entry of the table with what does not depend on the version of Python.
ANY = "any"
OF_ANY = frozenset({"files", "statements", "commits"})
# By how much the blocks of a run may be above the table: only those of up to 512 bytes are counted, so a few of them
# depend on how long the path of the checkout is.
SLACK = 2.0
FIGURES = ("calls", "files", "objects", "blocks", "statements", "commits")
HOW_TO_UPDATE = """
Compare `python -m bench.budget --calls WORKLOAD` before and after the change. If it is worth it, write the table with
`python -m bench.budget --update`, and say why in the message of the commit."""
NOW = 1_800_000_000.0
LEASE_SECONDS = 3600.0
AT_ONCE = 10
# The number of the step at which memory is counted.
LAST = -1

# Figures by name; "step" or "run"; workload; version of Python.
Figures: TypeAlias = dict[str, float]
Costs: TypeAlias = dict[str, Figures]
Table: TypeAlias = dict[str, dict[str, Costs]]


class Memory:
    """What was allocated and is in use when the last step of a workload runs."""

    def __init__(self) -> None:
        self.figures: Figures = {}
        self._before: int | None = None

    @contextmanager
    def counted(self, engine: Engine) -> Iterator[None]:
        """Count from here to `mark`."""
        gc.collect()
        gc.freeze()  # so that only new objects are counted
        self._before = self._blocks()
        yield
        gc.unfreeze()

    def mark(self) -> None:
        """Count now. Objects are counted with the garbage among them, which the collector has to find."""
        if self._before is None:
            return
        objects = len(gc.get_objects())
        gc.collect()  # which also empties the lists of free objects that Python keeps
        self.figures = {"objects": objects, "blocks": self._blocks() - self._before}
        self._before = None

    def _blocks(self) -> int:
        # The cache of attributes keeps some names alive, which ones depends on addresses.
        sys._clear_type_cache()
        return sys.getallocatedblocks()


class Calls:
    """The calls of Python functions, by file and function."""

    def __init__(self) -> None:
        self.functions: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def counted(self, engine: Engine) -> Iterator[None]:
        """Count from here on."""
        profile = cProfile.Profile(builtins=False)
        with profile:
            yield
        for entry in profile.getstats():
            code: Any = entry.code
            self.functions[code.co_filename.removeprefix(SOURCE), code.co_qualname] += entry.callcount

    @property
    def figures(self) -> Figures:
        return {"calls": self.functions.total()}


class Statements:
    """The SQL statements, among them those that begin and end transactions."""

    def __init__(self) -> None:
        self._asked: list[str] = []

    @contextmanager
    def counted(self, engine: Engine) -> Iterator[None]:
        """Count from here on."""
        engine.store.trace(self._asked.append)
        yield
        engine.store.trace(None)

    @property
    def figures(self) -> Figures:
        return {"statements": len(self._asked), "commits": self._asked.count("commit")}


class Programs:
    """What the workloads run. The last step of each calls `mark`."""

    def __init__(self, mark: Callable[[], None]) -> None:
        @step
        async def work(i: int) -> Value:
            if i == LAST:
                mark()
            return value(i)

        @step
        async def follow(before: Value) -> Value:
            if before["i"] == LAST - 1:
                mark()
            return value(before["i"] + 1)

        @workflow
        async def sequence(steps: int, last: bool = True) -> int:
            for i in range(steps):
                await work(LAST if last and i == steps - 1 else i)
            return steps

        @workflow
        async def together(steps: int) -> int:
            return len(await asyncio.gather(*[work(i) for i in [*range(1, steps), LAST]]))

        @workflow
        async def signalled(signals: int) -> int:
            for _ in range(signals):
                await wait_signal("go")
            mark()
            return signals

        @workflow
        async def resumed(steps: int) -> int:
            for i in range(steps):
                await work(i)
            await wait_signal("go")
            mark()
            return steps

        def chain(nodes: int) -> Graph[..., Value]:
            made = [node(follow, name=f"n{i}", inputs={"before": f"n{i - 1}" if i else "start"}) for i in range(nodes)]
            return Graph(made, name=f"chain-{nodes}", output=made[-1])

        self.sequence, self.together, self.signalled, self.resumed = sequence, together, signalled, resumed
        self.chains = {nodes: chain(nodes) for nodes in WORKLOADS["graph"].sizes}
        self.flows = {steps: flow_of(chain_text(steps), {"follow": follow.fn}) for steps in WORKLOADS["flow"].sizes}
        self.all: list[Program] = [sequence, together, signalled, resumed, *self.chains.values()]


# Counts what happens inside it, on this engine.
Counted: TypeAlias = Callable[[Engine], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Bench:
    """An engine, its programs, and a folder for other stores."""

    engine: Engine
    programs: Programs
    folder: Path

    async def run(self, invocation: Invocation[Any]) -> None:
        """Start a run and wait for its result."""
        await (await self.engine.start(invocation)).result()


async def seq(bench: Bench, steps: int, counted: Counted) -> None:
    """One run, one step after another."""
    with counted(bench.engine):
        await bench.run(bench.programs.sequence(steps))


async def many(bench: Bench, steps: int, counted: Counted) -> None:
    """Several runs at once, one step after another in each."""
    with counted(bench.engine):
        await asyncio.gather(*[bench.run(bench.programs.sequence(steps)) for _ in range(AT_ONCE)])


async def fanout(bench: Bench, steps: int, counted: Counted) -> None:
    """One run, all steps at once."""
    with counted(bench.engine):
        await bench.run(bench.programs.together(steps))


async def signal(bench: Bench, signals: int, counted: Counted) -> None:
    """One run that waits for signals, which arrive one after another."""
    with counted(bench.engine):
        run = await bench.engine.start(bench.programs.signalled(signals))
        for _ in range(signals):
            await run.signal("go")
        await run.result()


async def start(bench: Bench, runs: int, counted: Counted) -> None:
    """Runs of one step, one after another."""
    with counted(bench.engine):
        for number in range(1, runs + 1):
            await bench.run(bench.programs.sequence(1, last=number == runs))


async def replay(bench: Bench, steps: int, counted: Counted) -> None:
    """A stored run that waits after its steps, on a new engine: it is rebuilt from its journal to take a signal."""
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        async with open_engine(Path(folder), bench.programs) as engine:
            run = await engine.start(bench.programs.resumed(steps), id="resumed")
            while (await run.status()) != "waiting":
                await asyncio.sleep(0)
        async with open_engine(Path(folder), bench.programs) as engine:
            # A new engine checks whether the runs that it finds fit its code, stores that code, and its first commits
            # cost more.
            first = await engine.start(bench.programs.resumed(1))
            await first.signal("go")
            await first.result()
            await settled()
            with counted(engine):
                run = await engine.start(bench.programs.resumed(steps), id="resumed")
                await run.signal("go")
                await run.result()


async def graph(bench: Bench, nodes: int, counted: Counted) -> None:
    """A graph, one node after another."""
    with counted(bench.engine):
        await bench.run(bench.programs.chains[nodes](start=value(LAST - nodes)))


async def flow(bench: Bench, steps: int, counted: Counted) -> None:
    """A flow, one step after another, each of which takes the result of the one before: the same as the graph."""
    with counted(bench.engine):
        await bench.run(bench.programs.flows[steps](start=value(LAST - steps)))


@dataclass(frozen=True, slots=True)
class Workload:
    """What is counted at two sizes: the difference is what each step costs, the rest is what each run costs."""

    run: Callable[[Bench, int, Counted], Awaitable[None]]
    # Of which its size is the number.
    unit: str = "step"
    sizes: tuple[int, int] = (10, 60)
    runs: int = 1
    # A figure of a run that is not the same every time.
    varies: str = ""
    # Whether its engine has flows: an engine without them has less to do.
    of_flows: bool = False


WORKLOADS = {
    "seq": Workload(seq),
    "many": Workload(many, sizes=(3, 8), runs=AT_ONCE),
    "fanout": Workload(fanout),
    "signal": Workload(signal, "signal", (5, 30)),
    "start": Workload(start, "run", (5, 15)),
    # A new engine has other work to do, of which a call more or fewer falls into what is counted.
    "replay": Workload(replay, varies="calls"),
    "graph": Workload(graph, "node"),
    "flow": Workload(flow, of_flows=True),
}


class OnTheLoop:
    """In place of the threads of a store: what they are given is done at once."""

    def __init__(self, *options: object, **names: object) -> None:
        """Take the options of a pool of threads, none of which mean anything here."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(function(*arguments))
        except BaseException as error:
            done.set_exception(error)
        return done

    def shutdown(self, wait: bool = True) -> None:
        pass


class StillClock:
    """Always the same time. A built-in function, as that of the system's clock is: reading it is no call of Python."""

    def __init__(self) -> None:
        self.now = itertools.repeat(NOW).__next__


def open_engine(folder: Path, programs: Programs, *, of_flows: bool = False) -> Engine:
    """An engine with the same name every time, so that it has the runs of the one before.

    Its lease outlasts the counting, during which it sends no heartbeats.
    """
    # Everything is committed on the loop, and the store need not wait until its folder has been unchanged for a while.
    config = SqliteConfig(inline=math.inf, clock_step=-math.inf)
    store = SqliteStore(str(folder / "budget.db"), config=config)
    has = programs.flows.values() if of_flows else programs.all
    return Engine(store, has, name="budget", clock=StillClock(), recovery=Recovery(lease=LEASE_SECONDS))


async def settled() -> None:
    """Let the engine do what it has begun."""
    for _ in range(300):
        await asyncio.sleep(0)


@contextmanager
def standing_still() -> Iterator[None]:
    """No timer fires, and garbage is collected only where the code says so."""
    loop = asyncio.get_running_loop()
    loop.time = itertools.repeat(loop.time()).__next__  # type: ignore[method-assign]
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        del loop.time


@dataclass(frozen=True, slots=True)
class Counts:
    """One workload at one size: its figures, and its calls by file and function."""

    figures: Figures
    calls: Counter[tuple[str, str]]


async def count(names: Iterable[str] = WORKLOADS) -> dict[str, tuple[Counts, Counts]]:
    """Count workloads at both of their sizes. Takes the threads of all stores of this process away."""
    database.Pool = OnTheLoop  # type: ignore[attr-defined, assignment]
    memory = Memory()
    programs = Programs(memory.mark)

    async def at(bench: Bench, workload: Workload, size: int) -> Counts:
        calls, statements = Calls(), Statements()
        for one in (calls, statements, memory):
            await workload.run(bench, size, one.counted)
        return Counts({**calls.figures, **statements.figures, **memory.figures}, calls.functions)

    counts: dict[str, tuple[Counts, Counts]] = {}
    # In memory where the system has such a folder: nothing is timed, so the disk need not be waited for.
    for of_flows, chosen in itertools.groupby(names, lambda name: WORKLOADS[name].of_flows):
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
            async with open_engine(Path(folder), programs, of_flows=of_flows) as engine:
                bench = Bench(engine, programs, Path(folder))
                await settled()
                with standing_still():
                    for name in chosen:
                        workload = WORKLOADS[name]
                        for size in workload.sizes:  # fill caches
                            await workload.run(bench, size, lambda _: nullcontext())
                        small, large = [await at(bench, workload, size) for size in workload.sizes]
                        counts[name] = small, large
    return counts


def functions_of(workload: Workload, small: Counts, large: Counts) -> dict[tuple[str, str], float]:
    """How often each step calls which function; those that are called less than once are left out."""
    few, many = (size * workload.runs for size in workload.sizes)
    each = {function: (large.calls[function] - small.calls[function]) / (many - few) for function in large.calls}
    return {function: calls for function, calls in each.items() if calls >= 1}


def files_of(functions: Iterable[tuple[str, str]]) -> set[str]:
    """The files of perdure among those of the functions."""
    return {file for file, _ in functions if not file.startswith(("/", "<"))}


def costs_of(workload: Workload, small: Counts, large: Counts) -> Costs:
    """What each step costs, and each run beside its steps."""
    few, many = (size * workload.runs for size in workload.sizes)
    each = {name: (large.figures[name] - small.figures[name]) / (many - few) for name in small.figures}
    costs = {workload.unit: {**each, "files": len(files_of(functions_of(workload, small, large)))}}
    if workload.unit != "run":
        of_runs = {name: (small.figures[name] - few * each[name]) / workload.runs for name in each}
        costs["run"] = {name: figure for name, figure in of_runs.items() if name != workload.varies}
    return {unit: {name: tidy(figure) for name, figure in figures.items()} for unit, figures in costs.items()}


def tidy(figure: float) -> float:
    """With one digit behind the point, where there is one."""
    rounded = round(figure, 1)
    return int(rounded) if rounded == int(rounded) else rounded


# --- the table ------------------------------------------------------------------------------------------------------


def read() -> Table:
    """The table in the repository."""
    table: Table = json.loads(TABLE.read_text())
    return table


def updated(table: Table, costs: Mapping[str, Costs]) -> Table:
    """The table with these costs. What was not counted stays."""
    made: Table = {python: dict(workloads) for python, workloads in table.items()}
    for name, units in costs.items():
        for python, here in ((ANY, True), (PYTHON, False)):
            made.setdefault(python, {})[name] = {
                unit: {figure: cost for figure, cost in figures.items() if (figure in OF_ANY) == here}
                for unit, figures in units.items()
            }
    return made


def budget_of(table: Table, name: str, unit: str) -> Figures:
    """What a workload may cost with this Python. Without an entry for it, only what does not depend on Python."""
    return {
        figure: cost
        for python in (ANY, PYTHON)
        for figure, cost in table.get(python, {}).get(name, {}).get(unit, {}).items()
    }


def grown(table: Table, costs: Mapping[str, Costs]) -> list[str]:
    """The figures that are above the table, in words."""
    return [
        f"{name}: {cost:g} {figure} per {unit}, {budget[figure]:g} in the table"
        for name, units in costs.items()
        for unit, figures in units.items()
        for budget in [budget_of(table, name, unit)]
        for figure, cost in figures.items()
        if cost > budget.get(figure, math.inf) + (SLACK if (unit, figure) == ("run", "blocks") else 0.0)
    ]


def text(table: Table) -> str:
    """The table as JSON, one line for each workload."""
    entries = [
        f"  {json.dumps(python)}: {{\n"
        + ",\n".join(f"    {json.dumps(name)}: {json.dumps(units)}" for name, units in workloads.items())
        + "\n  }"
        for python, workloads in sorted(table.items(), reverse=True)
    ]
    return "{\n" + ",\n".join(entries) + "\n}\n"


def shown(table: Table, costs: Mapping[str, Costs]) -> str:
    """The costs in columns, with the figure of the table where it is another one."""
    rows = [["counted", "per", *FIGURES]]
    for name, units in costs.items():
        for unit, figures in units.items():
            budget = budget_of(table, name, unit)
            cells = []
            for figure in FIGURES:
                cost, known = figures.get(figure), budget.get(figure)
                cell = "" if cost is None else f"{cost:g}"
                cells.append(cell if known is None or cost == known else f"{cell} ({known:g})")
            rows.append([name, unit, *cells])
    return columns(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="Count what steps and runs cost.")
    parser.add_argument("--update", action="store_true", help="write what was counted into the table")
    parser.add_argument(
        "--calls", choices=list(WORKLOADS), help="list the functions that each step of a workload calls"
    )
    options = parser.parse_args()
    counts = asyncio.run(count([options.calls] if options.calls else WORKLOADS))
    if options.calls:
        functions = functions_of(WORKLOADS[options.calls], *counts[options.calls])
        for (file, function), calls in sorted(functions.items()):
            print(f"{calls:8g}  {file}: {function}")
        return 0
    costs = {name: costs_of(WORKLOADS[name], *both) for name, both in counts.items()}
    if options.update:
        TABLE.write_text(text(updated(read(), costs)))
    print(shown(read(), costs))
    if problems := grown(read(), costs):
        print("\nMore than the table allows:", *problems, HOW_TO_UPDATE, sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
