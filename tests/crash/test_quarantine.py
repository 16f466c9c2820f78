"""Runs that take down the process they run in: parked after three takeovers, and nobody else is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure import Engine, call, connect
from perdure.kernel.events import RunStatus
from tests.crash.fleet import Fleet
from tests.crash.harness import until


def prepared(folder: Path) -> str:
    """A store that is there."""
    url = f"sqlite:///{folder}/q.db"

    async def make() -> None:
        async with Engine(url, []):
            pass

    asyncio.run(make())
    return url


def keep_alive(fleet: Fleet) -> None:
    """Start again whoever has died, as whoever looks after processes does."""
    for member in [one for one in fleet.members if not one.alive]:
        fleet.members.remove(member)
        assert member.process.stdout is not None
        member.process.stdout.close()
        fleet.start(member.name, wait=False)


def status(fleet: Fleet, id: str) -> RunStatus:
    return fleet.views()[id].status


def parked(fleet: Fleet, id: str) -> bool:
    keep_alive(fleet)
    return status(fleet, id) is RunStatus.PARKED


@pytest.mark.parametrize("program", ["poison", "poison_body"])
def test_a_run_that_kills_its_orchestrators_is_parked_and_its_neighbours_are_not(tmp_path: Path, program: str) -> None:
    url = prepared(tmp_path)
    # Their steps take longer than any of the orchestrators lives: they get no further either.
    slow, quick = [f"slow-{n}" for n in range(3)], [f"quick-{n}" for n in range(20)]
    with Fleet(url, tmp_path, lease=1.5) as fleet:
        fleet.put("flow", 1, 4.0, ids=slow)
        fleet.put("flow", 3, 0.02, ids=quick)
        fleet.put(program, ids=["bad"])
        for name in ("a", "b"):
            fleet.start(name, wait=False)
        until(lambda: parked(fleet, "bad"), every=0.2)
        until(lambda: all(status(fleet, id) is RunStatus.COMPLETED for id in [*slow, *quick]), every=0.2)
        if program == "poison":
            killed = [one for one in fleet.did("steps") if one.words[0] == "kill"]
            assert len(killed) == 4, "the first time, and three takeovers"
        asyncio.run(see_and_resolve(url, tmp_path, program))


def test_many_slow_neighbours_are_not_taken_for_the_one_that_kills(tmp_path: Path) -> None:
    url = prepared(tmp_path)
    slow = [f"slow-{n}" for n in range(50)]
    with Fleet(url, tmp_path, lease=1.5) as fleet:
        fleet.put("flow", 1, 4.0, ids=slow)
        fleet.put("poison", ids=["bad"])
        for name in ("a", "b"):
            fleet.start(name, wait=False)
        until(lambda: parked(fleet, "bad"), every=0.2)
        until(lambda: all(status(fleet, id) is RunStatus.COMPLETED for id in slow), every=0.2)


async def see_and_resolve(url: str, folder: Path, program: str) -> None:
    async with connect(url) as client:
        view = await client.get("bad")
        assert view is not None
        assert view.parked == "poisoned"
        assert view.reason is not None
        assert "3 orchestrators took this run up one after another" in view.reason
        assert ("kill:0, attempt 4" in view.reason) == (program == "poison")
        (folder / "mended").touch()
        _ = await client.resolve("bad")
        handle = await client.start(call(program), id="bad")
        assert await handle.result(60) == "mended"
