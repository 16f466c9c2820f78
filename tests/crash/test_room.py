"""A step that found no room before its process was killed: the next one begins it, whatever else the run waits for."""

from __future__ import annotations

import asyncio
from pathlib import Path

from perdure import RunStatus, connect
from perdure.kernel.events import StepsHeld, StepStarted
from tests.crash.harness import Children, audit, read_effects, until


async def statuses(db: Path) -> dict[str, RunStatus]:
    async with connect(f"sqlite:///{db}") as client:
        return {run.id: run.status for run in await client.list()}


def test_a_step_that_waited_for_room_is_begun_after_a_kill(children: Children, tmp_path: Path) -> None:
    db, effects = tmp_path / "runs.db", tmp_path / "effects"

    def executed(op: str) -> int:
        return sum(effect.op == op for effect in read_effects(effects)) if effects.exists() else 0

    def journaled() -> bool:
        return db.exists() and "crowded" in asyncio.run(statuses(db))

    first = children.start("crowded", tmp_path, db=str(db), effects=str(effects), room=1, blocked=True)
    until(lambda: executed("block:0"), what="for the step that takes the room")
    until(journaled, what="for the run that finds none")
    first.kill()
    assert executed("squeezed:0") == 0
    assert asyncio.run(statuses(db))["crowded"] is RunStatus.RUNNING
    second = children.start("crowded", tmp_path, db=str(db), effects=str(effects), room=8, blocked=False)
    until(lambda: executed("squeezed:0"), what="for the step to be begun by the next process")
    second.kill()
    [journal] = [one for one in audit(db).values() if one.id == "crowded"]
    events = [event for batch in journal.batches for event in batch.events]
    assert [event.count for event in events if isinstance(event, StepsHeld)] == [1]
    assert [event.op for event in events if isinstance(event, StepStarted)] == ["squeezed:0"]
