"""Whatever order steps end in, replay takes the branches that the first execution took."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from perdure import Engine, Workflow, step, workflow
from perdure.kernel.events import RunFinished, StepSucceeded
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, Gates, Recorded, left_by_a_crash, replay

ORDERS = ["".join(order) for order in permutations("abc")]
Flow = Workflow[[], Any]


def first_completed(gates: Gates) -> Flow:
    @step
    async def part(name: str) -> str:
        await gates.wait(name)
        return name

    @step
    async def then(name: str) -> str:
        return f"then {name}"

    @workflow
    async def flow() -> list[str]:
        pending = {asyncio.ensure_future(part(name)) for name in "abc"}
        seen: list[str] = []
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                seen.append(await then(task.result()))
        return seen

    return flow


def racing_tasks(gates: Gates) -> Flow:
    @step
    async def part(name: str) -> str:
        await gates.wait(name)
        return name

    @step
    async def then(name: str) -> str:
        return f"then {name}"

    @workflow
    async def flow() -> list[str]:
        seen: list[str] = []

        async def branch(name: str) -> None:
            await part(name)
            seen.append(name)
            seen.append(await then(name))

        await asyncio.gather(*(branch(name) for name in "abc"))
        return [name for name in seen if len(name) == 1]

    return flow


def as_completed(gates: Gates) -> Flow:
    @step
    async def part(name: str) -> str:
        await gates.wait(name)
        return name

    @workflow
    async def flow() -> list[str]:
        return [await future for future in asyncio.as_completed([asyncio.ensure_future(part(n)) for n in "abc"])]

    return flow


def queue_of_results(gates: Gates) -> Flow:
    @step
    def part_in_a_thread(name: str) -> str:
        return name

    @step
    async def part(name: str) -> str:
        await gates.wait(name)
        return name

    @workflow
    async def flow() -> list[str]:
        queue: asyncio.Queue[str] = asyncio.Queue()

        async def producer(name: str) -> None:
            await queue.put(await part(name))

        async with asyncio.TaskGroup() as group:
            for name in "abc":
                group.create_task(producer(name))
            return [await part_in_a_thread(await queue.get()) for _ in "abc"]

    return flow


def lock_in_order_of_arrival(gates: Gates) -> Flow:
    @step
    async def part(name: str) -> str:
        await gates.wait(name)
        return name

    @step
    async def inside(name: str) -> str:
        return name

    @workflow
    async def flow() -> list[str]:
        lock = asyncio.Lock()
        order: list[str] = []

        async def branch(name: str) -> None:
            await part(name)
            async with lock:
                order.append(await inside(name))

        await asyncio.gather(*(branch(name) for name in "abc"))
        return order

    return flow


FLOWS = [first_completed, racing_tasks, as_completed, queue_of_results, lock_in_order_of_arrival]


async def end_in_order(flow: Flow, gates: Gates, order: str) -> tuple[MemoryStore, str, Any]:
    """Run with steps ending in the given order; each outcome is in the journal before the next step ends."""
    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [flow], recovery=AT_ONCE, on_commit=recorded) as engine:
        handle = await engine.start(flow(), id="it")
        for name in order:
            gates.open(name)
            value = f'"{name}"'.encode()
            await recorded.until(
                lambda e, v=value: (
                    isinstance(e, RunFinished)  # type: ignore[misc]
                    or (
                        isinstance(e, StepSucceeded)
                        and e.op.endswith(("part:0", "part:1", "part:2"))
                        and bytes(e.value) == v
                    )
                )
            )
        result = await handle.result(PATIENCE)
    return store, handle.run_id, result


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("make", FLOWS)
async def test_replay_follows_the_order_in_which_steps_ended(make: Callable[[Gates], Flow], order: str) -> None:
    gates = Gates()
    flow = make(gates)
    store, run_id, result = await end_in_order(flow, gates, order)
    assert [name[-1] for name in result] == list(order)
    await replay(flow, run_id, store)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("make", FLOWS)
async def test_going_on_after_a_crash_keeps_the_order_that_was_recorded(
    make: Callable[[Gates], Flow], order: str
) -> None:
    gates = Gates()
    flow = make(gates)
    recorded, store = Recorded(), MemoryStore()
    async with Engine(store, [flow], recovery=AT_ONCE, on_commit=recorded) as engine:
        _ = await engine.start(flow(), id="it")
        gates.open(order[0])
        await recorded.until(lambda e: isinstance(e, StepSucceeded) and bytes(e.value) == f'"{order[0]}"'.encode())
        found = left_by_a_crash(store)
    # The new process ends the rest in an order of its own; the first one stays the first.
    for name in "abc":
        gates.open(name)
    async with Engine(found, [flow], recovery=AT_ONCE) as engine:
        handle = await engine.start(flow(), id="it")
        result = await handle.result(PATIENCE)
    assert result[0][-1] == order[0]
    assert sorted(name[-1] for name in result) == list("abc")
    await replay(flow, handle.run_id, found)


@pytest.mark.parametrize("winner", ["step", "timer"])
async def test_a_race_between_a_step_and_a_timer_has_one_winner_for_ever(winner: str) -> None:
    gates = Gates()

    @step
    async def part() -> str:
        await gates.wait("it")
        return "step"

    @workflow
    async def flow() -> str:
        try:
            async with asyncio.timeout(3600 if winner == "step" else 0.01):
                return await part()
        except TimeoutError:
            return "timer"

    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [flow], recovery=AT_ONCE, on_commit=recorded) as engine:
        handle = await engine.start(flow(), id="it")
        if winner == "step":
            gates.open("it")
        assert await handle.result(PATIENCE) == winner
    gates.open("it")
    await replay(flow, handle.run_id, store)


async def test_steps_that_end_in_one_loop_turn_replay_in_their_recorded_order() -> None:
    gates = Gates()

    @step
    async def part(n: int) -> int:
        await gates.wait("all")
        return n

    @step
    async def then(n: int) -> int:
        return n

    @workflow
    async def flow() -> list[int]:
        order: list[int] = []

        async def branch(n: int) -> None:
            order.append(await then(await part(n)))

        await asyncio.gather(*(branch(n) for n in range(50)))
        return order

    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [flow], on_commit=recorded) as engine:
        handle = await engine.start(flow(), id="it")
        await recorded.until_started("branch:49/part:0")
        gates.open("all")
        result = await handle.result(PATIENCE)
    assert sorted(result) == list(range(50))
    await replay(flow, handle.run_id, store)
