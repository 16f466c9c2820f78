"""Parked runs that go on from before one of their ops: what is kept, what is done again, and who hears of the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from perdure import (
    Accepted,
    Client,
    Engine,
    Finished,
    NoSuchOp,
    NotParked,
    RunStatus,
    Truncated,
    UsageError,
    child,
    connect,
    sleep,
    step,
    step_context,
    wait_signal,
    workflow,
)
from perdure.kernel.events import RunFinished, SignalReceived
from perdure.kernel.projection import project
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, eventually

calls: Counter[str] = Counter()
keys: dict[str, set[str]] = {}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    calls.clear()
    keys.clear()


@step
async def work(name: str) -> str:
    calls[name] += 1
    keys.setdefault(name, set()).add(step_context().id)
    return name


@workflow(name="fulfil")
async def old() -> list[Any]:
    first = await work("one")
    heard = await wait_signal("go")
    second = await work("two")
    return [first, heard, second, await wait_signal("end")]


@workflow(name="fulfil")
async def new() -> list[Any]:
    first = await work("one")
    heard = await wait_signal("go")
    audited = await work("audit")
    second = await work("two")
    return [first, heard, audited, second, await wait_signal("end")]


async def parked(store: MemoryStore, run_id: str) -> None:
    await eventually(lambda: store.journal.rows[run_id].status is RunStatus.PARKED)


async def stuck(store: MemoryStore) -> str:
    """A run that has done `two` and does not fit the code that audits before it."""
    async with Engine(store, [old], recovery=AT_ONCE) as engine:
        handle = await engine.start(old(), id="it")
        _ = await engine.signal("it", "go", 1)
        await eventually(lambda: store.journal.rows[handle.run_id].status is RunStatus.WAITING and calls["two"] == 1)
    async with Engine(store, [new], recovery=AT_ONCE) as engine:
        _ = await engine.signal("it", "end", "of it")
        await parked(store, handle.run_id)
    return handle.run_id


@pytest.mark.parametrize("kind", ["engine", "client"])
async def test_a_parked_run_goes_on_from_before_an_op_as_a_new_incarnation(kind: str) -> None:
    store = MemoryStore()
    run_id = await stuck(store)
    async with Engine(store, [new], recovery=AT_ONCE) as engine, connect(store) as client:
        waiting = await client.start(new(), id="it")
        assert waiting.run_id == run_id
        teller: Client = engine if kind == "engine" else client
        verdict = await teller.resolve("it", before="work:1")
        assert isinstance(verdict, Truncated)
        assert isinstance(verdict, Accepted)
        assert verdict.again == ("work:1",)
        # Whoever waits for the run waits for what it goes on as; the signal that came while it was parked is not lost.
        assert await waiting.result(PATIENCE) == ["one", 1, "audit", "two", "of it"]
        view, before = await engine.get("it"), await engine.get(run_id)
    assert view is not None
    assert before is not None
    assert (view.run_id, view.forked_from, view.status) == (verdict.run_id, run_id, RunStatus.COMPLETED)
    assert (before.status, before.reason) == (RunStatus.CANCELLED, "it continues from before work:1")
    assert calls == {"one": 1, "two": 2, "audit": 1}
    # `work:1` is another call now than it was: it must not be taken for that one.
    assert keys["audit"] == {f"{verdict.run_id}/work:1"}
    assert keys["two"] == {f"{run_id}/work:1", f"{verdict.run_id}/work:2"}
    for each in (run_id, verdict.run_id):
        assert store.journal.rows[each] == project(each, await store.journal.read(each))
    end = (await store.journal.read(run_id))[-1].events[-1]
    assert isinstance(end, RunFinished)
    assert end.continued_as == verdict.run_id


async def test_a_signal_that_was_taken_after_the_point_comes_again() -> None:
    store = MemoryStore()
    await stuck(store)
    async with Engine(store, [new], recovery=AT_ONCE) as engine:
        verdict = await engine.resolve("it", before="work:0")
        assert isinstance(verdict, Truncated)
        assert verdict.again == ("work:0", "work:1")
        assert await (await engine.start(new(), id="it")).result(PATIENCE) == ["one", 1, "audit", "two", "of it"]
        told = [e.event for e in await engine.journal(verdict.run_id) if isinstance(e.event, SignalReceived)]
    assert [signal.name for signal in told] == ["go", "end"]
    assert calls == {"one": 2, "audit": 1, "two": 2}


async def test_a_signal_that_is_sent_again_under_its_id_is_known_as_such() -> None:
    store = MemoryStore()
    await stuck(store)
    async with connect(store) as client:
        _ = await client.signal("it", "later", 7, signal_id="the one")
        _ = await client.resolve("it", before="work:0")
        assert type(await client.signal("it", "later", 7, signal_id="the one")).__name__ == "Duplicate"


@workflow(name="gathered")
async def gathered() -> list[Any]:
    return list(await asyncio.gather(_left(), work("right")))


@step
async def slowly(name: str) -> str:
    """Ends when the other has ended."""
    while not calls["right"]:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    calls[name] += 1
    return name


async def _left() -> str:
    found = await slowly("left")
    await wait_signal("go")
    return found


@workflow(name="gathered")
async def gathered_otherwise() -> list[Any]:
    return list(await asyncio.gather(_left_otherwise(), work("right")))


async def _left_otherwise() -> str:
    await sleep(0)
    found = await slowly("left")
    await wait_signal("go")
    return found


async def test_what_went_on_beside_the_op_is_kept() -> None:
    store = MemoryStore()
    async with Engine(store, [gathered], recovery=AT_ONCE) as engine:
        handle = await engine.start(gathered(), id="it")
        await eventually(lambda: store.journal.rows[handle.run_id].status is RunStatus.WAITING and calls.total() == 2)
        [left] = [s.path for s in await engine.steps("it") if s.name == "slowly"]
    async with Engine(store, [gathered_otherwise], recovery=AT_ONCE) as engine:
        _ = await engine.signal("it", "go")
        await parked(store, handle.run_id)
        verdict = await engine.resolve("it", before=left)
        assert isinstance(verdict, Truncated)
        assert await (await engine.start(gathered_otherwise(), id="it")).result(PATIENCE) == ["left", "right"]
    assert calls == {"left": 2, "right": 1}


@workflow
async def part(name: str) -> str:
    found = await work(name)
    return found + str(await wait_signal("part"))


@workflow(name="family")
async def family() -> list[str]:
    first = await child(part("a"), id="a")
    second = await child(part("b"), id="b")
    return [first, second, await work("old end"), await wait_signal("go")]


@workflow(name="family")
async def family_otherwise() -> list[str]:
    first = await child(part("a"), id="a")
    second = await child(part("b"), id="b")
    return [first, second, await work("new end"), await wait_signal("go")]


async def test_children_before_the_point_stay_finished_and_those_after_it_begin_anew() -> None:
    store = MemoryStore()
    async with Engine(store, [family, part], recovery=AT_ONCE) as engine:
        handle = await engine.start(family(), id="it")
        for id in ("a", "b"):
            while not isinstance(await engine.signal(id, "part", 1), Accepted):
                await asyncio.sleep(0)
        await eventually(lambda: calls["old end"] == 1 and store.journal.rows[handle.run_id].status == "waiting")
    async with Engine(store, [family_otherwise, part], recovery=AT_ONCE) as engine:
        _ = await engine.signal("it", "go", "x")
        await parked(store, handle.run_id)
        verdict = await engine.resolve("it", before="part:1")
        assert isinstance(verdict, Truncated)
        assert verdict.again == ("part:1", "part:1/work:0", "work:0")
        assert await (await engine.start(family_otherwise(), id="it")).result(PATIENCE) == ["a1", "b1", "new end", "x"]
    assert calls == {"a": 1, "b": 2, "old end": 1, "new end": 1}


async def test_a_run_that_still_does_not_fit_is_parked_again_and_can_be_truncated_further() -> None:
    store = MemoryStore()
    await stuck(store)
    async with connect(store) as client:
        verdict = await client.resolve("it", before="end:0")
        assert isinstance(verdict, Truncated)
    async with Engine(store, [new], recovery=AT_ONCE) as engine:
        await parked(store, verdict.run_id)
        _ = await engine.resolve("it", before="work:1")
        assert await (await engine.start(new(), id="it")).result(PATIENCE) == ["one", 1, "audit", "two", "of it"]
        view = await engine.get("it")
    assert view is not None
    assert view.forked_from == verdict.run_id


async def test_a_version_can_be_named_with_it() -> None:
    store = MemoryStore()
    await stuck(store)
    other = workflow(name="fulfil", version="2")(new.fn)
    async with Engine(store, [other], recovery=AT_ONCE) as engine:
        _ = await engine.resolve("it", before="work:1", version="2")
        assert await (await engine.start(other(), id="it")).result(PATIENCE) == ["one", 1, "audit", "two", "of it"]
        view = await engine.get("it")
    assert view is not None
    assert view.version == "2"


async def test_what_cannot_be_truncated_is_refused_and_nothing_is_written() -> None:
    store = MemoryStore()
    run_id = await stuck(store)
    before = await store.journal.read(run_id)
    async with connect(store) as client:
        with pytest.raises(NoSuchOp, match="work:7"):
            _ = await client.resolve("it", before="work:7")
        with pytest.raises(UsageError, match="takes no other option"):
            _ = await client.resolve("it", before="work:1", fail="no")
        with pytest.raises(UsageError):
            _ = await client.resolve("it", before="")
        assert await store.journal.read(run_id) == before
        _ = await client.resolve("it", fail="by hand")
        assert await client.resolve("it", before="work:1") == Finished(RunStatus.FAILED)
    async with Engine(store, [old], recovery=AT_ONCE) as engine:
        handle = await engine.start(old(), id="other")
        await eventually(lambda: store.journal.rows[handle.run_id].status is RunStatus.WAITING)
        with pytest.raises(NotParked):
            _ = await engine.resolve("other", before="work:0")
