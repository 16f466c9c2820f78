"""Steps that other processes can find by name."""

from __future__ import annotations

import os
from dataclasses import dataclass

from perdure import RunContext, run_context, step, step_context, workflow


@dataclass
class Order:
    id: str
    cents: int


class Declined(Exception):
    """An exception that crosses the border of a process."""


@step(cpu=True)
def pid() -> int:
    return os.getpid()


@step(cpu=True)
def discount(order: Order, *, percent: int) -> Order:
    return Order(order.id, order.cents * (100 - percent) // 100)


@step(cpu=True)
def decline(why: str) -> None:
    raise Declined(why)


@step(cpu=True)
def context() -> list[str | int]:
    return [step_context().id, step_context().attempt]


@step
def pid_of_plain_step() -> int:
    return os.getpid()


@workflow
async def crunch() -> list[object]:
    seen: list[object] = [await pid(), await discount(Order("a", 200), percent=25), await context()]
    try:
        await decline("too dear")
    except Declined as error:
        seen.append(str(error))
    return seen


@workflow
async def plain() -> int:
    return await pid_of_plain_step()


@step(cpu=True)
def emitting() -> None:
    """Tries what works in the engine's own process only."""
    step_context().emit(1)


@step(cpu=True)
def beating() -> None:
    """Tries what works in the engine's own process only."""
    step_context().heartbeat()


@step(cpu=True)
def whose_run() -> RunContext:
    return run_context()
