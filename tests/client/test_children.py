"""Where children stand: rows say what journals say, on every store, whatever happens to their tree."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from perdure import (
    Accepted,
    Engine,
    Retry,
    RunCancelled,
    RunParked,
    RunStatus,
    approval,
    connect,
    lock,
    set_state,
    sleep,
    step,
    wait_signal,
    workflow,
)
from perdure.kernel.events import AttemptFailed, ChildFinished, RunPaused, RunResumed, StepStarted, WaitOpened
from perdure.kernel.projection import RunRow, child_rows
from perdure.kernel.state import RunState, fold
from perdure.ports.store import Store
from tests.engine.harness import AT_ONCE, PATIENCE, Recorded


@workflow
async def patient(name: str) -> str:
    set_state("name", name)
    return f"{name}: {await wait_signal('go')}"


@workflow
async def asks(name: str) -> str:
    return str(await approval(name))


@step(retry=Retry(attempts=3, initial=3600, jitter=False))
async def flaky(n: int) -> int:
    raise ConnectionError("down")


@workflow
async def retries() -> int:
    return await flaky(1)


@workflow
async def works(gate: str) -> str:
    return await held(gate)


@step
async def held(gate: str) -> str:
    await asyncio.Event().wait()
    return gate


@workflow
async def naps() -> None:
    await sleep(timedelta(days=1))


@workflow
async def holds() -> str:
    async with lock("till"):
        return str(await wait_signal("pay"))


@workflow
async def nested() -> str:
    return await patient("inner")


@workflow
async def family() -> None:
    parts = [patient("p"), asks("ship"), retries(), works("w"), naps(), nested(), holds()]
    async with asyncio.TaskGroup() as group:
        for part in parts:
            group.create_task(_one(part))


async def _one(part: Any) -> Any:
    return await part


FAMILY: list[Any] = [family, patient, asks, retries, works, naps, nested, holds]


async def statuses(engine: Any, **filter: Any) -> dict[str, str]:
    """Where the children of `it` stand, by program; a list says what `get` says."""
    found = {}
    for run in await engine.list(root="it", **filter):
        view = await engine.get(run.run_id)
        assert (view.status, view.reason) == (run.status, run.reason)
        if run.parent is not None:
            found[run.id.removeprefix("it/").rpartition("/")[2]] = run.status.value
    return found


async def test_a_list_says_which_children_wait(any_store: Store) -> None:
    recorded = Recorded()
    async with Engine(any_store, FAMILY, on_commit=recorded, recovery=AT_ONCE) as engine:
        _ = await engine.start(family(), id="it")
        await recorded.until(lambda e: isinstance(e, AttemptFailed))
        await recorded.until(lambda e: isinstance(e, WaitOpened) and e.name == "pay")
        await recorded.until(lambda e: isinstance(e, StepStarted) and e.op.endswith("held:0"))
        waiting = dict.fromkeys(("patient:0", "asks:0", "retries:0", "naps:0", "nested:0"), "waiting")
        now = await statuses(engine)
        # Its owner renews the lock: one that holds a lock runs, as a root does.
        assert now == waiting | {"works:0": "running", "holds:0": "running"}
        assert len(await statuses(engine, status="waiting")) == len(waiting)
        await engine.pause("it")
        await recorded.until(lambda e: isinstance(e, RunPaused))
        assert set((await statuses(engine)).values()) == {"paused"}
        await engine.resume("it")
        assert await statuses(engine) == now
        [inner] = [run for run in await engine.list(program="patient") if "nested" in run.id]
        assert await engine.signal(inner.id, "go", 1) == Accepted()
        await recorded.until(lambda e: isinstance(e, ChildFinished) and e.op.endswith("nested:0"))
        assert (await statuses(engine))["nested:0"] == "completed"
    await rows_are_what_journals_say(any_store)


async def rows_are_what_journals_say(store: Store) -> None:
    async with connect(store) as client:
        report = await client.rebuild(dry_run=True)
        assert report.journals == 1
        assert report.differences == []


@workflow
async def one_child() -> None:
    await patient("p")


@workflow(name="one_child")
async def other_code() -> None:
    await sleep(1)
    await patient("p")


async def test_a_child_of_a_parked_run_is_parked_for_the_same_reason(any_store: Store) -> None:
    recorded = Recorded()
    async with Engine(any_store, [one_child, patient], on_commit=recorded, recovery=AT_ONCE, name="w") as engine:
        _ = await engine.start(one_child(), id="it")
        await recorded.until(lambda e: isinstance(e, WaitOpened))
    async with Engine(any_store, [other_code, patient], recovery=AT_ONCE, name="w") as engine:
        handle = await engine.start(other_code(), id="it")
        # What sleeps is looked at when it is woken.
        await engine.pause("it")
        await engine.resume("it")
        with pytest.raises(RunParked):
            await handle.result(PATIENCE)
        child, root = await engine.list(root="it")
        assert (child.status, root.status) == (RunStatus.PARKED, RunStatus.PARKED)
        assert child.reason == root.reason != ""
        view = await engine.get(child.id)
        assert view is not None
        assert (view.parked, view.status) == ("diverged", RunStatus.PARKED)
        assert [run.id for run in await engine.list(status="parked")] == [child.id, root.id]
    await rows_are_what_journals_say(any_store)
    recorded = Recorded()
    async with Engine(any_store, [one_child, patient], on_commit=recorded, recovery=AT_ONCE, name="w") as engine:
        await recorded.until(lambda e: isinstance(e, RunResumed))
        child, root = await engine.list(root="it")
        assert (child.status, child.reason) == (RunStatus.WAITING, "")
        assert await engine.signal(child.id, "go", 1) == Accepted()
        await (await engine.start(one_child(), id="it")).result(PATIENCE)
    await rows_are_what_journals_say(any_store)


async def test_rows_of_children_are_the_same_written_along_the_way_or_rebuilt(any_store: Store) -> None:
    recorded = Recorded()
    async with Engine(any_store, FAMILY, on_commit=recorded, recovery=AT_ONCE) as engine:
        handle = await engine.start(family(), id="it")
        await recorded.until(lambda e: isinstance(e, AttemptFailed))
        await recorded.until(lambda e: isinstance(e, WaitOpened) and e.name == "pay")
        for run in await engine.list(program="holds"):
            await engine.signal(run.id, "pay", 1)
        await recorded.until(lambda e: isinstance(e, ChildFinished) and e.op.endswith("holds:0"))
        await engine.cancel("it")
        with pytest.raises(RunCancelled):
            await handle.result(PATIENCE)
        batches = await engine.store.journal.read(handle.run_id)
    written: dict[str, RunRow] = {}
    along = RunState(handle.run_id)
    for number, batch in enumerate(batches, 1):
        for event in batch.events:
            along.fold(event, batch.at)
        written |= {row.run_id: row for row in child_rows(along)}
        rebuilt = child_rows(fold(handle.run_id, batches[:number]))
        assert {row.run_id: row for row in rebuilt} == written
