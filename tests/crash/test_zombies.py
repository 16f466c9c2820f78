"""Orchestrators that stand still past their lease and go on as if nothing had been.

Half of them find that another process has their name by then. Whatever they were about to do, nothing of it is
accepted, and they begin nothing: the woken one stops, or goes on after it has shown that it lives.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from perdure.kernel.events import RunStatus
from tests.amounts import some
from tests.crash.fleet import Fleet, Member, freeze, wake
from tests.crash.harness import Children, until

LEASE = 0.9
NAMES = ("a", "b", "c")


@pytest.fixture(params=["sqlite", "postgres", "redis", "etcd"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str | None]:
    """An empty store of each kind that processes share; and where the leases are, if that is elsewhere."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/z.db", None
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url")), None
    leases = str(request.getfixturevalue("etcd_url")) if request.param == "etcd" else None
    return str(request.getfixturevalue("postgres_url")), leases


@pytest.mark.parametrize(("seed", "count"), some([(1, 3), *((seed, 50) for seed in range(2, 6))], 1))
def test_what_zombies_were_about_to_do_is_neither_done_nor_accepted(
    children: Children, place: tuple[str, str | None], tmp_path: Path, seed: int, count: int
) -> None:
    """Stop `count` orchestrators, one after another, for 1.5 to 4 leases each, while there is work to do."""
    url, leases = place
    chance = random.Random(seed)
    # Stopped or not, no run is to blame.
    with Fleet(children, url, tmp_path, LEASE, quarantine=0, leases=leases) as fleet:
        members = {name: fleet.start(name) for name in NAMES}
        begun: list[str] = []
        for number in range(count):
            fresh = [f"run-{number}-{n}" for n in range(6)]
            fleet.put("flow", 8, 0.05, ids=fresh)
            begun += fresh
            victim = members[chance.choice(NAMES)]
            time.sleep(chance.random() * 0.2)
            freeze(victim, url)
            replaced = number % 2 == 0
            try:
                if replaced:
                    members[victim.name] = fleet.start(victim.name)
                time.sleep(chance.uniform(1.5, 4) * LEASE)
            finally:
                woken = time.time()
                wake(victim)
            if replaced:
                stops_for_good(fleet, victim, woken)
        until(lambda: {view.status for view in fleet.views().values()} == {RunStatus.COMPLETED}, every=0.1)
        assert set(fleet.views()) == set(begun)
        assert fleet.stale_writes() == []
        assert not [member.name for member in members.values() if not member.alive], fleet.log


def stops_for_good(fleet: Fleet, zombie: Member, woken: float) -> None:
    """Somebody else has its name: it begins nothing, and ends by itself."""
    assert zombie.wait() == 0, fleet.log
    [stopped] = [one for one in fleet.did("ends") if one.pid == zombie.pid and one.words[0] == "superseded"]
    assert stopped.at >= woken
    later = [one for one in fleet.did("steps") if one.pid == zombie.pid and one.at > woken]
    assert len(later) <= 1, "it began a step after it woke up, and not only what it was about to begin before"
    assert not [one for one in later if float(one.words[2]) > woken], "it took its lease for one in force"
