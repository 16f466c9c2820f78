"""What the server's tests run."""

from __future__ import annotations

from typing import Any

from perdure import Program, approval, set_state, step, step_context, wait_signal, workflow

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


PROGRAMS: list[Program] = [order, quick, long_text, waits, fails, streams]
