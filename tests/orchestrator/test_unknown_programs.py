"""A run of a program that no engine has costs other runs nothing, on any store; nor does one that cannot be loaded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw

from perdure import (
    Engine,
    Invocation,
    Recovery,
    RunStatus,
    UnknownProgram,
    call,
    child,
    connect,
    lock,
    step,
    wait_signal,
    workflow,
)
from perdure.kernel.events import AnyEvent, RunClaimed, RunReleased, RunStarted, StepStarted, StepSucceeded
from perdure.kernel.state import RunState
from perdure.orchestrator.membership import follows
from perdure.ports.appends import extend
from perdure.ports.journal import Appended, append_all
from perdure.ports.store import Store
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, FakeClock, eventually


@step
async def work(n: int) -> int:
    return n


@workflow
async def known(n: int) -> int:
    return await work(n)


@workflow
async def patient(n: int) -> int:
    await wait_signal("go")
    return await work(n)


async def put(store: Store, clock: FakeClock, *invocations: Invocation[Any], **options: Any) -> None:
    """Start runs with a client; the store is set up by an engine that knows none of them."""
    async with Engine(store, [], recovery=AT_ONCE, clock=clock):
        pass
    async with connect(store, clock=clock) as client:
        for number, invocation in enumerate(invocations):
            _ = await client.start(invocation, id=f"{invocation.name}-{number}", **options)


async def completed(engine: Engine, id: str, n: int) -> None:
    handle = await engine.start(known(n), id=id)
    assert await handle.result(PATIENCE * 4) == n


async def test_an_old_run_that_no_engine_has_a_program_for_stops_no_engine(store: Callable[[], Store]) -> None:
    clock = FakeClock()
    await put(store(), clock, call("nobody_has_it", 1), call("known", 1))
    clock.advance(Recovery().check_interval + Recovery().ttl)
    for _ in range(2):
        async with Engine(store(), [known], recovery=AT_ONCE, clock=clock) as engine:
            await completed(engine, "known-1", 1)
            view = await engine.get("nobody_has_it-0")
            assert view is not None
            assert view.status not in (RunStatus.PARKED, RunStatus.FAILED)


async def test_the_run_begins_when_an_engine_comes_that_has_its_program(store: Callable[[], Store]) -> None:
    clock = FakeClock()
    await put(store(), clock, call("known", 7))
    clock.advance(100)
    async with Engine(store(), [patient], recovery=AT_ONCE, clock=clock):
        pass
    async with Engine(store(), [patient, known], recovery=AT_ONCE, clock=clock) as engine:
        await completed(engine, "known-0", 7)


async def test_a_queue_that_no_engine_knows_and_a_program_that_no_engine_has(store: Callable[[], Store]) -> None:
    clock = FakeClock()
    await put(store(), clock, call("nobody_has_it", 1), queue="strange")
    await put(store(), clock, call("known", 1), queue="strange")
    clock.advance(100)
    async with Engine(store(), [known], recovery=AT_ONCE, clock=clock) as engine:
        await completed(engine, "known-0", 1)


def journal(run_id: str, *events: AnyEvent) -> Any:
    return extend(RunState(run_id), list(events), 1_700_000_000.0)


async def write(store: Store, *appends: Any) -> None:
    async with Engine(store, [], recovery=AT_ONCE, clock=FakeClock(1_700_000_000.0)):
        pass
    await store.open(migrate=False)
    try:
        assert set(await append_all(store.journal, appends)) == {Appended()}
    finally:
        await store.close()


def begun(run_id: str, program: str, owner: str, input: bytes = b'{"n":1}') -> Any:
    started = RunStarted(run_id, program, "1", Raw(input))
    return journal(run_id, started, RunClaimed(owner, 1, "gone"), StepStarted("work:0", 1))


def released(run_id: str, program: str) -> Any:
    started = RunStarted(run_id, program, "1", Raw(b'{"n":1}'))
    return journal(run_id, started, RunClaimed("w", 1, "gone"), StepStarted("work:0", 1), RunReleased("w"))


async def test_runs_that_cannot_be_loaded_do_not_keep_the_rest_from_being_recovered(
    store: Callable[[], Store], caplog: pytest.LogCaptureFixture
) -> None:
    """Their input is not that of the program, their history is impossible, their program is gone: each by itself."""
    many = [begun(f"a-{n:03}", "known", "dead", b'{"n":"x"}') for n in range(120)]
    odd = [
        begun("b-0", "gone", "dead"),
        released("b-1", "gone"),
        journal("b-2", RunStarted("b-2", "known", "1", Raw(b"[]")), RunClaimed("dead", 1, "x"), RunClaimed("dead", 2)),
        journal(
            "b-3",
            RunStarted("b-3", "known", "1", Raw(b'{"n":1}')),
            RunClaimed("dead", 1, "x"),
            StepSucceeded("never:0", Raw(b"1"), 1),
        ),
    ]
    good = [begun(f"c-{n}", "known", "dead") for n in range(3)]
    await write(store(), *many, *odd, *good)
    with caplog.at_level(logging.INFO, "perdure"):
        async with Engine(store(), [known], recovery=AT_ONCE, clock=FakeClock()) as engine:
            for n in range(3):
                assert await (await engine.start(known(1), id=f"c-{n}")).result(PATIENCE * 4) == 1
            for n in range(120):
                assert (await engine.start(call("known", 1), id=f"a-{n:03}")) is not None
    assert sum("a-" in record.getMessage() for record in caplog.records) <= 4
    # Of ours: asyncio may tell meanwhile of a connection that a test before this one gave up.
    assert not [record for record in caplog.records if record.exc_info and record.name.startswith("perdure")]


@workflow
async def parent(n: int) -> int:
    return await child(call("nobody_has_it", n))


@workflow
async def sender(n: int) -> int:
    _ = await child(call("nobody_has_it", n), detached=True)
    return n


async def test_children_of_a_program_that_no_engine_has() -> None:
    """One that is waited for fails its parent; a detached one waits for an engine, and its parent goes on."""
    store, clock = MemoryStore(), FakeClock()
    async with Engine(store, [parent, sender], recovery=AT_ONCE, clock=clock) as engine:
        with pytest.raises(UnknownProgram, match="nobody_has_it"):
            await (await engine.start(parent(1), id="parent")).result(PATIENCE)
        assert await (await engine.start(sender(2), id="sender")).result(PATIENCE) == 2
    clock.advance(1000)
    async with Engine(store, [known], recovery=AT_ONCE, clock=clock) as engine:
        await completed(engine, "k", 1)
        [left] = [view for view in await engine.list(program="nobody_has_it") if view.finished_at is None]
        assert left.status is not RunStatus.PARKED


async def test_a_schedule_of_a_program_that_no_engine_has() -> None:
    store, clock = MemoryStore(), FakeClock()
    await put(store, clock)
    async with connect(store, clock=clock) as client:
        _ = await client.schedule("strange", call("nobody_has_it", 1), every=60)
        _ = await client.schedule("usual", call("known", 1), every=60)
    for _ in range(3):
        clock.advance(61)
        async with Engine(store, [known], recovery=AT_ONCE, clock=clock) as engine:
            before = len(await engine.list(program="known", status=RunStatus.COMPLETED))
            async with asyncio.timeout(PATIENCE * 4):
                while len(await engine.list(program="known", status=RunStatus.COMPLETED)) <= before:
                    await asyncio.sleep(0.01)


async def test_thousands_of_them_keep_no_other_run_from_its_turn_and_an_idle_engine_idle() -> None:
    """They are older than what the engine can do, and there are more of them than it takes at a time."""
    store, clock = MemoryStore(), FakeClock()
    await write(
        store,
        *(journal(f"a-{n:04}", RunStarted(f"a-{n:04}", "nobody_has_it", "", Raw(b"{}"))) for n in range(3000)),
        *(journal(f"b-{n:04}", RunStarted(f"b-{n:04}", f"nobody_has_{n}", "", Raw(b"{}"))) for n in range(100)),
        journal("z", RunStarted("z", "known", "", Raw(b'{"n":1}'))),
        begun("zz", "known", "dead"),
    )
    async with Engine(store, [known], recovery=AT_ONCE, clock=clock) as engine:
        for id in ("z", "zz"):
            assert await (await engine.start(known(1), id=id)).result(PATIENCE * 4) == 1
        await eventually(lambda: not engine._orchestrator.active)  # type: ignore[union-attr]
        asked: list[str] = []
        store.trace(asked.append)
        for _ in range(10):
            await engine._service._load(peers_changed=True)  # type: ignore[union-attr]
        store.trace(None)
        assert not [call for call in asked if "journal" in call], "a look reads none of them"
        assert len(asked) <= 20


async def left(store: Store, clock: FakeClock, owner: str) -> None:
    """Runs of `patient`, one that holds a lock and so counts as running, left by an engine that is gone."""
    async with Engine(store, [patient, holding], name=owner, recovery=AT_ONCE, clock=clock) as engine:
        for program in (patient, holding):
            _ = await engine.start(program(1), id=program.name, tags={"of": owner})
        async with asyncio.timeout(PATIENCE * 4):
            while not all(view.waits for view in [await engine.get("patient"), await engine.get("holding")] if view):
                await asyncio.sleep(0.01)


@workflow
async def holding(n: int) -> int:
    async with lock("room"):
        await wait_signal("go")
    return n


async def test_an_engine_of_other_programs_leaves_alone_what_its_owner_may_come_back_for(
    store: Callable[[], Store],
) -> None:
    clock = FakeClock()
    await left(store(), clock, "theirs")
    async with connect(store(), clock=clock) as client:
        for id in ("patient", "holding"):
            await client.signal(id, "go")
        clock.advance(1000)
        waiting = asyncio.create_task(client.handle("holding").result(PATIENCE * 4))
        for _ in range(2):
            async with Engine(store(), [known], name="other", recovery=AT_ONCE, clock=clock) as engine:
                await completed(engine, f"k-{clock.now()}", 1)
                for id in ("patient", "holding"):
                    view = await engine.get(id)
                    assert view is not None
                    assert view.status is not RunStatus.PARKED
                    assert f"no worker has `{id}`" in str(await engine.why(id))
            clock.advance(100)
        assert not waiting.done()
        async with Engine(store(), [patient, holding], name="theirs", recovery=AT_ONCE, clock=clock) as engine:
            assert await waiting == 1
            assert await engine.handle("patient").result(PATIENCE * 4) == 1


async def test_an_engine_that_comes_back_without_a_program_parks_its_runs_and_says_why(
    store: Callable[[], Store],
) -> None:
    clock = FakeClock()
    await left(store(), clock, "w1")
    async with connect(store(), clock=clock) as client:
        await client.signal("patient", "go")
    clock.advance(1000)
    async with Engine(store(), [known], name="w1", recovery=AT_ONCE, clock=clock) as engine:
        async with asyncio.timeout(PATIENCE * 4):
            while not all(r.status is RunStatus.PARKED for r in await engine.list(tags={"of": "w1"})):
                await asyncio.sleep(0.01)
        view = await engine.get("patient")
        assert view is not None
        assert view.parked == "no_program"
        assert "@workflow(name='patient')" in view.reason


@pytest.mark.parametrize(
    ("name", "owner", "after"),
    [
        ("w1", "w1", True),
        ("w2", "w1", False),
        ("h:app:aa11", "h:app:bb22", True),
        ("h:app:aa11-2", "h:app:aa11", True),
        ("h:app:aa11", "h:other:aa11", False),
        ("h:app:aa11", "i:app:aa11", False),
        ("h:perdure:aa11", "h:perdure:bb22", False),
        ("h:perdure:aa11", "h:perdure:aa11", True),
    ],
)
def test_who_comes_after_whom(name: str, owner: str, after: bool) -> None:
    assert follows(name, owner) is after
    assert follows(name, owner, has_program=True) is (after or name.startswith("h:perdure:"))


async def test_a_batch_of_a_known_program_is_not_told_to_be_unknown(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    async with Engine(store, [patient, known], recovery=AT_ONCE) as engine:
        _ = await engine.start_batch(patient, [[1]], id="patient")
    caplog.clear()
    async with Engine(store, [patient], recovery=AT_ONCE):
        assert "does not have" not in caplog.text
    async with Engine(store, [known], recovery=AT_ONCE):
        assert "does not have: patient; they wait" in caplog.text
        assert "Engine(store, [..., patient])" in caplog.text
