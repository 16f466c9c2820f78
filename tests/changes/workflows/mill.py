"""A mill: sacks are ground by task groups within a semaphore, and packed in rounds."""

import asyncio
from typing import NamedTuple

from perdure import now, random, step, wait_signal, workflow
from tests.changes.ledger import effect


class Sack(NamedTuple):
    number: int
    kilos: int = 10


@step
async def fetch(farm: str) -> list[Sack]:
    effect("fetch", farm)
    return [Sack(1), Sack(2, 20), Sack(3)]


@step
async def grind(number: int, kilos: int) -> int:
    effect("grind", number, kilos)
    return kilos - 1


@step
async def sieve(number: int, kilos: int) -> int:
    effect("sieve", number, kilos)
    return kilos


@step
async def pack(kilos: int, luck: bool) -> str:
    effect("pack", kilos, luck)
    return f"{kilos} kg"


async def milled(sack: Sack, room: asyncio.Semaphore) -> int:
    async with room:
        flour = await grind(sack.number, sack.kilos)
    return await sieve(sack.number, flour)


@workflow
async def mill(farm: str, stones: int = 2) -> list[str]:
    began = now()
    luck = random() < 2
    sacks = await fetch(farm)
    room = asyncio.Semaphore(stones)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(milled(sack, room)) for sack in sacks]
    packed = []
    for task in tasks:
        packed.append(await pack(task.result(), luck))
    await wait_signal("collected")
    packed.append(await pack(sum(task.result() for task in tasks), began.year < 1970))
    return packed
