"""Locks of child runs."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Engine, RunStatus, bail, connect, lock, workflow
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, Recorded
from tests.engine.lock_parts import _no_locks, free, gates, until, wait_for, work

pytestmark = pytest.mark.usefixtures("no_locks_left")


@workflow
async def visitor(end: str) -> int:
    async with lock("room") as held:
        await work("child")
        if end == "bail":
            bail("enough", held.token)
        if end == "fail":
            raise ValueError("no")
        return held.token


@workflow
async def host(end: str) -> list[Any]:
    async with lock("house") as held:
        try:
            inside = await visitor(end)
        except ValueError:
            inside = -1
        async with lock("room") as after:
            return [held.token, inside, after.token]


@pytest.mark.parametrize(("end", "token"), [("return", 1), ("fail", -1), ("bail", 1)])
async def test_a_child_has_locks_of_its_own_and_gives_them_back_at_its_end(
    local_url: str, end: str, token: int
) -> None:
    recorded = Recorded()
    async with Engine(local_url, [host, visitor], on_commit=recorded) as engine:
        run = await engine.start(host(end), id="h")
        result = await run.result(PATIENCE)
        assert [result[0], result[2]] == [1, 2]
        assert result[1] in (token, None)
        await until(lambda: _no_locks(engine))


async def test_a_parent_keeps_its_lock_when_its_child_gives_one_back() -> None:
    @workflow
    async def careful() -> int:
        async with lock("house") as held:
            await visitor("return")
            await wait_for("go")
            return held.token

    recorded = Recorded()
    async with Engine("memory://", [careful, visitor], on_commit=recorded) as engine:
        run = await engine.start(careful())
        await recorded.until_started("wait_for:0")
        await until(lambda: free(engine))
        assert [view.key for view in await engine.locks.list()] == ["house"]
        gates.open("go")
        assert await run.result(PATIENCE) == 1


async def test_a_child_that_is_taken_over_has_its_lock_again() -> None:
    @workflow
    async def inner() -> list[int]:
        async with lock("room") as held:
            first = held.token
            await wait_for("go")
            return [first, held.token]

    @workflow
    async def outer() -> list[int]:
        return await inner()

    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [outer, inner], on_commit=recorded, recovery=AT_ONCE) as engine:
        _ = await engine.start(outer(), id="r")
        await recorded.until_started("inner:0/wait_for:0")
    gates.open("go")
    async with connect(store) as client:
        assert await client.locks.force_release("room") is not None
        async with client.locks.hold("room"):
            pass
    async with Engine(store, [outer, inner]) as engine:
        assert (await engine.run(outer(), id="r")).output == [1, 3]


async def test_a_run_that_is_claimed_while_it_waits_for_its_lock_keeps_the_rows_of_its_children() -> None:
    @workflow
    async def inner() -> None:
        async with lock("room"):
            await wait_for("go")

    @workflow
    async def outer() -> None:
        await inner()

    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [outer, inner], on_commit=recorded, recovery=AT_ONCE, name="first") as engine:
        run = await engine.start(outer(), id="r")
        await recorded.until_started("inner:0/wait_for:0")
    gates.open("go")

    async def claimed() -> bool:
        row = await store.runs.get(run.run_id)
        return row is not None and row.owner == "second"

    async with connect(store) as client:
        assert await client.locks.force_release("room") is not None
        async with client.locks.hold("room"), Engine(store, [outer, inner], name="second"):
            await until(claimed)
            child = await store.runs.get(f"{run.run_id}/inner:0")
            assert child is not None
            assert (child.status, child.root) == (RunStatus.RUNNING, run.run_id)
    async with Engine(store, [outer, inner]) as engine:
        await engine.run(outer(), id="r")
        child = await store.runs.get(f"{run.run_id}/inner:0")
        assert child is not None
        assert child.status is RunStatus.COMPLETED
