"""The order of `perdure demo`, written as any workflow is. Nothing in it knows that it will be killed."""

from __future__ import annotations

from dataclasses import dataclass

from perdure import sleep, step, workflow


@dataclass
class Order:
    id: str
    item: str
    price: float


@dataclass
class Receipt:
    order: str
    payment: str
    parcel: str


@step
def reserve(order: Order) -> str:
    print(f"reserve: {order.item} set aside", flush=True)
    return f"shelf-{len(order.item)}"


@step
def charge(order: Order) -> str:
    print(f"charge: {order.price:.2f} taken from the card", flush=True)
    return f"payment-of-{order.id}"


@step
def ship(order: Order, shelf: str) -> str:
    print(f"ship: parcel from {shelf} handed over", flush=True)
    return f"parcel-of-{order.id}"


@workflow
async def fulfil(order: Order) -> Receipt:
    shelf = await reserve(order)
    payment = await charge(order)
    await sleep(0.1)  # durable: it could be a month
    parcel = await ship(order, shelf)
    return Receipt(order.id, payment, parcel)
