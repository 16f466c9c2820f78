"""Names that last, and who has them: by locks that the system drops when a process ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest

from perdure import Engine, workflow
from perdure.ports.leases import ORCHESTRATOR, Acquired, HeldBy, Lease
from perdure.stores.machine import Name, shared_folder
from perdure.stores.memory.store import MemoryLeases, MemoryStore
from perdure.stores.witness import WitnessConfig, WitnessedLeases
from tests.patience import PATIENCE


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.stores.machine.tempfile.gettempdir", lambda: str(tmp_path))


@workflow
async def first() -> None: ...


@workflow
async def second() -> None: ...


def test_a_name_is_the_same_each_time_and_no_two_have_it_at_once() -> None:
    one, other = Name("store", ["a", "b"], None), Name("store", ["b", "a"], None)
    name = one.take()
    assert other.take() == f"{name}-2"
    one.release()
    again = Name("store", ["a", "b"], None)
    assert again.take() == name
    for held in (other, again):
        held.release()


@pytest.mark.parametrize(
    "what", [("elsewhere", ["a"], None), ("store", ["a", "b"], None), ("store", ["a"], ["emails"])]
)
def test_what_must_not_have_one_name_has_two(what: tuple[str, list[str], list[str] | None]) -> None:
    """An engine must not get the name, and the runs, of one that executes other programs."""
    one, other = Name("store", ["a"], None), Name(*what)
    assert one.take() != other.take()
    assert not other.take().startswith(one.take().rpartition("-")[0])


def test_two_folders_are_two_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers may have one host name: without a folder that both see neither knows of the other."""
    name = Name("store", ["a"], None).take()
    (tmp_path / "other").mkdir()
    monkeypatch.setattr("perdure.stores.machine.tempfile.gettempdir", lambda: str(tmp_path / "other"))
    assert Name("store", ["a"], None).take() != name


def test_a_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shared_folder()
    assert folder is not None
    monkeypatch.setattr("perdure.stores.machine.os.getuid", lambda: 12345)
    (tmp_path / "perdure-12345").mkdir()
    assert shared_folder() is None
    one, other = Name("store", ["a"], None), Name("store", ["a"], None)
    assert one.take() != other.take(), "without a folder every name is new"


async def test_an_engine_without_a_name_has_the_same_one_when_it_comes_back(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url, [first]) as engine, Engine(url, [first]) as beside, Engine(url, [second]) as other:
        name = engine.name
        assert len({name, beside.name, other.name}) == 3
    again = Engine(url, [first])
    async with again:
        assert again.name == name
    async with Engine(url, [first], name="given") as given:
        assert given.name == "given"


def test_a_process_that_is_killed_leaves_its_name_and_its_lease(tmp_path: Path) -> None:
    """Whoever comes next gets both, whatever the lease says."""
    code = f"""
import asyncio, os, signal
from perdure.stores import machine
machine.tempfile.gettempdir = lambda: {str(tmp_path)!r}
from perdure.stores.machine import shared_folder
from perdure.stores.witness import Presence
import hashlib
Presence(shared_folder("owners", hashlib.blake2b(b"store", digest_size=8).hexdigest())).hold("w#1")
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], timeout=PATIENCE, check=False)

    async def scenario() -> None:
        backend = MemoryStore().leases
        leases = WitnessedLeases(backend, "store")
        key = ORCHESTRATOR + "w"
        _ = await backend.acquire(key, "w#1", 3600.0, 0.0)
        assert await leases.get(key, 1.0) is None
        assert await leases.live(ORCHESTRATOR, 1.0) == []
        assert isinstance(await leases.acquire(key, "w#2", 3600.0, 1.0), Acquired)
        assert isinstance(await leases.acquire(key, "w#3", 3600.0, 1.0), HeldBy), "this process lives"
        _ = await backend.acquire(ORCHESTRATOR + "far", "far#1", 3600.0, 0.0)
        found = await leases.live(ORCHESTRATOR, 1.0)
        assert [lease.owner for lease in found] == ["w#2", "far#1"], "of another machine only the time is known"
        leases.close()

    asyncio.run(scenario())


async def test_a_holder_that_was_looked_for_before_it_had_its_lease_is_watched_as_well() -> None:
    """Its file is there first. Nothing else tells of its death: the lease is in force for an hour."""
    looked = asyncio.Event()

    class Backend(MemoryLeases):
        async def live(self, prefix: str, now: float) -> Sequence[Lease]:
            found = await super().live(prefix, now)
            looked.set()
            return found

        async def acquire(self, key: str, owner: str, ttl: float, now: float) -> Acquired | HeldBy:
            looked.clear()
            await looked.wait()
            return await super().acquire(key, owner, ttl, now)

    backend = Backend()
    watching = WitnessedLeases(backend, "store", config=WitnessConfig(poll_interval=0.001))
    holder = WitnessedLeases(backend, "store")
    ends = watching.watch(ORCHESTRATOR)
    first = asyncio.ensure_future(anext(ends))
    async with asyncio.timeout(PATIENCE):
        await looked.wait()
        await holder.acquire(f"{ORCHESTRATOR}other", "other", 3600.0, 1.0)
        looked.clear()
        await looked.wait()
        assert holder._presence is not None
        holder._presence.abandon("other")  # as its process does by ending
        assert await first == f"{ORCHESTRATOR}other"
    assert isinstance(ends, AsyncGenerator)
    await ends.aclose()
