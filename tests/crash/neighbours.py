"""Other code in the engine's process that uses the store's file, as users' code does, and runs in children."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress

from perdure import Engine, connect
from tests.crash import programs
from tests.crash.failpoints import die

# Another process comes, looks and leaves: it must not take itself for the last one.
VISIT = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=30)
db.execute("select count(*) from perdure_runs").fetchall()
db.close()
"""


def select(db: str) -> None:
    """Look, and close."""
    with closing(sqlite3.connect(db)) as other:
        other.execute("select count(*) from perdure_runs").fetchall()


def forget(db: str) -> None:
    """Look, and leave the closing to the garbage collector, as pandas' users do."""
    for _ in sqlite3.connect(db).execute("select * from perdure_journal"):
        break


def write(db: str) -> None:
    """Write to a table of one's own."""
    with closing(sqlite3.connect(db, timeout=0)) as other, suppress(sqlite3.OperationalError):
        other.execute("create table if not exists mine (a)")
        other.execute("insert into mine values (1)")
        other.commit()


def checkpoint(db: str) -> None:
    """Fold the log."""
    with closing(sqlite3.connect(db, timeout=0)) as other:
        other.execute("pragma wal_checkpoint(truncate)").fetchall()


def change_mode(db: str) -> None:
    """Try to do without a log."""
    with closing(sqlite3.connect(db, timeout=0)) as other, suppress(sqlite3.OperationalError):
        other.execute("pragma journal_mode=delete").fetchall()


def vacuum(db: str) -> None:
    """Try to rewrite the whole file."""
    with closing(sqlite3.connect(db, timeout=0)) as other, suppress(sqlite3.OperationalError):
        other.execute("vacuum")


def read_bytes(db: str) -> None:
    """Open the files and close them: that drops the locks which the process has on them."""
    for name in (db, f"{db}-wal", f"{db}-shm"):
        with open(name, "rb") as file:
            file.read(100)


def copy(db: str) -> None:
    """Copy the files, as a backup does."""
    for suffix in ("", "-wal", "-shm"):
        shutil.copy(f"{db}{suffix}", f"{db}.copy{suffix}")


def connect_and_leave(db: str) -> None:
    """A second store in the same process, which is closed again."""

    async def look() -> None:
        async with connect(f"sqlite:///{db}") as client:
            await client.list(limit=1)

    asyncio.run(look())


KINDS: dict[str, Callable[[str], None]] = {
    "select": select,
    "forget": forget,
    "write": write,
    "checkpoint": checkpoint,
    "change mode": change_mode,
    "vacuum": vacuum,
    "read bytes": read_bytes,
    "copy": copy,
    "connect and leave": connect_and_leave,
}


def engine_with_neighbour(db: str, effects: str, acks: str, kinds: list[str], threads: int, runs: int) -> None:
    """Start runs and note what is acknowledged, with other code on the same file; at the end die as by kill -9."""
    programs.log_effects(effects)
    log = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    ended = threading.Event()

    def meddle() -> None:
        while not ended.is_set():
            # Its own reads may be disturbed, since it does not see our locks; the store may not.
            with suppress(sqlite3.Error):
                KINDS[random.choice(kinds)](db)

    async def main() -> None:
        async with Engine(f"sqlite:///{db}", [programs.five], name="w") as engine:
            # There is something to look at before the others come.
            await (await engine.start(programs.five(0, 0.0), id="run-first")).result()
            meddlers = [threading.Thread(target=meddle, daemon=True) for _ in range(threads)]
            for meddler in meddlers:
                meddler.start()
            for n in range(runs):
                handle = await engine.start(programs.five(n, 0.0), id=f"run-{n}")
                await handle.result()
                os.write(log, json.dumps({"kind": "result", "id": f"run-{n}", "next_seq": 0}).encode() + b"\n")
                if not threads:
                    await asyncio.to_thread(KINDS[kinds[n % len(kinds)]], db)
                if n % 8 == 0:
                    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", VISIT, db], check=True)
            die()

    asyncio.run(main())


def engine_whose_log_is_removed(db: str, effects: str, acks: str, runs: int, every: int) -> None:
    """Start runs while the write-ahead log is deleted now and then; at the end die as by kill -9."""
    programs.log_effects(effects)
    log = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    async def main() -> None:
        async with Engine(f"sqlite:///{db}", [programs.five], name="w") as engine, connect(f"sqlite:///{db}") as client:
            # Two more runs after the last deletion, by either store: a process that dies while it saves what a deleted
            # log had leaves half of it.
            for n in range(runs + 2):
                if n % every == every - 1 and n < runs:
                    os.unlink(f"{db}-wal")
                starting = client if n % 2 else engine
                handle = await starting.start(programs.five(n, 0.0), id=f"run-{n}")
                await handle.result()
                os.write(log, json.dumps({"kind": "result", "id": f"run-{n}", "next_seq": 0}).encode() + b"\n")
            die()

    asyncio.run(main())
