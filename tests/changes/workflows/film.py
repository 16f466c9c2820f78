"""A film: frames are rendered on other machines, cut here, and shown."""

import asyncio
from dataclasses import dataclass

from perdure import step, wait_signal, workflow
from tests.changes.ledger import effect


@dataclass
class Frame:
    number: int
    pixels: int


@step
async def script(title: str) -> int:
    effect("script", title)
    return 2


@step(queue="gpu")
async def render(title: str, number: int, scale: int = 1) -> Frame:
    effect("render", title, number, scale)
    return Frame(number, 100 * scale)


@step(queue="gpu")
async def sound(title: str, seconds: int) -> str:
    effect("sound", title, seconds)
    return f"{seconds} s of sound"


@step
async def cut(frames: list[Frame]) -> str:
    effect("cut", [frame.number for frame in frames])
    return "reel"


@step
async def show(reel: str, sound: str, cinema: str) -> str:
    effect("show", reel, sound, cinema)
    return f"{reel} in {cinema}"


@workflow
async def film(title: str, cinema: str = "odeon") -> str:
    count = await script(title)
    frames = await asyncio.gather(*[render(title, number) for number in range(count)])
    reel = await cut(frames)
    noise = await sound(title, 60)
    await wait_signal("premiere")
    return await show(reel, noise, cinema)
