"""Do the durable work by hand, to learn what Python and the disk allow. Has none of the engine's features.

It keeps the engine's promises for `seq`, `many` and `fanout`: a deterministic loop drives the body; StepStarted and
StepSucceeded are rows; the run's row is compared and swapped; values make a JSON round trip; all that a tick of the
loop recorded is one commit; a step starts only after its intent is committed. It cannot retry, recover or replay.

    python -m bench.limit many --sync FULL
    python -m bench.limit commit
"""

import argparse
import asyncio
import hashlib
import statistics
import tempfile
import time
from asyncio import events
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, TypeVarTuple

import apsw
import msgspec

from bench.workloads import (
    FANOUT_STEPS,
    MANY_AT_ONCE,
    MANY_RUNS,
    MANY_STEPS,
    SEQ_STEPS,
    Value,
    emit,
    value,
)

Arguments = TypeVarTuple("Arguments")
StepFunction = Callable[[int], Coroutine[Any, Any, Value]]
Body = Callable[["HandRun", int], Coroutine[Any, Any, int]]

COMMIT_SAMPLES = 500

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Value).decode


class Kind(IntEnum):
    """What a row of the journal says."""

    RUN_STARTED = 0
    STEP_STARTED = 1
    STEP_SUCCEEDED = 2
    RUN_FINISHED = 3


class BodyLoop(asyncio.AbstractEventLoop):
    """Run a body's callbacks in order until none is ready. Knows no clock, no socket and no thread."""

    def __init__(self) -> None:
        self._ready: deque[asyncio.Handle] = deque()

    def call_soon(
        self,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, **options)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def run_ready(self) -> None:
        """Go on until every task of the body waits for an outcome."""
        outer = events._get_running_loop()
        events._set_running_loop(self)
        try:
            while self._ready:
                self._ready.popleft()._run()
        finally:
            events._set_running_loop(outer)


class Recorder:
    """Write what the runs recorded during one tick of the loop in one commit. Never calls a step before that."""

    def __init__(self, path: Path, sync: str) -> None:
        self.loop = asyncio.get_running_loop()
        self._database = open_database(path, sync)
        self._changed: dict[str, HandRun] = {}
        self._database.execute(
            "create table journal (run text, seq integer, kind integer, path text, data blob, at real,"
            " primary key (run, seq)) without rowid"
        )
        self._database.execute(
            "create table run (id text primary key, next integer, status text, updated real) without rowid"
        )

    def accept(self, run: str) -> None:
        """Make a new run durable in a commit of its own, as a lone caller of `start` would have it."""
        self._database.execute("insert into run values (?, 0, 'running', 0)", (run,))

    def changed(self, run: "HandRun") -> None:
        """Commit this run's records at the end of the current tick, together with all others'."""
        if not self._changed:
            self.loop.call_soon(self._commit)
        self._changed[run.id] = run

    def _commit(self) -> None:
        changed, self._changed = self._changed, {}
        now = time.time()
        rows, swaps = [], []
        for run in changed.values():
            expected = run.next
            rows += [(run.id, seq, *record, now) for seq, record in enumerate(run.recorded, expected)]
            run.next = expected + len(run.recorded)
            swaps.append((run.next, run.status, now, run.id, expected))
        database = self._database
        database.execute("begin immediate")
        before = database.total_changes()
        database.executemany("update run set next = ?, status = ?, updated = ? where id = ? and next = ?", swaps)
        if database.total_changes() - before != len(swaps):
            raise SystemExit("another writer advanced a run: a compare-and-swap matched no row")
        database.executemany("insert into journal values (?, ?, ?, ?, ?, ?)", rows)
        database.execute("commit")
        for run in changed.values():
            run.committed()


class HandRun:
    """One run: its body, what it recorded since the last commit, and the steps that wait for that commit."""

    def __init__(self, id: str, body: Body, argument: int, recorder: Recorder) -> None:
        self.id = id
        self.next = 0
        self.status = "running"
        self.recorded: list[tuple[int, str, bytes | str]] = [(Kind.RUN_STARTED, "", encode(argument))]
        self.result: asyncio.Future[int] = recorder.loop.create_future()
        self._recorder = recorder
        self._intended: list[tuple[StepFunction, int, asyncio.Future[Value], str]] = []
        self._ordinals: Counter[StepFunction] = Counter()
        self._loop = BodyLoop()  # type: ignore[abstract]  # the rest of the interface is refused on purpose
        recorder.accept(id)
        self._body = self._loop.create_task(body(self, argument))
        self._body.add_done_callback(self._body_ended)
        # From a callback, not from the caller's task: Python 3.14 has one current task per thread.
        recorder.loop.call_soon(self._advance)

    def step(self, function: StepFunction, argument: int) -> Awaitable[Value]:
        """Record the intent to call `function` and return what will hold its outcome."""
        path = f"{function.__name__}:{self._ordinals[function]}"
        self._ordinals[function] += 1
        outcome = self._loop.create_future()
        self.recorded.append((Kind.STEP_STARTED, path, hashlib.blake2b(encode((argument,)), digest_size=8).hexdigest()))
        self._intended.append((function, argument, outcome, path))
        return outcome

    def committed(self) -> None:
        """Act on what has become durable: answer the caller, or call the steps."""
        self.recorded = []
        if self._body.done():
            self.result.set_result(self._body.result())
            return
        intended, self._intended = self._intended, []
        for function, argument, outcome, path in intended:
            attempt = self._recorder.loop.create_task(function(argument))
            attempt.add_done_callback(partial(self._step_ended, outcome, path))

    def _step_ended(self, outcome: asyncio.Future[Value], path: str, attempt: asyncio.Task[Value]) -> None:
        data = encode(attempt.result())
        self.recorded.append((Kind.STEP_SUCCEEDED, path, data))
        outcome.set_result(decode(data))
        self._advance()

    def _advance(self) -> None:
        self._loop.run_ready()
        self._recorder.changed(self)

    def _body_ended(self, body: asyncio.Task[int]) -> None:
        self.status = "completed"
        self.recorded.append((Kind.RUN_FINISHED, "", encode(body.result())))


async def work(i: int) -> Value:
    return value(i)


async def sequence(run: HandRun, steps: int) -> int:
    for i in range(steps):
        await run.step(work, i)
    return steps


async def fan_out(run: HandRun, steps: int) -> int:
    return len(await asyncio.gather(*[run.step(work, i) for i in range(steps)]))


async def seq(recorder: Recorder) -> int:
    return await HandRun("seq", sequence, SEQ_STEPS, recorder).result


async def fanout(recorder: Recorder) -> int:
    return await HandRun("fanout", fan_out, FANOUT_STEPS, recorder).result


async def many(recorder: Recorder) -> int:
    at_once = asyncio.Semaphore(MANY_AT_ONCE)

    async def one(i: int) -> int:
        async with at_once:
            return await HandRun(f"many-{i}", sequence, MANY_STEPS, recorder).result

    return sum(await asyncio.gather(*[one(i) for i in range(MANY_RUNS)]))


WORKLOADS: dict[str, Callable[[Recorder], Awaitable[int]]] = {"seq": seq, "many": many, "fanout": fanout}


def open_database(path: Path, sync: str) -> apsw.Connection:
    """Open a database in WAL mode with `synchronous` FULL or NORMAL; refuses any other."""
    statements = {"FULL": "pragma synchronous = full", "NORMAL": "pragma synchronous = normal"}
    database = apsw.Connection(str(path))
    database.execute("pragma journal_mode = wal")
    database.execute(statements[sync])
    return database


async def measure(path: Path, workload: str, sync: str) -> None:
    """Do one workload once in the new database at `path` and report its steps per second."""
    recorder = Recorder(path, sync)
    began = time.perf_counter()
    steps = await WORKLOADS[workload](recorder)
    emit("limit", workload, steps, time.perf_counter() - began, sync=sync)


def measure_commit(path: Path, sync: str) -> None:
    """Report the median time of a commit that holds one row."""
    database = open_database(path, sync)
    database.execute("create table row (id integer primary key, data blob)")
    data = encode(value(0))
    samples = []
    for _ in range(COMMIT_SAMPLES):
        began = time.perf_counter()
        database.execute("insert into row (data) values (?)", (data,))
        samples.append(time.perf_counter() - began)
    emit("limit", "commit", len(samples), sum(samples), sync=sync, ms=round(statistics.median(samples) * 1000, 4))


def main() -> None:
    parser = argparse.ArgumentParser(description="What Python and the disk allow, for one workload.")
    parser.add_argument("workload", choices=[*WORKLOADS, "commit"])
    parser.add_argument("--sync", choices=["FULL", "NORMAL"], default="FULL")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "limit.db"
        if options.workload == "commit":
            measure_commit(path, options.sync)
        else:
            asyncio.run(measure(path, options.workload, options.sync))


if __name__ == "__main__":
    main()
