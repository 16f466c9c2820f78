"""Signals, approvals, cancelling, pausing and published state."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import (
    Accepted,
    AlreadyFinished,
    AnswerRejected,
    Cancelled,
    Duplicate,
    Engine,
    Finished,
    NoSuchRun,
    NotDecodable,
    NotFound,
    RunCancelled,
    RunStatus,
    SignalRejected,
    SignalTimeout,
    Workflow,
    approval,
    connect,
    set_state,
    sleep,
    step,
    wait_signal,
    workflow,
)
from perdure.engine.outbox import extend
from perdure.kernel.events import RunClaimed, SignalReceived, WaitOpened, WaitResolved
from perdure.kernel.state import fold
from perdure.ports.journal import append_one
from perdure.testing.conformance.history import numbered
from tests.engine.harness import AT_ONCE, PATIENCE, FakeClock, Gates, Recorded, eventually, replay


@step
async def note(text: str) -> str:
    return text


@dataclass
class Decision:
    ok: bool
    note: str = ""


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


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'waits.db'}"


@workflow
async def collect(count: int) -> list[Any]:
    return [await wait_signal("item") for _ in range(count)]


@workflow
async def timed(seconds: float) -> str:
    try:
        return f"signal {await wait_signal('go', timeout=seconds)}"
    except TimeoutError as error:
        return type(error).__name__


# --- signals ---------------------------------------------------------------------------------------------------------


async def test_signals_that_come_early_are_kept_and_taken_in_their_order(url: str) -> None:
    @workflow
    async def late() -> list[int]:
        await note("first")
        return [await wait_signal("item", type=int) for _ in range(5)]

    world = World(url, [late])
    async with world.engine as engine:
        run = await engine.start(late(), id="it")
        for i in range(5):
            assert await engine.signal("it", "item", i) == Accepted()
        assert await run.result(PATIENCE) == [0, 1, 2, 3, 4]
        await replay(late, run.run_id, engine.store)


async def test_a_signal_wakes_a_run_that_has_left_memory(url: str) -> None:
    world = World(url, [collect])
    async with world.engine as engine:
        run = await engine.start(collect(2), id="it")
        await world.opened("item:0")
        await asleep(engine, run.run_id)
        await engine.signal("it", "item", "a")
        await engine.signal("it", "item", "b")
        assert await run.result(PATIENCE) == ["a", "b"]
        await replay(collect, run.run_id, engine.store)


async def test_a_run_that_waits_here_is_told_without_being_looked_up(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(url, [collect])
    async with world.engine as engine:
        run = await engine.start(collect(3), id="it")
        await world.opened("item:0")
        await asleep(engine, run.run_id)
        with monkeypatch.context() as patch:
            patch.setattr(engine.store.runs, "find", None)
            assert await engine.signal("it", "item", "a") == Accepted()  # it sleeps
            assert await engine.signal("it", "item", "b") == Accepted()  # it is in memory
        await engine.signal("it", "item", "c")
        assert await run.result(PATIENCE) == ["a", "b", "c"]
        assert isinstance(await engine.signal("it", "item", "d"), Finished)


async def test_a_run_that_waited_here_and_is_another_s_now_is_told_all_the_same(url: str) -> None:
    world = World(url, [collect])
    async with world.engine as engine:
        run = await engine.start(collect(2), id="it")
        await world.opened("item:0")
        active = await asleep(engine, run.run_id)
        # Somebody else has claimed it, and its row says so.
        state = fold(run.run_id, await engine.store.journal.read(run.run_id))
        assert await append_one(engine.store.journal, extend(state, [RunClaimed("other", 2, "s")], engine.clock.now()))
        assert await engine.signal("it", "item", "a") == Accepted()
        assert run.run_id not in active
        events = [event for _, event in await numbered(engine.store.journal, run.run_id)]
        assert [type(event) for event in events[-2:]] == [RunClaimed, SignalReceived]


async def test_a_signal_id_makes_a_signal_arrive_once(url: str) -> None:
    world = World(url, [collect])
    async with world.engine as engine:
        run = await engine.start(collect(2), id="it")
        assert await engine.signal("it", "item", "a", signal_id="1") == Accepted()
        assert await engine.signal("it", "item", "again", signal_id="1") == Duplicate()
        assert await engine.signal("it", "item", "b", signal_id="2") == Accepted()
        assert await run.result(PATIENCE) == ["a", "b"]
        assert await engine.signal("it", "item", "c", signal_id="3") == Finished(RunStatus.COMPLETED)
        assert await engine.signal("it", "item", "late", signal_id="1") == Duplicate()
        assert await engine.signal("nobody", "item") == NotFound()


async def test_a_wait_that_times_out_leaves_the_signal_to_the_next_wait() -> None:
    @workflow
    async def twice() -> list[str]:
        out = []
        for _ in range(2):
            try:
                out.append(await wait_signal("go", timeout=60))
            except SignalTimeout as error:
                out.append(str(error))
        return out

    clock, recorded = FakeClock(), Recorded()
    async with Engine("memory://", [twice], clock=clock, on_commit=recorded) as engine:
        run = await engine.start(twice(), id="it")
        await recorded.until(lambda e: isinstance(e, WaitOpened))
        clock.advance(61)
        await recorded.until(lambda e: isinstance(e, WaitOpened) and e.op == "go:1")
        await engine.signal("it", "go", "here")
        assert await run.result(PATIENCE) == ["no signal 'go' came in time", "here"]
        await replay(twice, run.run_id, engine.store)


async def test_a_signal_that_is_there_wins_over_a_timeout_that_is_due() -> None:
    clock, recorded = FakeClock(), Recorded()
    async with Engine("memory://", [timed], clock=clock, on_commit=recorded) as engine:
        run = await engine.start(timed(60.0), id="it")
        await recorded.until(lambda e: isinstance(e, WaitOpened))
        clock.advance(61)
        await engine.signal("it", "go", 1)
        assert await run.result(PATIENCE) in ("signal 1", "SignalTimeout")
        winners = [e for e in await engine.journal("it") if isinstance(e.event, WaitResolved)]
        assert len(winners) == 1
        await replay(timed, run.run_id, engine.store)


async def test_several_waits_may_be_open_at_once(url: str) -> None:
    @workflow
    async def both() -> list[str]:
        return list(await asyncio.gather(wait_signal("a"), wait_signal("b"), wait_signal("a")))

    world = World(url, [both])
    async with world.engine as engine:
        run = await engine.start(both(), id="it")
        for name, value in (("b", "b1"), ("a", "a1"), ("a", "a2")):
            await engine.signal("it", name, value)
        assert await run.result(PATIENCE) == ["a1", "b1", "a2"]
        await replay(both, run.run_id, engine.store)


async def test_a_wait_that_the_body_gives_up_takes_no_signal_with_it(url: str) -> None:
    @workflow
    async def pick() -> list[str]:
        waits = [asyncio.create_task(wait_signal("left")), asyncio.create_task(wait_signal("right"))]
        done, rest = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        first = next(iter(done)).result()
        return [first, await wait_signal("right" if first == "L" else "left")]

    world = World(url, [pick])
    async with world.engine as engine:
        run = await engine.start(pick(), id="it")
        await engine.signal("it", "left", "L")
        await engine.signal("it", "right", "R")
        assert sorted(await run.result(PATIENCE)) == ["L", "R"]
        await replay(pick, run.run_id, engine.store)


async def test_a_signal_reaches_a_body_whose_steps_wait_for_room(url: str) -> None:
    gates = Gates()

    @step
    async def slow(number: int) -> int:
        await gates.wait("slow")
        return number

    @workflow
    async def until_told() -> str:
        steps = [asyncio.create_task(slow(n)) for n in range(3)]
        told: str = await wait_signal("stop")
        for task in steps:
            task.cancel()
        return told

    world = World(url, [until_told])
    async with world.engine as engine:
        run = await engine.start(until_told(), id="it", max_concurrency=1)
        await world.opened("stop:0")
        await engine.signal("it", "stop", "enough")
        assert await run.result(PATIENCE) == "enough"
        await replay(until_told, run.run_id, engine.store)


async def test_signals_one_by_one_are_taken_by_a_run_that_stays_in_memory(url: str) -> None:
    world = World(url, [collect])
    async with world.engine as engine:
        run = await engine.start(collect(30), id="it")
        await world.opened("item:0")
        assert engine._orchestrator is not None
        driver = engine._orchestrator.active[run.run_id]
        for n in range(29):
            await engine.signal("it", "item", n)
            await world.opened(f"item:{n + 1}")
            assert engine._orchestrator.active[run.run_id] is driver, "it was not read anew"
        await engine.signal("it", "item", 29)
        assert await run.result(PATIENCE) == list(range(30))
        await replay(collect, run.run_id, engine.store)


async def test_signals_from_elsewhere_are_taken_by_a_run_that_stays_in_memory(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tail.db'}"
    world = World(url, [collect])
    async with world.engine as engine, connect(url) as client:
        run = await engine.start(collect(3), id="it")
        await world.opened("item:0")
        assert engine._orchestrator is not None
        driver = engine._orchestrator.active[run.run_id]
        for n in range(2):
            await client.signal("it", "item", n)
            await world.opened(f"item:{n + 1}")
            assert engine._orchestrator.active[run.run_id] is driver, "only the end of its journal was read"
        await client.signal("it", "item", 2)
        assert await run.result(PATIENCE) == [0, 1, 2]
        await replay(collect, run.run_id, engine.store)


async def test_a_run_that_waits_leaves_memory_after_a_moment_and_at_once_when_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("perdure.orchestrator.warm_cache.WARM_LIMIT", 3)
    monkeypatch.setattr("perdure.orchestrator.warm_cache.WARM_SECONDS", 0.05)
    world = World("memory://", [collect])
    async with world.engine as engine:
        assert engine._orchestrator is not None
        active = engine._orchestrator.active
        for n in range(10):
            _ = await engine.start(collect(1), id=f"r{n}")
        await eventually(lambda: len(active) <= 3)
        await eventually(lambda: not active)
        for n in range(10):
            await engine.signal(f"r{n}", "item", n)
        for n in range(10):
            assert await (await engine.start(collect(1), id=f"r{n}")).result(PATIENCE) == [n]


async def test_a_payload_that_does_not_fit_its_type_is_the_bodys_to_judge(url: str) -> None:
    @workflow
    async def strict() -> list[Any]:
        out: list[Any] = []
        while len(out) < 2:
            try:
                out.append(await wait_signal("n", type=int))
            except NotDecodable as error:
                out.append(str(error))
        return out

    world = World(url, [strict])
    async with world.engine as engine:
        run = await engine.start(strict(), id="it")
        await engine.pause("it")
        await engine.signal("it", "other", "nobody waits for it, and nobody knows its type")
        with pytest.raises(SignalRejected, match="not of type"):
            await engine.signal("it", "n", "not a number")
        await engine.signal("it", "n", 6)
        # Behind one that waits to be taken it is too early to say.
        await engine.signal("it", "n", "not a number")
        await engine.resume("it")
        number, message = await run.result(PATIENCE)
        assert message.startswith("the signal 'n' taken by n:1 cannot be read as int: ")
        assert number == 6


async def test_a_client_signals_a_run_of_an_engine_elsewhere(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'two.db'}"
    world = World(url, [collect])
    async with world.engine as engine:
        run = await engine.start(collect(3), id="it")
        async with connect(url) as client:
            for i in range(3):
                assert await client.signal("it", "item", i) == Accepted()
        assert await run.result(PATIENCE) == [0, 1, 2]


async def test_signals_sent_while_no_engine_lives_are_delivered_by_the_next(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'later.db'}"
    world = World(url, [collect])
    async with world.engine as engine:
        _ = await engine.start(collect(2), id="it")
        await world.opened("item:0")
    async with connect(url) as client:
        await client.signal("it", "item", "x")
        await client.signal("it", "item", "y")
    async with Engine(url, [collect]) as engine:
        assert await (await engine.start(collect(2), id="it")).result(PATIENCE) == ["x", "y"]


# --- approvals -------------------------------------------------------------------------------------------------------


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


# --- cancelling and pausing ------------------------------------------------------------------------------------------


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


# --- published state -------------------------------------------------------------------------------------------------


async def test_published_state_is_seen_while_the_run_goes_on_and_after(url: str) -> None:
    @workflow
    async def reporting() -> None:
        set_state("phase", "packing")
        set_state("done", {"boxes": 3})
        await wait_signal("go")
        set_state("phase", "sent")

    world = World(url, [reporting])
    async with world.engine as engine:
        run = await engine.start(reporting(), id="it")
        await world.opened("go:0")
        view = await engine.get("it")
        assert view is not None
        assert view.state == {"phase": "packing", "done": {"boxes": 3}}
        await engine.signal("it", "go")
        await run.result(PATIENCE)
        view = await engine.get("it")
        assert view is not None
        assert view.state["phase"] == "sent"
        await replay(reporting, run.run_id, engine.store)
