"""Do the durable work on DBOS, the way its documentation advises. Never tunes it, never handicaps it.

On SQLite in a fresh folder, or on PostgreSQL with `--store URL`.

Runs from its own environment (`bench/requirements-peers.txt`), without perdure:

    .venv-peers/bin/python -m bench.peers.dbos_bench many

`seq` and `start` use its blocking functions, which are its faster side for one run at a time; the others use asyncio.
"""

# DBOS is not installed where the project is checked.
# mypy: disable-error-code="import-not-found, untyped-decorator"

import argparse
import asyncio
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from dbos import DBOS, DBOSConfig, SetWorkflowID

from bench.workloads import (
    FANOUT_STEPS,
    MANY_AT_ONCE,
    MANY_RUNS,
    MANY_STEPS,
    PARK_SECONDS,
    RECOVER_RUNS,
    RECOVER_STEPS,
    SEQ_STEPS,
    START_RUNS,
    StepLog,
    Value,
    disk_bytes,
    emit,
    latencies_ms,
    measure_recovery,
    value,
)

MODULE = "bench.peers.dbos_bench"
POLL_SECONDS = 0.05


@DBOS.step()
def work(i: int) -> Value:
    return value(i)


@DBOS.step()
async def work_async(i: int) -> Value:
    return value(i)


@DBOS.step()
async def logged_work(folder: str, run: str, i: int) -> Value:
    log = StepLog(Path(folder))
    log.record(run, i)
    if log.parks(i):
        await asyncio.sleep(PARK_SECONDS)
    return value(i)


@DBOS.workflow()
def sequence(steps: int) -> int:
    for i in range(steps):
        work(i)
    return steps


@DBOS.workflow()
async def sequence_async(steps: int) -> int:
    for i in range(steps):
        await work_async(i)
    return steps


@DBOS.workflow()
async def fan_out(steps: int) -> int:
    return len(await asyncio.gather(*[work_async(i) for i in range(steps)]))


@DBOS.workflow()
async def recovering(folder: str, run: str) -> int:
    for i in range(1, RECOVER_STEPS + 1):
        await logged_work(folder, run, i)
    return RECOVER_STEPS


STORE: list[str] = []


def launch(folder: Path) -> None:
    """Open DBOS on its store; a second process on the same store recovers the first one's runs."""
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": STORE[0] if STORE else f"sqlite:///{folder / 'dbos.sqlite'}",
        "application_version": "bench",
        "log_level": "ERROR",
        "console_log_level": "ERROR",
    }
    DBOS(config=config)
    DBOS.launch()


def seq(folder: Path) -> None:
    launch(folder)
    began = time.perf_counter()
    sequence(SEQ_STEPS)
    emit("dbos", "seq", SEQ_STEPS, time.perf_counter() - began)


def many(folder: Path) -> None:
    launch(folder)
    before = disk_bytes(folder)

    async def all_runs() -> None:
        at_once = asyncio.Semaphore(MANY_AT_ONCE)

        async def one() -> None:
            async with at_once:
                run = await DBOS.start_workflow_async(sequence_async, MANY_STEPS)
                await run.get_result()

        await asyncio.gather(*[one() for _ in range(MANY_RUNS)])

    steps = MANY_RUNS * MANY_STEPS
    began = time.perf_counter()
    asyncio.run(all_runs())
    seconds = time.perf_counter() - began
    emit("dbos", "many", steps, seconds, bytes_per_step_open=round((disk_bytes(folder) - before) / steps, 1))


def fanout(folder: Path) -> None:
    launch(folder)
    began = time.perf_counter()
    asyncio.run(fan_out(FANOUT_STEPS))
    emit("dbos", "fanout", FANOUT_STEPS, time.perf_counter() - began)


def start(folder: Path) -> None:
    launch(folder)
    sequence(1)
    samples = []
    for _ in range(START_RUNS):
        began = time.perf_counter()
        sequence(1)
        samples.append(time.perf_counter() - began)
    emit("dbos", "start", START_RUNS, sum(samples), **latencies_ms(samples))


def recover(folder: Path) -> None:
    measure_recovery("dbos", MODULE, folder, [word for url in STORE for word in ("--store", url)])


def recover_park(folder: Path) -> None:
    """Start every run and stay until killed."""

    async def park() -> None:
        launch(folder)
        for k in range(RECOVER_RUNS):
            with SetWorkflowID(f"run-{k}"):
                await DBOS.start_workflow_async(recovering, str(folder), f"run-{k}")
        await asyncio.sleep(PARK_SECONDS)

    asyncio.run(park())


def recover_finish(folder: Path) -> None:
    """Let DBOS recover its runs and say so when all have succeeded; refuses to say so when one has not."""

    async def finish() -> None:
        launch(folder)
        # One query at a time, rather than a thousand handles that each poll: DBOS should recover undisturbed.
        while await DBOS.list_workflows_async(status=["PENDING", "ENQUEUED"], limit=1):
            await asyncio.sleep(POLL_SECONDS)
        succeeded = len(await DBOS.list_workflows_async(status="SUCCESS"))
        if succeeded != RECOVER_RUNS:
            raise SystemExit(f"{succeeded} of {RECOVER_RUNS} runs succeeded")
        print("finished", flush=True)

    asyncio.run(finish())


WORKLOADS: dict[str, Callable[[Path], None]] = {
    "seq": seq,
    "many": many,
    "fanout": fanout,
    "start": start,
    "recover": recover,
}
PHASES: dict[str, Callable[[Path], None]] = {"recover-park": recover_park, "recover-finish": recover_finish}


def main() -> None:
    parser = argparse.ArgumentParser(description="One workload on DBOS.")
    parser.add_argument("workload", choices=[*WORKLOADS, *PHASES])
    parser.add_argument("--folder", type=Path, help="where a phase of `recover` finds its database")
    parser.add_argument("--store", action="append", default=[], help="the URL of an empty PostgreSQL database")
    options = parser.parse_args()
    STORE.extend(options.store)
    status = 1
    try:
        if options.workload in PHASES:
            PHASES[options.workload](options.folder)
        else:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                WORKLOADS[options.workload](Path(folder))
        status = 0
    except BaseException:
        traceback.print_exc()
    # Its threads outlive the work; the figures are out, so leave without waiting for them.
    os._exit(status)


if __name__ == "__main__":
    main()
