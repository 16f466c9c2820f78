"""Patches: runs that were beyond a change keep the old path, all others take the new one, whatever happens to them."""

from __future__ import annotations

from functools import partial

import pytest

from perdure import (
    Engine,
    InvalidName,
    PerdureError,
    RunStatus,
    Workflow,
    child,
    deprecate_patch,
    patched,
    sleep,
    step,
    wait_signal,
    workflow,
)
from perdure.kernel.events import AnyEvent, Batch, RunClaimed, RunStarted, StepStarted, ValueRecorded
from perdure.kernel.policies.versions import Programs
from perdure.kernel.replay import open_replay
from perdure.kernel.values.codec import Codec
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import (
    AT_ONCE,
    PATIENCE,
    FakeClock,
    Recorded,
    eventually,
    in_callback,
    left_by_a_crash,
    replay,
    run,
)

called: list[str] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    called.clear()


@step
async def work(name: str) -> str:
    called.append(name)
    return name


# One workflow on its way through the life of a patch.


@workflow(name="order")
async def before() -> str:
    await work("charge")
    await sleep(60)
    return await work("old")


@workflow(name="order")
async def with_patch() -> str:
    if patched("tax-first"):
        await work("tax")
    await work("charge")
    await sleep(60)
    return await work("new" if patched("tax-first") else "old")


@workflow(name="order")
async def deprecated() -> str:
    deprecate_patch("tax-first")
    await work("tax")
    await work("charge")
    await sleep(60)
    return await work("new")


@workflow(name="order")
async def removed() -> str:
    await work("tax")
    await work("charge")
    await sleep(60)
    return await work("new")


async def asleep(flow: Workflow[[], str], store: MemoryStore, clock: FakeClock, id: str) -> None:
    recorded = Recorded()
    async with Engine(store, [flow], recovery=AT_ONCE, clock=clock, on_commit=recorded) as engine:
        _ = await engine.start(flow(), id=id)
        await recorded.until(lambda e: type(e).__name__ == "WaitOpened")


async def finished(flow: Workflow[[], str], store: MemoryStore, clock: FakeClock, *ids: str) -> list[str]:
    async with Engine(store, [flow], recovery=AT_ONCE, clock=clock) as engine:
        found = [await (await engine.start(flow(), id=id)).result(PATIENCE) for id in ids]
        for id in ids:
            view = await engine.get(id)
            assert view is not None
            await replay(flow, view.run_id, store)
        return found


def is_at_rest(store: MemoryStore, run_id: str) -> bool:
    return store.journal.rows[run_id].status is not RunStatus.RUNNING


async def events_of(store: MemoryStore, id: str) -> list[AnyEvent]:
    found = await store.runs.find(id)
    assert found is not None
    return [event for batch in await store.journal.read(found[0].run_id) for event in batch.events]


async def marks(store: MemoryStore, id: str) -> list[str]:
    return [e.op for e in await events_of(store, id) if isinstance(e, ValueRecorded) and e.kind == "patch"]


async def test_the_life_of_a_patch_step_by_step() -> None:
    clock, store = FakeClock(), MemoryStore()
    await asleep(before, store, clock, "old")
    # 1. Deployed with patched(): the old run finishes on the old path, a new one takes the new path.
    await asleep(with_patch, store, clock, "new")
    clock.advance(120)
    assert await finished(with_patch, store, clock, "old", "new") == ["old", "new"]
    assert sorted(called) == ["charge", "charge", "new", "old", "tax"]
    assert await marks(store, "old") == []
    assert await marks(store, "new") == ["patch:tax-first"]
    # 2. Every old run has ended: the old path goes, and runs with the mark go on.
    await asleep(with_patch, store, clock, "marked")
    await asleep(deprecated, store, clock, "later")
    clock.advance(120)
    assert await finished(deprecated, store, clock, "marked", "later") == ["new", "new"]
    assert await marks(store, "later") == []
    # 3. And the patch is removed: a mark that nobody asks for is no divergence.
    await asleep(with_patch, store, clock, "still marked")
    await asleep(deprecated, store, clock, "unmarked")
    clock.advance(120)
    assert await finished(removed, store, clock, "still marked", "unmarked") == ["new", "new"]
    assert (await store.runs.find("still marked"))[0].status is RunStatus.COMPLETED  # type: ignore[index]


@pytest.mark.parametrize("flow", [before, with_patch], ids=["began before", "began after"])
async def test_a_run_keeps_its_path_after_a_crash_at_every_boundary(flow: Workflow[[], str]) -> None:
    clock, store = FakeClock(), MemoryStore()
    async with Engine(store, [flow], recovery=AT_ONCE, clock=clock) as engine:
        handle = await engine.start(flow(), id="it")
        await eventually(lambda: store.journal.rows[handle.run_id].status is RunStatus.WAITING)
        clock.advance(120)
        end = await handle.result(PATIENCE)
    [whole] = store.journal.batches.values()
    boundaries = [seq for seq, _, _ in whole]
    ops = [e.op for e in await events_of(store, "it") if isinstance(e, StepStarted)]
    for boundary in boundaries[1:]:
        found = left_by_a_crash(store, boundary)
        clock.advance(120)
        async with Engine(found, [with_patch], recovery=AT_ONCE, clock=clock) as engine:
            again = await engine.start(with_patch(), id="it")
            await eventually(partial(is_at_rest, found, again.run_id))
            clock.advance(120)
            # Before anything of the old path was recorded there is no old path: it takes the new one.
            untouched = flow is before and boundary <= 2
            assert await again.result(PATIENCE) == ("new" if untouched else end)
        if not untouched:
            assert sorted({e.op for e in await events_of(found, "it") if isinstance(e, StepStarted)}) == sorted(ops)
        await replay(with_patch, again.run_id, found)


async def test_a_body_gets_one_answer_and_leaves_one_mark_however_often_and_wherever_it_asks() -> None:
    import asyncio

    async def ask() -> bool:
        await work("a")
        return patched("x")

    @workflow
    async def often() -> list[bool]:
        first = await asyncio.gather(ask(), ask())
        return [*first, patched("x"), patched("y")]

    ran = await run(often())
    assert ran.output == [True, True, True, True]
    assert await marks(ran.store, "it") == ["patch:x", "patch:y"]


async def test_an_old_run_in_a_loop_stays_on_the_old_path() -> None:
    @workflow(name="loop")
    async def old() -> list[str]:
        return [await _turn(n) for n in range(3)]

    @workflow(name="loop")
    async def new() -> list[str]:
        found = []
        for n in range(3):
            found.append(await work("new") if patched("turn") else await _turn(n))
        return found

    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [old], recovery=AT_ONCE, on_commit=recorded) as engine:
        _ = await engine.start(old(), id="it")
        await recorded.until(lambda e: type(e).__name__ == "WaitOpened")
    async with Engine(store, [new], recovery=AT_ONCE) as engine:
        handle = await engine.start(new(), id="it")
        for _ in range(3):
            _ = await engine.signal("it", "go")
        assert await handle.result(PATIENCE) == ["0", "1", "2"]


async def _turn(n: int) -> str:
    await wait_signal("go")
    return await work(str(n))


async def test_children_have_patches_of_their_own() -> None:
    @workflow(name="part")
    async def part() -> str:
        await work("a")
        await wait_signal("go")
        return await work("old part")

    @workflow(name="part")
    async def part_with_patch() -> str:
        if patched("p"):
            await work("first")
        await work("a")
        await wait_signal("go")
        return await work("new part" if patched("p") else "old part")

    @workflow(name="whole")
    async def whole() -> list[str]:
        return [await child(part(), id="one"), await part()]

    @workflow(name="whole")
    async def whole_with_patch() -> list[str]:
        one = await child(part_with_patch(), id="one")
        return [one, await child(part_with_patch(), id="two")]

    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [whole, part], recovery=AT_ONCE, on_commit=recorded) as engine:
        _ = await engine.start(whole(), id="it")
        await recorded.until(lambda e: type(e).__name__ == "WaitOpened")
    recorded = Recorded()
    async with Engine(store, [whole_with_patch, part_with_patch], recovery=AT_ONCE, on_commit=recorded) as engine:
        handle = await engine.start(whole_with_patch(), id="it")
        _ = await engine.signal("one", "go")
        await recorded.until(lambda e: type(e).__name__ == "WaitOpened")
        _ = await engine.signal("two", "go")
        # The child that was beyond the change keeps its path; the one that begins after it takes the new one.
        assert await handle.result(PATIENCE) == ["old part", "new part"]
        found = [e.event for e in await engine.journal("it")]
    assert [e.op for e in found if isinstance(e, ValueRecorded)] == ["part:1/patch:p"]


async def test_a_run_that_has_begun_and_done_nothing_yet_takes_the_new_path() -> None:
    """An engine that was left at once has claimed it, and recorded nothing that the body commanded."""
    store, clock = MemoryStore(), FakeClock()
    await asleep(before, store, clock, "it")
    [run_id] = store.journal.rows
    found = left_by_a_crash(store)
    first = (await found.journal.read(run_id))[0]
    batches = [Batch(0, first.at, [e for e in first.events if isinstance(e, RunStarted | RunClaimed)])]
    started = batches[0].events[0]
    assert isinstance(started, RunStarted)

    def follow() -> list[str]:
        followed = open_replay(Programs([with_patch]), run_id, started, Codec(), batches)
        followed.fold_all(batches)
        commanded = [one.op for one in followed.pending.values()]
        followed.close()
        return commanded

    assert await in_callback(follow) == ["patch:tax-first", "work:0"]


async def test_patches_are_for_workflows_and_have_names() -> None:
    for ask in (patched, deprecate_patch):
        with pytest.raises(PerdureError, match="only inside a workflow"):
            ask("x")

    @workflow
    async def misnamed() -> bool:
        return patched("a/b")

    with pytest.raises(InvalidName, match="id of a patch"):
        _ = (await run(misnamed())).output
