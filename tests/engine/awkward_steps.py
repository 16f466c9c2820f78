"""Steps that raise what is hard to pass on, where other processes can find them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any

from perdure import Retry, step, step_inline, workflow
from tests.kernel.awkward import AWKWARD

# Exceptions that Python itself treats apart, besides those of the tests of failures.
KINDS = [*AWKWARD, "cancelled", "own base"]


class Own(BaseException):
    """A user's own that is no Exception."""


def make(kind: str) -> BaseException:
    """What to raise."""
    if kind == "cancelled":
        return asyncio.CancelledError("from within")
    return Own("own") if kind == "own base" else AWKWARD[kind]()


@step
async def on_the_loop(kind: str) -> int:
    raise make(kind)


@step
def in_a_thread(kind: str) -> int:
    raise make(kind)


@step
async def yielding(kind: str) -> AsyncIterator[int]:
    yield 1
    raise make(kind)


@step
def yielding_in_a_thread(kind: str) -> Iterator[int]:
    yield 1
    raise make(kind)


@step(cpu=True)
def in_a_process(kind: str) -> int:
    raise make(kind)


@step(queue="elsewhere")
async def in_a_queue(kind: str) -> int:
    raise make(kind)


@step(retry=Retry(attempts=2, initial=0))
async def again_and_again(kind: str) -> int:
    raise make(kind)


async def plain(kind: str) -> int:
    raise make(kind)


@workflow
async def body(kind: str) -> int:
    raise make(kind)


def call(where: str, kind: str) -> Awaitable[Any]:
    """Have it raised there."""
    if where == "inline":
        return step_inline("inline", lambda: plain(kind))
    if where == "child":
        return body(kind)
    found: Awaitable[Any] = STEPS[where](kind)
    return found


STEPS: dict[str, Any] = {
    one.name: one
    for one in (on_the_loop, in_a_thread, yielding, yielding_in_a_thread, in_a_process, in_a_queue, again_and_again)
}
WHERE = [*STEPS, "inline", "child"]


@workflow
async def caught(where: str, kind: str) -> str:
    """Catch it, and say what it was."""
    try:
        await call(where, kind)
    except Exception as error:
        return type(error).__name__
    return "nothing was raised"


@workflow
async def escaped(where: str, kind: str) -> None:
    """Do not catch it."""
    await call(where, kind)


@workflow
async def good() -> str:
    """A run beside those."""
    return "good"
