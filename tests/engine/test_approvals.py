"""What people are asked: listed over all runs, answered, rejected, escalated and expired."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Accepted,
    AnswerRejected,
    ApprovalRejected,
    ApprovalView,
    Duplicate,
    Engine,
    Finished,
    NotFound,
    RunStatus,
    SignalTimeout,
    approval,
    connect,
    wait_signal,
    workflow,
)
from perdure.kernel.events import WaitOpened, WaitResolved
from perdure.testing.simulation import Simulation
from tests.engine.harness import AT_ONCE, PATIENCE, FakeClock, Recorded, replay


@dataclass
class Decision:
    ok: bool
    note: str = ""


@workflow
async def ask(name: str = "ship", total: int = 5) -> str:
    try:
        decision = await approval(name, {"total": total}, Decision, approvers=["ann", "bob"])
    except ApprovalRejected as error:
        return f"no: {error.name} {error.by} {error.reason}"
    return f"yes: {decision.ok}"


@workflow
async def quiet() -> None:
    await wait_signal("never")


@workflow
async def both() -> list[Any]:
    return list(await asyncio.gather(approval("a"), approval("b"), approval("a")))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'approvals.db'}"


class World:
    """An engine, and a way to wait until a number of questions has been asked."""

    def __init__(self, url: str) -> None:
        self.recorded = Recorded()
        self.engine = Engine(url, [ask, quiet, both], recovery=AT_ONCE, on_commit=self.recorded)

    async def asked(self, count: int = 1) -> None:
        def enough(event: object) -> bool:
            return sum(isinstance(e, WaitOpened) and e.kind == "approval" for e in self.recorded.events) >= count

        await self.recorded.until(enough)


# --- listing ---------------------------------------------------------------------------------------------------------


async def test_open_approvals_of_all_runs_are_listed_with_what_a_person_needs(url: str) -> None:
    world = World(url)
    async with world.engine as engine:
        first = await engine.start(ask(), id="first")
        _ = await engine.start(quiet(), id="quiet")
        _ = await engine.start(ask("pay", 7), id="second")
        _ = await engine.start(both(), id="third")
        await world.asked(5)
        found = await engine.approvals()
        assert [(a.id, a.name, a.path) for a in found] == [
            ("first", "ship", "ship:0"),
            ("second", "pay", "pay:0"),
            ("third", "a", "approval:0/a:0"),
            ("third", "b", "approval:1/b:0"),
            ("third", "a", "approval:2/a:0"),
        ]
        ship = found[0]
        assert (ship.run_id, ship.program, ship.request) == (first.run_id, "ask", {"total": 5})
        assert (ship.approvers, ship.deadline, ship.escalates_at) == (("ann", "bob"), None, None)
        assert ship.schema["$defs"]["Decision"]["properties"]["ok"] == {"type": "boolean"}
        assert datetime.now(UTC) - ship.asked_at < timedelta(minutes=1)
        assert [a.path for a in await engine.approvals(name="a")] == ["approval:0/a:0", "approval:2/a:0"]
        assert [a.id for a in await engine.approvals(program="ask")] == ["first", "second"]
        assert [a.name for a in await engine.approvals(approver="bob")] == ["ship", "pay", "a", "b", "a"]
        assert [a.name for a in await engine.approvals(approver="eve")] == ["a", "b", "a"], "anyone may answer those"


async def test_what_has_been_answered_cancelled_or_ended_is_no_longer_listed(url: str) -> None:
    world = World(url)
    async with world.engine as engine:
        for id in ("answered", "rejected", "cancelled"):
            _ = await engine.start(ask(), id=id)
        await world.asked(3)
        assert len(await engine.approvals()) == 3
        await engine.approve("answered", "ship", {"ok": True}, by="ann")
        await engine.reject("rejected", "ship", by="ann")
        await engine.cancel("cancelled")
        for id in ("answered", "rejected", "cancelled"):
            _ = await (await engine.start(ask(), id=id)).outcome(PATIENCE)
        assert await engine.approvals() == []


async def test_only_the_journals_of_runs_that_ask_are_read(tmp_path: Path) -> None:
    world = World(f"sqlite:///{tmp_path / 'few.db'}")
    async with world.engine as engine:
        for n in range(20):
            _ = await engine.start(quiet(), id=f"quiet-{n}")
        _ = await engine.start(ask(), id="asks")
        await world.asked()
        read: list[int] = []
        journal = engine.store.journal
        read_many = journal.read_many

        async def counted(run_ids: Any) -> Any:
            read.append(len(run_ids))
            return await read_many(run_ids)

        journal.read_many = counted  # type: ignore[method-assign]
        assert [a.id for a in await engine.approvals()] == ["asks"]
        assert read == [1]


async def test_more_questions_than_fit_a_page_are_all_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.client.queries.ASKING_PAGE", 3)
    world = World("memory://")
    async with world.engine as engine:
        for n in range(8):
            _ = await engine.start(ask(), id=f"r{n}")
        await world.asked(8)
        assert sorted(a.id for a in await engine.approvals()) == [f"r{n}" for n in range(8)]


async def test_an_answer_that_comes_too_late_is_told_what_became_of_the_question(url: str) -> None:
    @workflow
    async def inner() -> None:
        await approval("deep")

    @workflow
    async def outer() -> None:
        await approval("first")
        with suppress(ApprovalRejected):
            await approval("second")
        with suppress(SignalTimeout):
            await approval("third", timeout=60)
        await inner()
        await wait_signal("end")

    async def late(name: str, id: str = "it") -> str:
        verdict = await engine.approve(id, name, 1)
        assert verdict == NotFound()
        assert isinstance(verdict, NotFound)
        assert await engine.reject(id, name) == verdict
        return verdict.reason

    clock = FakeClock()
    async with Engine(url, [outer, inner], clock=clock) as engine:
        _ = await engine.start(outer(), id="it")
        assert await late("third") == ""
        await _asks(engine, "first")
        assert await engine.approve("it", "first", 1, by="ann") == Accepted()
        await _asks(engine, "second")
        assert re.fullmatch(r"'first' was answered by ann at \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", await late("first"))
        assert (await late("first:0")).startswith("'first:0' was answered by ann at ")
        assert await engine.reject("it", "second") == Accepted()
        await _asks(engine, "third")
        assert (await late("second")).startswith("'second' was rejected at ")
        clock.advance(61)
        await _asks(engine, "deep")
        assert (await late("third")).startswith("'third' expired at ")
        assert await engine.approve("it", "deep", 1, by="bob") == Accepted()
        async with asyncio.timeout(PATIENCE):
            while (view := await engine.get("it")) is None or view.status is not RunStatus.WAITING:
                await asyncio.sleep(0)
        assert (await late("deep")).startswith("'deep' was answered by bob at ")
        assert await late("fourth") == ""


async def _asks(engine: Engine, name: str) -> None:
    """Wait until the run asks a question."""
    async with asyncio.timeout(PATIENCE):
        while [one.name for one in await engine.approvals()] != [name]:
            await asyncio.sleep(0)


# --- saying no -------------------------------------------------------------------------------------------------------


async def test_a_rejection_is_an_error_in_the_body_with_who_and_why(url: str) -> None:
    world = World(url)
    async with world.engine as engine:
        run = await engine.start(ask(), id="it")
        await world.asked()
        with pytest.raises(AnswerRejected, match="eve is not among ann, bob"):
            await engine.reject("it", "ship", "I say so", by="eve")
        assert await engine.reject("it", "pay", by="ann") == NotFound()
        assert await engine.reject("it", "ship", "too dear", "q1", "ann") == Accepted()
        assert await run.result(PATIENCE) == "no: ship ann too dear"
        assert await engine.reject("it", "ship", "again", "q1", "ann") == Duplicate()
        assert await engine.approve("it", "ship", {"ok": True}, "q1", "ann") == Duplicate()
        assert await engine.reject("it", "ship", by="ann") == Finished(RunStatus.COMPLETED)
        [entry] = [e for e in await engine.journal("it") if isinstance(e.event, WaitResolved)]
        assert isinstance(entry.event, WaitResolved)
        assert (entry.event.by, entry.event.answer_id, bytes(entry.event.value)) == (
            "rejected:ann",
            "q1",
            b'"too dear"',
        )
        assert datetime.now(UTC) - entry.at < timedelta(minutes=1)
        await replay(ask, run.run_id, engine.store)


async def test_a_body_that_does_not_expect_a_rejection_fails_with_it(url: str) -> None:
    world = World(url)
    async with world.engine as engine:
        run = await engine.start(both(), id="it")
        await world.asked(3)
        assert await run.reject("b", "never", by="ann") == Accepted()
        with pytest.raises(ApprovalRejected) as raised:
            await run.result(PATIENCE)
        assert (raised.value.name, raised.value.by, raised.value.reason) == ("b", "ann", "never")
        assert str(raised.value) == "'b' was rejected by ann: never"
        await replay(both, run.run_id, engine.store)


async def test_a_rejection_wakes_a_run_from_a_process_that_executes_nothing(tmp_path: Path) -> None:
    world = World(f"sqlite:///{tmp_path / 'two.db'}")
    async with world.engine as engine:
        run = await engine.start(ask(), id="it")
        await world.asked()
        async with connect(f"sqlite:///{tmp_path / 'two.db'}") as client:
            [asked] = await client.approvals()
            assert await client.reject(asked.id, asked.path, by="bob") == Accepted()
        assert await run.result(PATIENCE) == "no: ship bob "


async def test_one_of_several_questions_of_a_name_is_answered_by_its_path(url: str) -> None:
    world = World(url)
    async with world.engine as engine:
        run = await engine.start(both(), id="it")
        await world.asked(3)
        for refused in (run.approve("a", "which?"), engine.reject("it", "a"), engine.approve("it", "a", 1, "once")):
            with pytest.raises(AnswerRejected, match=r"asked more than once: approval:0/a:0, approval:2/a:0; give the"):
                await refused
        assert await run.approve("approval:2/a:0", "second", "once") == Accepted()
        assert await run.approve("a", "second", "once") == Duplicate()
        assert await run.approve("approval:2/a:0", "again") == NotFound()
        assert await run.approve("a", "first") == Accepted()
        assert await run.approve("b", "b") == Accepted()
        assert await run.result(PATIENCE) == ["first", "b", "second"]


async def test_of_several_questions_of_a_name_the_one_that_a_person_may_answer_is_answered() -> None:
    @workflow
    async def two() -> list[Any]:
        return list(await asyncio.gather(approval("ok", approvers=["ann"]), approval("ok", approvers=["bob"])))

    recorded = Recorded()
    async with Engine("memory://", [two], on_commit=recorded) as engine:
        run = await engine.start(two(), id="it")
        await recorded.until(lambda e: isinstance(e, WaitOpened) and e.op == "approval:1/ok:0")
        with pytest.raises(AnswerRejected, match="eve is not among ann, bob"):
            await engine.approve("it", "ok", 0, by="eve")
        assert await engine.approve("it", "ok", 2, by="bob") == Accepted()
        assert await engine.approve("it", "ok", 1, by="ann") == Accepted()
        assert await run.result(PATIENCE) == [1, 2]


# --- in time ---------------------------------------------------------------------------------------------------------


@workflow
async def patient() -> str:
    try:
        answer = await approval(
            "ship",
            timeout=timedelta(days=3),
            approvers=["ann"],
            escalate=(timedelta(days=1), ["boss"]),
        )
    except SignalTimeout as error:
        return str(error)
    return f"{answer}"


def play(scenario: Callable[[Simulation, Engine], Awaitable[None]]) -> None:
    """A scenario in virtual time with one run of `patient` that has asked."""
    sim = Simulation(seed=1)

    async def scene() -> None:
        async with sim.engine([patient]) as engine:
            _ = await engine.start(patient(), id="it")
            await sim.advance(seconds=1)
            await scenario(sim, engine)

    sim.play(scene())


async def only(engine: Engine) -> ApprovalView:
    [asked] = await engine.approvals()
    return asked


def test_a_question_is_escalated_after_a_while_and_listed_so() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        asked = await only(engine)
        assert asked.escalates_at is not None
        assert asked.deadline is not None
        assert (asked.escalates_at - asked.asked_at, asked.deadline - asked.asked_at) == (
            timedelta(days=1),
            timedelta(days=3),
        )
        assert asked.approvers == ("ann",)
        assert await engine.approvals(approver="boss") == []
        await sim.advance(hours=23)
        with pytest.raises(AnswerRejected):
            await engine.approve("it", "ship", "yes", by="boss")
        with pytest.raises(AnswerRejected):
            await engine.reject("it", "ship", by="boss")
        await sim.advance(hours=2)
        assert (await only(engine)).approvers == ("ann", "boss")
        assert [a.id for a in await engine.approvals(approver="boss")] == ["it"]
        assert await engine.approve("it", "ship", "yes", by="boss") == Accepted()
        assert await (await engine.start(patient(), id="it")).result() == "yes"

    play(scenario)


def test_a_question_expires_once_and_answers_come_too_late() -> None:
    async def scenario(sim: Simulation, engine: Engine) -> None:
        await sim.advance(days=2, hours=23)
        assert (await only(engine)).id == "it"
        await sim.advance(hours=2)
        run = await engine.start(patient(), id="it")
        assert await run.result() == "no approval 'ship' came in time"
        assert await engine.approvals() == []
        assert await engine.approve("it", "ship", "yes", by="ann") == Finished(RunStatus.COMPLETED)
        [resolved] = [e.event for e in await engine.journal("it") if isinstance(e.event, WaitResolved)]
        assert resolved.by == "timeout"

    play(scenario)


def test_a_question_expires_while_no_engine_lives_and_the_next_one_says_so() -> None:
    sim = Simulation(seed=2)

    async def ask_and_leave() -> None:
        async with sim.engine([patient]) as engine:
            _ = await engine.start(patient(), id="it")
            await sim.advance(seconds=1)

    async def come_back() -> str:
        await sim.advance(days=10)
        async with sim.engine([patient]) as engine:
            return await (await engine.start(patient(), id="it")).result()

    sim.play(ask_and_leave())
    assert sim.play(come_back()) == "no approval 'ship' came in time"
