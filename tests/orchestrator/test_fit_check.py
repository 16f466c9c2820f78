"""Runs that wait are held against the code when an engine starts: a misfit is parked then, and not when it is due."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from perdure import (
    Engine,
    Queue,
    Retry,
    RunStatus,
    Workflow,
    approval,
    child,
    connect,
    sleep,
    step,
    wait_signal,
    workflow,
)
from perdure.cli.runs import _unparked
from perdure.kernel.divergence.recorder import PART
from perdure.kernel.divergence.repair import Repairs
from perdure.kernel.events import RunParked as RunParkedEvent
from perdure.kernel.events import RunResumed
from perdure.kernel.replay import Replay
from perdure.orchestrator import fit_check
from perdure.orchestrator.fit_check import SKEW, FitCheck, FitReport, short_collections
from perdure.orchestrator.session import Session
from perdure.ports.runs import RunFilter
from perdure.ports.store import Store
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, FakeClock
from tests.orchestrator.steps import called, charge, ship
from tests.services.plugin import on_two_stores

failed: list[int] = []


@pytest.fixture(autouse=True)
def _no_failures() -> None:
    failed.clear()


@step(retry=Retry(attempts=3, initial=60, jitter=False))
async def flaky(n: int) -> int:
    if not failed:
        failed.append(n)
        raise ConnectionError("not now")
    return n


@workflow(name="job")
async def sleeping(n: int) -> int:
    paid = await charge(n)
    await sleep(3600)
    return paid


@workflow(name="job")
async def asking(n: int) -> int:
    paid = await charge(n)
    return paid if await approval("ok", None, bool) else 0


@workflow(name="job")
async def listening(n: int) -> int:
    paid = await charge(n)
    await wait_signal("go")
    return paid


@workflow(name="job")
async def backing_off(n: int) -> int:
    await charge(n)
    return await flaky(n)


@workflow
async def part(n: int) -> int:
    await sleep(3600)
    return n


@workflow(name="job")
async def parent(n: int) -> int:
    await charge(n)
    return await child(part(n))


@workflow(name="job")
async def changed(n: int) -> int:
    await ship(n)
    return await charge(n)


@workflow(name="job")
async def other_input(name: str, of: int) -> int:
    return await ship(of)


@workflow(name="task")
async def renamed(n: int) -> int:
    return await charge(n)


KINDS: dict[str, tuple[Workflow[..., Any], dict[str, Any], RunStatus]] = {
    "sleep": (sleeping, {}, RunStatus.WAITING),
    "approval": (asking, {}, RunStatus.WAITING),
    "signal": (listening, {}, RunStatus.WAITING),
    "retry": (backing_off, {}, RunStatus.WAITING),
    "child": (parent, {}, RunStatus.WAITING),
    "paused": (listening, {}, RunStatus.PAUSED),
    "queued": (sleeping, {"queue": "slow"}, RunStatus.QUEUED),
    "delayed": (sleeping, {"delay": 3600}, RunStatus.QUEUED),
}
BEGUN = [kind for kind, (_, options, _) in KINDS.items() if not options]


def engine_of(store: Store, clock: FakeClock, *programs: Workflow[..., Any], name: str = "w", **options: Any) -> Engine:
    return Engine(store, [*programs, part], name=name, recovery=AT_ONCE, clock=clock, **options)


async def until(condition: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.01)


async def has(engine: Engine, status: RunStatus, id: str = "it") -> bool:
    view = await engine.get(id)
    return view is not None and view.status is status


async def waiting(store: Store, clock: FakeClock, kind: str) -> Workflow[..., Any]:
    """A run that waits in some way, and is in no memory."""
    program, options, status = KINDS[kind]
    # A queue that has no room.
    async with engine_of(store, clock, program, queues=[Queue("slow", concurrency=1)]) as engine:
        if kind == "queued":
            _ = await engine.start(sleeping(0), id="first", queue="slow")
            await until(lambda: has(engine, RunStatus.WAITING, "first"))
        _ = await engine.start(program(1), id="it", **options)
        if kind == "paused":
            await until(lambda: has(engine, RunStatus.WAITING))
            await engine.pause("it")
        await until(lambda: has(engine, status))
    called.clear()
    return program


def check_of(engine: Engine) -> FitCheck:
    assert engine._service is not None
    return engine._service.fit_check


async def checked(engine: Engine) -> FitReport:
    """The report of one more pass, after the first one."""
    _ = await first(engine)
    return await check_of(engine).run_once(0)


async def resumptions(engine: Engine) -> list[str]:
    return [entry.event.reason for entry in await engine.journal("it") if isinstance(entry.event, RunResumed)]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_that_waits_and_does_not_fit_is_parked_at_the_deploy_and_waits_on_after_the_next(kind: str) -> None:
    store, clock = MemoryStore(), FakeClock()
    program = await waiting(store, clock, kind)
    misfit = changed if kind in BEGUN else other_input
    async with engine_of(store, clock, misfit) as engine:
        await until(lambda: has(engine, RunStatus.PARKED))
        view = await engine.get("it")
        assert view is not None
        assert view.parked == ("diverged" if kind in BEGUN else "undecodable")
        assert view.reason in str(await engine.why("it")) or str(await engine.why("it")).startswith(view.parked)
    async with engine_of(store, clock, misfit) as engine:
        _ = await checked(engine)
        assert await has(engine, RunStatus.PARKED)
    assert called == []
    status = KINDS[kind][2]
    async with engine_of(store, clock, program, queues=[Queue("slow", concurrency=1)]) as engine:
        await until(lambda: has(engine, status))
        assert await resumptions(engine) == ["deployed code fits again"]
        assert called == []
        if kind == "paused":
            await engine.resume("it")
            await engine.signal("it", "go")
        if kind == "approval":
            await engine.approve("it", "ok", True)
        if kind == "signal":
            await engine.signal("it", "go")
        if kind == "queued":
            await engine.cancel("first")
            clock.advance(3601)
        else:
            clock.advance(3601)
        if kind in ("queued", "delayed"):
            await until(lambda: has(engine, RunStatus.WAITING))
            clock.advance(3601)
        assert await engine.handle("it").result(PATIENCE) == 1


@pytest.mark.parametrize("kind", BEGUN)
async def test_a_run_of_a_renamed_program_is_parked_at_the_deploy_whatever_it_waits_for(kind: str) -> None:
    store, clock = MemoryStore(), FakeClock()
    program = await waiting(store, clock, kind)
    async with engine_of(store, clock, renamed) as engine:
        await until(lambda: has(engine, RunStatus.PARKED))
        view = await engine.get("it")
        assert view is not None
        assert view.parked == "no_program"
        assert "@workflow(name='job')" in view.reason
        assert str(await engine.why("it")).startswith("no_program: this engine has no program named 'job'")
    async with engine_of(store, clock, program) as engine:
        await until(lambda: has(engine, KINDS[kind][2]))
        assert await resumptions(engine) == ["an engine has its program again"]
    assert called == []


async def test_on_every_store_a_misfit_is_parked_and_what_fits_is_only_read(any_store: Store) -> None:
    clock = FakeClock()
    async with engine_of(any_store, clock, listening, renamed) as engine:
        for n in range(12):
            _ = await engine.start(listening(n), id=f"run {n}", tags={"of": "us"})
        for n in range(12):
            await until(lambda n=n: has(engine, RunStatus.WAITING, f"run {n}"))  # type: ignore[misc]
    called.clear()
    async with engine_of(any_store, clock, listening) as engine:
        await until(lambda: _checked_all(engine, 12))
        heads = [(await engine.get(f"run {n}")).next_seq for n in range(12)]  # type: ignore[union-attr]
        assert (await checked(engine)).checked == 0
        assert [(await engine.get(f"run {n}")).next_seq for n in range(12)] == heads  # type: ignore[union-attr]
    for program, kind in ((changed, "diverged"), (renamed, "no_program")):
        async with engine_of(any_store, clock, program) as engine:
            await until(lambda: _all(engine, RunStatus.PARKED))
            assert {(await engine.get(f"run {n}")).parked for n in range(12)} == {kind}  # type: ignore[union-attr]
        async with engine_of(any_store, clock, listening) as engine:
            await until(lambda: _all(engine, RunStatus.WAITING))
    assert called == []


async def _checked_all(engine: Engine, count: int) -> bool:
    return len(check_of(engine)._fits) == count


async def _all(engine: Engine, status: RunStatus) -> bool:
    return all(view.status is status for view in await engine.list(tags={"of": "us"}, limit=1000))


# --- several engines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deployed", [changed, renamed])
async def test_what_another_live_engine_may_continue_is_left_to_it_and_parked_when_it_is_gone(
    deployed: Workflow[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    store, clock = MemoryStore(), FakeClock()
    _ = await waiting(store, clock, "signal")
    old = await engine_of(store, clock, listening, name="old").open()
    async with engine_of(store, clock, deployed) as engine:
        await until(lambda: _left(engine))
        assert await has(engine, RunStatus.WAITING)
        assert "1 waiting run of `job` does not fit the code of orchestrator w" in caplog.text
        assert (await checked(engine)).checked == 0
        await old.close()
        check_of(engine).request()
        await until(lambda: has(engine, RunStatus.PARKED))
    async with engine_of(store, clock, listening, name="old") as engine:
        await until(lambda: has(engine, RunStatus.WAITING))
        await engine.signal("it", "go")
        assert await engine.handle("it").result(PATIENCE) == 1


async def _left(engine: Engine) -> bool:
    return bool(check_of(engine)._left)


async def test_a_run_that_a_live_engine_owns_is_not_touched() -> None:
    store, clock = MemoryStore(), FakeClock()
    async with engine_of(store, clock, listening, name="old") as old:
        _ = await old.start(listening(1), id="it")
        await until(lambda: has(old, RunStatus.WAITING))
        async with engine_of(store, clock, changed) as engine:
            assert (await checked(engine)).checked == 0
            await old.signal("it", "go")
            assert await old.handle("it").result(PATIENCE) == 1


async def test_an_engine_with_other_programs_parks_nothing_that_it_never_had() -> None:
    store, clock = MemoryStore(), FakeClock()
    _ = await waiting(store, clock, "signal")
    async with engine_of(store, clock, renamed, name="another") as engine:
        _ = await checked(engine)
        assert await has(engine, RunStatus.WAITING)
        assert "no worker has `job`" in str(await engine.why("it"))


async def test_an_engine_that_serves_other_queues_leaves_the_rest_alone() -> None:
    store, clock = MemoryStore(), FakeClock()
    _ = await waiting(store, clock, "signal")
    async with engine_of(store, clock, changed, serves=["mail"]) as engine:
        assert (await checked(engine)).checked == 0
        assert await has(engine, RunStatus.WAITING)


async def test_a_signal_that_comes_first_wins_over_the_parking() -> None:
    """The parking is a compare-and-swap: an append that comes first is read, and the run is judged with it."""
    store, clock = MemoryStore(), FakeClock()
    _ = await waiting(store, clock, "signal")
    async with engine_of(store, clock, changed) as engine:
        await engine.signal("it", "go")
        await until(lambda: has(engine, RunStatus.PARKED))
        events = [entry.event for entry in await engine.journal("it")]
        assert sum(isinstance(event, RunParkedEvent) for event in events) == 1
    async with engine_of(store, clock, listening) as engine:
        assert await engine.handle("it").result(PATIENCE) == 1


# --- time -----------------------------------------------------------------------------------------------------------


def test_garbage_collections_leave_out_what_was_there_before_unless_the_process_sees_to_it_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collector = SimpleNamespace(frozen=0)
    collector.freeze = lambda: setattr(collector, "frozen", 9)
    collector.unfreeze = lambda: setattr(collector, "frozen", 0)
    collector.get_freeze_count = lambda: collector.frozen
    monkeypatch.setattr(fit_check, "gc", collector)
    with short_collections():
        with short_collections():
            pass  # of another engine
        assert collector.frozen
    assert not collector.frozen


async def test_runs_are_replayed_in_short_turns_and_read_once() -> None:
    store, clock = MemoryStore(), FakeClock()
    async with engine_of(store, clock, listening) as engine:
        for n in range(60):
            _ = await engine.start(listening(n), id=f"run {n}", tags={"of": "us"})
        await until(lambda: _all(engine, RunStatus.WAITING))
    called.clear()
    async with engine_of(store, clock, renamed, name="other") as engine:
        _ = await checked(engine)
        check, read, read_many = check_of(engine), list[int](), store.journal.read_many

        async def counted(run_ids: Sequence[str]) -> Any:
            read.append(len(run_ids))
            return await read_many(run_ids)

        store.journal.read_many = counted  # type: ignore[method-assign]
        check._foreign.clear()
        engine._programs.add(listening)
        ticks = iter(range(10**9))
        check.time = lambda: next(ticks) / 1024  # a millisecond passes with each look at the clock
        report = await checked(engine)
        # The clock is read when a run was opened, after each part and each run: 3 ms are over within the second run.
        # Ten are read at a time, in eight turns.
        assert (report.checked, report.turns) == (60, 48)
        assert read == [10] * 6
        before = store.version()
        assert await checked(engine) == FitReport()
        assert len(read) == 6
        assert store.version() == before
    assert called == []


@on_two_stores
async def test_the_next_process_with_the_same_code_reads_no_journal_that_fits(any_store: Store) -> None:
    clock = FakeClock()
    async with engine_of(any_store, clock, listening) as engine:
        for n in range(110):
            _ = await engine.start(listening(n), id=f"run {n}", tags={"of": "us"})
        await until(lambda: _all(engine, RunStatus.WAITING))
    for expected in (110, 0):
        async with engine_of(any_store, clock, listening) as engine:
            report = await first(engine)
            assert (report.checked, report.parked) == (expected, 0)
    # One has gone on, and is read again.
    async with engine_of(any_store, clock, listening) as engine:
        await engine.signal("run 7", "something else")
    async with engine_of(any_store, clock, listening) as engine:
        assert (await first(engine)).checked == 1
    # Other code is another matter, and what it parks fits again afterwards.
    async with engine_of(any_store, clock, changed) as engine:
        assert (await first(engine)).parked == 110
    async with engine_of(any_store, clock, listening) as engine:
        await until(lambda: _all(engine, RunStatus.WAITING))


async def test_what_has_not_changed_since_all_journals_fitted_is_not_even_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, clock = MemoryStore(), FakeClock()
    listed = list[str]()

    def counted(filter: RunFilter) -> Any:
        async def page() -> Any:
            found = await read(filter)
            listed.extend(row.id for row, _ in found if filter.changed_since is not None)
            return found

        return page()

    read = store.runs.list
    monkeypatch.setattr(store.runs, "list", counted)

    async def pass_(program: Workflow[..., Any] = listening, **options: Any) -> FitReport:
        listed.clear()
        async with engine_of(store, clock, program, **options) as engine:
            return await first(engine)

    async with engine_of(store, clock, listening) as engine:
        for n in range(110):
            _ = await engine.start(listening(n), id=f"run {n}", tags={"of": "us"})
        await until(lambda: _all(engine, RunStatus.WAITING))
    # By clocks that may differ these could have changed since: they are listed, and not read again.
    assert (await pass_()).checked == 110
    assert ((await pass_()).checked, len(listed)) == (0, 110)
    # The moment of a pass is kept when it has checked something. A client may append whatever the code is.
    clock.advance(2 * SKEW)
    async with connect(store, clock=clock) as client:
        _ = await client.signal("run 7", "something else")
    assert ((await pass_()).checked, len(listed)) == (1, 110)
    assert ((await pass_()).checked, listed) == (0, ["run 7"])
    # Where one is owned by a live orchestrator, the pass leaves the moment as it was.
    clock.advance(2 * SKEW)
    async with engine_of(store, clock, listening, name="other") as other:
        _ = await first(other)
        _ = await other.start(listening(0), id="another", tags={"of": "them"})
        await until(lambda: _all(other, RunStatus.WAITING))
        assert ((await pass_(name="third")).checked, sorted(listed)) == (0, ["another", "run 7"])
    # Other code reads everything, and so does this code after what that has parked.
    assert (await pass_(changed)).parked == 111
    async with engine_of(store, clock, listening) as engine:
        await until(lambda: _all(engine, RunStatus.WAITING))


async def first(engine: Engine) -> FitReport:
    """The report of the first pass of an engine."""
    check = check_of(engine)

    async def over() -> bool:
        return check.last is not None

    await until(over)
    assert check.last is not None
    return check.last


async def test_a_long_journal_is_replayed_in_parts() -> None:
    @workflow(name="job")
    async def long(n: int) -> int:
        for i in range(100):
            _ = await charge(i)
        await wait_signal("go")
        return n

    store, clock = MemoryStore(), FakeClock()
    async with engine_of(store, clock, long) as engine:
        _ = await engine.start(long(1), id="it")
        await until(lambda: has(engine, RunStatus.WAITING))
    async with engine_of(store, clock, long) as engine:
        _ = await checked(engine)
        check = check_of(engine)
        check._fits.clear()
        ticks = iter(range(10**9))
        check.time = lambda: next(ticks) / 1024
        report = await checked(engine)
        assert report.checked == 1
        assert report.turns >= 2


async def test_a_misfit_is_explained_and_mended_in_parts_and_its_code_read_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No callback of the event loop replays more than a part of the journal, and none compiles or compares code."""

    @workflow(name="job")
    async def long(n: int) -> int:
        for i in range(100):
            _ = await charge(i)
        await wait_signal("go")
        return n

    @workflow(name="job")
    async def longer(n: int) -> int:
        for i in range(100):
            _ = await charge(i)
            if i == 60:
                _ = await ship(i)
        await wait_signal("go")
        return n

    store, clock = MemoryStore(), FakeClock()
    async with engine_of(store, clock, long) as engine:
        _ = await engine.start(long(1), id="it")
        await until(lambda: has(engine, RunStatus.WAITING))
    folded: list[int] = []
    read_by: set[int] = set()
    fold, in_callback, repair = Replay.fold, Session.in_callback, Repairs.repair

    def counted(replay: Replay, *args: Any) -> None:
        folded[-1:] = [folded[-1] + 1]
        fold(replay, *args)

    async def apart(session: Session, function: Callable[[], Any]) -> Any:
        def called() -> Any:
            folded.append(0)
            return function()

        return await in_callback(session, called)

    def repaired(*args: Any) -> Any:
        repairing: Any = repair(*args)
        sent = None
        while True:
            read_by.add(threading.get_ident())
            try:
                sent = yield repairing.send(sent)
            except StopIteration as done:
                return done.value

    monkeypatch.setattr(Replay, "fold", counted)
    monkeypatch.setattr(Session, "in_callback", apart)
    monkeypatch.setattr(Repairs, "repair", repaired)
    async with engine_of(store, clock, longer) as engine:
        # The time of the check does not pass: it would take all parts in one turn.
        ticks = iter(range(10**9))
        check_of(engine).time = lambda: next(ticks) / 1024
        await until(lambda: has(engine, RunStatus.PARKED))
        view = await engine.get("it")
    assert view is not None
    assert "It was tried on the journal of this run" in view.reason
    assert sum(folded) > 300, "it was replayed, explained, and replayed with a fix"
    assert max(folded) < 4 * PART
    assert threading.get_ident() not in read_by


# --- it says when it healed -----------------------------------------------------------------------------------------


async def test_it_logs_once_for_each_program_how_many_parked_runs_go_on(caplog: pytest.LogCaptureFixture) -> None:
    store, clock = MemoryStore(), FakeClock()
    async with engine_of(store, clock, listening, renamed) as engine:
        for n in range(60):
            _ = await engine.start(listening(n), id=f"run {n}", tags={"of": "us"})
        await until(lambda: _all(engine, RunStatus.WAITING))
    async with engine_of(store, clock, changed, renamed) as engine:
        await until(lambda: _all(engine, RunStatus.PARKED))
    caplog.clear()
    with caplog.at_level(logging.INFO, "perdure"):
        async with engine_of(store, clock, listening, renamed) as engine:
            await until(lambda: _all(engine, RunStatus.WAITING))
    said = [record.getMessage() for record in caplog.records if "parked" in record.getMessage()]
    assert said == ["60 parked runs of `job` continue (deployed code fits again)"]


async def test_a_run_that_is_resolved_by_hand_says_so() -> None:
    store, clock = MemoryStore(), FakeClock()
    program = await waiting(store, clock, "signal")
    async with engine_of(store, clock, changed) as engine:
        await until(lambda: has(engine, RunStatus.PARKED))
        await engine.resolve("it")
        await until(lambda: has(engine, RunStatus.PARKED))
    async with engine_of(store, clock, program) as engine:
        await until(lambda: has(engine, RunStatus.WAITING))
        assert await resumptions(engine) == ["resolved by hand", "deployed code fits again"]


def defined(*, fits: bool) -> Workflow[..., Any]:
    """A workflow that is defined again, as in a notebook: its place is the same."""

    @workflow(name="cell")
    async def cell(n: int) -> int:
        paid = await charge(n) if fits else await ship(n)
        await wait_signal("go")
        return paid

    return cell


async def test_a_program_that_is_defined_again_has_its_parked_and_waiting_runs_tried_at_once() -> None:
    store, clock = MemoryStore(), FakeClock()
    async with engine_of(store, clock, defined(fits=True)) as engine:
        _ = await engine.start(defined(fits=True)(1), id="it")
        await until(lambda: has(engine, RunStatus.WAITING))
    called.clear()
    async with engine_of(store, clock, defined(fits=False)) as engine:
        await until(lambda: has(engine, RunStatus.PARKED))
        _ = await engine.start(defined(fits=True)(2), id="another")
        await until(lambda: has(engine, RunStatus.WAITING))
        assert await resumptions(engine) == ["deployed code fits again"]
    assert called == ["charge 2"]


async def test_runs_show_tells_when_and_why_a_parked_run_went_on() -> None:
    store, clock = MemoryStore(), FakeClock()
    program = await waiting(store, clock, "signal")
    async with engine_of(store, clock, changed) as engine:
        await until(lambda: has(engine, RunStatus.PARKED))
        view = await engine.get("it")
        assert view is not None
        assert _unparked(await store.journal.read(view.run_id)) == ""
    async with engine_of(store, clock, program) as engine:
        await until(lambda: has(engine, RunStatus.WAITING))
        assert _unparked(await store.journal.read(view.run_id)).endswith(": deployed code fits again")


@on_two_stores
async def test_a_sweep_tries_parked_runs_too(any_store: Store) -> None:
    clock = FakeClock()
    program = await waiting(any_store, clock, "sleep")
    async with engine_of(any_store, clock, changed) as engine:
        await until(lambda: has(engine, RunStatus.PARKED))
    clock.advance(3601)
    _ = await engine_of(any_store, clock, program).sweep()
    async with connect(any_store, clock=clock) as client:
        assert (await client.handle("it").outcome(PATIENCE)).status is RunStatus.COMPLETED
