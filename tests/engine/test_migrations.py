"""Values of types that have moved on while their runs were under way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from perdure import Engine, RunStatus, migrates, step, versioned, wait_signal, workflow
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, eventually, replay


def first_code() -> Any:
    """The code of the first deploy: a type without a version."""

    @dataclass
    class Order:
        number: int
        price: float

    class Payment(BaseModel):
        euros: float

    @step
    async def charge(order: Order) -> Payment:
        return Payment(euros=order.price)

    @step
    async def ship(order: Order, payment: Payment) -> str:
        return "never"

    @workflow(name="order")
    async def flow(order: Order) -> str:
        payment = await charge(order)
        await wait_signal("go")
        return await ship(order, payment)

    return flow(Order(7, 1.5))


def second_code(broken: bool = False) -> Any:
    """The second: both types have changed."""

    @versioned("2")
    @dataclass
    class Order:
        id: str
        cents: int

    @migrates(Order, from_="1")
    def with_cents(old: dict[str, Any]) -> dict[str, Any]:
        return {"id": str(old["number"]), "cents": round(old["cost" if broken else "price"] * 100)}

    @versioned("2")
    class Payment(BaseModel):
        cents: int

    @migrates(Payment, from_="1")
    def in_cents(old: dict[str, Any]) -> dict[str, Any]:
        return {"cents": round(old["euros"] * 100)}

    @step
    async def charge(order: Order) -> Payment:
        raise AssertionError("it was charged before")

    @step
    async def ship(order: Order, payment: Payment) -> str:
        return f"{order.id} for {order.cents} and {payment.cents}"

    @workflow(name="order")
    async def flow(order: Order) -> str:
        payment = await charge(order)
        await wait_signal("go")
        return await ship(order, payment)

    return flow(Order("", 0))


async def begun() -> tuple[MemoryStore, str]:
    store, invocation = MemoryStore(), first_code()
    async with Engine(store, [invocation.program], recovery=AT_ONCE) as engine:
        handle = await engine.start(invocation, id="it")
        await eventually(lambda: store.journal.rows[handle.run_id].status is RunStatus.WAITING)
    return store, handle.run_id


async def test_a_run_goes_on_with_values_of_today() -> None:
    store, run_id = await begun()
    invocation = second_code()
    async with Engine(store, [invocation.program], recovery=AT_ONCE) as engine:
        _ = await engine.signal("it", "go")
        assert await (await engine.start(invocation, id="it")).result(PATIENCE) == "7 for 150 and 150"
    await replay(invocation.program, run_id, store)


async def test_a_migration_that_fails_parks_the_run_and_a_mended_one_lets_it_go_on() -> None:
    store, run_id = await begun()
    async with Engine(store, [second_code(broken=True).program], recovery=AT_ONCE) as engine:
        _ = await engine.signal("it", "go")
        await eventually(lambda: store.journal.rows[run_id].status is RunStatus.PARKED)
        view = await engine.get("it")
    assert view is not None
    assert "the argument order of order cannot be read" in view.reason
    assert "the migration" in view.reason
    assert "from version 1 of" in view.reason
    assert "KeyError: 'cost'" in view.reason
    invocation = second_code()
    async with Engine(store, [invocation.program], recovery=AT_ONCE) as engine:
        assert await (await engine.start(invocation, id="it")).result(PATIENCE) == "7 for 150 and 150"
