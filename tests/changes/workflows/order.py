"""An order: reserve, pay, pack, ship; undone when the courier does not come."""

from dataclasses import dataclass

from perdure import saga, set_state, step, wait_signal, workflow
from tests.changes.ledger import effect


@dataclass
class Item:
    sku: str
    quantity: int


class CourierAway(Exception):
    pass


@step
async def reserve(order_id: str, items: list[Item]) -> str:
    effect("reserve", order_id, [(item.sku, item.quantity) for item in items])
    return f"hold-{order_id}"


@step
async def release(hold: str) -> None:
    effect("release", hold)


@step
async def charge(order_id: str, cents: int, currency: str = "EUR") -> str:
    effect("charge", order_id, cents, currency)
    return f"pay-{order_id}-{cents}"


@step
async def refund(payment: str) -> None:
    effect("refund", payment)


@step
async def heavy_label(order_id: str) -> None:
    effect("heavy label", order_id)


@step
async def label(order_id: str, boxes: int) -> None:
    effect("label", order_id, boxes)


@step
async def ship(order_id: str, hold: str) -> str:
    if order_id == "far-away":
        raise CourierAway(order_id)
    effect("ship", order_id, hold)
    return f"parcel-{order_id}"


@step
async def mail(order_id: str, text: str) -> None:
    effect("mail", order_id, text)


@workflow
async def fulfil(order_id: str, items: list[Item], cents: int = 5, tip: int = 0) -> str:
    set_state("phase", "begun")
    async with saga() as undo:
        hold = await reserve(order_id, items)
        undo.compensate(release, hold)
        payment = await charge(order_id, cents + tip)
        undo.compensate(refund, payment)
        boxes = await wait_signal("packed", type=int)
        if boxes > 2:
            await heavy_label(order_id)
        else:
            await label(order_id, boxes)
        parcel = await ship(order_id, hold)
    set_state("phase", "shipped")
    await mail(order_id, f"{parcel} is on its way")
    return parcel
