"""The promise of the first page: kill it, run the same command again, it goes on."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from perdure import connect
from perdure.kernel.events import Entry, RunClaimed, RunStatus
from tests.crash.fleet import Fleet, freeze
from tests.crash.harness import ROOT, Children, audit, check_executions, read_effects, until


def test_the_same_command_goes_on_after_each_death_until_it_is_done(children: Children, tmp_path: Path) -> None:
    command = ["-m", "tests.crash.same_command", str(tmp_path / "runs.db"), str(tmp_path / "effects")]
    for _ in range(4):
        died = children.python(tmp_path, *command, cwd=ROOT)
        assert died.wait() == -signal.SIGKILL, died.log
        assert died.log == ""
    # Done now, and still the same when it is asked once more.
    for _ in range(2):
        done = children.python(tmp_path, *command, cwd=ROOT)
        assert (done.wait(), done.log) == (0, "[1, 2]\n")
    journal = audit(tmp_path / "runs.db")["gathering"]
    executed = check_executions(journal, read_effects(tmp_path / "effects"))
    assert executed == {"fetch:0": 2, "store:0": 2, "fetch:1": 2, "store:1": 2}


@pytest.fixture(params=["postgres", "redis"])
def url(request: pytest.FixtureRequest) -> str:
    """An empty store on a server of each kind."""
    return str(request.getfixturevalue(f"{request.param}_url"))


def test_on_a_server_it_goes_on_without_waiting_for_a_lease(children: Children, tmp_path: Path, url: str) -> None:
    """The lease of the process that died is in force for ten hours."""
    command = ["-m", "tests.crash.same_command", url, str(tmp_path / "effects")]
    for status, said in [(-signal.SIGKILL, "")] * 4 + [(0, "[1, 2]\n")]:
        ended = children.python(tmp_path, *command, cwd=ROOT, env={"SERVER_LEASE": "36000"})
        assert (ended.wait(), ended.log) == (status, said)
    claims = [entry.event for entry in asyncio.run(journal(url)) if isinstance(entry.event, RunClaimed)]
    assert len({claim.session for claim in claims}) == 5
    assert len({claim.owner for claim in claims}) == 1, "one name"


async def journal(url: str) -> Sequence[Entry]:
    async with connect(url) as client:
        return await client.journal("gathering")


def test_what_a_process_of_another_name_left_behind_is_taken_up_at_once_too(
    children: Children, tmp_path: Path, url: str
) -> None:
    """The system knows that it is dead: the lease, which is in force for long, proves nothing."""
    with Fleet(children, url, tmp_path, lease=3600.0) as fleet:
        first = fleet.start("first")
        fleet.put("held", 1, ids=["it"])
        until(lambda: len(fleet.did("steps")) == 1)
        first.signal(signal.SIGKILL)
        first.wait()
        _ = fleet.start("second")
        until(lambda: len(fleet.did("steps")) == 2)
        # And one that is there already hears of it.
        third = fleet.start("third")
        fleet.put("held", 1, ids=["late"])
        until(lambda: fleet.views()["late"].owner is not None, every=0.1)
        owner = next(one for one in fleet.members if one.name == fleet.views()["late"].owner)
        assert owner in (third, fleet.members[1])
        until(lambda: len(fleet.did("steps")) >= 3)
        owner.signal(signal.SIGKILL)
        owner.wait()
        until(lambda: len(fleet.did("steps")) >= 4)
        fleet.mend()
        until(lambda: {view.status for view in fleet.views().values()} == {RunStatus.COMPLETED}, every=0.1)


def test_an_orchestrator_that_is_not_heard_until_its_lease_ends_is_looked_for_then(
    children: Children, tmp_path: Path, url: str
) -> None:
    """It stands still, so that the system cannot tell that it is dead. The looks that stand behind are far apart."""
    with Fleet(children, url, tmp_path, lease=3.0, check_interval=1200) as fleet:
        both = [fleet.start(name) for name in ("a", "b")]
        fleet.put("held", 1, ids=["it"])
        until(lambda: fleet.did("steps"), every=0.1)
        # Longer than it takes until each has heard the other.
        time.sleep(6.0)
        begun = fleet.did("steps")
        owner = next(one for one in both if one.pid == begun[-1].pid)
        freeze(owner, url)
        until(lambda: [one for one in fleet.did("steps")[len(begun) :] if one.pid != owner.pid], every=0.1)
