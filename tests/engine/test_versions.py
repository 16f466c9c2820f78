"""Runs and the versions of their programs: kept, routed, parked where one is missing, and resolved."""

from __future__ import annotations

import re
from typing import Any

import pytest

from perdure import (
    Accepted,
    Client,
    Engine,
    FailedByHand,
    Finished,
    NoSuchRun,
    NotParked,
    RunStatus,
    UnknownVersion,
    UsageError,
    call,
    connect,
    continue_as,
    step,
    wait_signal,
    workflow,
)
from perdure.kernel.events import ChildStarted, RunParked, RunResumed
from perdure.kernel.projection import project
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, eventually


@step
async def work(name: str) -> str:
    return name


@workflow(name="fulfil", version="1")
async def first() -> str:
    await work("one")
    await wait_signal("go")
    return "first " + await work("end")


@workflow(name="fulfil", version="2")
async def second() -> str:
    await work("another")
    await wait_signal("go")
    return "second " + await work("end")


@workflow(name="fulfil", version="3", accepts=("1",))
async def third() -> str:
    await work("one")
    await wait_signal("go")
    return "third " + await work("end")


async def begun(store: MemoryStore, id: str = "it") -> str:
    """A run of version 1 that waits for its signal."""
    async with Engine(store, [first], recovery=AT_ONCE) as engine:
        handle = await engine.start(first(), id=id)
        await waiting(store, handle.run_id)
        return handle.run_id


async def waiting(store: MemoryStore, run_id: str) -> None:
    await eventually(lambda: store.journal.rows[run_id].status is RunStatus.WAITING)


async def parked(store: MemoryStore, run_id: str) -> str:
    await eventually(lambda: store.journal.rows[run_id].status is RunStatus.PARKED)
    return store.journal.rows[run_id].reason


async def events(store: MemoryStore, run_id: str) -> list[Any]:
    return [event for batch in await store.journal.read(run_id) for event in batch.events]


async def test_each_run_goes_on_with_the_version_it_was_started_with() -> None:
    store = MemoryStore()
    await begun(store)
    async with Engine(store, [first, second], recovery=AT_ONCE) as engine:
        newer = await engine.start(second(), id="newer")
        older = await engine.start(first(), id="it")
        for id in ("it", "newer"):
            assert isinstance(await engine.signal(id, "go"), Accepted)
        assert await older.result(PATIENCE) == "first end"
        assert await newer.result(PATIENCE) == "second end"
        views = {view.id: view.version for view in await engine.list()}
    assert views == {"it": "1", "newer": "2"}


async def test_a_newer_version_takes_over_what_it_accepts() -> None:
    store = MemoryStore()
    await begun(store)
    async with Engine(store, [third], recovery=AT_ONCE) as engine:
        _ = await engine.signal("it", "go")
        assert await (await engine.start(third(), id="it")).result(PATIENCE) == "third end"


async def test_a_run_whose_version_is_missing_is_parked_takes_signals_and_goes_on_with_the_next_deploy() -> None:
    store = MemoryStore()
    run_id = await begun(store)
    async with Engine(store, [second], recovery=AT_ONCE) as engine:
        _ = await engine.signal("it", "go")
        reason = await parked(store, run_id)
        assert reason == (
            "version 1 of fulfil is not registered here: register it beside version 2, or let version 2 take over "
            "with accepts=('1',)"
        )
        # Parked, it still takes what it is sent, and says no more than it has said.
        assert isinstance(await engine.signal("it", "more", 1, signal_id="m"), Accepted)
        assert await (await engine.start(second(), id="fresh")).status() is not RunStatus.PARKED
    found = [e for e in await events(store, run_id) if isinstance(e, RunParked)]
    assert [e.kind for e in found] == ["no_version"]
    async with Engine(store, [first, second], recovery=AT_ONCE) as engine:
        assert await (await engine.start(first(), id="it")).result(PATIENCE) == "first end"


async def test_the_reason_of_a_parked_run_is_that_of_the_last_engine_that_tried() -> None:
    @workflow(name="fulfil", version="4", accepts=("1",))
    async def fourth() -> str:
        return await work("nothing of the kind") + await work("and another")

    store = MemoryStore()
    run_id = await begun(store)
    async with Engine(store, [second], recovery=AT_ONCE) as engine:
        _ = await engine.signal("it", "go")
        await parked(store, run_id)
    async with Engine(store, [fourth], recovery=AT_ONCE):
        await eventually(lambda: "work:0" in store.journal.rows[run_id].reason)
    kinds = [e.kind for e in await events(store, run_id) if isinstance(e, RunParked)]
    assert kinds == ["no_version", "diverged"]


async def test_a_parked_run_is_taken_up_by_an_engine_whose_code_fits_while_the_other_lives() -> None:
    store = MemoryStore()
    run_id = await begun(store)
    async with Engine(store, [second], recovery=AT_ONCE) as old:
        _ = await old.signal("it", "go")
        await parked(store, run_id)
        async with Engine(store, [first], recovery=AT_ONCE) as new:
            assert await (await new.start(first(), id="it")).result(PATIENCE) == "first end"


async def test_an_engine_starts_only_versions_it_has() -> None:
    async with Engine("memory://", [second]) as engine:
        with pytest.raises(UnknownVersion, match="version 1 of fulfil is not registered here"):
            _ = await engine.start(first())
        assert await engine.list() == []


async def test_a_run_started_by_name_keeps_the_version_it_began_with() -> None:
    store = MemoryStore()
    async with connect(store) as client, Engine(store, [first], recovery=AT_ONCE):
        handle = await client.start(call("fulfil"), id="it")
        await waiting(store, handle.run_id)
        view = await client.get("it")
        assert view is not None
        assert view.version == "1"
    assert store.journal.rows[handle.run_id] == project(handle.run_id, await store.journal.read(handle.run_id))
    async with Engine(store, [first, second], recovery=AT_ONCE) as engine:
        _ = await engine.signal("it", "go")
        assert await (await engine.start(first(), id="it")).result(PATIENCE) == "first end"


@workflow(name="part", version="1")
async def part_1() -> str:
    await wait_signal("go")
    return await work("part 1")


@workflow(name="part", version="2")
async def part_2() -> str:
    return await work("part 2")


@workflow
async def whole() -> list[str]:
    return [await part_1(), await call("part")]


async def test_children_keep_their_versions_too() -> None:
    store = MemoryStore()
    async with Engine(store, [whole, part_1], recovery=AT_ONCE) as engine:
        handle = await engine.start(whole(), id="it")
        await waiting(store, handle.run_id)
    async with Engine(store, [whole, part_2], recovery=AT_ONCE) as engine:
        _ = await engine.signal("it/part:0", "go")
        assert "version 1 of part is not registered here" in await parked(store, handle.run_id)
    async with Engine(store, [whole, part_1, part_2], recovery=AT_ONCE) as engine:
        assert await (await engine.start(whole(), id="it")).result(PATIENCE) == ["part 1", "part 2"]
    started = [(e.op, e.version) for e in await events(store, handle.run_id) if isinstance(e, ChildStarted)]
    assert started == [("part:0", "1"), ("part:1", "2")]


async def test_a_child_of_a_version_that_is_missing_fails_in_the_body_that_asked() -> None:
    @workflow
    async def asks() -> str:
        try:
            return await part_1()
        except UnknownVersion as error:
            return error.version

    async with Engine("memory://", [asks, part_2], recovery=AT_ONCE) as engine:
        assert (await engine.run(asks())).output == "1"


async def test_the_next_incarnation_has_the_version_of_the_code_that_asked_for_it() -> None:
    @workflow(name="turns", version="1")
    async def old(n: int) -> str:
        await wait_signal("go")
        return continue_as(n + 1)

    @workflow(name="turns", version="2", accepts=("1",))
    async def new(n: int) -> str:
        await wait_signal("go")
        return f"done {n}" if n else continue_as(n + 1)

    store = MemoryStore()
    async with Engine(store, [old], recovery=AT_ONCE) as engine:
        handle = await engine.start(old(0), id="it")
        await waiting(store, handle.run_id)
    async with Engine(store, [new], recovery=AT_ONCE) as engine:
        _ = await engine.signal("it", "go", signal_id="1")
        _ = await engine.signal("it", "go", signal_id="2")
        latest = await engine.start(new(0), id="it")
        assert await latest.result(PATIENCE) == "done 1"
        view = await engine.get("it")
    assert view is not None
    assert view.version == "2"


# --- explanations ----------------------------------------------------------------------------------------------------


@step
async def audit(name: str) -> str:
    return name


@workflow(name="fulfil", version="1")
async def first_with_audit() -> str:
    await audit("one")  # of the first version
    await work("one")
    await wait_signal("go")
    return "first " + await work("end")


@workflow(name="fulfil", version="9")
async def ninth() -> str:
    # It asks for the same, and never for what has come into version 1.
    await work("one")
    await wait_signal("go")
    return "ninth " + await work("end")


@workflow(name="part", version="1")
async def part_1_with_audit() -> str:
    await audit("part")  # of the first version of the part
    await wait_signal("go")
    return await work("part 1")


@workflow(name="part", version="9")
async def part_9() -> str:
    await wait_signal("go")
    return await work("part 9")


async def test_what_does_not_fit_is_explained_with_the_code_of_the_version_that_the_run_goes_on_with() -> None:
    store = MemoryStore()
    run_id = await begun(store)
    async with Engine(store, [first_with_audit, ninth], recovery=AT_ONCE) as engine:
        _ = await engine.signal("it", "go")
        reason = await parked(store, run_id)
        view = await engine.get("it")
    assert view is not None
    assert view.divergence is not None
    assert view.divergence.change == "inserted"
    assert view.divergence.current is not None
    assert view.divergence.current.code == 'await audit("one")'
    assert re.search(r'    \+    if patched\("inserted-\S+"\):\n    \+        await audit\("one"\)', reason)


async def test_so_is_what_does_not_fit_in_a_child() -> None:
    store = MemoryStore()
    async with Engine(store, [whole, part_1], recovery=AT_ONCE) as engine:
        handle = await engine.start(whole(), id="it")
        await waiting(store, handle.run_id)
    async with Engine(store, [whole, part_1_with_audit, part_9], recovery=AT_ONCE) as engine:
        _ = await engine.signal("it/part:0", "go")
        assert 'await audit("part")' in await parked(store, handle.run_id)
        view = await engine.get("it")
    assert view is not None
    assert view.divergence is not None
    assert (view.divergence.change, view.divergence.op) == ("inserted", "part:0/go:0")


# --- resolving -------------------------------------------------------------------------------------------------------


async def stuck(store: MemoryStore) -> str:
    """A run of version 1 that an engine with version 2 alone has parked."""
    run_id = await begun(store)
    async with Engine(store, [second], recovery=AT_ONCE) as engine:
        _ = await engine.signal("it", "go")
        await parked(store, run_id)
    return run_id


@workflow(name="fulfil", version="1.1")
async def mended() -> str:
    await work("one")
    await wait_signal("go")
    return "mended " + await work("end")


@pytest.mark.parametrize("kind", ["engine", "client"])
async def test_a_parked_run_can_be_pinned_to_another_version(kind: str) -> None:
    store = MemoryStore()
    run_id = await stuck(store)
    async with Engine(store, [mended, second], recovery=AT_ONCE) as engine, connect(store) as client:
        teller: Client = engine if kind == "engine" else client
        assert isinstance(await teller.resolve("it", version="1.1"), Accepted)
        assert await (await engine.start(mended(), id="it")).result(PATIENCE) == "mended end"
        view = await engine.get("it")
    assert view is not None
    assert view.version == "1.1"
    assert [e.version for e in await events(store, run_id) if isinstance(e, RunResumed)] == ["1.1"]
    assert store.journal.rows[run_id] == project(run_id, await store.journal.read(run_id))


async def test_a_pin_survives_the_process_and_a_wrong_one_parks_again() -> None:
    store = MemoryStore()
    run_id = await stuck(store)
    async with connect(store) as client:
        _ = await client.resolve("it", version="2")
    async with Engine(store, [second], recovery=AT_ONCE):
        assert "work:0" in await parked(store, run_id)
    async with connect(store) as client:
        _ = await client.resolve("it", version="1.1")
    async with Engine(store, [mended, second], recovery=AT_ONCE) as engine:
        assert await (await engine.start(mended(), id="it")).result(PATIENCE) == "mended end"


@pytest.mark.parametrize("kind", ["engine", "client"])
async def test_a_parked_run_can_be_failed_by_hand(kind: str) -> None:
    store = MemoryStore()
    await stuck(store)
    async with Engine(store, [second], recovery=AT_ONCE) as engine, connect(store) as client:
        teller: Client = engine if kind == "engine" else client
        assert isinstance(await teller.resolve("it", fail="refunded on the phone"), Accepted)
        result = await (await client.start(call("fulfil"), id="it")).outcome(PATIENCE)
        assert result.status is RunStatus.FAILED
        assert isinstance(result.error, FailedByHand)
        assert str(result.error) == "refunded on the phone"
        again = await teller.resolve("it", fail="once more")
        assert again == Finished(RunStatus.FAILED)


async def test_a_parked_run_can_be_tried_again_and_stays_parked_if_nothing_has_changed() -> None:
    store = MemoryStore()
    run_id = await stuck(store)
    async with Engine(store, [second], recovery=AT_ONCE) as engine:
        _ = await engine.resolve("it")
        assert "version 1 of fulfil" in await parked(store, run_id)
    names = [type(e).__name__ for e in await events(store, run_id)]
    assert names[-3:] == ["RunParked", "RunResumed", "RunParked"]


async def test_what_cannot_be_resolved_is_refused_with_the_reason() -> None:
    store = MemoryStore()
    run_id = await begun(store)
    async with Engine(store, [first, whole, part_1], recovery=AT_ONCE) as engine:
        with pytest.raises(NotParked, match="'it' is waiting, and only parked runs"):
            _ = await engine.resolve("it", version="2")
        with pytest.raises(NoSuchRun):
            _ = await engine.resolve("nobody")
        with pytest.raises(UsageError, match="takes no other option"):
            _ = await engine.resolve("it", version="2", fail="no")
        with pytest.raises(UsageError, match="is empty"):
            _ = await engine.resolve("it", version="")
        tree = await engine.start(whole(), id="tree")
        await waiting(store, tree.run_id)
        with pytest.raises(UsageError, match="is a child, and cannot be resolved alone"):
            _ = await engine.resolve("tree/part:0")
    assert not [e for e in await events(store, run_id) if isinstance(e, RunResumed)]
