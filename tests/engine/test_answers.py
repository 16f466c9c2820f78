"""A store whose answers come while the loop turns: what is made ready meanwhile, and what comes of each answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec import Raw

from perdure import Engine, PerdureError, step, workflow
from perdure.errors import StoreUnavailable
from perdure.kernel.events import SignalReceived, StepStarted
from perdure.ports.journal import Append, Outcome, PendingOutcomes
from perdure.stores.memory.store import MemoryStore
from perdure.testing.conformance.history import numbered
from tests.engine.harness import AT_ONCE


class Slowly:
    """A journal that answers in a later turn of the loop."""

    def __init__(self, journal: Any) -> None:
        self._journal = journal
        # What comes before an append reaches the journal; whatever it raises is the answer.
        self.before: Callable[[Sequence[Append]], None] = lambda appends: None

    def append(self, appends: Sequence[Append]) -> PendingOutcomes:
        answer = PendingOutcomes()
        asyncio.get_running_loop().call_soon(self._answer, appends, answer)
        return answer

    def _answer(self, appends: Sequence[Append], answer: PendingOutcomes) -> None:
        try:
            self.before(appends)
            said: Sequence[Outcome] | Exception = self._journal.append(appends)
        except StoreUnavailable as error:
            said = error
        answer.resolve(said)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    store.journal = Slowly(store.journal)  # type: ignore[assignment]
    return store


@step
async def add(a: int, b: int) -> int:
    return a + b


@workflow
async def total(count: int) -> int:
    result = 0
    for i in range(count):
        result = await add(result, i)
    return result


async def test_a_sequence_of_steps(store: MemoryStore) -> None:
    async with Engine(store, [total], recovery=AT_ONCE) as engine:
        assert await (await engine.start(total(10))).result() == 45


async def test_an_answer_can_be_awaited_by_whoever_needs_it(store: MemoryStore) -> None:
    store.journal.before = refuse(1)  # type: ignore[attr-defined]
    async with Engine(store, [total], recovery=AT_ONCE) as engine:
        with pytest.raises(StoreUnavailable):
            _ = await engine.start(total(1), id="refused")
        assert await (await engine.start(total(1), id="refused")).result() == 0


def refuse(times: int) -> Callable[[Sequence[Append]], None]:
    left = [times]

    def before(appends: Sequence[Append]) -> None:
        if left[0]:
            left[0] -= 1
            raise StoreUnavailable("memory:", "it is busy")

    return before


async def test_arguments_that_do_not_fit_are_the_outcome_of_the_step(store: MemoryStore) -> None:
    @workflow
    async def flow() -> str:
        try:
            await add("a lot", 1)  # type: ignore[arg-type]
        except PerdureError as error:
            return str(error)
        return ""

    async with Engine(store, [flow], recovery=AT_ONCE) as engine:
        assert "the argument a of add:0" in await (await engine.start(flow())).result()


async def test_what_was_made_ready_begins_once_though_the_store_refuses_at_first(store: MemoryStore) -> None:
    async with Engine(store, [total], recovery=AT_ONCE) as engine:
        run = await engine.start(total(3))
        store.journal.before = refuse(1)  # type: ignore[attr-defined]
        assert await run.result() == 3
        started = [event for _, event in await numbered(store.journal, run.run_id) if isinstance(event, StepStarted)]
        assert [event.op for event in started] == ["add:0", "add:1", "add:2"]


async def test_what_was_made_ready_begins_once_though_others_have_written_before(store: MemoryStore) -> None:
    called: list[int] = []

    @step
    async def count(i: int) -> int:
        called.append(i)
        return i

    @workflow
    async def flow() -> list[int]:
        return [await count(i) for i in range(4)]

    def come_first(appends: Sequence[Append]) -> None:
        [append] = appends
        if append.expected_next > 4 and not written:
            written.append(append.run_id)
            batch = append.batches[0]
            first = type(batch)(batch.seq, batch.at, [SignalReceived("news", Raw(b"1"), "s1")])
            store.journal._journal.append([Append(append.run_id, batch.seq, [first])])  # type: ignore[attr-defined]

    written: list[str] = []
    store.journal.before = come_first  # type: ignore[attr-defined]
    async with Engine(store, [flow], recovery=AT_ONCE) as engine:
        run = await engine.start(flow())
        assert await run.result() == [0, 1, 2, 3]
    assert written == [run.run_id]
    assert called == [0, 1, 2, 3]
