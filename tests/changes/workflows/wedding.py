"""A wedding: a saga that holds a lock while children work, and undoes what they did."""

import asyncio

from perdure import lock, saga, step, wait_signal, workflow
from tests.changes.ledger import effect


@step
async def book_hall(day: str) -> str:
    effect("book hall", day)
    return f"hall-{day}"


@step
async def cancel_hall(hall: str) -> None:
    effect("cancel hall", hall)


@step
async def menu(guests: int) -> int:
    effect("menu", guests)
    return 20 * guests


@step
async def order_food(guests: int, cents: int) -> str:
    effect("order food", guests, cents)
    return f"food for {guests}"


@step
async def return_food(food: str) -> None:
    effect("return food", food)


@step
async def hire(kind: str, day: str) -> str:
    effect("hire", kind, day)
    return kind


@step
async def invite(couple: str, hall: str) -> None:
    effect("invite", couple, hall)


@workflow
async def caterer(guests: int, dessert: bool = True) -> str:
    cents = await menu(guests)
    await wait_signal("tasted")
    return await order_food(guests, cents + 5 * dessert)


@workflow
async def music(day: str) -> str:
    async with lock("stage"):
        return await hire("band", day)


@workflow
async def wedding(couple: str, day: str, guests: int) -> list[str]:
    async with saga() as undo:
        async with lock(f"hall:{day}"):
            hall = await book_hall(day)
            undo.compensate(cancel_hall, hall)
        food, band = await asyncio.gather(caterer(guests), music(day))
        undo.compensate(return_food, food)
        await wait_signal("yes")
        await invite(couple, hall)
    return [hall, food, band]
