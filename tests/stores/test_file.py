"""The file store: what a person reads in it, other processes, deaths between any two writes, and damage."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import Engine, StoreUnavailable, step, workflow
from perdure.errors import Corrupt, InvalidStoreUrl, NotAStore, SchemaMismatch
from perdure.ports.journal import Append, Appended, Conflict
from perdure.ports.runs import RunFilter
from perdure.stores.file import folder as folder_module
from perdure.stores.file import journal as journal_module
from perdure.stores.file.config import FileConfig
from perdure.stores.file.folder import Folder
from perdure.stores.file.store import FileStore
from perdure.stores.open import open_store
from perdure.testing.conformance.history import History, finished, numbered, write, write_all
from perdure.testing.conformance.history import step as worked

RUNS = ("r1", "r2", "r3")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "flows"


@pytest.fixture
async def files(place: Path) -> AsyncIterator[FileStore]:
    store = FileStore(str(place))
    await store.open(migrate=True)
    yield store
    await store.close()


async def reopened(place: Path) -> FileStore:
    store = FileStore(str(place))
    await store.open(migrate=False)
    return store


@step
async def double(number: int) -> int:
    return 2 * number


@workflow
async def order(number: int) -> int:
    return await double(number)


# --- what a person reads ----------------------------------------------------------------------------------------------


async def test_a_journal_is_a_file_of_lines_that_a_person_can_read(place: Path) -> None:
    async with Engine(f"file:///{place}", [order]) as engine:
        run = await engine.start(order(21), id="order-1")
        assert await run.result() == 42
    [file] = (place / "runs").iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    events = [event for line in lines for batch in line["batches"] for event in batch["events"]]
    names = [event["type"] for event in events]
    assert names == ["RunStarted", "RunClaimed", "StepStarted", "StepSucceeded", "RunFinished"]
    assert events[3]["value"] == 42
    assert lines[0]["batches"][0]["when"].startswith("20")
    assert lines[-1]["rows"][run.run_id]["status"] == "completed"
    # Of a row only what has changed is said again.
    assert "input" not in lines[-1]["rows"][run.run_id]


async def test_a_run_goes_on_in_another_process_life(place: Path) -> None:
    async with Engine(f"file:///{place}", [order]) as engine:
        await (await engine.start(order(1), id="one")).result()
    async with Engine(f"file:///{place}", [order]) as engine:
        view = await engine.get("one")
        assert view is not None
        assert view.output == 2
        assert await (await engine.start(order(1), id="one")).result() == 2
        blob = await engine.blobs.put(b"x" * 1000)
    assert (place / "blobs" / blob[:2] / blob).read_bytes() == b"x" * 1000


async def test_two_engines_share_a_directory(place: Path) -> None:
    async with Engine(f"file:///{place}", [order], name="a") as a, Engine(f"file:///{place}", [order], name="b") as b:
        handles = [await (a, b)[n % 2].start(order(n), id=f"order-{n}") for n in range(20)]
        assert [await handle.result() for handle in handles] == [2 * n for n in range(20)]
        assert [view.output for n in range(20) if (view := await (b, a)[n % 2].get(f"order-{n}"))] == [
            2 * n for n in range(20)
        ]


# --- processes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", range(1, 16))
def test_two_that_make_one_store_at_once_both_have_it(
    moment: int, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second process comes in before the n-th call of the first one to the system."""
    calls, url = 0, f"file:///{place}"

    def interrupted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == moment:
                second = Folder(str(place), url, FileConfig(busy=0.0))
                with suppress(StoreUnavailable):  # it would wait: the first is at it
                    second.open(create=True)
                    second.close()
            return real(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name in ("makedirs", "listdir", "open", "replace", "fsync", "close"):
            patch.setattr(os, name, interrupted(getattr(os, name)))
        first = Folder(str(place), url, FileConfig(busy=0.0))
        first.open(create=True)
        first.close()
    assert calls > 6
    assert sorted(os.listdir(place)) == ["lock", "perdure.json", "runs"]


async def test_a_holder_whose_process_died_holds_nothing(
    files: FileStore, place: Path, child: Callable[..., Any]
) -> None:
    holder = child("lease", f"file:///{place}", "them")
    assert holder.hear() == "Acquired"
    assert [lease.owner for lease in await files.leases.live("orchestrator:", 0.0)] == ["them"]
    holder.kill()
    assert await files.leases.live("orchestrator:", 0.0) == []


async def test_a_process_that_was_away_for_several_generations_reads_all_anew(files: FileStore, place: Path) -> None:
    other = await reopened(place)
    await write_all(files, History("r0").begin())
    files._folder.config = FileConfig(longest_log=0)
    for run_id in RUNS:
        await write_all(files, History(run_id).begin())
    assert [row.run_id for row, _ in await other.runs.list(RunFilter())] == ["r3", "r2", "r1", "r0"]
    run = History("r9")
    await write_all(other, run.begin())
    assert await files.journal.head("r9") is not None
    await other.close()


async def test_a_writer_that_never_ends_is_reported(files: FileStore, place: Path) -> None:
    files._folder.config = FileConfig(busy=0.01)
    other = await reopened(place)
    with other._folder.writing(), pytest.raises(StoreUnavailable, match="is one of them stopped"):
        files.journal.append([History("r1").begin()])
    await other.close()
    await write_all(files, History("r1").begin())


async def test_a_writer_waits_as_long_as_others_commit(
    files: FileStore, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files._folder.config = FileConfig(busy=0.0)
    other = await reopened(place)
    commits = iter(range(20))
    with ExitStack() as holding:
        holding.enter_context(other._folder.writing())

        def version() -> object:
            if (commit := next(commits)) == 10:
                holding.close()
            return commit

        monkeypatch.setattr(files._folder, "version", version)
        files.journal.append([History("r1").begin()])
    assert next(commits) >= 10
    await other.close()


# --- deaths and full disks --------------------------------------------------------------------------------------------


class Died(BaseException):
    """The process ended here."""


class Dying:
    """The `os` of a process that dies at its n-th change of the disk, in the middle of what it writes."""

    CHANGES = ("pwrite", "fdatasync", "fsync", "replace", "unlink", "ftruncate")

    def __init__(self, at: int, error: Callable[[], BaseException] = Died) -> None:
        self.left, self.error = at, error

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in self.CHANGES:
            return real

        def change(*args: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                if name == "pwrite":
                    os.pwrite(args[0], bytes(args[1])[: len(args[1]) // 2], args[2])
                raise self.error()
            return real(*args)

        return change


def story() -> list[list[Append]]:
    """Commits of one run after the other, of two at once, and of one that starts another."""
    one, two, three, four = (History(run_id) for run_id in ("r1", "r2", "r3", "r4"))
    first = [one.begin_as("a")]
    second = [one.then_batches(worked(0), worked(1)), two.begin()]
    third = [msgspec.structs.replace(two.then(*worked(0)), starts=[three.begin(), four.begin()])]
    return [first, second, third, [one.then(finished()), three.then(*worked(0))]]


async def test_a_death_at_any_write_leaves_each_commit_whole_or_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, died = 0, True
    while died:
        at, died = at + 1, False
        place = tmp_path / str(at)
        store = FileStore(str(place), FileConfig(longest_log=700))  # it begins anew on the way
        await store.open(migrate=True)
        acknowledged: list[Append] = []
        under_way: list[Append] = []
        with monkeypatch.context() as patch:
            patch.setattr(folder_module, "os", Dying(at))
            try:
                for under_way in story():
                    assert store.journal.append(under_way) == [Appended()] * len(under_way)
                    acknowledged += under_way
                await store.close()
            except Died:
                died = True
        after = await reopened(place)
        maybe = [[], under_way] if died else [[]]
        assert await contents(after) in [expected(acknowledged + more) for more in maybe], f"dead at write {at}"
        # And it goes on from there.
        head = await after.journal.head("r1")
        next_seq = head.next_seq if head is not None else 0
        [outcome] = await write(after, Append("r9", 0, History("r9").begin().batches))
        assert outcome == Appended()
        assert await write(after, Append("r1", next_seq + 5, History("r1").begin().batches)) == [Conflict(next_seq)]
        await after.close()
    assert at > 40


async def contents(store: FileStore) -> dict[str, list[Any]]:
    return {run_id: await numbered(store.journal, run_id) for run_id in await store.upkeep.journals("", 100)}


def expected(appends: list[Append]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for append in [part for whole in appends for part in (whole, *whole.starts)]:
        events = [event for batch in append.batches for event in batch.events]
        found.setdefault(append.run_id, []).extend(enumerate(events, append.expected_next))
    return dict(sorted(found.items()))


async def test_a_full_disk_refuses_the_commit_and_loses_nothing(
    files: FileStore, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = History("r1")
    await write_all(files, run.begin())
    full = run.then(*worked(0))
    for at in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(folder_module, "os", Dying(at, lambda: OSError(28, "No space left on device")))
            with pytest.raises(StoreUnavailable, match="No space left on device"):
                files.journal.append([full])
        head = await files.journal.head("r1")
        assert head is not None
        assert head.next_seq == 1
    assert files.journal.append([full]) == [Appended()]
    other = await reopened(place)
    assert len(await numbered(other.journal, "r1")) == 3
    await other.close()


async def test_what_was_committed_stays_so_when_the_disk_is_full_right_after(
    files: FileStore, place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = History("r1")
    await write_all(files, run.begin())
    with monkeypatch.context() as patch:
        patch.setattr(folder_module, "os", Dying(3, lambda: OSError(28, "No space left on device")))
        assert files.journal.append([run.then(*worked(0))]) == [Appended()]
    assert "the commit is in commits.jsonl" in caplog.text
    await write_all(files, run.then(*worked(1)))
    other = await reopened(place)
    assert [seq for seq, _ in await numbered(other.journal, "r1")] == [0, 1, 2, 3, 4]
    await other.close()


# --- damage -----------------------------------------------------------------------------------------------------------


async def three_runs(place: Path) -> None:
    store = FileStore(str(place))
    await store.open(migrate=True)
    for run_id in RUNS:
        run = History(run_id, id=f"order-{run_id}")
        for append in (run.begin_as("a"), run.then(*worked(0)), run.then(*worked(1), finished())):
            await write_all(store, append)
    await store.close()


def lines_of(place: Path, run_id: str) -> list[bytes]:
    return (place / "runs" / f"{run_id}.jsonl").read_bytes().splitlines(keepends=True)


CHANGES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "a value": lambda lines: [lines[0], lines[1].replace(b"work:0", b"work:9"), lines[2]],
    "a number": lambda lines: [lines[0], lines[1].replace(b'"seq":2', b'"seq":3'), lines[2]],
    "a line is gone": lambda lines: [lines[0], lines[2]],
    "a line is there twice": lambda lines: [lines[0], lines[1], lines[1], lines[2]],
    "lines change places": lambda lines: [lines[0], lines[2], lines[1]],
    "junk": lambda lines: [lines[0], b"\xff\x00\xfe\n", lines[1], lines[2]],
    "the first": lambda lines: [b"{}\n", *lines[1:]],
}


@pytest.mark.parametrize("change", CHANGES)
async def test_damage_is_the_trouble_of_its_run_alone(
    place: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    await three_runs(place)
    (place / "runs" / "r2.jsonl").write_bytes(b"".join(CHANGES[change](lines_of(place, "r2"))))
    store = await reopened(place)
    with pytest.raises(Corrupt, match=r"r2\.jsonl, line \d") as caught:
        await store.journal.read("r2")
    assert caught.value.run_id == "r2"
    assert str(caught.value) in caplog.text
    journals = await store.journal.read_many(RUNS)
    assert isinstance(journals["r2"], Corrupt)
    for run_id in ("r1", "r3"):
        assert journals[run_id] == await store.journal.read(run_id)
        assert len(await numbered(store.journal, run_id)) == 7
    ended = [one if isinstance(one, Corrupt) else one.run_id for one in await store.runs.finished(RUNS)]
    assert {"r1", "r3"} < {one if isinstance(one, str) else "damaged" for one in ended}
    assert len(ended) == 3
    # Nobody knows what it refers to.
    assert (await store.upkeep.collect(-1.0, 100)).blobs == 0
    await store.close()


@pytest.mark.parametrize("missing", [1, 20])
async def test_an_end_that_was_torn_is_cut_off_and_told_of(
    place: Path, missing: int, caplog: pytest.LogCaptureFixture
) -> None:
    await three_runs(place)
    file = place / "runs" / "r2.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-missing])
    store = await reopened(place)
    assert "r2.jsonl ended in the middle of a line" in caplog.text
    assert len(await numbered(store.journal, "r2")) == 4
    assert file.read_bytes() == b"".join(whole.splitlines(keepends=True)[:2])
    await store.close()


async def test_a_blob_whose_bytes_changed_is_damaged(files: FileStore, place: Path) -> None:
    id = await files.blobs.put(b"some bytes")
    (place / "blobs" / id[:2] / id).write_bytes(b"same bytes")
    with pytest.raises(Corrupt, match="do not match its hash"):
        await files.blobs.get(id)
    assert await files.blobs.get("../../perdure.json") is None


async def test_a_damaged_log_or_file_of_leases_is_named(place: Path) -> None:
    await three_runs(place)
    (place / "leases.json").write_text("nothing")
    store = await reopened(place)
    with pytest.raises(Corrupt, match=r"leases\.json"):
        await store.leases.get("k", 0.0)
    (place / "leases.json").unlink()
    await store.close()
    (place / "commits.jsonl").write_text("nothing")
    with pytest.raises(Corrupt, match=r"commits\.jsonl"):
        await reopened(place)


# --- bad input --------------------------------------------------------------------------------------------------------


async def test_a_directory_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(NotAStore, match="other things in it"):
        await FileStore(str(tmp_path)).open(migrate=True)
    assert os.listdir(tmp_path) == ["notes.txt"]
    with pytest.raises(NotAStore, match="it is a file"):
        await FileStore(str(tmp_path / "notes.txt")).open(migrate=True)
    with pytest.raises(InvalidStoreUrl, match="start a run with an Engine"):
        await FileStore(str(tmp_path / "none")).open(migrate=False)
    with pytest.raises(InvalidStoreUrl, match="create it first"):
        await FileStore(str(tmp_path / "none" / "none")).open(migrate=True)


async def test_a_newer_format_is_refused(files: FileStore, place: Path) -> None:
    (place / "perdure.json").write_text('{"perdure":"file store","format":2}')
    with pytest.raises(SchemaMismatch, match="upgrade perdure"):
        await reopened(place)
    (place / "perdure.json").write_text("{}")
    with pytest.raises(NotAStore):
        await reopened(place)


@pytest.mark.parametrize("url", ["file://", "file:///", "file://flows"])
def test_a_url_without_a_path_is_refused_with_one_that_has_it(url: str) -> None:
    with pytest.raises(InvalidStoreUrl, match="'file:///"):
        open_store(url)


def test_three_slashes_are_a_relative_path_and_four_an_absolute_one() -> None:
    assert open_store("file:///flows/x").url == "file:///flows/x"
    assert open_store("file:////var/flows").url == "file:////var/flows"


async def test_a_big_directory_names_sqlite(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await three_runs(place)
    monkeypatch.setattr(journal_module, "MANY_RUNS", 2)
    with caplog.at_level(logging.WARNING):
        store = await reopened(place)
    assert "holds 3 runs" in caplog.text
    assert "use 'sqlite:///runs.db'" in caplog.text
    await store.close()
