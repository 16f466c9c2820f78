"""A decision that lost a race is taken again, on the state that won it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from perdure import Engine, connect, wait_signal, workflow
from perdure.client.gateway import decided
from perdure.kernel import inbound
from perdure.kernel.events import AnyEvent
from perdure.kernel.inbound import UNDECIDED, Accepted, AlreadyFinished, Decided, Undecided
from perdure.kernel.state import RunState
from perdure.ports.journal import Append
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE


@workflow
async def patient() -> str:
    return await wait_signal("go", type=str)


async def test_what_lost_a_race_is_tried_until_it_is_decided() -> None:
    outcomes: list[Decided[int] | Undecided] = [UNDECIDED, UNDECIDED, Decided(7)]

    async def attempt() -> Decided[int] | Undecided:
        return outcomes.pop(0)

    assert await decided(attempt) == 7
    assert outcomes == []


async def test_an_append_that_comes_too_late_is_decided_again_on_the_new_state(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    async with connect(store) as client, connect(store) as rival:
        run = await client.start(patient(), id="it")
        seen: list[int] = []

        def decide(state: RunState) -> Sequence[AnyEvent] | AlreadyFinished:
            seen.append(state.next_seq)
            return inbound.cancel(state, "late")

        append = client._base.append

        async def after_a_rival(written: Append) -> bool:
            if len(seen) == 1:
                assert await rival.pause("it") == Accepted()
            return await append(written)

        monkeypatch.setattr(client._base, "append", after_a_rival)
        assert await client._gateway.tell(run.run_id, decide) is UNDECIDED
        assert await client._messages.send_decided(run.run_id, decide) == Accepted()
        assert seen == [1, 2]


async def test_an_engine_reaches_a_run_in_its_memory_and_any_other_through_the_store() -> None:
    store = MemoryStore()
    async with Engine(store, [patient], recovery=AT_ONCE) as engine, connect(store) as client:
        handle = await engine.start(patient(), id="here")
        queued = await client.start(patient(), id="elsewhere", queue="unserved")
        assert await engine.signal("here", "go", "now") == Accepted()
        async with asyncio.timeout(PATIENCE):
            assert await handle == "now"
        assert await engine.pause(queued.run_id) == Accepted()
