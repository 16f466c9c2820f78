"""A run of a version that an engine lacks is left to the engine that has it, and parked as with unknown programs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from perdure import Engine, Queue, RunStatus, child, lock, step, wait_signal, workflow
from perdure.graph import Graph, interrupt
from perdure.kernel.events import RunClaimed, RunReleased, RunResumed, RunStarted, StepStarted
from perdure.orchestrator.residency import LEFT
from perdure.ports.leases import ORCHESTRATOR, REGISTRATION, Registration
from perdure.ports.store import Store
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, FakeClock
from tests.orchestrator.test_fit_check import until
from tests.orchestrator.test_unknown_programs import begun as owned
from tests.orchestrator.test_unknown_programs import journal, write


@step
async def work(n: int) -> int:
    return n


@workflow(name="fulfil", version="1")
async def first(n: int = 1) -> str:
    await work(n)
    return "first"


@workflow(name="fulfil", version="2")
async def second(n: int = 1) -> str:
    return "second"


@workflow(name="fulfil", version="3", accepts=("1",))
async def third(n: int = 1) -> str:
    await work(n)
    return "third"


@workflow(name="listen", version="1")
async def listen_1() -> str:
    async with lock("room"):
        return f"one {await wait_signal('go')}"


@workflow(name="listen", version="2")
async def listen_2() -> str:
    return "two"


def start(run_id: str, version: str, **fields: Any) -> RunStarted:
    return RunStarted(run_id, fields.pop("program", "fulfil"), version, Raw(b'{"n":1}'), **fields)


def released(run_id: str, version: str) -> Any:
    return journal(run_id, start(run_id, version), RunClaimed("w1", 1), StepStarted("work:0", 1), RunReleased("w1"))


def engine_of(store: Store, name: str, *programs: Any, clock: FakeClock | None = None, **options: Any) -> Engine:
    return Engine(store, [*programs], name=name, recovery=AT_ONCE, clock=clock or FakeClock(), **options)


async def result(engine: Engine, id: str) -> Any:
    return await engine.handle(id).result(PATIENCE)


async def is_parked(engine: Engine, id: str) -> bool:
    view = await engine.get(id)
    return view is not None and view.status is RunStatus.PARKED


async def checked(engine: Engine) -> None:
    """Wait until it has seen to all runs twice: when it started, and again."""
    service = engine._service
    assert service is not None
    for _ in range(2):
        last = service.fit_check.last
        service.fit_check.request()
        async with asyncio.timeout(PATIENCE):
            while service.fit_check.last is last:
                await asyncio.sleep(0.005)
        await service._load(peers_changed=True)


async def test_unowned_orphaned_queued_and_pinned_runs_wait_for_the_engine_that_has_their_version(
    store: Callable[[], Store],
) -> None:
    """They keep no other run from its turn meanwhile, and a look at the store reads none of them."""
    queue = Queue("q", concurrency=1)
    await write(
        store(),
        released("a-released", "1"),
        owned("b-orphaned", "fulfil", "dead"),
        journal("c-new", start("c-new", "1")),
        *(journal(f"d-{n}", start(f"d-{n}", "1", queue="q")) for n in range(3)),
        journal("e-pinned", start("e-pinned", "2"), RunClaimed("w1", 1), RunResumed(version="1"), RunReleased("w1")),
        journal("x", start("x", "2", queue="q")),
        journal("y", start("y", "")),
        journal("z", start("z", "2"), RunClaimed("dead", 1, "gone")),
    )
    left = ["a-released", "b-orphaned", "c-new", "d-0", "d-1", "d-2", "e-pinned"]
    async with engine_of(store(), "w2", second, queues=[queue]) as theirs:
        assert [await result(theirs, id) for id in "xyz"] == ["second"] * 3
        await checked(theirs)
        assert not any([await is_parked(theirs, id) for id in left])
        for id in ("a-released", "d-0"):
            assert str(await theirs.why(id)) == "no worker has version 1 of `fulfil` (w2 has 2)"
        async with engine_of(store(), "w3", third, queues=[queue]) as ours:
            assert {await result(ours, id) for id in left} == {"third"}
        assert not theirs._orchestrator.active  # type: ignore[union-attr]


@pytest.fixture
async def two(store: Callable[[], Store]) -> Store:
    """A store with a run of version 1 that its owner `w1` left; it holds a lock, and so counts as running."""
    async with engine_of(store(), "w1", listen_1) as engine:
        _ = await engine.start(listen_1(), id="it")
        await until(lambda: _waits(engine))
    return store()


async def _waits(engine: Engine) -> bool:
    view = await engine.get("it")
    return view is not None and bool(view.waits)


async def register(store: Store, clock: FakeClock, name: str, registration: Registration | None) -> None:
    """Have another engine seem alive, with what it registered."""
    await store.leases.acquire(ORCHESTRATOR + name, f"{name}#1", 1000.0, clock.now())
    if registration is not None:
        text = msgspec.json.encode(registration).decode()
        await store.leases.acquire(REGISTRATION + name, text, 1000.0, clock.now())


async def test_the_successor_of_its_owner_parks_it_once_no_live_engine_may_have_the_version(two: Store) -> None:
    clock = FakeClock()
    async with engine_of(two, "w1", listen_2, clock=clock) as engine:
        await until(lambda: is_parked(engine, "it"))
        view = await engine.get("it")
        assert view is not None
        assert view.parked == "no_version"
        assert "version 1 of listen is not registered here" in view.reason


@pytest.mark.parametrize(
    ("other", "parks"),
    [
        (Registration(("fulfil",), versions={}), False),
        (Registration(("fulfil",), versions={"fulfil": ("2", "4")}), True),
        (Registration(("fulfil",), versions={"fulfil": ("0", "1")}), False),
        (Registration(("fulfil",), ("elsewhere",), versions={}), True),
        (Registration(("fulfil",)), False),
        (Registration(("fulfil",), versions={"fulfil": ()}), False),
        (Registration(("other",), versions={}), True),
        (Registration(None), False),
        (None, False),
    ],
    ids=["has it", "has others", "accepts it", "serves a queue", "older", "not loaded", "lacks", "too many", "not yet"],
)
async def test_what_a_live_engine_may_have_is_left_to_it(other: Registration | None, parks: bool) -> None:
    store, clock = MemoryStore(), FakeClock()
    await write(store, released("it", "1"))
    await register(store, clock, "other", other)
    async with engine_of(store, "w1", second, clock=clock) as engine:
        await checked(engine)
        assert await is_parked(engine, "it") is parks
        if other is not None and other.versions_of("fulfil") == ("2", "4"):
            view = await engine.get("it")
            assert view is not None
            assert view.reason.endswith("accepts=('1',). Of other live engines, other has 2, 4")
            assert str(await engine.why("it")).endswith("other has 2, 4 (other has 2, 4, w1 has 2)")


@workflow(name="part", version="1")
async def part_1() -> str:
    return f"part {await wait_signal('go')}"


@workflow(name="part", version="2")
async def part_2() -> str:
    return "part 2"


@workflow
async def whole() -> str:
    return await child(part_1())


@pytest.mark.parametrize("lacks", [(whole, part_2), (whole,)], ids=["version", "program"])
async def test_a_run_whose_child_lacks_something_is_released_to_the_engine_that_has_it(lacks: tuple[Any, ...]) -> None:
    """If it is the one that is told of the signal, and so has claimed the run before it was replayed."""
    store, clock = MemoryStore(), FakeClock()
    async with engine_of(store, "w0", whole, part_1, clock=clock) as engine:
        _ = await engine.start(whole(), id="it")
        await until(lambda: _waits(engine))
    await register(store, clock, "late", None)
    async with engine_of(store, "w1", *lacks, clock=clock) as theirs:
        _ = await theirs.signal("it/part:0", "go", 7)
        await until(lambda: _is_left(theirs, "it"))
        assert not await is_parked(theirs, "it")
        async with engine_of(store, "w2", whole, part_1, clock=clock) as ours:
            assert await result(ours, "it") == "part 7"


async def _is_left(engine: Engine, id: str) -> bool:
    view = await engine.get(id)
    assert view is not None
    assert engine._orchestrator is not None
    return engine._orchestrator.runs.state(view.run_id) is LEFT and view.owner is None


async def test_a_run_whose_child_lacks_something_is_parked_when_no_other_engine_has_it() -> None:
    store, clock = MemoryStore(), FakeClock()
    async with engine_of(store, "w0", whole, part_1, clock=clock) as engine:
        _ = await engine.start(whole(), id="it")
        await until(lambda: _waits(engine))
    await register(store, clock, "late", None)
    async with engine_of(store, "w1", whole, part_2, clock=clock) as theirs:
        _ = await theirs.signal("it/part:0", "go", 7)
        await until(lambda: _is_left(theirs, "it"))
        await store.leases.release(ORCHESTRATOR + "late", "late#1")
        theirs._service.fit_check.request()  # type: ignore[union-attr]
        await until(lambda: is_parked(theirs, "it"))


async def test_a_detached_child_waits_for_its_version_and_a_tick_has_the_one_that_is_there() -> None:
    @workflow
    async def sender() -> None:
        _ = await child(first(), id="sent", detached=True)

    store, clock = MemoryStore(), FakeClock()
    async with engine_of(store, "w0", first, sender, clock=clock) as engine:
        _ = await engine.schedule("daily", first(), every=60)
        _ = await engine.start(sender(), id="s", delay=30)
    clock.advance(61)
    async with engine_of(store, "w1", sender, second, clock=clock) as theirs:
        await theirs.handle("s").result(PATIENCE)
        await until(lambda: _both(theirs))
        await checked(theirs)
        found = {run.id: run.status for run in await theirs.list(program="fulfil")}
        assert found.pop("sent") is RunStatus.QUEUED
        assert await result(theirs, *found) == "second"
    async with engine_of(store, "w2", first, clock=clock) as ours:
        assert await result(ours, "sent") == "first"


async def _both(engine: Engine) -> bool:
    return len(await engine.list(program="fulfil")) == 2


async def test_a_deadline_holds_for_a_version_that_no_engine_has(store: Callable[[], Store]) -> None:
    clock = FakeClock()
    late = start("late", "1", deadline=clock.now() + 10)
    begun = journal(
        "begun", start("begun", "1", deadline=clock.now() + 10), RunClaimed("dead", 1), StepStarted("work:0")
    )
    await write(store(), journal("late", late), begun)
    async with engine_of(store(), "w2", second, clock=clock) as engine:
        await checked(engine)
        clock.advance(11)
        for id in ("late", "begun"):
            assert (await engine.handle(id).outcome(PATIENCE)).status is RunStatus.FAILED


async def test_graphs_have_versions_too() -> None:
    @interrupt(answer=int)
    def many(a: int) -> str:
        return "how many?"

    one, two = Graph([many], name="asks", version="1"), Graph([many], name="asks", version="2")
    store, clock = MemoryStore(), FakeClock()
    async with engine_of(store, "w0", one, clock=clock) as engine:
        _ = await engine.start(one(a=1), id="it")
        await until(lambda: _waits(engine))
    async with engine_of(store, "w1", two, clock=clock) as theirs:
        await checked(theirs)
        assert not await is_parked(theirs, "it")
        assert str(await theirs.why("it")).endswith("no worker has version 1 of `asks` (w1 has 2)")
    async with engine_of(store, "w0", two, clock=clock) as after:
        await until(lambda: is_parked(after, "it"))
