"""Bytes that changed on the disk: detected, reported for the run they belong to, and no concern of any other run."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure import (
    Corrupt,
    Engine,
    Invocation,
    PerdureError,
    Recovery,
    RunParked,
    RunStatus,
    connect,
    sleep,
    step,
    workflow,
)
from perdure.kernel.program import Program
from tests.amounts import some
from tests.patience import PATIENCE

RECOVERY = Recovery(check_interval=0.2, grace=0.01)


@step
async def double(n: int) -> int:
    """Twice as much."""
    return 2 * n


@step
async def widen(n: int) -> str:
    """A value for the blob store."""
    return str(n) * 300_000


@workflow
async def short(n: int, pad: str) -> int:
    """Ends at once."""
    return await double(n)


@workflow
async def failing(n: int, pad: str) -> int:
    """Ends at once, with an error."""
    raise ValueError(f"no {await double(n)}")


@workflow
async def wide(n: int, pad: str) -> str:
    """Has large values: a step's, and its own."""
    return await widen(n)


@workflow
async def sleeper(n: int, pad: str) -> int:
    """Sleeps in its middle, with a small and a large value behind it."""
    n = await double(n)
    text = await widen(n)
    await sleep(3600.0)
    return await double(len(text) // 300_000 + n)


PROGRAMS: list[Program] = [short, failing, wide, sleeper]
# For each there is a victim, which is damaged, and another, which is not.
KINDS: dict[str, Callable[[int, str], Invocation[Any]]] = {
    "short": short,
    "failing": failing,
    "wide": wide,
    "sleeper": sleeper,
}


class Yesterday:
    """A clock that is a day late: what waits for an hour by it is due by that of the tests."""

    def now(self) -> float:
        return time.time() - 86_400


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with runs that have ended and runs that sleep, and nothing wrong with it."""
    path = tmp_path_factory.mktemp("whole") / "runs.db"

    async def fill() -> None:
        async with Engine(f"sqlite:///{path}", PROGRAMS, recovery=RECOVERY, clock=Yesterday()) as engine:
            for kind in ("victim", "other"):
                for name, program in KINDS.items():
                    # Another value for each: equal blobs are stored once.
                    n = 1 + len(await engine.list())
                    run = await engine.start(program(n, "p" * 50), id=f"{kind}-{name}", tags={"k": "v"})
                    if name != "sleeper":
                        await run.outcome()
            while {view.status for view in await engine.list(program=sleeper.name)} != {RunStatus.WAITING}:
                await asyncio.sleep(0.01)

    asyncio.run(fill())
    return path


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    """A copy of it to damage."""
    shutil.copy(whole, tmp_path / "runs.db")
    return tmp_path / "runs.db"


def change(path: Path, sql: str, *bindings: Any) -> None:
    """Change what is stored, behind the back of the store."""
    db = apsw.Connection(str(path))
    try:
        db.execute(sql, bindings)
        assert db.changes() >= 1
    finally:
        db.close()


def flip(path: Path, table: str, column: str, where: str, bit: int) -> None:
    """Flip one bit in the middle of a stored value, and leave its type as it is."""
    db = apsw.Connection(str(path))
    try:
        # Names of this file's own, not of anybody's input.
        select = f"select rowid, typeof({column}), cast({column} as blob) from {table} where {where} limit 1"  # noqa: S608
        if table == "perdure_runs":
            select = select.replace("rowid", "run_id")
        found: Any = db.execute(select).fetchone()
        key, kind, value = found
        data = bytearray(value)
        data[len(data) // 2] ^= bit
        cast = "cast(? as text)" if kind == "text" else "?"
        update = f"update {table} set {column} = {cast} where {'run_id' if table == 'perdure_runs' else 'rowid'} = ?"  # noqa: S608
        db.execute(update, (bytes(data), key))
    finally:
        db.close()


async def check_others(engine: Engine) -> None:
    """Runs that are whole go on, end as they should, and can be listed."""
    for name, program in KINDS.items():
        view = await engine.get(f"other-{name}")
        assert view is not None
        run = await engine.start(program(0, ""), id=f"other-{name}")
        outcome = await run.outcome(PATIENCE)
        if name == "failing":
            assert isinstance(outcome.error, ValueError)
        else:
            assert outcome.error is None
            if name == "sleeper":
                assert outcome.output == 36, "the eighth run: 16, and two digits of it"
    assert (await engine.run(short(4, ""), id="new")).output == 8
    listed = {view.id for view in await engine.list()}
    assert {"new", *(f"other-{name}" for name in KINDS)} <= listed


async def report(engine: Engine, name: str) -> PerdureError | None:
    """What the engine says of a victim, if anything: an error of get() or result()."""
    id = f"victim-{name}"
    try:
        view = await engine.get(id)
        run = await engine.start(KINDS[name](0, ""), id=id)
        outcome = await run.outcome(PATIENCE)
        _ = await engine.journal(id), await engine.steps(id)
    except PerdureError as error:
        return error
    assert view is not None
    return outcome.error if isinstance(outcome.error, PerdureError) else None


async def noticed(path: Path, victim: str) -> PerdureError | None:
    """What a reader says before an engine runs, which writes the row of a run that goes on anew from its journal."""
    try:
        async with connect(f"sqlite:///{path}") as client:
            await client.get(f"victim-{victim}")
    except PerdureError as error:
        return error
    return None


VICTIM = "run_id = (select run_id from perdure_runs where id = 'victim-{}')"
SLEEPER = VICTIM.format("sleeper")
BLOB = """id = (
    select json_extract(value, '$.blob') from perdure_journal, json_each(events)
    where json_extract(value, '$.blob') is not null
      and run_id = (select run_id from perdure_runs where id = 'victim-{}')
)"""


@pytest.mark.parametrize("bit", [0x01, 0x80], ids=["still-text", "no-text-any-more"])
@pytest.mark.parametrize(
    ("table", "column", "where", "victim"),
    [
        ("perdure_journal", "events", SLEEPER, "sleeper"),
        ("perdure_journal", "events", SLEEPER + " and seq > 2", "sleeper"),
        ("perdure_journal", "events", VICTIM.format("short"), "short"),
        ("perdure_runs", "input", VICTIM.format("short"), "short"),
        ("perdure_runs", "input", SLEEPER, "sleeper"),
        ("perdure_runs", "output", VICTIM.format("short"), "short"),
        ("perdure_runs", "error", VICTIM.format("failing"), "failing"),
        ("perdure_runs", "tags", VICTIM.format("short"), "short"),
        ("perdure_runs", "status", VICTIM.format("short"), "short"),
        ("perdure_runs", "status", SLEEPER, "sleeper"),
        ("perdure_blobs", "data", BLOB.format("sleeper"), "sleeper"),
        ("perdure_blobs", "data", BLOB.format("wide"), "wide"),
    ],
)
async def test_a_flipped_bit_is_reported_for_its_run_and_concerns_no_other(
    path: Path, table: str, column: str, where: str, victim: str, bit: int
) -> None:
    flip(path, table, column, where, bit)
    read = await noticed(path, victim)
    async with Engine(f"sqlite:///{path}", PROGRAMS, recovery=RECOVERY) as engine:
        error = await report(engine, victim) or read
        assert isinstance(error, Corrupt | RunParked), f"not detected: {error!r}"
        assert "damaged" in str(error)
        await check_others(engine)


@pytest.mark.parametrize(
    ("change_", "where"),
    [
        ("update perdure_journal set at = 'x'", SLEEPER),
        ("update perdure_journal set at = at + 1", SLEEPER),
        ("update perdure_journal set checksum = 'x'", SLEEPER),
        ("update perdure_journal set events = 5", SLEEPER),
        ("update perdure_journal set events = x'00ff'", SLEEPER),
        ("delete from perdure_journal", SLEEPER + " and seq = 0"),
        ("delete from perdure_journal", SLEEPER + " and seq > 0 and seq < 5"),
        ("delete from perdure_journal", SLEEPER + " and seq > 4"),
        ("delete from perdure_journal", SLEEPER),
        ("update perdure_heads set next_seq = next_seq + 1", SLEEPER),
        ("delete from perdure_heads", SLEEPER),
        ("update perdure_heads set at = 1e300", VICTIM.format("short")),
        ("update perdure_heads set at = 'x'", VICTIM.format("short")),
        ("delete from perdure_blobs", BLOB.format("sleeper")),
        ("delete from perdure_blobs", BLOB.format("wide")),
        ("update perdure_blobs set data = 5", BLOB.format("wide")),
        ("update perdure_blobs set data = cast(data as text)", BLOB.format("wide")),
        ("update perdure_runs set owner = 5, epoch = 'x'", SLEEPER),
        ("update perdure_runs set wake_at = 'x'", SLEEPER),
        ("update perdure_runs set created_at = 'x'", VICTIM.format("short")),
        ("update perdure_runs set created_at = -1e300", VICTIM.format("short")),
        ("update perdure_runs set version = 5, program = x'', input = 5", VICTIM.format("short")),
        ("update perdure_runs set finished_at = null", VICTIM.format("short")),
        ("update perdure_runs set input = x'ff'", VICTIM.format("short")),
        ("update perdure_runs set incarnation = 'x'", VICTIM.format("short")),
    ],
)
async def test_whatever_is_wrong_with_one_run_the_others_go_on(path: Path, change_: str, where: str) -> None:
    change(path, f"{change_} where {where}")
    victim = next(kind for kind in KINDS if f"victim-{kind}" in where)
    read = await noticed(path, victim)
    async with Engine(f"sqlite:///{path}", PROGRAMS, recovery=RECOVERY) as engine:
        error = await report(engine, victim) or read
        assert isinstance(error, Corrupt | RunParked), f"not detected: {error!r}"
        await check_others(engine)


# --- anywhere in the file -------------------------------------------------------------------------------------------


async def flip_anywhere(whole: Path, folder: Path, offset: int, bit: int) -> bool:
    """Flip one bit of the file, and look at every run. Says whether anything was noticed.

    Whatever is noticed comes as an error of perdure's own, and nothing that is said of a run that has ended is wrong.
    """
    data = bytearray(whole.read_bytes())
    data[offset] ^= bit
    path = folder / f"{offset}-{bit}.db"
    path.write_bytes(data)
    noticed = False
    try:
        async with Engine(f"sqlite:///{path}", PROGRAMS, recovery=RECOVERY) as engine:
            for n, id in enumerate(f"{kind}-{name}" for kind in ("victim", "other") for name in KINDS):
                name = id.partition("-")[2]
                try:
                    view = await engine.get(id)
                    if view is None:
                        noticed = True
                        continue
                    if view.status is RunStatus.COMPLETED:
                        run = await engine.start(KINDS[name](0, ""), id=id)
                        expected = {"short": 2 * (n + 1), "wide": str(n + 1) * 300_000}.get(name, view.output)
                        assert await run.result(PATIENCE) == expected
                except PerdureError:
                    noticed = True
            try:
                _ = await engine.list()
                assert (await engine.run(short(4, ""), id="new")).output == 8
            except PerdureError:
                noticed = True
    except PerdureError:
        noticed = True
    path.unlink()
    return noticed


@pytest.mark.parametrize(("count", "seed"), some([(60, 1), *((500, seed) for seed in range(10, 14))], 1))
async def test_a_bit_flipped_anywhere_in_the_file_leads_to_no_wrong_answer(
    whole: Path, tmp_path: Path, count: int, seed: int
) -> None:
    chance = random.Random(seed)
    data = whole.read_bytes()
    # Pages of large values are nearly all of the file, and all alike: leave them to the tests above.
    places = [i for i in range(64, len(data)) if data[i] and data[i - 64 : i] != data[i - 2 : i] * 32]
    flips = [(chance.choice(places), 1 << chance.randrange(8)) for _ in range(count)]
    noticed = [await flip_anywhere(whole, tmp_path, *flip) for flip in flips]
    assert sum(noticed) >= count // 10, "hardly anything was noticed"


async def test_an_index_that_leads_to_another_run_does_not_give_its_answer(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with Engine(f"sqlite:///{path}", PROGRAMS) as engine:
        assert (await engine.run(short(2, ""), id="the-run-2")).output == 4
    db = apsw.Connection(str(path))
    root: Any = db.execute("select rootpage from sqlite_schema where name = 'perdure_runs_by_id'").get
    size = int(db.pragma("page_size"))
    db.close()
    data = bytearray(path.read_bytes())
    key = data.index(b"the-run-2", (root - 1) * size, root * size)
    data[key + 8] ^= 1  # in the index alone: it now says that this is the-run-3
    path.write_bytes(data)
    async with Engine(f"sqlite:///{path}", PROGRAMS) as engine:
        with pytest.raises(Corrupt, match="the-run-3"):
            _ = await engine.get("the-run-3")
        with pytest.raises(Corrupt, match="the-run-3"):
            _ = await engine.start(short(3, ""), id="the-run-3")
