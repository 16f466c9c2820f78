"""`run(..., until="rest")`: back when nothing can go on without a person, and on with the answers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import (
    AnswerRejected,
    Engine,
    Retry,
    RunParked,
    RunStatus,
    UsageError,
    approval,
    blocking,
    child,
    connect,
    continue_as,
    lock,
    sleep,
    step,
    wait_signal,
    workflow,
)
from perdure.client.subscriptions import JournalFollowers
from perdure.ports.store import Store
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import PATIENCE, Gates, eventually
from tests.services.plugin import on_two_stores


@dataclass
class Decision:
    approved: bool
    note: str = ""


@step
async def price(n: int) -> int:
    return n * 2


@workflow
async def ship(n: int) -> str:
    total = await price(n)
    decision = await approval("ship", {"total": total}, Decision, timeout=timedelta(days=3))
    return f"{await price(total)} {decision.approved} {decision.note}"


@workflow
async def twice() -> list[bool]:
    return [(await approval("ok", schema=Decision)).approved, (await approval("ok", schema=Decision)).approved]


@workflow
async def both() -> list[Any]:
    return list(await asyncio.gather(approval("left", 1), wait_signal("right", type=str), inner()))


@workflow
async def inner() -> str:
    return await approval("left", "of the child", schema=str)


@on_two_stores
async def test_a_run_that_asks_comes_back_and_goes_on_with_the_answer(any_store: Store) -> None:
    async with Engine(any_store, [ship]) as engine:
        result = await engine.run(ship(3), id="r", until="rest")
        assert (result.status, repr(result.output), result.error) == (RunStatus.WAITING, "None", None)
        assert (result.interrupted, result.interrupt_name, result.suspend_payload) == (True, "ship", {"total": 6})
        assert result.resume_schema["$defs"]["Decision"]["required"] == ["approved"]
        assert result.interrupt is not None
        assert (result.interrupt.path, result.interrupt.kind, result.interrupt.id) == ("ship:0", "approval", "r")
        assert result.interrupt.deadline is not None
        answers = {"ship": Decision(True, "go")}
        result = await engine.run(ship(3), id="r", until="rest", answers=answers)
        assert (result.status, result.output, result.interrupts) == (RunStatus.COMPLETED, "12 True go", ())
        assert (result.interrupted, result.interrupt, result.suspend_payload) == (False, None, None)


async def test_a_client_waits_for_rest_and_answers_as_well(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url, [ship]) as engine, connect(url) as client:
        result = await client.run(ship(3), id="r", until="rest")
        assert result.interrupt_name == "ship"
        assert (await client.handle("r", ship).outcome(until="rest", answers={"ship:0": Decision(False)})).output == (
            "12 False "
        )
        assert await engine.handle("r").status() is RunStatus.COMPLETED


async def test_a_question_that_is_asked_again_comes_back_again() -> None:
    async with Engine("memory://", [twice]) as engine:
        first = await engine.run(twice(), id="r", until="rest", answers={"ok": Decision(True)})
        assert [one.path for one in first.interrupts] == ["ok:1"]
        assert (await engine.run(twice(), id="r", until="rest", answers={"ok": Decision(False)})).output == [
            True,
            False,
        ]


async def test_everything_that_is_asked_at_once_is_named_and_can_be_answered_by_its_path() -> None:
    async with Engine("memory://", [both, inner]) as engine:
        result = await engine.run(both(), id="r", until="rest")
        asked = {one.path: (one.name, one.kind, one.id, one.payload) for one in result.interrupts}
        assert asked == {
            "approval:0/left:0": ("left", "approval", "r", 1),
            "wait_signal:0/right:0": ("right", "signal", "r", None),
            "inner:0/left:0": ("left", "approval", "r/inner:0", "of the child"),
        }
        answers = {"approval:0/left:0": "a", "right": "b", "inner:0/left:0": "c"}
        result = await engine.run(both(), id="r", until="rest", answers=answers)
        assert result.output == ["a", "b", "c"]


async def test_what_still_runs_or_is_due_is_waited_for() -> None:
    gates, tries = Gates(), []

    @step
    async def gated() -> str:
        await gates.wait("go")
        return "gated"

    @step(retry=Retry(attempts=3, initial=0.01))
    async def flaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError
        return "flaky"

    @workflow
    async def busy() -> list[Any]:
        async def nap() -> str:
            await sleep(0.05)
            return "slept"

        return list(await asyncio.gather(approval("ok"), gated(), flaky(), nap()))

    async with Engine("memory://", [busy]) as engine:
        resting = asyncio.create_task(engine.run(busy(), id="r", until="rest"))
        with pytest.raises(TimeoutError):
            await engine.handle("r").outcome(0.2, until="rest") if await _begun(engine) else None
        assert not resting.done()
        gates.open("go")
        result = await asyncio.wait_for(resting, PATIENCE)
        assert [one.name for one in result.interrupts] == ["ok"]
        assert {view.name for view in await engine.steps("r") if view.status == "succeeded"} == {"gated", "flaky"}


async def _begun(engine: Engine) -> bool:
    async with asyncio.timeout(PATIENCE):
        while await engine.get("r") is None:
            await asyncio.sleep(0)
    return True


async def test_a_run_that_holds_a_lock_rests_and_one_that_waits_for_it_does_not() -> None:
    @workflow
    async def holds() -> None:
        async with lock("x"):
            await approval("ok")

    async with Engine("memory://", [holds]) as engine:
        assert (await engine.run(holds(), id="a", until="rest")).interrupt_name == "ok"
        _ = await engine.start(holds(), id="b")
        with pytest.raises(TimeoutError):
            await engine.handle("b").outcome(0.1, until="rest")
        assert (await engine.run(holds(), id="a", until="rest", answers={"ok": 1})).status is RunStatus.COMPLETED
        assert (await engine.handle("b").outcome(PATIENCE, until="rest")).interrupt_name == "ok"


async def test_a_run_that_is_paused_rests_and_one_that_is_parked_says_so() -> None:
    async with Engine("memory://", [ship]) as engine:
        _ = await engine.start(ship(1), id="r", delay=3600)
        await engine.pause("r")
        result = await engine.handle("r").outcome(PATIENCE, until="rest")
        assert (result.status, result.interrupts) == (RunStatus.PAUSED, ())


async def test_the_chain_of_a_run_that_goes_on_is_followed() -> None:
    @workflow
    async def loops(n: int) -> str:
        if n:
            continue_as(n - 1)
        return await approval("ok", schema=str)

    async with Engine("memory://", [loops]) as engine:
        assert (await engine.run(loops(3), id="r", until="rest")).interrupt_name == "ok"
        assert (await engine.run(loops(3), id="r", until="rest", answers={"ok": "yes"})).output == "yes"


async def test_with_answers_alone_the_end_is_waited_for() -> None:
    async with Engine("memory://", [ship]) as engine:
        result = await engine.run(ship(1), answers={"ship": Decision(True)})
        assert result.output == "4 True "


async def test_an_answer_that_nothing_asks_for_or_that_does_not_fit_is_refused_and_loses_nothing() -> None:
    async with Engine("memory://", [ship]) as engine:
        with pytest.raises(
            UsageError, match=r"answers=\{'shipp': ...\} answers nothing that run 'r' asks.*'ship' \(ship:0\)"
        ):
            await engine.run(ship(1), id="r", until="rest", answers={"shipp": Decision(True)})
        with pytest.raises(AnswerRejected):
            await engine.run(ship(1), id="r", until="rest", answers={"ship": 7})
        with pytest.raises(UsageError, match="neither 'end' nor 'rest'"):
            await engine.run(ship(1), id="never", until="later")  # type: ignore[arg-type]
        assert await engine.get("never") is None
        assert (await engine.run(ship(1), id="r", until="rest")).interrupt_name == "ship"


async def test_only_those_who_may_answer_do() -> None:
    @workflow
    async def guarded() -> str:
        return await approval("ok", schema=str, approvers=["ann"])

    async with Engine("memory://", [guarded]) as engine:
        with pytest.raises(AnswerRejected):
            await engine.run(guarded(), id="r", until="rest", answers={"ok": 1}, by="bob")
        assert (await engine.run(guarded(), id="r", until="rest", answers={"ok": "fine"}, by="ann")).output == "fine"


async def test_a_child_rests_with_the_run_at_the_top() -> None:
    @workflow
    async def outer() -> str:
        return await child(inner(), id="the-child")

    async with Engine("memory://", [outer, inner]) as engine:
        assert (await engine.run(outer(), id="r", until="rest")).interrupts[0].id == "the-child"
        with pytest.raises(UsageError, match="goes on with the run at the top"):
            await engine.handle("the-child").outcome(until="rest")


def test_blocking_code_and_scripts_do_the_same(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    with blocking.Engine(url, [ship]) as engine:
        assert engine.run(ship(1), id="r", until="rest").interrupt_name == "ship"
        assert engine.handle("r", ship).outcome(until="rest").interrupted
    assert perdure.run(ship(1), id="r", store=url, answers={"ship": Decision(True)}) == "4 True "
    with pytest.raises(UsageError, match=r"perdure.run\(\) returns the result"):
        perdure.run(ship(1), id="r", store=url, until="rest")


def asks(*prices: int) -> Any:
    @workflow(name="asks")
    async def asks() -> int:
        for one in prices:
            await price(one)
        return await wait_signal("go", type=int)

    return asks


@pytest.mark.parametrize("answers", [{}, {"go": 7}])
async def test_a_parked_run_that_goes_on_at_that_moment_is_waited_for_until_it_rests(
    answers: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    async with Engine(store, [asks(1)]) as engine:
        _ = await engine.run(asks(1)(), id="r", until="rest")
    async with Engine(store, [asks(2)]) as engine:
        await eventually(lambda: [row.status for row in store.journal.rows.values()] == [RunStatus.PARKED])
        seen = await engine.handle("r").outcome(PATIENCE, until="rest", answers=answers)
    assert (seen.status, type(seen.error)) == (RunStatus.PARKED, RunParked)
    assert "price" in str(seen.error)
    async with connect(store) as client:
        read = store.journal.read
        engines: list[Engine] = []

        async def then_goes_on(*args: Any, **kwargs: Any) -> Any:
            found = await read(*args, **kwargs)
            if not engines:
                engines.append(Engine(store, [asks(1)]))
                _ = await engines[0].__aenter__()
                await eventually(lambda: [row.status for row in store.journal.rows.values()] == [RunStatus.WAITING])
            return found

        handle = client.handle("r")
        monkeypatch.setattr(store.journal, "read", then_goes_on)
        again = await handle.outcome(PATIENCE, until="rest", answers=answers)
        assert again.output == 7 if answers else again.interrupt_name == "go"
        await engines[0].__aexit__(None, None, None)


async def test_a_caller_that_waits_again_at_once_is_still_notified(monkeypatch: pytest.MonkeyPatch) -> None:
    followers = JournalFollowers(MemoryStore())
    monkeypatch.setattr(followers, "subscribe", lambda: None)  # the store has no such journal
    with followers.follow("r") as follower:
        first = asyncio.create_task(follower.beyond(0))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(asyncio.get_running_loop().call_soon, followers.committed, "r", 1, True)
        first.cancel()  # which ends in the next turn of the loop
        async with asyncio.timeout(PATIENCE):
            assert await follower.beyond(0)
    await followers.close()
