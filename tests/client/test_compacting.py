"""The journals of finished runs become smaller on request; replay and audit find what they need."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure import Engine, Retry, UsageError, sleep, step, step_context, workflow
from perdure.kernel.events import ChunkAppended, StepProgressed
from perdure.kernel.projection import project
from perdure.testing import replay


@step(retry=Retry(attempts=2, initial=0.0))
async def talk() -> int:
    for number in range(5):
        step_context().emit(number)
        await asyncio.sleep(0)
    step_context().heartbeat(progress=1)
    if step_context().attempt < 2:
        raise ConnectionError("away")
    return 5


@workflow
async def nested() -> int:
    return await talk()


@workflow
async def chatty() -> int:
    return await talk() + await nested()


@workflow
async def endless() -> None:
    await sleep(1e6)


async def test_a_compacted_run_is_the_same_run_without_what_its_steps_showed(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/runs.db", [chatty, nested]) as engine:
        run = await engine.start(chatty(), id="c")
        assert await run.result() == 10
        before, steps, view = await engine.journal("c"), await engine.steps("c"), await engine.get("c")
        dry = await engine.compact("c", dry_run=True)
        assert len(await engine.journal("c")) == len(before)
        report = await engine.compact("c")
        assert report == dry
        after = await engine.journal("c")
        assert (report.events_before, report.events_after) == (len(before), len(after))
        assert report.bytes_after < report.bytes_before
        assert [e.seq for e in after] == list(range(len(after)))
        shown = (ChunkAppended, StepProgressed)
        assert [e.event for e in after] == [e.event for e in before if not isinstance(e.event, shown)]
        assert [(s.path, s.output, len(s.attempts), s.attempts[0].error) for s in await engine.steps("c")] == [
            (s.path, s.output, len(s.attempts), s.attempts[0].error) for s in steps
        ]
        now = await engine.get("c")
        assert view is not None
        assert now is not None
        assert (now.output, now.status, now.finished_at) == (view.output, view.status, view.finished_at)
        rebuilt = project(run.run_id, await engine.store.journal.read(run.run_id))
        assert rebuilt == await engine.store.runs.get(run.run_id)
        again = await engine.compact(f"{run.run_id}/nested:0")
        assert again.events_after == again.events_before == report.events_after


def test_a_compacted_run_replays() -> None:
    async def record() -> bytes:
        async with Engine("memory://", [chatty, nested]) as engine:
            await engine.run(chatty(), id="c")
            await engine.compact("c")
            return await engine.export("c")

    replay(asyncio.run(record()), chatty, nested).check()


async def test_a_run_that_goes_on_is_not_compacted() -> None:
    async with Engine("memory://", [endless]) as engine:
        _ = await engine.start(endless(), id="e")
        with pytest.raises(UsageError, match="has not finished"):
            await engine.compact("e")
