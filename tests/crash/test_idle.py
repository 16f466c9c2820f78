"""How often an engine that has nothing to do asks its store for something, beside others that live, and of the dead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from perdure import Engine, Recovery, config, sleep, wait_signal, workflow
from perdure.stores.postgres.store import PostgresStore
from perdure.testing.conformance.history import History, timer, write_all
from tests.patience import PATIENCE

# As by default, only ten times as fast: an idle engine may ask once in five seconds, which is twice a second here.
FASTER = 10.0
SETTINGS = Recovery(check_interval=Recovery().check_interval / FASTER)
SECONDS = 80.0


@pytest.fixture(autouse=True)
def faster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERVER_HEARTBEAT", "SERVER_IDLE_HEARTBEAT"):
        monkeypatch.setattr(config, name, getattr(config, name) / FASTER)


@workflow
async def asleep() -> None:
    await sleep(1_000_000)


@workflow
async def waiting() -> None:
    await wait_signal("go")


@asynccontextmanager
async def counted(url: str, name: str) -> AsyncIterator[list[str]]:
    """An engine with runs that wait and have left memory, and what it asks for."""
    asked: list[str] = []
    async with Engine(url, [asleep, waiting], name=name, recovery=SETTINGS) as engine:
        for program in (asleep, waiting):
            _ = await engine.start(program(), id=f"{program.name}-{name}")
        assert engine._orchestrator is not None
        async with asyncio.timeout(PATIENCE):
            while engine._orchestrator.active:
                await asyncio.sleep(0.1)
        engine.store.trace(asked.append)
        yield asked


async def test_idle_engines_on_postgresql_ask_next_to_nothing(postgres_url: str) -> None:
    dead = [History(f"r{number}", program="asleep") for number in range(3)]
    store = PostgresStore(postgres_url)
    await store.open(migrate=True)
    await write_all(store, *(run.begin_as(f"dead-{number}") for number, run in enumerate(dead)))
    await write_all(store, *(run.then(timer(4e9)) for run in dead))
    await store.close()
    await ask_next_to_nothing(postgres_url, "with lazy")


async def test_idle_engines_on_redis_ask_next_to_nothing(redis_url: str) -> None:
    await ask_next_to_nothing(redis_url, "EVALSHA renew")


async def ask_next_to_nothing(url: str, heartbeat: str) -> None:
    """Count what three engines ask for that have runs which wait, and nothing to do."""
    time = asyncio.get_running_loop().time

    def beats(asked: list[str]) -> list[str]:
        return [one for one in asked if one.strip().startswith(heartbeat)]

    async with counted(url, "a") as a, counted(url, "b") as b, counted(url, "c") as c:
        # They hear of each other.
        await asyncio.sleep(20.0 / FASTER)
        for asked in (a, b, c):
            asked.clear()
        began = time()
        await asyncio.sleep(SECONDS / FASTER)
        # A trace that sees nothing would pass for an engine that does nothing. A busy machine may take longer.
        async with asyncio.timeout(PATIENCE):
            while (
                min(len(asked) for asked in (a, b, c)) < SECONDS / 10
                or min(map(len, map(beats, (a, b, c)))) < SECONDS / 20
            ):
                await asyncio.sleep(0.1)
        seconds = (time() - began) * FASTER
        for asked in (a, b, c):
            # A script that this process had not sent yet is sent once.
            asked = [one for one in asked if not one.startswith("SCRIPT LOAD")]
            # Each of the three clocks (heartbeats, due runs, orphans) may strike once more than on average.
            assert len(asked) <= seconds / 5 + 3, "\n".join(asked)
            assert len(beats(asked)) <= seconds / 10 + 1, "\n".join(asked)
