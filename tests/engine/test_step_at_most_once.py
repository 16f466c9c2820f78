"""Steps that run at most once, whatever crashes."""

from __future__ import annotations

import asyncio

from perdure import Engine, OutcomeUnknown, StepStatus, step, step_context, workflow
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, Gates, Recorded, crashed, left_by_a_crash


async def test_an_at_most_once_step_is_not_tried_again_after_a_crash() -> None:
    calls: list[int] = []

    @step(at_most_once=True)
    async def launch() -> None:
        calls.append(step_context().attempt)
        await asyncio.Event().wait()

    @workflow
    async def flow() -> list[str]:
        try:
            await launch()
        except OutcomeUnknown as error:
            return [error.op, error.key]
        return []

    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [flow], recovery=AT_ONCE, on_commit=recorded) as engine:
        handle = await engine.start(flow(), id="it")
        await recorded.until_started("launch:0")
        found = left_by_a_crash(store)
    async with Engine(found, [flow], recovery=AT_ONCE) as engine:
        op, key = await (await engine.start(flow(), id="it")).result(PATIENCE)
        [view] = await engine.steps("it")
    assert (op, key) == ("launch:0", f"{handle.run_id}/launch:0")
    assert calls == [1]
    assert view.status is StepStatus.UNKNOWN


async def test_an_at_most_once_step_that_ended_before_the_crash_keeps_its_result() -> None:
    @step(at_most_once=True)
    async def launch() -> str:
        return "launched"

    @step
    async def watch() -> None:
        await gates.wait("watch")

    @workflow
    async def flow() -> str:
        result = await launch()
        await watch()
        return result

    gates = Gates()
    found = await crashed(flow(), "watch:0")
    gates.open("watch")
    async with Engine(found, [flow], recovery=AT_ONCE) as engine:
        assert await (await engine.start(flow(), id="it")).result(PATIENCE) == "launched"
