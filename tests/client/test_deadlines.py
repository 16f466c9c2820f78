"""A deadline holds in every status, on every store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import DeadlineExceeded, Engine, Queue, RunStatus, step, wait_signal, workflow
from perdure.ports.store import Store
from tests.engine.harness import PATIENCE
from tests.services.plugin import on_two_stores

called: list[str] = []


@step
async def work() -> None:
    called.append("work")


@workflow
async def waiting() -> None:
    await wait_signal("go")
    await work()


@on_two_stores
@pytest.mark.parametrize("how", ["delayed", "queued", "paused", "waiting"])
async def test_a_run_that_does_not_get_on_is_failed_at_its_deadline(any_store: Store, how: str) -> None:
    kinds: dict[str, dict[str, Any]] = {"delayed": {"delay": 3600}, "queued": {"queue": "one"}}
    options = kinds.get(how, {})
    async with Engine(any_store, [waiting], queues=[Queue("one", concurrency=1)]) as engine:
        if how == "queued":
            _ = await engine.start(waiting(), queue="one")
        run = await engine.start(waiting(), id="r", deadline=0.3, **options)
        if how == "paused":
            _ = await engine.pause("r")
        async with asyncio.timeout(PATIENCE * 4):
            with pytest.raises(DeadlineExceeded):
                await run.result()
        assert await run.status() is RunStatus.FAILED
    assert called == []
