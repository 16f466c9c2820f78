"""What the server's tests run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perdure import Program, approval, child, set_state, step, step_context, wait_signal, workflow
from perdure.graph import END, Graph, node, route

BIG = 9007199254740993  # no double holds it


@step
async def charge(amount: int) -> int:
    return amount * 2


@step
async def text(length: int) -> str:
    return "x" * length


@step
async def refuse() -> None:
    raise ValueError("<script>no stock</script>")


@step
async def tokens(n: int) -> int:
    for number in range(n):
        step_context().emit(number)
    return n


@workflow
async def order(amount: int) -> Any:
    total = await charge(amount)
    set_state("phase", "asked")
    return await approval("ship", request={"total": total, "exact": BIG})


@workflow
async def signed() -> Any:
    return await approval("sign", approvers=["ann"])


@workflow
async def quick(amount: int) -> int:
    return await charge(amount)


@workflow
async def long_text(length: int) -> str:
    return await text(length)


@workflow
async def waits() -> Any:
    return await wait_signal("go")


@workflow
async def fails() -> None:
    await refuse()


@workflow
async def streams(n: int) -> int:
    return await tokens(n)


@workflow
async def looping(count: int) -> int:
    total = 0
    for number in range(count):
        total += await charge(number)
    return total


@dataclass
class Item:
    """Something that is sold."""

    name: str
    price: float


@workflow
async def shaped(item: Item, count: int = 2, *others: Item) -> float:
    return item.price * count + sum(other.price for other in others)


@node
def doubled(amount: int) -> int:
    return amount * 2


@route(targets=["small", "large"])
def by_size(doubled: int) -> str:
    return "large" if doubled > 10 else "small"


@node
def small(doubled: int) -> str:
    return "small"


@node
def large(doubled: int) -> str:
    return "large"


pipeline = Graph([doubled, by_size, small, large], name="pipeline")


@workflow
async def patient(seconds: float) -> Any:
    await charge(1)
    return await wait_signal("go", timeout=seconds)


@workflow
async def with_graph(amount: int) -> Any:
    return await child(pipeline(amount=amount))


@workflow
async def with_waiting_child() -> Any:
    return await child(waits())


@node(outputs="n")
def grow(n: int) -> int:
    return n + 1


@route(targets=[grow, END])
def goes_on(n: int) -> object:
    return grow if n < 3 else END


# Its loop has one round fewer than it needs.
rounds = Graph([grow, goes_on], name="rounds", loops=[grow], output="n", max_rounds=2)


PROGRAMS: list[Program] = [
    with_waiting_child,
    rounds,
    order,
    signed,
    quick,
    long_text,
    waits,
    fails,
    streams,
    looping,
    shaped,
    pipeline,
    patient,
    with_graph,
]
