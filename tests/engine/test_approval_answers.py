"""Answers to approvals: checked, escalated, accepted once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import Accepted, AnswerRejected, Duplicate, Engine, Finished, NotFound, RunStatus, approval, workflow
from perdure.kernel.events import WaitOpened, WaitResolved
from tests.engine.harness import PATIENCE, FakeClock, Recorded, replay
from tests.engine.wait_parts import World


@dataclass
class Decision:
    ok: bool
    note: str = ""


@workflow
async def ask(timeout: float | None = None) -> str:
    decision = await approval("ship", {"total": 5}, Decision, timeout, approvers=["ann"])
    return f"{type(decision).__name__} {decision.ok} {decision.note}"


async def test_an_answer_is_checked_before_it_is_accepted(url: str) -> None:
    world = World(url, [ask])
    async with world.engine as engine:
        run = await engine.start(ask(), id="it")
        await world.opened("ship:0")
        view = await engine.get("it")
        assert view is not None
        [wait] = view.waits
        assert (wait.kind, wait.name, wait.request, wait.approvers) == ("approval", "ship", {"total": 5}, ("ann",))
        with pytest.raises(AnswerRejected, match=r"\$\.ok"):
            await engine.approve("it", "ship", {"ok": "perhaps"}, by="ann")
        with pytest.raises(AnswerRejected, match="bob is not among ann"):
            await engine.approve("it", "ship", {"ok": True}, by="bob")
        assert await engine.approve("it", "other", {"ok": True}, by="ann") == NotFound()
        assert await engine.approve("it", "ship", {"ok": True, "note": "fine"}, "q1", "ann") == Accepted()
        assert await run.result(PATIENCE) == "Decision True fine"
        assert await engine.approve("it", "ship", {"ok": False}, "q1", "ann") == Duplicate()
        assert await engine.approve("it", "ship", {"ok": False}, "q2", "ann") == Finished(RunStatus.COMPLETED)
        [answered] = [e.event for e in await engine.journal("it") if isinstance(e.event, WaitResolved)]
        assert (answered.by, answered.answer_id) == ("answer:ann", "q1")
        await replay(ask, run.run_id, engine.store)


class Model(BaseModel):
    ok: bool


async def test_the_answer_may_be_a_pydantic_model(url: str) -> None:
    @workflow
    async def modelled() -> str:
        answer = await approval("ship", schema=Model)
        return f"{type(answer).__name__} {answer.ok}"

    world = World(url, [modelled])
    async with world.engine as engine:
        run = await engine.start(modelled(), id="it")
        await world.opened("ship:0")
        with pytest.raises(AnswerRejected, match="ok"):
            await engine.approve("it", "ship", {})
        assert await engine.approve("it", "ship", {"ok": True}) == Accepted()
        assert await run.result(PATIENCE) == "Model True"


async def test_others_may_answer_after_a_while() -> None:
    @workflow
    async def escalated() -> Any:
        return await approval("ship", approvers=["ann"], escalate=(60, ["boss"]))

    clock, recorded = FakeClock(), Recorded()
    async with Engine("memory://", [escalated], clock=clock, on_commit=recorded) as engine:
        run = await engine.start(escalated(), id="it")
        await recorded.until(lambda e: isinstance(e, WaitOpened))
        with pytest.raises(AnswerRejected):
            await engine.approve("it", "ship", "yes", by="boss")
        clock.advance(61)
        assert await engine.approve("it", "ship", "yes", by="boss") == Accepted()
        assert await run.result(PATIENCE) == "yes"


async def test_of_two_answers_at_once_one_wins_and_both_are_told(url: str) -> None:
    world = World(url, [ask])
    async with world.engine as engine:
        run = await engine.start(ask(), id="it")
        await world.opened("ship:0")
        answers = await asyncio.gather(
            *[engine.approve("it", "ship", {"ok": True, "note": str(i)}, f"q{i}", "ann") for i in range(5)]
        )
        assert answers.count(Accepted()) == 1
        winner = answers.index(Accepted())
        assert await run.result(PATIENCE) == f"Decision True {winner}"
