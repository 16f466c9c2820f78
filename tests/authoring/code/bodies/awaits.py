# mypy: disable-error-code="unused-coroutine,unused-awaitable,truthy-bool,comparison-overlap,return-value,misc"
"""Ops that are called and not awaited."""

import asyncio
from datetime import UTC, datetime

import perdure
from perdure import child, sleep, sleep_until, step, step_inline, wait_signal, workflow
from perdure.flow import load_flow
from perdure.graph import Graph


@step
async def charge(cents: int) -> int:
    return cents


@step(timeout=5)
def ship(order: str) -> None: ...


@workflow
async def refund(order: str) -> None:
    await charge(-1)


async def helper() -> int:
    charge(2)  # expect: await
    return await charge(3)


def plain(order: str):  # type: ignore[no-untyped-def]
    return charge(4)  # the caller awaits it


@workflow
async def forgets(order: str) -> int:
    charge(1)  # expect: await
    ship(order)  # expect: await
    ship.options(timeout=1)(order)  # expect: await
    refund(order)  # expect: await
    child(refund(order))  # expect: await
    helper()  # expect: await
    sleep(5)  # expect: await
    perdure.sleep(5)  # expect: await
    sleep_until(datetime(2030, 1, 1, tzinfo=UTC))  # expect: await
    wait_signal("go")  # expect: await
    step_inline("roll", lambda: 4)  # expect: await
    asyncio.sleep(1)  # expect: await
    asyncio.gather(charge(1), charge(2))  # expect: await
    paid = charge(1)  # noqa: F841  # expect: await
    if charge(2):  # expect: await
        return 1
    told = f"{charge(3)}"  # expect: await
    if not charge(4) or charge(5) == 5:  # expect: await
        return len(told)
    return charge(6)  # expect: await


@workflow
async def forgets_all_of_them(orders: list[str]) -> list[int]:
    unread = [charge(n) for n in range(3)]  # noqa: F841  # expect: await
    {"a": charge(1)}  # expect: await
    if not orders:
        return {order: (1, charge(2)) for order in orders}  # expect: await
    return [charge(n) for n in range(3)]  # expect: await


@workflow
async def awaits(order: str) -> int:
    await charge(1)
    task = asyncio.create_task(helper())
    both = asyncio.gather(charge(1), charge(2))
    first = charge(3)
    later = [charge(n) for n in range(3)]
    _ = ship(order)
    async with asyncio.TaskGroup() as group:
        group.create_task(refund(order))
    await plain(order)
    await both
    await task
    await first
    charge(9)  # noqa: perdure
    return sum([await one for one in later])


send = step(plain)
send_later = step(timeout=5)(plain)
pipeline = Graph([ship], name="pipeline")
nightly = load_flow("nightly.yaml")


@workflow
async def made_by_calls(order: str) -> None:
    send(order)  # expect: await
    send_later(order)  # expect: await
    pipeline(order=order)  # expect: await
    nightly(order=order)  # expect: await
    await pipeline(order=order)
