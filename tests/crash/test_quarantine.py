"""Runs that take down the process they run in: parked after three takeovers, and nobody else is."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from perdure import call, connect
from perdure.kernel.events import RunClaimed, RunStatus
from tests.crash.fleet import Fleet
from tests.crash.harness import Children, until
from tests.patience import PATIENCE

# On one machine the dead are known by their locks: no lease has to end, and none ends because the machine is busy.
LEASE = 30.0


def keep_alive(fleet: Fleet) -> None:
    """Start again whoever has died, as whoever looks after processes does."""
    for member in [one for one in fleet.members if not one.alive]:
        fleet.members.remove(member)
        fleet.start(member.name, wait=False)


def status(fleet: Fleet, id: str) -> RunStatus:
    return fleet.views()[id].status


def parked(fleet: Fleet, id: str) -> bool:
    keep_alive(fleet)
    return status(fleet, id) is RunStatus.PARKED


@pytest.mark.parametrize("program", ["poison", "poison_body", "poison_inside", "glutton"])
def test_a_run_that_kills_its_orchestrators_is_parked_and_its_neighbours_are_not(
    children: Children, tmp_path: Path, program: str
) -> None:
    url = f"sqlite:///{tmp_path}/q.db"
    # Their steps take longer than any of the orchestrators lives: they get no further either.
    slow, quick = [f"slow-{n}" for n in range(3)], [f"quick-{n}" for n in range(20)]
    with Fleet(children, url, tmp_path, lease=LEASE, check_interval=0.5) as fleet:
        fleet.put("flow", 1, 4.0, ids=slow)
        fleet.put("flow", 3, 0.02, ids=quick)
        fleet.put(program, ids=["bad"])
        for name in ("a", "b"):
            fleet.start(name, wait=False)
        until(lambda: parked(fleet, "bad"), every=0.2)
        until(lambda: all(status(fleet, id) is RunStatus.COMPLETED for id in [*slow, *quick]), every=0.2)
        if program in ("poison", "poison_inside"):
            killed = [one for one in fleet.did("steps") if one.words[0] == "kill"]
            assert len(killed) == 4, "the first time, and three takeovers"
        asyncio.run(see_and_resolve(url, tmp_path, program))


def test_many_slow_neighbours_are_not_taken_for_the_one_that_kills(children: Children, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.db"
    slow = [f"slow-{n}" for n in range(50)]
    with Fleet(children, url, tmp_path, lease=LEASE, check_interval=0.5) as fleet:
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
        assert "3 orchestrators claimed this run one after another" in view.reason
        assert ("kill:0, attempt 4" in view.reason) == (program in ("poison", "poison_inside"))
        (folder / "mended").touch()
        _ = await client.resolve("bad")
        handle = await client.start(call(program), id="bad")
        assert await handle.result(PATIENCE) == "mended"


@pytest.mark.parametrize("program", ["thinking", "waiting_inside"])
def test_a_run_whose_processes_are_killed_from_outside_is_not_parked(
    children: Children, tmp_path: Path, program: str
) -> None:
    """One that executes a long step in a thread inside a lock, and one that waits for a signal inside a lock."""
    url = f"sqlite:///{tmp_path}/q.db"
    with Fleet(children, url, tmp_path, lease=LEASE) as fleet:
        fleet.put(program, *([1e6] if program == "thinking" else []), ids=["it"])
        for round in range(7):
            member = fleet.start("a")
            until(lambda: claims(url) > round, every=0.05)  # noqa: B023
            if program == "thinking":
                until(lambda: len(fleet.did("steps")) > round, every=0.05)  # noqa: B023
                if round == 2:
                    # From the second loss on, its owner says that it lives with it.
                    until(lambda: lived(url), every=0.05)
            member.signal(signal.SIGKILL)
            member.wait()
        _ = fleet.start("a")
        until(lambda: claims(url) > 7, every=0.05)
        view = fleet.views()["it"]
        assert view.status is RunStatus.RUNNING
        if program == "waiting_inside":
            asyncio.run(go_on(url))


def sessions(url: str) -> list[str]:
    """The sessions that claimed the run, one after another."""

    async def ask() -> list[str]:
        async with connect(url) as client:
            return [e.event.session for e in await client.journal("it") if isinstance(e.event, RunClaimed)]

    return asyncio.run(ask())


def claims(url: str) -> int:
    return len(set(sessions(url)))


def lived(url: str) -> bool:
    told = sessions(url)
    return len(told) > 1 and told[-1] == told[-2]


async def go_on(url: str) -> None:
    async with connect(url) as client:
        handle = await client.start(call("waiting_inside"), id="it")
        _ = await handle.signal("go", "on")
        assert await handle.result(PATIENCE) == "on"
