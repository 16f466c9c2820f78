"""Twenty workflows of every shape that Python has. A test compares the lines that they execute."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from perdure import (
    ApprovalRejected,
    Program,
    SignalTimeout,
    approval,
    child,
    now,
    patched,
    random,
    saga,
    set_state,
    sleep,
    wait_signal,
    workflow,
)
from tests.server.line_steps import broken, double, flaky, half, undo


@workflow
async def branches(number: int) -> str:
    if await double(number) > 10:
        return "large"
    elif number > 3:
        return "middle"
    else:
        small = "small"
    return small


@workflow
async def nested_loops(count: int) -> int:
    total = 0
    for outer in range(count):
        for inner in range(outer):
            if inner == 2:
                continue
            total += await double(inner)
        else:
            total += 1
        while total > 20:
            total = await half(total)
            if total % 2:
                break
    return total


@workflow
async def comprehensions(count: int) -> Any:
    squares = [n * n for n in range(count) if n % 2]
    doubled = [await double(n) for n in squares]
    by_size = {str(n): n for n in doubled}
    return [by_size, sorted({n % 3 for n in doubled}), sum(n for n in doubled)]


@workflow
async def errors(fails: bool) -> str:
    said = []
    try:
        if fails:
            await broken()
        else:
            said.append("fine")
    except ValueError as error:
        said.append(type(error).__name__)
    except KeyError:
        said.append("never")
    else:
        said.append("else")
    finally:
        await double(1)
        said.append("finally")
    return " ".join(said)


@workflow
async def raised_again() -> None:
    try:
        await broken()
    except Exception as error:
        await double(1)
        raise RuntimeError("worse") from error


@workflow
async def retried() -> int:
    first = await flaky(0)
    second = await flaky(2)
    return first + second


async def one(number: int) -> int:
    if number == 1:
        await sleep(0.001)
    found = await double(number)
    return found + 0


@workflow
async def gathered(count: int) -> list[int]:
    return list(await asyncio.gather(*(one(number) for number in range(count))))


@workflow
async def task_group(count: int) -> int:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(number)) for number in range(count)]
    return sum(task.result() for task in tasks)


@workflow
async def cancelled_task() -> str:
    task = asyncio.create_task(one(1))
    waiting = asyncio.create_task(wait_signal("never"))
    await task
    waiting.cancel()
    try:
        await waiting
    except asyncio.CancelledError:
        return "cancelled"
    return "not"


@workflow
async def timed_out() -> str:
    try:
        async with asyncio.timeout(0.005):
            await wait_signal("never")
    except TimeoutError:
        with suppress(SignalTimeout):
            await wait_signal("never", timeout=0.005)
            return "signal"
    return "late"


@asynccontextmanager
async def around(name: str) -> AsyncIterator[str]:
    await double(1)
    try:
        yield name.upper()
    finally:
        await half(2)


@contextmanager
def within(said: list[str]) -> Iterator[None]:
    said.append("in")
    yield
    said.append("out")


@workflow
async def contexts() -> list[str]:
    said: list[str] = []
    async with around("a") as name:
        with within(said):
            said.append(name)
    return said


async def counting(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield await double(number)


def halves(number: int) -> Iterator[int]:
    while number:
        yield number
        number //= 2


@workflow
async def generators(count: int) -> list[int]:
    found = []
    async for number in counting(count):
        found.append(number)
    found.extend(halves(count))
    return found


@workflow
async def matching(values: list[Any]) -> list[str]:
    found = []
    for value in values:
        match value:
            case {"kind": "a", "n": int(n)} if n > 1:
                found.append(f"a{await double(n)}")
            case {"kind": kind}:
                found.append(str(kind))
            case [first, *_]:
                found.append(f"list of {first}")
            case _:
                found.append("other")
    return found


async def down(number: int) -> int:
    if number <= 0:
        return 0
    return await double(number) + await down(number - 1)


@workflow
async def recursive(depth: int) -> int:
    def shifted(value: int) -> int:
        return value + depth

    return shifted(await down(depth))


@workflow
async def inner(number: int) -> int:
    if number > 1:
        set_state("large", True)
    return await double(number)


@workflow
async def parent(count: int) -> int:
    total = 0
    for number in range(count):
        total += await child(inner(number))
    return total


@workflow
async def saved() -> str:
    try:
        async with saga() as s:
            for what in ("a", "b"):
                await double(1)
                s.compensate(undo, what)
            await broken()
    except ValueError:
        return "undone"
    return "done"


@workflow
async def values() -> bool:
    began = now()
    drawn = random()
    await sleep(0.001)
    # fmt: off
    return (
        (now() >= began)
        and (0 <= drawn < 1)
        and (await double(1) == 3)
    )
    # fmt: on


@workflow
async def patches() -> int:
    if patched("twice"):
        total = await double(1)
    else:
        total = 0
    lines: Callable[[int], int] = lambda n: n + total  # noqa: E731
    return lines(
        await half(
            8,
        )
    )


@workflow
async def asked() -> str:
    answers = []
    for name in ("first", "second"):
        try:
            answers.append(await approval(name))
        except ApprovalRejected:
            answers.append("no")
    return " ".join(map(str, answers))


@workflow
async def walrus(limit: int) -> int:
    number, total = 0, 0
    while (found := await double(number)) < limit:
        number += 1
        total += found if found % 4 else -found
        assert total < 1000, "too much"
    del number
    return total


class Account:
    """Methods of classes are lines of the program, too."""

    def __init__(self, cents: int) -> None:
        self._cents = cents

    @property
    def cents(self) -> int:
        return self._cents

    async def add(self, cents: int) -> Account:
        if cents < 0:
            raise ValueError(cents)
        self._cents += await double(cents)
        return self


@workflow
async def methods() -> int:
    account = Account(1)
    await (await account.add(2)).add(3)
    with suppress(ValueError):
        await account.add(-1)
    return account.cents


# By name: what is executed.
CALLS: dict[str, Any] = {
    "branches, small": branches(1),
    "branches, middle": branches(5),
    "branches, large": branches(6),
    "nested loops": nested_loops(7),
    "comprehensions": comprehensions(6),
    "no error": errors(False),
    "an error": errors(True),
    "an error that is raised again": raised_again(),
    "retries": retried(),
    "gather": gathered(3),
    "a task group": task_group(3),
    "a cancelled task": cancelled_task(),
    "timeouts": timed_out(),
    "context managers": contexts(),
    "generators": generators(4),
    "match": matching([{"kind": "a", "n": 2}, {"kind": "a", "n": 1}, [1, 2], 7]),
    "recursion": recursive(4),
    "children": parent(3),
    "a saga": saved(),
    "recorded values": values(),
    "patches": patches(),
    "approvals": asked(),
    "assignment expressions": walrus(20),
    "methods": methods(),
}
PROGRAMS: list[Program] = [
    branches,
    nested_loops,
    comprehensions,
    errors,
    raised_again,
    retried,
    gathered,
    task_group,
    cancelled_task,
    timed_out,
    contexts,
    generators,
    matching,
    recursive,
    inner,
    parent,
    saved,
    values,
    patches,
    asked,
    walrus,
    methods,
]
