"""Leaving an engine hands its runs over; another one goes on with them, and repeats nothing that was done."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Engine,
    PerdureError,
    Recovery,
    RunStatus,
    StepStatus,
    UnknownProgram,
    UsageError,
    connect,
    sleep,
    step,
    step_context,
    workflow,
)
from perdure.engine.steps import Attempt, StepRunner
from perdure.kernel.events import RunClaimed, RunReleased, WaitOpened
from perdure.ports.leases import ORCHESTRATOR
from perdure.stores.memory.store import MemoryStore
from perdure.stores.open import open_store
from tests.engine.harness import (
    AT_ONCE,
    PATIENCE,
    FakeClock,
    Gates,
    Recorded,
    eventually,
    left_by_a_crash,
    replay,
)


class Parts:
    """A workflow of three steps that note their calls; the middle one waits for the test."""

    def __init__(self) -> None:
        self.gates = Gates()
        self.called: list[str] = []
        parts = self

        @step
        async def part(name: str) -> str:
            parts.called.append(f"{name}{step_context().attempt}")
            parts.gates.open(f"{name} runs")
            if name == "b":
                await parts.gates.wait("b")
            return name

        @workflow
        async def flow() -> list[str]:
            return [await part("a"), await part("b"), await part("c")]

        self.flow = flow


@pytest.mark.parametrize("where", ["memory", "sqlite"])
async def test_leaving_an_engine_releases_its_runs_and_another_goes_on(where: str, tmp_path: Any) -> None:
    parts = Parts()
    flow = parts.flow
    memory = MemoryStore()

    def store() -> Any:
        return memory if where == "memory" else open_store(f"sqlite:///{tmp_path}/x.db")

    async with Engine(store(), [flow], recovery=AT_ONCE, name="first") as engine:
        handle = await engine.start(flow(), id="it")
        await parts.gates.wait("b runs")
    parts.gates.open("b")
    async with Engine(store(), [flow], recovery=AT_ONCE, name="second") as engine:
        again = await engine.start(flow(), id="it")
        assert again.run_id == handle.run_id
        assert await again.result(PATIENCE) == ["a", "b", "c"]
        events = [e.event for e in await engine.journal("it")]
        view = await engine.get("it")
    assert parts.called == ["a1", "b1", "b2", "c1"]
    assert [e.owner for e in events if isinstance(e, RunReleased)] == ["first"]
    assert [(e.owner, e.epoch) for e in events if isinstance(e, RunClaimed)] == [("first", 1), ("second", 2)]
    assert view is not None
    assert (view.owner, view.epoch) == ("second", 2)


async def test_leaving_waits_a_moment_for_steps_that_are_nearly_done() -> None:
    parts = Parts()
    store = MemoryStore()
    async with Engine(store, [parts.flow], recovery=Recovery(grace=5)) as engine:
        _ = await engine.start(parts.flow(), id="it")
        await parts.gates.wait("b runs")
        asyncio.get_running_loop().call_soon(parts.gates.open, "b")
    async with Engine(store, [parts.flow], recovery=AT_ONCE) as engine:
        assert await (await engine.start(parts.flow(), id="it")).result(PATIENCE) == ["a", "b", "c"]
    # What was under way when the engine was left had its outcome recorded, and was not called again.
    assert [name[0] for name in parts.called] == ["a", "b", "c"]


async def test_leaving_cancels_steps_that_take_longer() -> None:
    cancelled: list[str] = []
    gates = Gates()

    @step
    async def slow() -> None:
        gates.open("runs")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("slow")
            raise

    @workflow
    async def flow() -> None:
        await slow()

    async with Engine("memory://", [flow], recovery=AT_ONCE) as engine:
        _ = await engine.start(flow())
        await gates.wait("runs")
    await asyncio.sleep(0)
    assert cancelled == ["slow"]


async def test_a_running_engine_takes_over_what_another_leaves() -> None:
    parts = Parts()
    store = MemoryStore()
    async with Engine(store, [parts.flow], recovery=AT_ONCE, name="second") as second:
        async with Engine(store, [parts.flow], recovery=AT_ONCE, name="first") as first:
            _ = await first.start(parts.flow(), id="it")
            await parts.gates.wait("b runs")
        parts.gates.open("b")
        handle = await second.start(parts.flow(), id="it")
        assert await handle.result(PATIENCE) == ["a", "b", "c"]
    assert parts.called == ["a1", "b1", "b2", "c1"]


async def test_a_running_engine_wakes_the_sleeping_runs_of_one_that_left() -> None:
    @workflow
    async def nap() -> str:
        await sleep(timedelta(hours=1))
        return "awake"

    clock, recorded, store = FakeClock(), Recorded(), MemoryStore()
    first = await Engine(store, [nap], clock=clock, on_commit=recorded, name="first").open()
    handle = await first.start(nap(), id="it")
    await recorded.until(lambda e: isinstance(e, WaitOpened))
    async with Engine(store, [nap], clock=clock, name="second") as second:
        await first.close()
        clock.advance(7200)
        again = await second.start(nap(), id="it")
        assert again.run_id == handle.run_id
        assert await again.result(PATIENCE) == "awake"


async def test_a_dead_owners_runs_are_taken_over_when_its_lease_has_run_out() -> None:
    parts = Parts()
    store = MemoryStore()
    async with Engine(store, [parts.flow], recovery=AT_ONCE, name="first") as first:
        handle = await first.start(parts.flow(), id="it")
        await parts.gates.wait("b runs")
        found = left_by_a_crash(store)
    clock = FakeClock(first.clock.now())
    await found.leases.acquire("orchestrator:first", "first", 30, clock.now())
    parts.gates.open("b")
    quick = Recovery(grace=0, check_interval=0.02, lease=30)
    async with Engine(found, [parts.flow], recovery=quick, name="second", clock=clock) as second:
        waiting = await second.start(parts.flow(), id="it")
        with pytest.raises(TimeoutError):
            await waiting.result(0.1)
        assert [type(e.event) for e in await second.journal("it")].count(RunClaimed) == 1
        clock.advance(31)
        assert await waiting.result(PATIENCE) == ["a", "b", "c"]
    assert waiting.run_id == handle.run_id
    assert parts.called == ["a1", "b1", "b2", "c1"]


async def test_a_step_of_a_dead_owner_shows_as_unknown() -> None:
    parts = Parts()
    store = MemoryStore()
    async with Engine(store, [parts.flow], recovery=AT_ONCE) as engine:
        _ = await engine.start(parts.flow(), id="it")
        await parts.gates.wait("b runs")
        found = left_by_a_crash(store)
        assert [s.status for s in await engine.steps("it")] == [StepStatus.SUCCEEDED, StepStatus.RUNNING]
    async with connect(found) as client:
        assert [s.status for s in await client.steps("it")] == [StepStatus.SUCCEEDED, StepStatus.UNKNOWN]


async def test_an_engine_of_the_same_name_takes_its_own_runs_back_at_once() -> None:
    parts = Parts()
    store = MemoryStore()
    async with Engine(store, [parts.flow], recovery=AT_ONCE, name="worker-1") as engine:
        _ = await engine.start(parts.flow(), id="it")
        await parts.gates.wait("b runs")
        found = left_by_a_crash(store)
    await found.leases.acquire("orchestrator:worker-1", "worker-1", 3600, engine.clock.now())
    parts.gates.open("b")
    async with Engine(found, [parts.flow], recovery=AT_ONCE, name="worker-1") as engine:
        assert await (await engine.start(parts.flow(), id="it")).result(PATIENCE) == ["a", "b", "c"]


async def test_recovery_brings_back_more_runs_than_one_batch() -> None:
    gates = Gates()

    @step
    async def hold(n: int) -> int:
        await gates.wait("go")
        return n

    @workflow
    async def flow(n: int) -> int:
        return await hold(n)

    store = MemoryStore()
    async with Engine(store, [flow], recovery=AT_ONCE) as engine:
        for n in range(25):
            _ = await engine.start(flow(n), id=f"run {n}")
        found = left_by_a_crash(store)
    gates.open("go")
    async with Engine(found, [flow], recovery=Recovery(grace=0, max_startup=4)) as engine:
        handles = [await engine.start(flow(n), id=f"run {n}") for n in range(25)]
        assert [await h.result(PATIENCE) for h in handles] == list(range(25))


async def test_runs_of_a_program_that_nobody_has_are_parked_with_a_warning_and_go_on_when_somebody_has_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parts = Parts()

    @workflow
    async def other() -> int:
        return 1

    store = MemoryStore()
    async with Engine(store, [parts.flow], name="w", recovery=AT_ONCE) as engine:
        handle = await engine.start(parts.flow(), id="it")
        await parts.gates.wait("b runs")
        found = left_by_a_crash(store)
    with caplog.at_level(logging.WARNING, logger="perdure"):
        async with Engine(found, [other], name="w", recovery=AT_ONCE) as engine:
            assert (await engine.run(other())).output == 1
            await eventually(lambda: found.journal.rows[handle.run_id].status is RunStatus.PARKED)
    assert any("'flow'" in r.getMessage() and "Engine(store" in r.getMessage() for r in caplog.records)
    parts.gates.open("b")
    async with Engine(found, [other, parts.flow], recovery=AT_ONCE) as engine:
        assert await (await engine.start(parts.flow(), id="it")).result(PATIENCE) == ["a", "b", "c"]


async def test_a_step_whose_start_is_on_its_way_to_the_store_does_not_hold_up_the_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    @step
    async def first() -> None:
        calls.append("first")

    @step
    async def second() -> None:
        calls.append("second")
        await asyncio.Event().wait()

    @workflow
    async def flow() -> None:
        await first()
        await second()

    engine = Engine(f"sqlite:///{tmp_path}/x.db", [flow], recovery=Recovery(grace=100 * PATIENCE))
    closing: list[asyncio.Task[None]] = []
    start = StepRunner.start

    def close_now(runner: StepRunner, attempt: Attempt) -> None:
        if attempt.call.command.op == "second:0" and not closing:
            assert engine._orchestrator is not None
            engine._orchestrator._begin_to_close()
            runner.withdraw()
            closing.append(asyncio.get_running_loop().create_task(engine.close()))
        start(runner, attempt)

    monkeypatch.setattr(StepRunner, "start", close_now)
    async with asyncio.timeout(PATIENCE):
        _ = await engine.open()
        run = await engine.start(flow(), id="it")
        await eventually(lambda: bool(closing))
        await closing[0]
    assert calls == ["first"]
    monkeypatch.undo()
    async with connect(f"sqlite:///{tmp_path}/x.db") as client:
        view = await client.get(run.run_id)
    assert view is not None
    assert (view.status, view.owner) == (RunStatus.RUNNING, None)


async def test_signs_of_life_go_on_while_a_step_has_its_grace() -> None:
    parts, store = Parts(), MemoryStore()
    engine = Engine(store, [parts.flow], name="w1", recovery=Recovery(lease=9, grace=100 * PATIENCE))

    async def expires() -> float:
        lease = await store.leases.get(f"{ORCHESTRATOR}w1", engine.clock.now())
        assert lease is not None
        return lease.expires

    async with asyncio.timeout(PATIENCE):
        _ = await engine.open()
        run = await engine.start(parts.flow(), id="it")
        await parts.gates.wait("b runs")
        closing = asyncio.create_task(engine.close())
        before = await expires()
        while await expires() == before:
            await asyncio.sleep(0.01)
        assert store.journal.rows[run.run_id].owner == "w1"
        parts.gates.open("b")
        await closing
    assert store.journal.rows[run.run_id].owner is None
    assert await store.leases.get(f"{ORCHESTRATOR}w1", engine.clock.now()) is None


# --- using an engine wrongly -----------------------------------------------------------------------------------------


@workflow
async def trivial() -> int:
    return 1


async def test_an_engine_cannot_be_opened_twice() -> None:
    async with Engine("memory://", [trivial]) as engine:
        with pytest.raises(UsageError, match="already open"):
            _ = await engine.open()
        assert (await engine.run(trivial())).output == 1


@pytest.mark.parametrize("where", ["memory", "sqlite"])
async def test_an_engine_that_is_not_open_says_so(where: str, tmp_path: Any) -> None:
    url = "memory://" if where == "memory" else f"sqlite:///{tmp_path}/x.db"
    engine = Engine(url, [trivial])
    with pytest.raises(UsageError, match="not open"):
        _ = await engine.start(trivial())
    async with engine:
        handle = await engine.start(trivial(), id="it")
        assert await handle.result(PATIENCE) == 1
    for call in (
        lambda: engine.start(trivial()),
        lambda: engine.run(trivial()),
        lambda: engine.get("it"),
        lambda: engine.list(),
        lambda: engine.steps("it"),
        lambda: engine.journal("it"),
        lambda: handle.result(),
        lambda: handle.status(),
    ):
        with pytest.raises(UsageError, match="not open"):
            await call()


async def test_closing_twice_is_closing_once() -> None:
    engine = await Engine("memory://", [trivial]).open()
    await engine.close()
    await engine.close()


async def test_a_result_awaited_while_the_engine_is_left_raises_a_clear_error() -> None:
    parts = Parts()
    async with Engine("memory://", [parts.flow], recovery=AT_ONCE) as engine:
        handle = await engine.start(parts.flow())
        waiting = asyncio.create_task(handle.result())
        await parts.gates.wait("b runs")
    done, _ = await asyncio.wait([waiting], timeout=PATIENCE)
    assert done
    # Not CancelledError: nobody cancelled the caller, and a task group would take it for a quiet end.
    assert not waiting.cancelled()
    assert isinstance(waiting.exception(), PerdureError)


async def test_an_unknown_program_names_the_cure() -> None:
    @workflow
    async def missing() -> int:
        return 1

    async with Engine("memory://", [trivial]) as engine:
        with pytest.raises(UnknownProgram, match=r"Engine\(store, \[\.\.\., missing\]\)") as caught:
            _ = await engine.start(missing(), id="it")
        assert caught.value.name == "missing"
        assert "trivial" in str(caught.value)
        assert await engine.get("it") is None


def test_two_programs_of_one_name_are_refused() -> None:
    @workflow(name="trivial")
    async def impostor() -> int:
        return 2

    with pytest.raises(UsageError, match="'trivial'"):
        _ = Engine("memory://", [trivial, impostor])
    _ = Engine("memory://", [trivial, trivial])


def test_what_is_no_program_is_refused() -> None:
    async def bare() -> None: ...

    @step
    async def a_step() -> None: ...

    for wrong in (bare, a_step, "trivial", trivial()):
        with pytest.raises(UsageError, match="workflow"):
            _ = Engine("memory://", [wrong])  # type: ignore[list-item]


def test_an_engine_needs_room_for_at_least_one_step() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        _ = Engine("memory://", [trivial], max_concurrency=0)


async def test_what_is_no_invocation_is_refused() -> None:
    async with Engine("memory://", [trivial]) as engine:
        with pytest.raises(UsageError, match="invocation"):
            _ = await engine.start(trivial)  # type: ignore[arg-type]
        assert await engine.list() == []


async def test_an_engine_can_be_opened_again_after_it_was_closed() -> None:
    store = MemoryStore()
    engine = Engine(store, [trivial])
    async with engine:
        await engine.run(trivial(), id="one")
    async with engine:
        assert (await engine.run(trivial(), id="two")).status is RunStatus.COMPLETED
        assert len(await engine.list()) == 2


async def test_engines_on_two_stores_run_side_by_side() -> None:
    async with Engine("memory://", [trivial]) as a, Engine("memory://", [trivial]) as b:
        await a.run(trivial(), id="it")
        assert await b.get("it") is None


async def test_a_run_started_while_the_engine_is_being_left_is_refused_or_kept() -> None:
    store = MemoryStore()
    accepted: list[str] = []

    async def starter(engine: Engine) -> None:
        n = 0
        while True:
            try:
                accepted.append((await engine.start(trivial(), id=f"run {n}")).run_id)
            except UsageError:
                return
            n += 1
            await asyncio.sleep(0)

    async with Engine(store, [trivial], recovery=AT_ONCE) as engine:
        task = asyncio.create_task(starter(engine))
        await eventually(lambda: len(accepted) > 20)
    await asyncio.wait_for(task, PATIENCE)
    async with Engine(store, [trivial], recovery=AT_ONCE):
        await eventually(lambda: all(store.journal.rows[r].status is RunStatus.COMPLETED for r in accepted))
    await replay(trivial, accepted[-1], store)
