"""A relay: runners in tasks hand over through queues and events, and one of two messages wins."""

import asyncio

from perdure import sleep, step, wait_signal, workflow
from tests.changes.ledger import effect


@step
async def run(runner: str, lap: int) -> int:
    effect("run", runner, lap)
    return lap


@step
async def hand_over(runner: str, to: str) -> None:
    effect("hand over", runner, to)


@step
async def rank(times: list[int]) -> int:
    effect("rank", times)
    return sum(times)


@step
async def medal(place: int, why: str) -> str:
    effect("medal", place, why)
    return f"{why} {place}"


@workflow
async def training(runner: str) -> int:
    return await run(runner, 0)


async def leg(runner: str, to: str, baton: asyncio.Queue[int], done: list[int]) -> None:
    lap = await baton.get()
    done.append(await run(runner, lap))
    await hand_over(runner, to)
    await baton.put(lap + 1)


async def referee() -> str:
    return await wait_signal("decided", type=str)


@workflow
async def relay(team: list[str]) -> str:
    baton: asyncio.Queue[int] = asyncio.Queue()
    done: list[int] = []
    for runner in team:
        await training(runner)
    async with asyncio.TaskGroup() as group:
        for runner, to in zip(team, [*team[1:], "finish"], strict=True):
            group.create_task(leg(runner, to, baton, done), name=runner)
        await baton.put(1)
    place = await rank(done)
    decided, late = asyncio.create_task(referee()), asyncio.create_task(sleep(3600))
    _, pending = await asyncio.wait({decided, late}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return await medal(place, decided.result() if decided.done() and not decided.cancelled() else "late")
