"""Orchestrators on PostgreSQL whose leases are in an etcd that forgets, or that one of them or all cannot reach.

Whatever they think of each other, every entry of a journal is written by whoever claimed the run last, with an epoch
that is higher than those before.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from perdure.kernel.events import RunStatus
from tests import amounts
from tests.crash.fleet import Fleet
from tests.crash.harness import Children, until
from tests.crash.network import audit
from tests.services.plugin import Servers
from tests.services.proxy import Proxy
from tests.services.servers import Etcd

FEW, STEPS, SECONDS = 6, 30, 0.1
LEASE = 3.0
# How late a busy machine may write down what has happened.
LATE = 1.0


def wipe(server: Etcd, old: Path) -> None:
    """It comes back with nothing."""
    server.kill()
    server.wipe()
    server.start()


def rewind(server: Etcd, old: Path) -> None:
    """It comes back as it was when the members had just shown themselves."""
    server.kill()
    server.wipe()
    shutil.copytree(old, server.directory / "data")
    (server.directory / "data").chmod(0o700)
    server.start()


def occupy(fleet: Fleet, prefix: str) -> int:
    """Start runs until each of the members has some. Says how many."""
    before = len(fleet.did("steps"))
    pids = {member.pid for member in fleet.members}
    made = 0

    def occupied() -> bool:
        nonlocal made
        did = fleet.did("steps")[before:]
        # More when somebody has taken all there is: on a busy machine it would grow faster than it can be done.
        if sum(one.words[1] == "0" for one in did) >= made:
            fleet.put("flow", STEPS, SECONDS, ids=[f"{prefix}-{number}" for number in range(made, made + FEW)])
            made += FEW
        return {one.pid for one in did} == pids

    until(occupied, every=0.1, what="for each of them to do something")
    return made


def check(fleet: Fleet, *, runs: int) -> None:
    """All is done, once, and by those who owned it as the journal has it."""
    until(lambda: {view.status for view in fleet.views().values()} == {RunStatus.COMPLETED}, every=0.2)
    journals = asyncio.run(audit(fleet.url))
    assert len(journals) == runs
    for journal in journals.values():
        assert [end.status for end in journal.finished] == [RunStatus.COMPLETED]
        assert journal.outcomes == [f"work:{n}" for n in range(STEPS)]
    assert fleet.stale_writes() == []
    # Nobody was taken for somebody else, whatever etcd has forgotten.
    assert all(member.alive for member in fleet.members), fleet.log


@pytest.fixture
def etcd(servers: Servers) -> Iterator[Etcd]:
    """One of the test's own."""
    with servers.etcd() as server:
        yield server


@pytest.fixture
def fleet(children: Children, etcd: Etcd, postgres_url: str, tmp_path: Path) -> Iterator[Fleet]:
    """Orchestrators whose losses no run is blamed for."""
    with Fleet(children, postgres_url, tmp_path, LEASE, quarantine=0, leases=f"{etcd.url}?timeout=1") as fleet:
        yield fleet


@pytest.mark.parametrize(("lose", "times"), amounts.some([(rewind, 2), (wipe, 2), (rewind, 20), (wipe, 20)], 1))
def test_an_etcd_that_forgets_again_and_again_gives_no_run_two_owners(
    fleet: Fleet, etcd: Etcd, tmp_path: Path, lose: Callable[[Etcd, Path], None], times: int
) -> None:
    for name in ("a", "b"):
        fleet.start(name)
    etcd.stop()
    old = tmp_path / "old"
    shutil.copytree(etcd.directory / "data", old)
    etcd.start()
    runs = 0
    for number in range(times):
        runs += occupy(fleet, f"run-{number}")
        lose(etcd, old)
        time.sleep(0.5)
    check(fleet, runs=runs)


# --- networks -------------------------------------------------------------------------------------------------------

FAULTS: dict[str, Callable[[Proxy], None]] = {
    "delay": lambda proxy: proxy.delay(0.3),
    "refused": Proxy.refuse,
    "requests stuck": lambda proxy: proxy.blackhole("up"),
    "replies stuck": lambda proxy: proxy.blackhole("down"),
    "replies lost": lambda proxy: proxy.lose_replies(1_000_000),
    "reset amid requests": lambda proxy: proxy.reset_after(700),
    "reset amid replies": lambda proxy: proxy.reset_after(300, "down"),
}
# What keeps a process from showing that it lives for as long as it lasts.
SEVERED = ("refused", "requests stuck", "replies stuck")


def some(*now: str) -> list[ParameterSet]:
    """All faults; but those that are not named, and that engines of one process are tested with, take their time."""
    return [pytest.param(fault, marks=[] if fault in now else [pytest.mark.soak]) for fault in FAULTS]


@pytest.fixture
def proxy(etcd: Etcd) -> Iterator[Proxy]:
    """A way to etcd that fails."""
    with Proxy(etcd.port) as proxy:
        yield proxy


@pytest.mark.parametrize("fault", some("replies lost"))
def test_work_goes_on_soon_after_the_way_of_all_to_etcd_heals(
    fault: str, fleet: Fleet, etcd: Etcd, proxy: Proxy
) -> None:
    fleet.leases = f"{proxy.url(etcd.url)}?timeout=1"
    for name in ("a", "b"):
        fleet.start(name)
    runs = occupy(fleet, "run")
    FAULTS[fault](proxy)
    time.sleep(1.5 * LEASE)
    proxy.heal()
    before = len(fleet.did("steps"))
    assert before < runs * STEPS, "nothing was left to do"
    until(lambda: len(fleet.did("steps")) > before, what="for the work to go on")
    check(fleet, runs=runs)


@pytest.mark.parametrize("fault", [one for one in some("replies stuck") if one.values[0] in SEVERED])
def test_one_that_does_not_reach_etcd_loses_its_runs_to_the_other(
    fault: str, fleet: Fleet, etcd: Etcd, proxy: Proxy
) -> None:
    fleet.start("near")
    fleet.leases = f"{proxy.url(etcd.url)}?timeout=1"
    far = fleet.start("far")
    runs = occupy(fleet, "run")
    said = "orchestrator far: no heartbeat succeeded in time"
    before = fleet.log.count(said)
    FAULTS[fault](proxy)
    # The store is there for both of them; but who cannot show that it lives does not work.
    until(lambda: fleet.log.count(said) > before, what="for the one to stop")
    stopped = time.time()
    check(fleet, runs=runs)
    assert [one for one in fleet.did("steps") if one.pid == far.pid and one.at > stopped + LATE] == []
    proxy.heal()
    check(fleet, runs=runs + occupy(fleet, "late"))
