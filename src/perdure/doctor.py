"""Check a store and its environment. Reads, and changes nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import apsw

from perdure import __version__
from perdure.client.client import Client
from perdure.client.queries import pages
from perdure.errors import Corrupt, PerdureError
from perdure.kernel.events import RunStatus
from perdure.kernel.ids import BUILT_IN
from perdure.kernel.policies.durations import span
from perdure.kernel.projection import RunRow
from perdure.ports.leases import ORCHESTRATOR, orchestrator_name
from perdure.ports.runs import RunFilter
from perdure.ports.store import Store
from perdure.stores.sqlite.guard import guarded

# Older ones can lose committed data when the write-ahead log is reset.
OLDEST_SQLITE = (3, 51, 3)
LARGE_WAL = 64 * 1024 * 1024
LITTLE_SPACE, NO_SPACE = 1024**3, 50 * 1024**2
OPEN = [status for status in RunStatus if not status.finished]
PAGE = 500
# How many runs a finding names before it only counts them.
NAMED = 5

Verdict = Literal["ok", "warn", "fail"]
_USED = "select count(*) from dbstat"
# The page at this byte is never used: SQLite locks it.
_LOCK_BYTE = 2**30


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, how it stands, and what to do about it."""

    name: str
    verdict: Verdict
    found: str
    fix: str = ""


# --- around the store -----------------------------------------------------------------------------------------------


def software() -> Iterator[Check]:
    """Python, perdure and SQLite."""
    python = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= (3, 11):  # noqa: UP036 - the doctor may be asked just because it is not
        yield Check("python", "ok", f"{python} ({sys.executable})")
    else:
        yield Check("python", "fail", python, "perdure needs Python 3.11 or newer")
    yield Check("perdure", "ok", f"{__version__} ({os.path.dirname(__file__)})")
    sqlite = apsw.sqlite_lib_version()
    found = f"{sqlite}, apsw {apsw.apsw_version()}"
    if tuple(int(part) for part in sqlite.split(".")) >= OLDEST_SQLITE:
        yield Check("sqlite", "ok", found)
    else:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        yield Check("sqlite", "fail", found, f"before {oldest} committed data can be lost: pip install --upgrade apsw")


def place(store: Store) -> Iterator[Check]:
    """The disk that a store is on."""
    path = _path(store)
    if path is None:
        return
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        return  # opening the store will say so
    free = shutil.disk_usage(folder).free
    found = f"{_size(free)} free in {folder}"
    if free < NO_SPACE:
        yield Check(
            "disk", "fail", found, "free some space: without it no step can be recorded, and runs make no progress"
        )
    elif free < LITTLE_SPACE:
        yield Check("disk", "warn", found, "free some space before it runs out: on a full disk, runs make no progress")
    else:
        yield Check("disk", "ok", found)
    try:
        size = os.path.getsize(path + "-wal")
    except OSError:
        size = 0
    if size > LARGE_WAL:
        fix = (
            "a process keeps a read transaction open, so the log cannot be checkpointed: find that process and stop it"
        )
        yield Check("wal", "warn", f"{_size(size)}", fix)
    else:
        yield Check("wal", "ok", _size(size))
    if not guarded():
        fix = (
            "this system has no locks that would protect the file: in the process of an engine, read it with a client, "
            "with apsw or from another process, and never with sqlite3, pandas, SQLAlchemy or Django"
        )
        yield Check("guard", "warn", "sqlite3 beside an engine, in one process, can lose commits", fix)


def missing(store: Store) -> Check | None:
    """A store that has never been used is no failure."""
    path = _path(store)
    if path is None or os.path.exists(path) or not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        return None
    fix = "the first run creates it; if there should be one, check --store and PERDURE_STORE"
    return Check("store", "warn", f"there is no file {path} yet", fix)


def _path(store: Store) -> str | None:
    """The file of an SQLite store."""
    scheme, _, path = store.url.partition(":///")
    return path if scheme == "sqlite" else None


def _size(size: int) -> str:
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"{size / (1 << power):.1f} {unit}"
    return f"{size} bytes"


# --- in the store ---------------------------------------------------------------------------------------------------


async def examine(client: Client, programs: Sequence[str] | None = None) -> list[Check]:
    """An open store and the runs in it. With the names of programs: whether each open run has one."""
    checks, path = [Check("store", "ok", client.store.url)], _path(client.store)
    if path is not None:
        checks += await asyncio.to_thread(lambda: [*_file(path)])
    beside = getattr(client.store.leases, "url", None)
    if beside is not None:
        checks.append(await _leases(client, beside))
        if checks[-1].verdict == "fail":
            return checks  # without leases it is not known which owners are alive, and which runs are orphans
    try:
        checks += await _runs(client, programs)
    except PerdureError as error:
        checks.append(Check("runs", "fail", "their rows cannot be read", str(error)))
    return checks


async def _leases(client: Client, url: str) -> Check:
    """Leases that are kept beside the store."""
    try:
        live = await client.store.leases.live(ORCHESTRATOR, client.clock.now())
    except PerdureError as error:
        return Check("leases", "fail", url, str(error))
    return Check("leases", "ok", f"{url}, {len(live)} orchestrators alive")


def _file(path: str) -> Iterator[Check]:
    # A connection of its own, which cannot write.
    db = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        yield Check("schema", "ok", f"version {db.pragma('user_version')}")
        problems = _damage(db)
        if not problems:
            yield Check("integrity", "ok", f"{_size(os.path.getsize(path))}, no damage found")
        else:
            fix = "the file is damaged: stop the engines, keep a copy of the file, restore a backup, and check the disk"
            yield Check("integrity", "fail", "; ".join(problems), fix)
    except apsw.Error as error:
        yield Check("integrity", "fail", str(error), "restore the file from a backup, and check the disk")
    finally:
        db.close()


def _damage(db: apsw.Connection) -> list[str]:
    """What SQLite finds wrong with its file."""
    with db:  # all of it about one moment
        problems = [str(row[0]) for row in db.execute("pragma quick_check(5)")]
        pages, used, free = db.pragma("page_count"), db.execute(_USED).get, db.pragma("freelist_count")
    if problems != ["ok"]:
        return problems
    # SQLite leaves the free pages out of its check when the first of the schema's names is that of a view.
    reserved = int(pages * db.pragma("page_size") > _LOCK_BYTE)
    return [] if pages == used + free + reserved else [f"{pages} pages, of which {used} are used and {free} free"]


async def _runs(client: Client, programs: Sequence[str] | None) -> list[Check]:
    open_runs = [run async for page in pages(client.store, RunFilter(status=OPEN, limit=PAGE)) for run in page]
    leases = await client.store.leases.live(ORCHESTRATOR, client.clock.now())
    live = {orchestrator_name(lease.key) for lease in leases}
    # A child stands where its root does, which has the owner of both.
    roots = [run for run in open_runs if not run.root]
    counts = {status: sum(run.status is status for run in roots) for status in OPEN}
    listed = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    checks = [
        Check("orchestrators", "ok", f"{len(live)} alive" + (f": {', '.join(sorted(live))}" if live else "")),
        Check("open runs", "ok", listed or "none"),
        await _journals(client.store, open_runs),
        _owners(roots, live, client.clock.now()),
        _parked(roots),
    ]
    if programs is not None:
        checks.append(_programs(open_runs, programs))
    return checks


async def _journals(store: Store, open_runs: Sequence[RunRow]) -> Check:
    """Read the rows and journals of all open runs: reading verifies their checksums."""
    damaged: dict[str, str] = {}
    for start in range(0, len(open_runs), PAGE):
        page = {run.run_id: run for run in open_runs[start : start + PAGE]}
        for run_id, journal in (await store.journal.read_many(list(page))).items():
            if isinstance(journal, Exception):
                damaged[run_id] = f"{page[run_id].id}: {journal}"
        for run_id, run in page.items():
            try:
                await store.runs.get(run_id)
            except Corrupt as error:
                damaged.setdefault(run_id, f"{run.id}: {error}")
    if damaged:
        fix = "restore the file from a backup; the other runs are not affected"
        return Check(
            "journals", "fail", f"{len(damaged)} of {len(open_runs)} are damaged", "\n".join([fix, *damaged.values()])
        )
    return Check("journals", "ok", f"those of {len(open_runs)} open runs read; all checksums match")


def _owners(open_runs: Sequence[RunRow], live: set[str], now: float) -> Check:
    """Runs that should advance, and whose owner is not alive."""
    left = [
        run
        for run in open_runs
        if run.owner not in live
        and (run.status is RunStatus.RUNNING or (run.wake_at is not None and run.wake_at <= now))
    ]
    if not left:
        return Check("owners", "ok", "every run in progress has a live owner")
    names = ", ".join(sorted({run.program for run in left}))
    oldest = min(run.wake_at or run.created_at for run in left)
    found = f"{_named(left)} without a live owner; the oldest started or became due {span(now - oldest)} ago"
    return Check("owners", "warn", found, f"start an engine on this store that has the programs: {names}")


def _parked(open_runs: Sequence[RunRow]) -> Check:
    parked = [run for run in open_runs if run.status is RunStatus.PARKED]
    if not parked:
        return Check("parked", "ok", "no run is parked")
    reasons = [f"{run.id}: {run.reason.partition(chr(10))[0]}" for run in parked[:NAMED]]
    return Check(
        "parked",
        "warn",
        _named(parked),
        "\n".join(["`perdure runs show ID` says why; fix the cause, and deploy or resolve them", *reasons]),
    )


def _programs(open_runs: Sequence[RunRow], programs: Sequence[str]) -> Check:
    unknown = [run for run in open_runs if run.program not in programs]
    own = sorted(name for name in programs if not name.startswith(BUILT_IN))
    known = f"it has {', '.join(own) or 'none'}"
    if not unknown:
        return Check("programs", "ok", f"every open run has its program; {known}")
    names = ", ".join(sorted({run.program for run in unknown}))
    return Check(
        "programs",
        "warn",
        f"{_named(unknown)} of unknown programs: {names}",
        f"{known}; add the missing programs, or give them their former names",
    )


def _named(runs: Sequence[RunRow]) -> str:
    names = ", ".join(run.id for run in runs[:NAMED])
    more = f" and {len(runs) - NAMED} more" if len(runs) > NAMED else ""
    return f"{len(runs)} {'run' if len(runs) == 1 else 'runs'} ({names}{more})"
