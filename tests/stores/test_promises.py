"""What stores promise: durability that a backend cannot give is refused, before any run relies on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import Engine, workflow
from perdure.errors import UsageError
from perdure.kernel.policies.durability import Durability
from perdure.stores.memory.store import MemoryStore
from perdure.stores.sqlite.store import SqliteStore


@workflow
async def nothing() -> int:
    return 1


class Careless(MemoryStore):
    """A backend whose commits may be lost with the power."""

    survives = "kill"

    def check_durability(self, durability: Durability) -> None:
        if durability.fsync:
            raise UsageError("this store cannot promise 'sync'; use durability=\"relaxed\"")


async def test_an_engine_does_not_open_where_its_durability_cannot_be_promised() -> None:
    store = Careless()
    with pytest.raises(UsageError, match="cannot promise 'sync'"):
        _ = await Engine(store, [nothing]).open()
    async with Engine(store, [nothing], durability="relaxed") as engine:
        assert await (await engine.start(nothing())).result() == 1


async def test_a_run_is_refused_that_asks_for_more_than_can_be_promised() -> None:
    async with Engine(Careless(), [nothing], durability="relaxed") as engine:
        with pytest.raises(UsageError, match="cannot promise 'sync'"):
            _ = await engine.start(nothing(), id="r1", durability="sync")
        assert await engine.store.runs.find("r1") is None


def test_stores_say_what_a_commit_survives(tmp_path: Path) -> None:
    assert SqliteStore(str(tmp_path / "runs.db")).survives == "power_loss"
    assert MemoryStore().survives == "nothing"
