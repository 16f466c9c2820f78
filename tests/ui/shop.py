"""Programs whose runs show everything that the dashboard can show."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from perdure import (
    Invocation,
    Program,
    Queue,
    Retry,
    approval,
    child,
    lock,
    now,
    set_state,
    sleep,
    step,
    step_context,
    wait_signal,
    workflow,
)
from perdure.graph import END, Graph, node, route

CUSTOMERS = ["ann", "bob", "cid", "dora", "emil", "fay", "gus", "hedda"]
LONG = timedelta(days=30)
BIG = 9007199254740993  # no double holds it
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\u202ereversed"


@dataclass
class Order:
    """What a customer wants."""

    customer: str
    items: list[str]
    cents: int = 1999
    # How often the card is refused before it is charged.
    refusals: int = 0


@dataclass
class Decision:
    """What a person says about an order."""

    approve: bool
    discount: int = 0
    carrier: Literal["post", "courier", "pickup"] = "post"
    note: str | None = None


@step(retry=Retry(attempts=5, initial=4, factor=3, jitter=False), record_inputs=True)
async def charge(customer: str, cents: int, refusals: int = 0) -> dict[str, Any]:
    await asyncio.sleep(0.8)
    attempt = step_context().attempt
    if attempt <= refusals:
        raise ConnectionError(f"the bank closed the connection ({attempt})")
    return {"payment": BIG, "cents": cents, "customer": customer}


@step
async def reserve(item: str) -> str:
    await asyncio.sleep(0.3 + len(item) / 20)
    return f"{item}@shelf-{len(item)}"


@step
async def ship(address: str, parcels: list[str], carrier: str) -> dict[str, Any]:
    await asyncio.sleep(1.2)
    return {"tracking": f"1Z{abs(len(address)) * 7919}", "parcels": len(parcels), "carrier": carrier}


@workflow
async def pack(items: list[str]) -> list[str]:
    return list(await asyncio.gather(*(reserve(item) for item in items)))


@workflow(version="3")
async def fulfil(order: Order) -> dict[str, Any]:
    """Charge, pack, ask, wait a day, ship."""
    set_state("phase", "charging")
    payment = await charge(order.customer, order.cents, order.refusals)
    set_state("phase", "packing")
    parcels = await child(pack(order.items))
    if order.cents > 10_000:
        set_state("phase", "asking")
        decision = await approval(
            "ship", {"customer": order.customer, "payment": payment}, schema=Decision, timeout=timedelta(days=3)
        )
        carrier = decision.carrier if decision.approve else "pickup"
    else:
        carrier = "post"
    async with lock(f"dock:{carrier}", ttl=60):
        await sleep(timedelta(minutes=20))
    set_state("phase", "shipping")
    return await ship(order.customer, parcels, carrier)


@step
async def parse(line: int) -> int:
    await asyncio.sleep(0.05 + line % 7 / 50)
    return line * 2


@workflow
async def nightly(lines: int) -> int:
    """A fan-out that is too wide to be shown op by op."""
    total = 0
    for start in range(0, lines, 50):
        total += sum(await asyncio.gather(*(parse(n) for n in range(start, min(start + 50, lines)))))
    return total


@step
async def write_words(topic: str) -> str:
    said = [f"{word} " for word in f"A word about {topic}: it lasts by being the sum of its moments.".split()]
    for word in said:
        step_context().emit(word)
        await asyncio.sleep(0.2)
    return "".join(said).strip()


@workflow
async def chat(topic: str) -> str:
    answer = await write_words(topic)
    return await wait_signal("thanks", timeout=timedelta(days=1), type=str) + answer


class OutOfStock(Exception):
    """There is none left."""


@step
async def settle(account: str) -> None:
    await asyncio.sleep(0.2)
    try:
        raise KeyError(account)
    except KeyError as error:
        raise OutOfStock(HOSTILE) from error


@workflow
async def close_books(accounts: list[str]) -> None:
    async with asyncio.TaskGroup() as group:
        for account in accounts:
            group.create_task(settle(account))


@step(queue="emails")
async def send_mail(to: str) -> str:
    await asyncio.sleep(0.4)
    return f"sent to {to}"


@workflow
async def newsletter(to: str) -> str:
    at = now()
    return f"{await send_mail(to)} at {at:%H:%M}"


@workflow
async def hostile(value: Any) -> Any:
    set_state(HOSTILE, value)
    return await approval("sure", {"<b>": value})


@workflow
async def naps(length: timedelta) -> str:
    await reserve("pillow")
    await sleep(length)
    return await reserve("coffee")


@workflow
async def echo(value: Any) -> Any:
    return value


@workflow
async def forever(n: int) -> None:
    await wait_signal("stop")


@workflow
async def guard(dock: str) -> None:
    async with lock(f"dock:{dock}", ttl=60):
        await wait_signal("leave")


# --- a run that was recorded with other code --------------------------------------------------------------------------


@step
async def fetch_rates(currency: str) -> float:
    return 1.07


@step
async def convert(cents: int) -> int:
    return cents * 2


def invoices(changed: bool) -> Program:
    """The workflow `invoice` as it was, or as it has been changed since."""
    if changed:

        @workflow
        async def invoice(cents: int) -> int:
            rate = await fetch_rates("EUR")
            await wait_signal("go")
            return await convert(int(cents * rate))

    else:

        @workflow
        async def invoice(cents: int) -> int:
            total = await convert(cents)
            await wait_signal("go")
            return total

    return invoice


# --- a graph ----------------------------------------------------------------------------------------------------------


@node
async def classify(text: str) -> str:
    await asyncio.sleep(0.3)
    return "question" if text.endswith("?") else "complaint" if "!" in text else "spam"


@node(outputs="docs")
async def retrieve(text: str, k: int = 3) -> list[str]:
    await asyncio.sleep(0.5)
    return [f"doc {n} about {text}" for n in range(k)]


@node(outputs="reply")
async def answer(text: str, docs: list[str]) -> str:
    await asyncio.sleep(0.9)
    return f"{text} See {', '.join(docs)}"


@node(outputs="reply")
async def apologise(text: str) -> str:
    return f"We are sorry about {text}"


@route(targets=["retrieve", "apologise", END])
def by_kind(classify: str) -> object:
    return {"question": "retrieve", "complaint": "apologise"}.get(classify, END)


@node
async def send(reply: str) -> str:
    await asyncio.sleep(0.2)
    return f"sent: {reply}"


desk = Graph([classify, by_kind, retrieve, answer, apologise, send], name="desk")

PROGRAMS: list[Program] = [
    fulfil,
    pack,
    nightly,
    chat,
    close_books,
    newsletter,
    hostile,
    naps,
    echo,
    forever,
    guard,
    desk,
]
QUEUES = [Queue("emails", concurrency=2), Queue("orders", concurrency=1, per_key=1)]


def order(customer: str, cents: int = 1999, refusals: int = 0, items: int = 3) -> Invocation[dict[str, Any]]:
    """A call of `fulfil`."""
    goods = ["lamp", "teapot", "bicycle bell", "blue umbrella", "chess clock"]
    return fulfil(Order(customer, [goods[n % len(goods)] for n in range(items)], cents, refusals))
