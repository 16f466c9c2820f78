"""What a step knows about itself."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from perdure import Engine, PerdureError, step, step_context, workflow
from tests.engine.harness import AT_ONCE, PATIENCE, FakeClock, Gates, Recorded, crashed, only, run
from tests.engine.step_parts import QUICK, TooBusy


async def test_a_step_knows_its_key_run_and_attempt_and_the_key_is_the_same_for_every_attempt() -> None:
    seen: list[tuple[str, str, int]] = []

    @step(retry=QUICK)
    async def flaky() -> None:
        context = step_context()
        seen.append((context.id, context.run_id, context.attempt))
        if context.attempt < 3:
            raise TooBusy("busy")

    @workflow
    async def flow() -> None:
        await flaky()
        await flaky()

    ran = await run(flow())
    assert seen == [
        *[(f"{ran.run_id}/flaky:0", ran.run_id, n) for n in (1, 2, 3)],
        *[(f"{ran.run_id}/flaky:1", ran.run_id, n) for n in (1, 2, 3)],
    ]


async def test_the_key_is_the_same_after_a_crash() -> None:
    seen: list[str] = []

    @step
    async def slow() -> None:
        seen.append(step_context().id)
        if step_context().attempt == 1:
            await asyncio.Event().wait()

    flow = only(slow)

    found = await crashed(flow(), "slow:0")
    async with Engine(found, [flow], recovery=AT_ONCE) as engine:
        await (await engine.start(flow(), id="it")).result(PATIENCE)
    assert len(seen) == 2
    assert seen[0] == seen[1]


async def test_a_step_knows_its_deadline() -> None:
    @step(timeout=60)
    def with_timeout() -> datetime | None:
        return step_context().deadline

    @step
    async def without() -> datetime | None:
        return step_context().deadline

    @workflow
    async def flow() -> list[datetime | None]:
        return [await with_timeout(), await without()]

    clock = FakeClock()
    assert (await run(flow(), clock=clock)).output == [datetime.fromtimestamp(clock.now() + 60, UTC), None]


async def test_the_deadline_of_a_run_bounds_the_deadline_of_its_steps() -> None:
    @step(timeout=60)
    async def look() -> datetime | None:
        return step_context().deadline

    flow = only(look)

    clock = FakeClock()
    async with Engine("memory://", [flow], clock=clock) as engine:
        result = await engine.run(flow(), deadline=30)
    assert result.output == datetime.fromtimestamp(clock.now() + 30, UTC)


async def test_the_deadline_of_a_step_that_had_to_queue_counts_from_its_start() -> None:
    clock, gates = FakeClock(), Gates()

    @step
    async def hold() -> None:
        await gates.wait("hold")

    @step(timeout=60)
    async def look() -> datetime | None:
        return step_context().deadline

    @workflow
    async def flow() -> datetime | None:
        _, deadline = await asyncio.gather(hold(), look())
        return deadline

    recorded = Recorded()
    async with Engine("memory://", [flow], clock=clock, max_concurrency=1, on_commit=recorded) as engine:
        handle = await engine.start(flow())
        await recorded.until_started("hold:0")
        clock.advance(600)
        gates.open("hold")
        deadline = await handle.result(PATIENCE)
    assert deadline == datetime.fromtimestamp(clock.now() + 60, UTC)


async def test_step_context_outside_a_step_says_so() -> None:
    with pytest.raises(PerdureError, match="only inside a step"):
        step_context()

    @workflow
    async def flow() -> None:
        step_context()

    error = (await run(flow())).result.error
    assert isinstance(error, PerdureError)
    assert "only inside a step" in str(error)
