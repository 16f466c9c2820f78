"""The promise of the first page: kill it, run the same command again, it goes on."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from perdure import Recovery, connect
from perdure.kernel.events import Entry, RunClaimed, RunStatus
from tests.crash.fleet import Fleet, freeze
from tests.crash.harness import PATIENCE, ROOT, audit, check_executions, read_effects, until


def test_the_same_command_goes_on_after_each_death_until_it_is_done(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.crash.same_command", str(tmp_path / "runs.db"), str(tmp_path / "effects")]
    for _ in range(4):
        died = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
        assert died.returncode == -signal.SIGKILL, died.stderr
        assert died.stdout == ""
    # Done now, and still the same when it is asked once more.
    for _ in range(2):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "[1, 2]\n"
    journal = audit(tmp_path / "runs.db")["gathering"]
    executed = check_executions(journal, read_effects(tmp_path / "effects"))
    assert executed == {"fetch:0": 2, "store:0": 2, "fetch:1": 2, "store:1": 2}


@pytest.mark.parametrize("kind", ["postgres", "redis"])
def test_on_a_server_it_goes_on_without_waiting_for_a_lease(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{kind}_url")
    command = [sys.executable, "-m", "tests.crash.same_command", url, str(tmp_path / "effects")]
    for _ in range(4):
        died = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
        assert died.returncode == -signal.SIGKILL, died.stderr
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, "[1, 2]\n"), done.stderr
    entries = asyncio.run(journal(url))
    claims = [entry for entry in entries if isinstance(entry.event, RunClaimed)]
    assert len({entry.event.session for entry in claims if isinstance(entry.event, RunClaimed)}) == 5
    assert len({entry.event.owner for entry in claims if isinstance(entry.event, RunClaimed)}) == 1, "one name"
    for before, claim in itertools.pairwise(entries):
        if isinstance(claim.event, RunClaimed):
            waited = (claim.at - before.at).total_seconds()
            assert waited < Recovery().ttl / 2, "the lease of the process that died was not waited for"


async def journal(url: str) -> Sequence[Entry]:
    async with connect(url) as client:
        return await client.journal("gathering")


@pytest.mark.parametrize("kind", ["postgres", "redis"])
def test_what_a_process_of_another_name_left_behind_is_taken_up_at_once_too(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """The system knows that it is dead: the lease, which is in force for long, proves nothing."""
    url = request.getfixturevalue(f"{kind}_url")
    with Fleet(url, tmp_path, lease=3600.0) as fleet:
        first = fleet.start("first")
        fleet.put("flow", 1, 0.5, ids=["it"])
        until(lambda: len(fleet.did("steps")) == 1)
        first.signal(signal.SIGKILL)
        first.wait()
        _ = fleet.start("second")
        until(lambda: fleet.views()["it"].status is RunStatus.COMPLETED, every=0.1)
        # And one that is there already hears of it.
        third = fleet.start("third")
        fleet.put("flow", 1, 2.0, ids=["late"])
        until(lambda: fleet.views()["late"].owner is not None, every=0.1)
        owner = next(one for one in fleet.members if one.name == fleet.views()["late"].owner)
        assert owner in (third, fleet.members[1])
        until(lambda: len(fleet.did("steps")) >= 3)
        owner.signal(signal.SIGKILL)
        owner.wait()
        until(lambda: fleet.views()["late"].status is RunStatus.COMPLETED, every=0.1)


@pytest.mark.parametrize("kind", ["postgres", "redis"])
def test_an_orchestrator_that_is_not_heard_until_its_lease_ends_is_looked_for_then(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands still, so that the system cannot tell that it is dead. The looks that stand behind are far apart."""
    monkeypatch.setenv("CHECK_INTERVAL", "1200")
    url = request.getfixturevalue(f"{kind}_url")
    with Fleet(url, tmp_path, lease=3.0) as fleet:
        both = [fleet.start(name) for name in ("a", "b")]
        # Longer than it takes until each has heard the other.
        fleet.put("flow", 2, 6.0, ids=["it"])
        until(lambda: len(fleet.did("steps")) == 2, every=0.1)
        owner = next(one for one in both if one.pid == fleet.did("steps")[-1].pid)
        freeze(owner, url)
        until(lambda: len(fleet.did("steps")) == 3, timeout=60.0, every=0.1)
        assert fleet.did("steps")[-1].pid != owner.pid
