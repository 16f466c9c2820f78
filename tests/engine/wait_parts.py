"""Workflows that wait, and an engine that records what happens to them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from perdure import Engine, Workflow, step
from perdure.kernel.events import WaitOpened
from tests.engine.harness import AT_ONCE, Recorded, eventually


@step
async def note(text: str) -> str:
    return text


class World:
    """An engine with a recorder, on a store that a test chooses."""

    def __init__(self, url: str, programs: list[Workflow[Any, Any]]) -> None:
        self.recorded = Recorded()
        self.engine = Engine(url, programs, recovery=AT_ONCE, on_commit=self.recorded)

    async def opened(self, op: str) -> None:
        await self.recorded.until(lambda e: isinstance(e, WaitOpened) and e.op == op)


async def asleep(engine: Engine, run_id: str) -> Collection[str]:
    """Wait until a run has left memory; what is in memory then, and later."""
    assert engine._orchestrator is not None
    active = engine._orchestrator.active
    await eventually(lambda: run_id not in active)
    return active
