"""Steps as callers see them: arguments, how long they took, what they have shown, whether they were replayed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from perdure import (
    Engine,
    Limits,
    PayloadTooLarge,
    StepStatus,
    StreamView,
    connect,
    step,
    step_context,
    step_inline,
    wait_signal,
    workflow,
)
from perdure.kernel.events import StepStarted, WaitOpened
from perdure.ports.store import Store
from tests.engine.harness import AT_ONCE, FakeClock, Recorded
from tests.patience import PATIENCE
from tests.services.plugin import on_two_stores


@step
async def charge(order: str, cents: int = 100, *parts: int, note: str = "", **more: Any) -> int:
    return cents


@step(record_inputs=True)
async def ship(order: str, *, to: dict[str, str]) -> str:
    return order


@step
async def tick() -> None: ...


@workflow
async def pack(order: str) -> str:
    return await ship(order, to={"city": "Köln"})


@workflow
async def fulfil(order: str) -> str:
    await charge(order, 5, 6, 7, note="gift", vip=True)
    await tick()
    await step_inline("roll", lambda a: a, 4)
    return await pack(order)


RECORDED = {"order": "o1", "to": {"city": "Köln"}}


@on_two_stores
async def test_inputs_are_told_by_replay_where_the_code_is_at_hand(any_store: Store) -> None:
    async with Engine(any_store, [fulfil, pack]) as engine:
        await engine.run(fulfil("o1"), id="it")
        charged, ticked, rolled, shipped = await engine.steps("it")
        assert charged.inputs == {"order": "o1", "cents": 5, "parts": [6, 7], "note": "gift", "vip": True}
        assert ticked.inputs == {}
        assert list((rolled.inputs or {}).values()) == [4]
        assert shipped.inputs == RECORDED
        [of_child] = await engine.steps("it/pack:0")
        assert of_child == shipped
        assert [view.inputs for view in await engine.steps("it", inputs=False)] == [None, None, None, RECORDED]


@on_two_stores
async def test_inputs_that_are_recorded_are_there_without_the_code(any_store: Store) -> None:
    async with Engine(any_store, [fulfil, pack]) as engine:
        await engine.run(fulfil("o1"), id="it")
    async with connect(any_store) as client:
        assert [view.inputs for view in await client.steps("it")] == [None, None, None, RECORDED]

    @workflow(name="fulfil")
    async def other(order: str) -> str:
        return await pack(order)

    async with Engine(any_store, [other, pack]) as engine:
        assert [view.inputs for view in await engine.steps("it")] == [None, None, None, RECORDED]


async def test_only_steps_that_ask_for_it_record_their_inputs() -> None:
    recorded = Recorded()
    async with Engine("memory://", [fulfil, pack], on_commit=recorded) as engine:
        await engine.run(fulfil("o1"), id="it")
    started = [event for event in recorded.events if isinstance(event, StepStarted)]
    assert [event.names for event in started] == [(), (), (), ("order", "to")]


@step(record_inputs=True)
async def keep(text: str) -> int:
    return len(text)


@workflow
async def keeps(text: str) -> int:
    try:
        return await keep(text + text)
    except PayloadTooLarge:
        return -1


async def test_large_inputs_lie_apart_and_those_that_are_too_large_fail_the_step(tmp_path: Any) -> None:
    url, limits = f"sqlite:///{tmp_path}/x.db", Limits(blob=1000, payload=5000)
    async with Engine(url, [keeps], limits=limits) as engine:
        assert (await engine.run(keeps("x" * 900), id="large")).output == 1800
        assert (await engine.run(keeps("x" * 3000), id="huge")).output == -1
    async with connect(url) as client:
        [view] = await client.steps("large")
        assert view.inputs == {"text": "x" * 1800}
        [view] = await client.steps("huge")
        assert (view.status, view.inputs) == (StepStatus.FAILED, None)
        assert "input of keep:0" in str(view.error)
        capsule = await client.export("large", redact=["keep:0.$[0]"])
    async with Engine(f"sqlite:///{tmp_path}/other.db", []) as engine:
        await engine.import_run(capsule)
        [view] = await engine.steps("large")
        assert view.inputs == {"text": "[redacted]"}


@step
async def tokens() -> AsyncIterator[str]:
    for token in ("a", "b"):
        yield token
    if step_context().attempt == 1:
        await asyncio.Event().wait()


@workflow
async def speaks() -> list[str]:
    return await tokens()


@on_two_stores
async def test_a_step_shows_its_chunks_and_how_its_stream_stands(any_store: Store) -> None:
    recorded = Recorded()
    async with Engine(any_store, [speaks], on_commit=recorded, recovery=AT_ONCE, name="w") as engine:
        _ = await engine.start(speaks(), id="it")
        while (found := await engine.steps("it")) == [] or len(found[0].chunks) < 2:
            await asyncio.sleep(0.01)
        [view] = found
        assert view.chunks == ("a", "b")
        assert view.stream == StreamView(next=2, restarts=0, open=True)
        assert (view.duration, view.replayed) == (None, False)
    async with Engine(any_store, [speaks], recovery=AT_ONCE, name="w") as engine:
        await (await engine.start(speaks(), id="it")).result(PATIENCE)
        [view] = await engine.steps("it")
        assert view.chunks == ("a", "b")
        assert view.stream is not None
        assert (view.stream.open, view.stream.restarts) == (False, 1)


@workflow
async def waits(n: int) -> int:
    first = await charge("o", n)
    await wait_signal("go")
    return first + await charge("o", n)


@on_two_stores
async def test_steps_are_marked_as_replayed_when_another_owner_took_them_from_the_journal(any_store: Store) -> None:
    clock, recorded = FakeClock(), Recorded()
    async with Engine(any_store, [waits], clock=clock, on_commit=recorded, name="w1") as engine:
        _ = await engine.start(waits(1), id="it")
        await recorded.until(lambda e: isinstance(e, WaitOpened))
        assert [view.replayed for view in await engine.steps("it")] == [False]
    async with Engine(any_store, [waits], clock=clock, name="w2") as engine:
        await engine.signal("it", "go")
        await (await engine.start(waits(1), id="it")).result(PATIENCE)
        views = await engine.steps("it")
        assert [view.replayed for view in views] == [True, False]
        assert [view.duration for view in views] == [timedelta(0), timedelta(0)]
        assert [view.inputs for view in views] == [{"order": "o", "cents": 1}] * 2
        fork = await engine.fork("it", at="charge:1")
        await engine.signal(fork.id, "go")
        await fork.result(PATIENCE)
        assert [view.replayed for view in await engine.steps(fork.id)] == [True, False]


async def test_a_long_journal_is_replayed_for_inputs_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.client.queries.REPLAYED", 3)
    async with Engine("memory://", [fulfil, pack]) as engine:
        await engine.run(fulfil("o1"), id="it")
        assert [view.inputs is None for view in await engine.steps("it")] == [True, True, True, False]
        assert all(view.inputs is not None for view in await engine.steps("it", inputs=True))
