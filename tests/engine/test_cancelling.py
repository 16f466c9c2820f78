"""Cancelling and pausing runs."""

from __future__ import annotations

import asyncio

import pytest

from perdure import (
    Accepted,
    AlreadyFinished,
    Cancelled,
    Finished,
    NoSuchRun,
    RunCancelled,
    RunStatus,
    sleep,
    step,
    workflow,
)
from tests.engine.harness import PATIENCE, Gates, replay
from tests.engine.wait_parts import World, note


@step
async def endless() -> None:
    await asyncio.Event().wait()


@workflow
async def careful() -> str:
    try:
        await endless()
        return "done"
    finally:
        await note("cleaned up")


async def test_a_cancelled_body_cleans_up_with_steps_and_its_run_is_cancelled(url: str) -> None:
    world = World(url, [careful])
    async with world.engine as engine:
        run = await engine.start(careful(), id="it")
        await world.recorded.until_started("endless:0")
        assert await engine.cancel("it", "changed my mind") == Cancelled()
        with pytest.raises(RunCancelled, match="changed my mind"):
            await run.result(PATIENCE)
        await world.recorded.until_succeeded("note:0")
        assert await engine.cancel("it") == AlreadyFinished(RunStatus.CANCELLED)
        await replay(careful, run.run_id, engine.store)


async def test_a_run_that_sleeps_or_is_queued_can_be_cancelled(url: str) -> None:
    @workflow
    async def nap() -> None:
        await sleep(86400)

    world = World(url, [nap])
    async with world.engine as engine:
        asleep = await engine.start(nap(), id="asleep")
        await world.opened("sleep:0")
        queued = await engine.start(nap(), id="queued", delay=3600)
        assert await engine.cancel("asleep") == Cancelled()
        assert await engine.cancel("queued") == Cancelled()
        assert (await asleep.outcome(PATIENCE)).status is RunStatus.CANCELLED
        assert (await queued.outcome(PATIENCE)).status is RunStatus.CANCELLED
        with pytest.raises(NoSuchRun):
            await engine.cancel("nobody")


async def test_cancel_against_completion_has_one_winner_and_the_caller_is_told(url: str) -> None:
    @workflow
    async def quick() -> str:
        return await note("done")

    world = World(url, [quick])
    async with world.engine as engine:
        for i in range(40):
            run = await engine.start(quick(), id=f"r{i}")
            for _ in range(i % 8):
                await asyncio.sleep(0)
            verdict = await engine.cancel(run.id)
            status = (await run.outcome(PATIENCE)).status
            if isinstance(verdict, Cancelled):
                assert status is RunStatus.CANCELLED
            else:
                assert verdict == AlreadyFinished(status)


async def test_a_paused_run_begins_nothing_and_goes_on_when_it_is_resumed(url: str) -> None:
    gates = Gates()

    @step
    async def first() -> str:
        await gates.wait("first")
        return "first"

    @workflow
    async def two() -> list[str]:
        return [await first(), await note("second")]

    world = World(url, [two])
    async with world.engine as engine:
        run = await engine.start(two(), id="it")
        await world.recorded.until_started("first:0")
        assert await engine.pause("it") == Accepted()
        gates.open("first")
        await world.recorded.until_succeeded("first:0")
        assert await run.status() is RunStatus.PAUSED
        assert not [e for e in world.recorded.events if getattr(e, "op", "") == "note:0"]
        assert await engine.resume("it") == Accepted()
        assert await run.result(PATIENCE) == ["first", "second"]
        assert await engine.pause("it") == Finished(RunStatus.COMPLETED)
        await replay(two, run.run_id, engine.store)
