"""The steps of `line_programs`: in a file of their own, since a replay does not execute them."""

from __future__ import annotations

from perdure import Retry, step, step_context


@step
async def double(number: int) -> int:
    return number * 2


@step
def half(number: int) -> int:
    return number // 2


@step(retry=Retry(attempts=3, initial=0.001))
async def flaky(fails: int) -> int:
    if step_context().attempt <= fails:
        raise ConnectionError("not yet")
    return fails


@step
async def broken() -> None:
    raise ValueError("no")


@step
async def undo(what: str) -> str:
    return f"undone {what}"
