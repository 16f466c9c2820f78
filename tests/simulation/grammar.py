"""Workflows as data: trees of lists, made by hypothesis and interpreted by one workflow body.

The body returns everything it saw, in order. Steps return a random number with each execution, so a body that saw
another outcome than the recorded one gives itself away.
"""

from __future__ import annotations

import asyncio
import random as chance
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from hypothesis import strategies as st

from perdure import (
    CompensationFailed,
    FailedStep,
    Limits,
    OutcomeUnknown,
    Retry,
    SignalTimeout,
    batched,
    checkpoint,
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
from perdure.graph import Graph, node, route
from perdure.testing.simulation import Message, Sender

Tree = list[Any]
See = Callable[[Any], None]


class Boom(Exception):
    """What steps raise."""


def outcome(n: int) -> int:
    return n * 10_000 + chance.randrange(10_000)


@step
async def work(n: int) -> int:
    return outcome(n)


@step
async def slow(n: int) -> int:
    await asyncio.sleep(n / 10)
    return outcome(n)


@step
def plain(n: int) -> int:
    return outcome(n)


@step
async def broken(n: int) -> int:
    raise Boom(outcome(n))


@step(retry=Retry(attempts=4, initial=0.5))
async def flaky(n: int, failures: int) -> int:
    if step_context().attempt <= failures:
        raise Boom(n)
    return outcome(n)


@step(timeout=0.5)
async def hasty(n: int) -> int:
    await asyncio.sleep(n / 10)
    return outcome(n)


@step(retry=Retry(attempts=2, initial=0.2), heartbeat=5)
async def streamed(n: int) -> AsyncIterator[int]:
    """Goes on from what was shown when `n` is odd, begins again otherwise, and fails at first when it is 4 or more."""
    context = step_context()
    for i in range(len(context.chunks) if n % 2 else 0, n):
        yield outcome(i)
        if i % 3 == 0:
            await asyncio.sleep(0.02)
        context.heartbeat(i)
        if i == 2 and n >= 4 and context.attempt == 1:
            raise Boom(n)


@step
async def large(n: int) -> list[int]:
    """Returns more than the journal holds, under `LIMITS`."""
    await asyncio.sleep(n / 100)
    return [outcome(n) for _ in range(200)]


@step(at_most_once=True)
async def once_large(n: int) -> list[int]:
    return [outcome(n) for _ in range(200)]


@step(at_most_once=True)
async def once(n: int) -> int:
    return outcome(n)


@step
async def saved(n: int) -> int:
    """Fails, unless its fallback calls it."""
    if n >= 0:
        raise Boom(n)
    return outcome(-n)


async def save(failed: FailedStep) -> Any:
    """Every third time it fails too."""
    assert str(failed.error) == str(failed.args[0])
    n: int = failed.args[0]
    return n if n % 3 == 0 else retry_with(-n if n % 3 == 1 else n)


@step
async def dispensable(n: int) -> int:
    raise Boom(outcome(n))


# Small, so that what is stored apart need not be large.
LIMITS = Limits(blob=1000)

RULES = [
    rule("saved", attempts=2, initial=0.3, fallback=save),
    rule("dispensable", attempts=2, initial=0.2, backoff="linear", on_failure="skip"),
]


async def run_tree(tree: Tree, see: See) -> int:
    """Do what a tree says; its number is what branches depend on."""
    return await NODES[tree[0]](see, *tree[1:])


async def _step(see: See, n: int) -> int:
    value = await work(n)
    see(value)
    return value


async def _slow(see: See, n: int) -> int:
    value = await slow(n)
    see(value)
    return value


async def _plain(see: See, n: int) -> int:
    value = await plain(n)
    see(value)
    return value


async def _inline(see: See, n: int) -> int:
    value: int = await step_inline("inline", lambda: outcome(n))
    see(value)
    return value


async def _caught(see: See, n: int) -> int:
    try:
        return await broken(n)
    except Boom as error:
        see(str(error))
        return n


async def _uncaught(see: See, n: int) -> int:
    see("uncaught")
    return await broken(n)


async def _retried(see: See, n: int, failures: int) -> int:
    value = await flaky(n, failures)
    see(value)
    return value


async def _hasty(see: See, n: int) -> int:
    try:
        value = await hasty(n)
    except TimeoutError:
        value = -n
    see(value)
    return value


async def _once(see: See, n: int) -> int:
    try:
        value = await once(n)
    except OutcomeUnknown:
        value = -n
    see(value)
    return value


async def _large(see: See, n: int) -> int:
    values = await large(n)
    see(sum(values))
    return len(values)


async def _once_large(see: See, n: int) -> int:
    try:
        value = sum(await once_large(n))
    except OutcomeUnknown:
        value = -n
    see(value)
    return value


async def _state(see: See, n: int) -> int:
    set_state(f"key {n % 3}", n)
    return n


async def _told(see: See, tenths: int) -> int:
    """Wait for a signal that comes, or does not."""
    try:
        value: int = await wait_signal("item", timeout=tenths / 10)
    except SignalTimeout:
        value = -1
    see(value)
    return value


async def _room(see: See, n: int) -> int:
    """Work in a room that others want too. Nothing else is taken inside, so nobody waits in a circle."""
    async with lock("room", ttl=5.0) as held:
        see(held.token)
        return await _step(see, n)


async def _free(see: See, tree: Tree) -> int:
    """Take a lock that nobody else wants."""
    async with lock(str(uuid4()), ttl=5.0):
        return await run_tree(tree, see)


async def _streamed(see: See, n: int) -> int:
    made = streamed if n % 3 else streamed.options(stream=batched(2, 0.01))
    values = await made(n)
    see(values)
    return sum(values)


async def _saved(see: See, n: int) -> int:
    try:
        value = await saved(n)
    except Boom as error:
        value = int(str(error))
    see(value)
    return value


async def _dispensable(see: See, n: int) -> int:
    value: int | None = await dispensable(n)
    see(value)
    return n


async def _saga(see: See, tree: Tree, n: int) -> int:
    """Undo two things when the tree gives an odd number; undoing one of them may fail."""

    async def undo(n: int) -> None:
        see(await work(n))

    try:
        async with saga() as s:
            s.compensate(undo, n)
            s.compensate(broken if n % 3 == 0 else work, n)
            value = await run_tree(tree, see)
            if value % 2:
                raise Boom(value)
    except CompensationFailed as error:
        see([type(error.__cause__).__name__, len(error.exceptions)])
        return n
    except Boom:
        see("undone")
        return n
    return value


async def _sleep(see: See, tenths: int) -> int:
    await (sleep(tenths / 10) if tenths % 2 else asyncio.sleep(tenths / 10))
    see(str(now()))
    return tenths


async def _value(see: See, kind: str) -> int:
    see({"now": lambda: str(now()), "uuid": lambda: str(uuid4()), "random": random}[kind]())
    return 1


async def _checkpoint(see: See) -> int:
    await checkpoint()
    return 2


async def _sequence(see: See, trees: list[Tree]) -> int:
    return sum([await run_tree(tree, see) for tree in trees])


async def _gather(see: See, trees: list[Tree]) -> int:
    values = await asyncio.gather(*(run_tree(tree, see) for tree in trees))
    see(values)
    return sum(values)


async def _steps_at_once(see: See, numbers: list[int]) -> int:
    values = await asyncio.gather(*(work(n) for n in numbers))
    see(values)
    return sum(values)


async def _group(see: See, trees: list[Tree]) -> int:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run_tree(tree, see)) for tree in trees]
    return sum(task.result() for task in tasks)


async def _race(see: See, trees: list[Tree]) -> int:
    tasks = [asyncio.create_task(run_tree(tree, see)) for tree in trees]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    see([tasks.index(task) for task in done])
    see([type(o).__name__ if isinstance(o, BaseException) else o for o in outcomes])
    return len(pending)


async def _timeout(see: See, tenths: int, tree: Tree) -> int:
    try:
        async with asyncio.timeout(tenths / 10):
            return await run_tree(tree, see)
    except TimeoutError:
        see("timed out")
        return 3


async def _loop(see: See, times: int, tree: Tree) -> int:
    total = 0
    for _ in range(times):
        total += await run_tree(tree, see)
    return total


async def _branch(see: See, condition: Tree, yes: Tree, no: Tree) -> int:
    return await run_tree(yes if await run_tree(condition, see) % 2 else no, see)


async def _finally(see: See, tree: Tree, last: Tree) -> int:
    try:
        return await run_tree(tree, see)
    finally:
        await run_tree(last, see)


async def _event(see: See, tree: Tree, after: Tree) -> int:
    event = asyncio.Event()

    async def first() -> int:
        try:
            return await run_tree(tree, see)
        finally:
            event.set()

    async def second() -> int:
        await event.wait()
        return await run_tree(after, see)

    return sum(await asyncio.gather(second(), first()))


async def _queue(see: See, trees: list[Tree]) -> int:
    """The order of completion decides what comes next."""
    queue: asyncio.Queue[int] = asyncio.Queue()

    async def producer(number: int, tree: Tree) -> None:
        try:
            await run_tree(tree, see)
        finally:
            queue.put_nowait(number)

    tasks = [asyncio.create_task(producer(number, tree)) for number, tree in enumerate(trees)]
    for _ in trees:
        number = await queue.get()
        see(number)
        if number % 2 == 0:
            see(await work(number))
    await asyncio.gather(*tasks)
    return len(trees)


async def _completed(see: See, trees: list[Tree]) -> int:
    tasks = [asyncio.create_task(run_tree(tree, see)) for tree in trees]
    values = [await task for task in asyncio.as_completed(tasks)]
    see(values)
    return sum(values)


async def _locked(see: See, trees: list[Tree]) -> int:
    lock = asyncio.Lock()

    async def one(tree: Tree) -> int:
        async with lock:
            return await run_tree(tree, see)

    return sum(await asyncio.gather(*(one(tree) for tree in trees)))


async def _left_behind(see: See, tree: Tree) -> int:
    """Start something that nobody waits for."""
    LEFT.append(asyncio.create_task(run_tree(tree, see)))
    del LEFT[:-50]
    return 4


async def _child(see: See, tree: Tree) -> int:
    seen = await interpret(tree)
    see(seen)
    return len(seen)


@step
async def twice(n: int) -> list[int]:
    return [n, n]


@route(targets=["odd", "even"])
def parity(base: int) -> str:
    """Depends on a random outcome: only the recorded decision is right."""
    return "odd" if base % 2 else "even"


_HALF = Graph([node(work, name="base"), parity, node(work, name="odd"), node(slow, name="even")], name="half")
# Nested graphs, a gate whose decision differs with each execution, a map, and parallel steps.
GRAPH = Graph(
    [
        _HALF.as_node("half"),
        node(work, name="base"),
        node(twice),
        node(slow, name="each", inputs={"n": "twice"}).map_over("n"),
    ],
    name="sim-graph",
)


async def _graph(see: See, n: int) -> int:
    found = dict(await GRAPH(n=n))
    see(sorted(found.items()))
    return len(found)


LEFT: list[asyncio.Task[int]] = []

NODES: dict[str, Callable[..., Awaitable[int]]] = {
    "step": _step,
    "slow": _slow,
    "plain": _plain,
    "inline": _inline,
    "caught": _caught,
    "uncaught": _uncaught,
    "retried": _retried,
    "hasty": _hasty,
    "once": _once,
    "large": _large,
    "once_large": _once_large,
    "state": _state,
    "told": _told,
    "room": _room,
    "free": _free,
    "streamed": _streamed,
    "saved": _saved,
    "dispensable": _dispensable,
    "saga": _saga,
    "sleep": _sleep,
    "value": _value,
    "checkpoint": _checkpoint,
    "sequence": _sequence,
    "gather": _gather,
    "steps": _steps_at_once,
    "group": _group,
    "race": _race,
    "timeout": _timeout,
    "loop": _loop,
    "branch": _branch,
    "finally": _finally,
    "event": _event,
    "queue": _queue,
    "completed": _completed,
    "locked": _locked,
    "left": _left_behind,
    "child": _child,
    "graph": _graph,
}


@workflow(rules=RULES)
async def interpret(tree: Tree) -> list[Any]:
    """Run a tree, and return all that was seen on the way."""
    seen: list[Any] = []
    seen.append(await run_tree(tree, seen.append))
    return seen


_small = st.integers(1, 9)
_ONE = [
    "step",
    "step",
    "slow",
    "slow",
    "plain",
    "inline",
    "caught",
    "hasty",
    "once",
    "saved",
    "dispensable",
    "streamed",
    "large",
    "large",
    "once_large",
    "state",
    "told",
    "room",
]
_LEAVES: dict[str, st.SearchStrategy[Tree]] = {
    "one": st.tuples(st.sampled_from(_ONE), _small).map(list),
    "several": st.tuples(st.just("steps"), st.lists(_small, min_size=1, max_size=4)).map(list),
    "retried": st.tuples(st.just("retried"), _small, st.integers(1, 4)).map(list),
    "sleep": st.tuples(st.just("sleep"), st.integers(0, 30)).map(list),
    "value": st.tuples(st.just("value"), st.sampled_from(["now", "uuid", "random"])).map(list),
    "checkpoint": st.just(["checkpoint"]),
    "uncaught": st.tuples(st.just("uncaught"), _small).map(list),
}
# By weight: what ends a run early is rare, since little happens after it.
_KINDS = ["one"] * 12 + ["several"] * 3 + ["retried"] * 3 + ["sleep"] * 3 + ["value"] * 2 + ["checkpoint", "uncaught"]
leaves: st.SearchStrategy[Tree] = st.sampled_from(_KINDS).flatmap(_LEAVES.__getitem__)


def _grow(trees: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    several = st.lists(trees, min_size=1, max_size=3)
    many = ["sequence", "gather", "group", "race", "queue", "completed", "locked"]
    return st.one_of(
        st.tuples(st.sampled_from(many), several).map(list),
        st.tuples(st.just("timeout"), st.integers(0, 20), trees).map(list),
        st.tuples(st.just("loop"), st.integers(1, 3), trees).map(list),
        st.tuples(st.just("branch"), trees, trees, trees).map(list),
        st.tuples(st.sampled_from(["finally", "event"]), trees, trees).map(list),
        st.tuples(st.sampled_from(["left", "child", "child", "free", "free"]), trees).map(list),
        st.tuples(st.just("saga"), trees, _small).map(list),
    )


_parts: st.SearchStrategy[Tree] = st.recursive(leaves, _grow, max_leaves=8)
_whole = st.sampled_from(["sequence", "sequence", "gather", "queue", "race"])
trees: st.SearchStrategy[Tree] = st.tuples(_whole, st.lists(_parts, min_size=1, max_size=4)).map(list)


def tellers(seed: int) -> list[Sender]:
    """People elsewhere who tell the first run something again and again: what it waits for, and what it does not."""
    draw = chance.Random(seed)
    kinds = ["item", "item", "nobody", "pause"]
    told: list[Sender] = []
    for _ in range(draw.randrange(1, 4)):
        messages: list[Message] = []
        for number in range(draw.randrange(1, 12)):
            wait = draw.choice((0.0, 0.01, 0.05, 0.3, 1.0))
            name = draw.choice(kinds)
            if name == "pause":
                messages += [Message("pause", wait=wait), Message("resume", wait=draw.choice((0.0, 0.2, 2.0)))]
            else:
                messages.append(Message("signal", name, number, wait=wait))
        told.append(Sender(messages, local=draw.random() < 0.3))
    return told
