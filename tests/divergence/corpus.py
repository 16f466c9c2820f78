"""Mutated workflows: the old code, the new code, and the expected explanation.

A text is the body of the workflow `order`, or a module that has one. `#!` marks the line that an explanation must name:
in `before` that of the recorded op at which the run no longer fits (`#!3`: the third one of that line), in `after` that
of what the code does instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent, indent

HEADER = "from tests.divergence.shop import *\n"
ORDER = '@workflow(name="order")\nasync def order(n: int = 7) -> int:\n'


@dataclass(frozen=True)
class Case:
    """A change. `change` is empty for a safe one."""

    name: str
    change: str
    before: str
    after: str

    @property
    def safe(self) -> bool:
        return not self.change


def module(text: str) -> str:
    """The whole text of a module."""
    text = dedent(text).strip("\n") + "\n"
    if "def order(" in text:
        return HEADER + text
    return HEADER + ORDER + indent(text + "await sleep(60)\nreturn n\n", "    ")


def marked(text: str) -> tuple[int, int]:
    """The number of the marked line in the module, 0 if none is, and which op of that line is meant."""
    for number, line in enumerate(module(text).splitlines(), 1):
        if "#!" in line:
            return number, int(line.rpartition("#!")[2] or "1")
    return 0, 1


PLAIN = """
    a = await charge(n)
    await ship(a)
    await mail(a)
"""


def plain(at: str) -> str:
    """The plain order with one of its lines marked."""
    lines = PLAIN.splitlines()
    return "\n".join(line + "  #!" if at in line else line for line in lines)


CASES: list[Case] = []


def unsafe(name: str, change: str, before: str, after: str) -> None:
    CASES.append(Case(name, change, before, after))


def safe(name: str, before: str, after: str) -> None:
    CASES.append(Case(name, "", before, after))


# --- inserted -------------------------------------------------------------------------------------------------------

unsafe(
    "a step before the first",
    "inserted",
    plain("charge"),
    """
    await audit(n)  #!
    a = await charge(n)
    await ship(a)
    await mail(a)
    """,
)
unsafe(
    "a step between two",
    "inserted",
    plain("ship"),
    """
    a = await charge(n)
    await audit(a)  #!
    await ship(a)
    await mail(a)
    """,
)
unsafe(
    "a sleep between two",
    "inserted",
    plain("ship"),
    """
    a = await charge(n)
    await sleep(5)  #!
    await ship(a)
    await mail(a)
    """,
)
unsafe(
    "a sleep of asyncio between two",
    "inserted",
    plain("mail"),
    """
    a = await charge(n)
    await ship(a)
    await asyncio.sleep(5)  #!
    await mail(a)
    """,
)
unsafe(
    "a child between two",
    "inserted",
    plain("mail"),
    """
    a = await charge(n)
    await ship(a)
    await settle(a)  #!
    await mail(a)
    """,
)
unsafe(
    "a wait for a signal between two",
    "inserted",
    plain("mail"),
    """
    a = await charge(n)
    await ship(a)
    await wait_signal("paid")  #!
    await mail(a)
    """,
)
unsafe(
    "an approval between two",
    "inserted",
    plain("ship"),
    """
    a = await charge(n)
    await approval("shipping")  #!
    await ship(a)
    await mail(a)
    """,
)
unsafe(
    "a lock around a step",
    "inserted",
    plain("ship"),
    """
    a = await charge(n)
    async with lock("stock"):  #!
        await ship(a)
    await mail(a)
    """,
)
unsafe(
    "a step in a helper",
    "inserted",
    """
    async def deliver(a):
        await ship(a)  #!

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        a = await charge(n)
        await deliver(a)
        await mail(a)
        await sleep(60)
        return a
    """,
    """
    async def deliver(a):
        await pack(a)  #!
        await ship(a)

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        a = await charge(n)
        await deliver(a)
        await mail(a)
        await sleep(60)
        return a
    """,
)
unsafe(
    "a step in a child",
    "inserted",
    """
    @workflow(name="paying")
    async def paying(n: int) -> int:
        a = await charge(n)
        await mail(a)  #!
        await sleep(600)
        return a

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        a = await paying(n)
        await sleep(60)
        return a
    """,
    """
    @workflow(name="paying")
    async def paying(n: int) -> int:
        a = await charge(n)
        await audit(a)  #!
        await mail(a)
        await sleep(600)
        return a

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        a = await paying(n)
        await sleep(60)
        return a
    """,
)
unsafe(
    "a step in a branch of a gather",
    "inserted",
    """
    async def paying(n):
        a = await charge(n)
        await mail(a)  #!
        return a

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        await asyncio.gather(paying(n), ship(n))
        await sleep(60)
        return n
    """,
    """
    async def paying(n):
        a = await charge(n)
        await audit(a)  #!
        await mail(a)
        return a

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        await asyncio.gather(paying(n), ship(n))
        await sleep(60)
        return n
    """,
)
unsafe(
    "a step in a loop",
    "inserted",
    """
    for i in range(3):
        await resize(i)
        await mail(i)  #!
    """,
    """
    for i in range(3):
        await resize(i)
        await audit(i)  #!
        await mail(i)
    """,
)
unsafe(
    "another step into a gather, before what follows it",
    "inserted",
    """
    await asyncio.gather(charge(n), ship(n))  #!
    await mail(n)  #!
    """,
    """
    await asyncio.gather(charge(n), ship(n), audit(n))  #!
    await mail(n)
    """,
)
unsafe(
    "a checkpoint between two",
    "inserted",
    plain("ship"),
    """
    a = await charge(n)
    await checkpoint()  #!
    await ship(a)
    await mail(a)
    """,
)

# --- removed --------------------------------------------------------------------------------------------------------

unsafe(
    "the first step",
    "removed",
    plain("charge"),
    """
    await ship(n)  #!
    await mail(n)
    """,
)
unsafe(
    "a step in the middle",
    "removed",
    plain("ship"),
    """
    a = await charge(n)
    await mail(a)  #!
    """,
)
unsafe(
    "the last step",
    "removed",
    plain("mail"),
    """
    a = await charge(n)
    await ship(a)
    await sleep(60)  #!
    return n
    """,
)
unsafe(
    "a sleep",
    "removed",
    """
    a = await charge(n)
    await asyncio.sleep(5)  #!
    await ship(a)
    """,
    """
    a = await charge(n)
    await ship(a)  #!
    """,
)
unsafe(
    "a signal",
    "removed",
    """
    a = await charge(n)
    await wait_signal("paid")  #!
    await ship(a)
    """,
    """
    a = await charge(n)
    await ship(a)  #!
    """,
)
unsafe(
    "a child",
    "removed",
    """
    a = await charge(n)
    await settle(a)  #!
    await ship(a)
    """,
    """
    a = await charge(n)
    await ship(a)  #!
    """,
)
unsafe(
    "everything after a step",
    "removed",
    """
    @workflow(name="order")
    async def order(n: int = 7) -> int:
        a = await charge(n)
        await ship(a)  #!
        await sleep(60)
        return a
    """,
    """
    @workflow(name="order")
    async def order(n: int = 7) -> int:
        a = await charge(n)
        return a
    """,
)
unsafe(
    "one of several calls of a step",
    "removed",
    """
    await charge(1)
    await mail(1)  #!
    await ship(2)
    await mail(2)
    """,
    """
    await charge(1)
    await ship(2)  #!
    await mail(2)
    """,
)
unsafe(
    "the first of two calls of a step with other inputs",
    "removed",
    """
    await charge(1)  #!
    await charge(2)
    await ship(3)
    """,
    """
    await charge(2)  #!
    await ship(3)
    """,
)
unsafe(
    "now()",
    "removed",
    """
    a = await charge(n)
    now()  #!
    await ship(a)
    """,
    """
    a = await charge(n)
    await ship(a)  #!
    """,
)
unsafe(
    "a step of a gather",
    "removed",
    """
    await asyncio.gather(
        charge(n),
        ship(n),
        audit(n),  #!
    )
    await mail(n)
    """,
    """
    await asyncio.gather(
        charge(n),
        ship(n),
    )
    await mail(n)
    """,
)
unsafe(
    "an exception before a step",
    "raised",
    """
    @workflow(name="order")
    async def order(n: int = 7) -> int:
        a = await charge(n)
        await ship(a)  #!
        await sleep(60)
        return a
    """,
    """
    @workflow(name="order")
    async def order(n: int = 7) -> int:
        a = await charge(n)
        raise RuntimeError("not yet")  #!
        await ship(a)
        await sleep(60)
        return a
    """,
)
unsafe(
    "a step in a child",
    "removed",
    """
    @workflow(name="paying")
    async def paying(n: int) -> int:
        a = await charge(n)
        await audit(a)  #!
        await mail(a)
        await sleep(600)
        return a

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        return await paying(n)
    """,
    """
    @workflow(name="paying")
    async def paying(n: int) -> int:
        a = await charge(n)
        await mail(a)  #!
        await sleep(600)
        return a

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        return await paying(n)
    """,
)
unsafe(
    "a lock",
    "removed",
    """
    a = await charge(n)
    async with lock("stock"):  #!
        await ship(a)
    await mail(a)
    """,
    """
    a = await charge(n)
    await ship(a)  #!
    await mail(a)
    """,
)

# --- renamed --------------------------------------------------------------------------------------------------------

unsafe(
    "a step",
    "renamed",
    plain("ship"),
    """
    a = await charge(n)
    await pack(a)  #!
    await mail(a)
    """,
)
unsafe(
    "the first step",
    "renamed",
    plain("charge"),
    """
    a = await audit(n)  #!
    await ship(a)
    await mail(a)
    """,
)
unsafe(
    "the name given to a step",
    "renamed",
    """
    await charge(n)
    await step_inline("weigh", abs, n)  #!
    await ship(n)
    """,
    """
    await charge(n)
    await step_inline("measure", abs, n)  #!
    await ship(n)
    """,
)
unsafe(
    "a signal",
    "renamed",
    """
    await charge(n)
    await wait_signal("paid")  #!
    await ship(n)
    """,
    """
    await charge(n)
    await wait_signal("settled")  #!
    await ship(n)
    """,
)
unsafe(
    "an approval",
    "renamed",
    """
    await charge(n)
    await approval("shipping")  #!
    await ship(n)
    """,
    """
    await charge(n)
    await approval("sending")  #!
    await ship(n)
    """,
)
unsafe(
    "a child",
    "renamed",
    """
    await charge(n)
    await settle(n)  #!
    await ship(n)
    """,
    """
    await charge(n)
    await invoice(n)  #!
    await ship(n)
    """,
)
unsafe(
    "the function of a task",
    "renamed",
    """
    async def paying(n):
        return await charge(n)  #!

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        async with asyncio.TaskGroup() as group:
            group.create_task(paying(n))
        await sleep(60)
        return n
    """,
    """
    async def settling(n):
        return await charge(n)  #!

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        async with asyncio.TaskGroup() as group:
            group.create_task(settling(n))
        await sleep(60)
        return n
    """,
)
unsafe(
    "a step in a branch of a gather",
    "renamed",
    """
    await asyncio.gather(
        charge(n),
        ship(n),  #!
    )
    await mail(n)
    """,
    """
    await asyncio.gather(
        charge(n),
        pack(n),  #!
    )
    await mail(n)
    """,
)
unsafe(
    "a step in a loop",
    "renamed",
    """
    for i in range(3):
        await resize(i)  #!
    await mail(n)
    """,
    """
    for i in range(3):
        await pack(i)  #!
    await mail(n)
    """,
)

# --- reordered ------------------------------------------------------------------------------------------------------

unsafe(
    "two steps",
    "reordered",
    """
    a = await charge(n)
    await ship(n)  #!
    await mail(n)
    """,
    """
    a = await charge(n)
    await mail(n)  #!
    await ship(n)
    """,
)
unsafe(
    "a step and a sleep",
    "reordered",
    """
    await charge(n)
    await asyncio.sleep(5)  #!
    await ship(n)
    """,
    """
    await charge(n)
    await ship(n)  #!
    await asyncio.sleep(5)
    """,
)
unsafe(
    "the last step comes first",
    "reordered",
    """
    await charge(n)  #!
    await ship(n)
    await mail(n)
    """,
    """
    await mail(n)  #!
    await charge(n)
    await ship(n)
    """,
)
unsafe(
    "two calls of one step",
    "reordered",
    """
    await charge(1)  #!
    await charge(2)
    await ship(n)
    """,
    """
    await charge(2)  #!
    await charge(1)
    await ship(n)
    """,
)
unsafe(
    "a step and a child",
    "reordered",
    """
    await charge(n)
    await settle(n)  #!
    await ship(n)
    """,
    """
    await charge(n)
    await ship(n)  #!
    await settle(n)
    """,
)
unsafe(
    "a signal and a step",
    "reordered",
    """
    await charge(n)
    await wait_signal("paid")  #!
    await ship(n)
    """,
    """
    await charge(n)
    await ship(n)  #!
    await wait_signal("paid")
    """,
)
unsafe(
    "two steps in a task",
    "reordered",
    """
    async def paying(n):
        await charge(n)  #!
        await mail(n)

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        async with asyncio.TaskGroup() as group:
            group.create_task(paying(n))
            group.create_task(paying(n + 1))
        await sleep(60)
        return n
    """,
    """
    async def paying(n):
        await mail(n)  #!
        await charge(n)

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        async with asyncio.TaskGroup() as group:
            group.create_task(paying(n))
            group.create_task(paying(n + 1))
        await sleep(60)
        return n
    """,
)
unsafe(
    "two calls of one step in a gather",
    "reordered",
    """
    await asyncio.gather(
        charge(1),  #!
        charge(2),
    )
    await ship(n)
    """,
    """
    await asyncio.gather(
        charge(2),  #!
        charge(1),
    )
    await ship(n)
    """,
)

# --- inputs ---------------------------------------------------------------------------------------------------------

unsafe(
    "a constant",
    "inputs",
    """
    await charge(1)
    await ship(10)  #!
    await mail(n)
    """,
    """
    await charge(1)
    await ship(20)  #!
    await mail(n)
    """,
)
unsafe(
    "an expression",
    "inputs",
    """
    a = await charge(n)
    await ship(a + 1)  #!
    await mail(a)
    """,
    """
    a = await charge(n)
    await ship(a * 2)  #!
    await mail(a)
    """,
)
unsafe(
    "a constant of the module",
    "inputs",
    """
    PRICE = 10

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        a = await charge(PRICE)  #!
        await sleep(60)
        return a
    """,
    """
    PRICE = 12

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        a = await charge(PRICE)  #!
        await sleep(60)
        return a
    """,
)
unsafe(
    "the arguments of a child",
    "inputs",
    """
    await charge(n)
    await settle(n)  #!
    await ship(n)
    """,
    """
    await charge(n)
    await settle(n + 1)  #!
    await ship(n)
    """,
)
unsafe(
    "the id of a child",
    "inputs",
    """
    await charge(n)
    await child(settle(n), id="one")  #!
    await ship(n)
    """,
    """
    await charge(n)
    await child(settle(n), id="two")  #!
    await ship(n)
    """,
)
unsafe(
    "the key of a lock",
    "inputs",
    """
    await charge(n)
    async with lock("stock"):  #!
        await ship(n)
    """,
    """
    await charge(n)
    async with lock("warehouse"):  #!
        await ship(n)
    """,
)
unsafe(
    "what a loop goes over",
    "inputs",
    """
    for i in (1, 2, 3):
        await resize(i)  #!
    await mail(n)
    """,
    """
    for i in (10, 20, 30):
        await resize(i)  #!
    await mail(n)
    """,
)
unsafe(
    "an input in a gather",
    "inputs",
    """
    await asyncio.gather(charge(1), ship(2))  #!
    await mail(n)
    """,
    """
    await asyncio.gather(charge(5), ship(2))  #!
    await mail(n)
    """,
)

# --- type -----------------------------------------------------------------------------------------------------------

unsafe(
    "a step becomes a sleep",
    "type",
    """
    await charge(n)
    await ship(n)  #!
    await mail(n)
    """,
    """
    await charge(n)
    await asyncio.sleep(5)  #!
    await mail(n)
    """,
)
unsafe(
    "a sleep becomes a step",
    "type",
    """
    await charge(n)
    await asyncio.sleep(5)  #!
    await mail(n)
    """,
    """
    await charge(n)
    await ship(n)  #!
    await mail(n)
    """,
)
unsafe(
    "a step becomes a child",
    "type",
    """
    await charge(n)
    await ship(n)  #!
    await mail(n)
    """,
    """
    await charge(n)
    await settle(n)  #!
    await mail(n)
    """,
)
unsafe(
    "a step becomes a child of the same name",
    "type",
    """
    @step
    async def paying(n: int) -> int:
        return n

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        await paying(n)  #!
        await sleep(60)
        return n
    """,
    """
    @workflow
    async def paying(n: int) -> int:
        return n

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        await paying(n)  #!
        await sleep(60)
        return n
    """,
)
unsafe(
    "a child becomes a step",
    "type",
    """
    await charge(n)
    await settle(n)  #!
    await mail(n)
    """,
    """
    await charge(n)
    await pack(n)  #!
    await mail(n)
    """,
)
unsafe(
    "a signal becomes an approval",
    "type",
    """
    await charge(n)
    await wait_signal("paid")  #!
    await mail(n)
    """,
    """
    await charge(n)
    await approval("paid")  #!
    await mail(n)
    """,
)
unsafe(
    "a child is detached",
    "type",
    """
    await charge(n)
    await settle(n)  #!
    await mail(n)
    """,
    """
    await charge(n)
    await child(settle(n), detached=True)  #!
    await mail(n)
    """,
)
unsafe(
    "a signal becomes a sleep",
    "type",
    """
    await charge(n)
    await wait_signal("paid")  #!
    await mail(n)
    """,
    """
    await charge(n)
    await asyncio.sleep(5)  #!
    await mail(n)
    """,
)

# --- fewer and more -------------------------------------------------------------------------------------------------

unsafe(
    "a shorter loop",
    "fewer",
    """
    for i in range(5):
        await resize(i)  #!3
    await mail(n)
    """,
    """
    for i in range(2):
        await resize(i)
    await mail(n)  #!
    """,
)
unsafe(
    "a longer loop",
    "more",
    """
    for i in range(2):
        await resize(i)
    await mail(n)  #!
    """,
    """
    for i in range(5):
        await resize(i)  #!
    await mail(n)
    """,
)
unsafe(
    "fewer in a gather",
    "fewer",
    """
    await asyncio.gather(*(resize(i) for i in range(4)))  #!3
    await mail(n)
    """,
    """
    await asyncio.gather(*(resize(i) for i in range(2)))
    await mail(n)
    """,
)
unsafe(
    "more in a gather",
    "more",
    """
    await asyncio.gather(*(resize(i) for i in range(2)))  #!
    await mail(n)  #!
    """,
    """
    await asyncio.gather(*(resize(i) for i in range(4)))  #!
    await mail(n)
    """,
)
unsafe(
    "parallel becomes sequential",
    "fewer",
    """
    await asyncio.gather(
        charge(n),
        ship(n),  #!
    )
    await mail(n)
    """,
    """
    await charge(n)
    await ship(n)
    await mail(n)
    """,
)
unsafe(
    "tasks become sequential",
    "fewer",
    """
    async def paying(n):
        await charge(n)  #!

    async def sending(n):
        await ship(n)

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        await asyncio.gather(paying(n), sending(n))
        await sleep(60)
        return n
    """,
    """
    async def paying(n):
        await charge(n)  #!

    async def sending(n):
        await ship(n)

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        await paying(n)
        await sending(n)
        await sleep(60)
        return n
    """,
)
unsafe(
    "sequential becomes tasks",
    "more",
    """
    async def paying(n):
        await charge(n)  #!

    async def sending(n):
        await ship(n)

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        await paying(n)
        await sending(n)
        await sleep(60)
        return n
    """,
    """
    async def paying(n):
        await charge(n)  #!

    async def sending(n):
        await ship(n)

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        await asyncio.gather(paying(n), sending(n))
        await sleep(60)
        return n
    """,
)
unsafe(
    "fewer children side by side",
    "fewer",
    """
    await asyncio.gather(*(settle(i) for i in range(3)))  #!3
    await mail(n)
    """,
    """
    await asyncio.gather(*(settle(i) for i in range(2)))
    await mail(n)
    """,
)
unsafe(
    "more rounds of a loop with a sleep",
    "more",
    """
    for _ in range(2):
        await asyncio.sleep(5)
    await mail(n)  #!
    """,
    """
    for _ in range(3):
        await asyncio.sleep(5)  #!
    await mail(n)
    """,
)

# --- another branch -------------------------------------------------------------------------------------------------

unsafe(
    "a condition that goes the other way",
    "branch",
    """
    a = await charge(n)
    if a > 5:
        await ship(a)  #!
    else:
        await refund(a)
    await mail(a)
    """,
    """
    a = await charge(n)
    if a > 50:
        await ship(a)
    else:
        await refund(a)  #!
    await mail(a)
    """,
)
unsafe(
    "a condition that no longer holds",
    "branch",
    """
    a = await charge(n)
    if a > 5:
        await audit(a)  #!
    await mail(a)
    """,
    """
    a = await charge(n)
    if a > 50:
        await audit(a)
    await mail(a)  #!
    """,
)
unsafe(
    "a condition that holds now",
    "inserted",
    """
    a = await charge(n)
    if a > 50:
        await audit(a)
    await mail(a)  #!
    """,
    """
    a = await charge(n)
    if a > 5:
        await audit(a)  #!
    await mail(a)
    """,
)
unsafe(
    "a timeout that is gone",
    "removed",
    """
    try:
        async with asyncio.timeout(5):  #!
            await wait_signal("never")
    except TimeoutError:
        await refund(n)
    """,
    """
    await wait_signal("never")
    await refund(n)
    """,
)
unsafe(
    "what was given up is waited for",
    "removed",
    """
    slow = asyncio.ensure_future(wait_signal("never"))
    await charge(n)
    slow.cancel()
    await ship(n)
    """,
    """
    slow = asyncio.ensure_future(wait_signal("never"))
    await charge(n)
    await ship(n)
    """,
)

# --- safe -----------------------------------------------------------------------------------------------------------

safe(
    "a step after the last",
    """
    @workflow(name="order")
    async def order(n: int = 7) -> int:
        a = await charge(n)
        await sleep(60)
        return a
    """,
    """
    @workflow(name="order")
    async def order(n: int = 7) -> int:
        a = await charge(n)
        await sleep(60)
        await ship(a)
        await mail(a)
        return a
    """,
)
safe(
    "an argument by name",
    """
    @workflow(name="order")
    async def order(n: int = 7) -> int:
        a = await charge(n)
        await ship(a)
        await sleep(60)
        return a
    """,
    """
    @workflow(name="order")
    async def order(n: int = 7) -> int:
        a = await charge(n=n)
        await ship(n=a)
        await sleep(60)
        return a
    """,
)
safe(
    "another implementation of a step",
    """
    @step
    async def pay(n: int) -> int:
        return n

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        a = await pay(n)
        await ship(a)
        await sleep(60)
        return a
    """,
    """
    @step(timeout=30)
    def pay(n: int) -> int:
        print("paying")
        return n * 1

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        a = await pay(n)
        await ship(a)
        await sleep(60)
        return a
    """,
)
safe(
    "an optional parameter of a step",
    """
    @step
    async def pay(n: int) -> int:
        return n

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        a = await pay(n)
        await sleep(60)
        return a
    """,
    """
    @step
    async def pay(n: int, currency: str = "EUR") -> int:
        return n

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        a = await pay(n)
        await sleep(60)
        return a
    """,
)
safe(
    "an optional parameter of the workflow",
    """
    @workflow(name="order")
    async def order(n: int = 7) -> int:
        a = await charge(n)
        await ship(a)
        await sleep(60)
        return a
    """,
    """
    @workflow(name="order")
    async def order(n: int = 7, urgent: bool = False) -> int:
        a = await charge(n)
        await ship(a)
        await sleep(60)
        return a
    """,
)
safe(
    "code moved into a helper",
    PLAIN,
    """
    async def deliver(a):
        await ship(a)
        await mail(a)

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        a = await charge(n)
        await deliver(a)
        await sleep(60)
        return n
    """,
)
safe(
    "lines moved, comments and variables renamed",
    PLAIN,
    """
    # The customer pays first.
    payment = await charge(n)

    await ship(payment)

    await mail(payment)
    """,
)
safe(
    "a function named anew that keeps its step's name",
    PLAIN,
    """
    @step(name="ship")
    async def deliver(n: int) -> int:
        return n

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        a = await charge(n)
        await deliver(a)
        await mail(a)
        await sleep(60)
        return n
    """,
)
safe(
    "a longer sleep",
    """
    await charge(n)
    await asyncio.sleep(5)
    await ship(n)
    """,
    """
    await charge(n)
    await asyncio.sleep(50)
    await ship(n)
    """,
)
safe(
    "another result",
    """
    @workflow(name="order")
    async def order(n: int = 7) -> int:
        a = await charge(n)
        await sleep(60)
        return a
    """,
    """
    @workflow(name="order")
    async def order(n: int = 7) -> int:
        a = await charge(n)
        await sleep(60)
        return a * 100
    """,
)
safe(
    "a branch that the run does not take",
    """
    a = await charge(n)
    if a > 50:
        await refund(a)
    await mail(a)
    """,
    """
    a = await charge(n)
    if a > 50:
        await audit(a)
        await refund(a)
    await mail(a)
    """,
)
safe(
    "independent steps side by side that came one after the other",
    """
    await charge(n)
    await ship(n)
    await mail(n)
    """,
    """
    await asyncio.gather(charge(n), ship(n))
    await mail(n)
    """,
)
safe(
    "other steps of a gather in another order",
    """
    await asyncio.gather(charge(n), ship(n), audit(n))
    await mail(n)
    """,
    """
    await asyncio.gather(audit(n), ship(n), charge(n))
    await mail(n)
    """,
)
safe(
    "another value of a published state",
    """
    await charge(n)
    set_state("progress", 0.5)
    await ship(n)
    """,
    """
    await charge(n)
    set_state("progress", 50)
    await ship(n)
    """,
)
safe(
    "more to do in a child that has ended",
    """
    @workflow(name="paying")
    async def paying(n: int) -> int:
        return await charge(n)

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        a = await paying(n)
        await ship(a)
        await sleep(60)
        return a
    """,
    """
    @workflow(name="paying")
    async def paying(n: int) -> int:
        a = await charge(n)
        await mail(a)
        return a

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        a = await paying(n)
        await ship(a)
        await sleep(60)
        return a
    """,
)
safe(
    "a published state that is gone",
    """
    a = await charge(n)
    set_state("paid", True)
    await ship(a)
    """,
    """
    a = await charge(n)
    await ship(a)
    """,
)
safe(
    "a published state under another name",
    """
    a = await charge(n)
    set_state("paid", True)
    await ship(a)
    """,
    """
    a = await charge(n)
    set_state("settled", True)
    await ship(a)
    """,
)
safe(
    "another published state",
    """
    a = await charge(n)
    await ship(a)
    """,
    """
    a = await charge(n)
    set_state("paid", True)
    await ship(a)
    """,
)
