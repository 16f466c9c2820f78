"""Somebody else appends to a run that is under way: the owner reads it, goes on, loses nothing, and repeats nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import Raw

from perdure import Durability, Engine, Retry, RunStatus, Workflow, every, sleep, step, step_context, workflow
from perdure.kernel.events import (
    AnyEvent,
    Batch,
    RunClaimed,
    RunFinished,
    RunReleased,
    SignalReceived,
    StepSucceeded,
)
from perdure.kernel.projection import row
from perdure.kernel.state import fold
from perdure.ports.journal import Append, Appended, Conflict, Outcome
from perdure.ports.store import Store
from perdure.stores.memory.store import MemoryBlobs, MemoryStore
from perdure.stores.open import open_store
from tests.engine.harness import AT_ONCE, PATIENCE, Gates, Recorded, eventually, holding, replay

FOREIGN = SignalReceived("by hand")


async def append_by_hand(store: Store, run_id: str, *events: AnyEvent) -> None:
    """Append as another process would, after whatever is there."""
    while True:
        batches = await store.journal.read(run_id)
        state = fold(run_id, batches)
        seq, at = state.next_seq, state.at
        for event in events:
            state.fold(event, at)
        outcomes = store.journal.append([Append(run_id, seq, [Batch(seq, at, list(events))], row(state))])
        done: Sequence[Outcome] = outcomes if isinstance(outcomes, Sequence) else await outcomes
        if isinstance(done[0], Appended):
            return


async def kinds(store: Store, run_id: str) -> list[str]:
    return [type(e).__name__ for b in await store.journal.read(run_id) for e in b.events]


class Calls:
    """Steps that note their calls and wait for the test."""

    def __init__(self) -> None:
        self.gates = Gates()
        self.names: list[str] = []
        calls = self

        @step
        async def part(name: str) -> str:
            calls.names.append(name)
            calls.gates.open(f"{name} runs")
            await calls.gates.wait(name)
            return name

        self.part = part


def sequence(calls: Calls) -> Workflow[[], list[str]]:
    @workflow
    async def flow() -> list[str]:
        return [await calls.part("a"), await calls.part("b"), await calls.part("c")]

    return flow


def side_by_side(calls: Calls) -> Workflow[[], list[str]]:
    @workflow
    async def flow() -> list[str]:
        a, b, c = await asyncio.gather(calls.part("a"), calls.part("b"), calls.part("c"))
        return [a, b, c]

    return flow


def open_all(calls: Calls) -> None:
    for name in "abc":
        calls.gates.open(name)


# --- events that are not the owner's ---------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["memory", "sqlite"])
@pytest.mark.parametrize("shape", [sequence, side_by_side])
async def test_the_owner_takes_a_foreign_event_in_and_goes_on(shape: Any, where: str, tmp_path: Any) -> None:
    calls = Calls()
    flow = shape(calls)
    store: Store = MemoryStore() if where == "memory" else open_store(f"sqlite:///{tmp_path}/x.db")
    async with Engine(store, [flow], recovery=AT_ONCE) as engine:
        handle = await engine.start(flow())
        await calls.gates.wait("a runs")
        await append_by_hand(store, handle.run_id, FOREIGN)
        open_all(calls)
        assert await handle.result(PATIENCE) == ["a", "b", "c"]
        assert calls.names == ["a", "b", "c"]
        found = await kinds(store, handle.run_id)
        assert found.count("SignalReceived") == 1
        assert found.count("StepStarted") == found.count("StepSucceeded") == 3
        assert found.count("RunClaimed") == 1
        await replay(flow, handle.run_id, store)


async def test_a_foreign_event_between_any_two_appends_loses_nothing_and_repeats_nothing() -> None:
    class Busy(MemoryStore):
        """Somebody appends before every append of the owner, once per append."""

        def __init__(self) -> None:
            super().__init__()
            self.conflicts = 0
            original = self.journal.append
            disturbed: set[int] = set()

            def append(appends: Sequence[Append]) -> Sequence[Outcome]:
                for one in appends:
                    stored = [Batch(s, a, _decode(d)) for s, a, d in self.journal.batches.get(one.run_id, [])]
                    state = fold(one.run_id, stored)
                    seq = state.next_seq
                    foreign = isinstance(one.batches[0].events[0], SignalReceived)
                    if stored and not foreign and seq not in disturbed and state.finished is None:
                        disturbed.update((seq, seq + 1))
                        self.conflicts += 1
                        state.fold(FOREIGN, state.at)
                        original([Append(one.run_id, seq, [Batch(seq, state.at, [FOREIGN])], row(state))])
                return original(appends)

            self.journal.append = append  # type: ignore[method-assign]

    called: list[str] = []

    @step
    async def part(name: str) -> str:
        called.append(name)
        return name

    @step(retry=Retry(attempts=3, initial=0))
    def flaky(name: str) -> str:
        called.append(f"{name}{step_context().attempt}")
        if step_context().attempt < 3:
            raise ConnectionError("busy")
        return name

    @workflow
    async def flow() -> list[str]:
        first = await part("first")
        rest = await asyncio.gather(part("x"), flaky("y"), part("z"))
        await sleep(0.01)
        return [first, *rest, await part("last")]

    store = Busy()
    async with Engine(store, [flow], recovery=AT_ONCE) as engine:
        handle = await engine.start(flow())
        assert await handle.result(PATIENCE) == ["first", "x", "y", "z", "last"]
    assert store.conflicts >= 5
    assert sorted(called) == sorted(["first", "x", "y1", "y2", "y3", "z", "last"])
    found = await kinds(store, handle.run_id)
    assert found.count("StepSucceeded") == 5
    assert found[-1] == "RunFinished"
    await replay(flow, handle.run_id, store)


def _decode(data: bytes) -> Any:
    from perdure.kernel.events import decode_events

    return decode_events(data)


@pytest.mark.parametrize("mode", ["async", "exit", "manual", every(100), Durability("async", lag=60)])
async def test_a_foreign_event_repeats_no_step_whose_outcome_was_not_written_yet(mode: Any) -> None:
    calls = Calls()
    flow = sequence(calls)
    store = MemoryStore()
    async with Engine(store, [flow], recovery=AT_ONCE, durability=mode) as engine:
        handle = await engine.start(flow())
        calls.gates.open("a")
        await calls.gates.wait("b runs")
        await append_by_hand(store, handle.run_id, FOREIGN)
        open_all(calls)
        assert await handle.result(PATIENCE) == ["a", "b", "c"]
    assert calls.names == ["a", "b", "c"]
    await replay(flow, handle.run_id, store)


async def test_a_foreign_event_while_a_large_result_is_being_stored_repeats_no_step() -> None:
    gates = Gates()

    class SlowBlobs(MemoryBlobs):
        async def put(self, data: bytes) -> str:
            if len(data) > 100_000:  # not the source of the program
                gates.open("storing")
                await gates.wait("store")
            return await super().put(data)

    called: list[str] = []

    @step
    async def big() -> str:
        called.append("big")
        return "x" * 300_000

    @step
    async def small() -> str:
        called.append("small")
        await gates.wait("small")
        return "small"

    @step
    async def last() -> str:
        called.append("last")
        gates.open("last runs")
        return "last"

    @workflow
    async def flow() -> list[Any]:
        async def branch() -> str:
            await small()
            return await last()

        large, after = await asyncio.gather(big(), branch())
        return [len(large), after]

    store = MemoryStore()
    store.blobs = SlowBlobs()
    async with Engine(store, [flow], recovery=AT_ONCE) as engine:
        handle = await engine.start(flow())
        await gates.wait("storing")
        await append_by_hand(store, handle.run_id, FOREIGN)
        gates.open("small")
        await gates.wait("last runs")
        gates.open("store")
        assert await handle.result(PATIENCE) == [300_000, "last"]
    assert sorted(called) == ["big", "last", "small"]
    await replay(flow, handle.run_id, store)


async def test_an_append_whose_reply_was_lost_counts_as_written() -> None:
    class Forgetful(MemoryStore):
        """Writes, and once says that it did not."""

        def __init__(self) -> None:
            super().__init__()
            original = self.journal.append
            self.lost = 0

            def append(appends: Sequence[Append]) -> Sequence[Outcome]:
                outcomes = original(appends)
                if self.lost == 0 and any(
                    isinstance(e, StepSucceeded) for a in appends for b in a.batches for e in b.events
                ):
                    self.lost += 1
                    return [Conflict(None if a.expected_next == 0 else a.next_seq) for a in appends]
                return outcomes

            self.journal.append = append  # type: ignore[method-assign]

    calls = Calls()
    flow = sequence(calls)
    store = Forgetful()
    open_all(calls)
    async with Engine(store, [flow], recovery=AT_ONCE) as engine:
        handle = await engine.start(flow())
        assert await handle.result(PATIENCE) == ["a", "b", "c"]
    assert store.lost == 1
    assert calls.names == ["a", "b", "c"]
    found = await kinds(store, handle.run_id)
    assert found.count("StepSucceeded") == found.count("StepStarted") == 3


# --- ownership -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["memory", "sqlite"])
async def test_an_owner_that_was_replaced_stops_without_writing_one_event(where: str, tmp_path: Any) -> None:
    calls = Calls()
    flow = sequence(calls)
    store: Store = MemoryStore() if where == "memory" else open_store(f"sqlite:///{tmp_path}/x.db")
    async with Engine(store, [flow], recovery=AT_ONCE) as engine:
        handle = await engine.start(flow())
        orchestrator = engine._orchestrator
        assert orchestrator is not None
        await calls.gates.wait("a runs")
        await store.leases.acquire("orchestrator:another", "another", 3600, engine.clock.now())
        await append_by_hand(store, handle.run_id, RunClaimed("another", 2, "its session"))
        before = await kinds(store, handle.run_id)
        calls.gates.open("a")
        await eventually(lambda: handle.run_id not in orchestrator.active)
        open_all(calls)
        assert await kinds(store, handle.run_id) == before
        assert calls.names == ["a"]
    if where == "memory":
        assert await kinds(store, handle.run_id) == before


async def test_an_owner_that_was_replaced_by_a_process_of_its_own_name_stops_too() -> None:
    calls = Calls()
    flow = sequence(calls)
    store = MemoryStore()
    async with Engine(store, [flow], recovery=AT_ONCE, name="worker-1") as engine:
        handle = await engine.start(flow())
        orchestrator = engine._orchestrator
        assert orchestrator is not None
        await calls.gates.wait("a runs")
        await append_by_hand(store, handle.run_id, RunClaimed("worker-1", 2, "another session"))
        before = await kinds(store, handle.run_id)
        calls.gates.open("a")
        await eventually(lambda: handle.run_id not in orchestrator.active)
        assert await kinds(store, handle.run_id) == before


async def test_a_caller_gets_the_result_from_whoever_owns_the_run_in_the_end() -> None:
    calls = Calls()
    flow = sequence(calls)
    store = MemoryStore()
    async with (
        Engine(store, [flow], recovery=AT_ONCE, name="first") as first,
        Engine(store, [flow], recovery=AT_ONCE, name="second"),
    ):
        handle = await first.start(flow(), id="it")
        waiting = asyncio.create_task(handle.result(PATIENCE))
        await calls.gates.wait("a runs")
        # As if the first had let go of it; the second may take it over, and the first must notice.
        await append_by_hand(store, handle.run_id, RunReleased("first"))
        open_all(calls)
        assert await waiting == ["a", "b", "c"]
    found = await kinds(store, handle.run_id)
    assert found.count("StepSucceeded") == 3
    assert found.count("RunFinished") == 1


async def test_a_run_that_was_ended_by_somebody_else_ends_here_too() -> None:
    calls = Calls()
    flow = sequence(calls)
    store = MemoryStore()
    async with Engine(store, [flow], recovery=AT_ONCE) as engine:
        handle = await engine.start(flow())
        await calls.gates.wait("a runs")
        await append_by_hand(store, handle.run_id, FOREIGN, RunFinished(RunStatus.CANCELLED, reason="by hand"))
        calls.gates.open("a")
        result = await handle.outcome(PATIENCE)
        assert result.status is RunStatus.CANCELLED
        orchestrator = engine._orchestrator
        assert orchestrator is not None
        await eventually(lambda: not orchestrator.active)
    assert calls.names == ["a"]
    assert (await kinds(store, handle.run_id))[-1] == "RunFinished"


async def test_of_two_ends_the_first_one_in_the_journal_counts() -> None:
    store = MemoryStore()
    gates, flow = holding()
    async with Engine(store, [flow], recovery=AT_ONCE) as engine:
        handle = await engine.start(flow())
        await gates.wait("runs")
        finished = RunFinished(RunStatus.COMPLETED, Raw(b'"by hand"'))
        await append_by_hand(store, handle.run_id, finished)
        gates.open("hold")
        assert await handle.result(PATIENCE) == "by hand"
    assert (await kinds(store, handle.run_id)).count("RunFinished") == 1


async def test_two_engines_never_run_one_run_at_the_same_time() -> None:
    inside = most = total = 0

    @step
    async def part(n: int) -> int:
        nonlocal inside, most, total
        total += 1
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1
        return n

    @workflow
    async def flow() -> int:
        value = 0
        for n in range(5):
            value += await part(n)
            await sleep(0.001)
        return value

    store, recorded = MemoryStore(), Recorded()
    async with (
        Engine(store, [flow], name="a", on_commit=recorded) as a,
        Engine(store, [flow], name="b", on_commit=recorded) as b,
    ):
        first = await a.start(flow(), id="it")
        second = await b.start(flow(), id="it")
        assert first.run_id == second.run_id
        assert await first.result(PATIENCE) == await second.result(PATIENCE) == 10
    assert most == 1
    assert total == 5
