"""How many steps are under way at once: never more than the run and the engine allow, and nobody waits for nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from perdure import Engine, Retry, RunHandle, RunStatus, Step, Workflow, step, step_context, wait_signal, workflow
from perdure.kernel.commands import Command
from perdure.kernel.events import AttemptFailed, StepsHeld, StepStarted, StepSucceeded, WaitOpened
from perdure.kernel.ids import op_name
from perdure.kernel.plan import Plan, plan
from perdure.kernel.state import RunState
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, Gates, Recorded, left_by_a_crash, replay


class Meter:
    """Counts how many are inside, and the most there ever were."""

    def __init__(self) -> None:
        self.inside = self.most = self.calls = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.calls += 1
            self.inside += 1
            self.most = max(self.most, self.inside)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.inside -= 1


def fan_out(meter: Meter, width: int, plain: bool) -> Workflow[[], int]:
    @step
    async def asynchronous(n: int) -> int:
        with meter:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return n

    @step
    def threaded(n: int) -> int:
        with meter:
            return n

    part: Step[[int], int] = threaded if plain else asynchronous

    @workflow
    async def flow() -> int:
        return sum(await asyncio.gather(*(part(n) for n in range(width))))

    return flow


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 7])
async def test_a_run_never_has_more_steps_under_way_than_it_may(limit: int, plain: bool) -> None:
    meter = Meter()
    flow = fan_out(meter, 40, plain)
    store = MemoryStore()
    async with Engine(store, [flow]) as engine:
        handle = await engine.start(flow(), max_concurrency=limit)
        assert await handle.result(PATIENCE) == sum(range(40))
    assert meter.most <= limit
    assert meter.calls == 40
    await replay(flow, handle.run_id, store)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 7])
async def test_an_engine_never_has_more_steps_under_way_than_it_may(limit: int, plain: bool) -> None:
    meter = Meter()
    flow = fan_out(meter, 10, plain)
    async with Engine("memory://", [flow], max_concurrency=limit) as engine:
        handles = [await engine.start(flow()) for _ in range(8)]
        assert [await h.result(PATIENCE) for h in handles] == [45] * 8
    assert meter.most <= limit
    assert meter.calls == 80


@pytest.mark.parametrize("durability", ["sync", "exit", "async"])
async def test_both_limits_hold_together_in_every_mode(durability: str) -> None:
    meter = Meter()
    flow = fan_out(meter, 20, False)
    async with Engine("memory://", [flow], max_concurrency=5, durability=durability) as engine:
        handles = [await engine.start(flow(), max_concurrency=2) for _ in range(4)]
        assert [await h.result(PATIENCE) for h in handles] == [190] * 4
    assert meter.most <= 5
    assert meter.calls == 80


@pytest.mark.parametrize("limits", [(5, None), (1000, 5)], ids=["engine", "run"])
async def test_steps_that_are_held_back_are_planned_together(
    limits: tuple[int, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[int] = []

    def counted(state: RunState, commands: Sequence[Command], at: float) -> Plan:
        planned.append(len(commands))
        return plan(state, commands, at)

    monkeypatch.setattr("perdure.engine.driver.plan", counted)
    flow = fan_out(Meter(), 20, plain=False)
    engine_limit, run_limit = limits
    async with Engine(MemoryStore(), [flow], max_concurrency=engine_limit) as engine:
        run = await engine.start(flow(), max_concurrency=run_limit)
        assert await run.result(PATIENCE) == 190
    assert planned == [5, 5, 5, 5, 1], "as many as have room, each time, and the end"


async def test_a_limit_holds_after_a_crash() -> None:
    gates, meter = Gates(), Meter()

    @step
    async def part(n: int) -> int:
        with meter:
            await gates.wait("go")
            return n

    @workflow
    async def flow() -> int:
        return sum(await asyncio.gather(*(part(n) for n in range(10))))

    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [flow], recovery=AT_ONCE, on_commit=recorded) as engine:
        _ = await engine.start(flow(), id="it", max_concurrency=3)
        await recorded.until_started("part:2")
        found = left_by_a_crash(store)
    gates.open("go")
    async with Engine(found, [flow], recovery=AT_ONCE) as engine:
        assert await (await engine.start(flow(), id="it")).result(PATIENCE) == 45
    assert meter.most <= 3


async def test_a_retry_waits_for_room_like_any_step() -> None:
    gates, meter, recorded = Gates(), Meter(), Recorded()

    @step(retry=Retry(attempts=2, initial=0, jitter=False))
    async def flaky() -> str:
        with meter:
            if step_context().attempt == 1:
                raise ConnectionError("busy")
            return "flaky"

    @step
    async def hold() -> str:
        with meter:
            gates.open("holding")
            await gates.wait("hold")
            return "hold"

    @workflow
    async def flow() -> list[str]:
        return list(await asyncio.gather(flaky(), hold()))

    async with Engine("memory://", [flow], on_commit=recorded) as engine:
        handle = await engine.start(flow(), max_concurrency=1)
        await recorded.until(lambda e: isinstance(e, AttemptFailed))
        async with asyncio.timeout(PATIENCE):
            # Whichever of the two got the room; the other waits for it.
            await asyncio.wait(
                [asyncio.create_task(gates.wait("holding")), asyncio.create_task(recorded.until_succeeded("flaky:0"))],
                return_when=asyncio.FIRST_COMPLETED,
            )
        for _ in range(20):
            await asyncio.sleep(0)
        gates.open("hold")
        assert await handle.result(PATIENCE) == ["flaky", "hold"]
    assert meter.most == 1


async def test_a_step_that_is_given_up_makes_room_for_the_next() -> None:
    @step
    async def never() -> str:
        await asyncio.Event().wait()
        return "never"

    @step
    async def other() -> str:
        return "other"

    @workflow
    async def flow() -> list[str]:
        async def hurried() -> str:
            try:
                async with asyncio.timeout(0.01):
                    return await never()
            except TimeoutError:
                return "given up"

        return list(await asyncio.gather(hurried(), other()))

    async with Engine("memory://", [flow], recovery=AT_ONCE) as engine:
        handle = await engine.start(flow(), max_concurrency=1)
        assert await handle.result(PATIENCE) == ["given up", "other"]


async def test_a_step_that_is_given_up_while_it_waits_for_room_never_runs() -> None:
    gates = Gates()
    called: list[str] = []

    @step
    async def hold() -> str:
        await gates.wait("hold")
        return "held"

    @step
    async def late() -> str:
        called.append("late")
        return "late"

    @workflow
    async def flow() -> list[str]:
        async def hurried() -> str:
            try:
                async with asyncio.timeout(0.01):
                    return await late()
            except TimeoutError:
                gave_up.set()
                return "given up"

        gave_up = asyncio.Event()
        held = asyncio.ensure_future(hold())
        first = await hurried()
        return [first, await step_that_opens(), await held]

    @step
    def step_that_opens() -> str:
        return "opened"

    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [flow], recovery=AT_ONCE, on_commit=recorded) as engine:
        handle = await engine.start(flow(), max_concurrency=1)
        await recorded.until(lambda e: type(e).__name__ == "WaitResolved")
        gates.open("hold")
        assert await handle.result(PATIENCE) == ["given up", "opened", "held"]
    assert called == []
    await replay(flow, handle.run_id, store)


# --- nobody starves --------------------------------------------------------------------------------------------------


def holding(gates: Gates) -> tuple[Workflow[[str], str], Workflow[[str], str]]:
    @step
    async def hold(name: str) -> str:
        gates.open(f"{name} runs")
        await gates.wait(name)
        return name

    @workflow
    async def plain(name: str) -> str:
        return await hold(name)

    @workflow
    async def hurried(name: str) -> str:
        try:
            async with asyncio.timeout(0.01):
                return await hold(name)
        except TimeoutError:
            return "given up"

    return plain, hurried


async def test_room_that_one_run_no_longer_needs_goes_to_the_next() -> None:
    gates = Gates()
    plain, hurried = holding(gates)
    async with Engine("memory://", [plain, hurried], max_concurrency=1, recovery=AT_ONCE) as engine:
        first = await engine.start(plain("first"))
        await gates.wait("first runs")
        second = await engine.start(hurried("second"))
        third = await engine.start(plain("third"))
        assert await second.result(PATIENCE) == "given up"
        gates.open("first")
        gates.open("third")
        assert await first.result(PATIENCE) == "first"
        assert await third.result(PATIENCE) == "third"


async def test_room_offered_to_a_run_that_was_ended_goes_to_the_next() -> None:
    gates = Gates()
    plain, _ = holding(gates)
    async with Engine("memory://", [plain], max_concurrency=1, recovery=AT_ONCE) as engine:
        first = await engine.start(plain("first"))
        await gates.wait("first runs")
        _ = await engine.start(plain("second"), id="second")
        third = await engine.start(plain("third"))
        fourth = await engine.start(plain("second"), id="second", reuse="terminate_running")
        for name in ("first", "second", "third"):
            gates.open(name)
        handles: list[RunHandle[Any]] = [first, third, fourth]
        assert [await h.result(PATIENCE) for h in handles] == ["first", "third", "second"]


async def test_room_that_a_run_may_not_use_goes_to_another() -> None:
    gates = Gates()

    @step
    async def hold(name: str) -> str:
        gates.open(f"{name} runs")
        await gates.wait(name)
        return name

    @workflow
    async def pair(a: str, b: str) -> list[str]:
        return list(await asyncio.gather(hold(a), hold(b)))

    @workflow
    async def single(name: str) -> str:
        return await hold(name)

    async with Engine("memory://", [pair, single], max_concurrency=2, recovery=AT_ONCE) as engine:
        # Both of the engine's places are taken, and of those who wait the first may not use one.
        narrow = await engine.start(pair("a1", "a2"), max_concurrency=1)
        await gates.wait("a1 runs")
        x = await engine.start(single("x"))
        await gates.wait("x runs")
        y = await engine.start(single("y"))
        gates.open("x")
        assert await x.result(PATIENCE) == "x"
        async with asyncio.timeout(PATIENCE):
            await gates.wait("y runs")
        for name in ("a1", "a2", "y"):
            gates.open(name)
        assert await y.result(PATIENCE) == "y"
        assert await narrow.result(PATIENCE) == ["a1", "a2"]


async def test_many_runs_with_little_room_all_end() -> None:
    @step
    async def one(n: int) -> int:
        await asyncio.sleep(0)
        return n

    @workflow
    async def flow(n: int) -> int:
        a, b = await asyncio.gather(one(n), one(n))
        return a + b + await one(n)

    async with Engine("memory://", [flow], max_concurrency=3) as engine:
        handles = [await engine.start(flow(n), max_concurrency=1 + n % 2) for n in range(100)]
        assert [await h.result(PATIENCE) for h in handles] == [3 * n for n in range(100)]


# --- what cannot begin yet while the run only waits otherwise -------------------------------------------------------


@step
async def wanted(n: int) -> int:
    return n


@workflow
async def waits_beside() -> int:
    first, _ = await asyncio.gather(wanted(7), wait_signal("go", type=int))
    return first


def blocker(gates: Gates) -> Workflow[[], None]:
    @step
    async def block() -> None:
        await gates.wait("room")

    @workflow
    async def blocking() -> None:
        await block()

    return blocking


def is_held(event: object) -> bool:
    return isinstance(event, StepsHeld) and event.count == 1


async def test_a_step_that_found_no_room_is_begun_by_whoever_takes_over() -> None:
    gates, store, recorded = Gates(), MemoryStore(), Recorded()
    blocking = blocker(gates)
    async with Engine(
        store, [waits_beside, blocking], max_concurrency=1, on_commit=recorded, recovery=AT_ONCE
    ) as engine:
        _ = await engine.start(blocking(), id="b")
        await recorded.until_started("block:0")
        handle = await engine.start(waits_beside(), id="w")
        await recorded.until(is_held)
        assert [run.status for run in await engine.list(program="waits_beside")] == [RunStatus.RUNNING]
        found = left_by_a_crash(store)
    recorded = Recorded()
    async with Engine(found, [waits_beside], on_commit=recorded) as engine:
        await recorded.until_succeeded("wanted:0")
        await engine.signal("w", "go", 1)
        assert await (await engine.start(waits_beside(), id="w")).result(PATIENCE) == 7
    await replay(waits_beside, handle.run_id, found)


async def test_steps_that_wait_together_are_counted_once_and_down() -> None:
    gates, recorded = Gates(), Recorded()
    blocking = blocker(gates)
    flow = fan_out(Meter(), 20, False)
    async with Engine("memory://", [flow, blocking], max_concurrency=1, on_commit=recorded) as engine:
        first = await engine.start(blocking())
        await recorded.until_started("block:0")
        handles = [await engine.start(flow()) for _ in range(3)]
        gates.open("room")
        assert [await h.result(PATIENCE) for h in handles] == [190] * 3
        await first.result(PATIENCE)
    assert [event.count for event in recorded.events if isinstance(event, StepsHeld)] == [20] * 3


async def test_it_is_written_with_what_led_to_it_and_once() -> None:
    gates, recorded = Gates(), Recorded()
    blocking = blocker(gates)
    async with Engine("memory://", [waits_beside, blocking], max_concurrency=1, on_commit=recorded) as engine:
        _ = await engine.start(blocking())
        await recorded.until_started("block:0")
        handle = await engine.start(waits_beside(), id="w")
        await recorded.until(is_held)
        await engine.signal("w", "other", 1)
        gates.open("room")
        await recorded.until_succeeded("wanted:0")
        await engine.signal("w", "go", 1)
        assert await handle.result(PATIENCE) == 7
    [held] = [append for append in recorded.appends for b in append.batches if any(map(is_held, b.events))]
    assert any(isinstance(event, WaitOpened) for batch in held.batches for event in batch.events)
    assert sum(isinstance(event, StepsHeld) for event in recorded.events) == 1


async def test_a_step_that_is_given_up_before_it_found_room_leaves_a_run_that_waits() -> None:
    gates, recorded = Gates(), Recorded()
    blocking = blocker(gates)

    @workflow
    async def fickle() -> str:
        attempt = asyncio.ensure_future(wanted(1))
        await wait_signal("enough", type=int)
        attempt.cancel()
        return await wait_signal("end", type=str)

    async with Engine("memory://", [fickle, blocking], max_concurrency=1, on_commit=recorded) as engine:
        _ = await engine.start(blocking())
        await recorded.until_started("block:0")
        handle = await engine.start(fickle(), id="f")
        await recorded.until(is_held)
        await engine.signal("f", "enough", 1)
        await recorded.until(lambda event: isinstance(event, StepsHeld) and event.count == 0)
        assert [run.status for run in await engine.list(program="fickle")] == [RunStatus.WAITING]
        await engine.signal("f", "end", "done")
        assert await handle.result(PATIENCE) == "done"
        gates.open("room")
    assert not any(isinstance(event, StepStarted) and event.op == "wanted:0" for event in recorded.events)


async def test_what_is_next_when_an_engine_is_left_is_begun_by_the_next_though_the_run_waits() -> None:
    gates, store, recorded = Gates(), MemoryStore(), Recorded()

    @step
    async def slow() -> int:
        await gates.wait("slow")
        return 1

    @workflow
    async def flow() -> int:
        async def chain() -> int:
            return await wanted(await slow())

        result, _ = await asyncio.gather(chain(), wait_signal("go", type=int))
        return result

    def of(name: str, kind: type[StepStarted] | type[StepSucceeded]) -> Any:
        return lambda event: isinstance(event, kind) and op_name(event.op) == name

    async with Engine(store, [flow], on_commit=recorded) as engine:
        handle = await engine.start(flow(), id="w")
        await recorded.until(of("slow", StepStarted))
        asyncio.get_running_loop().call_later(0.01, gates.open, "slow")
    assert not any(map(of("wanted", StepStarted), recorded.events))
    recorded = Recorded()
    async with Engine(store, [flow], on_commit=recorded) as engine:
        await recorded.until(of("wanted", StepSucceeded))
        await engine.signal("w", "go", 1)
        assert await (await engine.start(flow(), id="w")).result(PATIENCE) == 1
    await replay(flow, handle.run_id, store)
