"""Workflows that take locks, and what tests of them ask an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from perdure import Engine, lock, step, workflow
from perdure.kernel.events import WaitResolved
from tests.engine.harness import PATIENCE, Gates

inside: list[str] = []


most: list[int] = []


gates = Gates()


@step
async def work(name: str) -> str:
    inside.append(name)
    most.append(len(inside))
    await asyncio.sleep(0)
    inside.remove(name)
    return name


@step
async def wait_for(gate: str) -> None:
    await gates.wait(gate)


@workflow
async def gated(gate: str, ttl: float = 30.0) -> int:
    async with lock("room", ttl=ttl) as held:
        await wait_for(gate)
        return held.token


def is_locked(event: Any) -> bool:
    return isinstance(event, WaitResolved) and event.by == "lock"


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Let the loop turn until the condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.001)


async def free(engine: Engine, key: str = "room") -> bool:
    return await engine.locks.get(key) is None


async def _no_locks(engine: Engine) -> bool:
    return await engine.locks.list() == []


@step
async def guarded_step(name: str) -> int:
    async with lock("room") as held:
        inside.append(name)
        most.append(len(inside))
        await asyncio.sleep(0)
        inside.remove(name)
        return held.token


@step
def guarded_thread(name: str) -> int:
    with lock("room") as held:
        inside.append(name)
        most.append(len(inside))
        inside.remove(name)
        return held.token


@workflow
async def many_steps() -> list[int]:
    names = [str(i) for i in range(4)]
    return list(await asyncio.gather(*map(guarded_step, names), *map(guarded_thread, names)))
