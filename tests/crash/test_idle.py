"""How often an engine that has nothing to do asks its store for something, beside others that live, and of the dead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from perdure import Engine, Recovery, sleep, wait_signal, workflow
from perdure.stores.postgres.store import PostgresStore
from perdure.testing.conformance.history import History, timer, write_all

# As by default, only five times as fast: an idle engine may ask once in five seconds, which is once a second here.
FASTER = 5.0
SETTINGS = Recovery(lease=30.0 / FASTER, check_interval=30.0 / FASTER)
SECONDS = 120.0


@workflow
async def asleep() -> None:
    await sleep(1_000_000)


@workflow
async def waiting() -> None:
    await wait_signal("go")


@asynccontextmanager
async def counted(url: str, name: str) -> AsyncIterator[list[str]]:
    """An engine with runs that wait, and what it asks for."""
    asked: list[str] = []
    async with Engine(url, [asleep, waiting], name=name, recovery=SETTINGS) as engine:
        for program in (asleep, waiting):
            _ = await engine.start(program(), id=f"{program.name}-{name}")
        engine.store.trace(asked.append)
        yield asked


async def test_idle_engines_on_postgresql_ask_next_to_nothing(postgres_url: str) -> None:
    dead = [History(f"r{number}", program="asleep") for number in range(3)]
    store = PostgresStore(postgres_url)
    await store.open(migrate=True)
    await write_all(store, *(run.begin_as(f"dead-{number}") for number, run in enumerate(dead)))
    await write_all(store, *(run.then(timer(4e9)) for run in dead))
    await store.close()
    async with (
        counted(postgres_url, "a") as a,
        counted(postgres_url, "b") as b,
        counted(postgres_url, "c") as c,
    ):
        # They hear of each other, and what was started leaves memory.
        await asyncio.sleep(3.0)
        for asked in (a, b, c):
            asked.clear()
        await asyncio.sleep(SECONDS / FASTER)
        for asked in (a, b, c):
            # Each of the three clocks (signs of life, due runs, orphans) may strike once more than on average; and a
            # trace that sees nothing would pass for an engine that does nothing.
            assert SECONDS / 10 <= len(asked) <= SECONDS / 5 + 3, "\n".join(asked)
