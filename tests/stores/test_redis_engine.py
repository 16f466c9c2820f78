"""Engines on Redis: what the other stores' engines do, between engines and clients that share only the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis

from perdure import (
    Engine,
    NotFound,
    Queue,
    Recovery,
    RunStatus,
    approval,
    call,
    child,
    connect,
    sleep,
    step,
    wait_signal,
    workflow,
)
from tests.services.plugin import Servers

PATIENCE = 30.0
calls: list[str] = []
gates: dict[str, asyncio.Event] = {}


@pytest.fixture(autouse=True)
def fresh() -> None:
    calls.clear()
    gates.clear()


@step
async def note(what: str) -> str:
    calls.append(what)
    return what


@step
async def hold(what: str) -> str:
    calls.append(what)
    await gates.setdefault(what, asyncio.Event()).wait()
    return what


@workflow
async def patient(name: str) -> str:
    await note(f"{name} begins")
    return f"{name}: {await wait_signal('go')}"


@workflow
async def family() -> list[Any]:
    first, second = await asyncio.gather(patient("a"), patient("b"))
    return [first, second, await child(quick("own"), id="kid"), bool(await child(quick("free"), detached=True))]


@workflow
async def quick(what: str) -> str:
    return await note(what)


@workflow
async def slow(what: str) -> str:
    return await hold(what)


@workflow
async def asking() -> Any:
    return await approval("ship", request={"total": 3}, schema=bool)


@workflow
async def timed() -> str:
    await sleep(0.01)
    return await note("woken")


@step
async def tokens(prompt: str) -> AsyncIterator[str]:
    for word in prompt.split():
        yield word


@workflow
async def answer(prompt: str) -> list[str]:
    return await tokens(prompt)


@workflow
async def large(size: int) -> int:
    text = await bulk(size)
    await wait_signal("go")
    return len(text)


@step
async def bulk(size: int) -> str:
    return "x" * size


ALL: list[Any] = [patient, family, quick, slow, asking, timed, answer, large]


async def begun(count: int) -> None:
    await eventually(lambda: len(calls) == count)


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0)


async def test_signals_children_and_answers_come_from_elsewhere(redis_url: str) -> None:
    async with Engine(redis_url, ALL) as engine, connect(redis_url) as client:
        run = await client.start(call("family"), id="it")
        await eventually(lambda: len(calls) == 2)
        _ = await client.signal("it/patient:0", "go", 1)
        _ = await client.signal("it/patient:1", "go", 2)
        assert await run.result(PATIENCE) == ["a: 1", "b: 2", "own", True]
        kid = await client.get("kid")
        assert kid is not None
        assert kid.output == "own"
        await eventually(lambda: "free" in calls)
        question = await engine.start(asking(), id="question")
        async with asyncio.timeout(PATIENCE):
            while not await client.approvals():
                await asyncio.sleep(0)
        _ = await client.approve("question", "ship", True)
        assert await question.result(PATIENCE) is True


async def test_timers_streams_and_large_values(redis_url: str) -> None:
    async with Engine(redis_url, ALL) as engine, connect(redis_url) as client:
        assert await (await client.start(call("timed"))).result(PATIENCE) == "woken"
        run = await engine.start(answer("one two three"), id="words")
        assert await run.result(PATIENCE) == ["one", "two", "three"]
        assert [chunk.value async for chunk in client.stream("words")] == ["one", "two", "three"]
        big = await client.start(call("large", 2_000_000), id="big")
        _ = await client.signal("big", "go")
        assert await big.result(PATIENCE) == 2_000_000


async def test_queues_hold_their_limits_between_engines(redis_url: str) -> None:
    two = Queue("mail", concurrency=2)
    async with (
        Engine(redis_url, ALL, queues=[two]) as _,
        Engine(redis_url, ALL, queues=[two]) as _,
        connect(redis_url) as client,
    ):
        runs = [await client.start(call("slow", f"r{i}"), queue="mail", key="ab"[i % 2]) for i in range(6)]
        for done in range(6):
            await begun(min(6, done + 2))
            [view] = await client.queues()
            assert (view.running, view.queued) == (min(2, 6 - done), max(0, 4 - done))
            gates[calls[done]].set()
            _ = await runs[int(calls[done][1:])].result(PATIENCE)


async def test_a_schedule_starts_runs(redis_url: str) -> None:
    async with Engine(redis_url, ALL) as engine:
        _ = await engine.schedule("s", quick("tick"), every=0.05)
        await eventually(lambda: len(calls) >= 2)
        runs = [run for run in await engine.list(tags={"schedule": "s"}) if run.program == "quick"]
        assert len(runs) >= 2


async def test_runs_of_an_engine_that_left_go_on_in_another(redis_url: str) -> None:
    async with Engine(redis_url, ALL, name="one", recovery=Recovery(grace=0)) as first:
        _ = await first.start(slow("held"), id="it")
        await eventually(lambda: calls == ["held"])
    async with Engine(redis_url, ALL, name="two") as second:
        await eventually(lambda: len(calls) == 2)
        gates["held"].set()
        handle = await second.start(slow("held"), id="it")
        assert await handle.result(PATIENCE) == "held"


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
    assert not [
        key for key in left if key.startswith(("perdure:journal", "perdure:row", "perdure:head", "perdure:blob"))
    ]
