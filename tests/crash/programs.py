"""The workflows that the crash tests run. Their steps leave a line in the effect log whenever they are executed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from perdure import (
    FailedStep,
    OutcomeUnknown,
    Retry,
    bail,
    batched,
    checkpoint,
    child,
    continue_as,
    instead,
    lock,
    now,
    random,
    retry_with,
    rule,
    saga,
    set_state,
    sleep,
    step,
    step_context,
    step_inline,
    uuid4,
    wait_signal,
    workflow,
)

_log: list[int] = []


def log_effects(path: str) -> None:
    """Write effects there from now on."""
    _log[:] = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)]


def effect(what: str = "begin") -> None:
    """Leave a line that survives kill -9 at once."""
    context = step_context()
    run_id, _, op = context.id.partition("/")
    line = {"at": time.time(), "run_id": run_id, "op": op, "attempt": context.attempt, "what": what, "pid": os.getpid()}
    if _log:
        os.write(_log[0], json.dumps(line).encode() + b"\n")


# --- one of everything ----------------------------------------------------------------------------------------------


class Broken(Exception):
    """What the step that always fails raises."""


@step
async def add(a: int, b: int) -> int:
    """Quick, on the loop."""
    effect()
    return a + b


@step
async def add_slowly(a: int, b: int, seconds: float, held: str = "") -> int:
    """Slow, on the loop; and not over before a file is gone, if one is named."""
    effect()
    await asyncio.sleep(seconds)
    while held and os.path.exists(held):
        await asyncio.sleep(0.02)
    return a + b


@step
def add_in_thread(a: int, b: int) -> int:
    """In a thread."""
    effect()
    return a + b


@step(retry=Retry(attempts=3, initial=0.03, jitter=False, on=(ConnectionError,)))
async def add_at_third_try(a: int, b: int) -> int:
    """Fails twice, unless it was killed meanwhile: attempts that died are counted too."""
    effect()
    if step_context().attempt <= 2:
        raise ConnectionError(f"attempt {step_context().attempt}")
    return a + b


@step
async def stuck() -> None:
    """Never ends by itself."""
    effect()
    await asyncio.sleep(3600)


@step(timeout=0.05)
async def hasty() -> None:
    """Is timed out by its own policy."""
    effect()
    await asyncio.sleep(3600)


@step
async def large(size: int) -> str:
    """A value for the blob store."""
    effect()
    return "x" * size


@step
async def broken() -> None:
    """Fails for good."""
    effect()
    raise Broken("as it should")


def triple(n: int) -> int:
    """A plain function, for step_inline."""
    effect()
    return 3 * n


async def _branch(n: int, seconds: float) -> int:
    first = await add_slowly(n, 1, seconds)
    return await add(first, 1)


@workflow
async def voyage(n: int, ending: str) -> dict[str, Any]:
    """One of everything a body can do."""
    recorded = {"now": now().isoformat(), "uuid": str(uuid4()), "random": random()}
    total = await add(n, 1)
    total = await add(total, 10)
    total = await add_in_thread(total, 100)
    total = await step_inline("triple", triple, total)
    total = sum(await asyncio.gather(*(add_slowly(total, i, 0.02 * i) for i in range(4))))
    later = {"now": now().isoformat(), "uuid": str(uuid4()), "random": random()}
    total = await add_at_third_try(total, 1000)
    await sleep(0.03)
    problems = []
    try:
        async with asyncio.timeout(0.05):
            await stuck()
    except TimeoutError:
        problems.append("timeout")
    try:
        await hasty()
    except TimeoutError:
        problems.append("hasty")
    # Longer than the moment that the tests set: the run leaves memory and comes back.
    await asyncio.sleep(0.15)
    total += len(await large(300_000))
    try:
        await broken()
    except Broken as error:
        problems.append(str(error))
    async with asyncio.TaskGroup() as group:
        left = group.create_task(_branch(total, 0.01))
        right = group.create_task(_branch(total, 0.04))
    total = left.result() + right.result()
    await checkpoint()
    for i in range(4):
        total = await add(total, i)
    result = {"total": total, "problems": problems, "recorded": recorded, "later": later}
    if ending == "bail":
        bail("enough", result)
    if ending == "raise":
        raise Broken(json.dumps(result))
    return result


@workflow(name="changing")
async def before_the_change(n: int) -> list[Any]:
    """Adds, hears a signal, adds twice more, and waits for the change."""
    first = await add(n, 1)
    heard = await wait_signal("heard")
    second = await add(first, heard)
    third = await add_slowly(second, 1, 0.0)
    return [third, await wait_signal("end")]


@workflow(name="changing")
async def after_the_change(n: int) -> list[Any]:
    """The same, with the second and the third in one."""
    first = await add(n, 1)
    heard = await wait_signal("heard")
    both = await add_in_thread(first, heard + 1)
    return [await add(both, 0), await wait_signal("end")]


@workflow
async def stroll(seed: int, depth: int = 0) -> int:
    """Whatever the seed says, one thing after another and side by side. The same seed has the same result."""
    chance = Random(seed)
    total = 0
    for turn in range(chance.randint(3, 7)):
        match chance.choice(("add", "thread", "slow", "gather", "sleep", "child", "fail", "state", "value", "late")):
            case "add":
                total = await add(total, turn)
            case "thread":
                total = await add_in_thread(total, turn)
            case "slow":
                total = await add_slowly(total, turn, chance.random() / 50)
            case "late":
                total = await add_at_third_try(total, turn)
            case "gather":
                pauses = [chance.random() / 50 for _ in range(chance.randint(2, 4))]
                total += sum(await asyncio.gather(*(add_slowly(turn, n, pause) for n, pause in enumerate(pauses))))
            case "sleep":
                await sleep(chance.random() / 20)
            case "child" if depth < 2:
                total += await stroll(chance.randrange(1 << 30), depth + 1)
            case "fail":
                try:
                    await broken()
                except Broken:
                    total += 1
            case "state":
                set_state("total", total)
            case _:
                total += len(str(uuid4())) + (random() < 2)
    return total


# --- many small runs ------------------------------------------------------------------------------------------------


@workflow
async def five(n: int, seconds: float, held: str = "") -> int:
    """Five steps, each of some length."""
    for i in range(5):
        n = await add_slowly(n, i, seconds, held)
    return n


# --- one after the other, for the durability modes ------------------------------------------------------------------


async def stand_still(place: int, file: str) -> None:
    """Wait here for the kill, if the file says so: it hits this place however late it comes."""
    if os.path.exists(file) and int(Path(file).read_text()) == place:
        await asyncio.sleep(3600)


@step
async def tick(i: int, seconds: float, still: str) -> int:
    """A step that says when it began and when it ended."""
    effect()
    await stand_still(i, still)
    await asyncio.sleep(seconds)
    effect("end")
    return i


@workflow
async def ticks(count: int, seconds: float, wait_after: int, checkpoint_after: int, still: str = "") -> int:
    """Steps in a row, with a wait after one of them or a checkpoint after another."""
    total = 0
    for i in range(count):
        total += await tick(i, seconds, still)
        if i + 1 == wait_after:
            await sleep(0.05)
        if i + 1 == checkpoint_after:
            await checkpoint()
    return total


# --- steps that must not run twice, and tries that must wait --------------------------------------------------------


@step(at_most_once=True)
async def charge(death: str) -> str:
    """Takes effect, and then its process dies; the file `death` says whether that has happened."""
    effect()
    if not os.path.exists(death):
        with open(death, "w"):
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    return "charged"


@workflow
async def careful(death: str) -> str:
    """Finds out what became of a charge that nobody can repeat."""
    before = await add(1, 1)
    try:
        result = await charge(death)
    except OutcomeUnknown as error:
        result = f"unknown: {error.op}"
    return f"{result}, {await add(before, 1)}"


@step(retry=Retry(attempts=4, initial=1.5, factor=1.0, jitter=False))
async def unreachable() -> None:
    """Fails, and is to be tried again after a while."""
    effect()
    raise ConnectionError("no route")


@workflow
async def patient() -> str:
    """Tries for a while."""
    try:
        await unreachable()
    except ConnectionError as error:
        return str(error)
    return "reached"


@workflow
async def sleepy(seconds: float) -> float:
    """Sleeps once."""
    await add(0, 0)
    await sleep(seconds)
    await add(0, 1)
    return seconds


# --- a step in a process of its own ---------------------------------------------------------------------------------


@step(cpu=True)
def crunch(path: str, seconds: float) -> int:
    """Says which process it is in, and works for a while."""
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(seconds)
    return os.getpid()


@workflow
async def crunching(path: str, seconds: float) -> int:
    """One step, in a process of its own."""
    return await crunch(path, seconds)


# --- a trip that has to be undone -----------------------------------------------------------------------------------


@step
async def book(what: str) -> str:
    """Book something."""
    effect()
    return f"{what}-1"


@step
async def unbook(booking: str, seconds: float) -> str:
    """Undo a booking, which takes a while."""
    effect()
    await asyncio.sleep(seconds)
    effect("end")
    if booking == "car-1":
        raise Broken(booking)
    return booking


@workflow
async def trip(seconds: float) -> str:
    """Book three things, find that the fourth cannot be had, and undo the three."""
    async with saga() as s:
        for what in ("flight", "car", "train"):
            s.compensate(unbook, await book(what), seconds)
        await broken()
    return "booked"


# --- steps that show what they make ---------------------------------------------------------------------------------


def stop_at(stops: Sequence[int]) -> int | None:
    """Where this attempt waits for the kill: the first at the first of them, and those that have none go on."""
    attempt = step_context().attempt
    return stops[attempt - 1] if attempt <= len(stops) else None


@step
async def tell(n: int, seconds: float, stops: Sequence[int] = ()) -> AsyncIterator[int]:
    """Goes on from what was shown."""
    effect()
    for i in range(len(step_context().chunks), n):
        yield i
        await asyncio.sleep(3600 if i == stop_at(stops) else seconds)


@step(stream=batched(5, 0.02))
async def tell_again(n: int, seconds: float, stops: Sequence[int] = ()) -> AsyncIterator[int]:
    """Begins again in every attempt."""
    effect()
    for i in range(n):
        yield i
        await asyncio.sleep(3600 if i == stop_at(stops) else seconds)


@step
def tell_in_thread(n: int, seconds: float, stops: Sequence[int] = ()) -> Iterator[int]:
    """As `tell`, in a thread."""
    effect()
    for i in range(len(step_context().chunks), n):
        yield i
        time.sleep(3600 if i == stop_at(stops) else seconds)


@step(heartbeat=30)
def count(n: int, seconds: float, stop: int) -> list[int]:
    """Goes on from its progress, and says from where."""
    effect()
    first = step_context().progress or 0
    for i in range(first, n):
        time.sleep(3600 if i == stop_at([stop]) else seconds)
        step_context().heartbeat(i + 1)
    return [first, n]


@workflow
async def telling(n: int, seconds: float, stops: Sequence[int] = ()) -> list[int]:
    """One stream that goes on over crashes."""
    return await tell(n, seconds, stops)


@workflow
async def telling_again(n: int, seconds: float, stops: Sequence[int] = ()) -> list[int]:
    """One stream that begins again after a crash."""
    return await tell_again(n, seconds, stops)


@workflow
async def telling_in_thread(n: int, seconds: float, stops: Sequence[int] = ()) -> list[int]:
    """One stream from a thread."""
    return await tell_in_thread(n, seconds, stops)


@workflow
async def counting(n: int, seconds: float, stop: int) -> list[int]:
    """One long step with progress."""
    return await count(n, seconds, stop)


# --- a step that needs its fallback ---------------------------------------------------------------------------------


@step
async def ask(model: str, still: str) -> str:
    """Only the small model answers."""
    effect()
    if model != "small":
        raise Broken(model)
    await stand_still(0, still)
    return model


@step
async def look_up(still: str) -> str:
    """Answers always."""
    await stand_still(1, still)
    return "archive"


async def smaller(failed: FailedStep) -> Any:
    """Say what failed, and try the small model."""
    effect(f"fallback after {failed.error!r}")
    return retry_with("small", failed.args[1])


def archive(failed: FailedStep) -> Any:
    """Look it up instead."""
    effect(f"fallback after {failed.error!r}")
    return instead(look_up, failed.args[1])


@step
async def unimportant() -> str:
    """Fails, and the run can do without."""
    effect()
    raise Broken("unimportant")


@workflow(
    rules=[
        rule("ask", attempts=2, initial=0.02, jitter=False, fallback=smaller),
        rule("consult", fallback=archive),
        rule("unimportant", on_failure="skip", attempts=2, backoff="none"),
    ]
)
async def asking(still: str) -> list[Any]:
    """Two steps that are saved by their fallbacks, and one that is skipped."""
    return [
        await ask("large", still),
        await ask_under_another_name("large", still),
        await unimportant(),
        await add(1, 2),
    ]


@step(name="consult")
async def ask_under_another_name(model: str, still: str) -> str:
    """Nobody answers."""
    effect()
    raise Broken(model)


# --- locks ----------------------------------------------------------------------------------------------------------


def stay(seconds: float) -> float:
    """How long an attempt stays inside: one that follows a kill a second at most."""
    return seconds if step_context().attempt == 1 else min(seconds, 1.0)


@step
async def be_inside(token: int, seconds: float) -> int:
    """What a run does while it holds the lock."""
    effect(f"in {token}")
    await asyncio.sleep(stay(seconds))
    effect(f"out {token}")
    return token


@workflow
async def locked(seconds: float, ttl: float) -> int:
    """Be inside, alone."""
    async with lock("crash", ttl=ttl) as held:
        return await be_inside(held.token, seconds)


@step
def be_inside_in_thread(seconds: float, ttl: float) -> int:
    """Be inside, alone, with a lock of the step's own."""
    with lock("crash", ttl=ttl) as held:
        effect(f"in {held.token}")
        time.sleep(stay(seconds))
        effect(f"out {held.token}")
        return held.token


@workflow
async def locked_in_step(seconds: float, ttl: float) -> int:
    """Let a step be inside, alone."""
    return await be_inside_in_thread(seconds, ttl)


# --- a family -------------------------------------------------------------------------------------------------------


@workflow
async def loner(n: int) -> int:
    """Started by another run, and on its own from then on."""
    return await add(n, 1)


@workflow
async def younger(n: int, depth: int) -> int:
    """A child that has a child."""
    first = await add(n, 1)
    if depth:
        first += await younger(n + 10, depth - 1)
    return await add_in_thread(first, 1)


@workflow
async def elder(n: int, more: int) -> list[int]:
    """Children in a row, side by side and let go; then once more as another incarnation."""
    one = await younger(n, 1)
    two, three = await asyncio.gather(younger(n + 1, 0), younger(n + 2, 1))
    if more:
        await child(loner(7), id="loner", detached=True)
        continue_as(n + 100, more - 1)
    return [n, one, two, three]


# --- signals from many processes ------------------------------------------------------------------------------------


@workflow
async def mailbox(count: int) -> list[list[int]]:
    """Take so many signals, one after another."""
    return [await wait_signal("item", type=list[int]) for _ in range(count)]


# --- a step that finds no room --------------------------------------------------------------------------------------


@step
async def block() -> None:
    effect()
    await asyncio.sleep(3600)


@workflow
async def blocking() -> None:
    await block()


@step
async def squeezed() -> int:
    effect()
    return 7


@workflow
async def crowded_out() -> int:
    first, _ = await asyncio.gather(squeezed(), wait_signal("never", type=int))
    return first
