"""What the mutated workflows are made of: steps that say when they are executed, and children."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from perdure import (
    approval,
    checkpoint,
    child,
    lock,
    now,
    random,
    set_state,
    sleep,
    step,
    step_inline,
    uuid4,
    wait_signal,
    workflow,
)

__all__ = [
    "approval",
    "asyncio",
    "audit",
    "charge",
    "check",
    "checkpoint",
    "child",
    "invoice",
    "lock",
    "mail",
    "now",
    "pack",
    "random",
    "refund",
    "renamed_step",
    "resize",
    "set_state",
    "settle",
    "ship",
    "sleep",
    "step",
    "step_inline",
    "timedelta",
    "uuid4",
    "wait_signal",
    "workflow",
]

# Every execution of a step.
executed: list[str] = []


@step
async def charge(n: int = 0) -> int:
    executed.append("charge")
    return n


@step
async def ship(n: int = 0) -> int:
    executed.append("ship")
    return n


@step
async def mail(n: int = 0) -> int:
    executed.append("mail")
    return n


@step
async def audit(n: int = 0) -> int:
    executed.append("audit")
    return n


@step
async def refund(n: int = 0) -> int:
    executed.append("refund")
    return n


@step
async def resize(n: int = 0) -> int:
    executed.append("resize")
    return n


@step
async def check(n: int = 0) -> int:
    executed.append("check")
    return n


@step
async def pack(n: int = 0) -> int:
    executed.append("pack")
    return n


@step
async def renamed_step(n: int = 0) -> int:
    executed.append("renamed_step")
    return n


@workflow
async def settle(n: int = 0) -> int:
    return await check(n) + 1


@workflow
async def invoice(n: int = 0) -> int:
    return await mail(n) + 2
