"""Engines on Redis: servers that restart or forget, and what is left of runs that are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis

from perdure import Engine, NotFound, RunStatus, step, wait_signal, workflow
from tests.patience import PATIENCE
from tests.services.plugin import Servers

calls: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    calls.clear()


@step
async def note(what: str) -> str:
    calls.append(what)
    return what


@workflow
async def patient(name: str) -> str:
    await note(f"{name} begins")
    return f"{name}: {await wait_signal('go')}"


@workflow
async def quick(what: str) -> str:
    return await note(what)


@workflow
async def large(size: int) -> int:
    text = await bulk(size)
    await wait_signal("go")
    return len(text)


@step
async def bulk(size: int) -> str:
    return "x" * size


ALL: list[Any] = [patient, quick, large]


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0)


async def test_a_server_that_restarts_under_an_engine_loses_no_step(servers: Servers) -> None:
    """With `appendfsync always` what was acknowledged is there afterwards, and no step runs twice."""
    with servers.redis() as server:
        async with Engine(server.url, ALL) as engine:
            runs = [await engine.start(patient(f"p{i}"), id=f"p{i}") for i in range(5)]
            await eventually(lambda: len(calls) == 5)
            server.kill()
            server.start()
            for i in range(5):
                async with asyncio.timeout(PATIENCE):
                    _ = await engine.signal(f"p{i}", "go", i)
            assert [await run.result(PATIENCE) for run in runs] == [f"p{i}: {i}" for i in range(5)]
            assert len(calls) == 5


async def test_an_engine_bears_a_server_that_forgot_everything(servers: Servers) -> None:
    """Runs that are gone are reported as missing; new ones go on as if nothing had been."""
    with servers.redis() as server:
        async with Engine(server.url, ALL) as engine:
            _ = await engine.start(patient("p"), id="p")
            await eventually(lambda: len(calls) == 1)
            with redis.Redis.from_url(server.url) as keys:
                keys.flushall()
            assert await engine.signal("p", "go") == NotFound()
            assert await engine.get("p") is None
            assert await (await engine.start(quick("new"), id="new")).result(PATIENCE) == "new"


async def test_ended_runs_can_be_pruned(redis_url: str) -> None:
    async with Engine(redis_url, ALL) as engine:
        for number in range(3):
            run = await engine.start(large(1_000_000 + number), id=f"r{number}")
            _ = await engine.signal(f"r{number}", "go")
            _ = await run.result(PATIENCE)
        removed = await engine.store.upkeep.remove([view.run_id for view in await engine.list()])
        assert len(removed) == 3
        assert (await engine.store.upkeep.collect(0, 100)).bytes > 2_000_000
        assert await engine.list(status=RunStatus.COMPLETED) == []
        with redis.Redis.from_url(redis_url) as keys:
            left = {key.decode() for key in keys.scan_iter()}
    code = f"perdure:blob:{large.source().digest()}"
    assert code in left, "the source of a program stays"
    assert not [
        key
        for key in left - {code}
        if key.startswith(("perdure:journal", "perdure:row", "perdure:head", "perdure:blob"))
    ]
