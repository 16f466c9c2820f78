"""`perdure locks ls` and `perdure locks release`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure import Engine, lock, sleep, workflow
from perdure.kernel.events import WaitResolved
from perdure.kernel.policies.lock_keys import lease_key
from tests.cli.conftest import Cli
from tests.engine.harness import Recorded


@workflow
async def holder() -> None:
    async with lock("account:7", ttl=600):
        await sleep(3600)


async def held(url: str) -> str:
    """A store whose run `r1` holds a lock; returns its run_id."""
    recorded = Recorded()
    async with Engine(url, [holder], on_commit=recorded) as engine:
        run = await engine.start(holder(), id="r1")
        await recorded.until(lambda e: isinstance(e, WaitResolved) and e.by == "lock")
        return run.run_id


@pytest.fixture
def run_id(tmp_path: Path) -> str:
    return asyncio.run(held(f"sqlite:///{tmp_path}/perdure.db"))


def test_locks_are_listed_with_their_holders(run_id: str, cli: Cli) -> None:
    shown = cli("locks", "ls")
    assert shown.code == 0
    assert "account:7" in shown.out
    assert f"{run_id}/lock:0" in shown.out
    assert "r1" in shown.out.splitlines()[1].split()
    [found] = cli("locks", "ls", "--json").json["locks"]
    assert {name: found[name] for name in ("key", "owner", "token", "run_id", "id")} == {
        "run_id": run_id,
        "id": "r1",
        "key": "account:7",
        "owner": f"{run_id}/lock:0",
        "token": 1,
    }


def test_a_lock_of_an_open_run_is_taken_away_only_with_force(run_id: str, cli: Cli) -> None:
    refused = cli("locks", "release", "account:7")
    assert refused.code == 2
    assert "run 'r1', which is running" in refused.err
    assert "--force" in refused.err
    taken = cli("locks", "release", "account:7", "--force", "--json")
    assert taken.code == 0
    assert taken.json["released"]["owner"] == f"{run_id}/lock:0"
    again = cli("locks", "release", "account:7", "--force")
    assert (again.code, "is not held" in again.err) == (0, True)
    assert cli("locks", "ls", "--json").json == {"locks": []}
    assert "no lock is held" in cli("locks", "ls").err


def test_a_lock_of_a_run_that_has_ended_is_released_without_force(run_id: str, cli: Cli) -> None:
    async def end_without_release() -> None:
        async with Engine(cli.url) as engine:
            # Ended by another process, and its owner died before it gave the lock back.
            await engine._messages.terminate((await engine._base.require("r1"))[0].run_id, "test")
            assert await engine.store.leases.get(lease_key("account:7"), engine.clock.now()) is not None

    asyncio.run(end_without_release())
    released = cli("locks", "release", "account:7")
    assert released.code == 0
    assert "was released" in released.err
    assert cli("locks", "ls", "--json").json == {"locks": []}


def test_a_lock_of_somebody_else_needs_force(run_id: str, cli: Cli) -> None:
    async def acquire() -> None:
        async with Engine(cli.url) as engine:
            _ = await engine.locks.acquire("door", "me")

    asyncio.run(acquire())
    refused = cli("locks", "release", "door")
    assert (refused.code, "which is not a run" in refused.err) == (2, True)


@pytest.mark.parametrize("key", ["", "k" * 10_240])
def test_a_key_that_is_no_lock_is_refused(run_id: str, cli: Cli, key: str) -> None:
    refused = cli("locks", "release", key)
    assert refused.code == 2
    assert "choose a short name" in refused.err
