"""Locks that callers take, outside of any run."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, HeldBy, InvalidLock, LockTimeout, NotOwner, UsageError, connect
from tests.engine.harness import PATIENCE
from tests.engine.lock_parts import many_steps

pytestmark = pytest.mark.usefixtures("no_locks_left")


async def test_callers_hold_renew_and_give_back_locks(local_url: str) -> None:
    async with Engine(local_url) as engine:
        locks = engine.locks
        first = await locks.acquire("room", "me", ttl=timedelta(seconds=30))
        assert not isinstance(first, HeldBy)
        assert (first.key, first.owner, first.token) == ("room", "me", 1)
        refused = await locks.acquire("room", "you")
        assert isinstance(refused, HeldBy)
        assert refused.owner == "me"
        renewed = await locks.renew("room", "me", 60)
        assert renewed.expires_at > first.expires_at
        assert await locks.get("room") == renewed
        assert await locks.list() == [renewed]
        for call in (locks.renew, locks.release):
            with pytest.raises(NotOwner):
                await call("room", "you")
        await locks.release("room", "me")
        assert await locks.get("room") is None
        assert await locks.force_release("room") is None
        with pytest.raises(InvalidLock, match="is not a name"):
            await locks.acquire("room", "")


async def test_a_caller_who_waits_is_told_when_the_engine_is_closed(local_url: str) -> None:
    engine = await Engine(local_url).open()
    _ = await engine.locks.acquire("room", "somebody")
    waiting = asyncio.create_task(_hold(engine))
    while not engine.locks.locker._held_elsewhere:
        await asyncio.sleep(0)
    await engine.close()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(UsageError, match="was closed"):
            await waiting


async def test_a_lock_leaves_no_file_beside_the_database(tmp_path: Path) -> None:
    local_url = f"sqlite:///{tmp_path / 'locks.db'}"
    async with Engine(local_url, [many_steps]) as engine, engine.locks.hold("door"):
        _ = await engine.run(many_steps())
        assert len(list((tmp_path / "locks.db-owners").iterdir())) == 1


async def test_a_caller_waits_for_a_lock_of_another_process(tmp_path: Path) -> None:
    local_url = f"sqlite:///{tmp_path / 'locks.db'}"
    async with Engine(local_url) as engine, connect(local_url) as client:
        async with engine.locks.hold("room"):
            waiting = asyncio.create_task(_hold(client))
            with pytest.raises(LockTimeout):
                async with client.locks.hold("room", timeout=0.05):
                    pass
        async with asyncio.timeout(PATIENCE):
            assert await waiting > 1


async def _hold(client: Any) -> int:
    async with client.locks.hold("room") as held:
        token: int = held.token
        return token
