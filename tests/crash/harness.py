"""What the crash tests share: children that can be killed, and audits of what they leave behind."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any, TypeVar

import apsw

from perdure import Engine, connect
from perdure.kernel.events import (
    AnyEvent,
    AttemptFailed,
    Batch,
    RunClaimed,
    RunFinished,
    StepFailed,
    StepSkipped,
    StepStarted,
    StepSucceeded,
    decode_events,
)
from perdure.kernel.invocation import Invocation
from perdure.kernel.projection import child_rows, project
from perdure.kernel.state import fold
from perdure.stores.sqlshared.entries import checksum
from perdure.stores.sqlshared.rows import RUN, run_row
from tests.amounts import some
from tests.patience import PATIENCE as PATIENCE

T = TypeVar("T")
S = TypeVar("S")

ROOT = Path(__file__).resolve().parents[2]


# --- children -------------------------------------------------------------------------------------------------------


class Child:
    """A process that a test may kill."""

    def __init__(self, pid: int, out: Path) -> None:
        self.pid, self._out = pid, out
        self._status: int | None = None
        self._ended = threading.Event()

    def ended(self, status: int) -> None:
        """Told by the zygote."""
        self._status = status
        self._ended.set()

    @property
    def alive(self) -> bool:
        """Whether it has not ended yet."""
        return not self._ended.is_set()

    def wait(self, timeout: float = PATIENCE) -> int:
        """The exit status, negative for a signal. A child that does not end is killed, and that is an error."""
        if not self._ended.wait(timeout):
            self.kill()
            raise AssertionError(f"the child did not end within {timeout} s\n{self.log}")
        assert self._status is not None
        return self._status

    def result(self, timeout: float = PATIENCE) -> Any:
        """What its function returned."""
        status = self.wait(timeout)
        assert status == 0, f"the child ended with {status}\n{self.log}"
        return json.loads(self._out.read_text())

    def killed(self, timeout: float = PATIENCE) -> bool:
        """Whether it ended by SIGKILL; an end by an error of its own is not accepted."""
        status = self.wait(timeout)
        assert status in (0, -signal.SIGKILL), f"the child ended with {status}\n{self.log}"
        return status != 0

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill -9, and wait until it is gone."""
        with suppress(ProcessLookupError):  # it may have ended, and the word of it be on its way
            if self.alive:
                os.kill(self.pid, signal.SIGKILL)
        assert self._ended.wait(PATIENCE)

    @property
    def log(self) -> str:
        """What it printed and logged."""
        path = Path(f"{self._out}.log")
        return path.read_text(errors="replace") if path.exists() else ""


class Children:
    """Starts children from a zygote, from any thread. Close it, and none is left."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.zygote"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        self._asking = threading.Lock()
        self._lock = threading.Lock()
        self._started: Queue[int | None] = Queue()
        self._known: dict[int, Child] = {}
        # A child may end before its Child object is made.
        self._early: dict[int, int] = {}
        self._numbers = itertools.count()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def start(self, target: str, folder: Path, **arguments: Any) -> Child:
        """Start `tests.crash.children:<target>`, or a target of another module, in a process of its own."""
        with self._asking:
            out = folder / f"out-{next(self._numbers)}.json"
            place = target if ":" in target or target == "python" else f"tests.crash.children:{target}"
            request = {"target": place, "arguments": arguments, "out": str(out)}
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            pid = self._started.get(timeout=PATIENCE)
            assert pid is not None, "the zygote has ended"
            child = Child(pid, out)
            with self._lock:
                if pid in self._early:
                    child.ended(self._early.pop(pid))
                else:
                    self._known[pid] = child
        return child

    def python(self, folder: Path, *argv: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> Child:
        """Start `python ARGV` with everything imported, in that folder unless `cwd` says where."""
        return self.start("python", folder, argv=argv, cwd=str(cwd or folder), env=env or {})

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if "pid" in message:
                self._started.put(message["pid"])
                continue
            with self._lock:
                child = self._known.pop(message["ended"], None)
                if child is None:
                    self._early[message["ended"]] = message["status"]
                else:
                    child.ended(message["status"])
        self._started.put(None)

    def close(self) -> None:
        """Kill every child and the zygote itself."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()
            self._listener.join(PATIENCE)
            self._process.stdout.close()


def until(condition: Callable[[], T], timeout: float = PATIENCE, every: float = 0.005, what: str = "") -> T:
    """Wait until a condition holds, and return what it gave. To ask takes a tenth of the time at most."""
    deadline = time.monotonic() + timeout
    began = time.thread_time()
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {timeout} s in vain {what}"
        time.sleep(max(every, 9 * (time.thread_time() - began)))
        began = time.thread_time()
    return found


def at_once(work: Callable[[S], T], items: Iterable[S], width: int) -> list[T]:
    """Do the work for all items, `width` at a time; the first error is raised when all have ended."""
    with ThreadPoolExecutor(width) as pool:
        return [future.result() for future in [pool.submit(work, item) for item in items]]


def has_lines(path: Path, count: float) -> bool:
    """Whether a file has so many lines by now."""
    return path.exists() and path.read_bytes().count(b"\n") >= count


def kill_at_random(
    start: Callable[[], Child], log: Path, *, workers: int, kills: int, lines: int, seed: int, busy: bool = False
) -> None:
    """Kill one of the workers and start another, again and again until the log has so many lines; then let them end.

    `busy`: always the one that has begun a step last, if it lives; the others may have nothing to do.
    """
    chance = random.Random(seed)
    working = [start() for _ in range(workers)]
    try:
        for kill in range(kills):
            # Spread over the whole of the work: the log grows by one line a step.
            share = (kill + chance.random()) / (kills + 1)
            until(partial(has_lines, log, share * lines), what=f"for the work before kill {kill}")
            victim = chance.randrange(workers)
            if busy:
                last = read_effects(log)[-1].pid
                victim = next((n for n, worker in enumerate(working) if worker.pid == last), victim)
            assert working[victim].alive, working[victim].log
            working[victim].kill()
            working[victim] = start()
        (log.parent / "drained").touch()
        for worker in working:
            assert worker.result() == "drained"
    finally:
        for worker in working:
            worker.kill()


def through_kills(
    children: Children, target: str, folder: Path, kills: Iterable[tuple[int, bool]], **arguments: Any
) -> tuple[Any, list[dict[str, Journal]]]:
    """Run it, dying at each of the commits `kills` in turn, and then to its end: what it returned, and what each death
    left behind."""
    folder.mkdir(exist_ok=True)
    arguments |= {"db": str(folder / "runs.db"), "effects": str(folder / "effects")}
    left = []
    for at, after in kills:
        if not children.start(target, folder, **arguments, at=at, after=after).killed():
            break  # commits may be merged, so there may be fewer than planned
        left.append(audit_copy(folder / "runs.db") if (folder / "runs.db").exists() else {})
    return children.start(target, folder, **arguments).result(), left


def ending(folder: Path, program: str, *arguments: Any) -> dict[str, Any]:
    """What the child `end` is told to run a program in that folder to its end."""
    paths = {"db": str(folder / "runs.db"), "effects": str(folder / "effects")}
    return {**paths, "program": program, "arguments": arguments}


# Each commit is met on one side, by turns; `make soak` meets all on both.
PARTS = some([(False, 0), (True, 1), (False, 1), (True, 0)], 2)


async def create(url: str) -> None:
    """Create a store."""
    async with Engine(url):
        pass


async def queue(url: str, runs: Mapping[str, Invocation[Any]], **options: Any) -> None:
    """Create the store and queue runs in it, as a client does that executes nothing itself."""
    await create(url)
    async with connect(url) as client:
        for id, invocation in runs.items():
            _ = await client.start(invocation, id=id, **options)


# --- effects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Effect:
    """A line of the log that steps write straight to disk, whatever the store does."""

    at: float
    run_id: str
    op: str
    attempt: int
    what: str
    pid: int


def read_effects(path: Path) -> list[Effect]:
    """All lines so far; one that is being written is none yet."""
    return [Effect(**json.loads(line)) for line in whole_lines(path)]


def effects_by_run(path: Path) -> dict[str, list[Effect]]:
    """What was executed, by run_id."""
    by_run: dict[str, list[Effect]] = defaultdict(list)
    for effect in read_effects(path):
        by_run[effect.run_id].append(effect)
    return by_run


def whole_lines(path: Path) -> list[str]:
    """All lines so far of a file that others write; one that is being written is none yet."""
    return path.read_text().split("\n")[:-1] if path.exists() else []


# --- audits ---------------------------------------------------------------------------------------------------------


@dataclass
class Journal:
    """One run as its journal tells it."""

    run_id: str
    id: str
    batches: list[Batch] = field(default_factory=list)

    @property
    def events(self) -> list[AnyEvent]:
        """All events in order."""
        return [event for batch in self.batches for event in batch.events]

    @property
    def finished(self) -> list[RunFinished]:
        """The ends of the run: one, or none yet."""
        return [event for event in self.events if isinstance(event, RunFinished)]

    @property
    def outcomes(self) -> list[str]:
        """The ops whose outcome is recorded, in order."""
        return [event.op for event in self.events if isinstance(event, StepSucceeded | StepFailed | StepSkipped)]

    @property
    def started(self) -> Counter[str]:
        """How many attempts of each op are recorded as started."""
        return Counter(event.op for event in self.events if isinstance(event, StepStarted))

    @property
    def attempts(self) -> list[tuple[str, int]]:
        """Every attempt that is recorded as started."""
        return [(event.op, event.attempt) for event in self.events if isinstance(event, StepStarted)]

    @property
    def under_way(self) -> set[tuple[str, int]]:
        """Attempts that have started and not ended: the last of an op that has no outcome."""
        running: dict[str, int] = {}
        for event in self.events:
            if isinstance(event, StepStarted):
                running[event.op] = event.attempt
            elif isinstance(event, StepSucceeded | StepFailed | StepSkipped | AttemptFailed):
                running.pop(event.op, None)
        return set(running.items())

    @property
    def claims(self) -> int:
        """How often the run has had a new owner."""
        return sum(isinstance(event, RunClaimed) for event in self.events)


def audit(path: Path, vfs: str | None = None) -> dict[str, Journal]:
    """Check everything a store promises whatever happened to it, and return its journals by id.

    The file is whole; journals have no gaps, end where their heads say, and match their checksums; rows are what the
    journals imply; outcomes of steps and ends of runs are recorded once; nothing follows the end of a run.
    """
    db = apsw.Connection(str(path), vfs=vfs)
    try:
        assert db.pragma("integrity_check") == "ok"
        everyone = [run_row(row) for row in db.execute(RUN).fetchall()]
        found: list[Any] = db.execute("select run_id, next_seq from perdure_heads").fetchall()
        heads: dict[str, int] = dict(found)
        stored: list[Any] = db.execute(
            "select run_id, seq, at, checksum, events from perdure_journal order by run_id, seq"
        ).fetchall()
    finally:
        db.close()
    rows = {row.run_id: row for row in everyone if not row.root}
    assert set(rows) == set(heads) == {run_id for run_id, *_ in stored}
    journals = {run_id: Journal(run_id, row.id) for run_id, row in rows.items()}
    next_seq: Counter[str] = Counter()
    for run_id, seq, at, recorded, events in stored:
        data = events.encode()
        assert checksum(run_id, seq, at, data) == recorded
        assert seq == next_seq[run_id], f"a gap in the journal of {run_id}: {seq} follows {next_seq[run_id]}"
        batch = Batch(seq, at, decode_events(data))
        next_seq[run_id] += len(batch.events)
        journals[run_id].batches.append(batch)
    for run_id, journal in journals.items():
        assert next_seq[run_id] == heads[run_id]
        assert project(run_id, journal.batches) == rows[run_id]
        children = {row.run_id: row for row in everyone if row.root == run_id}
        assert {row.run_id: row for row in child_rows(fold(run_id, journal.batches))} == children
        repeated = [op for op, n in Counter(journal.outcomes).items() if n > 1]
        assert not repeated, f"recorded twice in {journal.id}: {repeated}"
        attempts = [attempt for attempt, n in Counter(journal.attempts).items() if n > 1]
        assert not attempts, f"started twice in {journal.id}: {attempts}"
        assert len(journal.finished) <= 1
        if journal.finished:
            assert isinstance(journal.events[-1], RunFinished)
            assert not journal.under_way
    latest = {row.id: row for row in sorted(rows.values(), key=lambda row: row.incarnation)}
    open_ids = Counter(row.id for row in rows.values() if row.finished_at is None)
    assert max(open_ids.values(), default=0) <= 1, "one id has two open runs"
    assert len({(row.id, row.incarnation) for row in rows.values()}) == len(rows)
    return {id: journals[row.run_id] for id, row in latest.items()}


def audit_copy(path: Path) -> dict[str, Journal]:
    """Audit a store as a crash left it, without being the one who repairs it."""
    copy = path.parent / f"{path.name}.audit"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for name in (path.name, f"{path.name}-wal"):
        if (path.parent / name).exists():
            shutil.copyfile(path.parent / name, copy / name)
    return audit(copy / path.name)


def peek(path: Path, id: str) -> Journal | None:
    """The journal of a run whose process may be alive and writing."""
    if not path.exists():
        return None
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        db.set_busy_timeout(int(PATIENCE * 1000))
        if not db.table_exists("main", "perdure_runs"):
            return None
        found: list[Any] = db.execute(
            """
            select run_id, seq, at, events from perdure_journal join perdure_runs using (run_id)
            where id = ? order by seq
            """,
            (id,),
        ).fetchall()
    finally:
        db.close()
    if not found:
        return None
    return Journal(found[0][0], id, [Batch(seq, at, decode_events(events.encode())) for _, seq, at, events in found])


def check_executions(journal: Journal, effects: Iterable[Effect]) -> Counter[str]:
    """Check that every execution of a step is one the journal knows of, and return how often each op was executed."""
    executed = [(e.op, e.attempt) for e in effects if e.run_id == journal.run_id and e.what == "begin"]
    repeated = [attempt for attempt, n in Counter(executed).items() if n > 1]
    assert not repeated, f"one attempt executed twice in {journal.id}: {repeated}"
    unknown = set(executed) - set(journal.attempts)
    assert not unknown, f"executed without a record in {journal.id}: {unknown}"
    return Counter(op for op, _ in executed)


def numbered(folder: Path) -> Iterator[Path]:
    """Fresh folders."""
    for n in itertools.count():
        path = folder / str(n)
        path.mkdir()
        yield path
