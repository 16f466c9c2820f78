"""A trip: bookings are runs of their own, an invoice follows without being waited for."""

import asyncio

from perdure import child, step, wait_signal, workflow
from tests.changes.ledger import effect


@step
async def quote(city: str, nights: int) -> int:
    effect("quote", city, nights)
    return 100 * nights


@step
async def reserve_room(city: str, nights: int, cents: int) -> str:
    effect("reserve room", city, nights, cents)
    return f"room in {city}"


@step
async def buy_ticket(city: str, seat: str) -> str:
    effect("buy ticket", city, seat)
    return f"seat {seat} to {city}"


@step
async def insure(person: str, cents: int) -> str:
    effect("insure", person, cents)
    return f"insurance of {person}"


@step
async def post(person: str, text: str) -> None:
    effect("post", person, text)


@workflow
async def hotel(city: str, nights: int = 1, breakfast: bool = False) -> str:
    cents = await quote(city, nights)
    await wait_signal("rooms")
    return await reserve_room(city, nights, cents + 10 * breakfast)


@workflow
async def flight(city: str, seat: str) -> str:
    return await buy_ticket(city, seat)


@workflow
async def invoice(person: str, cents: int) -> None:
    await post(person, f"invoice over {cents}")


@workflow
async def trip(person: str, city: str, nights: int) -> list[str]:
    ticket = await flight(city, "12A")
    room, cover = await asyncio.gather(hotel(city, nights), insure(person, 30))
    await child(invoice(person, 400), id=f"invoice-{person}", detached=True)
    await post(person, f"{ticket}, {room}, {cover}")
    return [ticket, room, cover]
