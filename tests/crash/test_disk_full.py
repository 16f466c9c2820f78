"""A full disk: nothing is half-written, new runs are refused with a reason, runs under way wait and go on. And a disk
that cannot be read for a while: nothing is taken for damaged.

The first tests fill a disk of their own, an SQLite VFS that refuses to write; the last one lets the operating system
refuse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec import Raw

from perdure import Engine, Recovery, RunHandle, RunStatus, StoreUnavailable, checkpoint, sleep, step, workflow
from perdure.kernel.events import AnyEvent, Batch, RunClaimed, RunStarted, StepStarted, StepSucceeded
from perdure.kernel.projection import row
from perdure.kernel.state import RunState
from perdure.ports.journal import Append, Appended, Outcome
from perdure.stores.sqlite.store import SqliteStore
from tests.crash.harness import Children, audit, check_executions, read_effects
from tests.patience import PATIENCE


class FullDisk(apsw.VFS):
    """Refuses every write while it is full, or from the n-th write on."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "")
        self.name = name
        self.full = False
        self.unreadable = False
        self.refused_reads = 0
        self.room: int | None = None

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _File(self, name, flags)

    def write(self) -> None:
        """One write is asked for."""
        if self.room is not None:
            self.room -= 1
        if self.full or (self.room is not None and self.room < 0):
            raise apsw.FullError("no space left")


class _File(apsw.VFSFile):
    def __init__(self, disk: FullDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        super().__init__("", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        self._disk.write()
        super().xWrite(data, offset)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        if self._disk.unreadable:
            self._disk.refused_reads += 1
            raise apsw.IOError("cannot read")
        return super().xRead(amount, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        pass  # no test here cuts the power


@pytest.fixture
def disk() -> Iterator[FullDisk]:
    """A disk to fill."""
    disk = FullDisk("full-disk")
    yield disk
    disk.unregister()


@pytest.fixture
def store(disk: FullDisk, tmp_path: Path) -> SqliteStore:
    """A store on that disk."""
    return SqliteStore(str(tmp_path / "runs.db"), vfs=disk.name)


@step
async def double(n: int) -> int:
    """Twice as much."""
    return 2 * n


@workflow
async def doubling(n: int) -> int:
    """One step."""
    return await double(n)


async def test_start_says_that_the_disk_is_full_and_leaves_nothing_behind(
    disk: FullDisk, store: SqliteStore, tmp_path: Path
) -> None:
    async with Engine(store, [doubling]) as engine:
        assert (await engine.run(doubling(1), id="before")).output == 2
        disk.full = True
        with pytest.raises(StoreUnavailable, match=r"runs\.db .*the disk is full; free some space"):
            _ = await engine.start(doubling(2), id="during")
        assert await engine.get("during") is None
        assert (await engine.run(doubling(1), id="before")).output == 2, "reading goes on"
        disk.full = False
        assert (await engine.run(doubling(3), id="during")).output == 6, "the id is still free"
    assert set(audit(tmp_path / "runs.db")) == {"before", "during"}


async def test_a_run_under_way_waits_for_space_and_goes_on(disk: FullDisk, store: SqliteStore, tmp_path: Path) -> None:
    executed: list[str] = []
    refused = asyncio.Event()

    @step
    async def fill() -> int:
        executed.append("fill")
        disk.full = True
        asyncio.get_running_loop().call_later(0.2, refused.set)
        return 1

    @step
    async def after(n: int) -> int:
        executed.append("after")
        return n + 1

    @workflow
    async def filling() -> int:
        return await after(await fill())

    async with Engine(store, [filling, doubling]) as engine:
        run = await engine.start(filling(), id="filling")
        await refused.wait()
        assert executed == ["fill"], "nothing is done that is not recorded"
        assert await run.status() is RunStatus.RUNNING
        disk.full = False
        assert await run.result(PATIENCE) == 2
        assert executed == ["fill", "after"]
        assert (await engine.run(doubling(1))).output == 2
    assert audit(tmp_path / "runs.db")["filling"].outcomes == ["fill:0", "after:0"]


@pytest.mark.parametrize("durability", ["sync", "relaxed", "async", "exit", "every(2)", "manual"])
async def test_what_happens_while_an_append_is_refused_is_written_after_it(
    disk: FullDisk, store: SqliteStore, tmp_path: Path, durability: str
) -> None:
    @step
    async def wait(seconds: float) -> float:
        disk.full = True
        await asyncio.sleep(seconds)
        return seconds

    @workflow
    async def fan_out() -> float:
        # The first outcome is being refused when the others come, and nothing comes after those.
        total = sum(await asyncio.gather(wait(0.02), wait(0.06), wait(0.1)))
        await checkpoint()
        return total + await wait(0)

    async with Engine(store, [fan_out]) as engine:
        run = await engine.start(fan_out(), id="fan", durability=durability)
        waiting = asyncio.ensure_future(run.result(PATIENCE))
        while not waiting.done():
            await asyncio.sleep(0.3)
            disk.full = False
        assert await waiting == pytest.approx(0.18)
    assert len(audit(tmp_path / "runs.db")["fan"].outcomes) == 4


async def test_a_large_result_waits_for_space_too(disk: FullDisk, store: SqliteStore) -> None:
    executed: list[str] = []

    @step
    async def fill(what: str) -> str:
        executed.append(what)
        disk.full = True
        asyncio.get_running_loop().call_later(0.2, lambda: setattr(disk, "full", False))
        return "x" * 300_000

    @workflow
    async def filling() -> str:
        return (await fill("once")) + (await fill("twice"))

    async with Engine(store, [filling]) as engine:
        run = await engine.start(filling())
        assert len(await run.result(PATIENCE)) == 600_000
        assert executed == ["once", "twice"]


async def test_a_timer_that_comes_while_the_disk_is_full_is_not_lost(disk: FullDisk, store: SqliteStore) -> None:
    @workflow
    async def sleeper(seconds: float) -> str:
        await sleep(seconds)
        return "awake"

    async with Engine(store, [sleeper]) as engine:
        runs: list[RunHandle[str]] = []
        before: list[RunStatus] = []
        # Until the disk is full before they wake, which a busy machine may miss.
        while RunStatus.WAITING not in before:
            disk.full = False
            # One wakes in memory, the other left it.
            runs = [await engine.start(sleeper(0.9)), await engine.start(sleeper(1.2))]
            while RunStatus.RUNNING in [await run.status() for run in runs]:
                await asyncio.sleep(0.01)
            disk.full = True
            before = [await run.status() for run in runs]
        await asyncio.sleep(1.4)
        assert [await run.status() for run in runs] == before
        disk.full = False
        assert [await run.result(PATIENCE) for run in runs] == ["awake", "awake"]


async def test_a_disk_that_cannot_be_read_for_a_while_parks_nothing(disk: FullDisk, store: SqliteStore) -> None:
    @workflow
    async def sleeper(n: int) -> int:
        text = await widen(n)
        await sleep(3.0)  # longer than a moment: its journal and its large value are read again
        return await double(len(text))

    @step
    async def widen(n: int) -> str:
        return str(n) * 300_000

    async with Engine(store, [sleeper], recovery=Recovery(check_interval=0.2)) as engine:
        runs = [await engine.start(sleeper(n)) for n in range(3)]
        while {await run.status() for run in runs} != {RunStatus.WAITING}:
            await asyncio.sleep(0.01)
        disk.unreadable = True
        while not disk.refused_reads:
            await asyncio.sleep(0.01)
        disk.unreadable = False
        assert [await run.result(PATIENCE) for run in runs] == [600_000] * 3


def make_append(run_id: str, state: RunState, value: bytes) -> Append:
    """One more step of a run that no engine executes."""
    seq = state.next_seq
    events: list[AnyEvent] = [StepStarted(f"s:{seq}"), StepSucceeded(f"s:{seq}", Raw(value))]
    if seq == 0:
        events[:0] = [RunStarted(run_id, "made-up", "1", Raw(b"{}")), RunClaimed("writer", 1)]
    for event in events:
        state.fold(event, float(seq))
    return Append(run_id, seq, [Batch(seq, float(seq), events)], row(state))


async def append(store: SqliteStore, *appends: Append) -> Sequence[Outcome]:
    """Append, whether the store answers at once or later."""
    outcomes = store.journal.append(appends)
    return outcomes if isinstance(outcomes, Sequence) else await outcomes


@pytest.mark.parametrize("autocheckpoint", [1, 1000])
async def test_an_append_that_meets_a_full_disk_at_any_write_is_not_there_or_wholly(
    disk: FullDisk, store: SqliteStore, tmp_path: Path, autocheckpoint: int
) -> None:
    await store.open(migrate=True)
    assert store._database._writer is not None
    store._database._writer.pragma("wal_autocheckpoint", autocheckpoint)
    states = {run_id: RunState(run_id) for run_id in ("one", "two")}
    refused = 0
    for room in range(60):
        # Values that take from one page to some dozens, for two runs in one commit.
        value = b'"' + b"v" * (room * 997 % 60_000) + b'"'
        both = [make_append(run_id, state, value) for run_id, state in states.items()]
        heads = [await store.journal.head(run_id) for run_id in states]
        disk.room = room
        try:
            await append(store, *both)
        except StoreUnavailable:
            refused += 1
            assert heads == [await store.journal.head(run_id) for run_id in states]
            disk.room = None
            assert await append(store, *both) == [Appended(), Appended()], "the same append is taken afterwards"
        disk.room = None
    await store.close()
    assert refused >= 15
    journals = audit(tmp_path / "runs.db")
    assert {run_id: len(journals[run_id].events) for run_id in states} == {"one": 122, "two": 122}


def test_a_file_that_may_not_grow_stops_runs_until_it_may(children: Children, tmp_path: Path) -> None:
    db, effects = tmp_path / "runs.db", tmp_path / "effects"
    told = children.start("no_room", tmp_path, db=str(db), effects=str(effects)).result()
    assert "cannot be used now" in told["refused"]
    assert told["finished_without_room"] is False
    assert told["result"] == 604710
    journal = audit(db)["voyage"]
    executed = check_executions(journal, read_effects(effects))
    assert executed == journal.started, "each attempt was made once"


def test_an_engine_left_without_room_hands_its_runs_over(children: Children, tmp_path: Path) -> None:
    db, effects = tmp_path / "runs.db", tmp_path / "effects"
    command = {"db": str(db), "effects": str(effects)}
    assert children.start("leave_without_room", tmp_path, **command).result() == "left"
    (tmp_path / "drained").touch()
    assert children.start("work", tmp_path, **command).result() == "drained"
    journal = audit(db)["ticks"]
    assert [e.status for e in journal.finished] == [RunStatus.COMPLETED]
    assert check_executions(journal, read_effects(effects)) == {"tick:0": 1, "tick:1": 1, "tick:2": 2, "tick:3": 1}
