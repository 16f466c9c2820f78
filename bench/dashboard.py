"""What the dashboard costs, and how soon it shows something: long lists, long runs, steps as they end, the host's loop.

    python -m bench.dashboard lists --count 100000      # pages, rare statuses and counts, by the client and over HTTP
    python -m bench.dashboard long --count 10000        # the page of a long run, and the longest stall of the host
    python -m bench.dashboard live --count 40           # from a step's end until the page shows it
    python -m bench.dashboard live --count 40 --apart   # the same, with the steps in another process than the server
    python -m bench.dashboard watched                   # `many` with the list open in a browser, against nobody looking

`--store postgresql://...` measures on an empty database of a server. All but `lists` need chromium.
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx
import uvicorn
from msgspec import Raw
from playwright.sync_api import Browser, Page, sync_playwright

from bench.engine import PROGRAMS, Setting, many_runs
from bench.workloads import emit, percentile
from perdure import Client, Engine, connect, step, workflow
from perdure.kernel.events import Batch, RunFinished, RunStarted, RunStatus
from perdure.kernel.projection import row
from perdure.kernel.state import RunState
from perdure.ports.journal import Append, append_all
from perdure.ports.runs import RunFilter
from perdure.ports.store import Store
from perdure.stores.open import open_store

MODULE = "bench.dashboard"
BATCH = 1_000
# One run of so many is open: what is looked for is rare.
RARE = 5_000
ROUNDS = 200
AT_ONCE = 500
STEP_SECONDS = 0.25
LAG_SECONDS = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Looking(Setting):
    """Where and how much is looked at."""

    count: int = field(default=100_000)
    apart: bool = field(default=False)


# --- programs ---------------------------------------------------------------------------------------------------------


@step
async def tile(number: int) -> int:
    return number * 2


@workflow
async def tiles(count: int) -> int:
    """A run of very many short steps."""
    for start in range(0, count, AT_ONCE):
        await asyncio.gather(*(tile(number) for number in range(start, min(start + AT_ONCE, count))))
    return count


# Many steps of one name are one row of the page.
NAMES = 8


def ticker(number: int) -> Any:
    """A step that takes a while, and says when it ended."""

    @step(name=f"tick{number}")
    async def tick() -> float:
        await asyncio.sleep(STEP_SECONDS)
        return time.time()

    return tick


TICKERS = [ticker(number) for number in range(NAMES)]


@workflow
async def ticking(count: int) -> list[float]:
    """The moments at which its steps ended."""
    return [await TICKERS[n % NAMES]() for n in range(count)]


# --- lists ------------------------------------------------------------------------------------------------------------


async def lists(setting: Looking) -> None:
    """How long it takes to list and count among very many runs: 95 of 100 calls are at least as fast."""
    began = time.perf_counter()
    async with Engine(setting.url):
        pass  # makes the schema
    store = open_store(setting.url)
    await store.open(migrate=True)
    await fill(store, setting.count)
    await store.close()
    seconds = time.perf_counter() - began
    middle = RunFilter(limit=100, values=False, cursor=f"r{setting.count // 2:09}")
    calls: dict[str, Callable[[Client], Awaitable[Any]]] = {
        "page": lambda client: client.list(limit=100, values=False),
        "deep_page": lambda client: client.store.runs.list(middle),
        "program": lambda client: client.list(limit=100, values=False, program="p7"),
        "rare_status": lambda client: client.list(limit=100, values=False, status="queued"),
        "counts": lambda client: client.store.runs.counts(100_000),
    }
    found: dict[str, float] = {}
    async with connect(setting.url) as client:
        for name, call in calls.items():
            found[f"{name}_p95_ms"] = await p95(call, client)
    with served(setting) as url, httpx.Client(base_url=f"{url}api/v1/") as http:
        for name, path in (
            ("http_page", "runs?limit=100&why=true&root=true"),
            ("http_rare_status", "runs?limit=100&status=queued&why=true&root=true"),
            ("http_counts", "runs/counts?by=status"),
        ):
            found[f"{name}_p95_ms"] = timed_requests(http, path)
    emit("engine", "dashboard-lists", setting.count, seconds, **found)


async def fill(store: Store, count: int) -> None:
    """Runs of some programs that have ended, and a few that have not begun."""
    now = time.time()
    for first in range(0, count, BATCH):
        appends = [one_run(number, now - (count - number) / 10) for number in range(first, min(first + BATCH, count))]
        for outcome in await append_all(store.journal, appends):
            assert type(outcome).__name__ == "Appended", outcome


def one_run(number: int, at: float) -> Append:
    """The journal of a run."""
    run_id = f"r{number:09}"
    state = RunState(run_id)
    tags = {"customer": f"c{number % 97}"}
    started = RunStarted(
        id=f"order-{number}", program=f"p{number % 20}", version="1", input=Raw(b'{"cents":1999}'), tags=tags
    )
    events: list[Any] = [started]
    if number % RARE:
        status = RunStatus.FAILED if number % 50 == 1 else RunStatus.COMPLETED
        events.append(RunFinished(status, Raw(b'"done"')))
    for event in events:
        state.fold(event, at)
    return Append(run_id, 0, [Batch(0, at, events)], row(state), False)


async def p95(call: Callable[[Client], Awaitable[Any]], client: Client) -> float:
    """In milliseconds, over many rounds."""
    samples = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await call(client)
        samples.append(time.perf_counter() - began)
    return round(percentile(samples, 0.95) * 1000, 2)


def timed_requests(http: httpx.Client, path: str) -> float:
    """The same, for a request over one connection."""
    samples = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        http.get(path).raise_for_status()
        samples.append(time.perf_counter() - began)
    return round(percentile(samples, 0.95) * 1000, 2)


# --- a host, in a process of its own ----------------------------------------------------------------------------------


@contextmanager
def served(setting: Looking, *words: str) -> Iterator[str]:
    """A server of the store, in a process of its own; it says where it is."""
    with hosted(setting, *words) as (url, _):
        yield url


@contextmanager
def hosted(setting: Looking, *words: str) -> Iterator[tuple[str, Callable[[str], Any]]]:
    """A host, and a way to ask it: it answers a line with a line."""
    command = [sys.executable, "-m", MODULE, "host", "--store", setting.url, "--count", str(setting.count), *words]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None

    def ask(line: str) -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    try:
        yield json.loads(process.stdout.readline()), ask
    finally:
        process.kill()
        process.wait()


async def host(setting: Looking) -> None:
    """An application with an engine and the dashboard. It executes what it is asked for, and watches its own loop."""
    async with Engine(setting.url, [*PROGRAMS, tiles, ticking], durability=setting.durability) as engine:
        config = uvicorn.Config(engine.asgi(), host="127.0.0.1", port=0, log_level="error", lifespan="off")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        say(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/")
        lag = Lag()
        watching = asyncio.create_task(lag.watch())
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            match line.split():
                case ["start", program, id]:
                    program_ = tiles if program == "tiles" else ticking
                    say((await engine.start(program_(setting.count), id=id)).run_id)
                case ["result", id]:
                    say(await engine.handle(id).result())
                case ["lag"]:
                    say(lag.reset())
                case ["many"]:
                    began = time.perf_counter()
                    steps = await many_runs(engine)
                    say(steps / (time.perf_counter() - began))
                case _:
                    raise ValueError(line)
        watching.cancel()
        server.should_exit = True
        await serving


class Lag:
    """How late the loop of this process is."""

    def __init__(self) -> None:
        self._longest = 0.0

    async def watch(self) -> None:
        """Ask for the next moment, again and again."""
        while True:
            began = time.perf_counter()
            await asyncio.sleep(LAG_SECONDS)
            self._longest = max(self._longest, time.perf_counter() - began - LAG_SECONDS)

    def reset(self) -> float:
        """The longest stall since the last call, in milliseconds."""
        longest, self._longest = self._longest, 0.0
        return round(longest * 1000, 1)


def say(answer: Any) -> None:
    """Answer whoever has started this process."""
    print(json.dumps(answer), flush=True)


# --- in a browser -----------------------------------------------------------------------------------------------------


@contextmanager
def browser() -> Iterator[Browser]:
    """Chromium."""
    path = shutil.which("chromium")
    if path is None:
        raise SystemExit("this workload needs chromium: apt-get install --no-install-recommends chromium")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


def shown(page: Page, url: str, selector: str) -> float:
    """Seconds from opening a page until something is on it."""
    began = time.perf_counter()
    page.goto(url, wait_until="commit")
    page.wait_for_selector(selector, timeout=120_000)
    return time.perf_counter() - began


def long(setting: Looking) -> None:
    """The page of a long run: first bars, how many elements it has, and what looking at it costs the host."""
    with hosted(setting) as (url, ask), browser() as chromium:
        run_id = ask("start tiles long")
        _ = ask("result long")
        # The browser's own start is not the page's.
        page = chromium.new_page()
        page.goto(url)
        page.wait_for_selector("text=long")
        _ = ask("lag")
        cold = shown(page, f"{url}runs/{run_id}", "svg path.all")
        page.wait_for_load_state("networkidle")
        nodes = page.locator("*").count()
        stall = ask("lag")
        warm = shown(page, f"{url}runs/{run_id}", "svg path.all")
        figures = {"first_bars_s": round(cold, 2), "again_s": round(warm, 2), "nodes": nodes, "stall_ms": stall}
        emit("engine", "dashboard-long", setting.count, cold, **figures)


# The moment at which each op is shown as ended, by its path.
OBSERVE = """() => {
    window.shown = {};
    const look = () => {
        for (const one of document.querySelectorAll('[role=row][aria-label*="succeeded"]')) {
            const path = one.ariaLabel.split(',')[0];
            window.shown[path] ??= Date.now() / 1000;
        }
        requestAnimationFrame(look);
    };
    look();
}"""


def live(setting: Looking) -> None:
    """Seconds from a step's end until the page shows it, with the steps in the process of the server or in another."""
    with hosted(setting) as (url, ask), browser() as chromium:
        worker = hosted(setting) if setting.apart else None
        tell = ask if worker is None else worker.__enter__()[1]
        page = chromium.new_page(viewport={"width": 1280, "height": 200 + 26 * setting.count})
        run_id = tell("start ticking live")
        page.goto(f"{url}runs/{run_id}?fold=0")
        page.wait_for_selector("[role=row]")
        page.evaluate(OBSERVE)
        ended = tell("result live")
        page.wait_for_timeout(3000)
        found = page.evaluate("window.shown")
        paths = [f"tick{n % NAMES}:{n // NAMES}" for n in range(setting.count)]
        late = [found[path] - at for path, at in zip(paths, ended, strict=True) if path in found]
        if worker is not None:
            worker.__exit__(None, None, None)
    figures = {"p50_ms": round(percentile(late, 0.5) * 1000), "p95_ms": round(percentile(late, 0.95) * 1000)}
    emit("engine", "dashboard-live", len(late), sum(late), apart=setting.apart, seen=len(late), **figures)


def watched(setting: Looking) -> None:
    """Steps per second of `many`, with the list open in a browser and without."""
    rates = []
    for looks in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            fresh = Looking(folder=Path(folder), durability=setting.durability, wake_after=0.0)
            with hosted(fresh) as (url, ask), browser() as chromium:
                page = chromium.new_page()
                page.goto(url if looks else "about:blank")
                rates.append(ask("many"))
    emit("engine", "dashboard-watched", 1, 0, per_second_alone=round(rates[0], 1), ratio=round(rates[1] / rates[0], 3))


WORKLOADS: dict[str, Callable[[Looking], Any]] = {
    "lists": lists,
    "long": long,
    "live": live,
    "watched": watched,
    "host": host,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="One workload of the dashboard.")
    parser.add_argument("workload", choices=list(WORKLOADS))
    parser.add_argument("--store", default="", help="the URL of an empty database; a file without it")
    parser.add_argument("--durability", choices=["sync", "relaxed"], default="relaxed")
    parser.add_argument("--count", type=int, default=100_000, help="how many runs, or steps")
    parser.add_argument("--apart", action="store_true", help="`live`: the steps are executed by another process")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as fresh:
        setting = Looking(
            folder=Path(fresh),
            durability=options.durability,
            wake_after=0.0,
            store=options.store,
            count=options.count,
            apart=options.apart,
        )
        work = WORKLOADS[options.workload](setting)
        if work is not None:
            asyncio.run(work)


if __name__ == "__main__":
    main()
