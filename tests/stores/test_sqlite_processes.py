"""Several processes, and several stores of one process, on one file."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.kernel.events import RunReleased, RunStarted, entries
from perdure.ports.journal import Appended, Conflict
from perdure.ports.leases import Acquired, HeldBy
from perdure.stores import witness
from perdure.stores.open import open_store
from perdure.stores.sqlite.store import SqliteStore
from perdure.stores.witness import Presence
from perdure.testing.conformance.history import History, numbered, step, write, write_all

Start = Callable[..., Any]


@pytest.mark.parametrize("where", ["sqlite:///{}/runs.db", "file:///{}/store"], ids=["sqlite", "file"])
async def test_processes_that_append_at_once_lose_nothing(where: str, tmp_path: Path, child: Start) -> None:
    # They create the store at the same time, too.
    url, names, count = where.format(tmp_path), "abcd", 60
    children = [child("append", url, name, count) for name in names]
    assert [one.hear() for one in children] == ["ready"] * 4
    for one in children:
        one.go_on()
    assert [one.ended() for one in children] == ["done"] * 4
    store = open_store(url)
    await store.open(migrate=False)
    found = await numbered(store.journal, "shared")
    assert [seq for seq, _ in found] == list(range(1 + len(names) * count))
    assert isinstance(found[0][1], RunStarted)
    written = [event.owner for _, event in found if isinstance(event, RunReleased)]
    for name in names:
        assert [one for one in written if one.startswith(name)] == [f"{name}:{i}" for i in range(count)]
        assert await store.journal.head(f"own-{name}") is not None
    await store.close()


async def test_stores_of_one_process_share_a_file(path: Path) -> None:
    stores = [SqliteStore(str(path)) for _ in range(4)]
    for store in stores:
        await store.open(migrate=True)
    run = History("r1")
    await write_all(stores[0], run.begin())
    for i, store in enumerate(stores):
        await write_all(store, run.then(*step(i)))
    assert [await write(store, History("r1").begin()) for store in stores] == [[Conflict(9)]] * 4
    heads = [await store.journal.head("r1") for store in stores]
    assert heads == [heads[0]] * 4
    await stores[0].close()
    await write_all(stores[1], run.then(*step(9)))
    assert len(entries("r1", await stores[2].journal.read("r1"))) == 11
    for store in stores[1:]:
        await store.close()


async def test_a_second_store_does_not_drop_the_locks_of_the_first(
    store: SqliteStore, path: Path, child: Start
) -> None:
    # Closing any descriptor of a file drops the process's locks on it: looking at a file must go through SQLite.
    await write_all(store, History("r1").begin())
    second = SqliteStore(str(path))
    await second.open(migrate=True)
    await second.close()
    assert child("locked", path).ended() == "locked"


async def test_a_process_that_leaves_takes_nothing_from_those_who_stay(
    store: SqliteStore, path: Path, child: Start
) -> None:
    await write_all(store, History("r1").begin_as("a"))
    assert child("visit", path).ended() == "1"
    await write_all(store, History("r2").begin_as("b"))
    assert child("visit", path).ended() == "2"


async def test_an_append_waits_for_the_write_lock_and_the_loop_goes_on(
    store: SqliteStore, path: Path, child: Start
) -> None:
    holder = child("hold", path)
    assert holder.hear() == "ready"
    outcome = store.journal.append([History("r1").begin()])
    assert isinstance(outcome, Awaitable)
    appending = asyncio.ensure_future(outcome)
    for _ in range(1000):
        await asyncio.sleep(0)  # every one of these is a turn of the loop
    assert not appending.done()
    assert await store.journal.head("r1") is None  # reading needs no lock
    holder.go_on()
    assert await appending == [Appended()]
    assert holder.ended() == ""


async def test_what_is_written_next_does_not_overtake_a_write_that_waits(
    store: SqliteStore, path: Path, child: Start
) -> None:
    holder = child("hold", path)
    assert holder.hear() == "ready"
    run = History("r1")
    first = asyncio.ensure_future(write(store, run.begin()))
    await asyncio.sleep(0)
    holder.go_on()
    holder.ended()
    # The lock is free now, and yet this one comes second.
    assert await write(store, run.then(*step(0))) == [Appended()]
    assert await first == [Appended()]


async def test_a_caller_that_gives_up_frees_nothing_that_is_in_use(
    store: SqliteStore, path: Path, child: Start
) -> None:
    holder = child("hold", path)
    assert holder.hear() == "ready"
    impatient = asyncio.ensure_future(store.blobs.put(b"large"))
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.gather(impatient, return_exceptions=True)
    # The thread still waits inside the transaction: the connection must not be used here meanwhile.
    outcome = store.journal.append([History("r1").begin()])
    assert isinstance(outcome, Awaitable)
    holder.go_on()
    assert await outcome == [Appended()]
    assert holder.ended() == ""


# --- who is alive ---------------------------------------------------------------------------------------------------


async def test_the_lease_of_a_process_that_was_killed_is_free_at_once(
    store: SqliteStore, path: Path, child: Start
) -> None:
    key = "orchestrator:other"
    other = child("lease", path, "other")
    assert other.hear() == "Acquired"
    assert isinstance(await store.leases.acquire(key, "me", 30.0, 101.0), HeldBy)
    assert [lease.owner for lease in await store.leases.live("orchestrator:", 101.0)] == ["other"]
    other.kill()
    assert await store.leases.get(key, 101.0) is None
    assert list(await store.leases.live("orchestrator:", 101.0)) == []
    taken = await store.leases.acquire(key, "me", 30.0, 101.0)
    assert isinstance(taken, Acquired)
    assert taken.epoch == 2


async def test_the_lease_of_a_process_that_lives_is_not_free(store: SqliteStore, path: Path, child: Start) -> None:
    others = [child("lease", path, f"other-{i}") for i in range(3)]
    assert [other.hear() for other in others] == ["Acquired"] * 3
    for _ in range(20):  # asking does not disturb those who are asked about
        assert len(await store.leases.live("orchestrator:", 101.0)) == 3
    others[1].kill()
    assert {lease.owner for lease in await store.leases.live("orchestrator:", 101.0)} == {"other-0", "other-2"}


async def test_the_files_of_processes_that_were_killed_are_tidied_up(
    store: SqliteStore, path: Path, child: Start
) -> None:
    for i in range(3):
        other = child("lease", path, f"other-{i}")
        assert other.hear() == "Acquired"
        other.kill()
    await store.leases.acquire("orchestrator:me", "me", 30.0, 101.0)
    assert len(os.listdir(f"{path}-owners")) == 1


async def test_a_process_that_takes_a_dead_ones_name_is_alive(store: SqliteStore, path: Path, child: Start) -> None:
    first = child("lease", path, "other")
    assert first.hear() == "Acquired"
    first.kill()
    second = child("lease", path, "other")
    assert second.hear() == "Acquired"
    assert isinstance(await store.leases.acquire("orchestrator:other", "me", 30.0, 101.0), HeldBy)


async def test_an_owner_that_leaves_in_good_order_leaves_no_file(path: Path) -> None:
    store = SqliteStore(str(path))
    await store.open(migrate=True)
    await store.leases.acquire("orchestrator:me", "me", 30.0, 1.0)
    assert Path(f"{path}-owners").is_dir()
    await store.leases.release_all("me")
    await store.close()
    assert [file.name for file in path.parent.iterdir()] == ["runs.db"]


def test_who_appears_while_somebody_asks_is_present(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asking, mine = Presence(str(tmp_path / "owners")), Presence(str(tmp_path / "owners"))
    asking.hold("me")
    path = asking._path("me")
    real, asker = witness._lock, os.open(path, os.O_RDWR)
    os.close(asking._held.pop("me"))
    fcntl.flock(asker, fcntl.LOCK_SH)  # somebody asks whether we are gone, just now
    tries = 0

    def lock(file: int, kind: int) -> bool:
        nonlocal tries
        tries += 1
        if tries == 4:
            fcntl.flock(asker, fcntl.LOCK_UN)
        return real(file, kind)

    monkeypatch.setattr(witness, "_lock", lock)
    mine.hold("me")
    assert not asking.is_dead("me")
    mine.close()
    os.close(asker)


def test_a_name_that_another_process_holds_is_left_to_it(tmp_path: Path) -> None:
    one, other = Presence(str(tmp_path / "owners")), Presence(str(tmp_path / "owners"))
    one.hold("me")
    other.hold("me")
    other.close()
    assert not other.is_dead("me")
    one.close()
    assert not (tmp_path / "owners").exists()


def test_a_file_that_was_removed_while_it_was_being_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Presence(str(tmp_path / "owners")), Presence(str(tmp_path / "owners"))
    real, removed = witness._lock, False

    def lock(file: int, kind: int) -> bool:
        nonlocal removed
        if not removed:
            removed = True
            os.unlink(one._path("me"))
        return real(file, kind)

    monkeypatch.setattr(witness, "_lock", lock)
    one.hold("me")
    assert os.path.exists(one._path("me"))
    assert not other.is_dead("me")
    one.close()
